"""Safetensors files, also sharded: read and written one tensor at a time, without holding the model in memory.

Files that are written here have the CRC-32 of each tensor in their metadata; it is checked whenever a tensor is read.
Files of others have none.
"""

import contextlib
import functools
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypedDict

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.errors import DataError
from bert_tf.files import check_file, checksum, read_json, replacing
from bert_tf.types import Array, Json

# NumPy's dtype names -> the format's (https://github.com/huggingface/safetensors, "Format").
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
_DTYPES["int8"] = "I8"  # of tables of static vectors
_NAMES = {theirs: ours for ours, theirs in _DTYPES.items()}
_CHECKSUM = "crc32:"  # before the name of a tensor
_LENGTH = 8  # bytes of the number before the header


class _OpenFile:
    """A file that stays open, and so can be read when another one has its path, or none.

    Its pages are mapped only while a tensor is read: mapped for longer they would count as memory of the process.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.path = f"/dev/fd/{descriptor}"


class _Index(TypedDict):
    weight_map: dict[str, str]  # tensor -> file


def open_tensors(file: str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file by name."""
    tensors: dict[str, Tensor] = {}
    check_file(file)
    try:
        stays = _OpenFile(file)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}; expected a safetensors file") from None
    with _opened(stays.path, file) as opened:
        checksums = opened.metadata() or {}
        for name in opened.keys():  # noqa: SIM118
            part = opened.get_slice(name)
            dtype = part.get_dtype()
            if dtype not in _NAMES:
                raise DataError(f"{file}: {name} has the type {dtype}; expected one of {', '.join(_NAMES)}")
            read = functools.partial(_read, stays, name, checksums.get(_CHECKSUM + name))
            tensors[name] = Tensor(tuple(part.get_shape()), _NAMES[dtype], read, name, lasting=True)
    return tensors


def metadata(file: str) -> dict[str, str]:
    """The metadata of a .safetensors file."""
    check_file(file)
    with _opened(file, file) as tensors:
        return tensors.metadata() or {}


def open_sharded(index: str, open_file: Callable[[str], dict[str, Tensor]] = open_tensors) -> dict[str, Tensor]:
    """The tensors of all files that an index lists, by name.

    Args:
        index: path of a file such as model.safetensors.index.json; the files are beside it.
        open_file: opens one of the files.
    """
    weight_map, directory = read_json(index, _Index)["weight_map"], os.path.dirname(index)
    files = set(os.listdir(directory or "."))
    absent = [name for name in weight_map.values() if name not in files]
    if absent:
        raise DataError(f"{index} lists {absent[0]!a}, which is no file beside it; download the files again")
    shards = {name: open_file(os.path.join(directory, name)) for name in sorted(set(weight_map.values()))}
    lacking = [f"{name!a} in {shard}" for name, shard in weight_map.items() if name not in shards[shard]]
    if lacking:
        raise DataError(f"{index} lists {len(lacking)} missing tensors, first {lacking[0]}; download the files again")
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def header_of(file: str) -> bytes:
    """The header of a .safetensors file: with the checksums of all tensors, if it was written here."""
    check_file(file)
    try:
        with open(file, "rb") as stream:
            begin = stream.read(_LENGTH)
            length = int.from_bytes(begin, "little")
            return begin + (stream.read(length) if length < os.path.getsize(file) else b"")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}; expected a safetensors file") from None


def write_tensors(file: str, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Writes tensors, reading and writing one at a time; the file appears only when it is complete.

    The library's own writer takes all tensors at once, as bytes; for BERT-large that is 2.7 GB.
    """
    # Writing the widest types first keeps every tensor aligned to its own item size, as in the library's files.
    ordered = sorted(tensors.items(), key=lambda item: (-np.dtype(item[1].dtype).itemsize, item[0]))
    checksums = {_CHECKSUM + name: checksum(b"") for name, _ in ordered}
    with replacing(file) as temporary, open(temporary, "wb") as out:
        out.write(_header(ordered, metadata | checksums))
        for name, tensor in ordered:
            values = _bytes_of(tensor.read().reshape(tensor.shape))
            checksums[_CHECKSUM + name] = checksum(values)
            out.write(values)
        out.seek(0)  # checksums have one length, so the header has it, too
        out.write(_header(ordered, metadata | checksums))


def _header(ordered: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str]) -> bytes:
    header: Json = {"__metadata__": {"format": "pt", **metadata}}  # Transformers refuses a file without the first
    position = 0
    for name, tensor in ordered:
        offsets = [position, position + tensor.nbytes]
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH, "little") + text


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data  # the buffers of bfloat16 have no type


@contextlib.contextmanager
def _opened(path: str, name: str) -> Iterator[Any]:
    """The tensors of a file, which is called `name` in errors."""
    try:
        with safe_open(path, framework="numpy") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        reason = str(error).replace(path, name)
        raise DataError(f"{name} cannot be read: {reason}; expected a safetensors file") from None


def _read(file: _OpenFile, name: str, expected: str | None) -> Array:
    with _opened(file.path, file.name) as tensors:
        values: Array = tensors.get_tensor(name)
    if expected is not None and (found := checksum(_bytes_of(values))) != expected:
        raise DataError(
            f"{file.name}: {name} is damaged (CRC-32 {found}, expected {expected}); get or make the file again; if "
            f"another program changed its values, it must leave out {_CHECKSUM + name!r} in the metadata"
        )
    return values
