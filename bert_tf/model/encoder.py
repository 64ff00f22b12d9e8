"""The BERT encoder as an ordinary Keras model, with the input and output names of the TF-Hub BERT models."""

from typing import Any, Self

import keras
import tensorflow as tf

from bert_tf.config import BertConfig, from_dict, to_dict
from bert_tf.config.values import with_new_names
from bert_tf.errors import ConfigError
from bert_tf.model.layers import (
    AttentionBias,
    CausalAttentionBias,
    Embeddings,
    LastToken,
    LayerNorm,
    PackedAttentionBias,
    PackedPositions,
    TokensAt,
    TransformerBlock,
    initializer,
)
from bert_tf.types import Json, Tensors

FIRST_TOKENS = "first_token_positions"  # input name: where each sequence of a packed row starts


def encoder_inputs() -> dict[str, keras.KerasTensor]:
    """Creates the three inputs, int32 [batch, length]: input_word_ids, input_mask (1 at tokens), input_type_ids."""
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def encoder_of(model: keras.Model) -> "BertEncoder":
    """Returns the encoder, trainable or frozen, of a model from `model.build`."""
    layers = (getattr(layer, "model", layer) for layer in (model, *model.layers))
    return next(layer for layer in layers if isinstance(layer, BertEncoder))


def attention_probabilities(encoder: "BertEncoder", features: Tensors) -> tf.Tensor:
    """Computes the attention probabilities of every layer and head, for visualization.

    Args:
        encoder: must not be packed.
        features: the encoder's inputs, int32 [batch, length].

    Returns:
        float32 [batch, layers, heads, length, length]: the last dimension sums to 1 over the attended tokens.
    """
    outputs = encoder(features, training=False)
    inputs = [outputs["embedding_output"], *outputs["encoder_outputs"][:-1]]  # of each layer
    bias = encoder.get_layer("attention_bias")(features["input_mask"])
    layers = (encoder.get_layer(f"layer_{number}") for number in range(len(inputs)))
    return tf.stack([layer.attention_probabilities(x, bias) for layer, x in zip(layers, inputs, strict=True)], 1)


@keras.saving.register_keras_serializable("bert_tf")
class BertEncoder(keras.Model):
    """BERT without a head (Devlin et al., 2019, section 3).

    Called on a dict of int32 [batch, length] tensors (`input_word_ids`, `input_mask`, `input_type_ids`), it returns
        sequence_output [batch, length, hidden]: the last layer;
        pooled_output [batch, hidden]: tanh of a dense layer on the first position, if config.pooler; with causal
            attention, on the last token;
        encoder_outputs: list of num_layers tensors [batch, length, hidden];
        embedding_output [batch, length, hidden]: the input of the first layer.

    A packed encoder has the same weights and reads rows of several sequences, for training. Its
    `input_mask` contains the number of each token's sequence in the row, from 1 (0 at padding). Tokens attend within
    their own sequence, and positions count from its start. An additional input, `first_token_positions` int32
    [batch, sequences], selects the tokens for pooled_output [batch, sequences, hidden].

    Args:
        config: shape of the encoder.
        dtype: Keras dtype policy or its name, e.g. "mixed_bfloat16"; None for the global policy.
        packed: whether rows contain several sequences.

    Example:
        >>> encoder = bert_tf.BertEncoder(bert_tf.BertConfig.from_name("tiny"))
        >>> ones = np.ones((1, 5), "int32")
        >>> encoder({"input_word_ids": ones, "input_mask": ones, "input_type_ids": 0 * ones})["pooled_output"].shape
        TensorShape([1, 128])
    """

    def __init__(
        self,
        config: BertConfig,
        *,
        dtype: keras.DTypePolicy | str | None = None,
        packed: bool = False,
        name: str = "encoder",
        **kwargs: Any,
    ) -> None:
        config.check()
        if packed and config.attention == "causal":
            raise ConfigError("model.attention is 'causal', but packed rows need 'bidirectional'; set data.pairs=none")
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        embeddings = Embeddings(config, name="embeddings", dtype=policy)
        inputs = encoder_inputs()
        mask, embedded = inputs["input_mask"], [inputs["input_word_ids"], inputs["input_type_ids"]]
        if packed:
            embedded.append(PackedPositions(name="positions")(mask))
        x = embedded_tokens = embeddings(*embedded)
        causal = config.attention == "causal"
        bias_layer = PackedAttentionBias if packed else CausalAttentionBias if causal else AttentionBias
        bias = bias_layer(name="attention_bias", dtype="float32")(mask)
        layer_outputs = []
        for index in range(config.num_layers):
            x = TransformerBlock(config, name=f"layer_{index}", dtype=policy)(x, bias)
            layer_outputs.append(x)
        if config.norm == "pre":
            x = LayerNorm(config.layer_norm_epsilon, name="final_norm", dtype=policy)(x)
        outputs = {"embedding_output": embedded_tokens, "sequence_output": x, "encoder_outputs": layer_outputs}
        if config.pooler:
            pooler = keras.layers.Dense(
                config.hidden_size, "tanh", kernel_initializer=initializer(config), name="pooler", dtype=policy
            )
            if packed:
                inputs[FIRST_TOKENS] = keras.Input((None,), dtype="int32", name=FIRST_TOKENS)
                first = TokensAt(name="first_tokens", dtype=policy)(x, inputs[FIRST_TOKENS])
            else:
                first = LastToken(name="last_token", dtype=policy)(x, mask) if causal else x[:, 0]
            outputs["pooled_output"] = pooler(first)
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.config = config
        self.policy = policy
        self.embeddings = embeddings
        self.packed = packed

    def get_config(self) -> Json:
        """Returns the config that `keras.saving` stores."""
        config = to_dict(self.config)
        return {"config": config, "dtype": self.policy.name, "packed": self.packed, "name": self.name}

    @classmethod
    def from_config(cls, config: Json, custom_objects: Json | None = None) -> Self:
        """Creates the encoder from the output of `get_config`."""
        return cls(**(config | {"config": from_dict(BertConfig, with_new_names(BertConfig, config["config"]))}))
