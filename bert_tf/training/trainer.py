"""What a run trains: model, optimizer, the compiled update, and their state, on any tf.distribute strategy."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.errors import BertTfError, ConfigError
from bert_tf.files import require_space
from bert_tf.inputs.batching import stream
from bert_tf.memory import memory_errors
from bert_tf.model.encoder import encoder_of, encoders_of, ranges_of
from bert_tf.model.memory import check_memory
from bert_tf.tasks.objective import JointObjective
from bert_tf.tasks.task import Task
from bert_tf.training import optimizers, phases
from bert_tf.training.evaluation import means
from bert_tf.training.speed import Work
from bert_tf.training.state.checkpoints import Checkpoints
from bert_tf.training.state.input_state import InputState
from bert_tf.training.step import LossScale, Step
from bert_tf.training.strategy import accelerator
from bert_tf.types import Array, Metrics

# Updates times weights from which on it pays to compile for every length of batches: 450 updates of MiniLM, which gain
# 24 ms each. Compiling takes about half a second per length whatever the model; a larger one gains more per update.
_LONG_RUN = 1e10


class NonFiniteError(BertTfError):
    """Too many updates in a row had a non-finite loss or gradient."""


class Trainer:
    """Trains one model on one task.

    Args:
        model: built by `task.build` under the strategy's scope.
        total_steps: updates until the learning rate has decayed and the run ends.
        jit_compile, flash_attention: as for `Step`; the settings of these names in `config` are not read.

    Attributes:
        phases: list of phases.Phase.
        optimizer: its slots are saved.
        loss_scale: saved.
        train_step: the update, to be compiled.
    """

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        config: TrainConfig,
        strategy: tf.distribute.Strategy,
        total_steps: int,
        *,
        jit_compile: bool = False,
        flash_attention: bool = False,
    ) -> None:
        config = config.resolved()
        if config.layer_decay != 1 and encoder_of(model).config.shared_layers:
            raise ConfigError(
                f"train.layer_decay is {config.layer_decay}, but all layers of the model share their weights, so their "
                "rates cannot differ; set it to 1"
            )
        if accelerator(strategy) is None:
            shapes = [tuple(variable.shape) for variable in model.trainable_variables]
            use = " in training, with gradients and two moments"
            for encoder in encoders_of(model):
                check_memory(shapes, encoder.config, copies=4, use=use)
        self.task, self.model, self.config, self.strategy = task, model, config, strategy
        self.total_steps = total_steps
        self.phases = phases.split(config, total_steps, strategy.num_replicas_in_sync)
        if any(phase.rotary_base for phase in self.phases) and encoder_of(model).config.positions != "rotary":
            raise ConfigError("a phase of train.phases has a rotary_base, but model.positions is 'table'; leave it out")
        if isinstance(task.objective, JointObjective):
            for name, value, expected in (
                ("normalization", config.normalization, "global"),
                ("clip_on", config.clip_on, "global"),
            ):
                if value != expected:
                    raise ConfigError(
                        f"train.{name} is {value!r}, but the loss of this task is that of a whole batch; set it to "
                        f"{expected!r}"
                    )
            if jit_compile:
                raise ConfigError("train.jit_compile is on, but this task gathers all replicas; set it to off")
        with strategy.scope():
            self.optimizer = optimizers.create(model.trainable_variables, config)
        self._learning_rate = phases.learning_rate(self.phases)
        self.loss_scale = LossScale(model, config.loss_scale_growth)
        self.train_step = Step(
            task.objective,
            model,
            self.optimizer,
            self._learning_rate,
            self.loss_scale,
            config,
            strategy,
            jit_compile=jit_compile,
            flash_attention=flash_attention,
            fuse_every_shape=total_steps * model.count_params() >= _LONG_RUN and accelerator(strategy) is None,
        )
        # step, epoch, batches of the epoch used, non-finite steps in a row
        self._state = tf.Variable([0, 0, 0, 0], dtype=tf.int64, trainable=False)
        # Sums and weights since the last point of the curves: saved, so that a resumed run draws the same curve.
        self._totals = tf.Variable(tf.zeros([len(self.train_step.names), 2]), trainable=False)
        self._histograms: dict[str, Array] = {}  # float32 counts since the last point; a resumed run starts at 0

    @property
    def step(self) -> int:
        """Updates done, skipped ones included."""
        return int(self._state[0])

    @property
    def skipped(self) -> int:
        """Updates skipped because of a non-finite loss or gradient."""
        return self.step - int(self.optimizer.slots["updates"].numpy())

    @property
    def rate(self) -> float:
        """The learning rate of the last update."""
        return float(self._learning_rate(self.step - 1))

    @property
    def counted(self) -> int:
        """Updates since the last point, without skipped ones."""
        return int(self._totals[-1, 1])

    def work(self, inputs: Sequence[phases.Input]) -> list[Work]:
        """The cost of each phase; inputs as for `Loop`."""
        return [
            Work(phase.end - phase.first, phase.config.batch_size, source.length, source.row_flops)
            for phase, source in zip(self.phases, inputs, strict=True)
        ]

    def benchmark(self, number: int, source: phases.Input, steps: int) -> tuple[float, float]:
        """Trains for `steps` updates of phase `number`, after a first one that compiles; saves nothing.

        Returns:
            (seconds per update, positions per row).
        """
        phase = self.phases[number]
        iterator = iter(stream(source.batches))
        self.train_step.fuse_every_shape = False  # compiling for new lengths would count as training
        call = self.train_step.compiled(iterator, source.prepare, phase.config.accumulation)
        self.advance(call, 1)
        began = time.perf_counter()
        totals = self.advance(call, steps)
        seconds = (time.perf_counter() - began) / steps
        _, positions = totals[self.train_step.names.index("padding_share")]
        return seconds, float(positions) / steps / phase.config.batch_size

    def check_space(self, directory: str, checkpoints: int, save_every: int) -> None:
        """Raises DataError if the disk clearly has no room for this number of new checkpoints, and the model."""
        if self.step >= self.total_steps:
            return
        sizes = {name: value.dtype.size * value.shape.num_elements() for name, value in self.variables().items()}
        count = max(0, min(checkpoints, -(-(self.total_steps - self.step) // save_every)))
        weights = sum(size for name, size in sizes.items() if name.startswith("weights/"))
        what = f"the model with {count} more checkpoints (train.keep)"
        require_space(directory, count * sum(sizes.values()) + weights, what)

    def phase_of(self, step: int) -> phases.Phase:
        """The phase of the update after `step` updates; the first and the last phase extend beyond the run."""
        return next((phase for phase in self.phases if step < phase.end), self.phases[-1])

    def begin(
        self, phase: phases.Phase, source: phases.Input, input_state: InputState
    ) -> tuple[Callable[..., Any], Iterator[Any]]:
        """The compiled updates of a phase and the iterator over its remaining batches."""
        epoch, used = (int(value) for value in self._state[1:3])
        if self.step == phase.first and phase.number:
            # The text is split into other sequences, so the previous phase's epoch cannot be continued.
            epoch, used = epoch + 1, 0
        with memory_errors(self._smaller()):
            iterator = input_state.open(source.batches, (epoch, used), self.step if self.step > phase.first else None)
            call = self.train_step.compiled(iterator, source.prepare, phase.config.accumulation, phase.rotary_base)
            # Traced here, not by the first call: what is done meanwhile would compete with tracing for Python.
            return call.get_concrete_function(*self._arguments(1)), iterator

    def advance(self, call: Callable[..., Any], steps: int, checkpoints: Checkpoints | None = None) -> Array:
        """Runs `steps` updates; returns sums and weights of the metrics over them, float32 [metrics, 2]."""
        with memory_errors(self._smaller()):
            done, totals, histograms, position, nonfinite, fingerprint, scale_state = call(*self._arguments(steps))
        self._state.assign([self.step + done, *position, nonfinite])
        self.loss_scale.variable.assign(scale_state)
        if nonfinite >= self.config.max_nonfinite_steps:
            raise self._nonfinite_error(int(nonfinite), bytes(fingerprint.numpy()).hex(), checkpoints)
        self._totals.assign_add(totals)
        for name, counts in histograms.items():
            self._histograms[name] = self._histograms.get(name, 0) + counts.numpy()
        return totals.numpy()

    def _smaller(self) -> str:
        """What takes less memory than an update of this phase."""
        config, phase = self.config, self.phase_of(self.step).config
        rows = phase.batch_size // (self.strategy.num_replicas_in_sync * phase.accumulation)
        remat = "" if config.remat else ", train.remat=True, which computes activations twice instead of keeping them"
        return (
            f"a replica holds {rows} sequences at a time: set train.accumulation (now {phase.accumulation}) higher, "
            f"which gives the same updates{remat}, or a smaller train.batch_size (now {phase.batch_size}) or max_length"
        )

    def _arguments(self, steps: int) -> tuple[tf.Tensor, ...]:
        """Those of the compiled updates, for `steps` updates."""
        step, _, _, nonfinite = self._state.numpy()
        scale_state = self.loss_scale.variable.read_value()
        return tf.constant(step), tf.constant(steps, tf.int64), tf.constant(nonfinite), scale_state

    def _nonfinite_error(self, nonfinite: int, fingerprint: str, checkpoints: Checkpoints | None) -> NonFiniteError:
        """The error for this number of non-finite steps in a row; the fingerprint is of the last one's batch."""
        step, epoch, used, _ = self._state.numpy()
        good = None
        if checkpoints:
            checkpoints.wait()
            # May have been written during these steps: a skipped update changes nothing.
            good = checkpoints.newest
        return NonFiniteError(
            f"{nonfinite} steps in a row up to step {step} had a non-finite loss or gradient, the last with batch "
            f"{used - 1} of epoch {epoch}, fingerprint {fingerprint}; last good checkpoint: {good or 'none'}; "
            "resume from it with a lower train.learning_rate or train.dtype=float32 and --accept_config_change"
        )

    def means(self, totals: Array) -> Metrics:
        """Mean of each metric, NaN where the weight is 0: all updates were skipped, or no example had a target."""
        names = self.train_step.names
        return dict.fromkeys(["loss", *names], math.nan) | means(self.task.objective, names, totals)

    def take_point(self) -> tuple[Metrics, dict[str, Array]]:
        """The means and histograms of the updates since the last point, whose sums begin again."""
        taken = self.means(self._totals.numpy()), self._histograms
        self._totals.assign(tf.zeros_like(self._totals))
        self._histograms = {}
        return taken

    def variables(self) -> dict[str, tf.Variable]:
        """All state, by name in a checkpoint."""
        weights = {f"weights/{variable.path}": variable.value for variable in self.model.weights}
        slots = {f"slots/{name}": variable for name, variable in self.optimizer.slots.items()}
        own = {"state": self._state, "loss_scale": self.loss_scale.variable, "totals": self._totals}
        ranges = {name: variable.value for name, variable in ranges_of(self.model).by_path.items()}
        return weights | slots | ranges | own
