"""Checks of the inputs of metrics."""

from collections.abc import Sequence, Sized
from typing import Any, TypeAlias

import numpy as np

from bert_tf.errors import DataError
from bert_tf.types import Array

Values: TypeAlias = Array | Sequence[Any]  # one per example


def check_lengths(**columns: Sized) -> int:
    """Raises DataError if columns have no entries or different numbers of them; returns their length.

    Args:
        **columns: by their names in the error; one entry per example.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise DataError(f"{listed}; expected the same number of each: are they from the same file?")
    length = min(lengths.values())
    if not length:
        raise DataError(f"no {' and no '.join(columns)}: nothing to measure; expected at least one")
    return length


def check_names(names: Values, known: Sequence[str], what: str) -> None:
    """Raises DataError with the first unknown name and its index, counted from 1.

    Args:
        names: to check.
        known: allowed names, in the order in which the error lists them.
        what: a word for such a name in the error, for example "label".
    """
    names = np.asarray(names)
    unknown = np.flatnonzero(~np.isin(names, known))
    if unknown.size:
        listed = ", ".join(map(repr, known))
        raise DataError(f"{what} {unknown[0] + 1} is {names[unknown[0]].item()!r}; expected one of {listed}")
