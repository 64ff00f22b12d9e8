"""Runs exported models through TensorFlow's session loader or its C API, in other processes."""

import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import bert_tf.inference.ask

# ask.py is run by its path, and -I excludes the working directory and PYTHONPATH, so bert_tf cannot be imported.
_SESSIONS = """
import json, runpy, sys
Model = runpy.run_path(sys.argv[1])["Model"]
for line in sys.stdin:
    path, bodies = json.loads(line)
    model = Model(path)
    ask = lambda body: (model.predict if isinstance(body.get("inputs"), dict) else model.ask)(body)
    print(json.dumps(list(map(ask, bodies))), flush=True)
assert "bert_tf" not in sys.modules
"""
_DTYPES = {1: np.float32, 3: np.int32, 7: object, 9: np.int64, 10: bool}


class Sessions:
    """Queries models through the session loader of TensorFlow's Python in another process, concurrently."""

    def __init__(self):
        # Files, because nobody reads while the process writes.
        self._output, self._errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-I", "-c", _SESSIONS, bert_tf.inference.ask.__file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._output, stderr=self._errors, text=True, cwd="/"
        )

    def ask(self, path, bodies):
        """Sends the folder of a version and a list of requests in the form of ask.py's lines."""
        print(json.dumps([path, bodies]), file=self._process.stdin, flush=True)

    def answers(self):
        """Answers of ask.py: a list of dicts for each call of `ask`."""
        self._process.stdin.close()
        status = self._process.wait()
        self._output.seek(0)
        self._errors.seek(0)
        assert status == 0, self._errors.read()[-3000:]
        return [json.loads(line) for line in self._output]


def python(version):
    """The Python of an environment with another TensorFlow; skips the test if there is none."""
    name = f"BERT_TF_TEST_TF_{version.replace('.', '_')}_PYTHON"
    if tf.__version__.startswith(f"{version}."):
        return sys.executable
    if name not in os.environ:
        pytest.skip(f"needs a Python with TensorFlow {version} and its TF Text in {name}; make test-all has one")
    return os.environ[name]


def by_c_api(cases, python=sys.executable, *, emulator=(), environment=None, log=None):
    """Queries models through the C API of the TensorFlow installed for a Python, without importing it.

    Args:
        cases: list of (path of a version's folder, list of Request).
        python: an executable.
        emulator: command that runs the executable.
        environment: variables, added to those of this process.
        log: list that gets the lines on standard error.

    Returns:
        list of lists of answers: {"outputs": dict name -> array} or {"error": [code, message]}.
    """
    site = _run([python, "-I", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], "")[0]
    program = str(pathlib.Path(__file__).with_name("c_api.py"))
    lines = "".join(json.dumps(_fed(path, one)) + "\n" for path, requests in cases for one in requests)
    command = [*emulator, os.path.realpath(python) if emulator else python, "-I", program, site]
    answers = iter([_fetched(json.loads(line)) for line in _run(command, lines, environment, log)])
    return [[next(answers) for _ in requests] for _, requests in cases]


def _run(command, lines, environment=None, log=None):
    environment = os.environ | (environment or {})
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd="/", env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    if log is not None:
        log += done.stderr.splitlines()
    return done.stdout.splitlines()


def _fed(path, request):
    """A request as a line for c_api.py."""
    graph = saved_model_pb2.SavedModel.FromString(pathlib.Path(path, "saved_model.pb").read_bytes()).meta_graphs[0]
    signature = graph.signature_def[request.signature]

    def at(info):
        name, _, index = info.name.rpartition(":")
        return name, int(index)

    def values(name, info):
        value = request.inputs[name]
        flat = value.ravel().tolist()
        if value.dtype == object:
            flat = [base64.b64encode(text).decode() for text in flat]
        return [*at(info), info.dtype, value.shape, flat]

    inputs = [values(name, info) for name, info in signature.inputs.items()]
    return {"path": path, "inputs": inputs, "outputs": {name: at(info) for name, info in signature.outputs.items()}}


def _fetched(answer):
    if "error" in answer:
        return answer
    found = {}
    for name, (shape, dtype, flat) in answer["outputs"].items():
        array = np.empty(len(flat), _DTYPES[dtype])
        array[:] = [base64.b64decode(text) for text in flat] if dtype == 7 else flat
        found[name] = array.reshape(shape)
    return {"outputs": found}
