"""Files of torch.save: PyTorch itself reads them, with the unpickler that runs no code (`weights_only`)."""

import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from typing import IO, Any

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import check_file
from bert_tf.types import Array

_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_CONTAINERS = (dict, list, tuple, set, frozenset)
_DEEPEST = 100  # levels of nesting; the state of a training has less than ten
_MOST_PICKLED = 1 << 22  # bytes, or instructions, of names and shapes: there are 170 bytes for each tensor
_MOST_TUPLES = 50_000  # in a file, four for each tensor: nested and hashed, more would overflow the stack of 8 MB


def check_allowed(file: str, allow_pickle: bool) -> None:
    """Raises DataError unless the caller has allowed pickled files."""
    if not allow_pickle:
        raise DataError(
            f"{file}: a pickled file, which is read only on request: python -m bert_tf.convert --allow_pickle, or "
            "allow_pickle=True (only tensors and plain containers are read from it, and no code is run)"
        )


def open_pickled(file: str) -> dict[str, Tensor]:
    """The tensors of a state dict, as in pytorch_model.bin.

    Args:
        file: written by torch.save: a dict of tensors, or a dict that has it under "state_dict" or "model".
    """
    value = _open(file)
    candidates = [value, *(value.get(key) for key in ("state_dict", "model"))] if isinstance(value, dict) else []
    for candidate in candidates:
        tensors = _tensors(candidate, file)
        if tensors:
            return tensors
    found = f"a dict of {', '.join(map(ascii, list(value)[:5]))}" if isinstance(value, dict) else f"a {type(value)}"
    raise DataError(f"{file} holds {found[:200]}; expected a dict of tensors, or one under 'state_dict' or 'model'")


def _open(file: str) -> Any:
    """The whole object in a file of torch.save, with its nesting.

    Tensors stay on disk (a memory map), except in the files that PyTorch wrote before 1.6, which are no zip archives.

    Returns:
        dicts, lists, tuples, numbers, str, bytes, None and torch.Tensor.
    """
    try:
        import torch

        # Older ones can be made to run code or to corrupt memory (CVE-2025-32434, CVE-2026-24747).
        problem = "" if torch.__version__ >= "2.10" else f"this is {torch.__version__}"
    except ImportError as error:
        problem = str(error)
    if problem:
        raise ConfigError(
            f"{file}: PyTorch 2.10 or newer reads pickled files ({problem}): pip install 'bert_tf[torch]'; its CPU "
            "wheels suffice"
        )
    check_file(file)
    try:
        _check_tuples(file)
        with warnings.catch_warnings(action="ignore"):
            value = torch.load(file, map_location="cpu", weights_only=True, mmap=_can_be_mapped(file))
            _check_nesting(value)
            return value
    except Exception as error:  # the instructions of a damaged or hostile file can fail in any way
        cause = error.__context__ or error  # PyTorch wraps it in paragraphs of advice to trust the file
        text = getattr(cause, "strerror", None) or str(cause).strip() or type(cause).__name__
        reason = ascii(text.split("\n")[0].partition(" Please use")[0].rstrip("."))[1:-1]
        raise DataError(
            f"{file} cannot be read: {reason[:200]}; expected a file of torch.save with tensors and plain containers"
        ) from None


def _check_tuples(file: str) -> None:
    """Raises ValueError for more tuples than can be nested: Python hashes a key recursively, without a limit.

    And for more instructions than tensors need: a small file may be unpacked to any number.
    """
    count = 0
    for stream in _pickles(file):
        for number, (opcode, _, _) in enumerate(pickletools.genops(stream)):
            if number > _MOST_PICKLED:
                raise ValueError(f"the pickle has more than {_MOST_PICKLED:,} instructions")
            count += opcode.name.startswith("TUPLE")
            if count > _MOST_TUPLES:
                raise ValueError(f"the pickle has more than {_MOST_TUPLES:,} tuples")


def _pickles(file: str) -> Iterator[IO[bytes]]:
    """Streams that are each at the start of a pickle of a file of torch.save."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if name.rpartition("/")[2] == "data.pkl":
                    if (size := archive.getinfo(name).file_size) > _MOST_PICKLED:
                        raise ValueError(f"{name} has {size:,} bytes unpacked, more than {_MOST_PICKLED:,}")
                    with archive.open(name) as stream:  # which ends at this size
                        yield stream
        return
    with open(file, "rb") as stream:
        for _ in range(5):  # magic number, protocol, system, the object, names of its storages
            if stream.peek(1):
                yield stream


def _check_nesting(value: object) -> None:
    """Raises ValueError for containers so deep, as keys too, that Python could not print or compare them."""
    seen, level = set[int](), [value]
    for _ in range(_DEEPEST):
        # Each once: a small file may name the same one in many places.
        containers = {id(one): one for one in level if isinstance(one, _CONTAINERS) and id(one) not in seen}
        seen.update(containers)
        level = []
        for one in containers.values():
            level += [*one, *one.values()] if isinstance(one, dict) else one
    if level:
        raise ValueError(f"containers are nested more than {_DEEPEST} levels deep")


def _tensors(value: object, file: str) -> dict[str, Tensor]:
    """The tensors of a state dict; empty for any other value."""
    import torch

    if not isinstance(value, dict) or not all(isinstance(one, torch.Tensor) for one in value.values()):
        return {}
    return {str(name): _tensor(tensor, str(name), file) for name, tensor in value.items()}


def _can_be_mapped(file: str) -> bool:
    """Whether it is a zip archive, and not compressed: torch.save never does that, but other programs do."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return all(record.compress_type == zipfile.ZIP_STORED for record in archive.infolist())


def _tensor(tensor: Any, name: str, file: str) -> Tensor:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_nested
    # A stride of 0 could make an array of any size from one number.
    if (
        dtype not in _DTYPES
        or not plain
        or tensor.layout is not torch.strided
        or tensor.device.type != "cpu"
        or tensor.nbytes > tensor.untyped_storage().nbytes()
    ):
        raise DataError(f"{file}: {name!a} is not a dense tensor of {', '.join(_DTYPES)}; save it as one")

    def read() -> Array:
        values = tensor.detach()
        values = values.view(torch.int16) if dtype == "bfloat16" else values  # PyTorch's numpy() has no bfloat16
        return values.numpy(force=True).view(dtype)

    return Tensor(tuple(tensor.shape), dtype, read, name, lasting=True)  # in memory, or mapped
