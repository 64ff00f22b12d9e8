"""The encoder's states as features for other models (paper, section 5.3)."""

import keras

from bert_tf.model.encoder import encoder_inputs


def token_features(encoder, outputs, config):
    """What some layers make of each token.

    Args:
        encoder: BertEncoder.
        outputs: dict, what it returned.
        config: FeatureConfig.

    Returns:
        float32 [batch, length, config.width * hidden].

    Raises:
        ConfigError: the encoder has no such layers.
    """
    config.check(encoder.config.num_layers)
    states = [outputs["embedding_output"], *outputs["encoder_outputs"][:-1], outputs["sequence_output"]]
    chosen = [keras.ops.cast(states[layer], "float32") for layer in config.layers]
    if config.combine == "concat":
        return keras.ops.concatenate(chosen, axis=-1)
    return sum(weight * state for weight, state in zip(config.weights or [1.0] * len(chosen), chosen, strict=True))


def feature_model(encoder, config):
    """The keras.Model from the encoder's inputs to `token_features`."""
    inputs = encoder_inputs()
    return keras.Model(inputs, token_features(encoder, encoder(inputs), config))


@keras.saving.register_keras_serializable("bert_tf")
class Frozen(keras.layers.Layer):
    """A model that is not trained, and computes as in evaluation also while what sits on it is trained.

    Args:
        model: keras.Model; its variables are marked as not trainable.
    """

    def __init__(self, model, **kwargs):
        super().__init__(**kwargs)
        model.trainable = False
        self.model = model
        self.built = True

    def call(self, inputs):
        return self.model(inputs, training=False)

    def get_config(self):
        """What `keras.saving` writes."""
        return super().get_config() | {"model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config):
        """The layer that `get_config` described."""
        return cls(**(config | {"model": keras.saving.deserialize_keras_object(config["model"])}))
