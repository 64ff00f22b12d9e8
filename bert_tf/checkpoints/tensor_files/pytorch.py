"""Files of torch.save, read without PyTorch and without running any code they contain (see `pickles`).

Reads both forms: the zip archive that PyTorch has written since 1.6, and the sequence of pickles before it
(torch/serialization.py, `_save` and `_legacy_save`).
"""

import dataclasses
import io
import mmap
import os
import zipfile
from collections.abc import Collection, Mapping
from typing import Any, BinaryIO, TypeGuard

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.tensor_files.pickles import Machine, Storage, shown
from bert_tf.errors import DataError

_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of the old form
_PROTOCOL = 1001  # the second
_LOCAL_HEADER = 30  # bytes of a file header in a zip archive, without name and extra field


def check_allowed(file: str, allow_pickle: bool) -> None:
    """Raises DataError unless the caller has allowed pickled files."""
    if not allow_pickle:
        raise DataError(
            f"{file}: a pickled file, which is read only on request: python -m bert_tf.convert --allow_pickle, or "
            "allow_pickle=True (bert_tf reads only tensors and plain containers from it, and runs no code)"
        )


def open_pickled(file: str) -> dict[str, Tensor]:
    """The tensors of a state dict, as in pytorch_model.bin.

    Args:
        file: written by torch.save: a dict of tensors, or a dict that has it under "state_dict" or "model".
    """
    value = open_nested(file)
    candidates = [value, *(value.get(key) for key in ("state_dict", "model"))] if isinstance(value, dict) else []
    for candidate in candidates:
        if candidate and is_state_dict(candidate):
            return named(candidate)
    found = f"a dict of {_listed(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
    raise DataError(f"{file} holds {found}; expected a dict of tensors, or one under 'state_dict' or 'model'")


def open_nested(file: str) -> Any:
    """The whole object in a file of torch.save, with its nesting.

    Returns:
        dicts, lists, tuples, numbers, str, bytes, None, `Namespace`, and Tensor for each tensor and parameter.
    """
    try:
        with open(file, "rb") as stream:
            start = stream.read(4)
            if start == b"PK\3\4":
                return _open_archive(file, stream)
            if not start:
                raise DataError(f"{file} is empty; expected a file that torch.save wrote")
            # A memory map, as its read() never asks for more memory than the file has bytes left.
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _open_sequence(file, data)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from None


def is_state_dict(value: object) -> TypeGuard[dict[str, Tensor]]:
    """Whether `value` is a dict of tensors by name."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    )


def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A dict name -> Tensor whose tensors know their names."""
    return {name: dataclasses.replace(tensor, source=name) for name, tensor in tensors.items()}


def _open_archive(file: str, stream: BinaryIO) -> Any:
    """Reads the zip form: NAME/data.pkl, NAME/data/KEY for each storage, NAME/byteorder if new; never compressed."""
    size = os.path.getsize(file)
    try:
        with zipfile.ZipFile(stream) as archive:
            records = {record.filename: record for record in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:  # ValueError: bad names or offsets
        raise DataError(f"{file} cannot be read: {error}; download the file again") from None
    pickles = [name for name in records if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise DataError(f"{file}: a zip file with {len(pickles)} data.pkl; expected one, as torch.save writes")
    folder = pickles[0].removesuffix("data.pkl")

    def span(name: str) -> tuple[int, int]:
        """Offset and number of bytes of a record."""
        record, shown_name = records.get(folder + name), shown(folder + name)
        if record is None:
            raise DataError(f"{file}: no {shown_name} in the archive; download the file again")
        if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1:  # 1: encrypted
            raise DataError(f"{file}: {shown_name} is compressed; expected the archive as torch.save wrote it")
        stream.seek(record.header_offset if 0 <= record.header_offset < size else size)  # at the end: no header
        header = stream.read(_LOCAL_HEADER)
        lengths = [int.from_bytes(header[at : at + 2], "little") for at in (26, 28)]  # of the name, the extra field
        start = record.header_offset + _LOCAL_HEADER + sum(lengths)
        if header[:4] != b"PK\3\4" or start + record.file_size > size:
            raise DataError(f"{file}: {shown_name} is not where the archive lists it; download the file again")
        return start, record.file_size

    def read(name: str) -> bytes:
        start, length = span(name)
        stream.seek(start)
        return stream.read(length)

    def locate(storage: Storage) -> None:
        storage.start, length = span(f"data/{storage.key}")
        if storage.nbytes > length:
            raise DataError(
                f"{file}: the storage {shown(storage.key)} has {length} bytes, not the {storage.nbytes} of "
                f"{storage.count} {storage.dtype}; download the file again"
            )

    order = read("byteorder") if f"{folder}byteorder" in records else b"little"
    if order not in (b"little", b"big"):
        raise DataError(f"{file}: the byte order is {shown(order)}; expected little or big")
    return Machine(file, io.BytesIO(read("data.pkl")), order.decode(), locate).run()


def _open_sequence(file: str, data: mmap.mmap) -> Any:
    """Reads the old form: pickles of magic number, protocol, system, object and storage keys, then the storages."""
    try:
        magic = Machine(file, data).run()
    except DataError:
        magic = None
    if magic != _MAGIC:
        raise DataError(f"{file} is neither of the forms that torch.save writes (an archive; before 1.6 pickles)")
    protocol = Machine(file, data).run()
    if protocol != _PROTOCOL:
        raise DataError(f"{file}: protocol {shown(protocol)} of torch.save; expected {_PROTOCOL}")
    Machine(file, data).run()  # integer sizes of the machine that wrote it; the sizes in the file are fixed
    # The numbers are little-endian, whichever machine wrote them.
    machine = Machine(file, data, locate=lambda storage: None)
    value = machine.run()
    keys = Machine(file, data).run()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise DataError(f"{file}: no list of storages after the object; download the file again")
    for key in keys:
        storage = machine.storages.get(key)
        count = int.from_bytes(data.read(8), "little")
        if storage is None or storage.start is not None or count != storage.count:
            raise DataError(f"{file}: the storage {shown(key)} is not the one that its tensors refer to")
        storage.start = data.tell()
        if storage.start + storage.nbytes > len(data):
            raise DataError(f"{file}: truncated in the storage {shown(key)}; download the file again")
        data.seek(storage.start + storage.nbytes)
    lacking = [key for key, storage in machine.storages.items() if storage.start is None]
    if lacking:
        raise DataError(f"{file}: no storage {shown(lacking[0])}, which a tensor refers to; download the file again")
    return value


def _listed(value: Collection[object]) -> str:
    names = [shown(key) for key in list(value)[:5]]
    return ", ".join(names) + ", ..." * (len(value) > len(names)) if names else "nothing"
