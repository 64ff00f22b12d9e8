"""Weights of an encoder in 4 bits, for small files: exports decode them once, when they are loaded.

Each group of 32 weights has a scale of its own in float16, so a weight takes 4.5 bits. TensorFlow has no products of
4-bit numbers. So the kernels are decoded to float32 by the initializer of a resource, which a server runs after it has
restored the variables, and computing takes the time and the memory of an export in float32. The word embedding stays in
4 bits, and the rows that are looked up are decoded.
"""

import uuid
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_tf.model.activations import without_gradient
from bert_tf.model.compute import DenseForm, Form, bias_of
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.layers import Dense, Embeddings
from bert_tf.model.ranges import products
from bert_tf.types import Array

# Weights that share a scale.
GROUP = 32
# A group's largest weight is -8 if its scale is a divisor of -8. The scale with the smallest squared error is chosen:
# one at which the largest weight is clipped, or the range not used up, may suit the others better.
_DIVISORS = np.arange(-9.5, -6.0, 0.25)


def packed(matrix: Array) -> tuple[Array, Array]:
    """Rounds a matrix to 4 bits.

    Args:
        matrix: float32 [rows, size]; groups are along the rows.

    Returns:
        uint8 [rows, padded / 2], where padded is `size` rounded up to whole groups: column j holds the numbers of
        columns j (in the lower 4 bits) and j + padded / 2 of a row; float16 [rows, groups], the scales.
    """
    rows, size = matrix.shape
    groups = -(-size // GROUP)
    values = np.pad(matrix, [(0, 0), (0, groups * GROUP - size)]).reshape(rows, groups, GROUP)
    extremes = np.take_along_axis(values, np.abs(values).argmax(-1, keepdims=True), -1)
    best = np.full([rows, groups, 1], np.inf, np.float32)
    scales, numbers = np.zeros([rows, groups, 1], np.float16), np.zeros(values.shape, np.uint8)
    for divisor in _DIVISORS:
        scale = (extremes / divisor).astype(np.float16)
        step = np.where(scale == 0, 1, scale).astype(np.float32)
        found = np.clip(np.rint(values / step), -8, 7)
        error = np.square(found * scale.astype(np.float32) - values).sum(-1, keepdims=True)
        better = error < best
        best, scales = np.where(better, error, best), np.where(better, scale, scales)
        numbers = np.where(better, (found + 8).astype(np.uint8), numbers)
    low, high = np.split(numbers.reshape(rows, -1), 2, axis=1)
    return low | (high << 4), scales[..., 0]


def decoded(numbers: tf.Tensor, scales: tf.Tensor, size: int) -> tf.Tensor:
    """The inverse of `packed`, for any rows: uint8 [..., padded / 2], float16 [..., groups] -> float32 [..., size]."""
    pairs = tf.cast(numbers, tf.int32)
    high = pairs // 16
    values = tf.cast(tf.concat([pairs - 16 * high, high], -1) - 8, tf.float32)  # [..., padded]
    groups = scales.shape[-1]
    shape = tf.concat([tf.shape(scales), [GROUP]], 0)
    values = tf.reshape(values, shape) * tf.cast(scales, tf.float32)[..., tf.newaxis]
    flat = tf.reshape(values, tf.concat([tf.shape(scales)[:-1], [groups * GROUP]], 0))
    return flat[..., :size]


class Kernel(tf.saved_model.experimental.TrackableResource):
    """The kernel of a dense layer [inputs, units] in 4 bits, decoded when a SavedModel with it has been loaded.

    Attributes:
        variables: the kernel in 4 bits; a SavedModel must track them beside this object.
    """

    def __init__(self, kernel: Array) -> None:
        super().__init__()
        self._shape, self._shared_name = kernel.shape, f"int4_{uuid.uuid4().hex}"
        self.variables = [tf.Variable(value, trainable=False) for value in packed(kernel.T)]
        self._initialize()

    def _create_resource(self) -> tf.Tensor:
        if tf.executing_eagerly():  # a variable, which is freed with this object
            self._decoded = tf.Variable(tf.zeros(self._shape), trainable=False)
            return self._decoded.handle
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=self._shape, shared_name=self._shared_name)

    def _initialize(self) -> None:
        numbers, scales = map(tf.convert_to_tensor, self.variables)
        kernel = tf.transpose(decoded(numbers, scales, self._shape[0]))
        tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=kernel)

    def read(self) -> tf.Tensor:
        """The decoded kernel, float32 [inputs, units]."""
        return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=self.resource_handle, dtype=tf.float32), self._shape)


class _Product(DenseForm):
    """A layer with a decoded kernel, in float32."""

    def __init__(self, layer: Dense, kernel: Kernel) -> None:
        self._layer, self._kernel = layer, kernel

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        outputs = tf.nn.bias_add(tf.matmul(rows, self._kernel.read()), bias_of(self._layer))
        return without_gradient(self._layer.activation)(outputs)


class Lookup:
    """`Embeddings.lookup` in a table of 4 bits."""

    def __init__(self, layer: Embeddings) -> None:
        table = layer.word_embeddings.numpy()
        self._size = table.shape[1]
        self._numbers, self._scales = (tf.Variable(value, trainable=False) for value in packed(table))

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        # Not from the variables: that is the op ResourceGather, which other exports do without.
        numbers, scales = (tf.gather(tf.convert_to_tensor(one), ids) for one in (self._numbers, self._scales))
        return decoded(numbers, scales, self._size)


def kernels_of(encoder: BertEncoder) -> list[tuple[Dense, Kernel]]:
    """The dense layers of an encoder except for the pooler, and their kernels in 4 bits."""
    layers = [layer for block in encoder.blocks() for layer in products(block).values()]
    if encoder.config.embedding_size:
        layers.append(encoder.embeddings.projection)
    return [(layer, Kernel(layer.kernel.numpy())) for layer in layers]


def converted_layers(encoder: BertEncoder, kernels: list[tuple[Dense, Kernel]]) -> Iterator[Form]:
    """The layers of an encoder, and what they compute from weights in 4 bits (their attribute `converted`)."""
    yield encoder.embeddings, Lookup(encoder.embeddings)
    for layer, kernel in kernels:
        yield layer, _Product(layer, kernel)
