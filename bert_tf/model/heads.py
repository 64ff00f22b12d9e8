"""Models of the encoder with a head: a function or class that builds each, by its row in `head_table.py`."""

from collections.abc import Collection
from typing import Any, Self

import keras
import tensorflow as tf

from bert_tf.config import BertConfig, EmbeddingConfig, FeatureConfig
from bert_tf.config.values import checked_arguments
from bert_tf.errors import ConfigError
from bert_tf.model.compute import add_bias
from bert_tf.model.dropout import Dropout
from bert_tf.model.encoder import BertEncoder, Frozen, FunctionalModel, encoder_inputs, token_features
from bert_tf.model.layers import ConfiguredLayer, Embeddings, HeadTransform, initializer, layer_norm, transform_layer
from bert_tf.model.normalization import Shape
from bert_tf.model.sentence_vectors import SentenceVectors
from bert_tf.types import Json

POSITIONS = "masked_lm_positions"  # input name: positions of the tokens to predict
WEIGHTS = "masked_lm_weights"  # input name: 1.0 for a prediction, 0.0 for an unused slot
# The layers of a BiLSTM, in the names of its variables.
BILSTM_LAYERS = 2
BILSTM_DIRECTIONS = ("forward", "backward")


@keras.saving.register_keras_serializable("bert_tf")
class MaskedLanguageModelHead(keras.layers.Layer):
    """Vocabulary logits at the masked positions only; the output matrix is the word embedding (section 3.1, task 1).

    Inputs: states [batch, length, hidden] and positions int32 [batch, predictions]; without positions, all of them.

    Args:
        embeddings: the encoder's; its word embedding is shared.
    """

    def __init__(self, embeddings: Embeddings, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        config = embeddings.config
        self.config = config
        self.embeddings = embeddings
        self.transform = transform_layer(config, config.embedding_width, self.dtype_policy)
        self.norm = layer_norm(config, "norm", self.dtype_policy)

    def build(self, sequence_shape: Shape, positions_shape: Shape | None = None) -> None:
        self.transform.build(sequence_shape)
        self.norm.build((*sequence_shape[:-1], self.config.embedding_width))
        self.bias = self.add_weight(shape=(self.config.vocab_size,), initializer="zeros", name="bias", autocast=False)

    def call(self, sequence: tf.Tensor, positions: tf.Tensor | None = None) -> tf.Tensor:
        x = sequence if positions is None else tf.gather(sequence, positions, batch_dims=1)
        x = self.norm(self.transform(x))  # [batch, predictions, width of the embeddings]
        table = tf.cast(self.embeddings.word_embeddings, x.dtype)
        flat = tf.reshape(x, [-1, self.config.embedding_width])  # one matmul, not one per sequence
        logits = add_bias(tf.matmul(flat, table, transpose_b=True), tf.cast(self.bias, tf.float32))
        return tf.reshape(logits, tf.concat([tf.shape(x)[:-1], [self.config.vocab_size]], 0))

    def compute_output_spec(
        self, sequence: keras.KerasTensor, positions: keras.KerasTensor | None = None
    ) -> keras.KerasTensor:
        shape = sequence.shape[:-1] if positions is None else positions.shape
        return keras.KerasTensor((*shape, self.config.vocab_size), "float32")


@keras.saving.register_keras_serializable("bert_tf")
class ReplacedTokenHead(ConfiguredLayer):
    """ELECTRA's discriminator: states [batch, length, hidden] -> logits float32 [batch, length]."""

    def __init__(self, config: BertConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.transform = transform_layer(config, config.hidden_size, self.dtype_policy)
        drawn = initializer(config, always=True)
        self.logits = keras.layers.Dense(1, kernel_initializer=drawn, name="output", dtype="float32")

    def build(self, states_shape: Shape) -> None:
        self.transform.build(states_shape)
        self.logits.build(states_shape)

    def call(self, states: tf.Tensor) -> tf.Tensor:
        return self.logits(self.transform(states))[..., 0]

    def compute_output_spec(self, states: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor(states.shape[:-1], "float32")


@keras.saving.register_keras_serializable("bert_tf")
class Orthogonal(keras.initializers.Orthogonal):
    """keras.initializers.Orthogonal in every dtype: TensorFlow's QR decomposition has no bfloat16."""

    def __call__(self, shape: Shape, dtype: str | None = None) -> tf.Tensor:
        return keras.ops.cast(super().__call__(shape, "float32"), dtype or keras.config.floatx())


@keras.saving.register_keras_serializable("bert_tf")
class FlattenChoices(keras.layers.Layer):
    """int [batch, choices, length] -> [batch * choices, length]."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.reshape(inputs, [-1, tf.shape(inputs)[-1]])


@keras.saving.register_keras_serializable("bert_tf")
class UnflattenChoices(keras.layers.Layer):
    """Scores [batch * choices, 1] and ids [batch, choices, length] -> scores [batch, choices]."""

    def call(self, scores: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        return tf.reshape(scores, tf.shape(ids)[:2])


@keras.saving.register_keras_serializable("bert_tf")
class Cosine(keras.layers.Layer):
    """Cosine similarity of the mean vectors of two sequences.

    States [batch * 2, length, hidden] and mask [batch, 2, length], 0 at padding, -> float32 [batch, 1].
    """

    def call(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        is_token = tf.expand_dims(tf.cast(tf.reshape(mask, tf.shape(states)[:2]) > 0, tf.float32), -1)
        # The sum has the direction of the mean.
        sums = tf.reduce_sum(tf.cast(states, tf.float32) * is_token, 1)
        vectors = tf.reshape(tf.math.l2_normalize(sums, -1), [-1, 2, states.shape[-1]])
        return tf.reduce_sum(vectors[:, 0] * vectors[:, 1], -1, keepdims=True)

    def compute_output_spec(self, states: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
        return keras.KerasTensor((mask.shape[0], 1), "float32")


def call_encoder(
    encoder: BertEncoder, inputs: dict[str, keras.KerasTensor], *, pooled: bool, frozen: bool = False
) -> dict[str, Any]:
    """Calls the encoder on symbolic inputs and returns its outputs for a head.

    Args:
        encoder: must have a pooler if `pooled` is True.
        inputs: the encoder's inputs; others are ignored.
        pooled: whether the head needs the pooled output.
        frozen: whether the encoder is excluded from training.
    """
    if pooled and not encoder.config.pooler:
        raise ConfigError(
            "the encoder has no pooler (model.pooler is False), but this head needs one; "
            "bert_tf.load(PATH, pooler=True) adds a new, untrained pooler"
        )
    reader = Frozen(encoder, name="frozen_encoder") if frozen else encoder
    return reader({name: inputs[name] for name in encoder.input})


@keras.saving.register_keras_serializable("bert_tf")
class BertPretrainer(FunctionalModel):
    """Masked language model and next-sentence prediction on one encoder (section 3.1).

    Takes the encoder's inputs and `masked_lm_positions`, int32 [batch, predictions]; returns

    - `mlm_logits` float32 [batch, predictions, vocab_size];
    - `nsp_logits` float32 [batch, 2], with a packed encoder [batch, sequences, 2]: index 0 is "the second segment
      follows the first", 1 "it does not".

    Args:
        encoder: must have a pooler if `next_sentence` is True.
        next_sentence: False omits the next-sentence head, which needs a pooler.
        trainable: as for `FunctionalModel`.
        frozen: as for `FunctionalModel`.

    Examples:
        >>> import numpy as np
        >>> encoder = bert_tf.BertEncoder(bert_tf.BertConfig.from_name("tiny"))
        >>> model = bert_tf.BertPretrainer(encoder)
        >>> ones = np.ones((1, 5), "int32")
        >>> inputs = {"input_word_ids": ones, "input_mask": ones, "input_type_ids": 0 * ones}
        >>> logits = model(inputs | {"masked_lm_positions": 2 * ones[:, :1]})  # predict the third token
        >>> logits["mlm_logits"].shape, logits["nsp_logits"].shape
        (TensorShape([1, 1, 30522]), TensorShape([1, 2]))
    """

    @checked_arguments
    def __init__(
        self,
        encoder: BertEncoder,
        *,
        next_sentence: bool = True,
        name: str = "pretrainer",
        trainable: bool = True,
        frozen: Collection[str] = (),
    ) -> None:
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in (*encoder.input, POSITIONS)}
        outputs = call_encoder(encoder, inputs, pooled=next_sentence)
        masked_lm = MaskedLanguageModelHead(encoder.embeddings, name="masked_lm", dtype=encoder.dtype_policy)
        logits = {"mlm_logits": masked_lm(outputs["sequence_output"], inputs[POSITIONS])}
        if next_sentence:
            logits["nsp_logits"] = logits_layer(encoder, 2, "next_sentence")(outputs["pooled_output"])
        super().__init__(inputs=inputs, outputs=logits, name=name, trainable=trainable, frozen=frozen)
        self.dtype_policy = encoder.dtype_policy
        self.encoder = encoder
        self.next_sentence = next_sentence

    def get_config(self) -> Json:
        """Returns the config that `keras.saving` stores."""
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return super().get_config() | {"encoder": encoder, "next_sentence": self.next_sentence}

    @classmethod
    def from_config(cls, config: Json, custom_objects: Json | None = None) -> Self:
        """Creates the model from the output of `get_config`."""
        return cls(**(config | {"encoder": keras.saving.deserialize_keras_object(config["encoder"])}))


def next_sentence(encoder: BertEncoder) -> keras.Model:
    """Next-sentence prediction without the masked language model.

    Returns:
        Model from the encoder's inputs to {"nsp_logits": float32 [batch, 2]}, as in `BertPretrainer`.
    """
    inputs = encoder_inputs()
    pooled = call_encoder(encoder, inputs, pooled=True)["pooled_output"]
    return _model(encoder, inputs, {"nsp_logits": logits_layer(encoder, 2, "next_sentence")(pooled)})


def replaced_token_detector(encoder: BertEncoder) -> keras.Model:
    """ELECTRA's discriminator: whether each token was replaced (Clark et al., 2020, arXiv:2003.10555, section 2).

    Returns:
        Model from the encoder's inputs to {"rtd_logits": float32 [batch, length]}, above 0 for replaced tokens.
    """
    inputs = encoder_inputs()
    head = ReplacedTokenHead(encoder.config, name="detector", dtype=encoder.dtype_policy)
    return _model(encoder, inputs, {"rtd_logits": head(call_encoder(encoder, inputs, pooled=False)["sequence_output"])})


def classifier(encoder: BertEncoder, labels: int) -> keras.Model:
    """Encoder, dropout and one dense layer on the pooled output (paper, section 4.1).

    Returns:
        Model from the encoder's inputs to {"logits": float32 [batch, labels]}.
    """
    inputs = encoder_inputs()
    pooled = call_encoder(encoder, inputs, pooled=True)["pooled_output"]
    return _model(encoder, inputs, {"logits": logits_layer(encoder, labels, "classifier")(_dropped(encoder, pooled))})


def vector_classifier(encoder: BertEncoder, labels: int, vectors: EmbeddingConfig | None = None) -> keras.Model:
    """Encoder, vectors of sentences, and one dense layer on these.

    Args:
        labels: number of labels.
        vectors: settings of the vectors.

    Returns:
        Model from the encoder's inputs to {"logits": float32 [batch, labels], "vector": float32 [batch, size]}.
    """
    inputs, vectors = encoder_inputs(), vectors or EmbeddingConfig()
    states = token_features(encoder, call_encoder(encoder, inputs, pooled=False), vectors.features)
    vector = SentenceVectors(vectors, name="vectors")(states, inputs["input_mask"])
    logits = logits_layer(encoder, labels, "classifier")(vector)
    return _model(encoder, inputs, {"logits": logits, "vector": vector})


def tagger(encoder: BertEncoder, labels: int, *, frozen: bool = False) -> keras.Model:
    """Encoder, dropout and one dense layer on every token (paper, section 5.3 and figure 4d).

    Args:
        labels: number of tags.
        frozen: whether only the dense layer is trained.

    Returns:
        Model from the encoder's inputs to {"logits": float32 [batch, length, labels]}.
    """
    inputs = encoder_inputs()
    sequence = _transformed(encoder, call_encoder(encoder, inputs, pooled=False, frozen=frozen)["sequence_output"])
    return _model(encoder, inputs, {"logits": logits_layer(encoder, labels, "classifier")(_dropped(encoder, sequence))})


def bilstm_head(
    encoder: BertEncoder,
    labels: int,
    features: FeatureConfig | None = None,
    *,
    sequences: bool,
    frozen: bool = False,
) -> keras.Model:
    """`tagger` or `classifier` with a BiLSTM over all tokens between encoder and dropout (sections 5.3 and 5.1).

    Args:
        encoder, labels: as for `tagger`.
        features: layers that the BiLSTM reads; None for the last layer.
        sequences: True for a tagger; False for a classifier, on the BiLSTM's final states instead of the pooled output
            (section 5.1, "+ BiLSTM").
        frozen: whether only the BiLSTM and the dense layer are trained.

    Returns:
        Model from the encoder's inputs to {"logits": float32 [batch, length, labels] or [batch, labels]}.
    """
    inputs, size = encoder_inputs(), encoder.config.hidden_size
    outputs = call_encoder(encoder, inputs, pooled=False, frozen=frozen)
    states = token_features(encoder, outputs, features or FeatureConfig())
    states = _bilstm(states, inputs["input_mask"], size, encoder.dtype_policy, sequences=sequences)
    return _model(encoder, inputs, {"logits": logits_layer(encoder, labels, "classifier")(_dropped(encoder, states))})


def _bilstm(
    states: keras.KerasTensor, mask: keras.KerasTensor, units: int, dtype: keras.DTypePolicy | str, *, sequences: bool
) -> keras.KerasTensor:
    """Two-layer BiLSTM: reads the states of each row's tokens forwards and backwards (sections 5.1 and 5.3).

    Args:
        states: [batch, length, size].
        mask: int32 [batch, length], 0 at padding, which follows the tokens.
        units: size of each direction; in the paper 768, BERT-base's hidden size.
        dtype: Keras dtype policy.
        sequences: whether to return the states of all tokens or only the final state of both directions.

    Returns:
        [batch, length, 2 * units] or, without `sequences`, [batch, 2 * units].
    """
    is_token = keras.ops.greater(mask, 0)
    for layer in range(BILSTM_LAYERS):
        return_sequences = sequences or layer < BILSTM_LAYERS - 1
        outputs = []
        # Not keras.layers.Bidirectional: its variables have other paths when loaded from a .keras file.
        for direction in BILSTM_DIRECTIONS:
            backward = direction == "backward"
            name = f"bilstm_{layer}_{direction}"
            lstm = keras.layers.LSTM(
                units,
                return_sequences=return_sequences,
                go_backwards=backward,
                recurrent_initializer=Orthogonal(),
                name=name,
                dtype=dtype,
            )
            output = lstm(states, mask=is_token)
            outputs.append(keras.ops.flip(output, axis=1) if backward and return_sequences else output)
        states = keras.ops.concatenate(outputs, axis=-1)
    return states


def span_head(encoder: BertEncoder) -> keras.Model:
    """Scores of each token as start and as end of the answer span (section 4.2).

    Returns:
        Model from the encoder's inputs to {"start_logits", "end_logits"}: float32 [batch, length].
    """
    inputs = encoder_inputs()
    sequence = _transformed(encoder, call_encoder(encoder, inputs, pooled=False)["sequence_output"])
    logits = logits_layer(encoder, 2, "span")(sequence)
    return _model(encoder, inputs, {"start_logits": logits[..., 0], "end_logits": logits[..., 1]})


def multiple_choice_head(encoder: BertEncoder) -> keras.Model:
    """One score per choice, from the pooled output of the question with that choice (section 4.4).

    Returns:
        Model from the encoder's inputs, here int32 [batch, choices, length], to {"logits": float32 [batch, choices]}.
    """
    inputs, rows = _grouped_inputs()
    pooled = call_encoder(encoder, rows, pooled=True)["pooled_output"]
    scores = logits_layer(encoder, 1, "classifier")(_dropped(encoder, pooled))  # [batch * choices, 1]
    return _model(encoder, inputs, {"logits": UnflattenChoices(name="unflatten")(scores, inputs["input_word_ids"])})


def cosine(encoder: BertEncoder) -> keras.Model:
    """Similarity of two texts encoded separately: the cosine of the means of their tokens' states.

    Trains and compares sentence embeddings (Reimers and Gurevych, 2019, arXiv:1908.10084). The means include special
    tokens.

    Returns:
        Model from the encoder's inputs, here int32 [batch, 2, length], to {"logits": float32 [batch, 1]}, from -1 to 1.
    """
    inputs, rows = _grouped_inputs(2)
    states = call_encoder(encoder, rows, pooled=False)["sequence_output"]
    return _model(encoder, inputs, {"logits": Cosine(name="cosine", dtype="float32")(states, inputs["input_mask"])})


def intent_and_slots(encoder: BertEncoder, labels: tuple[int, int]) -> keras.Model:
    """`classifier` and `tagger` on one encoder (Chen et al., 2019, arXiv:1902.10909).

    Args:
        labels: number of classes, number of tags.

    Returns:
        Model from the encoder's inputs to {"intent_logits": float32 [batch, classes], "slot_logits": float32 [batch,
        length, tags]}.
    """
    inputs, (intents, slots) = encoder_inputs(), labels
    outputs = call_encoder(encoder, inputs, pooled=True)
    pooled, sequence = _dropped(encoder, outputs["pooled_output"]), outputs["sequence_output"]
    tokens = Dropout(encoder.config.dropout, name="token_dropout", dtype=encoder.dtype_policy)(sequence)
    logits = {"intent_logits": logits_layer(encoder, intents, "intent")(pooled)}
    return _model(encoder, inputs, logits | {"slot_logits": logits_layer(encoder, slots, "slots")(tokens)})


def _grouped_inputs(
    sequences: int | None = None,
) -> tuple[dict[str, keras.KerasTensor], dict[str, keras.KerasTensor]]:
    """Inputs [batch, sequences, length] for several sequences per example; the same as [batch * sequences, length]."""
    inputs = {name: keras.Input((sequences, None), dtype="int32", name=name) for name in encoder_inputs()}
    return inputs, {name: FlattenChoices(name=f"flatten_{name}")(value) for name, value in inputs.items()}


def _model(
    encoder: BertEncoder, inputs: dict[str, keras.KerasTensor], outputs: dict[str, keras.KerasTensor]
) -> keras.Model:
    """Creates a functional model with the encoder's dtype policy, by which `compile` decides on loss scaling."""
    model = keras.Model(inputs, outputs)
    model.dtype_policy = encoder.dtype_policy
    return model


def _transformed(encoder: BertEncoder, states: keras.KerasTensor) -> keras.KerasTensor:
    """States of tokens after the layer that comes before the last one of a head, if the config has one."""
    if not encoder.config.head_transform:
        return states
    return HeadTransform(encoder.config, name="transform", dtype=encoder.dtype_policy)(states)


def logits_layer(encoder: BertEncoder, size: int, name: str) -> keras.layers.Dense:
    """Creates the last layer of a head, which computes in float32 whatever the encoder's dtype policy."""
    return keras.layers.Dense(
        size, kernel_initializer=initializer(encoder.config, always=True), name=name, dtype="float32"
    )


def _dropped(encoder: BertEncoder, x: keras.KerasTensor) -> keras.KerasTensor:
    return Dropout(encoder.config.dropout, name="dropout", dtype=encoder.dtype_policy)(x)
