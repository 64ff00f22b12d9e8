"""Pre-training batches that every contestant trains on: the same numbers from the same seed. NumPy only."""

from typing import Any

import numpy as np

VOCABULARY = 30522
# name: (layers, hidden size); heads have 64 units, the feed-forward layer has four times the hidden size.
SIZES = {"tiny": (2, 128), "mini": (4, 256), "base": (12, 768), "large": (24, 1024)}
_BATCHES = 8


def batches(settings: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    """Batches of sentence pairs without padding, because then no side can save any.

    Args:
        settings: `batch` (sequences), `length` (tokens) and `predictions` (masked positions of a sequence).

    Returns:
        List of dicts by our names, int32 except `masked_lm_weights`, float32: of shape [batch, length],
        [batch, predictions], or [batch] for the labels of the pairs.
    """
    random = np.random.default_rng(0)
    rows, length, predictions = settings["batch"], settings["length"], settings["predictions"]

    def batch() -> dict[str, np.ndarray]:
        ids = random.integers(1000, VOCABULARY, [rows, length], "int32")
        positions = np.stack([np.sort(1 + random.permutation(length - 2)[:predictions]) for _ in range(rows)])
        labels = np.take_along_axis(ids, positions, 1)
        np.put_along_axis(ids, positions, np.int32(103), 1)  # [MASK]
        return {
            "input_word_ids": ids,
            "input_mask": np.ones_like(ids),
            "input_type_ids": np.broadcast_to(np.arange(length) >= length // 2, ids.shape).astype("int32"),
            "masked_lm_positions": positions.astype("int32"),
            "masked_lm_ids": labels,
            "masked_lm_weights": np.ones(labels.shape, "float32"),
            "next_sentence_labels": random.integers(0, 2, rows, "int32"),
        }

    return [batch() for _ in range(_BATCHES)]
