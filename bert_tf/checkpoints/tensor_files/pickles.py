"""The pickle machine, without what is dangerous in it.

A pickle is a program for a small stack machine, and two of its instructions import a name and call it: loading a
stranger's file with `pickle.load` runs the stranger's code. Here the machine is written out, over the standard
library's disassembler (`pickletools.genops`):

- It imports nothing. A name is looked up in the table of the few that torch.save writes for tensors and plain
  containers; any other ends the reading with an error that says it.
- It calls nothing but the functions of that table, which make tensors and containers of values that they check first.
- No object gets attributes or methods from the file. The one class that has them, argparse.Namespace, becomes a
  `Namespace` of ours that holds a dict.
- What it builds grows with the file and no faster: an instruction adds at most one value and what it read there,
  nothing is copied or walked recursively, and keys of a dict are scalars, so that no hash goes deep.
- A tensor is a window into the file. Where it begins, how far its strides reach and how much it holds are checked
  against its storage, and the storage against the file, before anything is read.
"""

import dataclasses
import math
import pickletools

import numpy as np

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.errors import DataError

_MOST_AXES = 64  # of an array in PyTorch and in NumPy
_MOST_ELEMENTS = 2**48
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


@dataclasses.dataclass
class Namespace:
    """What stands for an argparse.Namespace: `fields` is the dict of its attributes."""

    fields: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Storage:
    """A run of numbers in the file, which tensors are views of; `start` (bytes) is None until it is known."""

    key: str
    dtype: str
    count: int
    start: int | None = None

    @property
    def nbytes(self):
        return self.count * np.dtype(self.dtype).itemsize


class Machine:
    """The pickle machine without imports and calls; see the module's docstring."""

    def __init__(self, file, stream, order="little", locate=None):
        """
        Args:
            file: path, for errors and for the tensors to read from.
            stream: where the pickle begins; it is left where the pickle ends.
            order: of the bytes of tensors, "little" or "big".
            locate: called on each new Storage; None where there can be no tensors.
        """
        self.file = file
        self.stream = stream
        self.order = order
        self.locate = locate
        self.storages = {}
        self.stack, self.marks, self.memo = [], [], {}

    def run(self):
        """The value that the pickle describes.

        Raises:
            DataError: cut short, damaged, or asking for what this machine lacks.
        """
        try:
            for opcode, argument, _ in pickletools.genops(self.stream):
                self._step(opcode.name, argument)
            return self._pop()
        except (ValueError, OverflowError) as error:  # genops': cut short, or no instruction of any pickle
            raise self._error(f"can not be read: {shown(str(error))}") from None

    def _step(self, name, argument):
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "LONG4" | "BINFLOAT":
                self.stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8" | "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8":
                self.stack.append(argument)
            case "BINSTRING" | "SHORT_BINSTRING":  # str of Python 2
                self.stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_DICT":
                self.stack.append({})
            case "EMPTY_LIST":
                self.stack.append([])
            case "EMPTY_TUPLE":
                self.stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(self._last(int(name[-1])))
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                self.stack.append(tuple(self._since_mark()))
            case "APPEND" | "APPENDS":
                values = self._last(1) if name == "APPEND" else self._since_mark()
                self._top(list).extend(values)
            case "SETITEM" | "SETITEMS":
                values = self._last(2) if name == "SETITEM" else self._since_mark()
                self._set(values)
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self._top()
            case "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    raise self._error(f"recalls value {argument}, which it has not kept")
                self.stack.append(self.memo[argument])
            case "GLOBAL" | "INST":  # INST would call what it names; it does not get past the naming of it
                self.stack.append(self._global(*argument.split(" ", 1), called=name == "INST"))
            case "STACK_GLOBAL":
                self.stack.append(self._global(*self._last(2)))
            case "BINPERSID":
                self.stack.append(self._storage(self._pop(tuple)))
            case "NEWOBJ":
                if self._last(2) != (Namespace, ()):
                    raise self._error(f"makes an object of what is no class; {_ONLY}")
                self.stack.append(Namespace())
            case "BUILD":
                self._set_state(self._pop())
            case "REDUCE":
                self.stack.append(self._reduced(*self._last(2)))
            case _:
                raise self._error(f"has the instruction {name}; {_ONLY}")

    def _storage(self, identity):
        if len(identity) not in (5, 6) or identity[0] != "storage" or not isinstance(identity[1], _StorageType):
            raise self._error("asks for an object that is no storage")
        (_, kind, key, _, count), view = identity[:5], identity[5:]
        if view not in ((), (None,)):
            raise self._error("has a storage that is a part of another, as PyTorch before 0.4 wrote; save it again")
        if self.locate is None or not isinstance(key, str) or not _is_size(count):
            raise self._error("has a storage without name or size")
        storage = self.storages.get(key)
        if storage is None:
            self.storages[key] = storage = Storage(key, kind.dtype, count)
            self.locate(storage)
        if (storage.dtype, storage.count) != (kind.dtype, count):
            raise self._error(f"describes the storage {shown(key)} in two ways")
        return storage

    def _set_state(self, state):
        owner = self._top()
        if isinstance(owner, Namespace) and isinstance(state, dict):
            owner.fields = state
        # A dict's attributes (PyTorch gives its state dicts one with version numbers) say nothing about its tensors.
        elif not isinstance(owner, dict):
            raise self._error(f"sets the state of a {type(owner).__name__}; {_ONLY}")

    def _set(self, items):
        owner = self._top(dict)
        if len(items) % 2 or not all(isinstance(key, _KEYS) for key in items[::2]):
            raise self._error("has a dict whose keys are no plain values")
        owner.update(zip(items[::2], items[1::2], strict=True))

    def _global(self, module, name, called=False):
        named_so = isinstance(module, str) and isinstance(name, str)
        known = _GLOBALS.get((module, name)) if named_so else None
        if known is None or called:
            raise self._error(f"asks for {shown(f'{module}.{name}') if named_so else 'what has no name'}; {_ONLY}")
        return known

    def _reduced(self, function, arguments):
        builders = {
            "OrderedDict": self._ordered_dict,
            "Size": self._size,
            "_rebuild_tensor": self._tensor,
            "_rebuild_tensor_v2": self._tensor,
            "_rebuild_parameter": self._parameter,
        }
        if not isinstance(function, _Builder) or not isinstance(arguments, tuple):
            raise self._error(f"calls what is no function; {_ONLY}")
        return builders[function.name](*arguments)

    # What REDUCE may ask for.

    def _ordered_dict(self, *arguments):
        if arguments:
            raise self._error("gives an OrderedDict arguments; expected an empty one that is filled afterwards")
        return {}

    def _size(self, *arguments):
        if len(arguments) != 1 or not isinstance(arguments[0], tuple):
            raise self._error("has a torch.Size that is not made of a tuple")
        return arguments[0]

    def _parameter(self, *arguments):
        if len(arguments) != 3 or not isinstance(arguments[0], Tensor):
            raise self._error("has a parameter that is not made of a tensor")
        return arguments[0]

    def _tensor(self, *arguments):
        """A window: `storage`, first element, shape and strides, all in elements; gradients and hooks are not ours."""
        if len(arguments) not in (4, 6, 7) or not isinstance(arguments[0], Storage):
            raise self._error("has a tensor that is not made of a storage")
        storage, offset, shape, strides = arguments[:4]
        where = f"has a tensor in the storage {shown(storage.key)}"
        if arguments[6:] not in ((), ({},)):
            raise self._error(f"{where} that is marked as conjugate or negative; save its values")
        axes = [isinstance(axis, tuple) and len(axis) <= _MOST_AXES for axis in (shape, strides)]
        if not (all(axes) and len(shape) == len(strides) and all(map(_is_size, (offset, *shape, *strides)))):
            raise self._error(f"{where} without a shape, strides and an offset that fit each other")
        count = math.prod(shape)
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1 if count else 0
        # More elements than there are numbers: a stride of 0 could make an array of any size of one number. An empty
        # array's other axes have a bound of NumPy's, too.
        most = math.prod(max(size, 1) for size in shape)
        if offset + reach > storage.count or count > storage.count or most > _MOST_ELEMENTS:
            raise self._error(f"{where} that is larger than its {storage.count} numbers")
        return Tensor(shape, storage.dtype, self._reader(storage, offset, reach, shape, strides), storage.key)

    def _reader(self, storage, offset, reach, shape, strides):
        file, order = self.file, {"little": "<", "big": ">"}[self.order]
        size = np.dtype(storage.dtype).itemsize

        def read():
            if not reach:
                return np.empty(shape, storage.dtype)
            # As whole numbers, whose bytes NumPy can turn around; it has no bfloat16 of either order.
            numbers = np.fromfile(file, f"{order}u{size}", reach, offset=storage.start + offset * size)
            if len(numbers) != reach:
                raise DataError(f"{file} was cut short since it was opened; fetch it again")
            numbers = numbers.astype(f"u{size}", copy=False).view(storage.dtype)
            # The stride of an axis of one element is not used, and may be any number.
            steps = [stride * size if length > 1 else 0 for stride, length in zip(strides, shape, strict=True)]
            view = np.lib.stride_tricks.as_strided(numbers, shape, steps)
            return np.ascontiguousarray(view).reshape(shape)

        return read

    # The stack.

    def _pop(self, kind=object):
        value = self._top(kind)
        self.stack.pop()
        return value

    def _top(self, kind=object):
        # What lies below the last mark belongs to the instruction that will take the mark away.
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise self._error("takes a value from where there is none")
        if not isinstance(self.stack[-1], kind):
            raise self._error(f"takes a {type(self.stack[-1]).__name__} for a {kind.__name__}")
        return self.stack[-1]

    def _last(self, count):
        return tuple(self._pop() for _ in range(count))[::-1]

    def _since_mark(self):
        if not self.marks:
            raise self._error("goes back to a mark that it has not set")
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def _error(self, text):
        return DataError(f"{self.file} {text}")


@dataclasses.dataclass(frozen=True)
class _Builder:
    """Stands on the stack for a function that REDUCE may ask for."""

    name: str


@dataclasses.dataclass(frozen=True)
class _StorageType:
    """Stands on the stack for a class of storages."""

    dtype: str


_GLOBALS = {
    ("argparse", "Namespace"): Namespace,
    ("collections", "OrderedDict"): _Builder("OrderedDict"),
    ("torch", "Size"): _Builder("Size"),
    ("torch._utils", "_rebuild_tensor"): _Builder("_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"): _Builder("_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"): _Builder("_rebuild_parameter"),
} | {(module, name): _StorageType(dtype) for module in ("torch", "torch.cuda") for name, dtype in _STORAGES.items()}
_KEYS = (str, bytes, int, float, type(None))  # bool is an int
_ONLY = "only tensors and plain containers are read"


def _is_size(value):
    """Whether it is a whole number that a file can have bytes for."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def shown(value):
    """A value of the file as it may stand in a message: short, and without control characters."""
    if isinstance(value, str):
        return ascii(value) if len(value) <= 100 else f"{value[:100]!a}..."
    plain = isinstance(value, (int, float)) and abs(value) < 2**63
    return repr(value) if plain else repr(value[:100]) if isinstance(value, bytes) else f"a {type(value).__name__}"
