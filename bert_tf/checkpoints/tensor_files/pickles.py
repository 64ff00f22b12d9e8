"""A safe pickle machine: reads the pickles of torch.save without importing or calling anything they name.

A pickle is a program for a small stack machine, and two of its instructions import a name and call it: loading a
stranger's file with `pickle.load` runs the stranger's code. This module implements the machine itself, on top of the
standard library's disassembler (`pickletools.genops`):

- It imports nothing. Names are looked up in a table of the few that torch.save writes for tensors and plain containers;
  any other name is an error.
- It calls only the functions of that table, which build tensors and containers and check their arguments first.
- No object gets attributes or methods from the file. The only class that has them, argparse.Namespace, becomes our
  `Namespace`, which holds a dict.
- Memory grows no faster than the file: an instruction adds at most one value and the bytes it read, nothing is copied
  or traversed recursively, and dict keys are scalars, so that no hash recurses.
- A tensor is a view of the file. Its offset, the reach of its strides and its size are checked against its storage, and
  the storage against the file, before anything is read.
"""

import dataclasses
import math
import mmap
import pickletools
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.errors import DataError
from bert_tf.types import Array

_MAX_AXES = 64  # of an array in PyTorch and in NumPy
_MAX_ELEMENTS = 2**48
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
    """Replaces an argparse.Namespace; `fields` are its attributes."""

    fields: dict[Any, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Storage:
    """An array in the file that tensors are views of; `start`, its offset in bytes, is None until it is known."""

    key: str
    dtype: str
    count: int
    start: int | None = None

    @property
    def nbytes(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize


class Machine:
    """The pickle machine without imports and calls; see the module docstring."""

    def __init__(
        self,
        file: str,
        stream: IO[bytes] | mmap.mmap,
        order: str = "little",
        locate: Callable[[Storage], None] | None = None,
    ) -> None:
        """
        Args:
            file: path, for errors and for tensors to read from.
            stream: at the start of the pickle; left at its end.
            order: byte order of tensors, "little" or "big".
            locate: called on each new Storage to set its `start`; None if the pickle may not have tensors.
        """
        self.file = file
        self.stream: Any = stream  # genops needs only read and readline, which a memory map has too
        self.order = order
        self.locate = locate
        self.storages: dict[str, Storage] = {}
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[Any, Any] = {}

    def run(self) -> Any:
        """The value that the pickle describes."""
        try:
            for opcode, argument, _ in pickletools.genops(self.stream):
                self._step(opcode.name, argument)
            return self._pop()
        except (ValueError, OverflowError) as error:  # from genops: truncated, or not an instruction of any pickle
            raise self._error(f"cannot be read: {shown(str(error))}") from None

    def _step(self, name: str, argument: Any) -> None:
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
                    raise self._error(f"recalls value {argument}, which it has not stored")
                self.stack.append(self.memo[argument])
            case "GLOBAL" | "INST":  # INST also calls the name, so it is always refused
                module, qualified_name = argument.split(" ", 1)
                self.stack.append(self._global(module, qualified_name, called=name == "INST"))
            case "STACK_GLOBAL":
                module, qualified_name = self._last(2)
                self.stack.append(self._global(module, qualified_name))
            case "BINPERSID":
                self.stack.append(self._storage(self._pop(tuple)))
            case "NEWOBJ":
                if self._last(2) != (Namespace, ()):
                    raise self._error(f"creates an object of something other than a class; {_ONLY}")
                self.stack.append(Namespace())
            case "BUILD":
                self._set_state(self._pop())
            case "REDUCE":
                function, arguments = self._last(2)
                self.stack.append(self._reduced(function, arguments))
            case _:
                raise self._error(f"has the instruction {name}; {_ONLY}")

    def _storage(self, identity: tuple[Any, ...]) -> Storage:
        if len(identity) not in (5, 6) or identity[0] != "storage" or not isinstance(identity[1], _StorageType):
            raise self._error("asks for an object that is not a storage")
        (_, kind, key, _, count), view = identity[:5], identity[5:]
        if view not in ((), (None,)):
            raise self._error("has a storage that is part of another, as PyTorch before 0.4 wrote; save it again")
        if self.locate is None or not isinstance(key, str) or not _is_size(count):
            raise self._error("has a storage without name or size")
        storage = self.storages.get(key)
        if storage is None:
            self.storages[key] = storage = Storage(key, kind.dtype, count)
            self.locate(storage)
        if (storage.dtype, storage.count) != (kind.dtype, count):
            raise self._error(f"describes the storage {shown(key)} in two ways")
        return storage

    def _set_state(self, state: Any) -> None:
        owner = self._top()
        if isinstance(owner, Namespace) and isinstance(state, dict):
            owner.fields = state
        # Attributes of a dict (PyTorch's state dicts have one with version numbers) are irrelevant to its tensors.
        elif not isinstance(owner, dict):
            raise self._error(f"sets the state of a {type(owner).__name__}; {_ONLY}")

    def _set(self, items: Sequence[Any]) -> None:
        owner = self._top(dict)
        if len(items) % 2 or not all(isinstance(key, _KEYS) for key in items[::2]):
            raise self._error("has a dict with keys other than plain values")
        owner.update(zip(items[::2], items[1::2], strict=True))

    def _global(self, module: Any, name: Any, called: bool = False) -> Any:
        is_name = isinstance(module, str) and isinstance(name, str)
        known = _GLOBALS.get((module, name)) if is_name else None
        if known is None or called:
            raise self._error(f"asks for {shown(f'{module}.{name}') if is_name else 'something unnamed'}; {_ONLY}")
        return known

    def _reduced(self, function: Any, arguments: Any) -> Any:
        builders: dict[str, Callable[..., Any]] = {
            "OrderedDict": self._ordered_dict,
            "Size": self._size,
            "_rebuild_tensor": self._tensor,
            "_rebuild_tensor_v2": self._tensor,
            "_rebuild_parameter": self._parameter,
        }
        if not isinstance(function, _Builder) or not isinstance(arguments, tuple):
            raise self._error(f"calls something other than a function; {_ONLY}")
        return builders[function.name](*arguments)

    # The functions that REDUCE may call.

    def _ordered_dict(self, *arguments: Any) -> dict[Any, Any]:
        if arguments:
            raise self._error("creates an OrderedDict with arguments; expected an empty one that is filled afterwards")
        return {}

    def _size(self, *arguments: Any) -> tuple[Any, ...]:
        if len(arguments) != 1 or not isinstance(arguments[0], tuple):
            raise self._error("has a torch.Size that is not made from a tuple")
        return arguments[0]

    def _parameter(self, *arguments: Any) -> Tensor:
        if len(arguments) != 3 or not isinstance(arguments[0], Tensor):
            raise self._error("has a parameter that is not made from a tensor")
        return arguments[0]

    def _tensor(self, *arguments: Any) -> Tensor:
        """A view of (storage, offset, shape, strides, ...), counted in elements; gradients and hooks are ignored."""
        if len(arguments) not in (4, 6, 7) or not isinstance(arguments[0], Storage):
            raise self._error("has a tensor that is not made from a storage")
        storage, offset, shape, strides = arguments[:4]
        where = f"has a tensor in the storage {shown(storage.key)}"
        if arguments[6:] not in ((), ({},)):
            raise self._error(f"{where} that is marked as conjugate or negative; save its values")
        axes = [isinstance(axis, tuple) and len(axis) <= _MAX_AXES for axis in (shape, strides)]
        if not (all(axes) and len(shape) == len(strides) and all(map(_is_size, (offset, *shape, *strides)))):
            raise self._error(f"{where} with a shape, strides and an offset that do not fit each other")
        count = math.prod(shape)
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1 if count else 0
        # `count` is checked too, as a stride of 0 could make an array of any size from one number. NumPy bounds the
        # other axes of an empty array too.
        bound = math.prod(max(size, 1) for size in shape)
        if offset + reach > storage.count or count > storage.count or bound > _MAX_ELEMENTS:
            raise self._error(f"{where} that is larger than its {storage.count} numbers")
        return Tensor(shape, storage.dtype, self._reader(storage, offset, reach, shape, strides), storage.key)

    def _reader(
        self, storage: Storage, offset: int, reach: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Callable[[], Array]:
        file, order = self.file, {"little": "<", "big": ">"}[self.order]
        size = np.dtype(storage.dtype).itemsize

        def read() -> Array:
            if not reach:
                return np.empty(shape, storage.dtype)
            if storage.start is None:
                raise DataError(f"{file} has no data for the storage {shown(storage.key)}; download it again")
            # Read as integers, as NumPy can swap their bytes; its bfloat16 has only the native order.
            numbers: Array = np.fromfile(file, f"{order}u{size}", reach, offset=storage.start + offset * size)
            if len(numbers) != reach:
                raise DataError(f"{file} was truncated since it was opened; download it again")
            numbers = numbers.astype(f"u{size}", copy=False).view(storage.dtype)
            # The stride of an axis of length 1 is not used, and may be any number.
            steps = [stride * size if length > 1 else 0 for stride, length in zip(strides, shape, strict=True)]
            view = np.lib.stride_tricks.as_strided(numbers, shape, steps)
            return np.ascontiguousarray(view).reshape(shape)

        return read

    # The stack.

    def _pop(self, kind: type = object) -> Any:
        value = self._top(kind)
        self.stack.pop()
        return value

    def _top(self, kind: type = object) -> Any:
        # Values below the last mark belong to the instruction that will remove the mark.
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise self._error("takes a value from an empty stack")
        if not isinstance(self.stack[-1], kind):
            raise self._error(f"uses a {type(self.stack[-1]).__name__} as a {kind.__name__}")
        return self.stack[-1]

    def _last(self, count: int) -> tuple[Any, ...]:
        return tuple(self._pop() for _ in range(count))[::-1]

    def _since_mark(self) -> list[Any]:
        if not self.marks:
            raise self._error("goes back to a mark that it has not set")
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def _error(self, text: str) -> DataError:
        return DataError(f"{self.file} {text}")


@dataclasses.dataclass(frozen=True)
class _Builder:
    """Stands on the stack for a function that REDUCE may call."""

    name: str


@dataclasses.dataclass(frozen=True)
class _StorageType:
    """Stands on the stack for a storage class."""

    dtype: str


_GLOBALS: dict[tuple[str, str], Any] = {
    ("argparse", "Namespace"): Namespace,
    ("collections", "OrderedDict"): _Builder("OrderedDict"),
    ("torch", "Size"): _Builder("Size"),
    ("torch._utils", "_rebuild_tensor"): _Builder("_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"): _Builder("_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"): _Builder("_rebuild_parameter"),
} | {(module, name): _StorageType(dtype) for module in ("torch", "torch.cuda") for name, dtype in _STORAGES.items()}
_KEYS = (str, bytes, int, float, type(None))  # bool is an int
_ONLY = "only tensors and plain containers are read"


def _is_size(value: object) -> bool:
    """Whether it is an integer from 0 to 2**63 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def shown(value: object) -> str:
    """A value of the file for a message: short, and without control characters."""
    if isinstance(value, str):
        return ascii(value) if len(value) <= 100 else f"{value[:100]!a}..."
    plain = isinstance(value, (int, float)) and abs(value) < 2**63
    return repr(value) if plain else repr(value[:100]) if isinstance(value, bytes) else f"a {type(value).__name__}"
