"""Precision, recall and F1 from counts of correct, predicted and true items."""

import numpy as np
from numpy.typing import ArrayLike

from bert_tf.types import Array


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
