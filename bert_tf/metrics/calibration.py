"""Whether a model is right as often as it says (Guo et al., 2017, On Calibration of Modern Neural Networks)."""

import numpy as np

from bert_tf.errors import DataError
from bert_tf.metrics.checks import check_lengths


def reliability(confidences, correct, bins=15):
    """Said and true accuracy by how sure the model was: the bars of a reliability diagram.

    Args:
        confidences: float [examples], the probability of the predicted class.
        correct: bool [examples], whether it was the right one.
        bins: how many equal parts 0 to 1 is cut into; a border belongs to the part below it.

    Returns:
        dict of arrays [bins]: "low", "high" (the borders), "count", "confidence" and "accuracy" (means; nan in empty
        bins).

    Raises:
        DataError: no examples, lengths that differ, or a confidence outside 0 to 1.
    """
    check_lengths(confidences=confidences, answers=correct)
    confidences, correct = np.asarray(confidences, np.float64), np.asarray(correct, bool)
    outside = ~((confidences >= 0) & (confidences <= 1))
    if outside.any():
        raise DataError(f"confidence {confidences[outside][0]}; expected a probability, from 0 to 1")
    borders = np.linspace(0, 1, bins + 1)
    index = np.maximum(np.searchsorted(borders, confidences) - 1, 0)  # 0 itself is in the first
    counts, said, right = (
        np.bincount(index, weights, minlength=bins) for weights in (None, confidences, correct.astype(np.float64))
    )
    with np.errstate(invalid="ignore"):
        said, right = said / counts, right / counts
    return {"low": borders[:-1], "high": borders[1:], "count": counts, "confidence": said, "accuracy": right}


def calibration_errors(confidences, correct, bins=15):
    """How far said and true accuracy are apart.

    Args:
        confidences, correct, bins: as for `reliability`.

    Returns:
        dict: "expected_calibration_error", the mean over the bins, by their examples, of the absolute difference;
        "confidence", the mean one.

    Raises:
        DataError: as `reliability`.
    """
    diagram = reliability(confidences, correct, bins)
    gaps = np.abs(diagram["confidence"] - diagram["accuracy"])
    filled = diagram["count"] > 0
    return {
        "expected_calibration_error": float(np.average(gaps[filled], weights=diagram["count"][filled])),
        "confidence": float(np.mean(confidences)),
    }
