"""The BERT encoder as an ordinary Keras model, with the input and output names of the TF-Hub BERT models."""

import keras

from bert_tf.config import BertConfig, from_dict, to_dict
from bert_tf.config.values import with_new_names
from bert_tf.errors import ConfigError
from bert_tf.model.layers import (
    AttentionBias,
    Embeddings,
    LastToken,
    LayerNorm,
    LeftAttentionBias,
    PackedAttentionBias,
    PackedPositions,
    TokensAt,
    TransformerBlock,
    initializer,
)

FIRST_TOKENS = "first_token_positions"  # the input that says where in a packed row its sequences begin


def encoder_inputs():
    """The three inputs, int32 [batch, length]: input_word_ids, input_mask (1 at tokens), input_type_ids."""
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def encoder_of(model):
    """The BertEncoder that a keras.Model of `model.build` has, also where it is frozen."""
    layers = (getattr(layer, "model", layer) for layer in (model, *model.layers))
    return next(layer for layer in layers if isinstance(layer, BertEncoder))


@keras.saving.register_keras_serializable("bert_tf")
class BertEncoder(keras.Model):
    """BERT without a head (Devlin et al., 2019, section 3).

    Args:
        config: BertConfig.
        dtype: Keras dtype policy or its name, e.g. "mixed_bfloat16"; None for the global policy.
        packed: makes an encoder of the same weights for rows of several sequences, in training (`inputs.packing`).

    Called on a dict of int32 [batch, length] tensors (`input_word_ids`, `input_mask`, `input_type_ids`), it returns
        sequence_output [batch, length, hidden]: the last layer;
        pooled_output [batch, hidden]: tanh of a dense layer on the first position, if config.pooler;
        encoder_outputs: list of num_layers tensors [batch, length, hidden];
        embedding_output [batch, length, hidden]: what the first of these layers reads.

    A packed encoder takes in `input_mask` the number of each token's sequence in the row, from 1 (0 at padding). Tokens
    attend within their own sequence and positions count from its start. Its pooled_output [batch, sequences, hidden] is
    that of the tokens at one more input, `first_token_positions` int32 [batch, sequences].

    Raises:
        ConfigError: if the config can not be built.

    Example:
        >>> encoder = bert_tf.BertEncoder(bert_tf.BertConfig.from_name("tiny"))
        >>> ones = np.ones((1, 5), "int32")
        >>> encoder({"input_word_ids": ones, "input_mask": ones, "input_type_ids": 0 * ones})["pooled_output"].shape
        TensorShape([1, 128])
    """

    def __init__(self, config, *, dtype=None, packed=False, name="encoder", **kwargs):
        config.check()
        if packed and config.attention == "causal":
            raise ConfigError(
                "model.attention is 'causal', but packed rows are for 'bidirectional'; set data.pairs=none"
            )
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        embeddings = Embeddings(config, name="embeddings", dtype=policy)
        inputs = encoder_inputs()
        mask, embedded = inputs["input_mask"], [inputs["input_word_ids"], inputs["input_type_ids"]]
        if packed:
            embedded.append(PackedPositions(name="positions")(mask))
        x = embedded_tokens = embeddings(*embedded)
        left = config.attention == "causal"
        bias = PackedAttentionBias if packed else LeftAttentionBias if left else AttentionBias
        bias = bias(name="attention_bias", dtype="float32")(mask)
        outputs = []
        for index in range(config.num_layers):
            x = TransformerBlock(config, name=f"layer_{index}", dtype=policy)(x, bias)
            outputs.append(x)
        if config.norm == "pre":
            x = LayerNorm(config.layer_norm_epsilon, name="final_norm", dtype=policy)(x)
        outputs = {"embedding_output": embedded_tokens, "sequence_output": x, "encoder_outputs": outputs}
        if config.pooler:
            pooler = keras.layers.Dense(
                config.hidden_size, "tanh", kernel_initializer=initializer(config), name="pooler", dtype=policy
            )
            if packed:
                inputs[FIRST_TOKENS] = keras.Input((None,), dtype="int32", name=FIRST_TOKENS)
                first = TokensAt(name="first_tokens", dtype=policy)(x, inputs[FIRST_TOKENS])
            else:
                first = LastToken(name="last_token", dtype=policy)(x, mask) if left else x[:, 0]
            outputs["pooled_output"] = pooler(first)
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.config = config
        self.policy = policy
        self.embeddings = embeddings
        self.packed = packed

    def get_config(self):
        """What `keras.saving` writes."""
        config = to_dict(self.config)
        return {"config": config, "dtype": self.policy.name, "packed": self.packed, "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The encoder that `get_config` described."""
        return cls(**(config | {"config": from_dict(BertConfig, with_new_names(BertConfig, config["config"]))}))
