"""What every metric asks of its input."""

import numpy as np

from bert_tf.errors import DataError


def check_lengths(**columns):
    """Refuses columns that do not belong together.

    Args:
        **columns: name -> anything with a length, one entry an example.

    Returns:
        The length that they share.

    Raises:
        DataError: the lengths differ, or there is no example.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise DataError(f"{found}; expected as many of one as of the other: are they of the same file?")
    length = min(lengths.values())
    if not length:
        raise DataError(f"no {' and no '.join(columns)}: nothing to measure; expected at least one")
    return length


def check_names(names, known, what):
    """Refuses a name outside a set.

    Args:
        names: iterable of str.
        known: the set's names, in the order to show them in.
        what: what the error calls such a name, "label" for example.

    Raises:
        DataError: with the first such name and its index, counted from 1.
    """
    for index, name in enumerate(names, 1):
        if name not in known:
            raise DataError(f"{what} {index} is {name!r}; expected one of {', '.join(map(repr, known))}")


def numbers(values, what):
    """Finite numbers, or a clear error.

    Args:
        values: [examples], floats or what can be read as one.
        what: what the error calls one of them.

    Returns:
        float64 [examples].

    Raises:
        DataError: with the first that is not a finite number and its index, counted from 1.
    """
    for index, value in enumerate(values, 1):
        try:
            is_number = np.isfinite(float(value))
        except (TypeError, ValueError):
            is_number = False
        if not is_number:
            raise DataError(f"{what} {index} is {value!r}; expected a finite number")
    return np.asarray(values, np.float64)
