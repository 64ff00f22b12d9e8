"""Settings of training: optimization, batches, checkpoints, and the search over them."""

import dataclasses
import math
from collections.abc import Collection
from typing import Any, Self

from bert_tf.errors import ConfigError

OPTIMIZERS = ("adamw", "lamb", "radam")
SCHEDULES = ("linear", "polynomial", "cosine", "noam", "constant")
NORMALIZATIONS = ("global", "replica_mean", "replica_sum")

# Values for the settings that TrainConfig leaves at None. docs/pretraining.md explains each and names its source.
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


@dataclasses.dataclass
class PhaseConfig:
    """A part of a run with different settings. None keeps the value in `TrainConfig` and `PretrainingData`.

    Attributes:
        share: of the steps of the run; the shares of all phases sum to 1.
        batch_size, accumulation: as in `TrainConfig`.
        max_length, max_predictions: as in `PretrainingData`.
        learning_rate: a new peak. The schedule restarts, including warm-up, and ends with this phase or, if phases
            without a learning rate follow, with the last of these. None continues the current schedule.
        warmup: share of the steps of the new schedule with a rising learning rate.
    """

    share: float = 1.0
    batch_size: int | None = None
    accumulation: int | None = None
    max_length: int | None = None
    max_predictions: int | None = None
    learning_rate: float | None = None
    warmup: float | None = None


@dataclasses.dataclass
class GridConfig:
    """Values of a grid search; the defaults are the paper's (appendix A.3). () uses the value in `TrainConfig`.

    Attributes:
        batch_size, learning_rate, epochs: as in `TrainConfig`.
    """

    batch_size: tuple[int, ...] = (16, 32)
    learning_rate: tuple[float, ...] = (5e-5, 3e-5, 2e-5)
    epochs: tuple[float, ...] = (2.0, 3.0, 4.0)

    def check(self) -> Self:
        """Raises ConfigError unless each field is a tuple or list of different numbers."""
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            numbers = isinstance(values, tuple | list) and all(type(value) in (int, float) for value in values)
            if not numbers or len(set(values)) < len(values):
                raise ConfigError(f"grid.{field.name} is {values!r}; expected different numbers in parentheses")
        return self


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
        optimizer: "adamw" (without bias correction: BERT's Adam), "lamb" or "radam".
        bias_correction: whether the moments of Adam and LAMB are corrected for starting at 0; RAdam's always are.
        beta_1, beta_2, epsilon: of the moments; epsilon is added to the square root of the second.
        learning_rate: the peak, reached after warm-up.
        schedule: of the learning rate after warm-up: "linear", "polynomial", "cosine", "noam" or "constant".
        power: exponent of "polynomial".
        end_learning_rate: final value of "linear", "polynomial" and "cosine".
        warmup: share of the steps with a rising learning rate.
        warmup_steps: the same as a number of steps; overrides warmup.
        warmup_from_zero: whether warm-up starts at a learning rate of 0 instead of that of one warm-up step.
        decay_from_start: whether the decay is computed from the first update, so that the learning rate drops at the
            end of warm-up, instead of from the end of warm-up.
        weight_decay: decoupled; not applied to biases and LayerNorm.
        layer_decay: factor on the learning rate from each layer to the one below; 1 for the same rate in all layers.
        clip_norm: maximum gradient norm; 0 turns clipping off.
        clip_on: "global" clips the reduced gradient, "replica" that of each micro-batch before the reduction.
        normalization: divisor of the summed losses: "global", the weight of the whole batch, or the weight of each
            micro-batch, whose gradients are then averaged ("replica_mean") or summed ("replica_sum").
        seed: for initial weights, data order, masks and dropout.
        dtype: compute dtype: float32, bfloat16, float16, or auto (the faster of float32 and bfloat16 on this machine).
        loss_scale_growth: updates without an overflow after which the loss scale of float16 is doubled.
        remat: recomputes the activations inside each layer in the backward pass instead of storing them.
        steps_per_call: updates per call of the compiled function.
        log_every: updates between two points of the curves.
        evaluate_every: updates between two evaluations; 0: once per epoch in fine-tuning, at start and end in
            pre-training.
        save_every: updates between two checkpoints; 0: at each evaluation, and at least every 1,000 updates.
        keep: number of checkpoints to keep.
        on_save_error: what to do if a checkpoint or the curves cannot be written, e.g. because the disk is full:
            "stop", or "go_on" with a warning for each checkpoint.
        max_nonfinite_steps: consecutive updates with a non-finite gradient, all skipped, after which the run stops.
        keep_best: whether to save the model of the best evaluation, by the task's `monitor` metric, instead of the
            last one.
        patience: consecutive evaluations without improvement after which the run stops; 0 for no early stopping.
            Implies keep_best.
        seeds: number of runs, with consecutive seeds from `seed`; the best is kept. Fine-tuning only.
    """

    recipe: str = "modern"
    batch_size: int = 32
    accumulation: int = 1
    steps: int = 0
    epochs: float = 3.0
    phases: tuple[PhaseConfig, ...] = ()
    optimizer: str = "adamw"
    bias_correction: bool | None = None
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    learning_rate: float = 5e-5
    schedule: str = "linear"
    power: float = 1.0
    end_learning_rate: float = 0.0
    warmup: float = 0.1
    warmup_steps: int | None = None
    warmup_from_zero: bool | None = None
    decay_from_start: bool | None = None
    weight_decay: float = 0.01
    layer_decay: float = 1.0
    clip_norm: float = 1.0
    clip_on: str | None = None
    normalization: str | None = None
    seed: int = 0
    dtype: str = "auto"
    loss_scale_growth: int = 2000
    remat: bool = False
    steps_per_call: int = 10
    log_every: int = 10
    evaluate_every: int = 0
    save_every: int = 0
    keep: int = 2
    on_save_error: str = "stop"
    max_nonfinite_steps: int = 20
    keep_best: bool = False
    patience: int = 0
    seeds: int = 1

    def check(self) -> Self:
        """Raises ConfigError for invalid values and combinations."""
        least_one = (
            "batch_size",
            "accumulation",
            "steps_per_call",
            "log_every",
            "keep",
            "max_nonfinite_steps",
            "seeds",
        )
        for field in (*least_one, "loss_scale_growth"):
            if getattr(self, field) < 1:
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be at least 1")
        not_negative = ("learning_rate", "end_learning_rate", "weight_decay", "clip_norm", "warmup_steps", "epsilon")
        for field in (*not_negative, "evaluate_every", "save_every", "patience"):
            if not 0 <= (getattr(self, field) or 0) < math.inf:  # NaN is neither
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be a finite number, at least 0")
        if self.steps < 0 or (self.steps == 0 and self.epochs <= 0):
            raise ConfigError(f"train.steps is {self.steps} and train.epochs {self.epochs}; one must be above 0")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(
                f"train.warmup is {self.warmup}; it must be in [0, 1], the share of steps with a rising rate"
            )
        if self.dtype not in ("float32", "bfloat16", "float16", "auto"):
            raise ConfigError(f"train.dtype {self.dtype!r} is unknown; choose float32, bfloat16, float16 or auto")
        if self.on_save_error not in ("stop", "go_on"):
            raise ConfigError(f"train.on_save_error {self.on_save_error!r} is unknown; choose stop or go_on")
        self._check_optimization()
        self._check_phases()
        return self

    def _check_optimization(self) -> None:
        choices: dict[str, Collection[str | None]] = {"recipe": RECIPES, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
        choices |= {"clip_on": (None, "global", "replica"), "normalization": (None, *NORMALIZATIONS)}
        for field, known in choices.items():
            if getattr(self, field) not in known:
                listed = ", ".join(name for name in known if name)
                raise ConfigError(f"train.{field} {getattr(self, field)!r} is unknown; choose one of {listed}")
        for field in ("beta_1", "beta_2"):
            if not 0 < getattr(self, field) < 1:
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be above 0 and below 1")
        for field in ("layer_decay", "power"):
            if getattr(self, field) <= 0:
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be above 0")
        if self.end_learning_rate > self.learning_rate:
            raise ConfigError(
                f"train.end_learning_rate {self.end_learning_rate} is above train.learning_rate {self.learning_rate}"
            )
        if self.end_learning_rate and self.schedule in ("noam", "constant"):
            raise ConfigError(
                f"train.end_learning_rate has no effect with the schedule {self.schedule!r}; leave it at 0"
            )
        if self.power != 1.0 and self.schedule != "polynomial":
            raise ConfigError(f"train.power is {self.power}, but only the schedule 'polynomial' has one")
        if self.optimizer == "radam" and self.bias_correction is False:
            raise ConfigError("train.bias_correction is false, but RAdam requires it; choose another train.optimizer")
        if self.clip_on == "replica" and self.normalization == "global":
            raise ConfigError(
                "train.clip_on is 'replica' while train.normalization is 'global': a micro-batch has no gradient of "
                "its own to clip; set train.clip_on to 'global' too"
            )

    def _check_phases(self) -> None:
        if not (isinstance(self.phases, tuple | list) and all(isinstance(phase, PhaseConfig) for phase in self.phases)):
            raise ConfigError(f"train.phases is {self.phases!r}; expected PhaseConfigs in parentheses, or () for none")
        total = sum(phase.share for phase in self.phases)
        if self.phases and not (math.isclose(total, 1) and min(phase.share for phase in self.phases) > 0):
            shares = ", ".join(f"{phase.share}" for phase in self.phases)
            raise ConfigError(f"the shares of train.phases are {shares}; each must be above 0, and they must sum to 1")
        for number, phase in enumerate(self.phases):
            if phase.warmup is not None and phase.learning_rate is None:
                raise ConfigError(
                    f"train.phases[{number}].warmup is {phase.warmup}, but the schedule does not restart there; set "
                    f"train.phases[{number}].learning_rate too, or leave warmup out"
                )
            try:
                self.in_phase(phase)
            except ConfigError as error:
                raise ConfigError(f"in train.phases[{number}]: {error}") from None

    def in_phase(self, phase: PhaseConfig) -> Self:
        """The settings of a phase, as if it were a run of its own; checked."""
        names = ("batch_size", "accumulation", "learning_rate", "warmup")
        own: dict[str, Any] = {name: getattr(phase, name) for name in names if getattr(phase, name) is not None}
        if "warmup" in own:
            own["warmup_steps"] = None
        return dataclasses.replace(self, phases=(), **own).check()

    def resolved(self) -> Self:
        """A copy with all settings filled in that follow from the recipe or from other settings; checked."""
        decided = RECIPES[self.check().recipe]
        if self.optimizer == "radam":
            decided = decided | {"bias_correction": True}
        missing = {name: value for name, value in decided.items() if getattr(self, name) is None}
        return dataclasses.replace(self, keep_best=self.keep_best or self.patience > 0, **missing).check()
