"""Parsed bodies of REST requests as arrays and tf.Examples.

The rules and the words of the errors are those of TF Serving (util/json_tensor.cc). Whole lists are checked and
converted by functions written in C; only a request with an error in it is walked through value by value, to find the
words that TF Serving has for it.
"""

import base64
import binascii
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import input_pb2

from bert_tf.server.json_parser import TOO_BIG, Infinity, shown
from bert_tf.server.servable import DEFAULT_SIGNATURE
from bert_tf.server.status import Code, ServingError, invalid
from bert_tf.server.tensors import objects
from bert_tf.types import Array, Json

_MOST_DIMENSIONS = 64  # of NumPy's arrays


class _Rule(NamedTuple):
    """The values that a type takes.

    Attributes:
        kind: the type.
        values: types of the values, as Python parses JSON.
        least, most: bounds of numbers.
    """

    kind: type[np.generic]
    values: set[type]
    least: float = 0
    most: float = 1


# TF Serving's parser reads numbers as float64, and rounds them to float32.
_LARGEST = float(np.finfo(np.float64).max)


def _rule(kind: type[np.generic]) -> _Rule:
    if issubclass(kind, np.floating):
        return _Rule(kind, {int, float, Infinity}, -_LARGEST, _LARGEST)
    if issubclass(kind, np.integer):
        return _Rule(kind, {int}, int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    return _Rule(kind, {bool} if kind is np.bool_ else {str})


# NumPy's types that JSON is read as and written from.
KINDS = (
    np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.bool_, np.object_
)  # fmt: skip
_RULES = {tf.as_dtype(kind).as_datatype_enum: _rule(kind) for kind in KINDS}  # by TensorFlow's types


class Predict(NamedTuple):
    """A request to predict.

    Attributes:
        signature_name: of the signature.
        inputs: arrays by name; strings are bytes in arrays of objects.
        by_row: whether the answer is a list with an item per row (`predictions`), or one array per output (`outputs`).
    """

    signature_name: str
    inputs: dict[str, Array]
    by_row: bool


def signature_name(document: Json) -> str:
    """The name of a request's signature.

    Raises:
        ServingError: INVALID_ARGUMENT, it is not a string.
    """
    name = document.get("signature_name", "")
    if type(name) is not str:
        raise invalid(
            f"JSON Value: {shown(document)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return name or DEFAULT_SIGNATURE


def decode_predict(document: Json, signatures: Mapping[str, meta_graph_pb2.SignatureDef]) -> Predict:
    """Converts the tensors of a request to predict.

    Args:
        document: from `parse`.
        signatures: of the model.

    Raises:
        ServingError: the tensors do not fit the signature, with TF Serving's words.
    """
    name = signature_name(document)
    if name not in signatures:
        raise invalid(f'Serving signature name: "{name}" not found in signature def')
    dtypes = {key: info.dtype for key, info in sorted(signatures[name].inputs.items())}
    if not dtypes:
        raise invalid(f"Failed to get input map for signature: {document.get('signature_name') or 'DEFAULT'}")
    by_row = "instances" in document
    if by_row and "inputs" in document:
        raise invalid(
            f"JSON Value: {shown(document)} Not formatted correctly expecting only one of 'inputs' or 'instances' "
            "keys to exist "
        )
    if by_row:
        return Predict(name, _instances(document, dtypes), by_row)
    if "inputs" in document:
        return Predict(name, _inputs(document["inputs"], dtypes), by_row)
    raise invalid("Missing 'inputs' or 'instances' key")


def _instances(document: Json, dtypes: Mapping[str, int]) -> dict[str, Array]:
    """Arrays of rows, each a value, or an object with the names of the inputs."""
    rows = document["instances"]
    if type(rows) is not list:
        raise invalid(f"JSON Value: {shown(document)} Excepting 'instances' to be an list/array")
    if not rows:
        raise invalid(f"JSON Value: {shown(document)} No values in 'instances' array")
    objects = _is_object(rows[0])
    if len(dtypes) > 1 and not objects:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
            "tensorinfo_map"
        )
    for index, row in enumerate(rows if dict in {*map(type, rows)} else ()):
        if _is_object(row) is not objects:
            found = "Expecting value/list but got object" if not objects else "Expecting object but got list"
            raise invalid(f"{found} at item {index} of input list")
        if objects and row.keys() != dtypes.keys():
            extra = [name for name in row if name not in dtypes]
            if extra:
                raise invalid(
                    f"Failed to process element: {index} key: {extra[0]} of 'instances' list. Error: "
                    f"INVALID_ARGUMENT: JSON object: does not have named input: {extra[0]}"
                )
            raise invalid(
                f"Failed to process element: {index} of 'instances' list. JSON object: {shown(row)} keys must be "
                f"equal to: {','.join(dtypes)}"
            )
    if not objects:
        ((name, dtype),) = dtypes.items()
        return {name: _rows(rows, dtype, "")}
    return {name: _rows([row[name] for row in rows], dtype, f" key: {name}") for name, dtype in dtypes.items()}


def _rows(rows: list[Any], dtype: int, key: str) -> Array:
    """An array [rows, ...] of values that must have the same shape.

    Args:
        rows: values as JSON has them.
        dtype: TensorFlow's.
        key: for errors.
    """
    shape, leaves = _flattened(rows)
    if not _are_regular(leaves, dtype):
        first = _shape(rows[0])
        for index, row in enumerate(rows):
            try:
                found = _shape(row)
                _inspect(row, found, dtype)
                if math.prod(found) != math.prod(first):
                    raise invalid(f"Expecting tensor size: {math.prod(first)} but got: {math.prod(found)}")
                if found != first:
                    raise invalid(f"Expecting shape {_written(first)} but got: {_written(found)}")
            except ServingError as error:
                raise invalid(
                    f"Failed to process element: {index}{key} of 'instances' list. Error: {error.code.name}: "
                    f"{error.message}"
                ) from None
    return _array(leaves, dtype).reshape(shape)


def _inputs(value: Any, dtypes: Mapping[str, int]) -> dict[str, Array]:
    """Arrays by name, or the only one."""
    if not _is_object(value):
        if len(dtypes) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            )
        value = dict.fromkeys(dtypes, value)
    arrays = {}
    for name, dtype in dtypes.items():
        if name not in value:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
        shape, leaves = _flattened(value[name])
        if not _are_regular(leaves, dtype):
            _inspect(value[name], shape, dtype)
        arrays[name] = _array(leaves, dtype).reshape(shape)
    return arrays


def _is_bytes(value: Any) -> bool:
    """Whether this is base64, like {"b64": "aGk="}."""
    return type(value) is dict and len(value) == 1 and type(value.get("b64")) is str


def _is_object(value: Any) -> bool:
    return type(value) is dict and not _is_bytes(value)


def _shape(value: Any) -> tuple[int, ...]:
    """The lengths of the first lists."""
    shape: list[int] = []
    while type(value) is list:
        shape.append(len(value))
        value = value[0] if value else None
    if len(shape) > _MOST_DIMENSIONS:
        raise invalid(f"Encountered list at unexpected level: {_MOST_DIMENSIONS} expected < {_MOST_DIMENSIONS}")
    return tuple(shape)


def _written(shape: Iterable[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _flattened(value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists and what is in them; lists are left in it if the lists do not have that shape."""
    shape, leaves = _shape(value), [value]
    for size in shape:
        if {*map(type, leaves)} != {list} or {*map(len, leaves)} != {size}:
            return shape, [[]]
        leaves = list(itertools.chain.from_iterable(leaves))
    return shape, leaves


def _are_regular(leaves: list[Any], dtype: int) -> bool:
    """Whether values can be converted to this type; if False, they may be."""
    rule, kinds = _RULES.get(dtype), {*map(type, leaves)}
    if rule is None or not kinds <= rule.values:
        return False
    return not leaves or rule.kind is np.object_ or (rule.least <= min(leaves) and max(leaves) <= rule.most)


def _inspect(value: Any, shape: Sequence[int], dtype: int, level: int = 0) -> None:
    """Raises a ServingError if there is anything wrong with the values or shapes of nested lists.

    Args:
        value: of the lists.
        shape: expected, of all lists.
        dtype: expected, TensorFlow's.
        level: how deep in the lists the value is.
    """
    rank = len(shape)
    if type(value) is not list:
        if level != rank:
            raise invalid(
                f"JSON Value: {shown(value)} found at incorrect level: {level + 1} in the JSON DOM. Expected at "
                f"level: {rank}"
            )
        _inspect_value(value, dtype)
        return
    if level >= rank:
        raise invalid(f"Encountered list at unexpected level: {level} expected < {rank}")
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    for item in value:
        _inspect(item, shape, dtype, level + 1)


def _inspect_value(value: Any, dtype: int) -> None:
    rule = _RULES.get(dtype)
    if rule is None:
        raise _unimplemented(value, dtype)
    if _are_regular([value], dtype):
        return
    if rule.kind is np.object_ and type(value) is dict:
        if not _is_bytes(value):
            raise invalid(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    elif not issubclass(rule.kind, np.floating) or type(value) not in rule.values:
        raise _type_error(value, dtype)
    else:
        _check_size(value)


def _check_size(value: float) -> None:
    """Raises a ServingError for a number that float64 cannot have."""
    if type(value) is not Infinity and not -_LARGEST <= value <= _LARGEST:  # the words NaN and Infinity are allowed
        raise invalid(TOO_BIG)


def _array(leaves: list[Any], dtype: int) -> Array:
    """A flat array of values that have been checked."""
    rule = _RULES.get(dtype)
    if rule is None:  # and there is no value that was inspected
        raise _unimplemented([], dtype)
    if rule.kind is not np.object_:
        with np.errstate(over="ignore"):  # 1e39 is infinite in float32
            return np.array(leaves, rule.kind)
    return objects([_utf8(value) if type(value) is str else _bytes(value) for value in leaves])


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise invalid("JSON Parse error: The surrogate pair in string is invalid.") from None


def _bytes(value: Json) -> bytes:
    """Decodes base64; like in TF Serving, white space is ignored and the padding may be missing."""
    text = "".join(value["b64"].split())
    if "=" not in text:
        text += "=" * (-len(text) % 4)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("Unable to base64 decode") from None


def decode_examples(document: Json, method: str) -> input_pb2.Input:
    """Converts a request to classify or regress.

    Args:
        document: from `parse`.
        method: "classify" or "regress", for errors.

    Raises:
        ServingError: the examples are not what they should be, with TF Serving's words.
    """
    message = input_pb2.Input()
    examples = message.example_list.examples
    if "context" in document:
        _fill_example(document["context"], message.example_list_with_context.context)
        examples = message.example_list_with_context.examples
    if "examples" not in document:
        raise invalid(
            f"JSON Value: {shown(document)} When method is {method}, key 'examples' is expected and was not found"
        )
    values = document["examples"]
    if type(values) is not list:
        raise invalid(f"JSON Value: {shown(document)} Expecting 'examples' value to be an list/array")
    if not values:
        raise invalid(f"JSON Value: {shown(document)} 'examples' value is an empty array")
    for value in values:
        _fill_example(value, examples.add())
    return message


def _fill_example(value: Any, example: example_pb2.Example) -> None:
    if type(value) is not dict:
        raise invalid(f"Example must be JSON object but got JSON {_json_type(value)}")
    for name, content in value.items():
        _utf8(name)
        _fill_feature(content if type(content) is list else [content], name, example.features.feature[name])


def _fill_feature(values: list[Any], name: str, feature: feature_pb2.Feature) -> None:
    kinds = [_kind(value, name) for value in values]
    if not kinds:
        return
    kind = kinds[0]
    if {*kinds} != {kind}:
        expected = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}[kind]
        raise invalid(f"Unexpected element type in feature: {name} expecting type: {expected}")
    if kind == "bytes_list":
        values = [_utf8(value) if type(value) is str else _bytes(value) for value in values]
    elif kind == "float_list":
        for value in values:
            _check_size(value)
    getattr(feature, kind).value.extend(values)


def _kind(value: Any, name: str) -> str:
    """The kind of list in a Feature for a value."""
    if isinstance(value, float) or (type(value) is int and not -(2**63) <= value < 2**64):
        return "float_list"
    if type(value) in (int, bool):
        if value >= 2**63:
            raise invalid(f"Feature: {name} has uint64 element. Only int64 is supported.")
        return "int64_list"
    if type(value) is str or _is_bytes(value):
        return "bytes_list"
    raise invalid(f"Feature: {name} has element with unexpected JSON type: {_json_type(value)}")


# Errors


def _type_name(dtype: int) -> str:
    return types_pb2.DataType.Name(dtype)[len("DT_") :].lower()


def _type_error(value: Any, dtype: int) -> ServingError:
    return invalid(f"JSON Value: {shown(value)} Type: {_json_type(value)} is not of expected type: {_type_name(dtype)}")


def _json_type(value: Any) -> str:
    """TF Serving's name."""
    names = {dict: "Object", list: "Array", str: "String", type(None): "Null", bool: str(value)}
    return names.get(type(value), "Number")


def _unimplemented(value: Any, dtype: int) -> ServingError:
    return ServingError(Code.UNIMPLEMENTED, f"Conversion of JSON Value: {shown(value)} to type: {_type_name(dtype)}")
