"""Bodies of REST answers, printed as TF Serving prints them.

A float32 is the decimal number of six digits if it is that number, otherwise with nine digits.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf import json_format, message
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import classification_pb2, get_model_metadata_pb2, get_model_status_pb2, regression_pb2

from bert_tf.server.json_requests import KINDS
from bert_tf.server.status import invalid
from bert_tf.server.tensors import objects
from bert_tf.types import Array, Json

# Names of NumPy's types in TensorFlow's errors, where they differ.
_TYPE_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


def encode_predict(outputs: Mapping[str, Array], by_row: bool) -> bytes:
    """The body of the answer to a request to predict.

    Args:
        outputs: arrays by name; strings whose name ends in `_bytes` are printed as base64.
        by_row: whether the request was.

    Raises:
        ServingError: the outputs have a type that JSON cannot have, or not the same number of rows.
    """
    if not outputs:
        raise invalid("Cannot convert empty tensor map to JSON")
    if by_row:
        rows: int | None = None
        for name, value in sorted(outputs.items()):
            if not value.ndim:
                raise invalid(f"Tensor name: {name} has no shape information ")
            if rows not in (None, len(value)):
                raise invalid(f"Tensor name: {name} has inconsistent batch size: {len(value)} expecting: {rows}")
            rows = len(value)
    values = {name: _listed(value, name.endswith("_bytes")) for name, value in sorted(outputs.items())}
    if len(values) == 1:
        (answer,) = values.values()
    elif by_row:
        answer = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    else:
        answer = values
    return _dumped({"predictions" if by_row else "outputs": answer})


def _listed(value: Array, as_bytes: bool) -> Any:
    """An array as JSON has it."""
    kind = value.dtype.type
    if kind is np.object_:
        if as_bytes:
            texts: list[Any] = [{"b64": base64.b64encode(item).decode()} for item in value.flat]
        else:
            # Like TF Serving, bytes that are not UTF-8 are passed on as they are.
            texts = [item.decode("utf-8", "surrogateescape") for item in value.flat]
        return objects(texts).reshape(value.shape).tolist()
    if kind is np.float32:
        return decimals(value).tolist()
    if kind not in KINDS:
        name = _TYPE_NAMES.get(value.dtype.name, value.dtype.name)
        raise invalid(f"Failed to write JSON value for tensor type: {name}")
    return value.tolist()


def _dumped(answer: Json) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogateescape")


# Powers of ten that float64 has exactly, so a division by them rounds once, to the float64 of the decimal number.
_TENS = np.array([float(f"1e{exponent}") for exponent in range(23)])
_BOUNDS = np.array([float(f"1e{exponent}") for exponent in range(-13, 22)])


def decimals(values: Array) -> Array:
    """The decimal numbers that TF Serving prints for float32: of six digits if they round to it, otherwise of nine.

    Args:
        values: float32.

    Returns:
        float64, of the same shape. Python prints them with no more digits than they have.
    """
    with np.errstate(invalid="ignore"):  # signalling NaNs
        exact = values.astype(np.float64)
    size = np.abs(exact)
    common = (size >= _BOUNDS[0]) & (size < _BOUNDS[-1])
    numbers = exact[common]
    exponents = np.searchsorted(_BOUNDS, size[common], side="right") - 14
    six = _rounded(numbers, 5 - exponents)
    exact[common] = np.where(six.astype(np.float32) == values[common], six, _rounded(numbers, 8 - exponents))
    rare = ~common & np.isfinite(exact) & (exact != 0)
    if rare.any():
        exact[rare] = [_decimal(value) for value in exact[rare].tolist()]
    return exact


def _rounded(numbers: Array, places: Array) -> Array:
    """Numbers rounded to decimal places, which may be negative."""
    scale = _TENS[np.abs(places)]
    return np.where(places >= 0, np.rint(numbers * scale) / scale, np.rint(numbers / scale) * scale)


def _decimal(value: float) -> float:
    six = float(f"{value:.6g}")  # NaN and Infinity, too
    return six if np.float32(six) == value else float(f"{value:.9g}")


def encode_classification(result: classification_pb2.ClassificationResult) -> bytes:
    """The body of the answer to a request to classify."""
    rows = [[[one.label, _decimal(one.score)] for one in row.classes] for row in result.classifications]
    return _dumped({"results": rows})


def encode_regression(result: regression_pb2.RegressionResult) -> bytes:
    """The body of the answer to a request to regress."""
    return _dumped({"results": [_decimal(one.value) for one in result.regressions]})


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
