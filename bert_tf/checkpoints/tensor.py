"""An array on disk that is read only when its values are needed."""

import dataclasses
import math
from collections.abc import Callable

import keras
import ml_dtypes  # noqa: F401  (registers the dtype name bfloat16 with NumPy)
import numpy as np

from bert_tf.types import Array


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array on disk, or a view of several.

    Attributes:
        dtype: NumPy's name for it, "bfloat16" included.
        read: reads the array, anew at every call: nothing is cached.
        source: its name in the file it comes from, several names joined by " + ".
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]
    source: str

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


def reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same values in another shape."""
    return dataclasses.replace(tensor, shape=shape, read=lambda: tensor.read().reshape(shape))


def tensor_of_variable(variable: keras.Variable) -> Tensor:
    """A Tensor that reads a variable; its source is the variable's path."""
    return Tensor(tuple(variable.shape), variable.dtype, variable.numpy, variable.path)


def tensor_of(array: Array, source: str) -> Tensor:
    """A Tensor of an array in memory."""
    return Tensor(array.shape, array.dtype.name, lambda: array, source)
