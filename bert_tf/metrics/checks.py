"""Checks of the inputs of metrics."""

from collections.abc import Collection, Iterable, Sequence, Sized
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


def check_names(names: Iterable[str], known: Collection[str], what: str) -> None:
    """Raises DataError with the first unknown name and its index, counted from 1.

    Args:
        names: to check.
        known: allowed names, in the order in which the error lists them.
        what: a word for such a name in the error, for example "label".
    """
    for index, name in enumerate(names, 1):
        if name not in known:
            raise DataError(f"{what} {index} is {name!r}; expected one of {', '.join(map(repr, known))}")


def numbers(values: Values, what: str) -> Array:
    """Converts values to float64 [examples]; raises DataError with the first one that is not a finite number.

    Args:
        values: [examples], floats or values that `float` accepts.
        what: a word for such a value in the error.
    """
    for index, value in enumerate(values, 1):
        try:
            is_number = np.isfinite(float(value))
        except (TypeError, ValueError):
            is_number = False
        if not is_number:
            raise DataError(f"{what} {index} is {value!r}; expected a finite number")
    return np.asarray(values, np.float64)
