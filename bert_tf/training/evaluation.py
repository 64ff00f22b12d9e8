"""Metrics and predictions over a whole data set, every example once."""

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.batching import microbatch, without_tuning
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Examples
from bert_tf.memory import memory_errors
from bert_tf.model.mode import infer
from bert_tf.progress import bar
from bert_tf.quiet import traced_function
from bert_tf.tasks.objective import JointObjective, Objective
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text.unknown import UnknownTokens
from bert_tf.training.strategy import accelerator, devices_of, parallel_parts
from bert_tf.types import Array, Json, Metrics, Tensors

# Examples that `predictor` holds in memory: enough to sort by length, whatever the size of the file.
_CHUNK = 4096
_SMALLER = "set a smaller batch_size, in training a smaller train.batch_size, or a shorter max_length"


def means(objective: Objective, names: Sequence[str], totals: Array) -> Metrics:
    """Mean of each metric, from its sum and weight.

    Args:
        names: the metrics, the losses among them.
        totals: [metrics, 2], sum and weight of each.

    Returns:
        Mean by name, without metrics whose weight is 0: those are unknown, while NaN shows that the model has diverged.
        "loss" is the weighted sum of the losses; `objective.totals` are sums.
    """
    pairs = zip(names, totals, strict=True)
    averages = {
        name: float(total if name in objective.totals else total / weight) for name, (total, weight) in pairs if weight
    }
    losses = {name: averages[name] for name in objective.losses if name in averages}
    return ({"loss": objective.total(losses)} if losses else {}) | averages


class Answering:
    """Computes from a model's outputs for batches, in inference; traced only once.

    Each batch, the last may be partial, is split over the replicas of this process. With several workers, each answers
    everything, so all get identical results without communication.

    Args:
        model: built by `objective.build`.
        compute: maps the features and outputs of some rows to answers, tensors [rows, ...] that are concatenated over
            the replicas, and to sums, tensors that are added; both may be nested.
        prepare: applied to each replica's features, as in `phases.Input`.
    """

    def __init__(
        self,
        model: keras.Model,
        compute: Callable[[Tensors, Any], tuple[Any, Any]],
        strategy: tf.distribute.Strategy,
        prepare: Callable[[Tensors], Tensors] = lambda features: features,
    ) -> None:
        self._strategy, skip_padding = strategy, accelerator(strategy) is None

        def on_replica(features: Tensors) -> tuple[Any, Any]:
            features = prepare(features)
            return compute(features, infer(model, features, skip_padding=skip_padding))

        def answer(features: Tensors) -> tuple[Any, Any]:
            rows, sums = zip(*_split(strategy, on_replica, features), strict=True)
            joined = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *rows)
            return joined, tf.nest.map_structure(lambda *parts: tf.add_n(parts), *sums)

        self._answer = traced_function(answer, reduce_retracing=True)

    def trace(self, batches: tf.data.Dataset) -> Callable[[Tensors], tuple[Any, Any]]:
        """The function that answers each of these batches, whatever their shapes; callable in any thread."""
        spec = {name: tf.TensorSpec([None] * one.shape.rank, one.dtype) for name, one in batches.element_spec.items()}
        return self._answer.get_concrete_function(spec)

    def __call__(self, batches: tf.data.Dataset, title: str = "") -> Iterator[tuple[Tensors, Any, Any]]:
        """Yields (features, answers, sums) of each part of each batch; `title` is of a progress bar, "" for none."""
        # Where the lengths of batches differ, one graph for all; else one for their shape, which XLA may compile.
        vary = any(None in spec.shape[1:] for spec in batches.element_spec.values())
        compute = self.trace(batches) if vary else self._answer
        with bar(title, None, "batch", leave=False, shown=bool(title)) as line:
            for features, (answers, sums) in _computed(compute, batches, self._strategy):
                yield features, answers, sums
                line.update()


def evaluator(
    objective: Objective,
    model: keras.Model,
    batches: tf.data.Dataset,
    strategy: tf.distribute.Strategy,
    prepare: Callable[[Tensors], Tensors] = lambda features: features,
) -> Callable[[], Metrics]:
    """Returns a function that evaluates the model with its current weights.

    Args:
        objective: of the metrics.
        model, batches, strategy, prepare: as for `Answering`.

    Returns:
        Function that returns the metrics, as `means` does.
    """
    names = (*objective.losses, *objective.metric_names)
    answering = Answering(
        model, lambda features, outputs: ((), _loss_and_metrics(objective, names, features, outputs)), strategy, prepare
    )

    def evaluate() -> Metrics:
        totals = np.zeros([len(names), 2])
        for _, _, metrics in answering(batches, "evaluate"):
            totals += metrics.numpy()
        return means(objective, names, totals)

    return evaluate


class DistributedPredictor:
    """Callable that runs the model on examples and post-processes its outputs; it is traced only once.

    Args:
        task: from whose examples the batches are made.
        model: built by `task.build`.
        labelled: whether to compute losses and metrics, too.
    """

    def __init__(
        self, task: FineTuningTask, model: keras.Model, strategy: tf.distribute.Strategy, *, labelled: bool
    ) -> None:
        self._task, objective = task, task.objective
        has_losses = labelled and not isinstance(objective, JointObjective)
        self._names = names = (*objective.losses, *objective.metric_names) if has_losses else ()

        def compute(features: Tensors, outputs: Tensors) -> tuple[Tensors, tf.Tensor]:
            return task.codec.postprocess(features, outputs), _loss_and_metrics(objective, names, features, outputs)

        self._answering = Answering(model, compute, strategy)
        self.trace = self._answering.trace

    def __call__(self, columns: Tensors, batches: tf.data.Dataset) -> tuple[dict[str, Array], Metrics]:
        """Answers examples.

        Args:
            columns: from `task.codec.to_tensors`.
            batches: from `task.codec.rows.batches` of the columns.

        Returns:
            (answers, arrays [examples, ...] from `task.codec.aggregate_windows`; losses and metrics over all rows,
            empty unless `labelled`).
        """
        names = self._names
        rows, answered, totals = [], [], np.zeros([len(names), 2])
        for features, decoded, metrics in self._answering(batches, "evaluate" if names else "predict"):
            rows.append(np.stack([features["row"], features["window"]], 1))
            answered.append({name: value.numpy() for name, value in decoded.items()})
            totals += metrics.numpy()
        examples = np.concatenate(rows)  # [rows, 2]: example, window
        order = np.lexsort(examples.T[::-1])
        ordered = {name: _concatenate([batch[name] for batch in answered])[order] for name in answered[0]}
        merged = self._task.codec.aggregate_windows(columns, tf.constant(examples[order, 0]), ordered)
        answers = {name: value.numpy() for name, value in merged.items()}
        return answers, means(self._task.objective, names, totals) if names else {}


class Split:
    """All examples of a split; at least one.

    Args:
        role: as for `Source.examples`.
        labelled: whether they have labels; else `prepare` gives them ones that mean nothing.

    Attributes:
        labelled: as given.
        where: the name of the examples.
        examples: in their order.
        read_report: examples that were skipped or repaired.
        columns: from `Codec.to_tensors`, set by `prepare`.
        unknown: the unknown tokens of a sample, likewise.
    """

    columns: Tensors
    unknown: UnknownTokens

    def __init__(self, source: Examples, role: str, *, labelled: bool = True) -> None:
        self.labelled, self.where, self.read_report = labelled, source.where(role), ReadReport()
        self.examples = list(source.examples(self.read_report, role, labelled=labelled, usable=True))
        if not self.examples:
            print_report(self.where, self.read_report)
            raise DataError(f"{self.where}: no examples left; expected at least one")

    def keep(self, most: int) -> None:
        """Keeps at most so many of the examples, evenly spaced; before `prepare`."""
        self.examples = evenly_spaced(self.examples, most)

    def prepare(self, task: FineTuningTask) -> None:
        """Makes the columns; prints what was skipped, and what the task will repair or cannot use."""
        if not self.labelled:
            self.examples = task.codec.unlabelled(self.examples)
        self.columns = task.codec.to_tensors(self.examples, labelled=True)
        if self.labelled:
            task.check(self.examples, self.read_report)
        print_report(self.where, self.read_report)
        self.unknown = UnknownTokens(task.tokenizer, self.where)
        self.unknown.read(task.codec.texts(self.columns))


def evenly_spaced(examples: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the examples, from the first to the last."""
    numbers = np.linspace(0, len(examples) - 1, min(most, len(examples))).round().astype(int)
    return [examples[number] for number in numbers]


def print_report(where: str, read_report: ReadReport) -> None:
    """Prints a line for each reason for which examples were skipped or changed."""
    for line in read_report.lines():
        print(f"{where}: {line}")


class Evaluation:
    """Callable that evaluates the model with its current weights: returns the task's metrics and official metrics.

    Args:
        task, split: also attributes; the split is prepared for the task.
        model: built by `task.build`.
        batch_size: rows per batch.
        tune: whether the task tunes settings on these examples (`Benchmark.tune`).

    Attributes:
        predictions: of the last call; None before.
    """

    def __init__(
        self,
        task: FineTuningTask,
        model: keras.Model,
        split: Split,
        batch_size: int,
        strategy: tf.distribute.Strategy,
        *,
        tune: bool = False,
    ) -> None:
        self.task, self.split, self._tune = task, split, tune
        self._predicted, self._of_examples = task.codec.distinct(split.examples)
        same = self._predicted is split.examples
        self._columns = split.columns if same else task.codec.to_tensors(self._predicted, labelled=False)
        self._batches = task.codec.rows.batches(self._columns, batch_size)
        self._answers = DistributedPredictor(task, model, strategy, labelled=True)
        self.predictions: list[Json] | None = None

    def trace(self) -> None:
        """Does a second of work that the first call would do."""
        self._answers.trace(self._batches)

    def __call__(self) -> Metrics:
        examples = self.split.examples
        answers, metrics = self._answers(self._columns, self._batches)
        # A run or a search continues after an evaluation of a diverged model, and its metrics show that.
        found = self.task.codec.predictions(self._predicted, answers, finite=not self._tune)
        self.predictions = predictions = self._of_examples(found)
        if self._tune:
            self.task.benchmark.tune(examples, predictions)
        return metrics | self.task.benchmark.official_metrics(examples, predictions)


def predictor(
    task: FineTuningTask, model: keras.Model, strategy: tf.distribute.Strategy
) -> Callable[[Iterable[Any], int], Iterator[tuple[Any, Json]]]:
    """Returns a function that predicts for a stream of examples, in order and with constant memory; traced only once.

    Args:
        task, model, strategy: as for `Evaluation`.

    Returns:
        Function from examples, labelled or not, and a batch size to an iterator over (example, its prediction,
        JSON-ready).
    """
    answers = DistributedPredictor(task, model, strategy, labelled=False)
    unknown = UnknownTokens(task.tokenizer)

    def predict(examples: Iterable[Any], batch_size: int) -> Iterator[tuple[Any, Json]]:
        for chunk in task.codec.chunks(examples, _CHUNK):
            columns = task.codec.to_tensors(chunk, labelled=False)
            unknown.read(task.codec.texts(columns))
            answered, _ = answers(columns, task.codec.rows.batches(columns, batch_size))
            yield from zip(chunk, task.codec.predictions(chunk, answered), strict=True)

    return predict


def _computed(
    compute: Callable[[Tensors], Any], batches: tf.data.Dataset, strategy: tf.distribute.Strategy
) -> Iterator[tuple[Tensors, Any]]:
    """(features, compute(features)) of the parts of each batch, in order; `parallel_parts` are computed at once."""
    count = parallel_parts(strategy)
    waiting: collections.deque[tuple[Tensors, Any]] = collections.deque()
    most = 0  # the first part alone, because it may be traced
    with memory_errors(_SMALLER), concurrent.futures.ThreadPoolExecutor(count) as pool:
        for part in (part for features in batches.with_options(without_tuning()) for part in _parts(features, count)):
            waiting.append((part, pool.submit(compute, part)))
            if len(waiting) > most:
                part, future = waiting.popleft()
                yield part, future.result()
            most = count
        for part, future in waiting:
            yield part, future.result()


def _parts(features: Tensors, count: int) -> Sequence[Tensors]:
    """Cuts a batch into `count` parts, fewer if it has fewer rows."""
    count = min(count, next(iter(features.values())).shape[0])
    return [microbatch(features, index, count) for index in range(count)] if count > 1 else [features]


def _split(strategy: tf.distribute.Strategy, compute: Callable[[Tensors], Any], features: Tensors) -> Sequence[Any]:
    """Splits a batch over the replicas of this process, and returns what each of them computes."""
    replicas = len(devices_of(strategy)) or 1

    def part(context: tf.distribute.ReplicaContext) -> Tensors:
        return microbatch(features, context.replica_id_in_sync_group % replicas, replicas)

    results = strategy.run(compute, (strategy.experimental_distribute_values_from_function(part),))
    local = [strategy.experimental_local_results(value) for value in tf.nest.flatten(results)]
    return [tf.nest.pack_sequence_as(results, values) for values in zip(*local, strict=True)]


def _loss_and_metrics(objective: Objective, names: Sequence[str], features: Tensors, outputs: Tensors) -> tf.Tensor:
    """float32 [names, 2]: the (sum, weight) of each."""
    metrics = objective.loss_and_metrics(features, outputs) if names else {}
    return tf.reshape([metrics[name] for name in names], [len(names), 2])


def _concatenate(arrays: Sequence[Array]) -> Array:
    """Concatenates arrays [rows, ...]; where other dimensions differ, pads them with 0."""
    shape = np.max([array.shape[1:] for array in arrays], 0).astype(int) if arrays[0].ndim > 1 else []
    whole = np.zeros([sum(map(len, arrays)), *shape], arrays[0].dtype)
    first = 0
    for array in arrays:
        whole[(slice(first, first + len(array)), *map(slice, array.shape[1:]))] = array
        first += len(array)
    return whole
