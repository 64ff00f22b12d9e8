"""Accuracy, F1, correlations: of classes, of several labels an example, of numbers."""

import warnings
from typing import NamedTuple

import numpy as np
import scipy.stats
import sklearn.metrics

from bert_tf.errors import DataError
from bert_tf.metrics import bootstrap
from bert_tf.metrics.checks import check_lengths, numbers
from bert_tf.metrics.counts import precision_recall_f1


class ClassCounts(NamedTuple):
    """How often each class comes: all that the scores of classes are made of, of one set of examples or of many resamples.

    Attributes:
        classes: list of the ids or names.
        right: int [..., classes], examples of the class for which it is predicted.
        labels: int [..., classes], examples of the class.
        predictions: int [..., classes], examples for which it is predicted.
    """

    classes: list
    right: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray

    def accuracy(self):
        """Share of examples that are right: [...]."""
        return self.right.sum(-1) / self.labels.sum(-1)

    def f1(self):
        """F1 of each class: [..., classes]; 0 for one that is neither a label nor predicted."""
        return precision_recall_f1(self.right, self.predictions, self.labels)[2]

    def f1_of(self, positive):
        """F1 of one class: [...]; also of one that is not in `classes`."""
        if positive not in self.classes:
            return np.zeros(self.right.shape[:-1])
        return self.f1()[..., self.classes.index(positive)]

    def macro_f1(self):
        """Mean of `f1` over the classes that are a label or predicted: [...]."""
        return self.f1().sum(-1) / (self.labels + self.predictions > 0).sum(-1)

    def matthews(self):
        """Matthews' correlation coefficient, of any number of classes (Gorodkin, 2004, equation 8): [...]."""
        examples = self.labels.sum(-1)
        spread = [examples**2 - (counts**2).sum(-1) for counts in (self.labels, self.predictions)]
        covariance = self.right.sum(-1) * examples - (self.labels * self.predictions).sum(-1)
        # Roots first: the product of two such squares would be beyond int64.
        scale = np.sqrt(spread[0]) * np.sqrt(spread[1])
        return np.where(scale > 0, covariance / np.where(scale > 0, scale, 1.0), 0.0)

    def scope(self, outside):
        """dict of [...], as the function `scope`."""
        inside = np.array([name != outside for name in self.classes])
        return {
            name: self.right[..., some].sum(-1) / np.maximum(self.labels[..., some].sum(-1), 1)
            for name, some in (("in_scope_accuracy", inside), ("out_of_scope_recall", ~inside))
        }


def count_classes(labels, predictions):
    """Counts the classes.

    Args:
        labels: [examples], class ids (integers or bool) or names (str).
        predictions: [examples], of the same kind.

    Returns:
        ClassCounts of [classes].

    Raises:
        DataError: no examples, lengths that differ, or ids for names.
    """
    labels, predictions = _classes(labels, predictions)
    classes, ids = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    columns = _class_columns(*np.split(ids, 2), len(classes))
    return _class_counts(classes.tolist(), *(np.bincount(column, minlength=len(classes) + 1) for column in columns))


def class_intervals(metric, classes, labels, predictions):
    """95% bootstrap intervals of scores of classes.

    Args:
        metric: function of ClassCounts of [resamples, classes] to a dict of [resamples].
        classes: list of the ids or names.
        labels, predictions: int [examples], places in `classes`.

    Returns:
        dict name -> (low, high).

    Raises:
        DataError: no examples, or lengths that differ.
    """
    columns = _class_columns(labels, predictions, len(classes))
    return bootstrap.intervals_of_counts(
        lambda *counts: metric(_class_counts(classes, *counts)), columns, [len(classes) + 1] * 3
    )


def _class_columns(labels, predictions, size):
    """What `_class_counts` takes the counts of, int [examples] each: the class that is right, the label, the answer."""
    return np.where(labels == predictions, labels, size), labels, predictions


def _class_counts(classes, *counts):
    """ClassCounts of counts [..., classes + 1], the last of which says how many are wrong, or nothing."""
    return ClassCounts(classes, *(some[..., :-1] for some in counts))


def accuracy(labels, predictions):
    """Share of examples that are right.

    Args:
        labels, predictions: as for `count_classes`.

    Returns:
        dict: "accuracy".

    Raises:
        DataError: as `count_classes`.
    """
    return {"accuracy": float(count_classes(labels, predictions).accuracy())}


def binary_f1(labels, predictions, positive=1):
    """F1 of one class.

    Args:
        labels, predictions: as for `count_classes`.
        positive: the class.

    Returns:
        dict: "f1"; 0 where the class is neither a label nor predicted.

    Raises:
        DataError: as `count_classes`.
    """
    return {"f1": float(count_classes(labels, predictions).f1_of(positive))}


def macro_f1(labels, predictions):
    """Mean over classes of their F1.

    Args:
        labels, predictions: as for `count_classes`.

    Returns:
        dict: "macro_f1", over the classes that are a label or predicted.

    Raises:
        DataError: as `count_classes`.
    """
    return {"macro_f1": float(count_classes(labels, predictions).macro_f1())}


def scope(labels, predictions, outside):
    """What the paper of CLINC150 reports of a classifier that can say "none of these" (Larson et al., 2019, section 4).

    Args:
        labels, predictions: as for `count_classes`.
        outside: the class of queries that belong to no other.

    Returns:
        dict: "in_scope_accuracy", share of the queries that belong to a class for which this class was found;
        "out_of_scope_recall", share of the others for which `outside` was. Each is 0 where there is no such query.

    Raises:
        DataError: as `count_classes`.
    """
    return {name: float(share) for name, share in count_classes(labels, predictions).scope(outside).items()}


def matthews(labels, predictions):
    """Matthews' correlation coefficient, of two or more classes.

    Args:
        labels, predictions: as for `count_classes`.

    Returns:
        dict: "matthews", from -1 to 1; 0 where all labels or all predictions are of one class.

    Raises:
        DataError: as `count_classes`.
    """
    return {"matthews": float(count_classes(labels, predictions).matthews())}


def correlations(labels, predictions):
    """Pearson's and Spearman's correlation coefficient.

    Args:
        labels: float [examples].
        predictions: float [examples].

    Returns:
        dict: "pearson", "spearman", from -1 to 1; 0 where all labels or all predictions are equal: a model that always
        says the same has learned nothing.

    Raises:
        DataError: fewer than two examples, lengths that differ, or a number that is not finite.
    """
    if check_lengths(labels=labels, predictions=predictions) < 2:
        raise DataError("one example has no correlation; expected at least two")
    labels, predictions = numbers(labels, "label"), numbers(predictions, "prediction")
    if not np.ptp(labels) or not np.ptp(predictions):
        return {"pearson": 0.0, "spearman": 0.0}
    with warnings.catch_warnings():
        # Nearly equal predictions: the coefficient is noise, but a number.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        pearson = scipy.stats.pearsonr(labels, predictions).statistic
    return {"pearson": float(pearson), "spearman": float(scipy.stats.spearmanr(labels, predictions).statistic)}


def correlations_of_resamples(labels, predictions):
    """`correlations` of examples that are drawn again and again, of all resamples at once.

    Args:
        labels, predictions: as for `correlations`.

    Returns:
        function of int [resamples, examples], how often each example is drawn, to a dict of "pearson" and "spearman",
        [resamples].

    Raises:
        DataError: as `correlations`.
    """
    check_lengths(labels=labels, predictions=predictions)
    labels, predictions = numbers(labels, "label"), numbers(predictions, "prediction")
    rankings = _ranking(labels), _ranking(predictions)

    def measure(counts):
        counts = counts.astype(np.float64)
        spearman, spread = _correlation(counts, *(ranks(counts) for ranks in rankings))
        pearson, _ = _correlation(counts, labels, predictions)
        # Ranks are exact: their spread alone tells equal values from those that rounding makes differ.
        return {"pearson": np.where(spread, pearson, 0.0), "spearman": np.where(spread, spearman, 0.0)}

    return measure


def _ranking(values):
    """A function of counts [resamples, examples] to ranks of the drawn values, the same shape; equal ones share theirs."""
    order = np.argsort(values)
    _, starts = np.unique(values[order], return_index=True)
    _, group = np.unique(values, return_inverse=True)

    def ranks(counts):
        drawn = np.add.reduceat(counts[:, order], starts, axis=1)
        return (np.cumsum(drawn, 1) - (drawn - 1) / 2)[:, group]

    return ranks


def _correlation(counts, one, other):
    """Pearson's coefficient of values, [examples] or [resamples, examples], drawn so often; and whether there is one."""
    examples = counts.sum(1)

    def mean(*factors):
        return np.einsum(f"de,{','.join('de' if factor.ndim == 2 else 'e' for factor in factors)}->d", counts, *factors)

    one, other = (values - (mean(values) / examples)[:, np.newaxis] for values in (one, other))
    spread = np.sqrt(mean(one, one)) * np.sqrt(mean(other, other))
    return np.clip(mean(one, other) / np.where(spread > 0, spread, 1.0), -1.0, 1.0), spread > 0


def multi_label(labels, predictions):
    """Scores of examples that have any number of labels.

    Args:
        labels: bool or 0 and 1, [examples, labels].
        predictions: the same shape.

    Returns:
        dict: "micro_f1", over all decisions; "macro_f1", mean over the labels, of which those that neither occur nor
        are predicted count as 0; "exact_match", share of examples with every label right.

    Raises:
        DataError: no examples, shapes that differ, or other values.
    """
    check_lengths(labels=labels, predictions=predictions)
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.ndim != 2 or labels.shape != predictions.shape:
        raise DataError(f"labels {labels.shape}, predictions {predictions.shape}; expected both [examples, labels]")
    for values, what in ((labels, "labels"), (predictions, "predictions")):
        if not np.isin(values, (0, 1)).all():
            raise DataError(f"{what} hold {values[~np.isin(values, (0, 1))][0]}; expected 0 and 1, one for each label")
    labels, predictions = labels.astype(bool), predictions.astype(bool)
    # A matrix of one column would be taken for classes.
    micro = sklearn.metrics.f1_score(labels.ravel(), predictions.ravel(), zero_division=0)
    columns = zip(labels.T, predictions.T, strict=True)
    of_labels = [sklearn.metrics.f1_score(true, found, zero_division=0) for true, found in columns]
    exact = (labels == predictions).all(1).mean()
    return {"micro_f1": float(micro), "macro_f1": float(np.mean(of_labels)), "exact_match": float(exact)}


def _classes(labels, predictions):
    """Both as arrays that can be compared: as "1" is never equal to 1, a model would seem never to be right."""
    check_lengths(labels=labels, predictions=predictions)
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    kinds = [
        {"b": "ids", "i": "ids", "u": "ids", "U": "names"}.get(values.dtype.kind) for values in (labels, predictions)
    ]
    if None in kinds or kinds[0] != kinds[1] or (labels.ndim, predictions.ndim) != (1, 1):
        found = " and ".join(f"{values.dtype} {values.shape}" for values in (labels, predictions))
        raise DataError(f"labels and predictions are {found}; expected class ids, or names, [examples] in both")
    return labels, predictions
