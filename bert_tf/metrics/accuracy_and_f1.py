"""Metrics of classification, multi-label classification and regression: accuracy, F1, correlations."""

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bert_tf.errors import DataError
from bert_tf.metrics.checks import Values, check_lengths
from bert_tf.types import Array, Metrics


def precision_recall_f1(correct: ArrayLike, predicted: ArrayLike, true: ArrayLike) -> tuple[Array, Array, Array]:
    """Computes the three metrics; each is 0 where it would be 0 / 0.

    Args:
        correct: [...], numbers of items that are predicted and true.
        predicted: [...], numbers of predicted items.
        true: [...], numbers of true items.

    Returns:
        (precision, recall, F1), float64 [...] each.
    """
    correct, predicted, true = (np.asarray(counts, np.float64) for counts in (correct, predicted, true))
    precision, recall = correct / np.maximum(predicted, 1), correct / np.maximum(true, 1)
    # The same as 2pr / (p + r), without its 0 / 0.
    return precision, recall, 2 * correct / np.maximum(predicted + true, 1)


def accuracy(labels: Values, predictions: Values) -> Metrics:
    """Computes "accuracy", the share of correct predictions.

    Args:
        labels: [examples], class ids (integers or bool) or names (str).
        predictions: [examples], ids or names like the labels.
    """
    labels, predictions = _classes(labels, predictions)
    return {"accuracy": float(np.mean(labels == predictions))}


def binary_f1(labels: Values, predictions: Values, positive: Any = 1) -> Metrics:
    """Computes "f1" of the class `positive`; 0 if it is neither a label nor predicted. Args as for `accuracy`."""
    true, predicted = (values == positive for values in _classes(labels, predictions))
    return {"f1": float(precision_recall_f1(*_counts(true, predicted))[2])}


def macro_f1(labels: Values, predictions: Values) -> Metrics:
    """Computes "macro_f1", the mean F1 of the classes that are a label or predicted. Args as for `accuracy`."""
    classes, ids = np.unique(np.stack(_classes(labels, predictions)), return_inverse=True)
    right = ids[0, ids[0] == ids[1]]
    counts = (np.bincount(column, minlength=len(classes)) for column in (right, ids[1], ids[0]))
    return {"macro_f1": float(precision_recall_f1(*counts)[2].mean())}


def scope(labels: Values, predictions: Values, outside: Any) -> Metrics:
    """Computes the metrics of CLINC150 for classifiers with an out-of-scope class (Larson et al., 2019, section 4).

    Args:
        labels, predictions: as for `accuracy`.
        outside: the out-of-scope class.

    Returns:
        dict: "in_scope_accuracy", share of correct predictions among in-scope queries; "out_of_scope_recall", share
        of out-of-scope queries predicted as `outside`. Each is 0 if there is no such query.
    """
    labels, predictions = _classes(labels, predictions)
    parts = {"in_scope_accuracy": labels != outside, "out_of_scope_recall": labels == outside}
    right = labels == predictions
    return {name: float(right[part].sum() / max(part.sum(), 1)) for name, part in parts.items()}


def matthews(labels: Values, predictions: Values) -> Metrics:
    """Computes "matthews", the Matthews correlation coefficient for two or more classes, from -1 to 1.

    It is 0 if all labels or all predictions are of one class. Args as for `accuracy`.
    """
    labels, predictions = _classes(labels, predictions)
    if len({*labels.tolist(), *predictions.tolist()}) == 1:  # scikit-learn would warn
        return {"matthews": 0.0}
    from sklearn.metrics import matthews_corrcoef  # here: it takes a second to import

    return {"matthews": float(matthews_corrcoef(labels, predictions))}


def correlations(labels: Values, predictions: Values) -> Metrics:
    """Computes Pearson's and Spearman's correlation coefficients.

    Args:
        labels: float [examples], at least two.
        predictions: float [examples].

    Returns:
        dict: "pearson", "spearman", from -1 to 1; 0 if all labels or all predictions are equal: a model with a
        constant output has learned nothing; nan if a prediction is not finite: the model has diverged.
    """
    if check_lengths(labels=labels, predictions=predictions) < 2:
        raise DataError("one example has no correlation; expected at least two")
    labels, predictions = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    if not np.isfinite(predictions).all():
        return {"pearson": math.nan, "spearman": math.nan}
    if not np.ptp(labels) or not np.ptp(predictions):
        return {"pearson": 0.0, "spearman": 0.0}
    from scipy import stats  # here: few tasks need it, and it takes half a second to import

    with warnings.catch_warnings():
        # For nearly equal predictions the coefficient is noise, but a number.
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        pearson = stats.pearsonr(labels, predictions).statistic
    return {"pearson": float(pearson), "spearman": float(stats.spearmanr(labels, predictions).statistic)}


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
        if (outside := (values != 0) & (values != 1)).any():
            raise DataError(f"{what} hold {values[outside][0]}; expected 0 and 1, one for each label")
    counts = _counts(labels.astype(bool), predictions.astype(bool))
    return {
        "micro_f1": float(precision_recall_f1(*(of_labels.sum() for of_labels in counts))[2]),
        "macro_f1": float(precision_recall_f1(*counts)[2].mean()),
        "exact_match": float((labels == predictions).all(1).mean()),
    }


def _counts(labels: Array, predictions: Array) -> tuple[Array, Array, Array]:
    """Correct, predicted and true items, int [...], of bool [examples, ...], for `precision_recall_f1`."""
    return (labels & predictions).sum(0), predictions.sum(0), labels.sum(0)


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
