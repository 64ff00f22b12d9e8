"""Gradients of a loss about all examples of a batch, which may be larger than what fits into memory, or on one replica.

With several micro-batches, the outputs of all are computed first, without what a backward pass needs; then the loss and
its gradient by the outputs; then each micro-batch again, with the same dropout masks, and its part of the gradient
(Gao et al., 2021, arXiv:2101.06983). The result is that of the whole batch at once.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from bert_tf.inputs.batching import microbatch
from bert_tf.model.mode import Mode, computing, fold_in
from bert_tf.tasks.objective import JointObjective
from bert_tf.types import Tensors

# A micro-batch's dropout seed, int32 [2] -> the mode in which it is computed.
Modes = Callable[[tf.Tensor], Mode]


class WholeBatch:
    """Computes gradients on a replica.

    Args:
        objective: of the loss.
        model: built by it.
        parts: number of parts of a micro-batch that are computed at once.
    """

    def __init__(self, objective: JointObjective, model: keras.Model, parts: int) -> None:
        self._objective, self._model, self._parts = objective, model, parts

    def gradients(
        self, batches: Sequence[Tensors], seeds: Sequence[tf.Tensor], mode: Modes, divisor: tf.Tensor, scale: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The gradient of the scaled loss of all replicas by this one's variables, through its own outputs; and the
        metrics, float32 [metrics, 2], divided by the number of replicas, which all compute the same.

        Args:
            batches: features of this replica's micro-batches.
            seeds: int32 [2] of each one's dropout masks.
            mode: see `Modes`.
            divisor: float32 scalar, of the sum of the loss.
            scale: float32 scalar, of the loss.
        """
        variables = [variable.value for variable in self._model.trainable_variables]

        def outputs_of(number: int) -> Tensors:
            return self._outputs(batches[number], seeds[number], mode)

        if self._objective.separable or len(batches) == 1:
            return self._added(batches, outputs_of, variables, divisor, scale)
        computed: list[Tensors] = []
        for number in range(len(batches)):
            with tf.control_dependencies(tf.nest.flatten(computed)):  # one after the other, or all hold memory at once
                computed.append(outputs_of(number))
        whole = _concatenated(computed)
        with tf.GradientTape() as tape:
            tape.watch(whole)
            loss, metrics = self._loss(whole, batches, divisor, scale)
        slopes = tape.gradient(loss, whole)
        first = tf.constant(0)
        gradients: list[tf.Tensor] = []
        for number, outputs in enumerate(computed):
            rows = tf.shape(next(iter(outputs.values())))[0]
            own = {name: slope[first : first + rows] for name, slope in slopes.items()}
            first += rows
            with tf.control_dependencies(gradients), tf.GradientTape() as tape:
                again = outputs_of(number)
            names = list(again)
            added = tape.gradient(
                [again[name] for name in names],
                variables,
                output_gradients=[own[name] for name in names],
                unconnected_gradients="zero",
            )
            added = [tf.convert_to_tensor(one) for one in added]
            gradients = [total + one for total, one in zip(gradients, added, strict=True)] if number else added
        return gradients, metrics

    def _added(
        self,
        batches: Sequence[Tensors],
        outputs_of: Callable[[int], Tensors],
        variables: list[tf.Variable],
        divisor: tf.Tensor,
        scale: tf.Tensor,
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The same of one micro-batch after the other, whose losses are added."""
        gradients: list[tf.Tensor] = []
        metrics = 0.0
        for number, features in enumerate(batches):
            with tf.control_dependencies(gradients), tf.GradientTape() as tape:
                loss, own = self._loss(outputs_of(number), [features], divisor, scale)
            added = [tf.convert_to_tensor(one) for one in tape.gradient(loss, variables, unconnected_gradients="zero")]
            gradients = [total + one for total, one in zip(gradients, added, strict=True)] if number else added
            metrics += own
        return gradients, metrics

    def _outputs(self, features: Tensors, seed: tf.Tensor, mode: Modes) -> Tensors:
        """The joined outputs of a micro-batch."""
        joined = []
        for number in range(self._parts):
            part = microbatch(features, number, self._parts)
            with computing(mode(fold_in(seed, number))):
                outputs = [self._model(piece, training=True) for piece in self._objective.pieces(part)]
            joined.append(self._objective.joined(outputs, part))
        return _concatenated(joined)

    def _loss(
        self, outputs: Tensors, batches: Sequence[Tensors], divisor: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The scaled loss of these batches, of those of all replicas unless it is a sum, and the metrics."""
        objective = self._objective
        known = _concatenated([objective.known(features) for features in batches])
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync if context and not objective.separable else 1
        if replicas > 1:
            outputs = {name: _gathered(value, context) for name, value in outputs.items()}
            known = {name: _all(value, context) for name, value in known.items()}
        sums = objective.joint_loss(outputs, known)
        means = {name: sums[name][0] / tf.maximum(divisor, 1e-5) for name in objective.losses}
        metrics = tf.stack([tf.stack(sums[name]) for name in (*objective.losses, *objective.metric_names)])
        return scale * objective.total(means), metrics / replicas


def _gathered(own: tf.Tensor, context: tf.distribute.ReplicaContext) -> tf.Tensor:
    """The rows of all replicas, differentiable by those of this one."""
    constant = tf.stop_gradient(own)
    whole = _all(constant, context)
    counts = context.all_gather(tf.shape(own)[:1], axis=0)
    first = tf.reduce_sum(counts[: context.replica_id_in_sync_group])
    after = tf.shape(whole)[0] - first - tf.shape(own)[0]
    paddings = tf.concat([[[first, after]], tf.zeros([tf.rank(own) - 1, 2], tf.int32)], 0)
    return whole + tf.pad(own - constant, paddings)


def _all(own: tf.Tensor, context: tf.distribute.ReplicaContext) -> tf.Tensor:
    """The rows of all replicas."""
    return tf.ensure_shape(context.all_gather(own, axis=0), [None, *own.shape[1:]])


def _concatenated(parts: Sequence[Tensors]) -> Tensors:
    return {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]} if len(parts) > 1 else parts[0]
