"""Kernels of oneDNN for x86 that TensorFlow has under private names: the only module that calls private ops.

TensorFlow turns graphs to those for bfloat16 by itself. Here they are asked for by name: a product can be told that its
weights stay, and the softmax takes scores in bfloat16. `tests/model/precision/test_kernels.py` fails first if a new
version of TensorFlow changes them.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.model.mode import current
from bert_tf.model.processors import only_cpus
from bert_tf.processor_flags import processor_flags

_Value = tf.compat.v1.AttrValue
# An instruction set, in /proc/cpuinfo's name, without which the kernels for bfloat16 end the process. With AVX-512
# alone, in the form that it has since Skylake, they compute by float32.
AVX512 = "avx512bw"
# Activation -> its name in the kernels, and its minimum.
ACTIVATIONS = {
    "tanh_gelu": ("GeluApproximate", -0.1701),
    "erf_gelu": ("GeluExact", -0.17),
    "relu": ("Relu", 0.0),
}


def are_used(name: str) -> bool:
    """Whether to use the kernels for a number format: by the mode, or else if they run here, but not eagerly."""
    names = current().kernels
    if names is None:
        return name == "bfloat16" and not tf.executing_eagerly() and AVX512 in processor_flags() and has_bfloat16()
    return name in names


@functools.cache
def has_bfloat16() -> bool:
    """Whether TensorFlow has kernels for bfloat16: not if there are GPUs or TPUs, which have none like them."""
    if not only_cpus():
        return False
    try:
        with tf.Graph().as_default():
            rows, kernel, bias = (tf.ones(shape, tf.bfloat16) for shape in ([16, 32], [32, 16], [16]))
            softmax(multiply(rows, kernel, bias, ""))
    except (tf.errors.OpError, ValueError):  # not part of this build of TensorFlow
        return False
    return True


def multiply(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, name: str) -> tf.Tensor:
    """The activation `name`, "" for none, of rows [rows, inputs] times a kernel [inputs, outputs] plus bias [outputs].

    All are bfloat16. The kernel keeps the first weights that it gets.
    """
    fused = ["BiasAdd", *([ACTIVATIONS[name][0]] if name else [])]
    attributes = {
        "num_args": _Value(i=1),
        "is_filter_const": _Value(b=True),
        "fused_ops": _Value(list={"s": [one.encode() for one in fused]}),
    }
    result = _called("_MklNativeFusedMatMul", [rows, kernel, bias], "product", attributes)
    result.set_shape([rows.shape[0], kernel.shape[1]])
    return result


def softmax(scores: tf.Tensor) -> tf.Tensor:
    """bfloat16 -> bfloat16, over the last axis; computed in float32."""
    result = _called("_MklSoftmax", [scores], "softmax", {})
    result.set_shape(scores.shape)
    return result


def _called(op: str, inputs: list[tf.Tensor], name: str, attributes: dict[str, Any]) -> tf.Tensor:
    """The output of one of the kernels, bfloat16."""
    attributes |= {"T": _Value(type=tf.bfloat16.as_datatype_enum), "_kernel": _Value(s=b"MklNameChangeOp")}
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(op, inputs, [tf.bfloat16], attrs=attributes, name=name).outputs[0]


def multiply_int8(
    rows: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    ranges: Sequence[tf.Tensor],
    added: tf.Tensor | None,
    *,
    name: str,
    dtype: tf.DType,
    bounds: tuple[float, float] | None,
) -> tf.Tensor:
    """The activation `name`, "" for none, of rows [rows, inputs] times a kernel [inputs, outputs] plus bias [outputs].

    The kernel keeps primitives with the ranges of the columns, and finds them by the addresses of these and the values
    of the range of the rows (`Product` in `int8.py`).

    Args:
        rows: qint8 or quint8.
        kernel: int8.
        bias: float32.
        ranges: lower and upper end of the values of the rows, float32 scalars, of which the larger counts; and of each
            column of the kernel, float32 [outputs].
        added: float32 [rows, outputs] to add; None for nothing.
        name: of the activation.
        dtype: of the result.
        bounds: smallest and largest value of a result in quint8; None for others.
    """
    inputs = [rows, tf.bitcast(kernel, tf.qint8), bias, *([] if added is None else [added]), *ranges]
    inputs += map(tf.constant, bounds or ())
    outputs = [dtype] if bounds is None else [dtype, tf.float32, tf.float32]
    fused = ["BiasAdd", *([ACTIVATIONS[name][0]] if name else []), *([] if added is None else ["Add"])]
    fused.append("Dequantize" if bounds is None else "Requantize")
    attributes = {
        "Tdevice_inputs": _types(tensor.dtype for tensor in inputs),
        "Tdevice_outputs": _types(outputs),
        "Thost_inputs": _types([]),
        "Thost_outputs": _types([]),
        "T1": _type(rows.dtype),
        "T2": _type(tf.qint8),
        "Tbias": _type(tf.float32),
        "Tout": _type(dtype),
        "U": _type(tf.float32),
        "fused_ops": _Value(list={"s": [one.encode() for one in fused]}),
        "input_quant_mode": _Value(s=b"SCALED"),
        "output_quant_mode": _Value(s=b"MIN_FIRST"),
    }
    # Not in tf.raw_ops, for its name starts with an underscore.
    graph = tf.compat.v1.get_default_graph()
    result = graph.create_op("_QuantizedMatMul", inputs, outputs, attrs=attributes, name="product").outputs[0]
    result.set_shape([rows.shape[0], kernel.shape[1]])
    return result


def _type(dtype: tf.DType) -> Any:
    return _Value(type=dtype.as_datatype_enum)


def _types(dtypes: Iterable[tf.DType]) -> Any:
    return _Value(list={"type": [dtype.as_datatype_enum for dtype in dtypes]})
