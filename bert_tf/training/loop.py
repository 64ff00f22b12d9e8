"""The training loop: from the newest checkpoint to the end, with what is done between updates."""

import contextlib
import dataclasses
import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras

from bert_tf.model.encoder import ranges_of
from bert_tf.model.precision import int8
from bert_tf.progress import TRAINING, bar, log, training_line
from bert_tf.training.callbacks import Callbacks
from bert_tf.training.phases import Input, Phase
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.speed import Speed
from bert_tf.training.state.best_weights import BestWeights
from bert_tf.training.state.checkpoints import Checkpoints
from bert_tf.training.state.history import History, by_phase
from bert_tf.training.state.input_state import InputState
from bert_tf.training.state.signals import Interrupted, Signals
from bert_tf.training.strategy import is_chief
from bert_tf.training.trainer import Trainer
from bert_tf.types import Array, Json, Metrics, Tensors

# Updates between checkpoints unless configured: the most that a kill can cost.
_SAVE_EVERY = 1000
# How often the ranges of int8 are measured: activations grow while a model learns.
_CALIBRATIONS = 10


@dataclasses.dataclass
class Hooks:
    """What a run does around its updates. The methods of this class do nothing.

    Attributes:
        directory: gets checkpoints, TensorBoard files and history.jsonl.
        title: of the progress line.
        evaluate_every: updates between evaluations; 0 evaluates only at the start and at the ends of phases.
        evaluate_first: whether to evaluate the model before its first update.
        pipeline: identifies everything that determines the batches, see `InputState`.
        peak_flops: FLOP/s (`speed.peak_flops`), the denominator of mfu; None leaves mfu out.
        reporter: gets the curves.
        callbacks: called by the chief.
        steps_per_epoch: updates of an epoch of the callbacks; 0 for `evaluate_every`, or else the whole run.
    """

    directory: str
    title: str
    evaluate_every: int = 0
    evaluate_first: bool = True
    pipeline: str = ""
    peak_flops: float | None = None
    reporter: Reporter = SILENT
    callbacks: Sequence[keras.callbacks.Callback] = ()
    steps_per_epoch: int = 0

    def started(self, step: int) -> None:
        """Called with the step from which the run starts or resumes, as soon as it is known."""

    def meanwhile(self) -> None:
        """Called in a thread while TensorFlow prepares the first update, which leaves Python and all cores but one
        without work. An error in it must occur again where its result is needed: here it is ignored.
        """

    def calibration(self) -> Iterable[Tensors]:
        """Batches to measure the ranges of an encoder that has `ranges`, at the start and after each tenth of a run."""
        return ()


class Loop:
    """One run of a trainer.

    Args:
        trainer: whose state is restored.
        inputs: one for each phase of the config (a config without phases has one).
        hooks: of the run.

    Attributes:
        history: its curves.
        best: the best weights.
        advanced: whether `run` did any updates.
        reached: result of `history.by_phase`.
    """

    def __init__(self, trainer: Trainer, inputs: Sequence[Input], hooks: Hooks) -> None:
        self.trainer, self._inputs, self._hooks = trainer, inputs, hooks
        config, self._chief = trainer.config, is_chief(trainer.strategy)
        folder = os.path.join(hooks.directory, "checkpoints")
        self._checkpoints = Checkpoints(folder, trainer.variables(), config.keep, sums=["totals"])
        # One more than checkpoints: the newest exists while the checkpoint of its step is still being written.
        self._input_state = InputState(folder, trainer.strategy, config.keep + 1, hooks.pipeline)
        self._restored = self._checkpoints.restore(print, lambda: trainer.step)
        # Few examples make an epoch of an update or two, whose evaluation may have nothing to evaluate.
        evaluate_every = hooks.evaluate_every if any(one.evaluate for one in inputs) else 0
        self._save_every = config.save_every or min(evaluate_every or _SAVE_EVERY, _SAVE_EVERY)
        if self._chief:
            new = config.keep + 1 - len(self._checkpoints.steps)
            trainer.check_space(hooks.directory, new, self._save_every)
        hooks.started(trainer.step)
        draw = functools.partial(hooks.reporter.curves, hooks.directory, hooks.title, trainer.task.monitor)
        self.history = History(hooks.directory, trainer.step, write=self._chief, draw=draw)
        task = trainer.task
        self.best = BestWeights(folder, trainer.model, task.monitor, task.mode, config, write=self._chief)
        self._speed = Speed(trainer.work(inputs), hooks.peak_flops)
        self._callbacks = Callbacks(
            hooks.callbacks,
            trainer,
            hooks.directory,
            hooks.steps_per_epoch or hooks.evaluate_every or trainer.total_steps,
            call=self._chief,
        )
        self._ranges, self._measured = ranges_of(trainer.model), -1
        self._calibrate_every = math.ceil(trainer.total_steps / _CALIBRATIONS) if self._ranges.variables else 0
        self._log_every = (config.log_every, self._callbacks.steps_per_epoch)
        self._intervals = (hooks.evaluate_every, self._save_every, self._calibrate_every, *self._log_every)
        self.advanced = False
        self.reached: list[Json] = []

    def run(self) -> History:
        """Trains to the end, from the newest checkpoint if there is one.

        Raises:
            Interrupted: after SIGINT or SIGTERM, with the state saved.
            NonFiniteError: see `train.max_nonfinite_steps`.
        """
        trainer, history = self.trainer, self.history
        self.best.remove_after(trainer.step)
        self._warn_of_lost_lines()
        if not self._restored:  # else its evaluation had the ranges that were restored
            self._calibrate()
        # A run that ended between a checkpoint and its evaluation catches up on it.
        self._evaluate(print, now=history.stopped == trainer.step)
        ended = self.best.exhausted(history.evaluations) or history.stopped == trainer.step
        self.advanced = trainer.step < trainer.total_steps and not ended
        if not self.advanced:
            self.reached = by_phase(history.points)
            return history
        title = self._hooks.title
        if self._restored:
            print(f"{title}: resuming from step {trainer.step} of {trainer.total_steps}")
            history.resume(trainer.step)
        self._callbacks.begin(trainer.step)
        try:
            with (
                Signals(trainer.strategy) as signals,
                self._checkpoints,
                bar(title, trainer.total_steps, "step", done=trainer.step, layout=TRAINING) as line,
            ):
                self._train(signals, line)
                line.close()
                history.draw()
                self._checkpoints.wait()
                # Again: a signal may have come during the last evaluation, and no worker exits before the chief has
                # written, because it could not continue alone.
                if signal := signals.agreed():
                    raise Interrupted(signal, trainer.step, self._hooks.directory)
        finally:
            self.reached = by_phase(history.points, self._speed.point())
        self._callbacks.end()
        return history

    def _train(self, signals: Signals, line: Any) -> None:
        """The updates, and what is due between them."""
        trainer, phase = self.trainer, None
        while trainer.step < trainer.total_steps:
            self._calibrate()
            if phase is None or trainer.step == phase.end:
                first, phase = phase is None, trainer.phase_of(trainer.step)
                with self._speed.timing("start"):
                    updates, batches = trainer.begin(phase, self._inputs[phase.number], self._input_state)
                if first:
                    threading.Thread(target=_ignoring_errors, args=[self._hooks.meanwhile]).start()
            steps = self._steps_until_due(phase)
            self._callbacks.before(trainer.step)
            self._speed.start()
            totals = trainer.advance(updates, steps, self._checkpoints)
            self._speed.update(phase.number, steps, dict(zip(trainer.train_step.names, totals, strict=True)))
            signal = signals.agreed()
            self._show(line, steps, totals)
            self._checkpoints.check()
            if self._due(*self._log_every):
                self._point(phase)
            saved = signal or self._due(self._save_every)
            if saved:
                self._save(batches)
            if signal:
                break
            self._callbacks.evaluation(self._evaluate(line.write))
            self._callbacks.after(trainer.step)
            if reason := self._reason_to_stop(signals):
                line.write(f"  stopping at step {trainer.step}: {reason}")
                self._callbacks.evaluation(self._evaluate(line.write, now=True))
                if not saved:
                    self._save(batches)
                break

    def _due(self, *intervals: int) -> bool:
        """Whether an action that recurs every so many updates (0: never), and at the end of the run, is due now."""
        step = self.trainer.step
        return step == self.trainer.total_steps or any(every and step % every == 0 for every in intervals)

    def _steps_until_due(self, phase: Phase) -> int:
        """How many updates to do in one call."""
        step = self.trainer.step
        stop = min(phase.end, *(_next(step, every) for every in self._intervals))
        return min(self.trainer.config.steps_per_call, stop - step)

    def _calibrate(self) -> None:
        """Measures the ranges of int8, if that is due and not done."""
        trainer, every = self.trainer, self._calibrate_every
        if every and trainer.step % every == 0 and self._measured < trainer.step < trainer.total_steps:
            with self._speed.timing("evaluation"):
                self._ranges.assign(int8.calibrate(trainer.model, self._hooks.calibration()))
            self._measured = trainer.step

    def _evaluate(self, print_line: Callable[[str], object], *, now: bool = False) -> Metrics | None:
        """Evaluates the model, if that is due, or `now`, and not done."""
        step, every = self.trainer.step, self._hooks.evaluate_every
        compute_metrics = self._inputs[self.trainer.phase_of(step - 1).number].evaluate
        ends = {phase.end for phase in self.trainer.phases}  # of the last one, too, whatever the interval is
        due = step in ends or bool(every and step % every == 0) if step else self._hooks.evaluate_first
        done = any(row["step"] == step for row in self.history.evaluations)
        if not compute_metrics or done or not (due or now):
            return None
        with self._speed.timing("evaluation"):
            metrics = compute_metrics()
            self.best.update(self.history.evaluations, step, metrics, self._checkpoints.steps)
            self.history.evaluation(step, metrics, print_line)
        return metrics

    def _save(self, batches: Iterator[Any]) -> None:
        """Saves all state, that of the batches included."""
        step = self.trainer.step
        with self._speed.timing("saving"):
            if self._chief:
                self._inputs[self.trainer.phase_of(step - 1).number].check()
            self._input_state.save(batches, step)
            if self._chief:
                self._checkpoints.save(step)

    def _point(self, phase: Phase) -> None:
        """Adds a point to the curves."""
        trainer = self.trainer
        metrics, histograms = trainer.take_point()
        self.history.point(trainer.step, phase.number, metrics, trainer.rate, self._speed.point(), histograms)
        self._callbacks.point(self.history.points[-1])

    def _show(self, line: Any, steps: int, totals: Array) -> None:
        """Advances the progress line by `steps` updates; totals are their sums and weights."""
        trainer, speed = self.trainer, self._speed
        metrics, left = trainer.means(totals), speed.seconds_left(trainer.step)
        shown = training_line(metrics, speed.rates(), trainer.rate, left)
        line.set_postfix_str(shown + (f", {trainer.skipped} skipped" if trainer.skipped else ""), refresh=False)
        line.update(steps)

    def _reason_to_stop(self, signals: Signals) -> str:
        """Why the run ends here, before its last update; "" if it goes on."""
        evaluations, config = self.history.evaluations, self.trainer.config
        if config.patience and signals.any(self.best.exhausted(evaluations)):
            return f"best at step {self.best.step(evaluations)} (train.patience)"
        if self._hooks.callbacks and signals.any(self._callbacks.stopped):
            self.history.stop(self.trainer.step)
            return "a callback has set model.stop_training"
        return ""

    def _warn_of_lost_lines(self) -> None:
        trainer, history = self.trainer, self.history
        # Updates since the last point: `counted` are all but the skipped ones.
        since = trainer.step - (history.points[-1]["step"] if history.points else 0)
        lost = since > trainer.counted + trainer.skipped or self.best.lost(history.evaluations, trainer.step)
        if self._chief and lost:
            log(
                f"{os.path.join(self._hooks.directory, 'history.jsonl')} lacks lines from before step {trainer.step}; "
                "the run resumes without these points of its curves and without these evaluations"
            )


def _ignoring_errors(call: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        call()


def _next(step: int, every: int) -> int:
    """The next multiple of `every` after `step`; beyond any run if `every` is 0."""
    return (step // every + 1) * every if every else sys.maxsize
