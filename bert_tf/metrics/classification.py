"""Accuracy, F1, correlations: of classes, of several labels an example, of numbers."""

import warnings

import numpy as np
import scipy.stats
import sklearn.metrics

from bert_tf.errors import DataError
from bert_tf.metrics.checks import check_lengths, numbers


def accuracy(labels, predictions):
    """Share of examples that are right.

    Args:
        labels: [examples], class ids (integers or bool) or names (str).
        predictions: [examples], of the same kind.

    Returns:
        dict: "accuracy".

    Raises:
        DataError: no examples, lengths that differ, or ids for names.
    """
    labels, predictions = _classes(labels, predictions)
    return {"accuracy": float(np.mean(labels == predictions))}


def binary_f1(labels, predictions, positive=1):
    """F1 of one class.

    Args:
        labels, predictions: as for `accuracy`.
        positive: the class.

    Returns:
        dict: "f1"; 0 where the class is neither a label nor predicted.

    Raises:
        DataError: as `accuracy`.
    """
    labels, predictions = _classes(labels, predictions)
    f1 = sklearn.metrics.f1_score(labels == positive, predictions == positive, zero_division=0)
    return {"f1": float(f1)}


def macro_f1(labels, predictions):
    """Mean over classes of their F1.

    Args:
        labels, predictions: as for `accuracy`.

    Returns:
        dict: "macro_f1", over the classes that are a label or predicted.

    Raises:
        DataError: as `accuracy`.
    """
    labels, predictions = _classes(labels, predictions)
    return {"macro_f1": float(sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0))}


def scope(labels, predictions, outside):
    """What the paper of CLINC150 reports of a classifier that can say "none of these" (Larson et al., 2019, section 4).

    Args:
        labels, predictions: as for `accuracy`.
        outside: the class of queries that belong to no other.

    Returns:
        dict: "in_scope_accuracy", share of the queries that belong to a class for which this class was found;
        "out_of_scope_recall", share of the others for which `outside` was. Each is 0 where there is no such query.

    Raises:
        DataError: as `accuracy`.
    """
    labels, predictions = _classes(labels, predictions)
    right, inside = labels == predictions, labels != outside
    shares = {"in_scope_accuracy": right[inside], "out_of_scope_recall": right[~inside]}
    return {name: float(some.mean()) if some.size else 0.0 for name, some in shares.items()}


def matthews(labels, predictions):
    """Matthews' correlation coefficient, of two or more classes.

    Args:
        labels, predictions: as for `accuracy`.

    Returns:
        dict: "matthews", from -1 to 1; 0 where all labels or all predictions are of one class.

    Raises:
        DataError: as `accuracy`.
    """
    labels, predictions = _classes(labels, predictions)
    return {"matthews": float(sklearn.metrics.matthews_corrcoef(labels, predictions))}


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
