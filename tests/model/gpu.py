"""Programs for a GPU, on a machine without one: XLA's input for it, and the same operations computed on the CPU."""

import contextlib
import re
from unittest import mock

import tensorflow as tf

from bert_tf.model import fused


@contextlib.contextmanager
def as_on_a_gpu():
    """Layers choose their operations as on a machine with a GPU."""
    with mock.patch.object(fused, "only_cpus", lambda: False):
        yield


def program(function, *arguments):
    """The HLO, before XLA changes it, of what it would compile for a GPU."""
    compiled = tf.function(function, autograph=False, jit_compile=True)
    with as_on_a_gpu():
        return compiled.experimental_get_compiler_ir(*arguments)(stage="hlo", platform_name="GPU")


def operations(hlo):
    """The names of the operations in a program, in its order, with repetitions."""
    return re.findall(r"= (?:\([^)]*\)|\S+) ([a-z][a-z0-9-]+)\(", hlo)
