"""A double-array trie over UTF-8, in the layout of darts-clone that TF Text's normalizer reads.

A unit is a uint32. In a node, bits 0-7 are the byte that leads to it, bit 8 tells whether it has a value, and bits
10-30 are the distance (xor) to the base of its children: the child for byte c is at `base ^ c`, the value at
`base ^ 0`. A value has bit 31 set.

darts-clone searches for free cells that fit the children of a node. That is not necessary here: all bytes of a UTF-8
character but the first are in 0x80-0xBF, so every node gets its own slot of 64 cells, and values fill the remaining
cells.
"""

from collections.abc import Mapping

import numpy as np

from bert_tf.types import Array

_SLOT = 64
_ROOT_BASE = 256  # the root's children may be any byte: cells 256-511
_FIRST_SLOT = (_ROOT_BASE + 256) // _SLOT
UNUSED = 1 << 31  # no byte leads there; to a cell of zeros U+0000 would


def build_trie(values: Mapping[bytes, int]) -> Array:
    """Builds the units of a trie.

    Args:
        values: numbers in [0, 2**31) by key. Keys are single UTF-8 characters other than U+0000, or single bytes that
            cannot start a character; so no key is a prefix of another.

    Returns:
        uint32 [cells].
    """
    slots: dict[bytes, int] = {}  # by prefix of a key
    for key in values:
        for end in range(1, len(key)):
            slots.setdefault(key[:end], _FIRST_SLOT + len(slots))

    def cell_of(path: bytes) -> int:
        return _ROOT_BASE + path[0] if len(path) == 1 else slots[path[:-1]] * _SLOT + (path[-1] & 0x3F)

    leaves = np.array([cell_of(key) for key in values], np.int64)
    branches = {prefix: cell_of(prefix) for prefix in slots}
    cells = _SLOT * (_FIRST_SLOT + len(slots))
    free = np.ones(cells + 2 * len(values) + _SLOT, bool)
    free[_ROOT_BASE : 2 * _ROOT_BASE] = False
    # Bases are multiples of 64. A value there would share its base with a node, and its leaf would share its children.
    free[::_SLOT] = False
    free[leaves] = free[list(branches.values())] = False
    value_cells = np.flatnonzero(free)[: len(values)]

    units = np.full(max(cells, int(value_cells[-1]) + 1), UNUSED, np.uint32)
    units[0] = _ROOT_BASE << 10
    for prefix, cell in branches.items():
        base = slots[prefix] * _SLOT ^ 0x80  # so that base ^ (0x80 | low) is the slot's cell `low`
        units[cell] = (cell ^ base) << 10 | prefix[-1]
    units[leaves] = (leaves ^ value_cells) << 10 | 1 << 8 | np.array([key[-1] for key in values])
    units[value_cells] = np.fromiter(values.values(), np.int64, len(values)) | 1 << 31
    return units
