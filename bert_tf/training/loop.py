"""The one training loop, on any tf.distribute strategy."""

import os
import time

import tensorflow as tf

from bert_tf.errors import BertTfError
from bert_tf.inputs.batching import piece, stream
from bert_tf.inputs.identity import batch_fingerprint
from bert_tf.model.dropout import seed_scope
from bert_tf.model.remat import remat_scope
from bert_tf.progress import TRAINING, bar, training_line
from bert_tf.training import optimizers, phases
from bert_tf.training.checkpoints import Checkpoints
from bert_tf.training.history import History, by_phase
from bert_tf.training.input_state import InputState
from bert_tf.training.loss_scale import LossScale
from bert_tf.training.signals import Interrupted, Signals
from bert_tf.training.speed import Speed, Work
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
    """

    def __init__(self, task, model, config, strategy, total_steps):
        config = config.resolved()
        self.task, self.model, self.config, self.strategy = task, model, config, strategy
        self.total_steps = total_steps
        self.phases = phases.split(config, total_steps, strategy.num_replicas_in_sync)
        with strategy.scope():
            self.optimizer = optimizers.create(model.trainable_variables, config)
        self._learning_rate = phases.learning_rate(self.phases)
        # step, epoch, batches of the epoch used, bad steps in a row
        self._state = tf.Variable([0, 0, 0, 0], dtype=tf.int64, trainable=False)
        self.loss_scale = LossScale(model, config.loss_scale_growth)
        self._inputs = [tensor.name for tensor in model.inputs]
        self._names = (*task.losses, *task.metrics, "gradient_norm")
        # Sums and weights since the last point of the curves: saved, so a resumed run draws the same curve.
        self._totals = tf.Variable(tf.zeros([len(self._names), 2]), trainable=False)
        self._histograms = {}  # dict name -> float32 array, counts since the last point; a resumed run begins anew
        self.reached = []  # what `history.by_phase` says of the last `run`
        self.advanced = False  # whether `run` found anything left to do

    @property
    def step(self):
        """Updates done."""
        return int(self._state[0])

    @property
    def skipped(self):
        """Updates that a non-finite loss or gradient left out, of those done."""
        return self.step - int(self.optimizer.slots["updates"])

    def run(self, inputs, directory, *, title, evaluate_every=0, started=None, pipeline="", ceiling=None):
        """Trains to the end, from the newest checkpoint in `directory` if there is one.

        Args:
            inputs: list of phases.Input, one for each phase of the config (a config without phases is one).
            directory: gets checkpoints, TensorBoard files and history.jsonl.
            title: of the progress line.
            evaluate_every: updates between evaluations; 0 for only before, after and at the ends of phases.
            started: function of the step that the run begins at or goes on from, called as soon as that is known.
            pipeline: a name for what decides the batches and how they are made, see `InputState`.
            ceiling: FLOP/s (`speed.ceiling`) that the utilisation is a share of; None leaves that out.

        Returns:
            History.

        Raises:
            Interrupted: after SIGINT or SIGTERM, with the state saved.
            BertTfError: after too many bad steps in a row, or if a checkpoint can not be written.
        """
        config = self.config
        chief = is_chief(self.strategy)
        folder = os.path.join(directory, "checkpoints")
        checkpoints = Checkpoints(folder, self._variables(), config.keep, config.on_save_error)
        # One more than checkpoints: the newest is there while the weights of its step are still being written.
        input_state = InputState(folder, self.strategy, config.keep + 1, pipeline)
        restored = checkpoints.restore(print)
        self.advanced = self.step < self.total_steps
        if restored and self.advanced:
            print(f"{title}: goes on from step {self.step} of {self.total_steps}")
        if started:
            started(self.step)
        history = History(directory, self.step, title=title, write=chief, on_error=config.on_save_error)
        if restored and self.advanced:
            history.resume(self.step)
        speed = Speed(self.work(inputs), ceiling)
        save_every = config.save_every or min(evaluate_every or _SAVE_EVERY, _SAVE_EVERY)
        ends = {phase.end for phase in self.phases}

        def evaluates(step):
            return step in ends or (evaluate_every and step % evaluate_every == 0)

        # A run that ended between a checkpoint and its evaluation catches up on it.
        evaluate = inputs[self._phase(self.step - 1).number].evaluate
        evaluated = any(row["step"] == self.step for row in history.evaluations)
        if evaluate and not evaluated and (self.step == 0 or evaluates(self.step)):
            with speed.spending("evaluation"):
                history.evaluation(self.step, evaluate())
        if not self.advanced:
            self.reached = by_phase(history.points)
            return history
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
                    evaluate = inputs[phase.number].evaluate
                stops = (_next(self.step, every) for every in (evaluate_every, save_every, config.log_every))
                steps = min(config.steps_per_call, min(phase.end, *stops) - self.step)
                speed.start()
                totals = self._advance(call, steps, checkpoints)
                speed.update(phase.number, steps, dict(zip(self._names, totals, strict=True)))
                signal, step, ended = signals.agreed(), self.step, self.step == self.total_steps
                shown = training_line(
                    self._measured(totals),
                    speed.rates(),
                    float(self._learning_rate(step - 1)),
                    speed.seconds_left(step),
                )
                line.set_postfix_str(shown + (f", {self.skipped} skipped" if self.skipped else ""), refresh=False)
                line.update(steps)
                checkpoints.check()
                if ended or step % config.log_every == 0:
                    measured, rate = self._measured(self._totals.numpy()), self._learning_rate(step - 1)
                    history.point(step, phase.number, measured, rate, speed.point(), self._histograms)
                    self._totals.assign(tf.zeros_like(self._totals))
                    self._histograms = {}
                if signal or ended or step % save_every == 0:
                    with speed.spending("saving"):
                        input_state.save(iterator, step)
                        if chief:
                            checkpoints.save(step)
                if signal:
                    line.close()
                    checkpoints.wait()
                    signals.agreed()  # nobody leaves before the chief has written: it could not go on alone
                    raise Interrupted(signal, step, directory)
                if evaluate and evaluates(step):
                    with speed.spending("evaluation"):
                        history.evaluation(step, evaluate(), line.write)
        self.reached = by_phase(history.points, speed.point())
        history.draw()
        return history

    def work(self, inputs):
        """list of speed.Work, what each phase costs; inputs as `run` takes."""
        return [
            Work(phase.end - phase.first, phase.config.batch_size, source.length, source.row_flops)
            for phase, source in zip(self.phases, inputs, strict=True)
        ]

    def rehearse(self, number, source, steps):
        """Trains for `steps` updates of a phase, after a first one that compiles; saves nothing.

        Args:
            number: of the phase.
            source: its phases.Input.
            steps: updates.

        Returns:
            (seconds an update took, positions of a row): floats.
        """
        phase = self.phases[number]
        call, _ = self._compiled(phase, source, iter(stream(source.batches)))
        self._advance(call, 1)
        began = time.perf_counter()
        totals = self._advance(call, steps)
        seconds = (time.perf_counter() - began) / steps
        _, positions = totals[self._names.index("padding_share")]
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
        return self._compiled(phase, source, iterator)

    def _compiled(self, phase, source, iterator):
        def replica_step(batches, step, scale):
            return self._replica_step([source.prepare(features) for features in batches], step, scale)

        def steps(*arguments):
            return self._steps(iterator, phase.config.accumulation, replica_step, *arguments)

        return tf.function(steps), iterator

    def _advance(self, call, steps, checkpoints=None):
        """Runs `steps` updates; sums and weights of the measures over them, float32 array [measures, 2]."""
        step, _, _, bad = self._state.numpy()
        scale = self.loss_scale.variable
        done, totals, histograms, position, bad, fingerprint, scale_state = call(
            tf.constant(step), tf.constant(steps, tf.int64), tf.constant(bad), scale.read_value()
        )
        self._state.assign([step + done, *position, bad])
        scale.assign(scale_state)
        if bad >= self.config.max_bad_steps:
            epoch, number = position.numpy()
            good = "none"
            if checkpoints:
                checkpoints.wait()
                # Also one that was written during these steps: what is skipped changes nothing.
                good = checkpoints.newest or good
            raise BertTfError(
                f"{bad} steps in a row up to step {step + done} had a non-finite loss or gradient, the last with batch "
                f"{number - 1} of epoch {epoch}, fingerprint {bytes(fingerprint.numpy()).hex()}; last good checkpoint: "
                f"{good}; go on from it with a lower train.learning_rate or train.dtype=float32 by "
                "--accept_config_change"
            )
        self._totals.assign_add(totals)
        for name, counts in histograms.items():
            self._histograms[name] = self._histograms.get(name, 0) + counts.numpy()
        return totals.numpy()

    def _measured(self, totals):
        """Sums and weights, [measures, 2], as dict name -> mean, the whole loss among them."""
        measured = {
            name: float(total / weight) if weight else float("nan")
            for name, (total, weight) in zip(self._names, totals, strict=True)
        }
        return {"loss": sum(measured[name] for name in self.task.losses)} | measured

    def _variables(self):
        weights = {f"weights/{variable.path}": variable.value for variable in self.model.weights}
        slots = {f"slots/{name}": variable for name, variable in self.optimizer.slots.items()}
        own = {"state": self._state, "loss_scale": self.loss_scale.variable, "totals": self._totals}
        return weights | slots | own

    def _steps(self, iterator, accumulation, replica_step, first, steps, bad, scale_state):
        totals = tf.zeros([len(self._names), 2])
        histograms = {name: tf.zeros([bins]) for name, bins in self.task.histograms.items()}
        position = tf.zeros([2], tf.int64)
        fingerprint = tf.zeros([8], tf.uint8)  # of the last bad batch
        step = first
        while step < first + steps and bad < self.config.max_bad_steps:
            features, position = next(iterator)
            results = self.strategy.run(replica_step, (self._cut(features, accumulation), step, scale_state[0]))
            measured, counts, finite = (self._local(result) for result in results)
            if finite:
                totals += measured
                histograms = {name: histograms[name] + counts[name] for name in histograms}
                bad = tf.constant(0, tf.int64)
            else:
                bad += 1
                fingerprint = batch_fingerprint(features)
            scale_state = self.loss_scale.next(scale_state, finite)
            step += 1
        return step - first, totals, histograms, position, bad, fingerprint, scale_state

    def _local(self, result):
        """One replica's copy of what is the same on all."""
        return tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], result)

    def _cut(self, features, accumulation):
        """A whole batch -> for each replica of this process its micro-batches."""
        pieces = self.strategy.num_replicas_in_sync * accumulation

        def share(context):
            first = context.replica_id_in_sync_group * accumulation
            return [piece(features, first + index, pieces) for index in range(accumulation)]

        return self.strategy.experimental_distribute_values_from_function(share)

    def _replica_step(self, batches, step, scale):
        """All-reduce, finite check, clip, update: in this order, on every replica alike."""
        context, config = tf.distribute.get_replica_context(), self.config
        divisors = self._divisors(context, batches)
        seed = tf.stack([tf.cast(config.seed, tf.int64), step])
        gradients, measured, counts = [], 0.0, []
        for index, features in enumerate(batches):
            place = context.replica_id_in_sync_group * len(batches) + index
            with tf.control_dependencies(gradients):  # one micro-batch after the other, or they all hold memory at once
                added, measures = self._gradients(
                    features, divisors[index], tf.random.experimental.stateless_fold_in(seed, place), scale
                )
            if config.clip_on == "replica":
                factor = _clipping(tf.linalg.global_norm(added) / scale, config.clip_norm)
                added = [gradient * factor for gradient in added]
            gradients = [total + gradient for total, gradient in zip(gradients, added, strict=True)] if index else added
            measured += measures
            counts.append(self.task.counts(features))
        gradients = context.all_reduce("SUM", gradients)
        norm = tf.linalg.global_norm(gradients) / scale
        measured = tf.concat([context.all_reduce("SUM", measured), [[norm, 1.0]]], 0)
        # The losses too: one that overflows can have a gradient that does not.
        finite = tf.math.is_finite(norm) & tf.reduce_all(tf.math.is_finite(measured[: len(self.task.losses)]))
        counts = {name: context.all_reduce("SUM", sum(some[name] for some in counts)) for name in self.task.histograms}
        if finite:
            # One pass for both.
            factor = (_clipping(norm, config.clip_norm) if config.clip_on == "global" else 1.0) / scale
            self.optimizer.apply([gradient * factor for gradient in gradients], self._learning_rate(step))
        return measured, counts, finite

    def _divisors(self, context, batches):
        """What each micro-batch's sums of losses are divided by: a list of dicts, loss name -> float32 scalar."""
        weights = [self.task.weights(features) for features in batches]
        if self.config.normalization == "global":
            whole = {
                name: context.all_reduce("SUM", sum(weight[name] for weight in weights)) for name in self.task.losses
            }
            return [whole] * len(batches)
        pieces = context.num_replicas_in_sync * len(batches) if self.config.normalization == "replica_mean" else 1.0
        return [{name: weight[name] * pieces for name in self.task.losses} for weight in weights]

    def _gradients(self, features, weights, seed, scale):
        with tf.GradientTape() as tape, seed_scope(seed), remat_scope(self.config.remat):
            outputs = self.model({name: features[name] for name in self._inputs}, training=True)
            measures = self.task.measures(features, outputs)
            loss = scale * sum(measures[name][0] / tf.maximum(weights[name], 1e-5) for name in self.task.losses)
        variables = [variable.value for variable in self.model.trainable_variables]
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        measured = tf.stack([tf.stack(measures[name]) for name in (*self.task.losses, *self.task.metrics)])
        return [tf.convert_to_tensor(gradient) for gradient in gradients], measured


def _clipping(norm, limit):
    """The factor that brings a gradient of this norm down to `limit`, 0 for none; NaN where the norm is not finite."""
    return tf.where(tf.math.is_finite(norm), limit / tf.maximum(norm, limit), float("nan")) if limit else 1.0


def _next(step, every):
    """The next multiple of `every` after `step`."""
    return (step // every + 1) * every if every else float("inf")
