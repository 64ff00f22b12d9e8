"""Metrics of classification, multi-label classification and regression: accuracy, F1, correlations."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
import sklearn.metrics

from bert_tf.errors import DataError
from bert_tf.metrics import bootstrap
from bert_tf.metrics.checks import Values, check_lengths, numbers
from bert_tf.metrics.counts import precision_recall_f1
from bert_tf.types import Array, Metrics


class ClassCounts(NamedTuple):
    """Counts per class, from which all metrics of classes are computed, for one set of examples or many resamples.

    Attributes:
        classes: the ids or names.
        right: int [..., classes], number of correctly predicted examples of the class.
        labels: int [..., classes], number of examples of the class.
        predictions: int [..., classes], number of examples predicted as the class.
    """

    classes: Sequence[Any]
    right: Array
    labels: Array
    predictions: Array

    def accuracy(self) -> Array:
        """Share of correct predictions: [...]."""
        return self.right.sum(-1) / self.labels.sum(-1)

    def f1(self) -> Array:
        """F1 of each class: [..., classes]; 0 for a class that is neither a label nor predicted."""
        return precision_recall_f1(self.right, self.predictions, self.labels)[2]

    def f1_of(self, positive: Any) -> Array:
        """F1 of one class: [...]; 0 for a class that is not in `classes`."""
        if positive not in self.classes:
            return np.zeros(self.right.shape[:-1])
        return self.f1()[..., self.classes.index(positive)]

    def macro_f1(self) -> Array:
        """Mean of `f1` over the classes that are a label or predicted: [...]."""
        return self.f1().sum(-1) / (self.labels + self.predictions > 0).sum(-1)

    def matthews(self) -> Array:
        """Matthews correlation coefficient for any number of classes (Gorodkin, 2004, equation 8): [...]."""
        examples = self.labels.sum(-1)
        spread = [examples**2 - (counts**2).sum(-1) for counts in (self.labels, self.predictions)]
        covariance = self.right.sum(-1) * examples - (self.labels * self.predictions).sum(-1)
        # Roots first: the product of two such squares would overflow int64.
        scale = np.sqrt(spread[0]) * np.sqrt(spread[1])
        return np.where(scale > 0, covariance / np.where(scale > 0, scale, 1.0), 0.0)

    def scope(self, outside: Any) -> dict[str, Array]:
        """Metrics of the function `scope`: [...] each."""
        inside = np.array([name != outside for name in self.classes])
        return {
            name: self.right[..., mask].sum(-1) / np.maximum(self.labels[..., mask].sum(-1), 1)
            for name, mask in (("in_scope_accuracy", inside), ("out_of_scope_recall", ~inside))
        }


def count_classes(labels: Values, predictions: Values) -> ClassCounts:
    """Counts labels and predictions per class.

    Args:
        labels: [examples], class ids (integers or bool) or names (str).
        predictions: [examples], ids or names like the labels.

    Returns:
        ClassCounts of [classes].
    """
    labels, predictions = _classes(labels, predictions)
    classes, ids = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    label_ids, prediction_ids = np.split(ids, 2)
    columns = _class_columns(label_ids, prediction_ids, len(classes))
    return _class_counts(classes.tolist(), *(np.bincount(column, minlength=len(classes) + 1) for column in columns))


def class_intervals(
    metric: Callable[[ClassCounts], Mapping[str, Array]], classes: Sequence[Any], labels: Array, predictions: Array
) -> dict[str, tuple[float, float]]:
    """95% bootstrap intervals of metrics of classes.

    Args:
        metric: maps ClassCounts of [resamples, classes] to a dict of [resamples].
        classes: the ids or names.
        labels: int [examples], indices into `classes`.
        predictions: int [examples], indices into `classes`.

    Returns:
        dict name -> (low, high).
    """
    columns = _class_columns(labels, predictions, len(classes))
    return bootstrap.intervals_of_counts(
        lambda *counts: metric(_class_counts(classes, *counts)), columns, [len(classes) + 1] * 3
    )


def _class_columns(labels: Array, predictions: Array, size: int) -> tuple[Array, Array, Array]:
    """int [examples] each, to be counted: the class if correct, else `size`; the label; the prediction."""
    return np.where(labels == predictions, labels, size), labels, predictions


def _class_counts(classes: Sequence[Any], right: Array, labels: Array, predictions: Array) -> ClassCounts:
    """ClassCounts from counts of `_class_columns`, [..., classes + 1]; the last one, of errors, is dropped."""
    return ClassCounts(classes, right[..., :-1], labels[..., :-1], predictions[..., :-1])


def accuracy(labels: Values, predictions: Values) -> Metrics:
    """Computes "accuracy", the share of correct predictions. Args as for `count_classes`."""
    return {"accuracy": float(count_classes(labels, predictions).accuracy())}


def binary_f1(labels: Values, predictions: Values, positive: Any = 1) -> Metrics:
    """Computes "f1" of the class `positive`; 0 if it is neither a label nor predicted. Args as for `count_classes`."""
    return {"f1": float(count_classes(labels, predictions).f1_of(positive))}


def macro_f1(labels: Values, predictions: Values) -> Metrics:
    """Computes "macro_f1", the mean F1 of the classes that are a label or predicted. Args as for `count_classes`."""
    return {"macro_f1": float(count_classes(labels, predictions).macro_f1())}


def scope(labels: Values, predictions: Values, outside: Any) -> Metrics:
    """Computes the metrics of CLINC150 for classifiers with an out-of-scope class (Larson et al., 2019, section 4).

    Args:
        labels, predictions: as for `count_classes`.
        outside: the out-of-scope class.

    Returns:
        dict: "in_scope_accuracy", share of correct predictions among in-scope queries; "out_of_scope_recall", share
        of out-of-scope queries predicted as `outside`. Each is 0 if there is no such query.
    """
    return {name: float(share) for name, share in count_classes(labels, predictions).scope(outside).items()}


def matthews(labels: Values, predictions: Values) -> Metrics:
    """Computes "matthews", the Matthews correlation coefficient for two or more classes, from -1 to 1.

    It is 0 if all labels or all predictions are of one class. Args as for `count_classes`.
    """
    return {"matthews": float(count_classes(labels, predictions).matthews())}


def correlations(labels: Values, predictions: Values) -> Metrics:
    """Computes Pearson's and Spearman's correlation coefficients.

    Args:
        labels: float [examples], at least two.
        predictions: float [examples].

    Returns:
        dict: "pearson", "spearman", from -1 to 1; 0 if all labels or all predictions are equal: a model with a
        constant output has learned nothing.
    """
    if check_lengths(labels=labels, predictions=predictions) < 2:
        raise DataError("one example has no correlation; expected at least two")
    labels, predictions = numbers(labels, "label"), numbers(predictions, "prediction")
    if not np.ptp(labels) or not np.ptp(predictions):
        return {"pearson": 0.0, "spearman": 0.0}
    with warnings.catch_warnings():
        # For nearly equal predictions the coefficient is noise, but a number.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        pearson = scipy.stats.pearsonr(labels, predictions).statistic
    return {"pearson": float(pearson), "spearman": float(scipy.stats.spearmanr(labels, predictions).statistic)}


def correlations_of_resamples(labels: Values, predictions: Values) -> Callable[[Array], dict[str, Array]]:
    """Computes `correlations` of many resamples of the examples at once.

    Args:
        labels, predictions: as for `correlations`.

    Returns:
        function of int [resamples, examples], the count of each example, to a dict of "pearson" and "spearman",
        [resamples].
    """
    check_lengths(labels=labels, predictions=predictions)
    labels, predictions = numbers(labels, "label"), numbers(predictions, "prediction")
    rankings = _ranking(labels), _ranking(predictions)

    def metric(counts: Array) -> dict[str, Array]:
        counts = counts.astype(np.float64)
        spearman, varies = _correlation(counts, *(ranks(counts) for ranks in rankings))
        pearson, _ = _correlation(counts, labels, predictions)
        # Ranks are exact: only they distinguish equal values from values that differ by rounding.
        return {"pearson": np.where(varies, pearson, 0.0), "spearman": np.where(varies, spearman, 0.0)}

    return metric


def _ranking(values: Array) -> Callable[[Array], Array]:
    """A function of counts [resamples, examples] to ranks of the drawn values, the same shape; ties share a rank."""
    order = np.argsort(values)
    _, starts = np.unique(values[order], return_index=True)
    _, group = np.unique(values, return_inverse=True)

    def ranks(counts: Array) -> Array:
        drawn = np.add.reduceat(counts[:, order], starts, axis=1)
        return (np.cumsum(drawn, 1) - (drawn - 1) / 2)[:, group]

    return ranks


def _correlation(counts: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Pearson's coefficient of values, [examples] or [resamples, examples], with counts; and whether it is defined."""
    examples = counts.sum(1)

    def total(*factors: Array) -> Array:
        """Sum over the examples of the product of the factors, for each resample."""
        return np.einsum(f"de,{','.join('de' if factor.ndim == 2 else 'e' for factor in factors)}->d", counts, *factors)

    first, second = (values - (total(values) / examples)[:, np.newaxis] for values in (first, second))
    spread = np.sqrt(total(first, first)) * np.sqrt(total(second, second))
    return np.clip(total(first, second) / np.where(spread > 0, spread, 1.0), -1.0, 1.0), spread > 0


def multi_label(labels: Values, predictions: Values) -> Metrics:
    """Computes the metrics of multi-label classification.

    Args:
        labels: bool or 0 and 1, [examples, labels].
        predictions: the same shape.

    Returns:
        dict: "micro_f1", over all decisions; "macro_f1", mean over the labels, where a label that neither occurs nor
        is predicted counts as 0; "exact_match", share of examples with all labels correct.
    """
    check_lengths(labels=labels, predictions=predictions)
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.ndim != 2 or labels.shape != predictions.shape:
        raise DataError(f"labels {labels.shape}, predictions {predictions.shape}; expected both [examples, labels]")
    for values, what in ((labels, "labels"), (predictions, "predictions")):
        if not np.isin(values, (0, 1)).all():
            raise DataError(f"{what} hold {values[~np.isin(values, (0, 1))][0]}; expected 0 and 1, one for each label")
    labels, predictions = labels.astype(bool), predictions.astype(bool)
    # scikit-learn would interpret a matrix with one column as classes.
    micro = sklearn.metrics.f1_score(labels.ravel(), predictions.ravel(), zero_division=0)
    columns = zip(labels.T, predictions.T, strict=True)
    per_label = [sklearn.metrics.f1_score(true, predicted, zero_division=0) for true, predicted in columns]
    exact = (labels == predictions).all(1).mean()
    return {"micro_f1": float(micro), "macro_f1": float(np.mean(per_label)), "exact_match": float(exact)}


def _classes(labels: Values, predictions: Values) -> tuple[Array, Array]:
    """Both as arrays of ids or both of names: "1" never equals 1, so that a mixture would look like errors only."""
    check_lengths(labels=labels, predictions=predictions)
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    kinds = [
        {"b": "ids", "i": "ids", "u": "ids", "U": "names"}.get(values.dtype.kind) for values in (labels, predictions)
    ]
    if None in kinds or kinds[0] != kinds[1] or (labels.ndim, predictions.ndim) != (1, 1):
        types = " and ".join(f"{values.dtype} {values.shape}" for values in (labels, predictions))
        raise DataError(f"labels and predictions are {types}; expected class ids or names, [examples], in both")
    return labels, predictions
