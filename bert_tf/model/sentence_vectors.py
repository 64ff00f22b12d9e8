"""Vectors of sentences from the states of their tokens: pooling, dense layers, normalization."""

import functools
from collections.abc import Callable
from typing import Any, Self

import keras
import tensorflow as tf

from bert_tf.config import EmbeddingConfig, from_dict, to_dict
from bert_tf.errors import ConfigError
from bert_tf.model.activations import activation
from bert_tf.model.encoder import BertEncoder, encoder_inputs, token_features
from bert_tf.model.normalization import Shape
from bert_tf.types import Json, Tensors


def _only_first(counts: tf.Tensor, reverse: bool = False) -> tf.Tensor:
    """float32 [rows, length]: 1 at the first (or last) True of each row."""
    number = tf.cumsum(tf.cast(counts, tf.int32), 1, reverse=reverse)
    return tf.cast(counts & (number == 1), tf.float32)


# Weights of the tokens, float32 [rows, length], from those that count, bool [rows, length]: the vector of a sentence is
# the weighted sum, divided by the sum of the weights. The maximum has none.
_WEIGHTS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "mean": lambda counts: tf.cast(counts, tf.float32),
    "mean_sqrt_len": lambda counts: tf.cast(counts, tf.float32),
    "weightedmean": lambda counts: tf.where(counts, tf.range(1.0, tf.cast(tf.shape(counts)[1], tf.float32) + 1.0), 0.0),
    "cls": _only_first,
    "lasttoken": functools.partial(_only_first, reverse=True),
}


@keras.saving.register_keras_serializable("bert_tf")
class SentenceVectors(keras.layers.Layer):
    """States float32 [rows, length, size] and mask [rows, length], 0 at padding, -> float32 [rows, vector size].

    Args:
        config: of vectors per sentence. The variables are those of `EmbeddingConfig.shapes`, if the layer is called
            "vectors".
    """

    def __init__(self, config: EmbeddingConfig, **kwargs: Any) -> None:
        super().__init__(**({"dtype": "float32"} | kwargs))
        self.config = config
        self.dense = [
            keras.layers.Dense(
                settings.units,
                activation(settings.activation) if settings.activation == "erf_gelu" else settings.activation,
                settings.bias,
                name=f"dense_{number}",
                dtype="float32",
            )
            for number, settings in enumerate(config.dense)
        ]

    def build(self, states_shape: Shape, mask_shape: Shape | None = None) -> None:
        assert states_shape[-1]
        width = len(self.config.pools) * states_shape[-1]
        for layer in self.dense:
            layer.build((None, width))
            width = layer.units
        if self.config.size > width:
            raise ConfigError(f"size is {self.config.size}; expected up to the {width} of the model's vectors, or 0")

    def call(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return self.finished(self.pooled(states, mask > 0))

    def pooled(self, states: tf.Tensor, counts: tf.Tensor) -> Tensors:
        """What the vectors of sentences are made from.

        Args:
            states: float32 [rows, length, size].
            counts: bool [rows, length], the tokens that are pooled.

        Returns:
            By way to pool: float32 [rows, size], the maximum or the weighted sum; and, but for the maximum, by "WAY/of"
            the sum of the weights, float32 [rows, 1].
        """
        states, pooled = tf.cast(states, tf.float32), dict[str, tf.Tensor]()
        for pool in self.config.pools:
            if pool == "max":
                pooled[pool] = tf.reduce_max(tf.where(tf.expand_dims(counts, -1), states, states.dtype.min), 1)
            else:
                weights = _WEIGHTS[pool](counts)
                pooled[pool] = tf.reduce_sum(states * tf.expand_dims(weights, -1), 1)
                pooled[f"{pool}/of"] = tf.reduce_sum(weights, 1, keepdims=True)
        return pooled

    def finished(self, pooled: Tensors) -> tf.Tensor:
        """float32 [texts, size], the vectors of sentences from the result of `pooled` for one row per text."""
        vectors = []
        for pool in self.config.pools:
            vector = pooled[pool]
            if pool == "max":  # of a row without tokens, such as an absent text in a batch
                vector = tf.where(vector > vector.dtype.min, vector, 0.0)
            else:
                of = pooled[f"{pool}/of"]
                if pool == "mean_sqrt_len":
                    vector *= tf.math.rsqrt(tf.maximum(of, 1.0))
                else:
                    vector = tf.math.divide_no_nan(vector, of)
            vectors.append(vector)
        vector = tf.concat(vectors, 1)
        for layer in self.dense:
            vector = layer(vector)
        if self.config.size:
            vector = vector[:, : self.config.size]
        return unit(vector) if self.config.normalize else vector

    def compute_output_spec(self, states: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor((states.shape[0], self.config.width(states.shape[-1])), "float32")

    def get_config(self) -> Json:
        return super().get_config() | {"config": to_dict(self.config)}

    @classmethod
    def from_config(cls, config: Json) -> Self:
        return cls(**(config | {"config": from_dict(EmbeddingConfig, config["config"])}))


def in_format(vectors: tf.Tensor, values: str) -> tf.Tensor:
    """Vectors float32 [..., size] in a number format, as `EmbeddingConfig.values`."""
    if values == "int8":
        largest = tf.reduce_max(tf.abs(vectors), -1, keepdims=True)
        return tf.cast(tf.round(tf.math.divide_no_nan(127.0 * vectors, largest)), tf.int8)
    return tf.cast(vectors, values)


def unit(vectors: tf.Tensor) -> tf.Tensor:
    """Vectors [..., size] of length 1; a length counts as 1e-12 at least, as in PyTorch's `normalize`."""
    return vectors * tf.math.rsqrt(tf.maximum(tf.reduce_sum(tf.square(vectors), -1, keepdims=True), 1e-24))


def vector_model(encoder: BertEncoder, config: EmbeddingConfig) -> keras.Model:
    """Builds the model from the encoder's inputs to {"vector": float32 [rows, size]}, of texts of one row each."""
    inputs = encoder_inputs()
    states = token_features(encoder, encoder(inputs), config.features)
    return keras.Model(inputs, {"vector": SentenceVectors(config, name="vectors")(states, inputs["input_mask"])})
