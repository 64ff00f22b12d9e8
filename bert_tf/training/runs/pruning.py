"""Prunes a fine-tuned model to a share of its layers' weights, by its loss on a calibration set.

Whole layers are removed one after the other, each time the one without which the loss is lowest. Attention heads and
feed-forward columns are removed by their importance (Michel et al., 2019, arXiv:1905.10650, section 4.1): the mean over
examples of |dL/dm| for a mask m = 1 that multiplies the output of a head, or a column, divided by the L2 norm of its
layer's. How many layers and how many heads are removed is decided by the loss, too: of all combinations that
are tried, the one with the lowest loss remains.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import directory
from bert_tf.config import BertConfig, FeatureConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import replacing_directory, write_json
from bert_tf.inputs.datasets.sources import Source
from bert_tf.model.compute import DenseForm, InferredDense, converted
from bert_tf.model.encoder import BertEncoder, encoder_of, ranges_of
from bert_tf.model.layers import Dense
from bert_tf.model.mode import Mode, computing, infer
from bert_tf.model.pruning import Kept, all_parts, layer_weights, part_weights, pruned_config, pruned_weights
from bert_tf.progress import log
from bert_tf.quiet import traced_function
from bert_tf.tasks.objective import Objective, check_of_examples
from bert_tf.tasks.task import FineTuningTask
from bert_tf.training.evaluation import Split, evaluator
from bert_tf.training.runs.stage import isolated_session
from bert_tf.types import Array, Json, Metrics, Tensors

REPORT = "pruning.json"  # file name of the report, beside the model
# Columns are removed in groups: kernels for matrix products are as slow for 17 columns as for 32.
_GROUP = 16


class Importance(NamedTuple):
    """Importance of the parts of a layer, before the division by the layer's norm.

    Attributes:
        heads: float64 [heads].
        columns: float64 [columns].
    """

    heads: Array
    columns: Array


class Pruned(NamedTuple):
    """A pruned model.

    Attributes:
        model: as `task.build` returns it.
        kept: the parts of the original that it has.
        report: JSON-ready: share, removed (the share that was reached), layer_weights and parameters [before, after],
            metrics [before, after] on the calibration set, layers (from 1, of the original), heads_per_layer,
            intermediate_sizes, and tried, a list of combinations with their layers, heads, columns and loss.
    """

    model: keras.Model
    kept: list[Kept]
    report: Json


def prune_model(
    model_dir: str,
    output: str,
    source: Callable[[FineTuningTask], Source],
    split: str,
    share: float,
    strategy: tf.distribute.Strategy,
    *,
    examples: int = 1000,
    batch_size: int = 32,
) -> Json:
    """Prunes a saved model.

    Args:
        model_dir: of the model.
        output: a directory that must not exist; it gets the model and the report.
        source: returns the labelled examples for the model's task.
        split: the split of them that decides.
        share, strategy, batch_size: as for `prune`.
        examples: their largest number; they are spread over the split.

    Returns:
        The report of `prune` with program, model_dir, data (the name of the split) and examples (their number).
    """
    check_share(share)
    with strategy.scope():
        task, model = directory.load_fine_tuned(model_dir)
    if ranges_of(model).variables:
        log("the ranges of train.quantization=int8 are left out: fine-tune the pruned model with it again")
    given = source(task)
    found, read = Split(given, split), task.replaced(data=given.data)
    found.keep(examples)
    found.prepare(read)
    pruned = prune(read, model, found.columns, share, strategy, batch_size=batch_size)
    report: Json = {"program": "prune", "model_dir": model_dir, "data": found.where, "examples": len(found.examples)}
    report |= pruned.report
    with replacing_directory(output) as temporary:
        directory.save(temporary, pruned.model, encoder_of(pruned.model), task)
        write_json(os.path.join(temporary, REPORT), report)
    return report


def prune(
    task: FineTuningTask,
    model: keras.Model,
    columns: Tensors,
    share: float,
    strategy: tf.distribute.Strategy,
    *,
    batch_size: int = 32,
) -> Pruned:
    """Makes a smaller model; nothing is trained.

    Args:
        task: of the model.
        model: built by `task.build`, in float32; unchanged.
        columns: the calibration set, from `task.codec.to_tensors`.
        share: part of the weights of the transformer layers (kernels, biases, LayerNorms) to remove, above 0 and below
            1. At least this much is removed, and less than a head and a group of 16 columns more, unless whole layers
            alone are removed.
        strategy: on which the loss is computed.
        batch_size: examples per batch.

    Raises:
        ConfigError: the share is not between 0 and 1 or cannot be reached, or the layers share their weights.
        DataError: the loss of the model is not finite.
    """
    check_share(share)
    check_of_examples(task.objective, "pruning")
    config = encoder_of(model).config
    if config.shared_layers:
        raise ConfigError("the layers of this model share their weights (model.shared_layers), so none can be pruned")
    before, most = layer_weights(config), math.floor((1 - share) * layer_weights(config))
    search = _Search(task, model, task.codec.rows.batches(columns, batch_size, few_lengths=True), strategy)
    # A BiLSTM may read several layers: then all stay.
    droppable = config.num_layers - 1 if getattr(task.config, "features", None) in (None, FeatureConfig()) else 0
    smallest = _smallest(config, config.num_layers - droppable)
    if smallest > most:
        raise ConfigError(
            f"share is {share}; at most {math.floor(1000 * (1 - smallest / before)) / 1000} can be removed from this "
            f"model: {config.num_layers - droppable} layer(s) with one head and {_GROUP} columns remain"
        )
    whole = all_parts(config)
    metrics = search.metrics(whole)
    if not math.isfinite(metrics.get("loss", math.nan)):
        raise DataError(f"the model's loss on the calibration set is {metrics.get('loss')}; expected a finite number")
    log(f"calibration loss {metrics['loss']:.4f} with all {config.num_layers} layers")
    best, tried = None, list[Json]()
    for layers in _fewer(search, whole, droppable, most):
        importances = search.importances(layers)
        for kept in _combinations(config, layers, importances, most):
            row = _row(kept, search.loss(kept))
            tried.append(row)
            if best is None or row["loss"] < best[0]:
                best = row["loss"], kept
    assert best is not None  # the smallest model is one of the combinations, if no other fits
    kept = best[1]
    smaller = search.built(kept)
    after = pruned_config(config, kept)
    report = {
        "share": share,
        "removed": 1 - layer_weights(after) / before,
        "layer_weights": [before, layer_weights(after)],
        "parameters": [model.count_params(), smaller.count_params()],
        "metrics": [metrics, search.metrics(kept)],
        "layers": [one.layer + 1 for one in kept],
        "heads_per_layer": list(after.layer_heads),
        "intermediate_sizes": list(after.layer_intermediates),
        "tried": tried,
    }
    return Pruned(smaller, kept, report)


def check_share(share: float) -> None:
    """Raises ConfigError unless it is above 0 and below 1."""
    if not 0 < share < 1:
        raise ConfigError(f"share is {share}; expected a number above 0 and below 1, the part of the weights to remove")


def importances(objective: Objective, model: keras.Model, batches: tf.data.Dataset) -> list[Importance]:
    """The mean of |dL/dm| over the sequences of a data set, where L is the sum of the losses of a sequence.

    Args:
        objective: of the losses.
        model: built by `objective.build`, in float32; it computes without dropout.
        batches: labelled features.

    Returns:
        One per layer.
    """
    blocks = encoder_of(model).blocks()
    layers = [(block.attention.output_projection, block.output_projection) for block in blocks]
    config = encoder_of(model).config
    widths = list(zip(config.layer_heads, config.layer_intermediates, strict=True))

    def sums(features: Tensors) -> tuple[list[tuple[tf.Tensor, tf.Tensor]], tf.Tensor]:
        mask = features["input_mask"]
        sequences = tf.reduce_prod(tf.shape(mask)[:-1])  # of an example with several texts or choices, each
        masks = [tuple(tf.ones([sequences, width]) for width in pair) for pair in widths]
        forms = [
            (layer, _Masked(layer, mask))
            for pair, its in zip(layers, masks, strict=True)
            for layer, mask in zip(pair, its, strict=True)
        ]
        with tf.GradientTape() as tape, converted(forms):
            tape.watch(masks)
            outputs = infer(model, features, skip_padding=False)
            metrics = objective.loss_and_metrics(features, outputs)
            loss = objective.total({name: metrics[name][0] for name in objective.losses})
        return tf.nest.map_structure(lambda one: tf.reduce_sum(tf.abs(one), 0), tape.gradient(loss, masks)), sequences

    traced = traced_function(sums, reduce_retracing=True)
    totals = [tuple(np.zeros(width) for width in pair) for pair in widths]
    count = 0
    for features in batches:
        found, sequences = traced(features)
        totals = [
            tuple(total + one.numpy() for total, one in zip(pair, its, strict=True))
            for pair, its in zip(totals, found, strict=True)
        ]
        count += int(sequences)
    return [Importance(*(total / count for total in pair)) for pair in totals]


class _Masked(DenseForm):
    """A dense layer whose inputs are multiplied by a mask, float32 [sequences, parts]; a part is one or more inputs."""

    def __init__(self, layer: Dense, mask: tf.Tensor) -> None:
        self._layer, self._mask = layer, mask

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        sequences, parts = tf.shape(self._mask)[0], self._mask.shape[1]
        shaped = tf.reshape(rows, [sequences, -1, parts, rows.shape[-1] // parts])
        mask = tf.cast(self._mask, rows.dtype)[:, tf.newaxis, :, tf.newaxis]
        return InferredDense(self._layer)(tf.reshape(shaped * mask, [-1, rows.shape[-1]]))


class _Search:
    """Builds models with some of the parts, and measures them; arguments as in `prune`."""

    def __init__(
        self, task: FineTuningTask, model: keras.Model, batches: tf.data.Dataset, strategy: tf.distribute.Strategy
    ) -> None:
        self._task, self._strategy = task, strategy
        self._batches = batches.cache()
        self.config = encoder_of(model).config
        self._weights = {variable.path: variable.numpy() for variable in model.weights}

    def built(self, kept: Sequence[Kept]) -> keras.Model:
        """The model with these parts."""
        weights = pruned_weights(self.config, self._weights, kept)
        with self._strategy.scope(), computing(Mode(zeros=True)):
            model = self._task.build(BertEncoder(pruned_config(self.config, kept), dtype="float32"))
        for variable in model.weights:
            variable.assign(weights[variable.path])
        return model

    def metrics(self, kept: Sequence[Kept]) -> Metrics:
        """Loss and simple metrics of the model with these parts."""
        with isolated_session():
            return evaluator(self._task.objective, self.built(kept), self._batches, self._strategy)()

    def loss(self, kept: Sequence[Kept]) -> float:
        """Loss of the model with these parts; infinite if it is not a number."""
        loss = self.metrics(kept)["loss"]
        return loss if math.isfinite(loss) else math.inf

    def importances(self, kept: Sequence[Kept]) -> list[Importance]:
        """Importance of the parts of each layer."""
        with isolated_session():
            return importances(self._task.objective, self.built(kept), self._batches)


def _smallest(config: BertConfig, layers: int) -> int:
    """Weights of the layers of the smallest model that has so many, whichever these are."""
    fewest = sorted((min(_GROUP, inner) for inner in config.layer_intermediates), reverse=True)[:layers]
    kept = [Kept(index, (0,), tuple(range(inner))) for index, inner in enumerate(fewest)]
    return layer_weights(pruned_config(config, kept))


def _fewer(search: _Search, whole: Sequence[Kept], droppable: int, most: int) -> Iterator[list[Kept]]:
    """All layers, then one less each time, until they have at most `most` weights.

    The layer that is dropped is the one without which the loss is lowest.
    """
    layers = list(whole)
    yield layers
    for _ in range(droppable):
        if layer_weights(pruned_config(search.config, layers)) <= most:
            return
        rests = [[other for other in layers if other is not one] for one in layers]
        losses = [search.loss(rest) for rest in rests]
        chosen = int(np.argmin(losses))
        log(f"calibration loss {losses[chosen]:.4f} without layer {layers[chosen].layer + 1}, {len(rests) - 1} left")
        layers = rests[chosen]
        yield layers


def _combinations(
    config: BertConfig, layers: Sequence[Kept], importances: Sequence[Importance], most: int
) -> list[list[Kept]]:
    """The layers with fewer heads and columns, and at most `most` weights, in different mixtures; [] if none fits."""
    whole = pruned_config(config, layers)
    if layer_weights(whole) <= most:
        return [list(layers)]
    count, sizes = sum(whole.layer_heads), whole.layer_intermediates
    per_head, per_column = part_weights(whole)
    fixed = layer_weights(whole) - count * per_head - sum(sizes) * per_column

    def with_heads(number: int) -> list[list[Kept]]:
        columns = _most_important_columns(importances, (most - fixed - number * per_head) // per_column)
        if columns is None:
            return []
        parts = zip(layers, _most_important_heads(importances, number), columns, strict=True)
        return [[Kept(one.layer, *its) for one, *its in parts]]

    even = (most - fixed) / (count * per_head + sum(sizes) * per_column)  # the same share of heads and of columns
    numbers = sorted({max(round(share * count), len(layers)) for share in (even, (1 + even) / 2, 1)})
    return [kept for number in numbers for kept in with_heads(number)] or with_heads(len(layers))


def _normalised(values: Array) -> Array:
    return values / max(float(np.linalg.norm(values)), 1e-30)


def _most_important_heads(importances: Sequence[Importance], count: int) -> list[tuple[int, ...]]:
    """The `count` most important heads by layer, at least one of each layer."""
    ranked = [[(score, [head]) for head, score in enumerate(_normalised(one.heads))] for one in importances]
    chosen = _chosen([sorted(layer, reverse=True) for layer in ranked], count)
    assert chosen is not None
    return chosen


def _most_important_columns(importances: Sequence[Importance], count: int) -> list[tuple[int, ...]] | None:
    """Up to `count` of the most important columns by layer, in groups, one in each layer; None if these are more."""
    ranked = []
    for one in importances:
        scores = _normalised(one.columns)
        order = np.argsort(-scores, kind="stable")
        groups = [order[start : start + _GROUP] for start in range(0, len(order), _GROUP)]
        ranked.append([(float(scores[group].mean()), group.tolist()) for group in groups])
    return _chosen(ranked, count)


def _chosen(ranked: Sequence[Sequence[tuple[float, list[int]]]], count: int) -> list[tuple[int, ...]] | None:
    """Up to `count` indices of each layer, from groups with scores, the best first; the first of each layer always."""
    chosen = [list(layer[0][1]) for layer in ranked]
    left = count - sum(map(len, chosen))
    if left < 0:
        return None
    rest = [(score, -index, group) for index, layer in enumerate(ranked) for score, group in layer[1:]]
    for _, index, group in sorted(rest, key=lambda one: one[:2], reverse=True):
        if len(group) <= left:
            chosen[-index] += group
            left -= len(group)
    return [tuple(sorted(one)) for one in chosen]


def _row(kept: Sequence[Kept], loss: float) -> Json:
    """A row of `tried`."""
    return {
        "layers": [one.layer + 1 for one in kept],
        "heads": sum(len(one.heads) for one in kept),
        "columns": sum(len(one.columns) for one in kept),
        "loss": loss,
    }
