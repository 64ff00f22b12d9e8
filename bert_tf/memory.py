"""Too little memory, as an error that says what takes less of it."""

import contextlib
import re
from collections.abc import Iterator

from bert_tf.errors import BertTfError

# As TensorFlow's allocators, XLA and CUDA say it.
_OUT_OF_MEMORY = re.compile(
    r"OOM when allocating (?:a )?tensor with shape\[[\d,]*\]|CUDA_ERROR_OUT_OF_MEMORY|out of memory[^.\n]{0,80}"
    r"|failed to allocate[^.\n]{0,80}",
    re.IGNORECASE,
)
_DEVICE = re.compile(r"device:([A-Z]+:\d+)")
_MESSAGE = 20_000  # characters of a message that are searched


def lacking_memory(error: BaseException) -> str:
    """What could not be allocated, and where, if an error is about memory; "" for any other."""
    if isinstance(error, MemoryError):
        return str(error) or "out of memory"
    message = str(getattr(error, "message", ""))[:_MESSAGE]  # of TensorFlow's errors
    found = _OUT_OF_MEMORY.search(message)
    device = _DEVICE.search(message)
    return " ".join(found[0].split()) + (f" on {device[1]}" if device else "") if found else ""


@contextlib.contextmanager
def memory_errors(remedy: str) -> Iterator[None]:
    """Turns errors about memory into a BertTfError that ends with `remedy`: what takes less."""
    try:
        yield
    except Exception as error:
        found = lacking_memory(error)
        if not found or isinstance(error, BertTfError):
            raise
        raise BertTfError(f"not enough memory ({found}); {remedy}") from None
