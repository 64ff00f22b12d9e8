"""Files of torch.save, read without PyTorch and without running anything that they ask for (see `pickles`).

Both forms of the file are read: the zip archive that PyTorch writes since 1.6 and the sequence of pickles before it
(torch/serialization.py, `_save` and `_legacy_save`).
"""

import dataclasses
import io
import mmap
import os
import zipfile

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.tensor_files.pickles import Machine, shown
from bert_tf.errors import DataError

_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of the form before the archive
_PROTOCOL = 1001  # the second
_LOCAL_HEADER = 30  # bytes of a file's header in a zip archive, name and extra field not counted


def check_allowed(file, allow_pickle):
    """Raises DataError unless the caller has asked for pickled files."""
    if not allow_pickle:
        raise DataError(
            f"{file}: a pickled file, which is read only on request: python -m bert_tf.convert --allow_pickle, or "
            "allow_pickle=True (bert_tf takes tensors and plain containers from it, and runs no code)"
        )


def open_pickled(file):
    """The tensors of a state dict, as in pytorch_model.bin.

    Args:
        file: path of a file that torch.save wrote: a dict of tensors, or one that has it under "state_dict" or "model".

    Returns:
        dict name -> Tensor. A tensor's bytes are read, and its file opened, only when it is.

    Raises:
        DataError: no such file, not one of torch.save, cut short, or asking for anything but tensors and plain
            containers; the line names what.
    """
    value = open_nested(file)
    candidates = [value, *(value.get(key) for key in ("state_dict", "model"))] if isinstance(value, dict) else []
    for candidate in candidates:
        if candidate and is_state_dict(candidate):
            return named(candidate)
    found = f"a dict of {_listed(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
    raise DataError(f"{file} holds {found}; expected a dict of tensors, or one under 'state_dict' or 'model'")


def open_nested(file):
    """All of a file, as it is nested.

    Args:
        file: path of a file that torch.save wrote.

    Returns:
        dicts, lists, tuples, numbers, str, bytes, None, `Namespace`, and Tensor for each tensor and parameter.

    Raises:
        DataError: as `open_pickled`.
    """
    try:
        with open(file, "rb") as stream:
            start = stream.read(4)
            if start == b"PK\3\4":
                return _open_archive(file, stream)
            if not start:
                raise DataError(f"{file} is empty; expected a file that torch.save wrote")
            # A map of the file: its read() never asks for more memory than the file has bytes left.
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _open_sequence(file, data)
    except OSError as error:
        raise DataError(f"{file} can not be read: {error.strerror or error}") from None


def is_state_dict(value):
    """Whether `value` is a dict of names and tensors."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
    )


def named(tensors):
    """A dict name -> Tensor whose tensors know their names."""
    return {name: dataclasses.replace(tensor, source=name) for name, tensor in tensors.items()}


def _open_archive(file, stream):
    """The zip form: NAME/data.pkl, NAME/data/KEY for each storage, NAME/byteorder in newer ones; nothing compressed."""
    size = os.path.getsize(file)
    try:
        with zipfile.ZipFile(stream) as archive:
            records = {one.filename: one for one in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:  # the last: names, places of no file
        raise DataError(f"{file} can not be read: {error}; fetch the file again") from None
    pickles = [name for name in records if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise DataError(f"{file}: a zip file with {len(pickles)} data.pkl; expected one, as torch.save writes")
    folder = pickles[0].removesuffix("data.pkl")

    def span(name):
        """First byte and number of bytes of a record."""
        record, called = records.get(folder + name), shown(folder + name)
        if record is None:
            raise DataError(f"{file}: no {called} in the archive; fetch the file again")
        if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1:  # 1: encrypted
            raise DataError(f"{file}: {called} is compressed; expected the archive as torch.save wrote it")
        stream.seek(record.header_offset if 0 <= record.header_offset < size else size)  # there is no header
        header = stream.read(_LOCAL_HEADER)
        lengths = [int.from_bytes(header[at : at + 2], "little") for at in (26, 28)]  # of the name, the extra field
        start = record.header_offset + _LOCAL_HEADER + sum(lengths)
        if header[:4] != b"PK\3\4" or start + record.file_size > size:
            raise DataError(f"{file}: {called} is not where the archive has it; fetch the file again")
        return start, record.file_size

    def read(name):
        start, length = span(name)
        stream.seek(start)
        return stream.read(length)

    def locate(storage):
        storage.start, there = span(f"data/{storage.key}")
        if storage.nbytes > there:
            raise DataError(
                f"{file}: the storage {shown(storage.key)} has {there} bytes, not the {storage.nbytes} of "
                f"{storage.count} {storage.dtype}; fetch the file again"
            )

    order = read("byteorder") if f"{folder}byteorder" in records else b"little"
    if order not in (b"little", b"big"):
        raise DataError(f"{file}: the byte order is {shown(order)}; expected little or big")
    return Machine(file, io.BytesIO(read("data.pkl")), order.decode(), locate).run()


def _open_sequence(file, data):
    """The form before: pickles of a magic number, a protocol, the system, the object and the storages' keys; storages.

    Args:
        file: path.
        data: mmap of it.
    """
    try:
        magic = Machine(file, data).run()
    except DataError:
        magic = None
    if magic != _MAGIC:
        raise DataError(f"{file} is neither of the forms that torch.save writes (an archive; before 1.6 pickles)")
    protocol = Machine(file, data).run()
    if protocol != _PROTOCOL:
        raise DataError(f"{file}: protocol {shown(protocol)} of torch.save; expected {_PROTOCOL}")
    Machine(file, data).run()  # sizes of integers on the machine that wrote it; those in the file are fixed
    # The numbers are in little-endian order whatever machine wrote them.
    machine = Machine(file, data, locate=lambda storage: None)
    value = machine.run()
    keys = Machine(file, data).run()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise DataError(f"{file}: no list of storages after the object; fetch the file again")
    for key in keys:
        storage = machine.storages.get(key)
        count = int.from_bytes(data.read(8), "little")
        if storage is None or storage.start is not None or count != storage.count:
            raise DataError(f"{file}: the storage {shown(key)} is not the one that its tensors ask for")
        storage.start = data.tell()
        if storage.start + storage.nbytes > len(data):
            raise DataError(f"{file}: cut short in the storage {shown(key)}; fetch the file again")
        data.seek(storage.start + storage.nbytes)
    lacking = [key for key, storage in machine.storages.items() if storage.start is None]
    if lacking:
        raise DataError(f"{file}: no storage {shown(lacking[0])}, which a tensor asks for; fetch the file again")
    return value


def _listed(value):
    names = [shown(key) for key in list(value)[:5]]
    return ", ".join(names) + ", ..." * (len(value) > len(names)) if names else "nothing"
