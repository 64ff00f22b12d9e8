"""How a model is trained."""

import dataclasses
import math

from bert_tf.errors import ConfigError

OPTIMIZERS = ("adamw", "lamb", "radam")
SCHEDULES = ("linear", "polynomial", "cosine", "noam", "constant")
NORMALIZATIONS = ("global", "replica_mean", "replica_sum")

# What a recipe decides where TrainConfig leaves it open. docs/pretraining.md has a line on each and its source.
RECIPES = {
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
    """A part of a run with settings of its own. None: as in `TrainConfig` and `PretrainingData`.

    Attributes:
        share: of the steps of the run; the shares of all phases make 1.
        batch_size, accumulation: of `TrainConfig`.
        max_length, max_predictions: of `PretrainingData`.
        learning_rate: a new peak. The schedule begins anew, warm-up included, and ends where this phase does or, where
            more phases follow without a rate of their own, with the last of these. None: the schedule goes on.
        warmup: share of the steps of that new schedule with a rising rate.
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
    """What a search tries, each with each; the defaults are the paper's (appendix A.3). () tries that of `TrainConfig`.

    Attributes:
        batch_size, learning_rate, epochs: of `TrainConfig`.
    """

    batch_size: tuple[int, ...] = (16, 32)
    learning_rate: tuple[float, ...] = (5e-5, 3e-5, 2e-5)
    epochs: tuple[float, ...] = (2.0, 3.0, 4.0)

    def check(self):
        """Raises ConfigError for what is no list of different numbers."""
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            numbers = isinstance(values, tuple | list) and all(type(value) in (int, float) for value in values)
            if not numbers or len(set(values)) < len(values):
                raise ConfigError(f"grid.{field.name} is {values!r}; expected different numbers in parentheses")
        return self


@dataclasses.dataclass
class TrainConfig:
    """How the one training loop runs. None in a setting means: as the recipe says.

    Attributes:
        recipe: "modern", or "google": to the letter what google-research/bert's optimization.py does.
        batch_size: sequences an update, over all replicas and accumulated micro-batches.
        accumulation: micro-batches an update; a replica holds batch_size / replicas / accumulation sequences at once.
        steps: updates; 0 means `epochs` decides.
        phases: PhaseConfigs, parts of the run one after the other, with sequences of other lengths or batches of other
            sizes; () for a run without.
        epochs: passes over the data when `steps` is 0.
        optimizer: "adamw" (without bias correction: BERT's Adam), "lamb" or "radam".
        bias_correction: whether Adam's and LAMB's moments are corrected for having begun at 0; RAdam's always are.
        beta_1, beta_2, epsilon: of the moments; epsilon is added to the root of the second one.
        learning_rate: the peak, reached after warm-up.
        schedule: what the rate does after warm-up: "linear", "polynomial", "cosine", "noam" or "constant".
        power: of "polynomial".
        end_learning_rate: what "linear", "polynomial" and "cosine" come down to.
        warmup: share of the steps with a rising learning rate.
        warmup_steps: the same as a number, which then counts instead of the share.
        warmup_from_zero: whether the first update's rate is 0 instead of one warm-up step's.
        decay_from_start: whether the fall is counted from the first update on, so that the rate jumps down where the
            warm-up ends, instead of from that end.
        weight_decay: decoupled, not on biases and LayerNorm.
        layer_decay: factor of the learning rate from each depth to the next lower one; 1 is the same rate for all.
        clip_norm: gradients of a larger norm are scaled down to it; 0 turns clipping off.
        clip_on: "global", the reduced gradient, or "replica", that of each micro-batch before the reduction.
        normalization: what sums of losses are divided by: "global", the weight of the whole batch, or the weight of
            each micro-batch, whose gradients are then averaged ("replica_mean") or added up ("replica_sum").
        seed: of initial weights, data order, masks and dropout.
        dtype: what layers compute in: float32, bfloat16, float16, or auto (the faster of float32 and bfloat16 here).
        loss_scale_growth: updates without an overflow after which the loss scale of float16 is doubled.
        remat: computes the inside of each layer again in the backward pass instead of keeping it in memory.
        steps_per_call: updates in one call of the compiled function.
        log_every: updates between two points of the curves.
        evaluate_every: updates between two evaluations; 0: once an epoch in fine-tuning, at start and end else.
        save_every: updates between two checkpoints; 0: at evaluations, and after 1,000 updates at the latest.
        keep: checkpoints kept.
        on_save_error: what happens where a checkpoint or the curves can not be written, e.g. because the disk is full:
            "stop", or "go_on", with a warning for each checkpoint.
        max_nonfinite_steps: updates in a row with a non-finite gradient, each skipped, before the run stops.
        keep_best: whether the model that is saved is that of the best evaluation, by the task's own measure, instead
            of the last one.
        patience: evaluations in a row without a better one after which the run stops; 0: it never does. It implies
            keep_best.
        seeds: runs, with this seed and the next ones, of which the best is taken; of fine-tuning only.
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

    def check(self):
        """Raises ConfigError for values that no run can have."""
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
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be a number and not negative")
        if self.steps < 0 or (self.steps == 0 and self.epochs <= 0):
            raise ConfigError(f"train.steps is {self.steps} and train.epochs {self.epochs}; one must be above 0")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(f"train.warmup is {self.warmup}; it is the share of steps with a rising rate, in [0, 1]")
        if self.dtype not in ("float32", "bfloat16", "float16", "auto"):
            raise ConfigError(f"train.dtype {self.dtype!r} is unknown; choose float32, bfloat16, float16 or auto")
        if self.on_save_error not in ("stop", "go_on"):
            raise ConfigError(f"train.on_save_error {self.on_save_error!r} is unknown; choose stop or go_on")
        self._check_optimisation()
        self._check_phases()
        return self

    def _check_optimisation(self):
        choices = {"recipe": RECIPES, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
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
                f"train.end_learning_rate has no meaning in the schedule {self.schedule!r}; leave it at 0"
            )
        if self.power != 1.0 and self.schedule != "polynomial":
            raise ConfigError(f"train.power is {self.power}, but only the schedule 'polynomial' has one")
        if self.optimizer == "radam" and self.bias_correction is False:
            raise ConfigError(
                "train.bias_correction is false, but RAdam is built on it; choose another train.optimizer"
            )
        if self.clip_on == "replica" and self.normalization == "global":
            raise ConfigError(
                "train.clip_on is 'replica' where train.normalization is 'global': a micro-batch has no gradient of "
                "its own to clip; set train.clip_on to 'global' too"
            )

    def _check_phases(self):
        if not (isinstance(self.phases, tuple | list) and all(isinstance(one, PhaseConfig) for one in self.phases)):
            raise ConfigError(f"train.phases is {self.phases!r}; expected PhaseConfigs in parentheses, or () for none")
        whole = sum(phase.share for phase in self.phases)
        if self.phases and not (math.isclose(whole, 1) and min(phase.share for phase in self.phases) > 0):
            shares = ", ".join(f"{phase.share}" for phase in self.phases)
            raise ConfigError(f"the shares of train.phases are {shares}; each must be above 0, and their sum 1")
        for number, phase in enumerate(self.phases):
            if phase.warmup is not None and phase.learning_rate is None:
                raise ConfigError(
                    f"train.phases[{number}].warmup is {phase.warmup}, but the schedule does not begin anew there; set "
                    f"train.phases[{number}].learning_rate too, or leave it out"
                )
            try:
                self.in_phase(phase)
            except ConfigError as error:
                raise ConfigError(f"in train.phases[{number}]: {error}") from None

    def in_phase(self, phase):
        """The settings of a phase, a PhaseConfig, as if it were a whole run.

        Raises:
            ConfigError: as `check`.
        """
        names = ("batch_size", "accumulation", "learning_rate", "warmup")
        own = {name: getattr(phase, name) for name in names if getattr(phase, name) is not None}
        if "warmup" in own:
            own["warmup_steps"] = None
        return dataclasses.replace(self, phases=(), **own).check()

    def resolved(self):
        """The same with every setting that was left to the recipe, or follows from another one, filled in.

        Raises:
            ConfigError: as `check`, for what recipe and settings come to together.
        """
        decided = RECIPES[self.check().recipe]
        if self.optimizer == "radam":
            decided = decided | {"bias_correction": True}
        missing = {name: value for name, value in decided.items() if getattr(self, name) is None}
        return dataclasses.replace(self, keep_best=self.keep_best or self.patience > 0, **missing).check()
