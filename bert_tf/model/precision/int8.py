"""Matrix products of an encoder in int8, by the kernel that TensorFlow has for x86 processors since 2.17.

The kernel multiplies int8 inputs, which have one scale, by int8 weights, which have one per column, and adds bias, GELU
and rounding to int8 in the same pass. Its inputs have scales that are fixed at export, from texts, so the answers for a
row do not depend on the other rows of a request. A few channels of BERT are much larger than the others, and one scale
for all would leave these few bits. So

- before the products of a LayerNorm's output, each channel is divided by a constant, by which its weights are
  multiplied (SmoothQuant: Xiao et al., 2023, arXiv:2211.10438); before the output projection of the attention, these
  constants are in the weights of the values;
- channels of the intermediate layer that exceed the range are continued in additional channels (`continued`). A gate
  multiplies after the kernel, so there the activations are rounded apart from it, and these constants are in the
  weights of the gate's other half.

The products of the attention, which have no weights, are in bfloat16 where the processor has it. Where it has no dot
products of int8, TensorFlow's usual operations compute the same products of the same numbers in float32.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.errors import DataError, UnsuitedError
from bert_tf.model import fused
from bert_tf.model.activations import activation, without_gradient
from bert_tf.model.compute import DenseForm, Form, InferredAttention, InferredDense, bias_of, converted
from bert_tf.model.dropout import Dropout
from bert_tf.model.encoder import encoder_of
from bert_tf.model.layers import Dense, Embeddings, TransformerBlock
from bert_tf.model.mode import Mode, computing, infer
from bert_tf.model.precision.continued import Continued, continued
from bert_tf.model.ranges import Largest, products
from bert_tf.types import Array, Tensors

# Channels of an input are divided by (largest value)^0.8 / (largest weight)^0.2: between "all channels alike", which
# makes the weights uneven, and no change, which leaves the channels uneven.
_SMOOTHING = 0.8
# Inputs may exceed those of the calibration by this factor before they are clipped.
_MARGIN = 1.1


def require_kernels() -> None:
    """Raises UnsuitedError if TensorFlow has no kernels for int8."""
    try:
        product = Product(tf.ones([64, 16]), tf.zeros(16), limit=1.0)
        with computing(Mode(kernels=frozenset({"int8"}))):
            tf.function(lambda rows: product.multiply(quantize(rows)), autograph=False)(tf.ones([16, 64]))
    except (tf.errors.OpError, ValueError):
        raise UnsuitedError(
            "int8: this TensorFlow has no int8 products; expected TensorFlow 2.17 or newer on x86; use "
            "--optimize=bfloat16 or none"
        ) from None


def is_gated(config: BertConfig) -> bool:
    """Whether feed-forward networks have a gate, so that the inputs of their second product are as often below 0."""
    return config.feed_forward == "gated"


def calibrate(model: keras.Model, batches: Iterable[Tensors]) -> list[Largest]:
    """Runs a model in float32 on batches of features and returns the ranges of each block of its encoder.

    Raises:
        DataError: it computes NaN or infinity.
        UnsuitedError: its feed-forward networks have an activation that the kernels lack, and no gate.
    """
    encoder = encoder_of(model)
    if not is_gated(encoder.config) and encoder.config.activation not in fused.ACTIVATIONS:
        choices = " or ".join(map(repr, fused.ACTIVATIONS))
        raise UnsuitedError(
            f"int8: model.activation is {encoder.config.activation!r}, and only {choices} can be rounded without a "
            "gate; use bfloat16, int4 or none"
        )
    blocks, one_sided = encoder.blocks(), () if is_gated(encoder.config) else ("output",)
    found: list[dict[str, Array]] = [{} for _ in blocks]
    for features in batches:
        tokens = features["input_mask"].numpy().reshape(-1) > 0
        observers = [
            (layer, _Observer(layer, largest, name, tokens, signed=name in one_sided))
            for block, largest in zip(blocks, found, strict=True)
            for name, layer in products(block).items()
        ]
        with converted(observers):
            infer(model, features)
    ranges = [Largest(**largest) for largest in found]
    if not all(np.isfinite(part).all() for one in ranges for part in one):
        raise DataError("int8: the model itself computes NaN or infinity; check its training")
    return ranges


class _Observer(DenseForm):
    """Computes what a layer does, and raises `largest[name]` to the largest values of its inputs, absolute ones unless
    `signed`.
    """

    def __init__(self, layer: Dense, largest: dict[str, Array], name: str, tokens: Array, *, signed: bool) -> None:
        self._layer, self._largest, self._name, self._tokens, self._signed = layer, largest, name, tokens, signed

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        values = rows.numpy()
        if len(values) == len(self._tokens):  # all positions, as where hardly any is padding
            values = values[self._tokens]
        values = (values if self._signed else np.abs(values)).max(0)
        # Of all batches, and of all layers that share these weights.
        self._largest[self._name] = np.maximum(self._largest.get(self._name, values), values)
        return InferredDense(self._layer)(rows)


def rounded_forms(model: keras.Model) -> Iterator[Form]:
    """The layers of an encoder, and what they compute in training with the rounding of an int8 export.

    They compute in float32 what an export computes in int8, from the layers' present weights and the encoder's present
    ranges. Gradients pass through the rounding as if it were not there (straight-through estimator: Bengio et al.,
    2013, arXiv:1308.3432), and are 0 for inputs that are clipped. Scales and divisors count as constants.

    Args:
        model: whose encoder has `ranges`.
    """
    encoder = encoder_of(model)
    assert encoder.ranges is not None
    yield encoder.embeddings, functools.partial(_rounded_lookup, encoder.embeddings)
    for block, largest in zip(encoder.blocks(), encoder.ranges.variables, strict=True):
        for name, layer in products(block).items():
            yield layer, _Trained(block, largest, name)


class _Trained(DenseForm):
    """Computes what the layer `name` of a block computes in int8, for training."""

    def __init__(self, block: TransformerBlock, largest: Largest, name: str) -> None:
        self._block, self._largest, self._name = block, largest, name

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        largest = Largest(*map(tf.convert_to_tensor, self._largest))
        return _FORMS[self._name](self._block, largest, True)(rows)


def converted_block(block: TransformerBlock, largest: Largest) -> Iterator[Form]:
    """The layers of a block, and what they compute in int8 (their attribute `converted`)."""
    for name, layer in products(block).items():
        yield layer, _FORMS[name](block, largest, False)
    yield block.attention, InferredAttention(fused.softmax)


def smoothing(largest: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Divisors of the channels of an input [inputs], after which its values are at most 1.

    Args:
        largest: [inputs], of the values of each channel.
        kernel: [inputs, outputs].
    """
    channels = tf.maximum(largest, 1e-6)
    weights = tf.maximum(tf.reduce_max(tf.abs(kernel), 1), 1e-6)
    divisors = channels**_SMOOTHING / weights ** (1 - _SMOOTHING)
    return tf.stop_gradient(divisors * (tf.reduce_max(channels / divisors) * _MARGIN))


def quantized(kernel: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rounds a kernel [inputs, outputs] to whole numbers from -127 to 127; and the value of 127 in each column."""
    largest = tf.stop_gradient(tf.maximum(tf.reduce_max(tf.abs(kernel), 0), 1e-30))
    return round_through(kernel / largest * 127), largest


def round_through(x: tf.Tensor) -> tf.Tensor:
    """The nearest whole numbers; the gradient is that of x itself."""
    return tf.grad_pass_through(tf.round)(x)


class Product:
    """A matrix product of int8 inputs, symmetric around 0, with bias.

    Args:
        kernel: [inputs, outputs].
        bias: [outputs].
        limit: the value of the input that is 127, or, with `offset`, the difference of the values that are 255 and 0.
        offset: the value of 0, if the input is quint8 instead of qint8: a number, or one per input.
        activation: name of the activation, "" for none.
        bounds: smallest and largest value of a quint8 output; None for one that is not rounded.
        shorter: whether that is bfloat16 where kernels for bfloat16 are used; else float32.
        trained: whether gradients are wanted: all whole numbers, inputs and outputs too, are then in float32, and
            kernel and bias are not copied.
    """

    def __init__(
        self,
        kernel: tf.Tensor,
        bias: tf.Tensor,
        *,
        limit: tf.Tensor | float,
        offset: tf.Tensor | float | None = None,
        activation: str = "",
        bounds: tuple[float, tf.Tensor | float] | None = None,
        shorter: bool = False,
        trained: bool = False,
    ) -> None:
        weights, largest = quantized(kernel)
        if offset is not None:
            # The kernel takes 0 for 0: the rest of the product is a constant, exactly.
            offsets = tf.broadcast_to(tf.cast(offset, tf.float32), tf.shape(weights)[:1])
            bias = bias + tf.linalg.matvec(weights * (largest / 127), offsets, transpose_a=True)
        self._activation, self._shorter, self._trained = activation, shorter, trained
        self._steps = 127 if offset is None else 255
        self._bounds, self._range = bounds, (-limit, limit)
        self._weights, self._bias, self._ranges = weights, bias, tf.stack([-largest, largest])
        if not trained:
            variable = functools.partial(tf.Variable, trainable=False)
            self._weights, self._bias = variable(tf.cast(weights, tf.int8)), variable(bias)
            self._ranges = variable(self._ranges)  # of the weights' columns
            self._range = (-float(limit), float(limit))
            self._bounds = bounds and (float(bounds[0]), float(bounds[1]))

    def multiply(self, rows: tf.Tensor, added: tf.Tensor | None = None) -> tf.Tensor:
        """[rows, inputs] of qint8 or quint8 -> [rows, outputs] of float32 or bfloat16, or quint8 if there are bounds.

        Args:
            rows: the inputs.
            added: float32 [rows, outputs], to which to add the product, which then is float32.
        """
        kernel, bias, ranges = map(tf.convert_to_tensor, (self._weights, self._bias, self._ranges))
        if self._trained:
            function = activation(self._activation) if self._activation else None
            scales = ranges[1] * (self._range[1] / (self._steps * 127))
            return fused.int8_arithmetic(rows, kernel, scales, bias, added, function, self._bounds, round_through)
        shorter = self._shorter and fused.are_used("bfloat16")
        return fused.int8_product(
            rows,
            kernel,
            bias,
            ranges,
            added,
            rows_range=self._range,
            name=self._activation,
            dtype=tf.quint8 if self._bounds else tf.bfloat16 if shorter else tf.float32,
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


class _Divided:
    """Divides the channels of float32 rows and rounds them, as inputs of a `Product` with the limit 1.

    Args:
        divisors: [channels].
        trained: as for `Product`.
    """

    def __init__(self, divisors: tf.Tensor, trained: bool) -> None:
        factors = 1 / divisors
        self._factors = factors if trained else tf.Variable(factors, trainable=False)
        self._rounded = _quantized_in_training if trained else quantize

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        return self._rounded(rows * self._factors)


class _Smoothed(DenseForm):
    """A product with divisors of the channels of its input; options as for `Product`."""

    def __init__(
        self, kernel: tf.Tensor, bias: tf.Tensor, divisors: tf.Tensor, *, trained: bool, **options: Any
    ) -> None:
        self._product = Product(kernel * divisors[:, tf.newaxis], bias, limit=1.0, trained=trained, **options)
        self._read = _Divided(divisors, trained)

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        outputs = self._product.multiply(self._read(rows))
        return tf.bitcast(outputs, tf.uint8) if outputs.dtype == tf.quint8 else outputs  # Keras knows no quint8


class _Gated(DenseForm):
    """A gated product: both halves as products of the same rounded inputs, multiplied in float32.

    Args:
        kernel, bias: [inputs, 2 * units] and [2 * units].
        divisors: of the channels of the inputs.
        name: of the activation of the first half. It is the kernel's, or else follows it.
        trained: as for `Product`.
    """

    def __init__(self, kernel: tf.Tensor, bias: tf.Tensor, divisors: tf.Tensor, name: str, *, trained: bool) -> None:
        kernels, biases = tf.split(kernel * divisors[:, tf.newaxis], 2, 1), tf.split(bias, 2)
        self._activated, self._gate = (
            Product(*half, limit=1.0, activation=own, shorter=True, trained=trained)
            for *half, own in zip(kernels, biases, (name if name in fused.ACTIVATIONS else "", ""), strict=True)
        )
        applied = activation("linear" if name in fused.ACTIVATIONS else name)
        self._applied = applied if trained else without_gradient(applied)
        self._read = _Divided(divisors, trained)

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        inputs = self._read(rows)
        activated, gate = (tf.cast(half.multiply(inputs), tf.float32) for half in (self._activated, self._gate))
        return self._applied(activated) * gate


def _quantized_in_training(rows: tf.Tensor) -> tf.Tensor:
    """As `quantize`, in float32; the gradient is 0 where values are clipped."""
    return round_through(tf.clip_by_value(rows, -1.0, 1.0) * 127)


class _Added(DenseForm):
    """A product that is added to the residual connection in the same pass; `read` makes its inputs int8."""

    def __init__(self, product: "Product", read: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._product, self._read = product, read

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        return self._product.multiply(self._read(rows))

    def added(self, x: tf.Tensor, rows: tf.Tensor, dropout: Dropout | None = None) -> tf.Tensor:
        if dropout is not None:
            return super().added(x, rows, dropout)
        return self._product.multiply(self._read(rows), x)


def _qkv(block: TransformerBlock, largest: Largest, trained: bool) -> DenseForm:
    # Context is a weighted mean of values: dividing a column of the values divides a channel of the context.
    kernel, bias = _divided(block.attention.qkv, block.attention.output_projection, largest.attention_output)
    return _Smoothed(kernel, bias, smoothing(largest.qkv, kernel), shorter=True, trained=trained)


def _attention_output(block: TransformerBlock, largest: Largest, trained: bool) -> DenseForm:
    return _of_divided(block.attention.output_projection, largest.attention_output, trained)


def _intermediate(block: TransformerBlock, largest: Largest, trained: bool) -> DenseForm:
    name = block.config.activation
    if is_gated(block.config):
        kernel, bias = _divided(block.intermediate, block.output_projection, largest.output)
        return _Gated(kernel, bias, smoothing(largest.intermediate, kernel), name, trained=trained)
    # The activations are whole numbers between the products of the feed-forward network.
    wider = _continued(block, largest)
    divisors = smoothing(largest.intermediate, wider.kernel)
    bounds = (fused.ACTIVATIONS[name].lowest, wider.limit)
    return _Smoothed(wider.kernel, wider.bias, divisors, activation=name, bounds=bounds, trained=trained)


def _output(block: TransformerBlock, largest: Largest, trained: bool) -> DenseForm:
    if is_gated(block.config):
        return _of_divided(block.output_projection, largest.output, trained)
    wider, lowest = _continued(block, largest), fused.ACTIVATIONS[block.config.activation].lowest
    _, bias = _weights(block.output_projection)
    limit, offset = wider.limit - lowest, lowest + wider.offsets
    product = Product(wider.output_kernel, bias, limit=limit, offset=offset, trained=trained)
    return _Added(product, (lambda rows: rows) if trained else (lambda rows: tf.bitcast(rows, tf.quint8)))


# What the layers of a block compute, by their names in `Largest`.
_FORMS: dict[str, Callable[[TransformerBlock, Largest, bool], DenseForm]] = {
    "qkv": _qkv,
    "attention_output": _attention_output,
    "intermediate": _intermediate,
    "output": _output,
}


def _weights(layer: Dense) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.convert_to_tensor(layer.kernel), bias_of(layer)


def _divided(layer: Dense, following: Dense, largest: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Weights of a layer whose last columns are divided by the divisors of the channels of the following one, which are
    proportional to these columns.
    """
    kernel, bias = _weights(layer)
    divisors = smoothing(largest, _weights(following)[0])
    columns = tf.concat([tf.ones([kernel.shape[1] - divisors.shape[0]]), divisors], 0)
    return kernel / columns, bias / columns


def _of_divided(layer: Dense, largest: tf.Tensor, trained: bool) -> DenseForm:
    """The product of a layer whose inputs are divided by `_divided`."""
    kernel, bias = _weights(layer)
    product = Product(kernel * smoothing(largest, kernel)[:, tf.newaxis], bias, limit=1.0, trained=trained)
    return _Added(product, _quantized_in_training if trained else quantize)


def _continued(block: TransformerBlock, largest: Largest) -> Continued:
    output_kernel, _ = _weights(block.output_projection)
    return continued(*_weights(block.intermediate), output_kernel, largest.output * _MARGIN)


def _rounded_lookup(layer: Embeddings, ids: tf.Tensor) -> tf.Tensor:
    """`Embeddings.lookup` in training, with the rounding of `Lookup`."""
    words = tf.gather(layer.word_embeddings, ids)
    largest = tf.stop_gradient(tf.maximum(tf.reduce_max(tf.abs(words), -1, keepdims=True), 1e-30))
    return round_through(words / largest * 127) * (largest / 127)


class Lookup:
    """`Embeddings.lookup` in a table of int8 with one scale per word."""

    def __init__(self, layer: Embeddings) -> None:
        table, largest = quantized(tf.transpose(tf.convert_to_tensor(layer.word_embeddings)))
        self._table = tf.Variable(tf.cast(tf.transpose(table), tf.int8), trainable=False)
        self._scales = tf.Variable(largest[:, np.newaxis] / 127, trainable=False)

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        # Not from the variables: that is the op ResourceGather, which other exports do without.
        words = tf.cast(tf.gather(tf.convert_to_tensor(self._table), ids), tf.float32)
        return words * tf.gather(tf.convert_to_tensor(self._scales), ids)
