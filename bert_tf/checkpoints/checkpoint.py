"""What every format is read into and written from: named tensors that stay on disk until somebody asks for one."""

import dataclasses
import math
from collections.abc import Callable

import ml_dtypes  # noqa: F401  (teaches NumPy the name bfloat16)
import numpy as np

from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.model.build import build
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.variables import variable_shapes
from bert_tf.text import Tokenizer

SAME = "same"
TRANSPOSED = "transposed"  # a dense kernel as [outputs, inputs]
RESHAPED = "reshaped"  # the same values in the same order, an axis split into heads and their size


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


def tensor_of(array, source):
    """A Tensor of an array in memory."""
    return Tensor(array.shape, array.dtype.name, lambda: array, source)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a foreign checkpoint keeps one of our variables.

    Attributes:
        names: of its tensors; several stand side by side along the last axis of ours.
        layout: SAME, TRANSPOSED or RESHAPED: how each of them lies there.
    """

    names: tuple[str, ...]
    layout: str = SAME


@dataclasses.dataclass
class Checkpoint:
    """A model on disk, of any format.

    Attributes:
        config: BertConfig.
        tensors: dict path of the variable -> Tensor.
        head: a key of `model.variables.HEADS`; None for a bare encoder.
        labels: of a head that has labels, in the order of its logits; else None.
        task: {"name", "settings"} as saved models hold it, or None where there is no head.
        pieces: the vocabulary, list of str; None where it is not a WordPiece vocabulary.
        tokenizer_settings: keyword arguments of `Tokenizer`.
        slots: Adam's, dict "PATH/m" and "PATH/v" -> Tensor; empty where there are none.
        step: updates done, or None.
        left_out: dict name of a tensor that was not taken -> why.
        notes: what a reader of the report should know: guesses, defaults, values that were made up.
        origin: {"format", ...} with the settings of a foreign format that have no place in ours, so that they can be
            written back.
    """

    config: BertConfig
    tensors: dict[str, Tensor]
    head: str | None = None
    labels: list[str] | None = None
    task: dict | None = None
    pieces: list[str] | None = None
    tokenizer_settings: dict = dataclasses.field(default_factory=dict)
    slots: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    step: int | None = None
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    origin: dict = dataclasses.field(default_factory=dict)

    def tokenizer(self):
        """Tokenizer, or None where there is no WordPiece vocabulary."""
        return Tokenizer(self.pieces, **self.tokenizer_settings) if self.pieces else None

    def shapes(self):
        """dict path -> shape of the variables that the model has."""
        return variable_shapes(self.config, self.head, self._outputs())

    def encoder(self, *, pooler=None, dtype=None):
        """BertEncoder with these weights; arguments as in `bert_tf.load`."""
        config = self.config if pooler is None else dataclasses.replace(self.config, pooler=pooler)
        encoder = BertEncoder(config, dtype=dtype)
        fresh = config.pooler and not self.config.pooler
        assign([one for one in encoder.weights if not (fresh and one.path.startswith("pooler/"))], self.tensors)
        return encoder

    def model(self, dtype=None):
        """keras.Model of encoder and head with these weights; without a head, the encoder."""
        model = build(BertEncoder(self.config, dtype=dtype), self.head, self._outputs())
        assign(model.weights, self.tensors)
        return model

    def _outputs(self):
        return len(self.labels) if self.labels else None


def collect(table, shapes, store, file):
    """Finds our variables in a foreign checkpoint.

    Args:
        table: dict path -> Place.
        shapes: dict path -> shape of ours.
        store: dict name -> Tensor, what there is.
        file: path, for the error.

    Returns:
        dict path -> Tensor.

    Raises:
        DataError: naming every tensor that is missing or of a shape that does not fit.
    """
    missing, misshapen, found = [], [], {}
    for path, shape in shapes.items():
        place = table[path]
        part = (*shape[:-1], shape[-1] // len(place.names))  # our shape of each
        absent = [name for name in place.names if name not in store]
        missing += absent
        if absent:
            continue
        wrong = [name for name in place.names if not _fits(store[name].shape, part, place.layout)]
        expected = list(reversed(part)) if place.layout == TRANSPOSED else list(part)
        misshapen += [f"{name} is {list(store[name].shape)}, not {expected}" for name in wrong]
        if not wrong:
            found[path] = _joined([store[name] for name in place.names], shape, part, place.layout)
    if missing or misshapen:
        parts = [f"missing {', '.join(missing)}"] * bool(missing)
        parts += [f"misshapen {', '.join(misshapen)}"] * bool(misshapen)
        raise DataError(f"{file} does not hold the model that its config describes: {'; '.join(parts)}")
    return found


def spread(table, tensors):
    """The other way: dict foreign name -> Tensor of our `tensors` (dict path -> Tensor), by `table`."""
    result = {}
    for path, tensor in tensors.items():
        place = table[path]
        for index, name in enumerate(place.names):
            result[name] = _part(tensor, index, len(place.names), place.layout, path)
    return result


def names_of(table, shapes):
    """Set of the foreign names that variables of these paths have."""
    return {name for path in shapes for name in table[path].names}


def assign(variables, tensors):
    """Assigns each keras.Variable the tensor of its path, one after the other."""
    for variable in variables:
        variable.assign(tensors[variable.path].read())


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
