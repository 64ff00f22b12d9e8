"""What sits on the encoder: one head a kind of task (paper, sections 3.1 and 4, figure 4)."""

import keras
import tensorflow as tf

from bert_tf.config import FeatureConfig
from bert_tf.errors import ConfigError
from bert_tf.model.activations import activation
from bert_tf.model.bilstm import bilstm
from bert_tf.model.dropout import Dropout
from bert_tf.model.encoder import encoder_inputs
from bert_tf.model.features import Frozen, token_features
from bert_tf.model.layers import Dense, LayerNorm, initializer

POSITIONS = "masked_lm_positions"  # the input that says which tokens to predict


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


@keras.saving.register_keras_serializable("bert_tf")
class FlattenChoices(keras.layers.Layer):
    """int [batch, choices, length] -> [batch * choices, length]."""

    def call(self, inputs):
        return tf.reshape(inputs, [-1, tf.shape(inputs)[-1]])

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((None, inputs.shape[-1]), inputs.dtype)


@keras.saving.register_keras_serializable("bert_tf")
class UnflattenChoices(keras.layers.Layer):
    """Scores [batch * choices, 1] -> [batch, choices], as many choices as `ids` [batch, choices, length] has."""

    def call(self, scores, ids):
        return tf.reshape(scores, tf.shape(ids)[:2])

    def compute_output_spec(self, scores, ids):
        return keras.KerasTensor(ids.shape[:2], scores.dtype)


@keras.saving.register_keras_serializable("bert_tf")
class Cosine(keras.layers.Layer):
    """The cosine of the mean vectors of two sequences.

    Of states [batch * 2, length, hidden] and a mask [batch, 2, length], 0 at padding, to float32 [batch, 1].
    """

    def call(self, states, mask):
        there = tf.cast(tf.reshape(mask, tf.shape(states)[:2]) > 0, tf.float32)[..., tf.newaxis]
        # The sum has the direction of the mean.
        sums = tf.reduce_sum(tf.cast(states, tf.float32) * there, 1)
        vectors = tf.reshape(tf.math.l2_normalize(sums, -1), [-1, 2, states.shape[-1]])
        return tf.reduce_sum(vectors[:, 0] * vectors[:, 1], -1, keepdims=True)

    def compute_output_spec(self, states, mask):
        return keras.KerasTensor((mask.shape[0], 1), "float32")


def encoded(encoder, inputs, *, pooled, frozen=False):
    """The encoder's outputs for a head.

    Args:
        encoder: BertEncoder.
        inputs: dict that holds the encoder's inputs, and maybe others.
        pooled: whether the head needs the pooled output.
        frozen: whether the encoder is left as it is when the model is trained.

    Raises:
        ConfigError: if it does and the encoder has none.
    """
    if pooled and not encoder.config.pooler:
        raise ConfigError(
            "the encoder has no pooler (model.pooler is False), which this head sits on; "
            "bert_tf.load(PATH, pooler=True) puts a new, untrained one on"
        )
    reader = Frozen(encoder, name="frozen_encoder") if frozen else encoder
    return reader({name: inputs[name] for name in encoder.input})


def next_sentence(encoder):
    """Next-sentence prediction alone.

    Returns:
        keras.Model from the encoder's inputs to {"nsp_logits": float32 [batch, 2]}, as `BertPretrainer` gives them.
    """
    inputs = encoder_inputs()
    pooled = encoded(encoder, inputs, pooled=True)["pooled_output"]
    return keras.Model(inputs, {"nsp_logits": output(encoder, 2, "next_sentence")(pooled)})


def classifier(encoder, labels):
    """Encoder, dropout and one dense layer on the pooled output (paper, section 4.1).

    Args:
        encoder: BertEncoder.
        labels: number of classes.

    Returns:
        keras.Model from the encoder's inputs to {"logits": float32 [batch, labels]}.
    """
    inputs = encoder_inputs()
    pooled = encoded(encoder, inputs, pooled=True)["pooled_output"]
    return keras.Model(inputs, {"logits": output(encoder, labels, "classifier")(_dropped(encoder, pooled))})


def tagger(encoder, labels, *, frozen=False):
    """Encoder, dropout and one dense layer on every token (paper, section 5.3 and figure 4d).

    Args:
        encoder: BertEncoder.
        labels: number of tags.
        frozen: whether the dense layer alone is trained.

    Returns:
        keras.Model from the encoder's inputs to {"logits": float32 [batch, length, labels]}.
    """
    inputs = encoder_inputs()
    sequence = encoded(encoder, inputs, pooled=False, frozen=frozen)["sequence_output"]
    return keras.Model(inputs, {"logits": output(encoder, labels, "classifier")(_dropped(encoder, sequence))})


def bilstm_classifier(encoder, labels):
    """`classifier` on what a BiLSTM makes of all tokens instead of the pooled output (section 5.1, "+ BiLSTM").

    Returns:
        keras.Model as of `classifier`.
    """
    return _on_bilstm(encoder, labels, sequences=False)


def bilstm_tagger(encoder, labels, features=None, *, frozen=False):
    """`tagger` with a BiLSTM in between (section 5.3).

    Args:
        encoder, labels, frozen: as for `tagger`.
        features: FeatureConfig, what the BiLSTM reads; None for the last layer.

    Returns:
        keras.Model as of `tagger`.

    Raises:
        ConfigError: the encoder has no such layers.
    """
    return _on_bilstm(encoder, labels, sequences=True, features=features, frozen=frozen)


def _on_bilstm(encoder, labels, *, sequences, features=None, frozen=False):
    inputs, size = encoder_inputs(), encoder.config.hidden_size
    outputs = encoded(encoder, inputs, pooled=False, frozen=frozen)
    states = token_features(encoder, outputs, features or FeatureConfig())
    states = bilstm(states, inputs["input_mask"], size, encoder.policy, sequences=sequences)
    return keras.Model(inputs, {"logits": output(encoder, labels, "classifier")(_dropped(encoder, states))})


def span_head(encoder):
    """Scores of each token to begin and to end the answer (section 4.2).

    Returns:
        keras.Model from the encoder's inputs to {"start_logits", "end_logits"}: float32 [batch, length].
    """
    inputs = encoder_inputs()
    logits = output(encoder, 2, "span")(encoded(encoder, inputs, pooled=False)["sequence_output"])
    return keras.Model(inputs, {"start_logits": logits[..., 0], "end_logits": logits[..., 1]})


def multiple_choice_head(encoder):
    """One score a choice, from the pooled output of the question with that choice (section 4.4).

    Returns:
        keras.Model from the encoder's inputs, here int32 [batch, choices, length], to
        {"logits": float32 [batch, choices]}.
    """
    inputs, rows = _several()
    pooled = encoded(encoder, rows, pooled=True)["pooled_output"]
    scores = output(encoder, 1, "classifier")(_dropped(encoder, pooled))  # [batch * choices, 1]
    return keras.Model(inputs, {"logits": UnflattenChoices(name="unflatten")(scores, inputs["input_word_ids"])})


def cosine(encoder):
    """How alike two texts are that the encoder reads apart: the cosine of the means of their tokens' states.

    So sentence embeddings are trained and compared (Reimers and Gurevych, 2019, arXiv:1908.10084). The specials count.

    Returns:
        keras.Model from the encoder's inputs, here int32 [batch, 2, length], to {"logits": float32 [batch, 1]}, from -1
        to 1.
    """
    inputs, rows = _several(2)
    states = encoded(encoder, rows, pooled=False)["sequence_output"]
    return keras.Model(inputs, {"logits": Cosine(name="cosine", dtype="float32")(states, inputs["input_mask"])})


def _several(sequences=None):
    """The encoder's inputs of several sequences an example, and the same as rows: [batch * sequences, length]."""
    inputs = {name: keras.Input((sequences, None), dtype="int32", name=name) for name in encoder_inputs()}
    return inputs, {name: FlattenChoices(name=f"flatten_{name}")(value) for name, value in inputs.items()}


def output(encoder, size, name):
    """The last layer of a head, in float32 whatever the encoder computes in."""
    return keras.layers.Dense(size, kernel_initializer=initializer(encoder.config), name=name, dtype="float32")


def _dropped(encoder, x):
    return Dropout(encoder.config.dropout, name="dropout", dtype=encoder.policy)(x)
