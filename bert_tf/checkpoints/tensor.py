"""A named array that stays on disk until somebody asks for it."""

import dataclasses
import math
from collections.abc import Callable

import ml_dtypes  # noqa: F401  (teaches NumPy the name bfloat16)
import numpy as np


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array on disk, or a view of some.

    Attributes:
        shape: tuple of int.
        dtype: NumPy's name of it, "bfloat16" included.
        read: reads the array, anew at every call: nobody keeps it.
        source: what it is called where it lies, several names joined by " + ".
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]
    source: str

    @property
    def size(self):
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self):
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


def tensor_of_variable(variable):
    """A Tensor of a keras.Variable, called by its path."""
    return Tensor(tuple(variable.shape), variable.dtype, variable.numpy, variable.path)


def tensor_of(array, source):
    """A Tensor of an array in memory."""
    return Tensor(array.shape, array.dtype.name, lambda: array, source)
