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
_MAX_CELLS = 1 << 21  # the limit of a unit's offset field


def build_trie(values: Mapping[bytes, int]) -> Array:
    """Builds the units of a trie.

    Args:
        values: numbers in [0, 2**31) by key. Keys are single UTF-8 characters other than U+0000, or single bytes that
            cannot start a character; so no key is a prefix of another.

    Returns:
        uint32 [cells].
    """
    slots: dict[bytes, int] = {}  # by prefix of a key
    leaf_cells, leaf_labels = [], []
    cell = 0
    for key in values:
        for end in range(1, len(key)):
            slots.setdefault(key[:end], _FIRST_SLOT + len(slots))
        cell = _ROOT_BASE + key[0] if len(key) == 1 else slots[key[:-1]] * _SLOT + (key[-1] & 0x3F)
        leaf_cells.append(cell)
        leaf_labels.append(key[-1])

    leaves = np.array(leaf_cells, np.int64)
    cells = _SLOT * (_FIRST_SLOT + len(slots))
    free = np.ones(cells + 2 * len(values) + _SLOT, bool)
    free[_ROOT_BASE : 2 * _ROOT_BASE] = False
    # Bases are multiples of 64. A value there would share its base with a node, and its leaf would share its children.
    free[::_SLOT] = False
    free[leaves] = False
    branch_cells = {
        prefix: _ROOT_BASE + prefix[0] if len(prefix) == 1 else slots[prefix[:-1]] * _SLOT + (prefix[-1] & 0x3F)
        for prefix in slots
    }
    free[list(branch_cells.values())] = False
    value_cells = np.flatnonzero(free)[: len(values)]

    units = np.zeros(max(cells, int(value_cells[-1]) + 1), np.uint32)
    if len(units) > _MAX_CELLS:
        raise ValueError(f"{len(values)} characters need {len(units)} cells, but a unit's offset reaches {_MAX_CELLS}")
    units[0] = _ROOT_BASE << 10
    for prefix, cell in branch_cells.items():
        base = slots[prefix] * _SLOT ^ 0x80  # so that base ^ (0x80 | low) is the slot's cell `low`
        units[cell] = (cell ^ base) << 10 | prefix[-1]
    units[leaves] = (leaves ^ value_cells) << 10 | 1 << 8 | np.array(leaf_labels)
    units[value_cells] = np.fromiter(values.values(), np.int64, len(values)) | 1 << 31
    return units
