"""Sparse vectors: a weight for each piece of the vocabulary (SPLADE: Formal et al., 2021, arXiv:2109.10086)."""

import keras
import tensorflow as tf

from bert_tf.model.encoder import BertEncoder, encoder_inputs
from bert_tf.model.heads import MaskedLanguageModelHead, call_encoder


def piece_weights(logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """log(1 + relu(logit)) of each piece, the largest of all tokens: float32 [rows, vocabulary].

    Args:
        logits: float32 [rows, length, vocabulary], of a masked language model.
        mask: int32 [rows, length], 0 at padding.
    """
    weights = tf.math.log1p(tf.nn.relu(logits)) * tf.cast(mask > 0, tf.float32)[..., tf.newaxis]
    return tf.reduce_max(weights, 1)


@keras.saving.register_keras_serializable("bert_tf")
class PieceWeights(keras.layers.Layer):
    """`piece_weights` as a layer."""

    def call(self, logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return piece_weights(logits, mask)

    def compute_output_spec(self, logits: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor((logits.shape[0], logits.shape[-1]), "float32")


def sparse_vector_model(encoder: BertEncoder) -> keras.Model:
    """Builds the model from the encoder's inputs to {"vector": float32 [rows, vocabulary]}.

    Its variables are those of the head "masked_lm".
    """
    inputs = encoder_inputs()
    states = call_encoder(encoder, inputs, pooled=False)["sequence_output"]
    head = MaskedLanguageModelHead(encoder.embeddings, name="masked_lm", dtype=encoder.dtype_policy)
    weights = PieceWeights(name="piece_weights", dtype="float32")(head(states), inputs["input_mask"])
    return keras.Model(inputs, {"vector": weights})
