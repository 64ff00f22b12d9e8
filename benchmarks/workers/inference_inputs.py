"""The same inputs for all contestants of inference.py: English words, and ids. Standard library only."""

import random
from typing import Any

_WORDS = "the of and to in that it was film time people good story never music water".split()  # noqa: SIM905


def texts(settings: dict[str, Any]) -> list[str]:
    """Texts of these `lengths` in tokens, with [CLS] and [SEP]: each word is one token in English vocabularies."""
    chosen = random.Random(1)
    return [" ".join(chosen.choices(_WORDS, k=length - 2)) for length in settings["lengths"]]


def ids(settings: dict[str, Any]) -> list[list[int]]:
    """Random ids [batch, length], 0 at padding."""
    chosen = random.Random(2)
    return [[chosen.randrange(1000, 20000) * one for one in row] for row in mask(settings)]


def mask(settings: dict[str, Any]) -> list[list[int]]:
    """1 at tokens, 0 at padding [batch, length]."""
    return [[1] * length + [0] * (settings["length"] - length) for length in settings["lengths"]]
