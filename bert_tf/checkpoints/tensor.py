"""An array on disk that is read only when its values are needed, and the checks of its values."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import keras
import ml_dtypes  # noqa: F401  (registers the dtype name bfloat16 with NumPy)
import numpy as np

from bert_tf.errors import DataError
from bert_tf.types import Array

FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array on disk, or a view of several.

    Attributes:
        dtype: NumPy's name for it, "bfloat16" included.
        read: reads the array, anew at every call: nothing is cached.
        source: its name in the file it comes from, several names joined by " + ".
        lasting: whether `read` returns the same when the file has been replaced or removed.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]
    source: str
    lasting: bool = False

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize

    def mapped(self, function: Callable[[Array], Array], **changes: Any) -> Self:
        """`function` of the values, computed when they are read; `changes` are other attributes of the result."""
        return dataclasses.replace(self, read=lambda: function(self.read()), **changes)


def lasting(tensor: Tensor) -> Tensor:
    """The same tensor, read now unless its file stays open."""
    return tensor if tensor.lasting else tensor_of(tensor.read(), tensor.source)


def first_rows(tensor: Tensor, rows: int) -> Tensor:
    """The first so many rows."""
    return tensor.mapped(lambda values: values[:rows], shape=(rows, *tensor.shape[1:]))


def block_of_rows(tensor: Tensor, index: int, count: int) -> Tensor:
    """One of so many blocks of equal numbers of rows."""
    if count == 1:
        return tensor
    rows = tensor.shape[0] // count
    return tensor.mapped(lambda values: values[index * rows : (index + 1) * rows], shape=(rows, *tensor.shape[1:]))


def reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same values in another shape."""
    return tensor.mapped(lambda values: values.reshape(shape), shape=shape)


def finite(tensor: Tensor, file: str) -> Tensor:
    """The same tensor; reading it raises DataError if a value is NaN or infinite. `file` is its path, for the error."""

    def checked(values: Array) -> Array:
        count = values.size - np.count_nonzero(np.isfinite(values))  # 0.07 s for BERT-base
        if count:
            raise DataError(
                f"{file}: {tensor.source} holds {count:,} values of {values.size:,} that are NaN or infinite; expected "
                "finite weights: use another checkpoint of the training"
            )
        return values

    return tensor.mapped(checked)


def as_dtype(tensor: Tensor, dtype: str, name: str) -> Tensor:
    """The values, which must be finite, in another dtype; reading raises DataError if one is too large for it.

    Args:
        tensor: of floating-point numbers.
        dtype: a name in FLOATS.
        name: of the tensor in the error.
    """
    if dtype == tensor.dtype:
        return tensor

    def cast(values: Array) -> Array:
        with np.errstate(over="ignore"):
            result = values.astype(dtype)
        if not np.isfinite(result).all():
            largest = np.abs(values.astype(np.float64)).max()
            what_to_do = "use bfloat16 or float32" if dtype == "float16" else "expected weights within its range"
            raise DataError(f"{name} holds {largest:.4g}, too large for {dtype}; {what_to_do}")
        return result

    return tensor.mapped(cast, dtype=dtype)


def number(tensor: Tensor, file: str) -> int:
    """The value of a tensor that holds one integer, such as a step; DataError for any other tensor."""
    if tensor.size != 1 or np.dtype(tensor.dtype).kind not in "iub":
        raise DataError(f"{file}: {tensor.source} is {tensor.dtype} {list(tensor.shape)}; expected one integer")
    return int(tensor.read().item())


def tensor_of_variable(variable: keras.Variable) -> Tensor:
    """A Tensor that reads a variable; its source is the variable's path."""
    return Tensor(tuple(variable.shape), variable.dtype, variable.numpy, variable.path)


def tensor_of(array: Array, source: str) -> Tensor:
    """A Tensor of an array in memory."""
    return Tensor(array.shape, array.dtype.name, lambda: array, source, lasting=True)
