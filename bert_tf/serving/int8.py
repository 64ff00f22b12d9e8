"""Matrix products of an encoder in int8, by the kernel that TensorFlow has for x86 processors since 2.17.

The kernel multiplies int8 inputs, which have one scale, by int8 weights, which have one per column, and adds bias, GELU
and rounding to int8 in the same pass. Its inputs have scales that are fixed at export, from texts, so the answers for a
row do not depend on the other rows of a request. A few channels of BERT are much larger than the others, and one scale
for all would leave these few bits. So

- before the products of a LayerNorm's output, each channel is divided by a constant, by which its weights are
  multiplied (SmoothQuant: Xiao et al., 2023, arXiv:2211.10438); before the output projection of the attention, these
  constants are in the weights of the values;
- channels of the intermediate layer that exceed the range are continued in additional channels (`continued`).

The products of the attention, which have no weights, are in bfloat16 where the processor has it. Where it has no dot
products of int8, TensorFlow's usual operations compute the same products of the same numbers in float32.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.model.activations import activation, without_gradient
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.inference import infer
from bert_tf.model.layers import Dense, Embeddings, TransformerBlock
from bert_tf.model.mode import Mode, computing
from bert_tf.serving import bfloat16, kernels
from bert_tf.serving.session import NotServable
from bert_tf.types import Array, Tensors

# Channels of an input are divided by (largest value)^0.8 / (largest weight)^0.2: between "all channels alike", which
# makes the weights uneven, and no change, which leaves the channels uneven.
_SMOOTHING = 0.8
# Inputs may exceed those of the calibration by this factor before they are clipped.
_MARGIN = 1.1
# Additional channels: one for 48 of the intermediate layer, in multiples of 16, which suit the kernel.
_CONTINUED_SHARE, _CONTINUED_MULTIPLE = 48, 16


class Largest(NamedTuple):
    """Largest absolute values of the inputs of a block's products, by channel; of `output` the largest values."""

    qkv: Array
    attention_output: Array
    intermediate: Array
    output: Array


def require_kernels() -> None:
    """Raises NotServable if TensorFlow has no kernels for int8."""
    try:
        with tf.Graph().as_default(), computing(Mode(kernels=frozenset({"int8"}))):
            product = Product(np.ones([64, 16], np.float32), np.zeros(16, np.float32), limit=1.0)
            product.multiply(quantize(tf.ones([16, 64])))
    except (tf.errors.OpError, ValueError):
        raise NotServable(
            "int8: this TensorFlow has no int8 products; expected TensorFlow 2.17 or newer on x86; use "
            "--optimize=bfloat16 or none"
        ) from None


def calibrate(encoder: BertEncoder, batches: Iterable[Tensors]) -> list[Largest]:
    """Runs an encoder in float32 on batches of features and returns the ranges of each block.

    Raises:
        NotServable: it computes NaN or infinity.
    """
    found: dict[int, list[dict[str, Array]]] = {}
    for features in batches:
        tokens = features["input_mask"].numpy().reshape(-1) > 0
        for index, block in enumerate(blocks(encoder)):
            found.setdefault(index, []).append({})
            for name, layer in products(block).items():
                layer.__dict__["product"] = functools.partial(_observed, layer, found[index][-1], name, tokens)
        try:
            infer(encoder, features)
        finally:
            for block in blocks(encoder):
                for layer in products(block).values():
                    del layer.__dict__["product"]
    ranges = [
        Largest(**{name: np.max([one[name] for one in batches], 0) for name in Largest._fields})
        for batches in found.values()
    ]
    if not all(np.isfinite(part).all() for one in ranges for part in one):
        raise NotServable("int8: the model itself computes NaN or infinity; check its training; nothing was exported")
    return ranges


def _observed(layer: Dense, largest: dict[str, Array], name: str, tokens: Array, rows: tf.Tensor) -> tf.Tensor:
    values = rows.numpy()
    if len(values) == len(tokens):  # all positions: the products are those of the tokens only if they are fewer
        values = values[tokens]
    largest[name] = (values if name == "output" else np.abs(values)).max(0)
    return type(layer).product(layer, rows)


def blocks(encoder: BertEncoder) -> list[TransformerBlock]:
    """The transformer blocks of an encoder, first to last."""
    return encoder.blocks()


def products(block: TransformerBlock) -> dict[str, Dense]:
    """The dense layers of a block, by their names in `Largest`."""
    attention = block.attention
    return dict(zip(Largest._fields, (attention.qkv, attention.output_projection, block.intermediate,
                                      block.output_projection), strict=True))  # fmt: skip


def replacements(block: TransformerBlock, largest: Largest) -> Iterator[tuple[Any, dict[str, object]]]:
    """The layers of a block, and their attributes for int8."""
    qkv, attention_output = block.attention.qkv, block.attention.output_projection
    kernel, bias = qkv.kernel.numpy(), qkv.bias.numpy()
    # Context is a weighted mean of values: dividing a column of the values divides a channel of the context.
    divisors = smoothing(largest.attention_output, attention_output.kernel.numpy())
    size = len(divisors)
    kernel, bias = kernel.copy(), bias.copy()
    kernel[:, -size:] /= divisors
    bias[-size:] /= divisors
    yield qkv, {"product": _smoothed(kernel, bias, smoothing(largest.qkv, kernel), for_attention=True)}
    yield block.attention, {"softmax": functools.partial(bfloat16.softmax, block.attention)}
    product = Product(
        attention_output.kernel.numpy() * divisors[:, np.newaxis], attention_output.bias.numpy(), limit=1.0
    )
    yield attention_output, {"added": lambda x, rows: product.multiply(quantize(rows), x)}
    yield from _feed_forward(block, largest)


def smoothing(largest: Array, kernel: Array) -> Array:
    """Divisors of the channels of an input [inputs], after which its values are at most 1.

    Args:
        largest: [inputs], of the values of each channel.
        kernel: [inputs, outputs].
    """
    channels = np.maximum(largest, 1e-6)
    weights = np.maximum(np.abs(kernel).max(1), 1e-6)
    divisors = channels**_SMOOTHING / weights ** (1 - _SMOOTHING)
    return (divisors * (channels / divisors).max() * _MARGIN).astype(np.float32)


def quantized(kernel: Array) -> tuple[Array, Array]:
    """Rounds a kernel [inputs, outputs] to int8 and returns it with the value of 127 in each column, float32."""
    largest = np.maximum(np.abs(kernel).max(0), 1e-30).astype(np.float32)
    return np.rint(kernel / largest * 127).astype(np.int8), largest


class Product:
    """A matrix product of int8 inputs, symmetric around 0, with bias.

    Args:
        kernel: [inputs, outputs].
        bias: [outputs].
        limit: the value of the input that is 127, or, with `offset`, the difference of the values that are 255 and 0.
        offset: the value of 0, if the input is quint8 instead of qint8: a number, or one per input.
        activation: name of the activation, "" for none.
        bounds: smallest and largest value of a quint8 output; None for one that is not rounded.
        for_attention: whether that is bfloat16 where kernels for bfloat16 are used; else float32.
    """

    def __init__(
        self,
        kernel: Array,
        bias: Array,
        *,
        limit: float,
        offset: float | Array | None = None,
        activation: str = "",
        bounds: tuple[float, float] | None = None,
        for_attention: bool = False,
    ) -> None:
        weights, largest = quantized(kernel)
        if offset is not None:
            # The kernel takes 0 for 0: the rest of the product is a constant, exactly.
            bias = bias + np.broadcast_to(offset, len(weights)) @ (weights * (largest / 127))
        variable = functools.partial(tf.Variable, trainable=False)
        self._weights, self._bias = variable(weights), variable(bias.astype(np.float32))
        self._ranges = variable(np.stack([-largest, largest]))  # of the weights' columns
        self.variables = [self._weights, self._bias, self._ranges]
        self._activation, self._bounds, self._for_attention = activation, bounds, for_attention
        # The kernel takes the larger of both as the range. It recognises a primitive with scales of other weights by
        # their address and these two numbers, so the smaller one differs between weights.
        share = np.float32(int(np.abs(weights.astype(np.int64)).sum()) % 65521 / 65536)
        self._range = (-limit * float(share), limit)

    def multiply(self, rows: tf.Tensor, added: tf.Tensor | None = None) -> tf.Tensor:
        """[rows, inputs] of qint8 or quint8 -> [rows, outputs] of float32 or bfloat16, or quint8 if there are bounds.

        Args:
            rows: the inputs.
            added: float32 [rows, outputs], to which to add the product, which then is float32.
        """
        return self._by_kernel(rows, added) if kernels.are_used("int8") else self._anywhere(rows, added)

    def _anywhere(self, rows: tf.Tensor, added: tf.Tensor | None) -> tf.Tensor:
        """`multiply` in TensorFlow's usual operations: the same numbers, multiplied in float32."""
        stored, steps = (tf.uint8, 255) if rows.dtype == tf.quint8 else (tf.int8, 127)
        inputs, weights = (
            tf.cast(value, tf.float32) for value in (tf.bitcast(rows, stored), tf.convert_to_tensor(self._weights))
        )
        scales = tf.convert_to_tensor(self._ranges)[1] * (self._range[1] / (steps * 127))
        outputs = tf.matmul(inputs, weights) * scales + tf.convert_to_tensor(self._bias)
        if self._activation:
            outputs = without_gradient(activation(self._activation))(outputs)
        if self._bounds is None:
            return outputs if added is None else added + outputs
        lowest, highest = self._bounds
        outputs = tf.round((tf.clip_by_value(outputs, lowest, highest) - lowest) * (255 / (highest - lowest)))
        return tf.bitcast(tf.cast(outputs, tf.uint8), tf.quint8)

    def _by_kernel(self, rows: tf.Tensor, added: tf.Tensor | None) -> tf.Tensor:
        attends = self._for_attention and kernels.are_used("bfloat16")
        inputs = [rows, tf.bitcast(tf.convert_to_tensor(self._weights), tf.qint8), tf.convert_to_tensor(self._bias)]
        inputs += [] if added is None else [added]
        inputs += [*map(tf.constant, self._range), *tf.unstack(tf.convert_to_tensor(self._ranges))]
        outputs = [tf.bfloat16 if attends else tf.float32]
        outputs = outputs if self._bounds is None else [tf.quint8, tf.float32, tf.float32]
        inputs += map(tf.constant, self._bounds or ())
        fused = ["BiasAdd"]
        fused += [kernels.ACTIVATIONS[self._activation][0]] if self._activation else []
        fused += [] if added is None else ["Add"]
        fused.append("Dequantize" if self._bounds is None else "Requantize")
        attributes = {
            "Tdevice_inputs": _types(tensor.dtype for tensor in inputs),
            "Tdevice_outputs": _types(outputs),
            "Thost_inputs": _types([]),
            "Thost_outputs": _types([]),
            "T1": _type(rows.dtype),
            "T2": _type(tf.qint8),
            "Tbias": _type(tf.float32),
            "Tout": _type(outputs[0]),
            "U": _type(tf.float32),
            "fused_ops": tf.compat.v1.AttrValue(list={"s": [name.encode() for name in fused]}),
            "input_quant_mode": tf.compat.v1.AttrValue(s=b"SCALED"),
            "output_quant_mode": tf.compat.v1.AttrValue(s=b"MIN_FIRST"),
        }
        # Not in tf.raw_ops, for its name starts with an underscore.
        graph = tf.compat.v1.get_default_graph()
        result = graph.create_op("_QuantizedMatMul", inputs, outputs, attrs=attributes, name="product").outputs[0]
        result.set_shape([rows.shape[0], self._weights.shape[1]])
        return result


def _type(dtype: tf.DType) -> Any:
    return tf.compat.v1.AttrValue(type=dtype.as_datatype_enum)


def _types(dtypes: Iterable[tf.DType]) -> Any:
    return tf.compat.v1.AttrValue(list={"type": [dtype.as_datatype_enum for dtype in dtypes]})


def quantize(rows: tf.Tensor) -> tf.Tensor:
    """float32 or bfloat16 in [-1, 1] to qint8 in [-127, 127], clipped."""
    return tf.raw_ops.QuantizeV2(
        input=tf.cast(rows, tf.float32),
        min_range=-1.0,
        max_range=1.0,
        T=tf.qint8,
        mode="SCALED",
        round_mode="HALF_TO_EVEN",
        narrow_range=True,
    ).output


def _smoothed(kernel: Array, bias: Array, divisors: Array, **options: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """`Dense.product` with divisors of the channels of its input."""
    factors = tf.Variable(1 / divisors, trainable=False)
    product = Product(kernel * divisors[:, np.newaxis], bias, limit=1.0, **options)
    return lambda rows: product.multiply(quantize(rows * factors))


def _feed_forward(block: TransformerBlock, largest: Largest) -> Iterator[tuple[Dense, dict[str, object]]]:
    """The layers of a feed-forward network, and their attributes: the activations are int8 between the products."""
    first, second = block.intermediate, block.output_projection
    name = block.config.activation
    _, lowest = kernels.ACTIVATIONS[name]
    wider = continued(first.kernel.numpy(), first.bias.numpy(), second.kernel.numpy(), largest.output * _MARGIN)
    divisors = smoothing(largest.intermediate, wider.kernel)
    bounds = (lowest, wider.limit)
    smoothed = _smoothed(wider.kernel, wider.bias, divisors, activation=name, bounds=bounds)
    product = Product(
        wider.output_kernel, second.bias.numpy(), limit=wider.limit - lowest, offset=lowest + wider.offsets
    )
    # uint8 on the way, because Keras knows no quint8.
    yield first, {"product": lambda rows: tf.bitcast(smoothed(rows), tf.uint8), "activation": kernels.unchanged}
    yield second, {"added": lambda x, rows: product.multiply(tf.bitcast(rows, tf.quint8), x)}


class Continued(NamedTuple):
    """Two dense layers with additional channels between them; results of `continued`."""

    limit: float
    kernel: Array
    bias: Array
    output_kernel: Array
    offsets: Array


def continued(kernel: Array, bias: Array, output_kernel: Array, largest: Array) -> Continued:
    """Adds channels to an intermediate layer so that clipping its activations at a lower limit changes nothing.

    For GELU g and c(x) = min(g(x), L), g(x) - g(-x) = x, and so, but for the end of the last one,

        g(x) = c(x) + (L - c(2L - x)) + c(x - 2L) + (L - c(4L - x)) + ...

    whose terms rise from 0 to L one after the other. Each is a channel of its own with the weights of x.

    Args:
        kernel, bias: [inputs, channels] and [channels].
        output_kernel: [channels, outputs].
        largest: [channels], of the activations.

    Returns:
        The smallest limit for which the additional channels suffice, both kernels and the bias with these channels (the
        unused ones are 0), and what to add to the channels before the output kernel.
    """
    added = max(len(bias) // _CONTINUED_SHARE // _CONTINUED_MULTIPLE, 1) * _CONTINUED_MULTIPLE
    limits = np.geomspace(3, max(largest.max(), 3.01), 200)
    limit = float(next(limit for limit in limits if _terms(largest, limit).sum() <= added))
    terms = _terms(largest, limit)
    channels = np.repeat(np.arange(len(bias)), terms)
    numbers = np.concatenate([np.arange(1, count + 1) for count in terms]) if len(channels) else channels
    falling = numbers % 2 == 1
    signs = np.where(falling, -1.0, 1.0).astype(np.float32)
    shifts = (np.where(falling, numbers + 1, -numbers) * limit).astype(np.float32)
    pad = added - len(channels)
    return Continued(
        limit,
        np.concatenate([kernel, np.pad(kernel[:, channels] * signs, [(0, 0), (0, pad)])], 1),
        np.concatenate([bias, np.pad(bias[channels] * signs + shifts, [(0, pad)])]),
        np.concatenate([output_kernel, np.pad(output_kernel[channels] * signs[:, np.newaxis], [(0, pad), (0, 0)])]),
        np.pad(np.where(falling, -limit, 0), [(len(bias), pad)]).astype(np.float32),
    )


def _terms(largest: Array, limit: float) -> Array:
    """Number of additional terms of each channel: an odd one ends 2 below a multiple, where GELU is almost x."""
    rising = np.ceil(largest / limit) - 1
    ends_early = (rising % 2 == 1) & (largest > (rising + 1) * limit - 2)
    return np.clip(rising + ends_early, 0, 2**31).astype(int)  # a whole number even for weights of 1e30


class Lookup:
    """`Embeddings.lookup` in a table of int8 with one scale per word."""

    def __init__(self, layer: Embeddings) -> None:
        table, largest = quantized(layer.word_embeddings.numpy().T)
        self._table = tf.Variable(np.ascontiguousarray(table.T), trainable=False)
        self._scales = tf.Variable(largest[:, np.newaxis] / 127, trainable=False)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        # Not from the variables: that is the op ResourceGather, which other exports do without.
        words = tf.cast(tf.gather(tf.convert_to_tensor(self._table), ids), tf.float32)
        return words * tf.gather(tf.convert_to_tensor(self._scales), ids)
