"""What sits on the encoder: masked-language model and classifier."""

import keras
import tensorflow as tf

from bert_tf.model.activations import activation
from bert_tf.model.dropout import Dropout
from bert_tf.model.encoder import encoder_inputs
from bert_tf.model.layers import Dense, LayerNorm, initializer


@keras.saving.register_keras_serializable("bert_tf")
class MaskedLanguageModelHead(keras.layers.Layer):
    """Vocabulary logits at the masked positions only; the output matrix is the word embedding (section 3.1, task 1).

    Args:
        embeddings: the encoder's Embeddings layer, whose word embedding is shared.
    """

    def __init__(self, embeddings, **kwargs):
        super().__init__(**kwargs)
        config = embeddings.config
        self.config = config
        self.embeddings = embeddings
        self.transform = Dense(
            config.hidden_size, kernel_initializer=initializer(config), name="transform", dtype=self.dtype_policy
        )
        self.norm = LayerNorm(config.layer_norm_epsilon, name="norm", dtype=self.dtype_policy)
        self.activation = activation(config.activation)

    def build(self, sequence_shape, positions_shape=None):
        self.transform.build(sequence_shape)
        self.norm.build(sequence_shape)
        self.bias = self.add_weight(shape=(self.config.vocab_size,), initializer="zeros", name="bias", autocast=False)

    def call(self, sequence, positions):
        x = tf.gather(sequence, positions, batch_dims=1)  # [batch, predictions, hidden]
        x = self.norm(self.activation(self.transform(x)))
        table = tf.cast(self.embeddings.word_embeddings, x.dtype)
        flat = tf.reshape(x, [-1, self.config.hidden_size])  # one matmul, not one a sequence
        logits = tf.matmul(flat, table, transpose_b=True)
        logits = tf.reshape(logits, tf.concat([tf.shape(positions), [self.config.vocab_size]], 0))
        return tf.cast(logits, tf.float32) + self.bias

    def compute_output_spec(self, sequence, positions):
        return keras.KerasTensor((*positions.shape, self.config.vocab_size), "float32")


def classifier(encoder, outputs, *, name="classifier"):
    """Encoder, dropout and one dense layer on the pooled output (paper, section 4.1).

    Args:
        encoder: BertEncoder.
        outputs: number of classes.

    Returns:
        keras.Model from the encoder's inputs to {"logits": float32 [batch, outputs]}.
    """
    inputs = encoder_inputs()
    pooled = Dropout(encoder.config.dropout, name="dropout")(encoder(inputs)["pooled_output"])
    dense = keras.layers.Dense(outputs, kernel_initializer=initializer(encoder.config), name=name, dtype="float32")
    return keras.Model(inputs, {"logits": dense(pooled)})
