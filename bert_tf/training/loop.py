"""The training loop, on any tf.distribute strategy."""

import contextlib
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from bert_tf.model.precision import int8
from bert_tf.progress import TRAINING, bar, log, training_line
from bert_tf.tasks.task import Task
from bert_tf.training import optimizers, phases
from bert_tf.training.evaluation import means
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.speed import Speed, Work
from bert_tf.training.state.best_weights import BestWeights
from bert_tf.training.state.checkpoints import Checkpoints
from bert_tf.training.state.history import History, by_phase
from bert_tf.training.state.input_state import InputState
from bert_tf.training.state.signals import Interrupted, Signals
from bert_tf.training.step import LossScale, Step
from bert_tf.training.strategy import accelerator, is_chief
from bert_tf.types import Array, Json, Metrics, Tensors

# Updates between checkpoints unless configured: the most that a kill can cost.
_SAVE_EVERY = 1000
# Updates times weights from which on it pays to compile for every length of batches: 450 updates of MiniLM, which gain
# 24 ms each. Compiling takes about half a second per length whatever the model; a larger one gains more per update.
_LONG_RUN = 1e10
# How often the ranges of int8 are measured: activations grow while a model learns.
_CALIBRATIONS = 10


class Trainer:
    """Trains one model on one task.

    Args:
        model: built by `task.build` under the strategy's scope.
        total_steps: updates until the learning rate has decayed and the run ends.
        jit_compile: as for `Step`; the setting of this name in `config` is not read.

    Attributes:
        phases: list of phases.Phase.
        optimizer: its slots are saved.
        loss_scale: saved.
        train_step: the update, to be compiled.
        reached: result of `history.by_phase` for the last `run`.
        best: set by `run`.
        advanced: whether the last `run` did any updates.
    """

    best: BestWeights

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        config: TrainConfig,
        strategy: tf.distribute.Strategy,
        total_steps: int,
        *,
        jit_compile: bool = False,
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
            fuse_every_shape=total_steps * model.count_params() >= _LONG_RUN and accelerator(strategy) is None,
        )
        # step, epoch, batches of the epoch used, non-finite steps in a row
        self._state = tf.Variable([0, 0, 0, 0], dtype=tf.int64, trainable=False)
        # Sums and weights since the last point of the curves: saved, so that a resumed run draws the same curve.
        self._totals = tf.Variable(tf.zeros([len(self.train_step.names), 2]), trainable=False)
        self._histograms: dict[str, Array] = {}  # float32 counts since the last point; a resumed run starts at 0
        self.reached: list[Json] = []
        self.advanced = False

    @property
    def step(self) -> int:
        """Updates done, skipped ones included."""
        return int(self._state[0])

    @property
    def skipped(self) -> int:
        """Updates skipped because of a non-finite loss or gradient."""
        return self.step - int(self.optimizer.slots["updates"].numpy())

    def run(
        self,
        inputs: Sequence[phases.Input],
        directory: str,
        *,
        title: str,
        evaluate_every: int = 0,
        evaluate_first: bool = True,
        started: Callable[[int], None] | None = None,
        meanwhile: Callable[[], None] | None = None,
        calibration: Iterable[Tensors] = (),
        pipeline: str = "",
        peak_flops: float | None = None,
        reporter: Reporter = SILENT,
    ) -> History:
        """Trains to the end, from the newest checkpoint in `directory` if there is one.

        Args:
            inputs: one for each phase of the config (a config without phases has one).
            directory: gets checkpoints, TensorBoard files and history.jsonl.
            title: of the progress line.
            evaluate_every: updates between evaluations; 0 evaluates only at the start and at the ends of phases.
            evaluate_first: whether to evaluate the model before its first update.
            started: called with the step from which the run starts or resumes, as soon as it is known.
            meanwhile: called in a thread while TensorFlow prepares the first update, which leaves Python and all cores
                but one without work. An error in it must occur again where its result is needed: here it is ignored.
            calibration: batches on which the ranges of an encoder that has `ranges` are measured, at the start and
                after each tenth of the run.
            pipeline: identifies everything that determines the batches, see `InputState`.
            peak_flops: FLOP/s (`speed.peak_flops`), the denominator of mfu; None leaves mfu out.
            reporter: gets the curves.

        Raises:
            Interrupted: after SIGINT or SIGTERM, with the state saved.
        """
        config, chief = self.config, is_chief(self.strategy)
        folder = os.path.join(directory, "checkpoints")
        checkpoints = Checkpoints(folder, self._variables(), config.keep, sums=["totals"])
        # One more than checkpoints: the newest exists while the checkpoint of its step is still being written.
        input_state = InputState(folder, self.strategy, config.keep + 1, pipeline)
        restored = checkpoints.restore(print, lambda: self.step)
        save_every = config.save_every or min(evaluate_every or _SAVE_EVERY, _SAVE_EVERY)
        if chief:
            self._check_space(directory, config.keep + 1 - len(checkpoints.steps), save_every)
        if started:
            started(self.step)
        draw = functools.partial(reporter.curves, directory, title, self.task.monitor)
        history = History(directory, self.step, write=chief, draw=draw)
        self.best = best = BestWeights(folder, self.model, self.task.monitor, self.task.mode, config, write=chief)
        best.remove_after(self.step)
        # Updates since the last point: `_totals` counts all but the skipped ones.
        since = self.step - (history.points[-1]["step"] if history.points else 0)
        if chief and (since > int(self._totals[-1, 1]) + self.skipped or best.lost(history.evaluations, self.step)):
            log(
                f"{os.path.join(directory, 'history.jsonl')} lacks lines from before step {self.step}; the run resumes "
                "without these points of its curves and without these evaluations"
            )
        speed = Speed(self.work(inputs), peak_flops)
        ranges, measured = ranges_of(self.model), -1
        calibrate_every = math.ceil(self.total_steps / _CALIBRATIONS) if ranges.variables else 0
        intervals = (evaluate_every, save_every, config.log_every, calibrate_every)
        always = {phase.end for phase in self.phases}  # evaluated there, whatever evaluate_every is

        def evaluate(phase: phases.Phase, print_line: Callable[[str], object] = print) -> None:
            compute_metrics = inputs[phase.number].evaluate
            due = self.step in always or _due(self.step, evaluate_every) if self.step else evaluate_first
            if compute_metrics and due:
                with speed.timing("evaluation"):
                    metrics = compute_metrics()
                    best.update(history.evaluations, self.step, metrics, checkpoints.steps)
                    history.evaluation(self.step, metrics, print_line)

        def save(iterator: Iterator[Any]) -> None:
            with speed.timing("saving"):
                if chief:
                    inputs[self._phase(self.step - 1).number].check()
                input_state.save(iterator, self.step)
                if chief:
                    checkpoints.save(self.step)

        def calibrate() -> None:
            nonlocal measured
            if _due(self.step, calibrate_every) and measured < self.step < self.total_steps:
                with speed.timing("evaluation"):
                    ranges.assign(int8.calibrate(self.model, calibration))
                measured = self.step

        if not restored:  # else its evaluation had the ranges that were restored
            calibrate()
        # A run that ended between a checkpoint and its evaluation catches up on it.
        if all(row["step"] != self.step for row in history.evaluations):
            evaluate(self._phase(self.step - 1))
        self.advanced = self.step < self.total_steps and not best.exhausted(history.evaluations)
        if not self.advanced:
            self.reached = by_phase(history.points)
            return history
        if restored:
            print(f"{title}: resuming from step {self.step} of {self.total_steps}")
            history.resume(self.step)
        phase = None
        with (
            Signals(self.strategy) as signals,
            checkpoints,
            bar(title, self.total_steps, "step", done=self.step, layout=TRAINING) as line,
        ):
            while self.step < self.total_steps:
                calibrate()
                if phase is None or self.step == phase.end:
                    first, phase = phase is None, self._phase(self.step)
                    with speed.timing("start"), memory_errors(self._smaller()):
                        call, iterator = self._begin(phase, inputs[phase.number], input_state)
                    if first and meanwhile:
                        threading.Thread(target=_ignoring_errors, args=[meanwhile]).start()
                stop = min(phase.end, *(_next(self.step, every) for every in intervals))
                steps = min(config.steps_per_call, stop - self.step)
                speed.start()
                totals = self._advance(call, steps, checkpoints)
                speed.update(phase.number, steps, dict(zip(self.train_step.names, totals, strict=True)))
                signal, step, ended = signals.agreed(), self.step, self.step == self.total_steps
                self._show(line, steps, totals, speed)
                checkpoints.check()
                if ended or _due(step, config.log_every):
                    self._point(history, phase, speed)
                saved = signal or ended or _due(step, save_every)
                if saved:
                    save(iterator)
                if signal:
                    break
                evaluate(phase, line.write)
                if config.patience and signals.any(best.exhausted(history.evaluations)):
                    line.write(
                        f"  stopping at step {step}: best at step {best.step(history.evaluations)} (train.patience)"
                    )
                    if not saved:
                        save(iterator)
                    break
            line.close()
            history.draw()
            checkpoints.wait()
            # Again: a signal may have come during the last evaluation, and no worker exits before the chief has
            # written, because it could not continue alone.
            signal = signals.agreed()
            if signal:
                raise Interrupted(signal, self.step, directory)
        self.reached = by_phase(history.points, speed.point())
        return history

    def work(self, inputs: Sequence[phases.Input]) -> list[Work]:
        """The cost of each phase; inputs as for `run`."""
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
        self._advance(call, 1)
        began = time.perf_counter()
        totals = self._advance(call, steps)
        seconds = (time.perf_counter() - began) / steps
        _, positions = totals[self.train_step.names.index("padding_share")]
        return seconds, float(positions) / steps / phase.config.batch_size

    def _check_space(self, directory: str, checkpoints: int, save_every: int) -> None:
        """Raises DataError if the disk clearly has no room for this number of new checkpoints, and the model."""
        if self.step >= self.total_steps:
            return
        sizes = {name: value.dtype.size * value.shape.num_elements() for name, value in self._variables().items()}
        count = max(0, min(checkpoints, -(-(self.total_steps - self.step) // save_every)))
        weights = sum(size for name, size in sizes.items() if name.startswith("weights/"))
        what = f"the model with {count} more checkpoints (train.keep)"
        require_space(directory, count * sum(sizes.values()) + weights, what)

    def _phase(self, step: int) -> phases.Phase:
        """The phase of the update after `step` updates; the first and the last phase extend beyond the run."""
        return next((phase for phase in self.phases if step < phase.end), self.phases[-1])

    def _begin(
        self, phase: phases.Phase, source: phases.Input, input_state: InputState
    ) -> tuple[Callable[..., Any], Iterator[Any]]:
        """The compiled updates of a phase and the iterator over its remaining batches."""
        epoch, used = (int(value) for value in self._state[1:3])
        if self.step == phase.first and phase.number:
            # The text is split into other sequences, so the previous phase's epoch cannot be continued.
            epoch, used = epoch + 1, 0
        iterator = input_state.open(source.batches, (epoch, used), self.step if self.step > phase.first else None)
        call = self.train_step.compiled(iterator, source.prepare, phase.config.accumulation)
        # Traced here, not by the first call: what is done meanwhile would compete with tracing for Python.
        return call.get_concrete_function(*self._arguments(1)), iterator

    def _advance(self, call: Callable[..., Any], steps: int, checkpoints: Checkpoints | None = None) -> Array:
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
        config, phase = self.config, self._phase(self.step).config
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

    def _nonfinite_error(self, nonfinite: int, fingerprint: str, checkpoints: Checkpoints | None) -> BertTfError:
        """The error for this number of non-finite steps in a row; the fingerprint is of the last one's batch."""
        step, epoch, used, _ = self._state.numpy()
        good = None
        if checkpoints:
            checkpoints.wait()
            # May have been written during these steps: a skipped update changes nothing.
            good = checkpoints.newest
        return BertTfError(
            f"{nonfinite} steps in a row up to step {step} had a non-finite loss or gradient, the last with batch "
            f"{used - 1} of epoch {epoch}, fingerprint {fingerprint}; last good checkpoint: {good or 'none'}; "
            "resume from it with a lower train.learning_rate or train.dtype=float32 and --accept_config_change"
        )

    def _show(self, line: Any, steps: int, totals: Array, speed: Speed) -> None:
        """Advances the progress line by `steps` updates; totals are their sums and weights."""
        rate = float(self._learning_rate(self.step - 1))
        metrics = self._means(totals)
        shown = training_line(metrics, speed.rates(), rate, speed.seconds_left(self.step))
        line.set_postfix_str(shown + (f", {self.skipped} skipped" if self.skipped else ""), refresh=False)
        line.update(steps)

    def _means(self, totals: Array) -> Metrics:
        """Mean of each metric, NaN where the weight is 0: all updates were skipped, or no example had a target."""
        names = self.train_step.names
        return dict.fromkeys(["loss", *names], math.nan) | means(self.task.objective, names, totals)

    def _point(self, history: History, phase: phases.Phase, speed: Speed) -> None:
        """Adds a point to the curves; resets sums, counts and rates."""
        metrics = self._means(self._totals.numpy())
        rate = self._learning_rate(self.step - 1)
        history.point(self.step, phase.number, metrics, rate, speed.point(), self._histograms)
        self._totals.assign(tf.zeros_like(self._totals))
        self._histograms = {}

    def _variables(self) -> dict[str, tf.Variable]:
        weights = {f"weights/{variable.path}": variable.value for variable in self.model.weights}
        slots = {f"slots/{name}": variable for name, variable in self.optimizer.slots.items()}
        own = {"state": self._state, "loss_scale": self.loss_scale.variable, "totals": self._totals}
        ranges = {name: variable.value for name, variable in ranges_of(self.model).by_path.items()}
        return weights | slots | ranges | own


def _ignoring_errors(call: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        call()


def _due(step: int, every: int) -> bool:
    """Whether an action that recurs every `every` updates (0: never) is due after this one."""
    return bool(every) and step % every == 0


def _next(step: int, every: int) -> int:
    """The next multiple of `every` after `step`; beyond any run if `every` is 0."""
    return (step // every + 1) * every if every else sys.maxsize
