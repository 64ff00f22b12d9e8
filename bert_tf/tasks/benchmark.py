"""The benchmark of a task: how its predictions are judged, and what a report shows of them."""

import abc
import functools
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Scale, TextExample
from bert_tf.inputs.datasets.formats import GLUE
from bert_tf.metrics.glue import GLUE_SETS, check_submission, sets_of
from bert_tf.metrics.statistics import bootstrap_intervals
from bert_tf.tasks.codec import Codec
from bert_tf.types import Array, Json, Metrics, Writer

_Codec = TypeVar("_Codec", bound=Codec)
# At most this many examples of each kind: nobody reads more.
LISTED = 50


class ErrorExample(NamedTuple):
    """An example and the model's answer to it.

    Attributes:
        texts: the model's input as one text or several, readable.
        expected: the correct answer.
        answered: the model's answer.
        location: of the example, e.g. "file:line".
        confidence: of the model in its answer, from 0 to 1; None if the task has none.
    """

    texts: tuple[str, ...]
    expected: str
    answered: str
    location: str
    confidence: float | None = None


class Table(NamedTuple):
    """Metrics by group, such as one row per entity type.

    Attributes:
        title: heading of the table.
        header: names of the columns; the first is for the names of the rows.
        rows: (name, value, ...) each; floats are fractions of 1, ints are counts.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


class Confusion(NamedTuple):
    """Confusion matrix.

    Attributes:
        labels: names of the classes.
        counts: int [labels, labels]: examples by true class (row) and predicted class (column).
    """

    labels: Sequence[str]
    counts: Array


class ErrorAnalysis(NamedTuple):
    """What a report shows of a task's predictions; it leaves out empty parts.

    Attributes:
        intervals: name of a metric -> (low, high), its 95% bootstrap interval (`metrics.statistics`).
        confusion: for a task with classes.
        table: for a task with metrics by group.
        confidences: of the model in each answer, from 0 to 1; with multi-label tasks, in each label's decision.
        correct: whether each of these answers was correct.
        errors: the worst errors, worst first: the most confident ones, if there are confidences; up to `LISTED`.
        examples: answers worth showing, right or wrong; up to `LISTED`.
    """

    intervals: Mapping[str, tuple[float, float]] = {}
    confusion: Confusion | None = None
    table: Table | None = None
    confidences: Sequence[float] | Array = ()
    correct: Sequence[bool] | Array = ()
    errors: Sequence[ErrorExample] = ()
    examples: Sequence[ErrorExample] = ()


class Benchmark(abc.ABC, Generic[_Codec]):
    """Official metrics of predictions, and what a report shows of them.

    Args:
        codec: of the task.
        metrics: name of the data set's metrics, as in its row of `inputs.datasets.formats.FORMATS`; "" for usual ones.

    Attributes:
        monitor: name of the metric that selects the best checkpoint.
        mode: "max" if a higher `monitor` is better, else "min".
    """

    monitor: str
    mode: str = "max"

    def __init__(self, codec: _Codec, metrics: str) -> None:
        self.codec, self.metrics = codec, metrics

    @abc.abstractmethod
    def official_metrics(self, examples: list[Any], predictions: list[Json]) -> Metrics:
        """The task's official metrics, `monitor` among them.

        Args:
            examples: labelled.
            predictions: as the codec's `predictions` returns.
        """

    @abc.abstractmethod
    def baseline(self, examples: list[Any]) -> Metrics:
        """`official_metrics` of predictions made without reading, usually the most frequent label for all."""

    def tune(self, examples: list[Any], predictions: list[Json]) -> None:
        """Fits state on the validation set that is saved with the model, such as a threshold. Default: nothing.

        Fine-tuning calls it after each evaluation's predictions and before their metrics; `evaluate` never does.

        Args:
            examples, predictions: as for `official_metrics`.
        """

    def error_analysis(self, examples: list[Any], predictions: list[Json]) -> ErrorAnalysis:
        """What the report shows besides metrics and baseline. Default: nothing, and the report leaves it out.

        The names of its intervals must be those of `official_metrics`. `bootstrap_intervals` computes them.

        Args:
            examples, predictions: as for `official_metrics`.
        """
        return ErrorAnalysis()

    def writers(self) -> dict[str, Writer]:
        """Files for the data set's leaderboard or official script, as the codec's `writers`. Default: none."""
        return {}


def analysis_of_choices(
    metrics: Callable[[Array, Array], Metrics],
    gold: Array,
    predicted: Array,
    confidences: Array,
    describe: Callable[[int], tuple[tuple[str, ...], str, str, str]],
) -> ErrorAnalysis:
    """Analyses a choice per example, such as that of a class.

    Args:
        metrics: function of `gold` and `predicted`.
        gold, predicted: int [examples], the right and the predicted choice.
        confidences: float [examples], of the model in its choices.
        describe: maps the index of an example to its fields in ErrorExample up to `location`.
    """
    correct = gold == predicted
    wrong = np.flatnonzero(~correct)
    surest = wrong[np.argsort(-confidences[wrong], kind="stable")][:LISTED]  # ties in their order
    return ErrorAnalysis(
        intervals=bootstrap_intervals(metrics, gold, predicted),
        confidences=confidences.tolist(),
        correct=correct.tolist(),
        errors=[ErrorExample(*describe(index), float(confidences[index])) for index in surest],
    )


def submission_writers(metrics: str) -> dict[str, Writer]:
    """The writer of .zip for a task of GLUE; none for other data.

    Args:
        metrics: as for `tasks.benchmark.Benchmark`.
    """
    family, _, task = metrics.partition("/")
    return {".zip": functools.partial(write_submission, task)} if family == "glue" else {}


def write_submission(task: str, path: str, predicted: Iterable[tuple[TextExample, Json]]) -> str:
    """Writes one test set into the zip for GLUE's leaderboard (gluebenchmark.com/faq): one table per test set.

    A previous table of that test set is replaced; other files stay. For MNLI, the number of rows tells
    the matched, mismatched and AX test sets apart.

    Args:
        task: a key of `inputs.datasets.formats.GLUE`.
        path: zip file, which may exist; an empty file counts as a new one.
        predicted: the whole test set as (example, prediction) pairs; the example's id is its index in the set.

    Returns:
        A line that lists the files that the zip still lacks.
    """
    is_scale = isinstance(GLUE[task].labels, Scale)
    answers: dict[int, str | float] = {}
    for example, prediction in predicted:
        if not example.id.isdecimal():
            raise DataError(
                f"{example.location}: the index is {example.id!r}; expected a number, as in GLUE's test files"
            )
        answers[int(example.id)] = prediction["value" if is_scale else "label"]
    sets = {GLUE_SETS[name].test_rows: name for name in sets_of(task)}
    if len(answers) not in sets:
        expected = ", ".join(f"{rows} ({GLUE_SETS[name].file})" for rows, name in sets.items())
        raise DataError(f"{len(answers)} predictions; a submission has {expected}: predict the whole test set")
    name = sets[len(answers)]
    check_submission(name, list(answers.values()))
    lines = [f"{index}\t{value:.3f}" if is_scale else f"{index}\t{value}" for index, value in sorted(answers.items())]
    written = f"{GLUE_SETS[name].file}.tsv"
    files = _zipped(path) | {written: "\n".join(["index\tprediction", *lines, ""]).encode()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in sorted(files.items()):
            archive.writestr(file, content)
    missing = [f"{one.file}.tsv" for one in GLUE_SETS.values() if f"{one.file}.tsv" not in files]
    return f"{written} written, the zip " + (f"lacks {', '.join(missing)}" if missing else "is complete")


def _zipped(path: str) -> dict[str, bytes]:
    """The files in a zip: name -> content."""
    if not (os.path.exists(path) and os.path.getsize(path)):
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise DataError(f"the file to add to is not a zip ({error}); choose another name for --output") from None
