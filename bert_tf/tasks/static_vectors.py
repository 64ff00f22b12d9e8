"""Vectors of texts from a table of vectors of pieces."""

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import EmbeddingConfig, to_dict
from bert_tf.config.values import restored
from bert_tf.errors import ConfigError
from bert_tf.model.sentence_vectors import in_format, unit
from bert_tf.tasks.signatures import DEFAULT, Served, signature
from bert_tf.tasks.task import Task
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.normalizer import replace_invalid
from bert_tf.text.packing import truncate
from bert_tf.types import Json, Tensors, TfFunction


class StaticCodec(Served):
    """From texts to static vectors.

    Args:
        tokenizer: of the table's pieces.
        config: `max_length` in pieces, 0 for no limit; `normalize`, `size` and `values`.
    """

    attends = False

    def __init__(self, tokenizer: BaseTokenizer, config: EmbeddingConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        # As model2vec cuts texts: before the tokenizer, to as many characters as pieces of the median length have.
        self._characters = config.max_length * int(np.median([len(piece) for piece in tokenizer.vocab]))

    def size(self, model: keras.Model) -> int:
        """Number of values of a vector."""
        return self.config.size or model.width

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def token_features(self, columns: Tensors) -> Tensors:
        raise ConfigError("a static model has no encoder, so there are no inputs of one")

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        def from_text(text: tf.Tensor) -> Tensors:
            return {"vector": in_format(self.vectors(model, text)["vector"], self.config.values)}

        return {DEFAULT: signature(from_text, self.inputs())}

    def vectors(self, model: keras.Model, text: tf.Tensor, **words: tf.RaggedTensor) -> Tensors:
        """Computes the vectors of a batch of texts.

        Args:
            model: a `StaticVectors`.
            text: string [batch].
            **words: offsets of given words, which change nothing.

        Returns:
            vector: float32 [batch, size].
        """
        ids = self.tokenizer.tokenize(self._shortened(text))
        if self.config.max_length:
            ids, _, _ = truncate(ids, budget=self.config.max_length)
        vector = model(ids)
        if self.config.size:
            vector = vector[:, : self.config.size]
        return {"vector": unit(vector) if self.config.normalize else vector}

    def _shortened(self, text: tf.Tensor) -> tf.Tensor:
        """The first characters of each text."""
        if not self._characters:
            return text
        # Characters are counted only if there are enough bytes.
        long = tf.reduce_any(tf.strings.length(text) > self._characters)
        return tf.cond(
            long, lambda: tf.strings.substr(replace_invalid(text), 0, self._characters, "UTF8_CHAR"), lambda: text
        )


class Static(Task):
    """Static vectors of texts.

    Args:
        tokenizer, config: as for `StaticCodec`.
    """

    name = "static_vectors"
    codec: StaticCodec

    def __init__(self, tokenizer: BaseTokenizer, config: EmbeddingConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.codec = StaticCodec(tokenizer, config)

    def settings(self) -> Json:
        return to_dict(self.config)

    @classmethod
    def arguments(cls, settings: Json) -> Json:
        return {"config": restored(EmbeddingConfig, settings, "task.settings").check()}
