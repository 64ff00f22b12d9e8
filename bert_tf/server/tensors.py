"""TensorProtos of gRPC requests and answers as arrays."""

import contextlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from bert_tf.server.options import Limits
from bert_tf.server.status import invalid
from bert_tf.types import Array

_MOST_DIMENSIONS = 64  # of NumPy's arrays
_STRING_BYTES = 24  # of TensorFlow's strings, without text that does not fit in these
_LISTS = {
    np.float32: "float_val",
    np.float64: "double_val",
    np.float16: "half_val",
    tf.bfloat16.as_numpy_dtype: "half_val",
    **dict.fromkeys((np.int8, np.int16, np.int32, np.uint8, np.uint16), "int_val"),
    np.int64: "int64_val",
    np.uint32: "uint32_val",
    np.uint64: "uint64_val",
    np.bool_: "bool_val",
    np.complex64: "scomplex_val",
    np.complex128: "dcomplex_val",
    np.object_: "string_val",
}
# Types whose bits or parts are listed.
_LISTED_AS = {"half_val": np.uint16, "scomplex_val": np.float32, "dcomplex_val": np.float64}
_CHUNK = 2**16


def required_bytes(protos: Mapping[str, tensor_pb2.TensorProto]) -> int:
    """Memory of the arrays that these describe: a few bytes can describe a tensor with a billion equal values.

    Raises:
        ServingError: INVALID_ARGUMENT, a type or shape is not valid.
    """
    return sum(_size(name, proto) for name, proto in protos.items())


def _size(name: str, proto: tensor_pb2.TensorProto) -> int:
    if len(proto.tensor_shape.dim) > _MOST_DIMENSIONS:
        raise invalid(f"{name} has more than {_MOST_DIMENSIONS} dimensions")
    sizes = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
        raise invalid(f"{name} has no complete shape")
    elements = math.prod(sizes)
    if proto.dtype == types_pb2.DT_STRING:
        repeated = max(elements - len(proto.string_val), 0)
        return elements * _STRING_BYTES + repeated * (len(proto.string_val[-1]) if proto.string_val else 0)
    return elements * _dtype(name, proto).size


def _dtype(name: str, proto: tensor_pb2.TensorProto) -> tf.DType:
    with contextlib.suppress(TypeError):  # there is no such type
        dtype = tf.as_dtype(proto.dtype)
        if dtype.is_numpy_compatible:
            return dtype
    raise invalid(f"{name} is {_type_name(proto.dtype)}, which is not supported")


def to_arrays(protos: Mapping[str, tensor_pb2.TensorProto], signature: meta_graph_pb2.SignatureDef) -> dict[str, Array]:
    """Converts the inputs of a request, whose `required_bytes` have been checked.

    Args:
        protos: by name.
        signature: defines the expected types.

    Raises:
        ServingError: INVALID_ARGUMENT, a tensor is damaged or has another type.
    """
    return {name: _to_array(name, proto, signature) for name, proto in protos.items()}


def _to_array(name: str, proto: tensor_pb2.TensorProto, signature: meta_graph_pb2.SignatureDef) -> Array:
    if name in signature.inputs and proto.dtype != signature.inputs[name].dtype:
        expected = _type_name(signature.inputs[name].dtype)
        raise invalid(f"{name} is {_type_name(proto.dtype)}; expected {expected}")
    dtype = _dtype(name, proto)
    try:
        if proto.dtype == types_pb2.DT_STRING or proto.tensor_content:
            return tf.make_ndarray(proto)
        # Lists of numbers by the parser in C++, which lets other threads run, and ignores superfluous values.
        return tf.io.parse_tensor(proto.SerializeToString(), dtype).numpy()
    except (tf.errors.InvalidArgumentError, TypeError, ValueError):
        shape = [dim.size for dim in proto.tensor_shape.dim]
        raise invalid(
            f"{name} is damaged: expected {math.prod(shape)} values of {_type_name(proto.dtype)} for shape {shape}"
        ) from None


def objects(values: Sequence[object]) -> Array:
    """A flat array of objects, such as bytes; NumPy would give them a type of their own."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def to_proto(array: Array, *, content: bool) -> tensor_pb2.TensorProto:
    """Converts an output.

    Args:
        array: of any type.
        content: whether numbers are bytes, in `tensor_content`, instead of a list such as `float_val`.
    """
    field = _LISTS.get(array.dtype.type)
    if field is None or (content and field != "string_val"):
        return tf.make_tensor_proto(array)
    dims = [{"size": size} for size in array.shape]
    proto = tensor_pb2.TensorProto(
        dtype=tf.as_dtype(array.dtype).as_datatype_enum, tensor_shape={"dim": dims}, version_number=0
    )
    values = np.ravel(array)
    if field in _LISTED_AS:
        values = values.view(_LISTED_AS[field])
    for start in range(0, values.size, _CHUNK):  # in chunks, to let other threads run
        getattr(proto, field).extend(values[start : start + _CHUNK].tolist())
    return proto


def check_limits(inputs: Mapping[str, Array], limits: Limits) -> int:
    """Checks the sizes of a request.

    Returns:
        The number of rows.

    Raises:
        ServingError: INVALID_ARGUMENT, a limit is exceeded.
    """
    rows = max((len(value) for value in inputs.values() if value.ndim), default=1)
    if rows > limits.rows:
        raise invalid(f"the request has {rows} rows; at most {limits.rows} are allowed (--max_rows)")
    for name, value in inputs.items():
        longest = max(map(len, value.flat), default=0) if value.dtype == object else 0
        if longest > limits.text_bytes:
            raise invalid(
                f"{name}: a text has {longest} bytes; at most {limits.text_bytes} are allowed (--max_text_kilobytes)"
            )
    return rows


def least_bytes(outputs: Mapping[str, Array]) -> int:
    """The least size of an answer with these outputs, as JSON or protobuf."""
    size = 0
    for value in outputs.values():
        if value.dtype == object:
            size += sum(map(len, value.flat))
        size += value.size * (4 if value.dtype.kind == "f" else 1)  # "0.0," takes as many bytes as a float32
    return size


def _type_name(dtype: int) -> str:
    return types_pb2.DataType.Name(dtype) if dtype in types_pb2.DataType.values() else f"type {dtype}"
