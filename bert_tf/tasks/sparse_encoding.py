"""Sparse vectors of texts by a masked language model, for inverted indices (SPLADE: Formal et al., 2021)."""

import types
from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.model.chunks import chunked_map
from bert_tf.model.mode import infer
from bert_tf.model.sparse_vectors import piece_weights
from bert_tf.tasks.masked_lm import MaskedLMObjective
from bert_tf.tasks.signatures import DEFAULT, TOKENS, Served, padded, signature, token_signature
from bert_tf.tasks.task import PretrainingTask
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.packing import dense_features, truncate
from bert_tf.types import Json, Tensors, TfFunction

# Logits of a row are as much memory as so many states.
_STATES = 1024


class SparseCodec(Served):
    """From texts to pieces and their weights, the largest first.

    Args:
        tokenizer: tokenizes the texts.
        max_length: tokens per text, special tokens included; longer texts are cut.
    """

    attends = False
    counted: Mapping[str, tuple[str, ...]] = types.MappingProxyType({"piece_count": ("pieces", "ids", "weights")})

    def __init__(self, tokenizer: BaseTokenizer, max_length: int) -> None:
        self.tokenizer, self._max_length = tokenizer, max_length

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def token_features(self, columns: Tensors) -> Tensors:
        ids, _, _ = truncate(
            self.tokenizer.tokenize(columns["text"]), budget=self._max_length - self.tokenizer.specials()
        )
        return dense_features(*self.tokenizer.pack(ids))

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        """As in `Served`: pieces string, ids int32 and weights float32 [batch, n], and piece_count int32 [batch]."""

        def answer(features: Tensors) -> Tensors:
            return padded(self.pieces(self.vectors(model, features)), self.counted)

        def from_text(text: tf.Tensor) -> Tensors:
            return answer(self.token_features({"text": text}))

        return {DEFAULT: signature(from_text, self.inputs()), TOKENS: token_signature(model, answer)}

    def vectors(self, model: keras.Model, features: Tensors) -> tf.Tensor:
        """float32 [rows, vocabulary]: the weights of all pieces, of few rows at a time.

        Args:
            model: a masked language model.
            features: the encoder's inputs.
        """
        mask = features["input_mask"]
        rows, length = tf.shape(mask)[0], tf.shape(mask)[1]

        def compute(first: tf.Tensor, last: tf.Tensor) -> Tensors:
            part = {name: value[first:last] for name, value in features.items()}
            positions = tf.zeros_like(part["input_mask"]) + tf.range(length)
            logits = infer(model, part | {"masked_lm_positions": positions})["mlm_logits"]
            return {"vector": piece_weights(tf.cast(logits, tf.float32), part["input_mask"])}

        share = max(1, self.tokenizer.vocab_size // _STATES)
        return chunked_map(compute, rows, length * share)["vector"]

    def pieces(self, vectors: tf.Tensor) -> Tensors:
        """The pieces of sparse vectors: pieces string, ids int32 and weights float32, ragged [rows, None]."""
        count = tf.reduce_max(tf.reduce_sum(tf.cast(vectors > 0, tf.int32), 1), keepdims=True)[0]
        weights, ids = tf.math.top_k(vectors, tf.maximum(count, 1))
        lengths = tf.reduce_sum(tf.cast(weights > 0, tf.int64), 1)
        weights, ids = (tf.RaggedTensor.from_tensor(value, lengths) for value in (weights, ids))
        vocabulary = tf.constant(self.tokenizer.vocab)
        return {"pieces": ids.with_values(tf.gather(vocabulary, ids.values)), "ids": ids, "weights": weights}


class SparseEncoding(PretrainingTask):
    """Sparse vectors of texts; arguments as for `PretrainingTask`."""

    name = "sparse_encoding"
    codec: SparseCodec

    def __init__(self, tokenizer: BaseTokenizer, max_length: int) -> None:
        super().__init__(tokenizer, max_length)
        self.codec, self.objective = SparseCodec(tokenizer, max_length), MaskedLMObjective(tokenizer, max_length)

    @classmethod
    def head(cls, settings: Json) -> str:
        return "masked_lm"
