"""The one training loop, on any tf.distribute strategy."""

import os
import time

import tensorflow as tf

from bert_tf.errors import BertTfError
from bert_tf.inputs.batching import stream
from bert_tf.progress import TRAINING, bar, training_line
from bert_tf.training import optimizers, phases
from bert_tf.training.evaluation import means
from bert_tf.training.loss_scale import LossScale
from bert_tf.training.speed import Speed, Work
from bert_tf.training.state.best_weights import Best
from bert_tf.training.state.checkpoints import Checkpoints
from bert_tf.training.state.history import History, by_phase
from bert_tf.training.state.input_state import InputState
from bert_tf.training.state.signals import Interrupted, Signals
from bert_tf.training.step import Step
from bert_tf.training.strategy import is_chief

# Updates between checkpoints where the config says nothing: what a kill may cost at most.
_SAVE_EVERY = 1000


class Trainer:
    """Trains one model on one task.

    Args:
        task: Task.
        model: what `task.build` made, under the strategy's scope.
        config: TrainConfig.
        strategy: tf.distribute.Strategy.
        total_steps: updates until the learning rate has come down and the run ends.

    Attributes:
        phases: list of phases.Phase.
        optimizer: as `optimizers.create` gives; its slots are saved.
        loss_scale: LossScale; saved.
        train_step: Step, what is compiled.
        reached: what `history.by_phase` says of the last `run`.
        best: Best, of the last `run`.
        advanced: whether that `run` found anything left to do.

    Raises:
        ConfigError: a batch can not be split into replicas and micro-batches, or a phase has no step.
    """

    def __init__(self, task, model, config, strategy, total_steps):
        config = config.resolved()
        self.task, self.model, self.config, self.strategy = task, model, config, strategy
        self.total_steps = total_steps
        self.phases = phases.split(config, total_steps, strategy.num_replicas_in_sync)
        with strategy.scope():
            self.optimizer = optimizers.create(model.trainable_variables, config)
        self._learning_rate = phases.learning_rate(self.phases)
        self.loss_scale = LossScale(model, config.loss_scale_growth)
        self.train_step = Step(task, model, self.optimizer, self._learning_rate, self.loss_scale, config, strategy)
        # step, epoch, batches of the epoch used, bad steps in a row
        self._state = tf.Variable([0, 0, 0, 0], dtype=tf.int64, trainable=False)
        # Sums and weights since the last point of the curves: saved, so a resumed run draws the same curve.
        self._totals = tf.Variable(tf.zeros([len(self.train_step.names), 2]), trainable=False)
        self._histograms = {}  # dict name -> float32 array, counts since the last point; a resumed run begins anew
        self.reached = []
        self.best = None
        self.advanced = False

    @property
    def step(self):
        """Updates done."""
        return int(self._state[0])

    @property
    def skipped(self):
        """Updates that a non-finite loss or gradient left out, of those done."""
        return self.step - int(self.optimizer.slots["updates"].numpy())

    def run(
        self,
        inputs,
        directory,
        *,
        title,
        evaluate_every=0,
        evaluate_first=True,
        started=None,
        pipeline="",
        peak_flops=None,
    ):
        """Trains to the end, from the newest checkpoint in `directory` if there is one.

        Args:
            inputs: list of phases.Input, one for each phase of the config (a config without phases is one).
            directory: gets checkpoints, TensorBoard files, history.jsonl and curves.png.
            title: of the progress line.
            evaluate_every: updates between evaluations; 0 for only before, after and at the ends of phases.
            evaluate_first: whether the model is evaluated before its first update.
            started: function of the step that the run begins at or goes on from, called as soon as that is known.
            pipeline: a name for what decides the batches and how they are made, see `InputState`.
            peak_flops: FLOP/s (`speed.peak_flops`) that the mfu is a share of; None leaves that out.

        Returns:
            History.

        Raises:
            Interrupted: after SIGINT or SIGTERM, with the state saved.
            BertTfError: after too many bad steps in a row, or if a checkpoint can not be written.
        """
        config, chief = self.config, is_chief(self.strategy)
        folder = os.path.join(directory, "checkpoints")
        checkpoints = Checkpoints(folder, self._variables(), config.keep, config.on_save_error)
        # One more than checkpoints: the newest is there while the weights of its step are still being written.
        input_state = InputState(folder, self.strategy, config.keep + 1, pipeline)
        restored = checkpoints.restore(print)
        if started:
            started(self.step)
        history = History(
            directory, self.step, title=title, monitor=self.task.monitor, write=chief, on_error=config.on_save_error
        )
        self.best = best = Best(folder, self.model, self.task.monitor, self.task.mode, config, write=chief)
        best.forget(self.step)
        speed = Speed(self.work(inputs), peak_flops)
        save_every = config.save_every or min(evaluate_every or _SAVE_EVERY, _SAVE_EVERY)
        intervals = (evaluate_every, save_every, config.log_every)
        always = {phase.end for phase in self.phases}  # evaluated there, whatever evaluate_every is

        def evaluate(phase, print_line=print):
            check = inputs[phase.number].evaluate
            due = self.step in always or _due(self.step, evaluate_every) if self.step else evaluate_first
            if check and due:
                with speed.spending("evaluation"):
                    measured = check()
                    best.offer(history.evaluations, self.step, measured, checkpoints.steps)
                    history.evaluation(self.step, measured, print_line)

        def save(iterator):
            with speed.spending("saving"):
                input_state.save(iterator, self.step)
                if chief:
                    checkpoints.save(self.step)

        # A run that ended between a checkpoint and its evaluation catches up on it.
        if all(row["step"] != self.step for row in history.evaluations):
            evaluate(self._phase(self.step - 1))
        self.advanced = self.step < self.total_steps and not best.exhausted(history.evaluations)
        if not self.advanced:
            self.reached = by_phase(history.points)
            return history
        if restored:
            print(f"{title}: goes on from step {self.step} of {self.total_steps}")
            history.resume(self.step)
        phase = None
        with (
            Signals(self.strategy) as signals,
            checkpoints,
            bar(title, self.total_steps, "step", done=self.step, layout=TRAINING) as line,
        ):
            while self.step < self.total_steps:
                if phase is None or self.step == phase.end:
                    phase = self._phase(self.step)
                    with speed.spending("start"):
                        call, iterator = self._begin(phase, inputs[phase.number], input_state)
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
                    line.close()
                    checkpoints.wait()
                    signals.agreed()  # nobody leaves before the chief has written: it could not go on alone
                    raise Interrupted(signal, step, directory)
                evaluate(phase, line.write)
                if config.patience and signals.any(best.exhausted(history.evaluations)):
                    line.write(
                        f"  stops at step {step}: best at step {best.step(history.evaluations)} (train.patience)"
                    )
                    if not saved:
                        save(iterator)
                    break
        self.reached = by_phase(history.points, speed.point())
        history.draw()
        return history

    def work(self, inputs):
        """list of speed.Work, what each phase costs; inputs as `run` takes."""
        return [
            Work(phase.end - phase.first, phase.config.batch_size, source.length, source.row_flops)
            for phase, source in zip(self.phases, inputs, strict=True)
        ]

    def benchmark(self, number, source, steps):
        """Trains for `steps` updates of a phase, after a first one that compiles; saves nothing.

        Args:
            number: of the phase.
            source: its phases.Input.
            steps: updates.

        Returns:
            (seconds an update took, positions of a row): floats.
        """
        phase = self.phases[number]
        iterator = iter(stream(source.batches))
        call = self.train_step.compiled(iterator, source.prepare, phase.config.accumulation)
        self._advance(call, 1)
        began = time.perf_counter()
        totals = self._advance(call, steps)
        seconds = (time.perf_counter() - began) / steps
        _, positions = totals[self.train_step.names.index("padding_share")]
        return seconds, float(positions) / steps / phase.config.batch_size

    def _phase(self, step):
        """The phase that the update after `step` updates belongs to; the first and the last reach beyond the run."""
        return next((phase for phase in self.phases if step < phase.end), self.phases[-1])

    def _begin(self, phase, source, input_state):
        """The compiled updates of a phase and the iterator over its batches, as far as this phase has come already."""
        epoch, used = (int(value) for value in self._state[1:3])
        if self.step == phase.first and phase.number:
            # Another way to cut the text: what the phase before has left of its epoch can not be gone on with.
            epoch, used = epoch + 1, 0
        iterator = input_state.open(source.batches, (epoch, used), self.step if self.step > phase.first else None)
        return self.train_step.compiled(iterator, source.prepare, phase.config.accumulation), iterator

    def _advance(self, call, steps, checkpoints=None):
        """Runs `steps` updates; sums and weights of the metrics over them, float32 array [metrics, 2]."""
        step, _, _, bad = self._state.numpy()
        scale = self.loss_scale.variable
        done, totals, histograms, position, bad, fingerprint, scale_state = call(
            tf.constant(step), tf.constant(steps, tf.int64), tf.constant(bad), scale.read_value()
        )
        self._state.assign([step + done, *position, bad])
        scale.assign(scale_state)
        if bad >= self.config.max_nonfinite_steps:
            raise self._too_many_bad(int(bad), bytes(fingerprint.numpy()).hex(), checkpoints)
        self._totals.assign_add(totals)
        for name, counts in histograms.items():
            self._histograms[name] = self._histograms.get(name, 0) + counts.numpy()
        return totals.numpy()

    def _too_many_bad(self, bad, fingerprint, checkpoints):
        """The error that so many bad steps in a row are, the last with a batch of this fingerprint."""
        step, epoch, used, _ = self._state.numpy()
        good = None
        if checkpoints:
            checkpoints.wait()
            # Also one that was written during these steps: what is skipped changes nothing.
            good = checkpoints.newest
        return BertTfError(
            f"{bad} steps in a row up to step {step} had a non-finite loss or gradient, the last with batch {used - 1} "
            f"of epoch {epoch}, fingerprint {fingerprint}; last good checkpoint: {good or 'none'}; go on from it with "
            "a lower train.learning_rate or train.dtype=float32 by --accept_config_change"
        )

    def _show(self, line, steps, totals, speed):
        """Brings the progress line on by `steps` updates, which had these sums and weights."""
        rate = float(self._learning_rate(self.step - 1))
        measured = means(self.task, self.train_step.names, totals)
        shown = training_line(measured, speed.rates(), rate, speed.seconds_left(self.step))
        line.set_postfix_str(shown + (f", {self.skipped} skipped" if self.skipped else ""), refresh=False)
        line.update(steps)

    def _point(self, history, phase, speed):
        """A point of the curves; sums, counts and rates begin anew."""
        measured = means(self.task, self.train_step.names, self._totals.numpy())
        rate = self._learning_rate(self.step - 1)
        history.point(self.step, phase.number, measured, rate, speed.point(), self._histograms)
        self._totals.assign(tf.zeros_like(self._totals))
        self._histograms = {}

    def _variables(self):
        weights = {f"weights/{variable.path}": variable.value for variable in self.model.weights}
        slots = {f"slots/{name}": variable for name, variable in self.optimizer.slots.items()}
        own = {"state": self._state, "loss_scale": self.loss_scale.variable, "totals": self._totals}
        return weights | slots | own


def _due(step, every):
    """Whether what happens every so many updates, 0 for never, happens after this one."""
    return bool(every) and step % every == 0


def _next(step, every):
    """The next multiple of `every` after `step`."""
    return (step // every + 1) * every if every else float("inf")
