"""Vectors of sentences, words or tokens, computed in graph code."""

import keras
import tensorflow as tf

from bert_tf.config import EmbeddingConfig, to_dict
from bert_tf.config.values import restored
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.model.chunks import chunked_map, map_in_chunks
from bert_tf.model.encoder import BertEncoder, feature_model
from bert_tf.model.mode import infer
from bert_tf.model.sentence_vectors import SentenceVectors, in_format
from bert_tf.tasks.signatures import (
    DEFAULT,
    TOKENS,
    WORD_LISTS,
    WORDS,
    Served,
    check_size,
    padded,
    signature,
    token_signature,
)
from bert_tf.tasks.task import Task
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.packing import dense_features, truncate
from bert_tf.text.words import extents, given_words, quotable_pieces, spans, word_numbers, word_of
from bert_tf.types import Json, Tensors, TfFunction


class VectorsCodec(Served):
    """From texts to vectors.

    Args:
        tokenizer: of the encoder.
        config: which vectors, with a `max_length`.
        layer: makes vectors of sentences from states, built.
    """

    attends = False

    def __init__(self, tokenizer: BaseTokenizer, config: EmbeddingConfig, layer: SentenceVectors) -> None:
        self.tokenizer, self.config, self._layer = tokenizer, config, layer
        self._per, self._pool, self._length = config.per, config.pools[0], config.max_length
        self._prompt_tokens = 0  # in front of what is pooled
        if config.prompt and not config.include_prompt:
            self._prompt_tokens = 1 + int(tokenizer.tokenize([config.prompt]).row_lengths()[0])  # and the first
        if self._per != "sentence":
            self.counted = {f"{self._per}_count": ("vector", "text", "start", "end")}

    def size(self, model: keras.Model) -> int:
        """Number of values of a vector."""
        width: int = model.output_shape[-1]
        return self._layer.config.width(width) if self._per == "sentence" else width

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def token_features(self, columns: Tensors) -> Tensors:
        return self.tokenizer.encode(self._prompted(columns["text"]), max_length=self._length)

    def _prompted(self, text: tf.Tensor) -> tf.Tensor:
        return self.config.prompt + text if self.config.prompt else text

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        """As in `Served`.

        From text or words, the outputs are those of `vectors`, padded with 0 and "". From token ids, the output is
        the sentence's vector, or else a vector per token, 0 at padding.
        """

        def served(answers: Tensors) -> Tensors:
            return answers | {"vector": in_format(answers["vector"], self.config.values)}

        def from_tokens(features: Tensors) -> Tensors:
            positions = tf.size(features["input_mask"], tf.int64)
            rows = tf.shape(features["input_mask"], tf.int64)[0]
            size = 4 * self.size(model) * (rows if self._per == "sentence" else positions)
            with tf.control_dependencies([check_size(size)]):
                features = {name: tf.identity(value) for name, value in features.items()}
            return served(map_in_chunks(lambda part: {"vector": self._of_tokens(infer(model, part), part)}, features))

        def from_text(text: tf.Tensor) -> Tensors:
            return served(padded(self.vectors(model, text), self.counted))

        def from_words(words: tf.Tensor) -> Tensors:
            return padded(self.vectors(model, **given_words(words)), self.counted)

        made = {DEFAULT: signature(from_text, self.inputs()), TOKENS: token_signature(model, from_tokens)}
        if self._per == "word":
            made[WORDS] = signature(from_words, (WORD_LISTS,))
        return made

    def token_outputs(self, model: keras.Model, features: Tensors) -> Tensors:
        """The vectors of tokens and, if these are what is computed, of sentences."""
        states = model(features, training=False)
        vectors = self._sentence_vectors(states, features["input_mask"])
        return {"last_hidden_state": states} | ({} if vectors is None else {"sentence_embedding": vectors})

    def vectors(
        self,
        model: keras.Model,
        text: tf.Tensor,
        word_starts: tf.RaggedTensor | None = None,
        word_ends: tf.RaggedTensor | None = None,
    ) -> Tensors:
        """Computes the vectors of a batch of texts.

        Args:
            model: as `Vectors.build` returns.
            text: string [batch].
            word_starts, word_ends: int32 [batch, None], byte offsets of given words, for vectors per word; None splits
                the texts into words as `text.words.word_numbers` does.

        Returns:
            vector: float32 [batch, size] per sentence, else ragged [batch, None, size]. Per word or token also text
            (string), start and end (int32, in characters of the text), ragged [batch, None]. A word without any
            wordpiece has a vector of zeros.
        """
        ids, starts, ends = quotable_pieces(self.tokenizer, self._prompted(text))
        budget = self._length - self.tokenizer.specials()
        if self.config.long_texts == "head":
            ids, _, _ = truncate(ids, budget=budget)
        rows = windows(ids.row_lengths(), budget, (budget + 1) // 2)
        packed, types = self.tokenizer.pack(cut(ids, *rows))
        chosen = most_context(*rows)
        kept = self._window_vectors(model, packed, types, chosen)
        if self._per == "sentence":
            return {"vector": self._layer.finished(_of_texts(kept, rows[0], tf.size(text)))}
        vectors = kept["vector"]
        if self._per == "word":
            if word_starts is None:
                word_starts, word_ends = extents(word_numbers(self.tokenizer, text, ids, starts, ends), starts, ends)
            vectors = self._word_vectors(vectors, word_of(starts, word_starts, text), tf.size(word_starts.values))
            starts, ends = word_starts, word_ends
        values = spans(text, starts.value_rowids(), starts.values, ends.values) | {"vector": vectors}
        return {name: starts.with_values(value) for name, value in values.items()}

    def _of_tokens(self, states: tf.Tensor, features: Tensors) -> tf.Tensor:
        vectors = self._sentence_vectors(states, features["input_mask"])
        return tf.where(features["input_mask"][..., tf.newaxis] > 0, states, 0.0) if vectors is None else vectors

    def _sentence_vectors(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor | None:
        """float32 [rows, size], the vectors of sentences of one row each; None if this computes other vectors.

        Args:
            states: float32 [rows, length, size], of the model.
            mask: int32 [rows, length], 0 at padding.
        """
        return self._layer.finished(self._pooled(states, mask > 0)) if self._per == "sentence" else None

    def _window_vectors(
        self, model: keras.Model, ids: tf.RaggedTensor, types: tf.RaggedTensor, chosen: tf.RaggedTensor
    ) -> Tensors:
        """Runs the model on windows and keeps only what the vectors are made from.

        Args:
            ids, types: int32 [windows, None], packed.
            chosen: bool [windows, None], whether a token's vector is taken from this window; without special tokens.

        Returns:
            vector: float32 [tokens, size], the chosen tokens' vectors. Per sentence instead the result of `_pooled` for
            the windows, over the chosen tokens and the special tokens.
        """

        def compute(first: tf.Tensor, last: tf.Tensor) -> Tensors:
            features = dense_features(ids[first:last], types[first:last], length_multiple=4, max_length=self._length)
            states, part = infer(model, features), chosen[first:last]
            if self._per == "sentence":
                return self._pooled(states, _with_special_tokens(part, True, states))
            return {"vector": tf.boolean_mask(states, _with_special_tokens(part, False, states))}

        return chunked_map(compute, ids.nrows(), ids.bounding_shape(axis=1))

    def _pooled(self, states: tf.Tensor, counts: tf.Tensor) -> Tensors:
        """As `SentenceVectors.pooled`, without the tokens of the prompt if these are not pooled."""
        if self._prompt_tokens:
            counts &= tf.range(tf.shape(counts)[1]) >= self._prompt_tokens
        return self._layer.pooled(states, counts)

    def _word_vectors(self, vectors: tf.Tensor, word: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """float32 [count, size] from the vectors of tokens and the index of each token's word, int64 [tokens]."""
        if self._pool == "first":
            first = tf.concat([word[:1] >= 0, word[1:] != word[:-1]], 0)
            vectors, word = tf.boolean_mask(vectors, first), tf.boolean_mask(word, first)
        if self._pool != "max":
            return tf.math.unsorted_segment_mean(vectors, word, count)
        best = tf.math.unsorted_segment_max(vectors, word, count)
        return tf.where(best > best.dtype.min, best, 0.0)


def _with_special_tokens(chosen: tf.RaggedTensor, value: bool, states: tf.Tensor) -> tf.Tensor:
    """bool [windows, length] from `chosen`, bool [windows, None]: `value` at special tokens, False at padding."""
    edge = tf.fill([chosen.nrows(), 1], value)
    return tf.concat([edge, chosen, edge], 1).to_tensor(shape=tf.stack([-1, tf.shape(states)[1]]))


def _of_texts(kept: Tensors, row: tf.Tensor, count: tf.Tensor) -> Tensors:
    """The result of `VectorsCodec._pooled` for windows, joined for each text; every window has special tokens.

    Args:
        kept: for windows.
        row: int64 [windows], the text of each.
        count: number of texts.
    """
    return {
        name: (tf.math.unsorted_segment_max if name == "max" else tf.math.unsorted_segment_sum)(value, row, count)
        for name, value in kept.items()
    }


class Vectors(Task):
    """Vectors of texts, computed as the model was published for them or as settings say.

    Args:
        tokenizer, config, layer: as for `VectorsCodec`; without the layer, for vectors without dense layers.
    """

    name = "vectors"
    codec: VectorsCodec

    def __init__(self, tokenizer: BaseTokenizer, config: EmbeddingConfig, layer: SentenceVectors | None = None) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.codec = VectorsCodec(tokenizer, config, layer or SentenceVectors(config))

    def settings(self) -> Json:
        return to_dict(self.config)

    @classmethod
    def arguments(cls, settings: Json) -> Json:
        return {"config": restored(EmbeddingConfig, settings, "task.settings").check()}

    def build(self, encoder: BertEncoder) -> keras.Model:
        """Builds the model on `encoder`, from its inputs to vectors of tokens, float32 [batch, length, size]."""
        return feature_model(encoder, self.config.features)
