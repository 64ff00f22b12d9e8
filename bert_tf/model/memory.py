"""Refuses models that do not fit into the memory of this machine, before they fill it."""

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import ConfigError

# Limits of a container, in the two versions of Linux' control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_memory(
    shapes: Iterable[tuple[int, ...]], config: BertConfig, *, size: int = 4, copies: int = 1, use: str = ""
) -> None:
    """Raises ConfigError for weights that are too many for this machine. With a GPU or TPU, its own memory counts.

    The largest variable exists once more, beside its first value.

    Args:
        shapes: of the variables.
        config: of the encoder, for the error.
        size: bytes of a weight.
        copies: how many numbers there are for each weight.
        use: what these are for, for the error.
    """
    if any(map(tf.config.list_physical_devices, ("GPU", "TPU"))):
        return
    sizes = [math.prod(shape) for shape in shapes]
    needed, memory = size * (copies * sum(sizes) + max(sizes, default=0)), machine_memory()
    if needed > memory:
        raise ConfigError(
            f"the model's {sum(sizes):,} weights need {needed / 1e9:,.1f} GB of memory{use}, and this machine has "
            f"{memory / 1e9:,.1f} GB; lower {config.sizes}"
        )


def machine_memory() -> int:
    """Bytes of memory that this process may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such version; "max" for no limit
            memory = min(memory, int(Path(path).read_text()))
    return memory
