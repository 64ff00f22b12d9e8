"""Precision, recall and F1 from how often something is found, is there, and is both."""

import numpy as np


def precision_recall_f1(right, found, true):
    """The three shares, each 0 where it would be 0 of 0.

    Args:
        right: [...], how often it was found where it is.
        found: [...], how often it was found.
        true: [...], how often it is there.

    Returns:
        (precision, recall, F1): float64 [...] each.
    """
    right, found, true = (np.asarray(counts, np.float64) for counts in (right, found, true))
    # F1 is twice the harmonic mean's parts: the same as 2pr / (p + r).
    parts = (right, found), (right, true), (2 * right, found + true)
    return tuple(part / np.maximum(whole, 1) for part, whole in parts)
