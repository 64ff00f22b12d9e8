"""Where a foreign checkpoint keeps our variables: one table, path -> TensorMapping, by which it is read and written.

`read_mapped` reads by it, `write_mapped` writes by it, so that the two can not drift apart.
"""

import dataclasses
import math

import numpy as np

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.errors import DataError

SAME = "same"
TRANSPOSED = "transposed"  # a dense kernel as [outputs, inputs]
# The same values in the same order, an axis split into heads and their size; only read, for no format writes it.
RESHAPED = "reshaped"


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """Where a foreign checkpoint keeps one of our variables.

    Attributes:
        names: of its tensors; several stand side by side along the last axis of ours.
        layout: SAME, TRANSPOSED or RESHAPED: how each of them lies there.
    """

    names: tuple[str, ...]
    layout: str = SAME


def tf_dense(ours, *theirs, layout=SAME):
    """dict path -> TensorMapping of a dense layer's two variables by TensorFlow's names; `theirs` stand side by side."""
    return {
        f"{ours}/{part}": TensorMapping(tuple(f"{name}/{part}" for name in theirs), layout)
        for part in ("kernel", "bias")
    }


def tf_norm(ours, theirs):
    """dict path -> TensorMapping of a LayerNorm's two variables by TensorFlow's names."""
    return {f"{ours}/{part}": TensorMapping((f"{theirs}/{part}",)) for part in ("gamma", "beta")}


def torch_dense(ours, *theirs):
    """dict path -> TensorMapping of a dense layer by PyTorch's names, which keeps kernels as [outputs, inputs]."""
    return {
        f"{ours}/kernel": TensorMapping(tuple(f"{name}.weight" for name in theirs), TRANSPOSED),
        f"{ours}/bias": TensorMapping(tuple(f"{name}.bias" for name in theirs)),
    }


def torch_norm(ours, theirs):
    """dict path -> TensorMapping of a LayerNorm by PyTorch's names."""
    return {f"{ours}/gamma": TensorMapping((f"{theirs}.weight",)), f"{ours}/beta": TensorMapping((f"{theirs}.bias",))}


def read_mapped(table, shapes, store, file):
    """Finds our variables in a foreign checkpoint.

    Args:
        table: dict path -> TensorMapping.
        shapes: dict path -> shape of ours.
        store: dict name -> Tensor, what there is.
        file: path, for the error.

    Returns:
        dict path -> Tensor.

    Raises:
        DataError: naming the tensors that are missing or of a shape that does not fit.
    """
    missing, misshapen, found = [], [], {}
    for path, shape in shapes.items():
        mapping = table[path]
        part = (*shape[:-1], shape[-1] // len(mapping.names))  # our shape of each
        absent = [name for name in mapping.names if name not in store]
        missing += absent
        if absent:
            continue
        wrong = [name for name in mapping.names if not _fits(store[name].shape, part, mapping.layout)]
        expected = list(reversed(part)) if mapping.layout == TRANSPOSED else list(part)
        misshapen += [f"{name} is {list(store[name].shape)}, not {expected}" for name in wrong]
        if not wrong:
            found[path] = _joined([store[name] for name in mapping.names], shape, part, mapping.layout)
    if missing or misshapen:
        parts = [f"{what} {some(names)}" for what, names in (("missing", missing), ("misshapen", misshapen)) if names]
        raise DataError(f"{file} does not hold the model that its config describes: {'; '.join(parts)}")
    return found


def some(names, shown=8):
    """The first of a list of names, and how many more there are: a wrong number of layers makes it hundreds."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def write_mapped(table, tensors):
    """The other way: dict foreign name -> Tensor of our `tensors` (dict path -> Tensor), by `table`."""
    result = {}
    for path, tensor in tensors.items():
        mapping = table[path]
        for index, name in enumerate(mapping.names):
            result[name] = _part(tensor, index, len(mapping.names), mapping.layout, path)
    return result


def names_of(table, shapes):
    """Set of the foreign names that variables of these paths have."""
    return {name for path in shapes for name in table[path].names}


def _fits(theirs, ours, layout):
    if layout == RESHAPED:
        return math.prod(theirs) == math.prod(ours)
    return tuple(theirs) == (tuple(reversed(ours)) if layout == TRANSPOSED else ours)


def _joined(parts, shape, part_shape, layout):
    def read():
        arrays = [part.read() for part in parts]
        arrays = [array.T if layout == TRANSPOSED else array.reshape(part_shape) for array in arrays]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, -1)

    dtype = np.result_type(*(np.dtype(part.dtype) for part in parts)).name
    return Tensor(shape, dtype, read, " + ".join(part.source for part in parts))


def _part(tensor, index, count, layout, path):
    width = tensor.shape[-1] // count
    shape = (*tensor.shape[:-1], width)

    def read():
        part = tensor.read()[..., index * width : (index + 1) * width]
        return part.T if layout == TRANSPOSED else part

    return Tensor(tuple(reversed(shape)) if layout == TRANSPOSED else shape, tensor.dtype, read, path)
