"""The models of a student and of its teacher: an encoder with those of its states that are compared as outputs."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.model.encoder import BertEncoder, encoder_inputs
from bert_tf.model.heads import BertPretrainer
from bert_tf.model.layers import TransformerBlock


class QueriesKeysValues(keras.layers.Layer):
    """What the attention of a block makes of its inputs [batch, length, hidden]: [batch, length, 3 * size].

    Args:
        block: of the encoder; its weights are shared.
    """

    def __init__(self, block: TransformerBlock, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.block = block
        self.built = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.block.queries_keys_values(inputs)

    def compute_output_spec(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor((*inputs.shape[:-1], self.block.attention.qkv.units), self.compute_dtype)


def inner_states(encoder: BertEncoder, layers: Sequence[int], width: int | None = None) -> keras.Model:
    """A model that returns the states of some layers, and what their attention makes of its inputs.

    Args:
        encoder: student or teacher.
        layers: numbers, from 1.
        width: size to which states are projected by learned matrices, one for the embeddings and one for the outputs of
            all layers (TinyBERT: Jiao et al., 2020, arXiv:1909.10351, equations 8 and 9); None for no projection.

    Returns:
        Model from the encoder's inputs to {"states": list of [batch, length, width], the input of the first layer, then
        the output of each of `layers`; "qkv": list of [batch, length, 3 * hidden], the queries, keys and values of each
        of `layers`, heads side by side}. It computes of these what is used.
    """
    inputs, blocks = encoder_inputs(), encoder.blocks()
    outputs = encoder(inputs)
    before = [outputs["embedding_output"], *outputs["encoder_outputs"]]  # the input of each layer
    qkv = [
        QueriesKeysValues(blocks[(layer - 1) % len(blocks)], name=f"qkv_{layer}", dtype=encoder.dtype_policy)(
            before[layer - 1]
        )
        for layer in layers
    ]
    states = [before[0], *(before[layer] for layer in layers)]
    if width:
        embedded, hidden = (
            keras.layers.Dense(width, use_bias=False, name=f"{name}_projection", dtype=encoder.dtype_policy)
            for name in ("embedding", "hidden")
        )
        states = [embedded(states[0]), *map(hidden, states[1:])]
    return _model(encoder, inputs, {"states": states, "qkv": qkv})


def masked_lm_with_states(model: BertPretrainer) -> keras.Model:
    """A masked language model that also returns "sequence_output", the states that its head reads."""
    states, _ = model.get_layer("masked_lm").input
    outputs = {"mlm_logits": model.output["mlm_logits"], "sequence_output": states}
    return _model(model.encoder, model.input, outputs)


def _model(encoder: BertEncoder, inputs: dict[str, keras.KerasTensor], outputs: dict[str, Any]) -> keras.Model:
    model = keras.Model(inputs, outputs)
    model.dtype_policy = encoder.dtype_policy
    return model
