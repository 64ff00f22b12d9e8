"""Streams in parts that fit into memory, and too little of it as an error that says what takes less."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from bert_tf.errors import BertTfError

_Item = TypeVar("_Item")
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


def in_chunks(items: Iterable[_Item], count: int, size: int, length: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Splits any stream into lists of at most `count` consecutive items and `size` in total.

    Args:
        items: one list of them is in memory at a time.
        count: at least 1.
        size: limit of the sum of the items' lengths; a longer item is a list of its own.
        length: function from an item to its length.
    """
    chunk: list[_Item] = []
    total = 0
    for item in items:
        added = length(item)
        if chunk and (len(chunk) == count or total + added > size):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += added
    if chunk:
        yield chunk
