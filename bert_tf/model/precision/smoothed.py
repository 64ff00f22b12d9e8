"""Encoders in float32 that other runtimes can round to int8: each input of a product fits one scale.

A few channels of BERT are much larger than the others, and runtimes have one scale for all channels, or for a row of
them. So each channel is divided by a constant, by which its weights are multiplied (SmoothQuant: Xiao et al., 2023,
arXiv:2211.10438): after that, what calibration found is at most 1. The function that is computed is the same.
Only words are rounded here, as runtimes would with one scale for the whole table.
"""

from collections.abc import Iterator, Sequence

import tensorflow as tf

from bert_tf.model import fused
from bert_tf.model.activations import without_gradient
from bert_tf.model.compute import DenseForm, Form, bias_of
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.layers import Dense
from bert_tf.model.precision import int8
from bert_tf.model.ranges import Largest, products


def smoothed_forms(encoder: BertEncoder, ranges: Sequence[Largest], *, clipped: bool) -> Iterator[Form]:
    """The layers of an encoder that change, and what they compute.

    Args:
        encoder: with float32 weights.
        ranges: of each block, from `int8.calibrate`.
        clipped: whether inputs are clipped to their range, as by runtimes that fix their scales.
    """
    yield encoder.embeddings, int8.Lookup(encoder.embeddings)
    lowest = None if int8.is_gated(encoder.config) else fused.ACTIVATIONS[encoder.config.activation].lowest
    for block, largest in zip(encoder.blocks(), ranges, strict=True):
        if lowest is not None:  # of such inputs, calibration has the largest ones only
            largest = largest._replace(output=tf.maximum(largest.output, -lowest))
        for name, layer in products(block).items():
            yield layer, _Smoothed(layer, getattr(largest, name), lowest if name == "output" else None, clipped)


class _Smoothed(DenseForm):
    """A product whose inputs are scaled to at most 1.

    Args:
        layer: to compute.
        largest: absolute values of its inputs, [inputs].
        lowest: value of all inputs; None if they lie around 0.
        clipped: as for `smoothed_forms`.
    """

    def __init__(self, layer: Dense, largest: tf.Tensor, lowest: float | None, clipped: bool) -> None:
        kernel = tf.convert_to_tensor(layer.kernel)
        divisors = int8.smoothing(tf.cast(largest, tf.float32), kernel)
        self._factors = tf.Variable(1 / divisors, trainable=False)
        self._kernel = tf.Variable(kernel * divisors[:, tf.newaxis], trainable=False)
        self._layer, self._activation = layer, without_gradient(layer.activation)
        self._lowest = -1.0 if lowest is None else float(lowest / tf.reduce_min(divisors))
        self._clipped = clipped

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        factors, kernel = map(tf.convert_to_tensor, (self._factors, self._kernel))
        rows = rows * factors
        if self._clipped:  # one operation, which exports recognize
            rows = tf.raw_ops.ClipByValue(t=rows, clip_value_min=self._lowest, clip_value_max=1.0)
        return self._activation(tf.nn.bias_add(tf.matmul(rows, kernel), bias_of(self._layer)))
