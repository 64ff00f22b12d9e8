"""Settings of training: optimization, batches, checkpoints, and the search over them."""

import dataclasses
import math
from typing import Annotated, Any, Self, TypeAlias

from bert_tf.config.values import Rule, check_fields, setting
from bert_tf.errors import ConfigError
from bert_tf.types import Json

# Limits of fields that several dataclasses have. Above the upper ones, steps would not fit into memory or rates into
# float32.
_ROWS: Rule = {"at_least": 1, "at_most": 10_000_000}
_EPOCHS: Rule = {"at_least": 0, "at_most": 1_000_000}
_RATE: Rule = {"at_least": 0, "at_most": 1000}
_SHARE: Rule = {"at_least": 0, "at_most": 1}
_COUNT: Rule = {"at_least": 1, "at_most": 1_000_000_000}
_COUNT_OR_0: Rule = {"at_least": 0, "at_most": 1_000_000_000}

# The paper's highest rates for BERT-base (appendix A): of fine-tuning, and of pre-training, where models start from
# random weights.
FINETUNING_RATE, PRETRAINING_RATE = 5e-5, 1e-4
_WIDTH_OF_BASE = 768

# Values of dtype where a trained model predicts.
INFERENCE_DTYPES = ("float32", "bfloat16", "int8", "auto")

# Of arguments.
BatchSize: TypeAlias = Annotated[int, _ROWS]
InferenceDtype: TypeAlias = Annotated[str, Rule(choices=INFERENCE_DTYPES)]

# Values for the settings that TrainConfig leaves at None; docs/pretraining/optimization.md explains each.
RECIPES: dict[str, dict[str, Any]] = {
    "google": {
        "bias_correction": False,
        "warmup_from_zero": True,
        "decay_from_start": True,
        "normalization": "replica_sum",
        "clip_on": "replica",
    },
    "modern": {
        "bias_correction": True,
        "warmup_from_zero": False,
        "decay_from_start": False,
        "normalization": "global",
        "clip_on": "global",
    },
}
# Optimizers whose moments are corrected for starting at 0 in any case.
_CORRECTED = ("radam", "stable_adamw", "muon")


@dataclasses.dataclass
class PhaseConfig:
    """A part of a run with different settings. None keeps the value in `TrainConfig` and `PretrainingData`.

    Attributes:
        share: of the steps of the run; the shares of all phases sum to 1.
        batch_size, accumulation: as in `TrainConfig`.
        max_length, max_predictions: as in `PretrainingData`.
        rotary_base: as in `BertConfig`, in this phase alone: the model that is saved has that of its own config.
        learning_rate: a new peak. The schedule restarts, including warm-up, and ends with this phase or, if phases
            without a learning rate follow, with the last of these. None continues the current schedule.
        warmup, decay: shares of the steps of the new schedule with a rising and, at the end of "stable", a falling
            learning rate.
    """

    share: float = setting(1.0, above=0, at_most=1)
    batch_size: int | None = setting(None, **_ROWS)
    accumulation: int | None = setting(None, **_ROWS)
    max_length: int | None = None  # checked with the rest of PretrainingData
    max_predictions: int | None = None
    rotary_base: float | None = setting(None, above=1, at_most=1e12, sparse=True)
    learning_rate: float | None = setting(None, **_RATE)
    warmup: float | None = setting(None, **_SHARE)
    decay: float | None = setting(None, at_least=0, at_most=1, sparse=True)

    def own(self, *names: str) -> Json:
        """The values of these fields, except for None."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclasses.dataclass
class GridConfig:
    """Values of a grid search; the defaults are the paper's (appendix A.3). () uses the value in `TrainConfig`.

    Attributes:
        batch_size, epochs: as in `TrainConfig`.
        learning_rate: the same; None takes the paper's 5e-5, 3e-5 and 2e-5, scaled to the width of the model.
    """

    batch_size: tuple[int, ...] = setting((16, 32), **_ROWS)
    learning_rate: tuple[float, ...] | None = setting(None, **_RATE)
    epochs: tuple[float, ...] = setting((2.0, 3.0, 4.0), **_EPOCHS)

    def check(self) -> Self:
        """Raises ConfigError unless each field is a tuple or list of different numbers."""
        check_fields(self, "grid")
        for name, values in vars(self).items():
            if values is not None and len(set(values)) < len(values):
                raise ConfigError(f"grid.{name} is {values!r}; expected different numbers")
        return self

    def rates(self, width: int) -> tuple[float, ...]:
        """The learning rates for an encoder of `width` units."""
        paper = (FINETUNING_RATE, 3e-5, 2e-5)
        return tuple(scaled_rate(rate, width) for rate in paper) if self.learning_rate is None else self.learning_rate


def scaled_rate(rate: float, width: int) -> float:
    """A learning rate for BERT-base as one for an encoder of `width` units, with two digits.

    It is inversely proportional to the width, because Adam changes each weight by about the rate, and an output of a
    layer sums as many of these changes as the layer has inputs (Yang et al., 2021, arXiv:2203.03466).
    """
    return float(f"{rate * _WIDTH_OF_BASE / width:.1e}")


@dataclasses.dataclass
class TrainConfig:
    """Settings of the training loop. None takes the value of the recipe.

    Attributes:
        recipe: "modern", or "google": exactly what google-research/bert's optimization.py does.
        batch_size: sequences per update, over all replicas and accumulated micro-batches.
        accumulation: micro-batches per update; a replica processes batch_size / replicas / accumulation sequences at
            a time.
        steps: number of updates; 0 to set it by `epochs`.
        phases: consecutive parts of the run with different sequence lengths or batch sizes; () for none.
        epochs: passes over the data if `steps` is 0.
        optimizer: "adamw" (without bias correction: BERT's Adam), "stable_adamw", "lamb", "radam" or "muon".
        bias_correction: whether the moments of Adam and LAMB are corrected for starting at 0; those of the others
            always are.
        beta_1, beta_2, epsilon: of the moments; epsilon is added to the square root of the second.
        learning_rate: the peak, reached after warm-up; None for the one of BERT-base, 5e-5 in fine-tuning and 1e-4 in
            pre-training, times 768 / `hidden_size`.
        schedule: of the learning rate after warm-up: "linear", "polynomial", "cosine", "noam", "constant" or "stable",
            which is constant until the last `decay` of the steps.
        power: exponent of "polynomial".
        decay: of "stable", the share of the steps at the end with a falling learning rate.
        end_learning_rate: final value of "linear", "polynomial", "cosine" and "stable".
        warmup: share of the steps with a rising learning rate.
        warmup_steps: the same as a number of steps; overrides warmup.
        warmup_from_zero: whether warm-up starts at a learning rate of 0 instead of that of one warm-up step.
        decay_from_start: whether the decay is computed from the first update, so that the learning rate drops at the
            end of warm-up, instead of from the end of warm-up.
        weight_decay: decoupled; not applied to biases and LayerNorm.
        layer_decay: factor on the learning rate from each layer to the one below; 1 for the same rate in all layers,
            as layers that share their weights need.
        clip_norm: maximum gradient norm; 0 turns clipping off.
        clip_on: "global" clips the reduced gradient, "replica" that of each micro-batch before the reduction.
        normalization: divisor of the summed losses: "global", the weight of the whole batch, or the weight of each
            micro-batch, whose gradients are then averaged ("replica_mean") or summed ("replica_sum").
        seed: for initial weights, data order, masks and dropout.
        dtype: compute dtype: float32, bfloat16, float16, or auto (the fastest on this machine).
        quantization: "int8": the encoder computes with the rounding of exports in int8, in float32, and learns to make
            up for it; its ranges are measured on training examples and saved with the model. Fine-tuning only.
        jit_compile: whether XLA compiles the update: "on", "off" or "auto", which compiles on GPUs if all batches have
            one shape (pre-training). On TPUs XLA always compiles it.
        flash_attention: whether cuDNN's fused kernel computes the attention where XLA compiles for a GPU: "auto", where
            it suits model and card, or "off".
        loss_scale_growth: updates without an overflow after which the loss scale of float16 is doubled.
        remat: recomputes the activations inside each layer in the backward pass instead of storing them.
        steps_per_call: updates per call of the compiled function.
        log_every: updates between two points of the curves.
        evaluate_every: updates between two evaluations; 0: once per epoch in fine-tuning, at start and end in
            pre-training.
        save_every: updates between two checkpoints; 0: at each evaluation, and at least every 1,000 updates.
        keep: number of checkpoints to keep.
        max_nonfinite_steps: consecutive updates with a non-finite gradient, all skipped, after which the run stops.
        keep_best: whether to save the model of the best evaluation, by the task's `monitor` metric, instead of the
            last one.
        patience: consecutive evaluations without improvement after which the run stops; 0 for no early stopping.
            Implies keep_best.
        seeds: number of runs, with consecutive seeds from `seed`; the best is kept. Fine-tuning only.
    """

    recipe: str = setting("modern", choices=tuple(RECIPES))
    batch_size: int = setting(32, **_ROWS)
    accumulation: int = setting(1, **_ROWS)
    steps: int = setting(0, **_COUNT_OR_0)
    epochs: float = setting(3.0, **_EPOCHS)
    phases: tuple[PhaseConfig, ...] = ()
    optimizer: str = setting("adamw", choices=("adamw", "stable_adamw", "lamb", "radam", "muon"))
    bias_correction: bool | None = None
    beta_1: float = setting(0.9, above=0, below=1)
    beta_2: float = setting(0.999, above=0, below=1)
    # The square of a gradient below 1e-19 is 0 in float32, so a smaller epsilon would be all that divides it.
    epsilon: float = setting(1e-6, at_least=1e-16, at_most=1000)
    learning_rate: float | None = setting(None, **_RATE)
    schedule: str = setting("linear", choices=("linear", "polynomial", "cosine", "noam", "constant", "stable"))
    power: float = setting(1.0, above=0, at_most=1000)
    decay: float = setting(0.1, at_least=0, at_most=1, sparse=True)
    end_learning_rate: float = setting(0.0, **_RATE)
    warmup: float = setting(0.1, **_SHARE)
    warmup_steps: int | None = setting(None, **_COUNT_OR_0)
    warmup_from_zero: bool | None = None
    decay_from_start: bool | None = None
    weight_decay: float = setting(0.01, **_RATE)
    layer_decay: float = setting(1.0, above=0, at_most=1)
    clip_norm: float = setting(1.0, at_least=0, at_most=1e30)
    clip_on: str | None = setting(None, choices=("global", "replica"))
    normalization: str | None = setting(None, choices=("global", "replica_mean", "replica_sum"))
    seed: int = setting(0, at_least=0, at_most=2**32 - 1)  # what NumPy takes
    dtype: str = setting("auto", choices=("float32", "bfloat16", "float16", "auto"))
    quantization: str = setting("none", choices=("none", "int8"))
    jit_compile: str = setting("auto", choices=("auto", "on", "off"))
    flash_attention: str = setting("auto", choices=("auto", "off"), sparse=True)
    loss_scale_growth: int = setting(2000, **_COUNT)
    remat: bool = False
    steps_per_call: int = setting(10, **_COUNT)
    log_every: int = setting(10, **_COUNT)
    evaluate_every: int = setting(0, **_COUNT_OR_0)
    save_every: int = setting(0, **_COUNT_OR_0)
    keep: int = setting(2, **_COUNT)
    max_nonfinite_steps: int = setting(20, **_COUNT)
    keep_best: bool = False
    patience: int = setting(0, **_COUNT_OR_0)
    seeds: int = setting(1, at_least=1, at_most=100_000)

    def check(self) -> Self:
        """Raises ConfigError for invalid values and combinations."""
        check_fields(self, "train")
        if not self.steps and not self.epochs:
            raise ConfigError("train.steps and train.epochs are 0; set one of them")
        if self.learning_rate is not None and self.end_learning_rate > self.learning_rate:
            raise ConfigError(
                f"train.end_learning_rate {self.end_learning_rate} is above train.learning_rate {self.learning_rate}"
            )
        if self.end_learning_rate and self.schedule in ("noam", "constant"):
            raise ConfigError(
                f"train.end_learning_rate has no effect with the schedule {self.schedule!r}; leave it at 0"
            )
        for name, default, schedule in (("power", 1.0, "polynomial"), ("decay", 0.1, "stable")):
            if getattr(self, name) != default and self.schedule != schedule:
                raise ConfigError(
                    f"train.{name} is {getattr(self, name)}, but only the schedule {schedule!r} has one; set "
                    f"train.schedule to it, or leave train.{name} at {default}"
                )
        if self.optimizer in _CORRECTED and self.bias_correction is False:
            raise ConfigError(
                f"train.bias_correction is false, but train.optimizer {self.optimizer!r} requires it; choose another "
                "optimizer"
            )
        if self.clip_on == "replica" and self.normalization == "global":
            raise ConfigError(
                "train.clip_on is 'replica' while train.normalization is 'global': a micro-batch has no gradient of "
                "its own to clip; set train.clip_on to 'global' too"
            )
        if self.quantization != "none" and self.dtype not in ("auto", "float32"):
            raise ConfigError(
                f"train.dtype is {self.dtype!r}, but with train.quantization 'int8' whole numbers are multiplied in "
                "float32, as exact as in an export; leave train.dtype at 'auto'"
            )
        self._check_phases()
        return self

    def _check_phases(self) -> None:
        for number, phase in enumerate(self.phases):
            check_fields(phase, f"train.phases[{number}]")
        if self.phases and not math.isclose(sum(phase.share for phase in self.phases), 1):
            shares = ", ".join(f"{phase.share}" for phase in self.phases)
            raise ConfigError(f"the shares of train.phases are {shares}; they must sum to 1")
        for number, phase in enumerate(self.phases):
            if phase.learning_rate is None and (own := phase.own("warmup", "decay")):
                name, value = next(iter(own.items()))
                raise ConfigError(
                    f"train.phases[{number}].{name} is {value}, but the schedule does not restart there; set "
                    f"train.phases[{number}].learning_rate too, or leave {name} out"
                )
            try:
                self.in_phase(phase)
            except ConfigError as error:
                raise ConfigError(f"in train.phases[{number}]: {error}") from None

    def in_phase(self, phase: PhaseConfig) -> Self:
        """The settings of a phase, as if it were a run of its own; checked."""
        own = phase.own("batch_size", "accumulation", "learning_rate", "warmup", "decay")
        if "warmup" in own:
            own["warmup_steps"] = None
        return dataclasses.replace(self, phases=(), **own).check()

    def resolved(self) -> Self:
        """A copy with all settings filled in that follow from the recipe or from other settings; checked."""
        decided = RECIPES[self.check().recipe]
        if self.optimizer in _CORRECTED:
            decided = decided | {"bias_correction": True}
        missing = {name: value for name, value in decided.items() if getattr(self, name) is None}
        return dataclasses.replace(self, keep_best=self.keep_best or self.patience > 0, **missing).check()
