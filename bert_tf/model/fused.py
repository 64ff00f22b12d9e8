"""Operations in one pass over memory: programs of XLA, and kernels of oneDNN that TensorFlow has under private names.

Each stands beside the same in TensorFlow's usual operations, its `plain`. `OPERATIONS` lists them;
`tests/model/test_fused.py` compares the two of each, and fails first if a new version of TensorFlow changes them.
No other module of `model/` calls XLA or a private operation.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bert_tf.model.mode import current
from bert_tf.model.processors import only_cpus
from bert_tf.processor_flags import processor_flags

_Value = tf.compat.v1.AttrValue
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
# An instruction set, in /proc/cpuinfo's name, without which the kernels for bfloat16 end the process. With AVX-512
# alone, in the form that it has since Skylake, they compute by float32.
AVX512 = "avx512bw"


class Compiled:
    """A chain of operations that XLA compiles, a program for each shape.

    Attributes:
        plain: the chain itself, or a faster one for TensorFlow's own kernels.
    """

    def __init__(self, chain: Callable[..., Any], plain: Callable[..., Any] | None = None) -> None:
        self._chain, self._program = chain, tf.function(chain, autograph=False, jit_compile=True)
        self.plain = plain or chain

    @property
    def fused(self) -> Callable[..., Any]:
        """The program; where it is a part of a program for a GPU, the chain, which may differ there."""
        return self._chain if current().gpu_program else self._program

    def on(self, tensor: tf.Tensor) -> Callable[..., Any]:
        """The program if the mode compiles chains of operations on this tensor, else `plain`."""
        return self.fused if current().fuses(tensor) else self.plain


class Kernel:
    """A kernel of oneDNN. Called, it is used if the mode or the processor says so (`are_used`), else `plain`.

    Attributes:
        number_format: of its inputs, as for `are_used`.
        fused: the kernel; for graphs only.
        plain: the same in usual operations.
    """

    def __init__(self, number_format: str, fused: Callable[..., tf.Tensor], plain: Callable[..., tf.Tensor]) -> None:
        self.number_format, self.fused, self.plain = number_format, fused, plain

    def __call__(self, *arguments: Any, **options: Any) -> tf.Tensor:
        return (self.fused if are_used(self.number_format) else self.plain)(*arguments, **options)


def are_used(number_format: str) -> bool:
    """Whether to use the kernels for a number format: by the mode, or else if they run here, but not eagerly."""
    formats = current().kernels
    if formats is None:
        runs = number_format == "bfloat16" and not tf.executing_eagerly()
        return runs and AVX512 in processor_flags() and has_bfloat16()
    return number_format in formats


@functools.cache
def has_bfloat16() -> bool:
    """Whether TensorFlow has kernels for bfloat16: not if there are GPUs or TPUs, which have none like them."""
    if not only_cpus():
        return False
    try:
        with tf.Graph().as_default():
            rows, kernel, bias = (tf.ones(shape, tf.bfloat16) for shape in ([16, 32], [32, 16], [16]))
            softmax.fused(product.fused(rows, kernel, bias, ""))
    except (tf.errors.OpError, ValueError):  # not part of this build of TensorFlow
        return False
    return True


def kept(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The same, which a program for a GPU computes once and keeps, whatever XLA thinks of that; elsewhere nothing."""
    return tuple(gen_xla_ops.xla_optimization_barrier(tensors)) if current().gpu_program else tensors


def module(
    text: str, arguments: Sequence[tf.Tensor], results: Sequence[tuple[Sequence[int], tf.DType]]
) -> list[tf.Tensor]:
    """The results, of these shapes and dtypes, of a module of StableHLO, in a program that XLA compiles for a GPU."""
    shapes, dtypes = zip(*results, strict=True)
    outputs: list[tf.Tensor] = gen_xla_ops.xla_call_module(
        arguments, version=9, module=text, Sout=shapes, Tout=dtypes, platforms=["CUDA"]
    )
    return outputs


# Sums. On a CPU, XLA and TensorFlow add up one number after the other; products do not.


def column_sums(rows: tf.Tensor) -> tf.Tensor:
    """[rows, size] -> [size]: a product with ones, which on a CPU takes a tenth of the time of a reduction.

    On GPUs a reduction, in float32: there XLA joins products with ones to one, for which it copies all of their rows
    side by side.
    """
    if not only_cpus():
        return tf.cast(tf.reduce_sum(tf.cast(rows, tf.float32), 0), rows.dtype)
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], rows.dtype), rows)[0]


def _row_sums(values: tf.Tensor) -> tf.Tensor:
    """float32 [..., size] -> [..., 1]. On other devices, whose products may be coarser than float32, a reduction."""
    if not only_cpus():
        return tf.reduce_sum(values, -1, keepdims=True)
    size = tf.shape(values)[-1]
    sums = tf.matmul(tf.reshape(values, [-1, size]), tf.ones([size, 1]))
    return tf.reshape(sums, tf.concat([tf.shape(values)[:-1], [1]], 0))


# Activations.


def tanh_forward(x: tf.Tensor) -> tf.Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the form of google-research/bert (modeling.py, gelu)."""
    return 0.5 * x * (1.0 + tf.tanh(_TANH_SCALE * (x + _CUBIC * x * x * x)))


def _tanh_backward(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    squared = x * x
    tanh = tf.tanh(_TANH_SCALE * (x + _CUBIC * x * squared))
    slope = _TANH_SCALE * (1.0 + 3.0 * _CUBIC * squared)
    return upstream * 0.5 * (1.0 + tanh + x * (1.0 - tanh * tanh) * slope)


def erf_forward(x: tf.Tensor) -> tf.Tensor:
    """x Phi(x), exact (Hendrycks and Gimpel, 2016)."""
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


def _erf_backward(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    density = tf.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    return upstream * (0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5))) + x * density)


def silu_forward(x: tf.Tensor) -> tf.Tensor:
    """x sigmoid(x) (Hendrycks and Gimpel, 2016, section 2; the Swish of SwiGLU)."""
    return x * tf.sigmoid(x)


def _silu_backward(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    sigmoid = tf.sigmoid(x)
    return upstream * sigmoid * (1.0 + x * (1.0 - sigmoid))


class Activation(NamedTuple):
    """An activation in the kernels of oneDNN.

    Attributes:
        name: in these.
        lowest: its minimum.
        plain: in usual operations.
    """

    name: str
    lowest: float
    plain: Callable[[tf.Tensor], tf.Tensor]


ACTIVATIONS = {
    "tanh_gelu": Activation("GeluApproximate", -0.1701, tanh_forward),
    "erf_gelu": Activation("GeluExact", -0.17, erf_forward),
    "relu": Activation("Relu", 0.0, tf.nn.relu),
}


def _in_float32(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """An elementwise function that computes in float32 and returns the dtype of its arguments.

    In float16 a square over 65504 would become NaN; in bfloat16, where XLA rounds after every operation, a derivative
    would take three times as long (54 instead of 16 ms for 2048 x 3072 on 2 cores).
    """

    def compute(*arguments: tf.Tensor) -> tf.Tensor:
        return tf.cast(function(*(tf.cast(one, tf.float32) for one in arguments)), arguments[0].dtype)

    return compute


# The derivative times the upstream gradient; the activation of x + bias; and that one's derivative.
tanh_gradient = Compiled(_in_float32(_tanh_backward))
tanh_of_sum = Compiled(_in_float32(lambda x, bias: tanh_forward(x + bias)))
tanh_of_sum_gradient = Compiled(_in_float32(lambda x, bias, upstream: _tanh_backward(x + bias, upstream)))
erf_gradient = Compiled(_in_float32(_erf_backward))
erf_of_sum = Compiled(_in_float32(lambda x, bias: erf_forward(x + bias)))
erf_of_sum_gradient = Compiled(_in_float32(lambda x, bias, upstream: _erf_backward(x + bias, upstream)))
silu_gradient = Compiled(_in_float32(_silu_backward))

# x plus bias in the dtype of the bias.
bias_sum = Compiled(
    lambda x, bias: tf.cast(x, bias.dtype) + bias, lambda x, bias: tf.nn.bias_add(tf.cast(x, bias.dtype), bias)
)


# Dropout. `keys` are uint32 [2]; `threshold` is the rate as uint32, and `scale` 1 / (1 - rate).


def _kept(x: tf.Tensor, keys: tf.Tensor, threshold: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """float32: `scale` times the elements of x whose random number is not below `threshold`, and 0 for the others."""
    # The number is a hash of the element's index and the keys, with the mixing steps of MurmurHash3's finalizer: a
    # fifth of the time that TensorFlow's generator takes to fill a tensor.
    bits = _indices(x) * 0x9E3779B9 + keys[0]
    bits = _shifted(bits, 16) * 0x85EBCA6B
    bits = _shifted(tf.bitwise.bitwise_xor(bits, keys[1]), 13) * 0xC2B2AE35
    keep = tf.reshape(_shifted(bits, 16), tf.shape(x)) >= threshold
    return tf.where(keep, x * scale, 0.0)


def _indices(x: tf.Tensor) -> tf.Tensor:
    """The index of each element of x: uint32 [elements]."""
    size = x.shape.num_elements()
    if not current().gpu_program or size is None:
        return tf.cast(tf.range(tf.size(x)), tf.uint32)
    # TensorFlow would compute all of them, for each mask, before it hands the program to XLA: of base with 8 rows of
    # 512 tokens, 5 GB.
    array = f"tensor<{size}xui32>"
    text = f"""module @indices {{
  func.func public @main() -> {array} {{
    %0 = stablehlo.iota dim = 0 : {array}
    return %0 : {array}
  }}
}}"""
    return module(text, [], [([size], tf.uint32)])[0]


def _shifted(bits: tf.Tensor, places: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(places, tf.uint32)))


def _dropped(
    x: tf.Tensor, keys: tf.Tensor, threshold: tf.Tensor, scale: tf.Tensor, dtype: tf.DType | None = None
) -> tf.Tensor:
    """Dropout, in the dtype of x if no other one is given."""
    return tf.cast(_kept(tf.cast(x, tf.float32), keys, threshold, scale), dtype or x.dtype)


def _dropped_sum(
    residual: tf.Tensor, x: tf.Tensor, bias: tf.Tensor, keys: tf.Tensor, threshold: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    """`residual` plus dropout of x + bias."""
    total = tf.cast(x, tf.float32) + tf.cast(bias, tf.float32)
    return tf.cast(tf.cast(residual, tf.float32) + _kept(total, keys, threshold, scale), residual.dtype)


def _dropped_softmax_gradient(
    probabilities: tf.Tensor, upstream: tf.Tensor, keys: tf.Tensor, threshold: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    """The gradient of the scores from that of dropout of their softmax, in its dtype."""
    gradient = _kept(tf.cast(upstream, tf.float32), keys, threshold, scale)
    sums = _row_sums(gradient * probabilities)
    return tf.cast(probabilities * (gradient - sums), upstream.dtype)


dropped = Compiled(_dropped)
dropped_sum = Compiled(_dropped_sum)
float32_sum = Compiled(lambda scores, bias: tf.cast(scores, tf.float32) + bias)
dropped_softmax_gradient = Compiled(_dropped_softmax_gradient)


# LayerNorm.


def _row_means(values: tf.Tensor, weights: tf.Tensor | float = 1.0) -> tf.Tensor:
    """float32 [rows, size] -> [rows, 1], of values times weights [size]. By reductions where `_row_sums` has them."""
    if not only_cpus():
        return tf.reduce_mean(values * weights, -1, keepdims=True)
    return tf.matmul(values, tf.ones([values.shape[1], 1]) * tf.reshape(weights, [-1, 1]) / values.shape[1])


def _norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The normalised rows in the dtype of x; their means and inverse standard deviations, float32 [rows, 1]."""
    rows = tf.cast(x, tf.float32)
    mean = _row_means(rows)
    inverse = tf.math.rsqrt(_row_means(tf.square(rows - mean)) + epsilon)
    return tf.cast((rows - mean) * inverse * gamma + beta, x.dtype), mean, inverse


def _norm_gradient(
    x: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, inverse: tf.Tensor, upstream: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of x in its dtype; float32 [rows, size], whose column sums are the gradient of gamma."""
    upstream = tf.cast(upstream, tf.float32)
    normalized = (tf.cast(x, tf.float32) - mean) * inverse
    weighted = upstream * normalized
    # Of g and of g * normalized, where g = upstream * gamma.
    of_sum, of_product = _row_means(upstream, gamma), _row_means(weighted, gamma)
    return tf.cast(inverse * (upstream * gamma - of_sum - normalized * of_product), x.dtype), weighted


norm, norm_gradient = Compiled(_norm), Compiled(_norm_gradient)


# Cross entropy of labels.


def _one_hot_gradient(probabilities: tf.Tensor, labels: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """float32 [rows, classes]: (probabilities - one-hot labels) * upstream, from [rows, classes], [rows] and [rows]."""
    expected = tf.range(tf.shape(probabilities)[1]) == labels[:, tf.newaxis]
    return (probabilities - tf.cast(expected, tf.float32)) * upstream[:, tf.newaxis]


def _scattered_gradient(probabilities: tf.Tensor, labels: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    indices = tf.stack([tf.range(tf.size(labels)), labels], 1)
    return tf.tensor_scatter_nd_sub(probabilities * upstream[:, tf.newaxis], indices, upstream)


cross_entropy_gradient = Compiled(_one_hot_gradient, _scattered_gradient)


# Products and softmax of low precision. TensorFlow turns graphs to the kernels for bfloat16 by itself; here they are
# asked for by name, because a product can then be told that its weights stay, and the softmax takes scores in bfloat16.


def _product_by_kernel(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, name: str) -> tf.Tensor:
    """The activation `name`, "" for none, of rows [rows, inputs] times a kernel [inputs, outputs] plus bias [outputs].

    All are bfloat16. The kernel keeps the first weights that it gets.
    """
    attributes = {
        "num_args": _Value(i=1),
        "is_filter_const": _Value(b=True),
        "fused_ops": _strings("BiasAdd", *([ACTIVATIONS[name].name] if name else [])),
    }
    result = _called("_MklNativeFusedMatMul", [rows, kernel, bias], "product", attributes)
    result.set_shape([rows.shape[0], kernel.shape[1]])
    return result


def _product(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, name: str) -> tf.Tensor:
    outputs = tf.nn.bias_add(tf.matmul(rows, kernel), bias)
    return ACTIVATIONS[name].plain(outputs) if name else outputs


def _softmax_by_kernel(scores: tf.Tensor) -> tf.Tensor:
    """bfloat16 -> bfloat16, over the last axis; computed in float32."""
    result = _called("_MklSoftmax", [scores], "softmax", {})
    result.set_shape(scores.shape)
    return result


def _softmax(scores: tf.Tensor) -> tf.Tensor:
    """Softmax over the last axis, float32 whatever the dtype of the scores."""
    return tf.nn.softmax(tf.cast(scores, tf.float32))


def _called(op: str, inputs: list[tf.Tensor], name: str, attributes: dict[str, Any]) -> tf.Tensor:
    """The output of one of the kernels, bfloat16."""
    attributes |= {"T": _Value(type=tf.bfloat16.as_datatype_enum), "_kernel": _Value(s=b"MklNameChangeOp")}
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(op, inputs, [tf.bfloat16], attrs=attributes, name=name).outputs[0]


def _int8_product_by_kernel(
    rows: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    ranges: tf.Tensor,
    added: tf.Tensor | None = None,
    *,
    rows_range: tuple[float, float],
    name: str = "",
    dtype: tf.DType = tf.float32,
    bounds: tuple[float, float] | None = None,
) -> tf.Tensor:
    """The activation `name`, "" for none, of rows [rows, inputs] times a kernel [inputs, outputs] plus bias [outputs].

    The kernel keeps its primitives by the addresses of the ranges of the columns, not by their values, and an address
    recurs when a model is loaded where another one was. That does no harm: with oneDNN 3, which TensorFlow has had for
    as long as this kernel, a primitive does not contain the scales, but gets them in each call. With oneDNN 2, the
    kernel would return results of the other model's scales.

    Args:
        rows: qint8 or quint8.
        kernel: int8.
        bias: float32.
        ranges: lower and upper end of the values of each column of the kernel, float32 [2, outputs].
        added: float32 [rows, outputs] to add; None for nothing.
        rows_range: lower and upper end of the values of the rows, of which the larger counts.
        name: of the activation.
        dtype: of the result.
        bounds: smallest and largest value of a result in quint8; None for others.
    """
    inputs = [rows, tf.bitcast(kernel, tf.qint8), bias, *([] if added is None else [added])]
    inputs += [*map(tf.constant, rows_range), *tf.unstack(ranges), *map(tf.constant, bounds or ())]
    outputs = [dtype] if bounds is None else [dtype, tf.float32, tf.float32]
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
        "fused_ops": _strings(
            "BiasAdd",
            *([ACTIVATIONS[name].name] if name else []),
            *([] if added is None else ["Add"]),
            "Dequantize" if bounds is None else "Requantize",
        ),
        "input_quant_mode": _Value(s=b"SCALED"),
        "output_quant_mode": _Value(s=b"MIN_FIRST"),
    }
    # Not in tf.raw_ops, for its name starts with an underscore.
    graph = tf.compat.v1.get_default_graph()
    result = graph.create_op("_QuantizedMatMul", inputs, outputs, attrs=attributes, name="product").outputs[0]
    result.set_shape([rows.shape[0], kernel.shape[1]])
    return result


def _int8_product(
    rows: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    ranges: tf.Tensor,
    added: tf.Tensor | None = None,
    *,
    rows_range: tuple[float, float],
    name: str = "",
    dtype: tf.DType = tf.float32,
    bounds: tuple[float, float] | None = None,
) -> tf.Tensor:
    """The same numbers, multiplied in float32; the result is quint8 or, whatever the dtype, float32."""
    unsigned = rows.dtype == tf.quint8
    inputs = tf.cast(tf.bitcast(rows, tf.uint8 if unsigned else tf.int8), tf.float32)
    scales = ranges[1] * (rows_range[1] / ((255 if unsigned else 127) * 127))
    activation = ACTIVATIONS[name].plain if name else None
    outputs = int8_arithmetic(inputs, tf.cast(kernel, tf.float32), scales, bias, added, activation, bounds, tf.round)
    return outputs if bounds is None else tf.bitcast(tf.cast(outputs, tf.uint8), tf.quint8)


def int8_arithmetic(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    scales: tf.Tensor,
    bias: tf.Tensor,
    added: tf.Tensor | None,
    activation: Callable[[tf.Tensor], tf.Tensor] | None,
    bounds: tuple[float, tf.Tensor | float] | None,
    rounded: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """The product of whole numbers in float32, and what the kernel does after it; whole numbers if there are bounds."""
    outputs = tf.matmul(inputs, kernel) * scales + bias
    if activation:
        outputs = activation(outputs)
    if bounds is None:
        return outputs if added is None else added + outputs
    lowest, highest = bounds
    return rounded((tf.clip_by_value(outputs, lowest, highest) - lowest) * (255 / (highest - lowest)))


def _type(dtype: tf.DType) -> Any:
    return _Value(type=dtype.as_datatype_enum)


def _types(dtypes: Iterable[tf.DType]) -> Any:
    return _Value(list={"type": [dtype.as_datatype_enum for dtype in dtypes]})


def _strings(*values: str) -> Any:
    return _Value(list={"s": [one.encode() for one in values]})


product = Kernel("bfloat16", _product_by_kernel, _product)
softmax = Kernel("bfloat16", _softmax_by_kernel, _softmax)
int8_product = Kernel("int8", _int8_product_by_kernel, _int8_product)

OPERATIONS: dict[str, Compiled | Kernel] = {
    name: value for name, value in globals().items() if isinstance(value, Compiled | Kernel)
}
