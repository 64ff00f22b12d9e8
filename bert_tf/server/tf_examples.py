"""Classify and Regress: signatures that take serialized tf.Examples, and their answers.

The rules and the words of the errors are those of TF Serving (servables/tensorflow/classifier.cc and regressor.cc).
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import classification_pb2, regression_pb2

from bert_tf.server.servable import DEFAULT_SIGNATURE
from bert_tf.server.status import Code, ServingError, invalid
from bert_tf.types import Array

CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"
KINDS = {CLASSIFY: "classification", REGRESS: "regression"}


def outputs_of(
    signatures: Mapping[str, meta_graph_pb2.SignatureDef],
    name: str,
    method: str,
    unknown: str = "No signature was found with the name",
) -> list[str]:
    """The names of the outputs that make up the answer.

    Args:
        signatures: of the model.
        name: of the request's signature; "" is `serving_default`.
        method: CLASSIFY or REGRESS.
        unknown: words of the error if there is no such signature.

    Raises:
        ServingError: there is no such signature, or it is not one for this method.
    """
    name = name or DEFAULT_SIGNATURE
    if name not in signatures:
        raise invalid(f"{unknown}: {name}")
    signature = signatures[name]
    kind, expected = KINDS[method], ["classes", "scores"] if method == CLASSIFY else ["outputs"]
    if len(signature.inputs) != 1:
        raise invalid("Expected one input Tensor.")
    if method == CLASSIFY and len(signature.outputs) not in (1, 2):
        raise invalid(f"Expected one or two output Tensors, found {len(signature.outputs)}")
    if method == REGRESS and len(signature.outputs) != 1:
        raise invalid("Expected one output Tensor.")
    if "inputs" not in signature.inputs:
        raise ServingError(Code.FAILED_PRECONDITION, f"No {kind} inputs found in SignatureDef: {_shown(signature)}")
    found = [name for name in expected if name in signature.outputs]
    if not found and method == CLASSIFY:
        raise ServingError(
            Code.FAILED_PRECONDITION,
            'Expected classification signature outputs to contain at least one of "classes" or "scores". '
            f"Signature was: {_shown(signature)}",
        )
    if not found:
        raise ServingError(
            Code.FAILED_PRECONDITION, f"No regression outputs found in SignatureDef: {_shown(signature)}"
        )
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
            if value.ndim != 2:
                raise invalid(f"Expected Tensor shape: [batch_size num_classes] but got {_shape(value)}")
            if tf.as_dtype(value.dtype) != dtype:
                raise invalid(f"Expected {name} Tensor of {_type_name(dtype)}. Got: {_type_name(value.dtype)}")
            if len(value) != rows:
                raise invalid(f"Expected {name} output batch size of {rows}. Got: {len(value)}")
    classes, scores = outputs.get("classes"), outputs.get("scores")
    if classes is not None and scores is not None and classes.shape != scores.shape:
        raise invalid(
            f"Tensors class and score should match in dim_size(1). Got {classes.shape[1]} vs. {scores.shape[1]}"
        )
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
    if value.ndim not in (1, 2) or value.shape[1:] not in ((), (1,)):
        raise invalid(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got " + _shape(value)
        )
    if len(value) != rows:
        raise invalid(f"Input batch size did not match output batch size: {rows} vs. {len(value)}")
    if value.dtype != np.float32:
        raise invalid(f"Expected output Tensor of DT_FLOAT.  Got: {_type_name(value.dtype)}")
    return regression_pb2.RegressionResult(regressions=[{"value": one} for one in value.ravel().tolist()])


def _shape(value: Array) -> str:
    return f"[{','.join(map(str, value.shape))}]"


def _type_name(dtype: tf.DType | np.dtype) -> str:
    return types_pb2.DataType.Name(tf.as_dtype(dtype).as_datatype_enum)


def _shown(signature: meta_graph_pb2.SignatureDef) -> str:
    return text_format.MessageToString(signature, as_one_line=True)[:500]
