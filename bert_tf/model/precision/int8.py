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
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.model.activations import activation, without_gradient
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.layers import ConvertedDense, Dense, Embeddings, TransformerBlock, converted
from bert_tf.model.mode import Mode, computing, infer
from bert_tf.model.precision import bfloat16, kernels
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
    """Raises DataError if TensorFlow has no kernels for int8."""
    try:
        with tf.Graph().as_default(), computing(Mode(kernels=frozenset({"int8"}))):
            product = Product(np.ones([64, 16], np.float32), np.zeros(16, np.float32), limit=1.0)
            product.multiply(quantize(tf.ones([16, 64])))
    except (tf.errors.OpError, ValueError):
        raise DataError(
            "int8: this TensorFlow has no int8 products; expected TensorFlow 2.17 or newer on x86; use "
            "--optimize=bfloat16 or none"
        ) from None


def calibrate(encoder: BertEncoder, batches: Iterable[Tensors]) -> list[Largest]:
    """Runs an encoder in float32 on batches of features and returns the ranges of each block.

    Raises:
        DataError: it computes NaN or infinity.
    """
    found: list[dict[str, Array]] = [{} for _ in encoder.blocks()]
    for features in batches:
        tokens = features["input_mask"].numpy().reshape(-1) > 0
        observers = [
            (layer, _Observer(layer, largest, name, tokens))
            for block, largest in zip(encoder.blocks(), found, strict=True)
            for name, layer in products(block).items()
        ]
        with converted(observers):
            infer(encoder, features)
    ranges = [Largest(**largest) for largest in found]
    if not all(np.isfinite(part).all() for one in ranges for part in one):
        raise DataError("int8: the model itself computes NaN or infinity; check its training; nothing was exported")
    return ranges


class _Observer(ConvertedDense):
    """Computes what a layer does, and raises `largest[name]` to the largest absolute values of its inputs."""

    def __init__(self, layer: Dense, largest: dict[str, Array], name: str, tokens: Array) -> None:
        self._layer, self._largest, self._name, self._tokens = layer, largest, name, tokens

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        values = rows.numpy()
        if len(values) == len(self._tokens):  # all positions, as where hardly any is padding
            values = values[self._tokens]
        values = (values if self._name == "output" else np.abs(values)).max(0)
        # Of all batches, and of all layers that share these weights.
        self._largest[self._name] = np.maximum(self._largest.get(self._name, values), values)
        return without_gradient(self._layer.activation)(self._layer.product(rows))


def products(block: TransformerBlock) -> dict[str, Dense]:
    """The dense layers of a block, by their names in `Largest`."""
    attention = block.attention
    return dict(zip(Largest._fields, (attention.qkv, attention.output_projection, block.intermediate,
                                      block.output_projection), strict=True))  # fmt: skip


def converted_block(
    block: TransformerBlock, largest: Largest
) -> Iterator[tuple[Any, Callable[[tf.Tensor], tf.Tensor]]]:
    """The layers of a block, and what they compute in int8 (their attribute `converted`)."""
    qkv, attention_output = block.attention.qkv, block.attention.output_projection
    kernel, bias = qkv.kernel.numpy(), qkv.bias.numpy()
    # Context is a weighted mean of values: dividing a column of the values divides a channel of the context.
    divisors = smoothing(largest.attention_output, attention_output.kernel.numpy())
    size = len(divisors)
    kernel, bias = kernel.copy(), bias.copy()
    kernel[:, -size:] /= divisors
    bias[-size:] /= divisors
    yield qkv, _Smoothed(kernel, bias, smoothing(largest.qkv, kernel), for_attention=True)
    yield block.attention, bfloat16.softmax
    product = Product(
        attention_output.kernel.numpy() * divisors[:, np.newaxis], attention_output.bias.numpy(), limit=1.0
    )
    yield attention_output, _Added(product, quantize)
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


def number_of(largest: Array, limit: float) -> float:
    """A positive number below `limit` for the ranges of the columns of a kernel, another one for other ranges.

    The kernel of int8 products keeps the primitives that it makes, which contain the ranges of the columns. It finds
    them by shapes, by the fused operations, by the two ends of the range of the rows, of which only the larger one has
    a meaning, and by the *address* of the columns' ranges, not by their values. An address may recur, as when a model
    is loaded where another one was. So the smaller end says what is at the address: it is a hash of the ranges, one of
    a billion numbers. Where two products have equal ranges, the primitive of one is right for the other.
    """
    first, end = np.array([2.0**-100, limit], np.float32).view(np.uint32).tolist()
    digest = int.from_bytes(hashlib.sha256(largest.tobytes()).digest()[:8], "little")
    return float(np.array([first + digest % (end - first)], np.uint32).view(np.float32)[0])


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
        # The kernel takes the larger of both as the range.
        self._range = (-number_of(largest, limit), limit)

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
        weights, bias, ranges = map(tf.convert_to_tensor, (self._weights, self._bias, self._ranges))
        return kernels.multiply_int8(
            rows,
            weights,
            bias,
            [*map(tf.constant, self._range), *tf.unstack(ranges)],
            added,
            name=self._activation,
            dtype=tf.quint8 if self._bounds else tf.bfloat16 if attends else tf.float32,
            bounds=self._bounds,
        )


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


class _Smoothed(ConvertedDense):
    """A product with divisors of the channels of its input; options as for `Product`."""

    def __init__(self, kernel: Array, bias: Array, divisors: Array, **options: Any) -> None:
        self._factors = tf.Variable(1 / divisors, trainable=False)
        self._product = Product(kernel * divisors[:, np.newaxis], bias, limit=1.0, **options)

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        outputs = self._product.multiply(quantize(rows * self._factors))
        return tf.bitcast(outputs, tf.uint8) if outputs.dtype == tf.quint8 else outputs  # Keras knows no quint8


class _Added(ConvertedDense):
    """A product that is added to the residual connection in the same pass; `read` makes its inputs int8."""

    def __init__(self, product: "Product", read: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._product, self._read = product, read

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        return self._product.multiply(self._read(rows))

    def added(self, x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return self._product.multiply(self._read(rows), x)


def _feed_forward(block: TransformerBlock, largest: Largest) -> Iterator[tuple[Dense, ConvertedDense]]:
    """The layers of a feed-forward network, and what they compute: the activations are int8 between the products."""
    first, second = block.intermediate, block.output_projection
    name = block.config.activation
    _, lowest = kernels.ACTIVATIONS[name]
    wider = continued(first.kernel.numpy(), first.bias.numpy(), second.kernel.numpy(), largest.output * _MARGIN)
    divisors = smoothing(largest.intermediate, wider.kernel)
    bounds = (lowest, wider.limit)
    product = Product(
        wider.output_kernel, second.bias.numpy(), limit=wider.limit - lowest, offset=lowest + wider.offsets
    )
    yield first, _Smoothed(wider.kernel, wider.bias, divisors, activation=name, bounds=bounds)
    yield second, _Added(product, lambda rows: tf.bitcast(rows, tf.quint8))


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
