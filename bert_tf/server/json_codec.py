"""JSON of TF Serving's REST API: request bodies to arrays and tf.Examples, answers to bodies.

The rules and the words of the errors are those of TF Serving (util/json_tensor.cc). Whole lists are checked and
converted by functions written in C; only a request with an error in it is walked through value by value, to find the
words that TF Serving has for it.

Numbers are printed like TF Serving prints them: a float32 as the decimal number of six digits if it is that number,
otherwise with nine digits.
"""

import base64
import binascii
import gc
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import classification_pb2, get_model_metadata_pb2, input_pb2, regression_pb2

from bert_tf.server.errors import Code, ServingError, invalid
from bert_tf.server.servable import DEFAULT_SIGNATURE
from bert_tf.types import Array, Json

_LONGEST_SHOWN = 200  # characters of a value in an error
_MOST_DIMENSIONS = 64  # of NumPy's arrays


class _Infinity(float):
    """The value of the words Infinity and NaN; a float that is infinite was a number with too many digits."""


class _Rule(NamedTuple):
    """The values that a type takes.

    Attributes:
        kind: the type.
        values: types of the values, as Python parses JSON.
        least, most: bounds of integers.
        largest: absolute bound of numbers with a point or exponent, and of larger integers than 64 bits hold.
    """

    kind: type[np.generic]
    values: set[type]
    least: int = 0
    most: int = 1
    largest: float = 0.0


def _rule(kind: type[np.generic]) -> _Rule:
    if issubclass(kind, np.floating):
        info = np.finfo(kind)
        most = 2 ** (info.nmant + 1) - 1  # up to it, these floats have all integers
        return _Rule(kind, {int, float, _Infinity}, -most, most, float(info.max))
    if issubclass(kind, np.integer):
        return _Rule(kind, {int}, int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    return _Rule(kind, {bool} if kind is np.bool_ else {str})


_KINDS = (
    np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.bool_, np.object_
)  # fmt: skip
_RULES = {tf.as_dtype(kind).as_datatype_enum: _rule(kind) for kind in _KINDS}  # by TensorFlow's types
# Names of NumPy's types in TensorFlow's errors, where they differ.
_TYPE_NAMES = {"float16": "half", "float32": "float", "float64": "double"}
_PARSE_ERRORS = {  # what Python's parser says, and RapidJSON
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting ',' delimiter": "Missing a comma or a closing bracket.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid \\escape: ": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Invalid control character at": "Invalid encoding in string.",
}
_TOO_BIG = "JSON Parse error: Number too big to be stored in double."
_SPACE = re.compile(r"[ \t\n\r]*")
# RapidJSON's short form of Infinity; strings are matched first, to be left alone.
_INF = re.compile(r'"(?:[^"\\]|\\.)*+"?|Inf(?!inity)', re.DOTALL)


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


def parse(body: bytes | bytearray) -> Json:
    """Parses a request.

    Args:
        body: UTF-8. What follows the first JSON value is ignored. Of members with the same name the first one counts.

    Raises:
        ServingError: INVALID_ARGUMENT, not a JSON object.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(f"JSON Parse error: Invalid encoding in string. at offset: {error.start}") from None
    start = _end(_SPACE.match(text))
    if start == len(text):
        raise invalid(f"JSON Parse error: The document is empty. at offset: {start}")
    try:
        try:
            document = _parsed(text, start)
        except json.JSONDecodeError as error:
            if not text.startswith("Inf", error.pos) and not text.startswith("-Inf", error.pos):
                raise
            text = _INF.sub(lambda match: "Infinity" if match[0] == "Inf" else match[0], text)
            document = _parsed(text, start)
    except json.JSONDecodeError as error:
        words = _PARSE_ERRORS.get(error.msg, f"{error.msg}.")
        offset = len(text[: error.pos].encode("utf-8", "replace"))
        raise invalid(f"JSON Parse error: {words} at offset: {offset}") from None
    except ValueError:  # an integer of more than 4300 digits
        raise invalid(_TOO_BIG) from None
    except RecursionError:
        raise invalid("JSON Parse error: Lists and objects are nested too deeply.") from None
    if type(document) is not dict:
        raise invalid(f"JSON Value: {_shown(document)} Is not object")
    return document


def _end(match: re.Match[str] | None) -> int:
    return match.end() if match else 0


def _first_wins(pairs: list[tuple[str, Any]]) -> Json:
    members = dict(pairs)
    return members if len(members) == len(pairs) else dict(reversed(pairs))


_DECODER = json.JSONDecoder(object_pairs_hook=_first_wins, parse_constant=_Infinity)


def _parsed(text: str, start: int) -> Any:
    # Millions of lists would make Python look for garbage among them, again and again, for ten seconds.
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _DECODER.raw_decode(text, start)[0]
    finally:
        if enabled:
            gc.enable()


def _shown(value: Any) -> str:
    """A value in an error, shortened."""
    text = ""
    try:
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            text += part[: _LONGEST_SHOWN + 1]
            if len(text) > _LONGEST_SHOWN:
                break
    except RecursionError:
        return "..."
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _type_name(dtype: int) -> str:
    return types_pb2.DataType.Name(dtype)[len("DT_") :].lower()


def _type_error(value: Any, dtype: int) -> ServingError:
    return invalid(
        f"JSON Value: {_shown(value)} Type: {_json_type(value)} is not of expected type: {_type_name(dtype)}"
    )


def _json_type(value: Any) -> str:
    """TF Serving's name."""
    names = {dict: "Object", list: "Array", str: "String", type(None): "Null", bool: str(value)}
    return names.get(type(value), "Number")


def _unimplemented(value: Any, dtype: int) -> ServingError:
    return ServingError(Code.UNIMPLEMENTED, f"Conversion of JSON Value: {_shown(value)} to type: {_type_name(dtype)}")


# Requests


def signature_name(document: Json) -> str:
    """The name of a request's signature.

    Raises:
        ServingError: INVALID_ARGUMENT, it is not a string.
    """
    name = document.get("signature_name", "")
    if type(name) is not str:
        raise invalid(
            f"JSON Value: {_shown(document)} not formatted correctly. 'signature_name' key must be a string value."
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
            f"JSON Value: {_shown(document)} Not formatted correctly expecting only one of 'inputs' or 'instances' "
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
        raise invalid(f"JSON Value: {_shown(document)} Excepting 'instances' to be an list/array")
    if not rows:
        raise invalid(f"JSON Value: {_shown(document)} No values in 'instances' array")
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
                f"Failed to process element: {index} of 'instances' list. JSON object: {_shown(row)} keys must be "
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
                if np.prod(found) != np.prod(first):
                    raise invalid(f"Expecting tensor size: {_size(first)} but got: {_size(found)}")
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


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


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
    if not leaves or rule.kind is np.object_:
        return True
    least, most = (rule.least, rule.most) if kinds & {int, bool} else (-rule.largest, rule.largest)
    return least <= min(leaves) and max(leaves) <= most


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
                f"JSON Value: {_shown(value)} found at incorrect level: {level + 1} in the JSON DOM. Expected at "
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
            raise invalid(f"JSON Value: {_shown(value)} not formatted correctly for base64 data")
    elif not rule.largest or type(value) not in rule.values:
        raise _type_error(value, dtype)
    else:
        _check_precision(value, dtype)


def _check_precision(value: float, dtype: int) -> None:
    """Raises a ServingError if a type of floats cannot have a number."""
    rule = _RULES[dtype]
    if type(value) is int and -(2**63) <= value < 2**64:
        exact = rule.least <= value <= rule.most
    else:  # TF Serving reads larger integers as floats
        try:
            value = value if type(value) is _Infinity else float(value)
        except OverflowError:
            value = math.inf
        if type(value) is float and math.isinf(value):
            raise invalid(_TOO_BIG)
        exact = not math.isfinite(value) or abs(value) <= rule.largest
    if not exact:
        raise invalid(f"Cannot convert JSON value: {_shown(value)} to {_type_name(dtype)} without loss of precision.")


def _array(leaves: list[Any], dtype: int) -> Array:
    """A flat array of values that have been checked."""
    rule = _RULES.get(dtype)
    if rule is None:  # and there is no value that was inspected
        raise _unimplemented([], dtype)
    if rule.kind is not np.object_:
        return np.array(leaves, rule.kind)
    array = np.empty(len(leaves), object)
    array[:] = [_utf8(value) if type(value) is str else _bytes(value) for value in leaves]
    return array


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
            f"JSON Value: {_shown(document)} When method is {method}, key 'examples' is expected and was not found"
        )
    values = document["examples"]
    if type(values) is not list:
        raise invalid(f"JSON Value: {_shown(document)} Expecting 'examples' value to be an list/array")
    if not values:
        raise invalid(f"JSON Value: {_shown(document)} 'examples' value is an empty array")
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
            _check_precision(value, types_pb2.DT_FLOAT)
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


# Answers


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
        flat = value.ravel().tolist()
        texts = np.empty(len(flat), object)
        if as_bytes:
            texts[:] = [{"b64": base64.b64encode(item).decode()} for item in flat]
        else:
            # Like TF Serving, bytes that are not UTF-8 are passed on as they are.
            texts[:] = [item.decode("utf-8", "surrogateescape") for item in flat]
        return texts.reshape(value.shape).tolist()
    if kind is np.float32:
        return decimals(value).tolist()
    if kind not in _KINDS:
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
    message = get_model_metadata_pb2.SignatureDefMap()
    for key, value in signatures.items():
        message.signature_def[key].CopyFrom(value)
    found = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    spec = {"name": name, "signature_name": "", "version": str(version)}
    return json.dumps({"model_spec": spec, "metadata": {"signature_def": found}}, indent=1).encode()


def encode_status(versions: Iterable[tuple[int, str, str, str]]) -> bytes:
    """The body of the answer to GET /v1/models/NAME.

    Args:
        versions: version, state, name of the error's code, message.
    """
    listed = [
        {"version": str(version), "state": state, "status": {"error_code": code, "error_message": message}}
        for version, state, code, message in versions
    ]
    return json.dumps({"model_version_status": listed}, indent=1).encode()


def encode_error(message: str) -> bytes:
    """The body of an error."""
    return json.dumps({"error": message}, ensure_ascii=False).encode("utf-8", "backslashreplace")
