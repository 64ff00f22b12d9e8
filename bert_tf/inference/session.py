"""A TensorFlow session in a new process, to run an export as TF Serving does.

`tf.saved_model.load` restores variables in its own way, which hides variables that TF Serving would miss: a server
loads the graph and runs a session on it. So the new process does the same (`ask.py`). This module does not import
TensorFlow, so that a program can start the process first.
"""

import importlib.resources
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Annotated, Any, Self, TypeAlias

from bert_tf.config.values import Rule
from bert_tf.errors import DataError
from bert_tf.types import Json


class NotServable(DataError):
    """TF Serving could not run the export, or its answers would differ from the model's."""


FORMATS = ("saved_model", "onnx", "litert")  # of exports
# For float32 on a CPU: both processes run the same kernels.
EXACT = 1e-5
# Mode -> largest difference of the last layer from float32 (root mean square, relative). bfloat16, in which XLA's
# programs compute as well, has 8 bits, so it rounds by 0.2% on average. In int8 an input has 7 bits, and its largest
# values are clipped. In int4, weights are rounded by 8%.
TOLERANCES = {"none": EXACT, "bfloat16": 0.03, "xla": 0.03, "int8": 0.1, "int4": 0.3}
# Mode -> largest difference of the answers of a session from those of the same graph in memory. TensorFlow may fuse,
# and so round, differently in a session, but not the float32 to which int4 is decoded.
ANSWER_TOLERANCES = TOLERANCES | {"int4": EXACT}

# Of arguments.
ExportFormat: TypeAlias = Annotated[str, Rule(choices=FORMATS)]
Optimization: TypeAlias = Annotated[str, Rule(choices=tuple(TOLERANCES))]

# Imports what ask.py will need, waits for the arguments and becomes ask.py.
_WAITING = """
import runpy, sys
import tensorflow
try:
    import tensorflow_text
except Exception:  # ask.py names what it lacks
    pass
program, *sys.argv[1:] = sys.stdin.buffer.readline().decode().split("\\0")[:-1]
sys.argv[0] = program
runpy.run_path(program, run_name="__main__")
"""


class Session:
    """A new process that loads an exported version as TF Serving does; a context manager that ends it.

    It imports TensorFlow, which takes seconds, while this process does so and makes the version.

    Args:
        code: what the process runs; by default ask.py, on what `ask` is called with.
        **environment: variables of the process, in addition to those of this one.
    """

    def __init__(self, code: str = _WAITING, **environment: str) -> None:
        self._asked = False
        self._process = subprocess.Popen(
            # -P keeps the current folder out of sys.path.
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            # This process may have taken all of the GPU's memory.
            env={"TF_CPP_MIN_LOG_LEVEL": "3"}
            | os.environ
            | {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONIOENCODING": "utf-8"}
            | environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        # After a second Ctrl-C, the thread of `_checked` may still be in `communicate`, which closes the pipes.
        if self._asked:
            self._process.wait()
        else:
            self._process.communicate()

    def ask(self, path: str, requests: Iterable[Json]) -> list[Any]:
        """Runs requests; once only.

        Args:
            path: directory of the version.
            requests: questions to the model, or bodies for the `predict` method of TF Serving's REST API.

        Returns:
            For each request the answer of ask.py; to a body that of TF Serving's REST API: {"outputs": ...} or
            {"error": ...}.

        Raises:
            NotServable: the version cannot be loaded, or a question not be answered.
        """
        self._asked = True
        program = str(importlib.resources.files("bert_tf.inference") / "ask.py")
        lines = f"{program}\0{path}\0\n" + "".join(json.dumps(request) + "\n" for request in requests)
        answers, errors = self._process.communicate(lines)
        if status := self._process.returncode:
            last = (errors.strip().splitlines() or ["no output"])[-1]
            raise NotServable(f"a TensorFlow session could not load the export (exit status {status}): {last}")
        return [json.loads(line) for line in answers.splitlines()]
