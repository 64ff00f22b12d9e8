"""The encoder's states as features for other models (paper, section 5.3)."""

from typing import Any, Self

import keras
import tensorflow as tf

from bert_tf.config import FeatureConfig
from bert_tf.model.encoder import BertEncoder, encoder_inputs
from bert_tf.types import Json, Tensors


def token_features(encoder: BertEncoder, outputs: dict[str, Any], config: FeatureConfig) -> keras.KerasTensor:
    """Combines the states of selected layers into one vector per token.

    Args:
        encoder: checked for the layers that `config` names.
        outputs: the outputs of the encoder, or of a frozen copy of it.
        config: selects the layers and how to combine them.

    Returns:
        float32 [batch, length, config.width * hidden].
    """
    config.check(encoder.config.num_layers)
    states = [outputs["embedding_output"], *outputs["encoder_outputs"][:-1], outputs["sequence_output"]]
    selected = [keras.ops.cast(states[layer], "float32") for layer in config.layers]
    if config.combine == "concat":
        return keras.ops.concatenate(selected, axis=-1)
    weights = config.weights or [1.0] * len(selected)
    return sum(weight * state for weight, state in zip(weights, selected, strict=True))


def feature_model(encoder: BertEncoder, config: FeatureConfig) -> keras.Model:
    """Builds the model from the encoder's inputs to `token_features`."""
    inputs = encoder_inputs()
    return keras.Model(inputs, token_features(encoder, encoder(inputs), config))


@keras.saving.register_keras_serializable("bert_tf")
class Frozen(keras.layers.Layer):
    """Wraps a model that is not trained: it always runs in inference mode, also while layers on top of it are trained.

    Args:
        model: its variables are marked as not trainable.
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        model.trainable = False
        self.model = model
        self.built = True

    def call(self, inputs: Tensors) -> dict[str, tf.Tensor | list[tf.Tensor]]:
        return self.model(inputs, training=False)

    def get_config(self) -> Json:
        """Returns the config that `keras.saving` stores."""
        return super().get_config() | {"model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config: Json) -> Self:
        """Creates the layer from the output of `get_config`."""
        return cls(**(config | {"model": keras.saving.deserialize_keras_object(config["model"])}))
