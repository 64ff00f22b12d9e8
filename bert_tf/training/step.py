"""The training step: one update on any tf.distribute strategy, and several of them as one compiled function."""

import tensorflow as tf

from bert_tf.inputs.batching import microbatch
from bert_tf.inputs.identity import batch_fingerprint
from bert_tf.model.dropout import seed_scope
from bert_tf.model.remat import remat_scope


class Step:
    """What one update is made of: micro-batches, all-reduce, check that all is finite, clipping, the optimizer.

    Everything in it is a function of its arguments, the variables of model and optimizer apart.

    Args:
        task: Task.
        model: what `task.build` made.
        optimizer: as `optimizers.create` gives.
        learning_rate: function from the updates done before this one to a float32 scalar.
        loss_scale: LossScale, of which only the rule is used; its state goes in and out.
        config: TrainConfig with nothing left to the recipe. Of settings that phases can have of their own, none counts.
        strategy: tf.distribute.Strategy under whose scope model and optimizer were made.

    Attributes:
        names: of the metrics, in the order of the rows of all sums and weights: losses, metrics, gradient_norm.
    """

    def __init__(self, task, model, optimizer, learning_rate, loss_scale, config, strategy):
        self._task, self._model, self._optimizer = task, model, optimizer
        self._learning_rate, self._loss_scale = learning_rate, loss_scale
        self._config, self._strategy = config, strategy
        self._inputs = [tensor.name for tensor in model.inputs]
        self.names = (*task.losses, *task.metric_names, "gradient_norm")

    def compiled(self, iterator, prepare, accumulation):
        """A tf.function that trains on the next batches of `iterator`.

        Args:
            iterator: of (features, position), as over `batching.stream`.
            prepare: function of a micro-batch's features to features, a part of the step.
            accumulation: micro-batches an update.

        Returns:
            tf.function of (first, steps, bad, scale): int64 scalars, the updates done before, how many to do, and bad
            ones in a row before; and the loss scale's state, float32 [2]. It returns, and stops early after
            config.max_nonfinite_steps bad ones in a row: the updates done, int64; sums and weights of the metrics over all
            that were not bad, float32 [metrics, 2]; dict name -> float32, the task's counts likewise; the position
            after the last batch, int64 [2]; bad ones in a row, int64; the fingerprint of the last bad batch, uint8 [8];
            the loss scale's state.
        """

        def replica_step(batches, step, scale):
            return self.on_replica([prepare(features) for features in batches], step, scale)

        def run(first, steps, bad, scale_state):
            totals = tf.zeros([len(self.names), 2])
            histograms = {name: tf.zeros([bins]) for name, bins in self._task.histograms.items()}
            position = tf.zeros([2], tf.int64)
            fingerprint = tf.zeros([8], tf.uint8)
            step = first
            while step < first + steps and bad < self._config.max_nonfinite_steps:
                features, position = next(iterator)
                results = self._strategy.run(replica_step, (self._cut(features, accumulation), step, scale_state[0]))
                measured, counts, finite = (self._local(result) for result in results)
                if finite:
                    totals += measured
                    histograms = {name: histograms[name] + counts[name] for name in histograms}
                    bad = tf.constant(0, tf.int64)
                else:
                    bad += 1
                    fingerprint = batch_fingerprint(features)
                scale_state = self._loss_scale.next(scale_state, finite)
                step += 1
            return step - first, totals, histograms, position, bad, fingerprint, scale_state

        return tf.function(run)

    def on_replica(self, batches, step, scale):
        """One update, in replica context: on every replica alike, on its part of the batch.

        Args:
            batches: list of feature dicts, this replica's micro-batches, prepared.
            step: int64 scalar, updates done before this one.
            scale: float32 scalar, the loss scale.

        Returns:
            (sums and weights of the metrics, float32 [metrics, 2]; dict name -> the task's counts, float32; bool
            scalar, whether losses and gradient were finite: if not, nothing was updated). Of the whole batch.
        """
        context, config = tf.distribute.get_replica_context(), self._config
        divisors = self._divisors(context, batches)
        seed = tf.stack([tf.cast(config.seed, tf.int64), step])
        gradients, measured, counts = [], 0.0, []
        for index, features in enumerate(batches):
            number = context.replica_id_in_sync_group * len(batches) + index
            with tf.control_dependencies(gradients):  # one micro-batch after the other, or they all hold memory at once
                added, metrics = self._gradients(
                    features, divisors[index], tf.random.experimental.stateless_fold_in(seed, number), scale
                )
            if config.clip_on == "replica":
                factor = _clipping(tf.linalg.global_norm(added) / scale, config.clip_norm)
                added = [gradient * factor for gradient in added]
            gradients = [total + gradient for total, gradient in zip(gradients, added, strict=True)] if index else added
            measured += metrics
            counts.append(self._task.counts(features))
        gradients = context.all_reduce("SUM", gradients)
        norm = tf.linalg.global_norm(gradients) / scale
        measured = tf.concat([context.all_reduce("SUM", measured), [[norm, 1.0]]], 0)
        # The losses too: one that overflows can have a gradient that does not.
        finite = tf.math.is_finite(norm) & tf.reduce_all(tf.math.is_finite(measured[: len(self._task.losses)]))
        counts = {name: context.all_reduce("SUM", sum(some[name] for some in counts)) for name in self._task.histograms}
        if finite:
            # One pass for both.
            factor = (_clipping(norm, config.clip_norm) if config.clip_on == "global" else 1.0) / scale
            self._optimizer.apply([gradient * factor for gradient in gradients], self._learning_rate(step))
        return measured, counts, finite

    def _divisors(self, context, batches):
        """What each micro-batch's sums of losses are divided by: a list of dicts, loss name -> float32 scalar."""
        losses = self._task.losses
        weights = [self._task.weights(features) for features in batches]
        if self._config.normalization == "global":
            whole = {name: context.all_reduce("SUM", sum(weight[name] for weight in weights)) for name in losses}
            return [whole] * len(batches)
        parts = context.num_replicas_in_sync * len(batches) if self._config.normalization == "replica_mean" else 1.0
        return [{name: weight[name] * parts for name in losses} for weight in weights]

    def _gradients(self, features, divisors, seed, scale):
        """Of one micro-batch: gradients of the scaled loss, a list of tensors; the metrics, float32 [metrics, 2]."""
        task = self._task
        with tf.GradientTape() as tape, seed_scope(seed), remat_scope(self._config.remat):
            outputs = self._model({name: features[name] for name in self._inputs}, training=True)
            metrics = task.loss_and_metrics(features, outputs)
            loss = scale * sum(metrics[name][0] / tf.maximum(divisors[name], 1e-5) for name in task.losses)
        variables = [variable.value for variable in self._model.trainable_variables]
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        measured = tf.stack([tf.stack(metrics[name]) for name in (*task.losses, *task.metric_names)])
        return [tf.convert_to_tensor(gradient) for gradient in gradients], measured

    def _cut(self, features, accumulation):
        """A whole batch -> for each replica of this process its micro-batches."""
        parts = self._strategy.num_replicas_in_sync * accumulation

        def share(context):
            first = context.replica_id_in_sync_group * accumulation
            return [microbatch(features, first + index, parts) for index in range(accumulation)]

        return self._strategy.experimental_distribute_values_from_function(share)

    def _local(self, result):
        """One replica's copy of what is the same on all."""
        return tf.nest.map_structure(lambda value: self._strategy.experimental_local_results(value)[0], result)


def _clipping(norm, limit):
    """The factor that brings a gradient of this norm down to `limit`, 0 for none; NaN where the norm is not finite."""
    return tf.where(tf.math.is_finite(norm), limit / tf.maximum(norm, limit), float("nan")) if limit else 1.0
