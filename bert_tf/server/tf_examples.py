"""Classify and Regress: signatures that take serialized tf.Examples, and their answers.

The rules and the codes of errors are those of TF Serving (servables/tensorflow/classifier.cc and regressor.cc).
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import classification_pb2, regression_pb2

from bert_tf.server.servable import DEFAULT_SIGNATURE
from bert_tf.server.status import Code, ServingError, invalid
from bert_tf.types import Array

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
KINDS = {CLASSIFY: "classification", REGRESS: "regression"}


def outputs_of(signatures: Mapping[str, meta_graph_pb2.SignatureDef], name: str, method: str) -> list[str]:
    """The names of the outputs that make up the answer.

    Args:
        signatures: of the model.
        name: of the request's signature; "" is `serving_default`.
        method: CLASSIFY or REGRESS.

    Raises:
        ServingError: there is no such signature, or it is not one for this method.
    """
    name = name or DEFAULT_SIGNATURE
    if name not in signatures:
        raise invalid(f"the model has no signature {name!r}")
    inputs, outputs = signatures[name].inputs, signatures[name].outputs
    expected = ["classes", "scores"] if method == CLASSIFY else ["outputs"]
    found = [output for output in expected if output in outputs]
    message = (
        f"the signature {name!r} is not for {KINDS[method]}: it has the inputs {sorted(inputs)} and the outputs "
        f"{sorted(outputs)}; expected the input 'inputs' and {' or '.join(map(repr, expected))}"
    )
    if len(inputs) != 1 or not 1 <= len(outputs) <= len(expected):
        raise invalid(message)
    if "inputs" not in inputs or not found:
        raise ServingError(Code.FAILED_PRECONDITION, message)
    return found


def classification(outputs: Mapping[str, Array], rows: int) -> classification_pb2.ClassificationResult:
    """The answer to Classify.

    Args:
        outputs: `classes`, bytes, `scores`, float32, or both, each [rows, classes].
        rows: examples of the request.

    Raises:
        ServingError: INVALID_ARGUMENT, the outputs are not so.
    """
    for name, dtype in (("classes", tf.string), ("scores", tf.float32)):
        if name in outputs:
            value = outputs[name]
            if value.ndim != 2 or len(value) != rows or tf.as_dtype(value.dtype) != dtype:
                raise invalid(f"the output {name} is {_described(value)}; expected {dtype.name} [{rows}, classes]")
    classes, scores = outputs.get("classes"), outputs.get("scores")
    if classes is not None and scores is not None and classes.shape != scores.shape:
        raise invalid(f"the outputs are {classes.shape[1]} classes and {scores.shape[1]} scores; expected as many")
    shape = (classes if scores is None else scores).shape  # type: ignore[union-attr]
    classes = np.full(shape, b"", object) if classes is None else classes
    scores = np.zeros(shape, np.float32) if scores is None else scores
    result = classification_pb2.ClassificationResult()
    for labels, values in zip(classes, scores.tolist(), strict=True):
        added = result.classifications.add().classes
        for label, value in zip(labels, values, strict=True):
            added.add(label=label.decode(errors="replace"), score=value)
    return result


def regression(outputs: Mapping[str, Array], rows: int) -> regression_pb2.RegressionResult:
    """The answer to Regress.

    Args:
        outputs: `outputs`, float32 [rows] or [rows, 1].
        rows: examples of the request.

    Raises:
        ServingError: INVALID_ARGUMENT, the output is not so.
    """
    value = outputs["outputs"]
    if value.shape not in ((rows,), (rows, 1)) or value.dtype != np.float32:
        raise invalid(f"the output is {_described(value)}; expected float32 [{rows}] or [{rows}, 1]")
    return regression_pb2.RegressionResult(regressions=[{"value": one} for one in value.ravel().tolist()])


def _described(value: Array) -> str:
    return f"{tf.as_dtype(value.dtype).name} {list(value.shape)}"
