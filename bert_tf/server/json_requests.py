"""Bodies of REST requests as arrays and tf.Examples.

JSON is read as TF Serving reads it: NaN and Infinity are numbers, of members with the same name the first one counts,
and what follows the first value is ignored. Values are checked and converted as whole lists, by functions written in C.
"""

import base64
import binascii
import gc
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import input_pb2

from bert_tf.server.servable import DEFAULT_SIGNATURE
from bert_tf.server.status import Code, ServingError, invalid
from bert_tf.server.tensors import objects
from bert_tf.types import Array, Json

_MOST_DIMENSIONS = 64  # of NumPy's arrays
_LONGEST_SHOWN = 80  # characters of a value in an error
# NumPy's types that JSON is read as and written from.
KINDS = (
    np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.bool_, np.object_
)  # fmt: skip


_KINDS: dict[int, type[Any]] = {tf.as_dtype(kind).as_datatype_enum: kind for kind in KINDS}  # by TensorFlow's types
_MOST_FLOAT = int(np.finfo(np.float64).max)


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


class _Constant(float):
    """The value of the words NaN and Infinity; a float that is infinite was a number with too large an exponent."""


def _first_wins(pairs: list[tuple[str, Any]]) -> Json:
    members = dict(pairs)
    return members if len(members) == len(pairs) else dict(reversed(pairs))


_DECODER = json.JSONDecoder(object_pairs_hook=_first_wins, parse_constant=_Constant)


def parse(body: bytes | bytearray) -> Json:
    """Parses a request.

    Args:
        body: UTF-8.

    Raises:
        ServingError: INVALID_ARGUMENT, not a JSON object.
    """
    enabled = gc.isenabled()
    # Millions of lists would make Python look for garbage among them, again and again, for ten seconds.
    gc.disable()
    try:
        document, _ = _DECODER.raw_decode(body.decode("utf-8-sig").lstrip(" \t\n\r"))
    except RecursionError:
        raise invalid("the body is not valid: lists and objects are nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    except ValueError:  # a limit of Python's, 4300
        raise invalid("the body is not valid: a number has too many digits") from None
    finally:
        if enabled:
            gc.enable()
    if type(document) is not dict:
        raise invalid(f"the body is {_shown(document)}; expected a JSON object")
    return document


def signature_name(document: Json) -> str:
    """The name of a request's signature.

    Raises:
        ServingError: INVALID_ARGUMENT, it is not a string.
    """
    name = document.get("signature_name", "")
    if type(name) is not str:
        raise invalid(f"signature_name is {_shown(name)}; expected a string")
    return name or DEFAULT_SIGNATURE


def decode_predict(document: Json, signatures: Mapping[str, meta_graph_pb2.SignatureDef]) -> Predict:
    """Converts the tensors of a request to predict.

    Args:
        document: from `parse`.
        signatures: of the model.

    Raises:
        ServingError: the tensors do not fit the signature.
    """
    name = signature_name(document)
    if name not in signatures:
        raise invalid(f"the model has no signature {_shown(name)}")
    dtypes = {key: info.dtype for key, info in sorted(signatures[name].inputs.items())}
    if not dtypes:
        raise invalid(f"the signature {name} has no inputs")
    by_row = "instances" in document
    if by_row == ("inputs" in document):
        raise invalid(f"found {'both' if by_row else 'neither'} of 'instances' and 'inputs'; expected one of them")
    inputs = _instances(document["instances"], dtypes) if by_row else _inputs(document["inputs"], dtypes)
    return Predict(name, inputs, by_row)


def _instances(rows: Any, dtypes: Mapping[str, int]) -> dict[str, Array]:
    """Arrays of rows, each a value, or an object with the names of the inputs."""
    if type(rows) is not list or not rows:
        raise invalid(f"instances is {_shown(rows)}; expected a list of at least one row")
    if not _is_object(rows[0]):
        _check_single(dtypes, "instances[0]", rows[0])
        ((name, dtype),) = dtypes.items()
        return {name: _array(rows, dtype, "instances{}")}
    for index, row in enumerate(rows):
        if type(row) is not dict or row.keys() != dtypes.keys():
            raise invalid(f"instances[{index}] is {_shown(row)}; expected an object with {_listed(dtypes)}")
    return {
        name: _array([row[name] for row in rows], dtype, f"instances{{}}, {name}") for name, dtype in dtypes.items()
    }


def _inputs(value: Any, dtypes: Mapping[str, int]) -> dict[str, Array]:
    """Arrays by name, or the only one."""
    if not _is_object(value):
        _check_single(dtypes, "inputs", value)
        return {name: _array(value, dtype, "inputs{}") for name, dtype in dtypes.items()}
    if missing := dtypes.keys() - value.keys():
        raise invalid(f"inputs has no {_listed(missing)}")
    return {name: _array(value[name], dtype, f"{name}{{}}") for name, dtype in dtypes.items()}


def _check_single(dtypes: Mapping[str, int], place: str, value: Any) -> None:
    if len(dtypes) > 1:
        raise invalid(f"{place} is {_shown(value)}; expected an object with {_listed(dtypes)}")


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def _is_bytes(value: Any) -> bool:
    """Whether this is base64, like {"b64": "aGk="}."""
    return type(value) is dict and len(value) == 1 and type(value.get("b64")) is str


def _is_object(value: Any) -> bool:
    return type(value) is dict and not _is_bytes(value)


def _array(value: Any, dtype: int, place: str) -> Array:
    """The array of nested lists.

    Args:
        value: as JSON has it.
        dtype: of the input, TensorFlow's.
        place: of the value, for errors, with {} for the indices.

    Raises:
        ServingError: INVALID_ARGUMENT, the lists have no regular shape, or a value is not of this type; UNIMPLEMENTED,
            no JSON is.
    """
    shape: list[int] = []
    leaves = [value]

    def wrong(index: int, expected: str) -> ServingError:
        indices = "".join(f"[{number}]" for number in np.unravel_index(index, shape)) if shape else ""
        return invalid(f"{place.replace('{}', indices)} is {_shown(leaves[index])}; expected {expected}")

    while leaves and type(leaves[0]) is list:
        size = len(leaves[0])
        if {*map(type, leaves)} != {list} or {*map(len, leaves)} != {size}:
            index = next(i for i, leaf in enumerate(leaves) if type(leaf) is not list or len(leaf) != size)
            raise wrong(index, f"a list of {size}, as the first one")
        if len(shape) == _MOST_DIMENSIONS:
            raise invalid(f"{place.replace('{}', '')} has more than {_MOST_DIMENSIONS} dimensions")
        shape.append(size)
        leaves = list(itertools.chain.from_iterable(leaves))
    if dtype not in _KINDS:
        name = types_pb2.DataType.Name(dtype)
        raise ServingError(Code.UNIMPLEMENTED, f"{place.replace('{}', '')} is {name}, which cannot be sent as JSON")
    kind = _KINDS[dtype]
    if kind is np.object_:
        texts = [_bytes(leaf) for leaf in leaves]
        if None in texts:
            raise wrong(texts.index(None), 'text, or {"b64": base64}')
        return objects(texts).reshape(shape)
    is_float = issubclass(kind, np.floating)
    allowed: set[type] = {int, float, _Constant} if is_float else {bool} if kind is np.bool_ else {int}
    if not {*map(type, leaves)} <= allowed:
        index = next(i for i, leaf in enumerate(leaves) if type(leaf) not in allowed)
        raise wrong(index, np.dtype(kind).name)
    read_as = np.float64 if is_float else kind  # TF Serving's parser reads float64, too, and rounds it
    try:
        array = np.array(leaves, read_as)
        too_large = [int(i) for i in np.flatnonzero(np.isinf(array)) if type(leaves[i]) is not _Constant]
    except OverflowError:  # of an integer
        least, most = (-_MOST_FLOAT, _MOST_FLOAT) if is_float else (np.iinfo(kind).min, np.iinfo(kind).max)
        too_large = [i for i, leaf in enumerate(leaves) if not least <= leaf <= most]
    if too_large:
        raise wrong(too_large[0], f"a number in the range of {np.dtype(read_as).name}")
    with np.errstate(over="ignore"):  # 1e39 is infinite in float32
        return array.astype(kind).reshape(shape)


def _bytes(value: Any) -> bytes | None:
    """The bytes of text or base64; None if it is neither."""
    try:
        if type(value) is str:
            return value.encode()
        if not _is_bytes(value):
            return None
        # As in TF Serving, white space is ignored and the padding may be missing.
        text = "".join(value["b64"].split())
        return base64.b64decode(text if "=" in text else text + "=" * (-len(text) % 4), validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError):  # half of a surrogate pair; characters that are not base64
        return None


def decode_examples(document: Json) -> input_pb2.Input:
    """Converts a request to classify or regress.

    Args:
        document: from `parse`.

    Raises:
        ServingError: the examples are not what they should be.
    """
    message = input_pb2.Input()
    examples = message.example_list.examples
    if "context" in document:
        _fill_example(document["context"], message.example_list_with_context.context, "context")
        examples = message.example_list_with_context.examples
    values = document.get("examples")
    if type(values) is not list or not values:
        found = _shown(values) if "examples" in document else "missing"
        raise invalid(f"examples is {found}; expected a list of at least one example")
    for index, value in enumerate(values):
        _fill_example(value, examples.add(), f"examples[{index}]")
    return message


def _fill_example(value: Any, example: example_pb2.Example, place: str) -> None:
    if type(value) is not dict:
        raise invalid(f"{place} is {_shown(value)}; expected an object with a member per feature")
    for name, content in value.items():
        if _bytes(name) is None:
            raise invalid(f"{place} has a feature {_shown(name)}, which is not valid Unicode")
        _fill_feature(
            content if type(content) is list else [content], f"{place}, {name}", example.features.feature[name]
        )


def _fill_feature(values: list[Any], place: str, feature: feature_pb2.Feature) -> None:
    """Fills the list of a feature; as in TF Serving, numbers with a point are floats, others integers."""
    if not values:
        return
    expected = _kind(values[0])
    for value in values:
        kind = _kind(value)
        if kind is None or kind != expected:
            what = f"{expected}, as the first value" if kind else 'a number, text or {"b64": base64}'
            raise invalid(f"{place} has {_shown(value)}; expected {what}")
    content = [_bytes(value) for value in values] if expected == "bytes_list" else values
    getattr(feature, str(expected)).value.extend(content)


def _kind(value: Any) -> str | None:
    """The list of a Feature that takes a value; None if none does."""
    if isinstance(value, float):
        return "float_list" if type(value) is _Constant or math.isfinite(value) else None
    if type(value) in (int, bool):
        if -(2**63) <= value < 2**63:
            return "int64_list"
        return "float_list" if -_MOST_FLOAT <= value < -(2**63) or 2**64 <= value <= _MOST_FLOAT else None
    return None if _bytes(value) is None else "bytes_list"


def _shown(value: Any) -> str:
    """A value in an error, shortened."""
    if type(value) is list:
        return f"a list of {len(value)}"
    if type(value) is dict:
        text = f"an object with {_listed(itertools.islice(value, _LONGEST_SHOWN)) or 'no members'}"
    else:
        text = json.dumps(value[:_LONGEST_SHOWN] if type(value) is str else value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
