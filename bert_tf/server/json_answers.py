"""Bodies of REST answers.

A float32 is printed as the decimal number of six digits if it is that number, otherwise with nine, as TF Serving does.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import json_format, message
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import classification_pb2, get_model_metadata_pb2, get_model_status_pb2, regression_pb2

from bert_tf.server.json_requests import KINDS
from bert_tf.server.status import invalid
from bert_tf.server.tensors import objects
from bert_tf.types import Array, Json


def encode_predict(outputs: Mapping[str, Array], by_row: bool) -> bytes:
    """The body of the answer to a request to predict.

    Args:
        outputs: arrays by name; strings whose name ends in `_bytes` are printed as base64.
        by_row: whether the request was.

    Raises:
        ServingError: the outputs have a type that JSON cannot have, or not the same number of rows.
    """
    if not outputs:
        raise invalid("the signature has no outputs")
    if by_row:
        shapes = {name: list(value.shape) for name, value in sorted(outputs.items())}
        if [] in shapes.values() or len({shape[0] for shape in shapes.values()}) > 1:
            raise invalid(f"the outputs are not rows, their shapes are {shapes}; send 'inputs' instead of 'instances'")
    values = {name: _listed(name, value) for name, value in sorted(outputs.items())}
    if len(values) == 1:
        (answer,) = values.values()
    elif by_row:
        answer = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    else:
        answer = values
    return _dumped({"predictions" if by_row else "outputs": answer})


def _listed(name: str, value: Array) -> Any:
    """An output as JSON has it."""
    kind = value.dtype.type
    if kind is np.object_:
        if name.endswith("_bytes"):
            texts: list[Any] = [{"b64": base64.b64encode(item).decode()} for item in value.flat]
        else:
            # Like TF Serving, bytes that are not UTF-8 are passed on as they are.
            texts = [item.decode("utf-8", "surrogateescape") for item in value.flat]
        return objects(texts).reshape(value.shape).tolist()
    if kind is np.float32:
        return decimals(value).tolist()
    if kind not in KINDS:
        raise invalid(f"the output {name} is {value.dtype.name}, which JSON cannot have; ask over gRPC")
    return value.tolist()


def _dumped(answer: Json) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogateescape")


# Powers of ten that float64 has exactly, so a division by them rounds once, to the float64 of the decimal number.
_TENS = np.array([float(f"1e{exponent}") for exponent in range(23)])
_BOUNDS = np.array([float(f"1e{exponent}") for exponent in range(-13, 22)])


def decimals(values: Array) -> Array:
    """Decimal numbers of float32: of six digits if they round to it, otherwise of nine.

    Args:
        values: float32.

    Returns:
        float64, of the same shape. Python prints them with no more digits than they have; numbers below 1e-13 or from
        1e21 on with all digits.
    """
    with np.errstate(invalid="ignore"):  # signalling NaNs
        exact = values.astype(np.float64)
    size = np.abs(exact)
    common = (size >= _BOUNDS[0]) & (size < _BOUNDS[-1])
    numbers = exact[common]
    exponents = np.searchsorted(_BOUNDS, size[common], side="right") - 14
    six = _rounded(numbers, 5 - exponents)
    exact[common] = np.where(six.astype(np.float32) == values[common], six, _rounded(numbers, 8 - exponents))
    return exact


def _rounded(numbers: Array, places: Array) -> Array:
    """Numbers rounded to decimal places, which may be negative."""
    scale = _TENS[np.abs(places)]
    return np.where(places >= 0, np.rint(numbers * scale) / scale, np.rint(numbers / scale) * scale)


def encode_classification(result: classification_pb2.ClassificationResult) -> bytes:
    """The body of the answer to a request to classify."""
    scores = iter(_decimals(one.score for row in result.classifications for one in row.classes))
    rows = [[[one.label, next(scores)] for one in row.classes] for row in result.classifications]
    return _dumped({"results": rows})


def encode_regression(result: regression_pb2.RegressionResult) -> bytes:
    """The body of the answer to a request to regress."""
    return _dumped({"results": _decimals(one.value for one in result.regressions)})


def _decimals(values: Iterable[float]) -> list[float]:
    return decimals(np.fromiter(values, np.float32)).tolist()


def encode_metadata(name: str, version: int, signatures: Mapping[str, meta_graph_pb2.SignatureDef]) -> bytes:
    """The body of the answer to GET .../metadata."""
    found = get_model_metadata_pb2.SignatureDefMap(signature_def=signatures)
    spec = {"name": name, "signature_name": "", "version": str(version)}
    return _indented({"model_spec": spec, "metadata": {"signature_def": _members(found)}})


def encode_status(response: get_model_status_pb2.GetModelStatusResponse) -> bytes:
    """The body of the answer to GET /v1/models/NAME."""
    return _indented(_members(response))


def _members(found: message.Message) -> Json:
    return json_format.MessageToDict(found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _indented(answer: Json) -> bytes:
    return json.dumps(answer, indent=1).encode()


def encode_error(message: str) -> bytes:
    """The body of an error."""
    return json.dumps({"error": message}, ensure_ascii=False).encode("utf-8", "backslashreplace")
