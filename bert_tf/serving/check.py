"""Proves that an exported model answers as the one in memory does, where TF Serving would run it.

`tf.saved_model.load` restores variables in a way of its own and hides that they may be missing for TF Serving, which
loads a graph and runs a session on it. So a new process does that (`ask.py`), and its answers are compared.
"""

import base64
import importlib.resources
import json
import os
import subprocess
import sys

import numpy as np
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.errors import DataError
from bert_tf.serving.ops import SERVED_OPS

# Of float32 on a CPU: the same kernels, in another process.
_TOLERANCE = 1e-5


class NotServable(DataError):
    """An export would not answer as its model does."""


def check_ops(path):
    """How many kinds of ops the graph of a version has.

    Args:
        path: folder of the version.

    Raises:
        NotServable: one that TF Serving lacks from 2.12.1 on, or a function that must be compiled by XLA.
    """
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        graphs = [meta.graph_def for meta in saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs]
    functions = {function.signature.name: function for graph in graphs for function in graph.library.function}
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for function in functions.values() for node in function.node_def]
    ops = {node.op for node in nodes} - functions.keys()
    if unknown := sorted(ops - SERVED_OPS):
        raise NotServable(f"the graph has ops that TF Serving may lack: {', '.join(unknown)}; expected those of "
                          "bert_tf/serving/ops.py, which every version from 2.12.1 on has")  # fmt: skip
    if any(holder.attr["_XlaMustCompile"].b for holder in (*nodes, *functions.values())):
        raise NotServable("the graph has a function that XLA must compile, which a server may not be able to")
    return len(ops)


def ask_session(path, requests):
    """What a new process answers that loads a version as TF Serving does.

    Args:
        path: folder of the version.
        requests: list of Request.

    Returns:
        list of what TF Serving's REST API would answer: {"outputs": ...} or {"error": ...}.

    Raises:
        NotServable: the version can not be loaded.
    """
    # -P: not the folder of the program, where modules have names that others have, too.
    program = str(importlib.resources.files("bert_tf.serving") / "ask.py")
    lines = "".join(json.dumps(rest_body(request)) + "\n" for request in requests)
    done = subprocess.run(
        [sys.executable, "-P", program, path],
        input=lines,
        capture_output=True,
        encoding="utf-8",
        # This process may hold all of a GPU's memory.
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONIOENCODING": "utf-8"},
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise NotServable(f"a session could not load it (exit status {done.returncode}): {last}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def rest_body(request):
    """A Request as the body of TF Serving's REST API for `predict`, JSON-ready."""
    inputs = {name: _jsonable(value) for name, value in request.inputs.items()}
    return {"signature_name": request.signature, "inputs": inputs}


def _jsonable(value):
    if isinstance(value, np.ndarray) and value.ndim:
        return [_jsonable(item) for item in value]
    if not isinstance(value, bytes):
        return value.item()
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def compare(requests, expected, answers):
    """Compares answers with those of the model in memory.

    Args:
        requests: list of Request.
        expected: list of dicts name -> array, one a request.
        answers: list as `ask_session` gives.

    Returns:
        float: the largest difference, as `difference` gives it.

    Raises:
        NotServable: an error instead of an answer, a string or a whole number that differs, or a number by more than
            1e-5 of the largest beside it.
    """
    largest = 0.0
    for request, model, answer in zip(requests, expected, answers, strict=True):
        where = f"signature {request.signature!r}, request {request.kind!r}"
        if "error" in answer:
            raise NotServable(f"{where}: {_cause(answer['error'])}")
        outputs = answer["outputs"] if len(model) > 1 else dict.fromkeys(model, answer["outputs"])
        for name, values in model.items():
            if values.dtype.kind == "f" and np.isnan(values).any():
                raise NotServable(f"{where}: the model itself answers NaN in {name!r}; look at its training")
            found = _array(outputs.get(name), values)
            if found is None:
                raise NotServable(f"{where}: output {name!r} has another shape than the model's")
            apart = difference(name, found, values)
            if not apart <= _TOLERANCE:
                amount = f" by {apart:.1e}" if np.isfinite(apart) else ""
                raise NotServable(f"{where}: output {name!r} differs from the model's{amount}")
            largest = max(largest, apart)
    return largest


def difference(name, found, expected):
    """How far two arrays of one shape are apart.

    Args:
        name: of the output.
        found, expected: arrays of float32, int32, bool or, of strings, objects.

    Returns:
        float: of numbers the largest difference, relative to the largest number if that is above 1; of all else 0 for
        equal ones and infinity for others. Attention, whose 256 levels may be rounded to neighbours, counts as equal
        then.
    """
    if expected.dtype.kind != "f":
        same = np.array_equal(found, expected)
        if not same and name == "attention_bytes":
            pairs = [(np.frombuffer(one, np.uint8).astype(int), np.frombuffer(other, np.uint8).astype(int))
                     for one, other in zip(found.ravel(), expected.ravel(), strict=True)]  # fmt: skip
            same = all(len(one) == len(other) and np.abs(one - other).max(initial=0) <= 1 for one, other in pairs)
        return 0.0 if same else np.inf
    apart = np.abs(found - expected, where=found != expected, out=np.zeros(expected.shape)).max(initial=0.0)
    # The largest float32 stands for "none".
    return float(apart / np.abs(expected[np.abs(expected) < 1e30]).max(initial=1.0))


def _cause(error):
    """The line for an error of the session."""
    if "Could not find variable" in error:
        name = error.partition("Could not find variable ")[2].split(".")[0]
        return f"the variable {name} is not restored by a session, so TF Serving would not answer"
    return error


def _array(answer, like):
    """Nested lists of an answer as an array like another one; None where they do not fit it."""
    values = answer
    for _ in range(like.ndim - 1):
        values = [item for some in values for item in some]
    if values is None or len(values) != like.size:
        return None
    if like.dtype.kind == "O":
        values = [base64.b64decode(one["b64"]) if isinstance(one, dict) else one.encode() for one in values]
    flat = np.empty(like.size, like.dtype)
    flat[:] = values
    return flat.reshape(like.shape)
