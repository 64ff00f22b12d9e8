"""The training step: one update on any tf.distribute strategy, and several of them as one compiled function."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.inputs.batching import microbatch
from bert_tf.inputs.identity import batch_fingerprint
from bert_tf.model.dropout import seed_scope
from bert_tf.model.layers import remat_scope
from bert_tf.tasks.task import Task
from bert_tf.training.loss_scale import LossScale
from bert_tf.training.optimizers import Optimizer
from bert_tf.training.schedules import Schedule
from bert_tf.types import Tensors


class Step:
    """One update: micro-batches, all-reduce, finiteness check, clipping, optimizer.

    Apart from the variables of model and optimizer, everything in it is a function of its arguments.

    Args:
        model: built by `task.build`.
        learning_rate: function from the number of updates done before this one to a float32 scalar.
        loss_scale: only its rule is used; its state is passed in and returned.
        config: resolved (`TrainConfig.resolved`). Fields that a phase can override are not read.
        strategy: model and optimizer were made under its scope.

    Attributes:
        names: the metrics, in the order of the rows of all sums and weights: losses, metrics, gradient_norm.
    """

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        optimizer: Optimizer,
        learning_rate: Schedule,
        loss_scale: LossScale,
        config: TrainConfig,
        strategy: tf.distribute.Strategy,
    ) -> None:
        self._task, self._model, self._optimizer = task, model, optimizer
        self._learning_rate, self._loss_scale = learning_rate, loss_scale
        self._config, self._strategy = config, strategy
        self._inputs = [tensor.name for tensor in model.inputs]
        self.names = (*task.losses, *task.metric_names, "gradient_norm")

    def compiled(
        self, iterator: Iterator[tuple[Tensors, tf.Tensor]], prepare: Callable[[Tensors], Tensors], accumulation: int
    ) -> Callable[..., Any]:
        """A tf.function that trains on the next batches of `iterator`.

        Args:
            iterator: yields (features, position), as `batching.stream` does.
            prepare: applied to each micro-batch's features, inside the step.
            accumulation: micro-batches per update.

        Returns:
            tf.function of (first, steps, nonfinite, scale_state): the updates done before, the updates to do and the
            preceding non-finite steps in a row, int64 scalars; the loss scale's state, float32 [2]. It stops early
            after config.max_nonfinite_steps non-finite steps in a row. It returns: the updates done, int64; sums and
            weights of the metrics over all finite updates, float32 [metrics, 2]; dict name -> float32, the task's
            counts over the same updates; the position after the last batch, int64 [2]; non-finite steps in a row,
            int64; the fingerprint of the last batch with a non-finite step, uint8 [8]; the loss scale's state.
        """

        def replica_step(
            batches: list[Tensors], step: tf.Tensor, scale: tf.Tensor
        ) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
            return self.on_replica([prepare(features) for features in batches], step, scale)

        def run(first: tf.Tensor, steps: tf.Tensor, nonfinite: tf.Tensor, scale_state: tf.Tensor) -> tuple[Any, ...]:
            def goes_on(done: tf.Tensor, *state: Any) -> tf.Tensor:
                return (done < steps) & (state[3] < self._config.max_nonfinite_steps)

            def update(
                done: tf.Tensor,
                totals: tf.Tensor,
                histograms: dict[str, tf.Tensor],
                position: tf.Tensor,
                nonfinite: tf.Tensor,
                fingerprint: tf.Tensor,
                scale_state: tf.Tensor,
            ) -> tuple[Any, ...]:
                features, position = next(iterator)
                batches = self._split(features, accumulation)
                results = self._strategy.run(replica_step, (batches, first + done, scale_state[0]))
                metrics, counts, finite = (self._local(result) for result in results)
                totals, histograms = tf.cond(
                    finite,
                    lambda: (totals + metrics, {name: histograms[name] + counts[name] for name in histograms}),
                    lambda: (totals, histograms),
                )
                fingerprint = tf.cond(finite, lambda: fingerprint, lambda: batch_fingerprint(features))
                nonfinite = tf.where(finite, tf.constant(0, tf.int64), nonfinite + 1)
                scale_state = self._loss_scale.next(scale_state, finite)
                return done + 1, totals, histograms, position, nonfinite, fingerprint, scale_state

            totals = tf.zeros([len(self.names), 2])
            histograms = {name: tf.zeros([bins]) for name, bins in self._task.histograms.items()}
            position, fingerprint = tf.zeros([2], tf.int64), tf.zeros([8], tf.uint8)
            state = tf.zeros([], tf.int64), totals, histograms, position, nonfinite, fingerprint, scale_state
            return tf.while_loop(goes_on, update, state)

        return tf.function(run, autograph=False)

    def on_replica(
        self, batches: Sequence[Tensors], step: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
        """One update in replica context: all replicas call it, each with its part of the batch.

        Args:
            batches: feature dicts of this replica's micro-batches, prepared.
            step: int64 scalar, updates done before this one.
            scale: float32 scalar, the loss scale.

        Returns:
            (sums and weights of the metrics, float32 [metrics, 2]; dict name -> the task's counts, float32; bool
            scalar, whether losses and gradient were finite: if not, nothing was updated), over the whole batch.
        """
        context, config = tf.distribute.get_replica_context(), self._config
        divisors = self._divisors(context, batches)
        seed = tf.stack([tf.cast(config.seed, tf.int64), step])
        gradients: list[tf.Tensor] = []
        metrics, counts = 0.0, []
        for index, features in enumerate(batches):
            number = context.replica_id_in_sync_group * len(batches) + index
            with tf.control_dependencies(gradients):  # one micro-batch after the other, or they all hold memory at once
                added, added_metrics = self._gradients(
                    features, divisors[index], tf.random.experimental.stateless_fold_in(seed, number), scale
                )
            if config.clip_on == "replica":
                factor = _clip_factor(tf.linalg.global_norm(added) / scale, config.clip_norm)
                added = [gradient * factor for gradient in added]
            gradients = [total + gradient for total, gradient in zip(gradients, added, strict=True)] if index else added
            metrics += added_metrics
            counts.append(self._task.counts(features))
        gradients = context.all_reduce("SUM", gradients)
        norm = tf.linalg.global_norm(gradients) / scale
        metrics = tf.concat([context.all_reduce("SUM", metrics), [[norm, 1.0]]], 0)
        # The losses too: a loss that overflows can have a gradient that does not.
        finite = tf.math.is_finite(norm) & tf.reduce_all(tf.math.is_finite(metrics[: len(self._task.losses)]))
        summed = {
            name: context.all_reduce("SUM", sum(count[name] for count in counts)) for name in self._task.histograms
        }

        def update() -> None:
            # Clipping and unscaling in one pass over the gradients.
            factor = (_clip_factor(norm, config.clip_norm) if config.clip_on == "global" else 1.0) / scale
            self._optimizer.apply([gradient * factor for gradient in gradients], self._learning_rate(step))

        tf.cond(finite, update, lambda: None)
        return metrics, summed, finite

    def _divisors(
        self, context: tf.distribute.ReplicaContext, batches: Sequence[Tensors]
    ) -> list[dict[str, tf.Tensor]]:
        """For each micro-batch, loss name -> float32 scalar by which the sum of this loss is divided."""
        losses = self._task.losses
        weights = [self._task.weights(features) for features in batches]
        if self._config.normalization == "global":
            whole = {name: context.all_reduce("SUM", sum(weight[name] for weight in weights)) for name in losses}
            return [whole] * len(batches)
        parts = context.num_replicas_in_sync * len(batches) if self._config.normalization == "replica_mean" else 1.0
        return [{name: weight[name] * parts for name in losses} for weight in weights]

    def _gradients(
        self, features: Tensors, divisors: dict[str, tf.Tensor], seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Gradients of the scaled loss of one micro-batch; its metrics, float32 [metrics, 2]."""
        task = self._task
        with tf.GradientTape() as tape, seed_scope(seed), remat_scope(self._config.remat):
            outputs = self._model({name: features[name] for name in self._inputs}, training=True)
            metrics = task.loss_and_metrics(features, outputs)
            loss = scale * sum(metrics[name][0] / tf.maximum(divisors[name], 1e-5) for name in task.losses)
        variables = [variable.value for variable in self._model.trainable_variables]
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        stacked = tf.stack([tf.stack(metrics[name]) for name in (*task.losses, *task.metric_names)])
        return [tf.convert_to_tensor(gradient) for gradient in gradients], stacked

    def _split(self, features: Tensors, accumulation: int) -> Any:
        """Splits a whole batch into the micro-batches of each replica of this process, a distributed value."""
        parts = self._strategy.num_replicas_in_sync * accumulation

        def microbatches(context: tf.distribute.ReplicaContext) -> list[Tensors]:
            first = context.replica_id_in_sync_group * accumulation
            return [microbatch(features, first + index, parts) for index in range(accumulation)]

        return self._strategy.experimental_distribute_values_from_function(microbatches)

    def _local(self, result: Any) -> Any:
        """The first replica's copy of a result that is the same on all replicas."""
        return tf.nest.map_structure(lambda value: self._strategy.experimental_local_results(value)[0], result)


def _clip_factor(norm: tf.Tensor, limit: float) -> tf.Tensor | float:
    """The factor that clips a gradient of this norm to `limit` (0: no clipping); NaN where the norm is not finite."""
    return tf.where(tf.math.is_finite(norm), limit / tf.maximum(norm, limit), float("nan")) if limit else 1.0
