"""Calibration: reliability diagram and expected calibration error (Guo et al., 2017, On Calibration of Modern Neural
Networks).
"""

import numpy as np

from bert_tf.errors import DataError
from bert_tf.metrics.checks import Values, check_lengths
from bert_tf.types import Array, Metrics


def reliability(confidences: Values, correct: Values, bins: int = 15) -> dict[str, Array]:
    """Computes mean confidence and accuracy in bins of confidence, for a reliability diagram.

    Args:
        confidences: float [examples], the probability of the predicted class.
        correct: bool [examples], whether the prediction was correct.
        bins: number of equal bins from 0 to 1; an edge belongs to the bin below it.

    Returns:
        dict of arrays [bins]: "low", "high" (the edges), "count", "confidence" and "accuracy" (means; nan in empty
        bins).
    """
    check_lengths(confidences=confidences, answers=correct)
    confidences, correct = np.asarray(confidences, np.float64), np.asarray(correct, bool)
    outside = ~((confidences >= 0) & (confidences <= 1))
    if outside.any():
        raise DataError(f"confidence {confidences[outside][0]}; expected a probability, from 0 to 1")
    edges = np.linspace(0, 1, bins + 1)
    index = np.maximum(np.searchsorted(edges, confidences) - 1, 0)  # 0 itself is in the first
    counts = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(index, confidences, minlength=bins) / counts
        accuracy = np.bincount(index, correct.astype(np.float64), minlength=bins) / counts
    return {"low": edges[:-1], "high": edges[1:], "count": counts, "confidence": confidence, "accuracy": accuracy}


def calibration_errors(confidences: Values, correct: Values, bins: int = 15) -> Metrics:
    """Computes the calibration error. Args as for `reliability`.

    Returns:
        dict: "expected_calibration_error", the absolute difference between confidence and accuracy, averaged over the
        bins by their numbers of examples; "confidence", its mean.
    """
    diagram = reliability(confidences, correct, bins)
    gaps = np.abs(diagram["confidence"] - diagram["accuracy"])
    filled = diagram["count"] > 0
    return {
        "expected_calibration_error": float(np.average(gaps[filled], weights=diagram["count"][filled])),
        "confidence": float(np.mean(confidences)),
    }
