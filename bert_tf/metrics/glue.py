"""The metrics of GLUE's tasks (Wang et al., 2019, table 1) and what its leaderboard takes (gluebenchmark.com/faq)."""

import dataclasses

import numpy as np

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.glue import GLUE
from bert_tf.inputs.datasets.labelled import Scale
from bert_tf.metrics.checks import check_names, numbers
from bert_tf.metrics.classification import correlations, count_classes


@dataclasses.dataclass(frozen=True)
class GlueSet:
    """One of the sets that GLUE scores.

    Attributes:
        file: name in a submission, without ".tsv" (jiant/scripts/postproc/benchmarks.py of nyu-mll/jiant).
        test_rows: of the test set (huggingface/datasets, datasets/glue/README.md, counted from the files).
        metrics: of its classes, names in `_METRICS`; of STS-B the correlations.
        task: whose models answer it, a key of `inputs.datasets.glue.GLUE`.
    """

    file: str
    test_rows: int
    metrics: tuple
    task: str

    @property
    def labels(self):
        """The classes as the files and a submission write them; of STS-B a Scale."""
        return GLUE[self.task].labels


# Functions of ClassCounts.
_METRICS = {
    "matthews": lambda counts: counts.matthews(),
    "accuracy": lambda counts: counts.accuracy(),
    "f1": lambda counts: counts.f1_of("1"),
}
# By the names that TFDS has for them.
GLUE_SETS = {
    "cola": GlueSet("CoLA", 1063, ("matthews",), "cola"),
    "sst2": GlueSet("SST-2", 1821, ("accuracy",), "sst2"),
    "mrpc": GlueSet("MRPC", 1725, ("accuracy", "f1"), "mrpc"),
    "stsb": GlueSet("STS-B", 1379, ("pearson", "spearman"), "stsb"),
    "qqp": GlueSet("QQP", 390965, ("accuracy", "f1"), "qqp"),
    "mnli_matched": GlueSet("MNLI-m", 9796, ("accuracy",), "mnli"),
    "mnli_mismatched": GlueSet("MNLI-mm", 9847, ("accuracy",), "mnli"),
    "qnli": GlueSet("QNLI", 5463, ("accuracy",), "qnli"),
    "rte": GlueSet("RTE", 3000, ("accuracy",), "rte"),
    "wnli": GlueSet("WNLI", 146, ("accuracy",), "wnli"),
    "ax": GlueSet("AX", 1104, ("matthews",), "mnli"),
}


def glue_scores(name, labels, predictions):
    """The metrics of a GLUE task.

    Args:
        name: one of `GLUE_SETS`.
        labels: [examples], str from the set's labels; float for STS-B.
        predictions: the same.

    Returns:
        dict of "matthews", "accuracy", "f1" (of class "1"), "pearson" and "spearman" what the task has; and "score",
        their mean, which is what the leaderboard averages over the tasks.

    Raises:
        ConfigError: unknown name.
        DataError: no examples, lengths that differ, an unknown label.
    """
    task = _set(name)
    if isinstance(task.labels, Scale):
        scores = with_score(correlations(labels, predictions))
    else:
        check_names(labels, task.labels, "label")
        check_names(predictions, task.labels, "prediction")
        scores = glue_class_scores(name, count_classes(labels, predictions))
    return {key: float(value) for key, value in scores.items()}


def glue_class_scores(name, counts):
    """The metrics of a GLUE task with classes, of one set of examples or of many resamples.

    Args:
        name: one of `GLUE_SETS`, not STS-B.
        counts: `classification.ClassCounts` of [..., classes].

    Returns:
        dict of [...], as `glue_scores`.
    """
    return with_score({metric: _METRICS[metric](counts) for metric in _set(name).metrics})


def with_score(scores):
    """A task's metrics, dict of [...], and their mean, "score"."""
    return scores | {"score": np.mean(list(scores.values()), axis=0)}


def check_submission(name, predictions):
    """Refuses predictions that are no submission for a set's leaderboard.

    Args:
        name: one of `GLUE_SETS`.
        predictions: [rows], in the order of the test file: str from the set's labels; float for STS-B.

    Raises:
        ConfigError: unknown name.
        DataError: another number of rows than the test set has, an unknown label, a number beyond 0 to 5.
    """
    task = _set(name)
    if len(predictions) != task.test_rows:
        expected = f"expected {task.test_rows}: predict the whole test set"
        raise DataError(f"{len(predictions)} predictions for the test set of {task.file}; {expected}")
    if not isinstance(task.labels, Scale):
        check_names(predictions, task.labels, "prediction")
        return
    low, high = task.labels
    beyond = [value for value in numbers(predictions, "prediction") if not low <= value <= high]
    if beyond:
        scale = f"from {low:g} to {high:g}, the scale of {task.file}"
        raise DataError(f"{len(beyond)} predictions such as {beyond[0]} are not {scale}; clip them")


def sets_of(task):
    """Names of the sets that a task's data may be: of MNLI three, as its models answer AX too, else one.

    Args:
        task: a key of `inputs.datasets.glue.GLUE`.
    """
    return tuple(name for name, one in GLUE_SETS.items() if task in (one.task, name))


def _set(name):
    if name not in GLUE_SETS:
        raise ConfigError(f"unknown GLUE task {name!r}; expected one of {', '.join(GLUE_SETS)}")
    return GLUE_SETS[name]
