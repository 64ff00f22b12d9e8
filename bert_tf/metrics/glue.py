"""Metrics of GLUE's tasks (Wang et al., 2019, table 1) and checks of submissions (gluebenchmark.com/faq)."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import Scale
from bert_tf.inputs.datasets.formats import GLUE
from bert_tf.metrics.accuracy_and_f1 import accuracy, binary_f1, correlations, matthews
from bert_tf.metrics.checks import Values, check_names
from bert_tf.types import Metrics


@dataclasses.dataclass(frozen=True)
class GlueSet:
    """A test set of GLUE.

    Attributes:
        file: name in a submission, without ".tsv" (jiant/scripts/postproc/benchmarks.py of nyu-mll/jiant).
        test_rows: size of the test set (huggingface/datasets, datasets/glue/README.md, counted from the files).
        metrics: names in `_METRICS`.
        task: key of `inputs.datasets.formats.GLUE` for the training data of its models.
    """

    file: str
    test_rows: int
    metrics: tuple[str, ...]
    task: str

    @property
    def labels(self) -> tuple[str, ...] | Scale:
        """The classes as in the files and in a submission; for STS-B a Scale."""
        return GLUE[self.task].labels


_METRICS: dict[str, Callable[[Values, Values], Metrics]] = {
    "matthews": matthews,
    "accuracy": accuracy,
    "f1": functools.partial(binary_f1, positive="1"),
    "correlations": correlations,
}
# Keys are TFDS' names.
GLUE_SETS = {
    "cola": GlueSet("CoLA", 1063, ("matthews",), "cola"),
    "sst2": GlueSet("SST-2", 1821, ("accuracy",), "sst2"),
    "mrpc": GlueSet("MRPC", 1725, ("accuracy", "f1"), "mrpc"),
    "stsb": GlueSet("STS-B", 1379, ("correlations",), "stsb"),
    "qqp": GlueSet("QQP", 390965, ("accuracy", "f1"), "qqp"),
    "mnli_matched": GlueSet("MNLI-m", 9796, ("accuracy",), "mnli"),
    "mnli_mismatched": GlueSet("MNLI-mm", 9847, ("accuracy",), "mnli"),
    "qnli": GlueSet("QNLI", 5463, ("accuracy",), "qnli"),
    "rte": GlueSet("RTE", 3000, ("accuracy",), "rte"),
    "wnli": GlueSet("WNLI", 146, ("accuracy",), "wnli"),
    "ax": GlueSet("AX", 1104, ("matthews",), "mnli"),
}


def glue_scores(name: str, labels: Values, predictions: Values) -> Metrics:
    """Computes the metrics of a GLUE task.

    Args:
        name: one of `GLUE_SETS`.
        labels: [examples], str from the set's labels; float for STS-B.
        predictions: the same.

    Returns:
        dict: the task's metrics among "matthews", "accuracy", "f1" (of class "1"), "pearson" and "spearman"; and
        "score", their mean, which the leaderboard averages over the tasks.
    """
    task = _set(name)
    if not isinstance(task.labels, Scale):
        check_names(labels, task.labels, "label")
        check_names(predictions, task.labels, "prediction")
    scores: Metrics = {}
    for metric in task.metrics:
        scores |= _METRICS[metric](labels, predictions)
    return scores | {"score": float(np.mean(list(scores.values())))}


def check_submission(name: str, predictions: Values) -> None:
    """Raises DataError for predictions that the leaderboard would not accept: their number, or a label or value.

    Args:
        name: one of `GLUE_SETS`.
        predictions: [rows], in the order of the test file: str from the set's labels; float for STS-B.
    """
    task = _set(name)
    if len(predictions) != task.test_rows:
        expected = f"expected {task.test_rows}: predict the whole test set"
        raise DataError(f"{len(predictions)} predictions for the test set of {task.file}; {expected}")
    if not isinstance(task.labels, Scale):
        check_names(predictions, task.labels, "prediction")
        return
    low, high = task.labels
    outside = [value for value in predictions if not low <= value <= high]
    if outside:
        scale = f"from {low:g} to {high:g}, the scale of {task.file}"
        raise DataError(f"{len(outside)} predictions such as {outside[0]} are not {scale}; clip them")


def sets_of(task: str) -> tuple[str, ...]:
    """Returns the names of a task's test sets: three for MNLI, whose models also predict AX, one for other tasks.

    Args:
        task: a key of `inputs.datasets.formats.GLUE`.
    """
    return tuple(name for name, glue_set in GLUE_SETS.items() if task in (glue_set.task, name))


def _set(name: str) -> GlueSet:
    if name not in GLUE_SETS:
        raise ConfigError(f"unknown GLUE task {name!r}; expected one of {', '.join(GLUE_SETS)}")
    return GLUE_SETS[name]
