"""The same inputs for all contestants of inference.py: English words, and ids. Standard library only."""

import random
from typing import Any

_WORDS = "the of and to in that it was film time people good story never music water".split()  # noqa: SIM905


def texts(settings: dict[str, Any]) -> list[str]:
    """Texts of `length` tokens with [CLS] and [SEP]: each word is one token in English vocabularies."""
    chosen = random.Random(1)
    return [" ".join(chosen.choices(_WORDS, k=settings["length"] - 2)) for _ in range(settings["batch"])]


def ids(settings: dict[str, Any]) -> list[list[int]]:
    """Random ids [batch, length]."""
    chosen = random.Random(2)
    return [[chosen.randrange(1000, 20000) for _ in range(settings["length"])] for _ in range(settings["batch"])]
