"""The training step: one update on any tf.distribute strategy, and several of them as one compiled function."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.inputs.batching import microbatch
from bert_tf.inputs.identity import batch_fingerprint
from bert_tf.model.mode import Mode, Seeds, computing, current, fold_in
from bert_tf.tasks.objective import JointObjective, Objective
from bert_tf.training.optimizers import Optimizer
from bert_tf.training.schedules import Schedule
from bert_tf.training.strategy import accelerator, parallel_parts
from bert_tf.training.whole_batch import WholeBatch
from bert_tf.types import Tensors, TfFunction

# Gradients are reduced in packs of this size, so that one is copied while another travels: a single pack, the default,
# is as large as the model.
_PACKED = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=64 * 2**20)
# Gradients that have all vanished never overflow: without a bound, the scale itself would overflow in the end.
_LARGEST = 2.0**24


class LossScale:
    """Dynamic loss scaling for float16 (Micikevicius et al., 2018, section 3.2).

    The loss is multiplied by the scale, and the gradients are divided by it after the reduction.

    Float16 has nothing below 6e-8, where many gradients lie, so the loss is scaled up. An overflow, which makes the
    reduced gradient of all replicas non-finite, halves the scale; `growth` finite updates in a row double it: powers of
    2 do not round.

    Args:
        model: if none of its own layers, of which an encoder is one, computes in float16, the scale is 1 and stays 1.
        growth: finite updates before the scale is doubled.

    Attributes:
        variable: float32 [2], to be saved: the scale, and the finite updates since it last changed.
    """

    def __init__(self, model: keras.Model, growth: int) -> None:
        self._half = any(layer.compute_dtype == "float16" for layer in model.layers)
        self._growth = growth
        self.variable = tf.Variable([2.0**15 if self._half else 1.0, 0.0], trainable=False)

    def next(self, state: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
        """The state after an update.

        Args:
            state: float32 [2], as `variable`.
            finite: bool scalar, whether the update's gradient was finite.

        Returns:
            float32 [2].
        """
        if not self._half:
            return state
        scale, good = state[0], tf.where(finite, state[1] + 1.0, 0.0)
        grows = good >= self._growth
        grown = tf.where(grows, tf.minimum(2.0 * scale, _LARGEST), scale)
        return tf.stack([tf.where(finite, grown, tf.maximum(0.5 * scale, 1.0)), tf.where(grows, 0.0, good)])


class Step:
    """One update: micro-batches, all-reduce, finiteness check, clipping, optimizer.

    Apart from the variables of model and optimizer, everything in it is a function of its arguments.

    Args:
        objective: what is minimized.
        model: built by `objective.build`.
        learning_rate: function from the number of updates done before this one to a float32 scalar.
        loss_scale: only its rule is used; its state is passed in and returned.
        config: resolved (`TrainConfig.resolved`). Fields that a phase can override are not read.
        strategy: model and optimizer were made under its scope.
        jit_compile: whether XLA compiles what a replica computes between the all-reduces, one program per shape of a
            micro-batch. Up to rounding, the result is the same.
        flash_attention: whether cuDNN computes the attention that it suits, if XLA compiles for a GPU.
        fuse_every_shape: whether the `fusion` of the step's `Mode` is "every" or "static".

    Attributes:
        fuse_every_shape: the argument; read when the update is traced.
        names: the metrics, in the order of the rows of all sums and weights: losses, metrics, gradient_norm.
    """

    def __init__(
        self,
        objective: Objective,
        model: keras.Model,
        optimizer: Optimizer,
        learning_rate: Schedule,
        loss_scale: LossScale,
        config: TrainConfig,
        strategy: tf.distribute.Strategy,
        *,
        jit_compile: bool = False,
        flash_attention: bool = False,
        fuse_every_shape: bool = False,
    ) -> None:
        self._objective, self._model, self._optimizer = objective, model, optimizer
        self._learning_rate, self._loss_scale = learning_rate, loss_scale
        self._config, self._strategy, self.fuse_every_shape = config, strategy, fuse_every_shape
        cuda = not tf.test.is_built_with_rocm()
        self._gpu_program = jit_compile and cuda and accelerator(strategy) == "GPU"
        self._flash_attention = self._gpu_program and flash_attention
        self._parts = 1 if jit_compile else parallel_parts(strategy)
        self._inputs = [tensor.name for tensor in model.inputs]
        self._whole_batch = WholeBatch(objective, model, self._parts) if isinstance(objective, JointObjective) else None
        # Without XLA no functions of their own, which would only make tracing slower.
        compiled = functools.partial(tf.function, autograph=False, jit_compile=True) if jit_compile else _unchanged
        self._shard_gradients, self._update = compiled(self._sum_gradients), compiled(self._apply_gradients)
        self.names = (*objective.losses, *objective.metric_names, "gradient_norm")

    def compiled(
        self,
        iterator: Iterator[tuple[Tensors, tf.Tensor]],
        prepare: Callable[[Tensors], Tensors],
        accumulation: int,
        rotary_base: float | None = None,
    ) -> TfFunction:
        """A tf.function that trains on the next batches of `iterator`.

        Args:
            iterator: yields (features, position), as `batching.stream` does.
            prepare: applied to each micro-batch's features, inside the step.
            accumulation: micro-batches per update.
            rotary_base: of the `Mode` of the updates.

        Returns:
            tf.function of (first, steps, nonfinite, scale_state): the updates done before, the updates to do and the
            preceding non-finite steps in a row, int64 scalars; the loss scale's state, float32 [2]. It stops early
            after config.max_nonfinite_steps non-finite steps in a row. It returns: the updates done, int64; sums and
            weights of the metrics over all finite updates, float32 [metrics, 2]; dict name -> float32, the objective's
            counts over the same updates; the position after the last batch, int64 [2]; non-finite steps in a row,
            int64; the fingerprint of the last batch with a non-finite step, uint8 [8]; the loss scale's state.
        """

        def replica_step(
            batches: list[Tensors], step: tf.Tensor, scale: tf.Tensor
        ) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
            return self.on_replica([prepare(features) for features in batches], step, scale, rotary_base)

        def run(first: tf.Tensor, steps: tf.Tensor, nonfinite: tf.Tensor, scale_state: tf.Tensor) -> tuple[Any, ...]:
            # The loop decides on the count of calls alone, an int32, which TensorFlow keeps on the host even if there
            # is a GPU: the host never waits for a result before it starts the next update.
            most = tf.cast(steps, tf.int32)

            def goes_on(calls: tf.Tensor, state: tuple[Any, ...]) -> tf.Tensor:
                return calls < most

            def update(calls: tf.Tensor, before: tuple[Any, ...]) -> tuple[Any, ...]:
                done, totals, histograms, _, nonfinite, fingerprint, scale_state = before
                features, position = next(iterator)
                batches = self._split(features, accumulation)
                stopped = nonfinite >= self._config.max_nonfinite_steps
                # After the limit, the remaining calls change nothing: a loss that is not finite skips the update.
                scale = tf.where(stopped, float("nan"), scale_state[0])
                results = self._strategy.run(replica_step, (batches, first + done, scale))
                metrics, counts, finite = (self._local(result) for result in results)
                after = (
                    done + 1,
                    tf.where(finite, totals + metrics, totals),
                    {name: tf.where(finite, histograms[name] + counts[name], histograms[name]) for name in histograms},
                    position,
                    tf.where(finite, tf.constant(0, tf.int64), nonfinite + 1),
                    tf.where(finite, fingerprint, batch_fingerprint(features)),
                    self._loss_scale.next(scale_state, finite),
                )
                return calls + 1, tf.nest.map_structure(lambda old, new: tf.where(stopped, old, new), before, after)

            totals = tf.zeros([len(self.names), 2])
            histograms = {name: tf.zeros([bins]) for name, bins in self._objective.histograms.items()}
            position, fingerprint = tf.zeros([2], tf.int64), tf.zeros([8], tf.uint8)
            state = tf.zeros([], tf.int64), totals, histograms, position, nonfinite, fingerprint, scale_state
            return tf.while_loop(goes_on, update, (tf.constant(0), state))[1]

        return tf.function(run, autograph=False)

    def on_replica(
        self, batches: Sequence[Tensors], step: tf.Tensor, scale: tf.Tensor, rotary_base: float | None = None
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor]:
        """One update in replica context: all replicas call it, each with its part of the batch.

        Args:
            batches: feature dicts of this replica's micro-batches, prepared.
            step: int64 scalar, updates done before this one.
            scale: float32 scalar, the loss scale.
            rotary_base: as for `compiled`.

        Returns:
            (sums and weights of the metrics, float32 [metrics, 2]; dict name -> the objective's counts, float32; bool
            scalar, whether losses and gradient were finite: if not, nothing was updated), over the whole batch.
        """
        context = tf.distribute.get_replica_context()
        divisors = self._divisors(context, batches)
        numbers = [context.replica_id_in_sync_group * len(batches) + index for index in range(len(batches))]
        gradients, metrics, counts = self._shard_gradients(list(batches), divisors, numbers, step, scale, rotary_base)
        gradients = context.all_reduce("SUM", gradients, options=_PACKED)
        metrics, finite = self._update(gradients, context.all_reduce("SUM", metrics), step, scale)
        return metrics, {name: context.all_reduce("SUM", count) for name, count in counts.items()}, finite

    def _sum_gradients(
        self,
        batches: list[Tensors],
        divisors: list[dict[str, tf.Tensor]],
        numbers: list[tf.Tensor | int],
        step: tf.Tensor,
        scale: tf.Tensor,
        rotary_base: float | None,
    ) -> tuple[list[tf.Tensor], tf.Tensor, dict[str, tf.Tensor]]:
        """Gradients, metrics without the gradient's norm, and counts of a replica's micro-batches, summed.

        Args:
            batches, step, scale, rotary_base: as for `on_replica`.
            divisors: as `_divisors` returns.
            numbers: of the micro-batches, in the whole batch: each has its own dropout masks.
        """
        config = self._config
        seed = tf.stack([tf.cast(config.seed, tf.int64), step])
        if self._whole_batch:
            seeds = [fold_in(seed, number) for number in numbers]
            (divisor,) = divisors[0].values()
            with computing(Mode(rotary_base=rotary_base)):
                return *self._whole_batch.gradients(batches, seeds, self._mode, divisor, scale), {}
        gradients: list[tf.Tensor] = []
        metrics, counts = 0.0, []
        for index, (features, number) in enumerate(zip(batches, numbers, strict=True)):
            # One micro-batch after the other, or they all hold memory at once.
            with tf.control_dependencies(gradients), computing(Mode(rotary_base=rotary_base)):
                added, added_metrics = self._gradients(features, divisors[index], fold_in(seed, number), scale)
            if config.clip_on == "replica":
                factor = _clip_factor(tf.linalg.global_norm(added) / scale, config.clip_norm)
                added = [gradient * factor for gradient in added]
            gradients = [total + gradient for total, gradient in zip(gradients, added, strict=True)] if index else added
            metrics += added_metrics
            counts.append(self._objective.counts(features))
        return gradients, metrics, {name: sum(count[name] for count in counts) for name in self._objective.histograms}

    def _apply_gradients(
        self, gradients: list[tf.Tensor], metrics: tf.Tensor, step: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Clips and applies the reduced gradients; returns the metrics, with their norm, and whether all was finite."""
        config = self._config
        norm = tf.linalg.global_norm(gradients) / scale
        metrics = tf.concat([metrics, [[norm, 1.0]]], 0)
        # The losses too: a loss that overflows can have a gradient that does not.
        finite = tf.math.is_finite(norm) & tf.reduce_all(tf.math.is_finite(metrics[: len(self._objective.losses)]))

        def update() -> None:
            factor = (_clip_factor(norm, config.clip_norm) if config.clip_on == "global" else 1.0) / scale
            self._optimizer.apply(gradients, self._learning_rate(step), factor)

        tf.cond(finite, update, lambda: None)
        return metrics, finite

    def _divisors(
        self, context: tf.distribute.ReplicaContext, batches: Sequence[Tensors]
    ) -> list[dict[str, tf.Tensor]]:
        """For each micro-batch, loss name -> float32 scalar by which the sum of this loss is divided."""
        losses = self._objective.losses
        weights = [self._objective.weights(features) for features in batches]
        if self._config.normalization == "global":
            whole = {name: context.all_reduce("SUM", sum(weight[name] for weight in weights)) for name in losses}
            return [whole] * len(batches)
        parts = context.num_replicas_in_sync * len(batches) if self._config.normalization == "replica_mean" else 1.0
        return [{name: weight[name] * parts for name in losses} for weight in weights]

    def _gradients(
        self, features: Tensors, divisors: dict[str, tf.Tensor], seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Gradients of the scaled loss of one micro-batch; its metrics, float32 [metrics, 2]."""
        one = next(iter(features.values()))
        rows = one.shape[0]
        # If the number of rows is static, that of each part is, too.
        most = self._parts if rows is None else max(n for n in range(1, self._parts + 1) if rows % n == 0)
        if most == 1:
            return self._part_gradients(features, divisors, seed, scale)
        parts = tf.minimum(most, tf.shape(one)[0])
        # An array per variable, not a running sum, which would be one more pass over memory for each part.
        arrays = [
            tf.TensorArray(variable.dtype, most, element_shape=variable.shape)
            for variable in self._model.trainable_variables
        ]

        def compute(
            index: tf.Tensor, arrays: list[tf.TensorArray], metrics: tf.Tensor
        ) -> tuple[tf.Tensor, list[tf.TensorArray], tf.Tensor]:
            part = microbatch(features, tf.cast(index, tf.int64), tf.cast(parts, tf.int64))
            if rows is not None:
                part = {name: tf.ensure_shape(value, [rows // most, *value.shape[1:]]) for name, value in part.items()}
            gradients, added = self._part_gradients(part, divisors, fold_in(seed, index), scale)
            written = [array.write(index, gradient) for array, gradient in zip(arrays, gradients, strict=True)]
            return index + 1, written, metrics + added

        # A loop whose turns do not wait for each other: traced once, for any number of parts.
        state = tf.constant(0), arrays, tf.zeros([len(self.names) - 1, 2])
        _, arrays, metrics = tf.while_loop(lambda index, *_: index < parts, compute, state, parallel_iterations=most)
        return [tf.add_n([array.read(part) for part in range(most)]) for array in arrays], metrics

    def _part_gradients(
        self, features: Tensors, divisors: dict[str, tf.Tensor], seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `_gradients`, of a part of a micro-batch."""
        objective = self._objective
        with tf.GradientTape() as tape, computing(self._mode(seed)):
            outputs = self._model({name: features[name] for name in self._inputs}, training=True)
            metrics = objective.loss_and_metrics(features, outputs)
            means = {name: metrics[name][0] / tf.maximum(divisors[name], 1e-5) for name in objective.losses}
            loss = scale * objective.total(means)
        variables = [variable.value for variable in self._model.trainable_variables]
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        stacked = tf.stack([tf.stack(metrics[name]) for name in (*objective.losses, *objective.metric_names)])
        return [tf.convert_to_tensor(gradient) for gradient in gradients], stacked

    def _mode(self, seed: tf.Tensor) -> Mode:
        """How a model computes in training, with dropout masks from this seed, int32 [2]."""
        fusion: Literal["static", "every"] = "every" if self.fuse_every_shape else "static"
        return dataclasses.replace(
            current(),
            seeds=Seeds(seed),
            fusion=fusion,
            gpu_program=self._gpu_program,
            flash_attention=self._flash_attention,
            recompute=self._config.remat,
        )

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


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _clip_factor(norm: tf.Tensor, limit: float) -> tf.Tensor | float:
    """The factor that clips a gradient of this norm to `limit` (0: no clipping); NaN where the norm is not finite."""
    return tf.where(tf.math.is_finite(norm), limit / tf.maximum(norm, limit), float("nan")) if limit else 1.0
