"""Values that no argument and no setting should choke on."""

import math
import os

import numpy as np
import tensorflow as tf

HALF = "a\ud800"  # half of a surrogate pair
BIG, HUGE = 10**400, 10**5000  # no float reaches these, and Python does not write the second


class Odd:
    """A value that cannot even be shown."""

    def __repr__(self):
        raise ValueError


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def endless():
    """A list that holds itself."""
    value = []
    value.append(value)
    return value


# For every argument and every setting, whatever its type.
VALUES = {
    "None": None, "True": True, "0": 0, "-1": -1, "2**63": 2**63, "1.5": 1.5, "nan": math.nan, "inf": math.inf,
    "-inf": -math.inf, "10**400": BIG, "10**5000": HUGE, "1j": 1j,
    "empty text": "", "text": "nosuch", "spaces": " ", "long text": "x" * 100_000, "NUL": "a\0b", "surrogate": HALF,
    "bytes": b"a", "broken UTF-8": b"a\xff",
    "[]": [], "()": (), "{}": {}, "set": {1}, "[None]": [None], "[text]": ["16"], "[[1]]": [[1]], "[half]": [HALF],
    "(1, 2, 3)": (1, 2, 3), "dict": {"a": 1}, "{1: 2}": {1: 2}, "nested": nested(1500), "deep": nested(300),
    "endless list": endless(), "range": range(3), "Odd": Odd(), "[Odd]": [Odd()], "object": object(),
    "type": str, "function": len, "object array": np.array([None, "a"], object), "scalar array": np.array("x"),
    "empty array": np.zeros([0]), "array": np.ones([2, 2]), "NumPy nan": np.float32("nan"),
    "date": np.datetime64("2020-01-01"), "tensor": tf.constant(1.5), "strings": tf.constant([["a"]]),
    "ragged": tf.ragged.constant([[1], []]), "spec": tf.TensorSpec(None, tf.string),
}  # fmt: skip


def paths(folder):
    """What a path may lead to: by name, the path of each."""
    os.makedirs(folder, exist_ok=True)
    made = {name: os.path.join(folder, name) for name in ("file", "binary", "fifo", "empty", "link", "linked")}
    with open(made["file"], "w") as file:
        file.write("x\ny\n")
    with open(made["binary"], "wb") as file:
        file.write(bytes(range(256)) * 16)
    os.mkfifo(made["fifo"])
    os.mkdir(made["empty"])
    os.symlink("link", made["link"])  # to itself
    os.symlink(made["empty"], made["linked"])
    return made | {
        "missing": os.path.join(folder, "no", "such"),
        "below a file": os.path.join(made["file"], "a"),
        "too long": os.path.join(folder, "x" * 5000),
        "device": "/dev/zero",
        "remote": "gs://nosuch/a",
        "hub": "hf://no",
        "hub of nobody": "hf://a/../b",
    }
