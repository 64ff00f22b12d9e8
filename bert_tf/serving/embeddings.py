"""Vectors of sentences, words or tokens, computed in graph code; used by `extract` and exported as a SavedModel."""

import dataclasses
import functools

import keras
import tensorflow as tf

from bert_tf.config import FeatureConfig, to_dict
from bert_tf.errors import ConfigError
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.model.chunks import chunked_map, map_in_chunks
from bert_tf.model.encoder import BertEncoder, feature_model
from bert_tf.model.inference import infer
from bert_tf.quiet import traced_function
from bert_tf.tasks.signatures import DEFAULT, TOKENS, WORD_LISTS, WORDS, padded, signature, token_signature
from bert_tf.text.packing import dense_features, pack
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.words import extents, given_words, pieces_with_accents, spans, word_numbers, word_of
from bert_tf.types import Json, Tensors, TfFunction

# The unit that gets a vector -> the ways to pool token vectors, the default first.
POOLS: dict[str, tuple[str, ...]] = {
    "sentence": ("mean", "cls", "max"),
    "word": ("first", "mean", "max"),
    "token": ("",),
}


@dataclasses.dataclass
class EmbeddingConfig:
    """Selects which vectors to compute.

    Attributes:
        per: unit that gets one vector: "sentence" (the whole text), "word" or "token".
        pool: how token vectors are pooled. For sentences "mean" (over all tokens, [CLS] and [SEP] included), "cls" or
            "max"; for words "first" (the first wordpiece, as in the paper's tagger), "mean" or "max"; "" for the first
            of these.
        features: the layers that make up a token's vector.
        max_length: tokens per window, special tokens included; 0 for the model's maximum. Longer texts are split into
            overlapping windows; each token's vector comes from the window where it has the most context.
    """

    per: str = "sentence"
    pool: str = ""
    features: FeatureConfig = dataclasses.field(default_factory=FeatureConfig)
    max_length: int = 0


class Embedder:
    """Computes vectors from texts.

    Attributes:
        model: maps the encoder's inputs to token vectors, float32 [batch, length, size].
        counted: as `FineTuningTask.counted`.
    """

    name = "vectors"

    def __init__(self, encoder: BertEncoder, tokenizer: Tokenizer, config: EmbeddingConfig) -> None:
        if config.per not in POOLS:
            raise ConfigError(f"per {config.per!r} is unknown; choose one of {', '.join(POOLS)}")
        self._per, self._pool = config.per, config.pool or POOLS[config.per][0]
        if self._pool not in POOLS[config.per]:
            choices = f"choose one of {', '.join(POOLS[config.per])}"
            if config.per == "token":
                choices = "leave it out, because token vectors are not pooled"
            raise ConfigError(f"pool {config.pool!r} does not apply to per {config.per!r}; {choices}")
        limit = encoder.config.max_position_embeddings
        self._length = config.max_length or limit
        if not 3 <= self._length <= limit:
            raise ConfigError(f"max_length is {config.max_length}; expected 3 to {limit}, the model's maximum")
        self.tokenizer, self._features = tokenizer, config.features
        self.model = feature_model(encoder, config.features)
        self.counted: dict[str, tuple[str, ...]] = {}
        if self._per != "sentence":
            self.counted = {f"{self._per}_count": ("vector", "text", "start", "end")}

    @functools.cached_property
    def traced(self) -> TfFunction:
        """`__call__` as a graph."""
        return traced_function(self.__call__, reduce_retracing=True)

    def settings(self) -> Json:
        """JSON-ready description of the vectors, for the model card."""
        return {"per": self._per, "pool": self._pool, "max_length": self._length, "features": to_dict(self._features)}

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        """Inputs of the exported model."""
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        """Signatures of the exported model, as in `tasks.task.Task`.

        From text or words, the outputs are those of `__call__`, padded with 0 and "". From token ids, the output is
        the sentence's vector, or else a vector per token, 0 at padding.
        """

        def from_tokens(features: Tensors) -> Tensors:
            return map_in_chunks(lambda part: {"vector": self._of_tokens(infer(model, part), part)}, features)

        from_text = signature(lambda text: padded(self(text), self.counted), self.inputs())
        made = {DEFAULT: from_text, TOKENS: token_signature(model, from_tokens)}
        if self._per == "word":
            made[WORDS] = signature(lambda words: padded(self(**given_words(words)), self.counted), (WORD_LISTS,))
        return made

    def _of_tokens(self, states: tf.Tensor, features: Tensors) -> tf.Tensor:
        is_token = features["input_mask"] > 0
        if self._per != "sentence":
            return tf.where(is_token[..., tf.newaxis], states, 0.0)
        vectors = self._pooled(states, is_token)
        count = tf.reduce_sum(tf.cast(is_token, tf.float32), 1)[:, tf.newaxis]
        return tf.math.divide_no_nan(vectors, count) if self._pool == "mean" else vectors

    def token_features(self, columns: Tensors) -> Tensors:
        """Features of the first window of each text, as in `tasks.task.Task`."""
        return self.tokenizer.encode(columns["text"], max_length=self._length)

    def __call__(
        self,
        text: tf.Tensor,
        word_starts: tf.RaggedTensor | None = None,
        word_ends: tf.RaggedTensor | None = None,
    ) -> Tensors:
        """Computes the vectors of a batch of texts.

        Args:
            text: string [batch].
            word_starts, word_ends: int32 [batch, None], byte offsets of given words, for vectors per word; None splits
                the texts into words as `text.words.word_numbers` does.

        Returns:
            vector: float32 [batch, size] per sentence, else ragged [batch, None, size]. Per word or token also text
            (string), start and end (int32, in characters of the text), ragged [batch, None]. A word without any
            wordpiece has a vector of zeros.
        """
        ids, starts, ends = pieces_with_accents(self.tokenizer, text)
        budget = self._length - 2
        rows = windows(ids.row_lengths(), budget, (budget + 1) // 2)
        packed, types = pack(cut(ids, *rows), cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id)
        chosen = most_context(*rows)
        vectors = self._window_vectors(packed, types, chosen)
        if self._per == "sentence":
            return {"vector": self._sentence_vectors(vectors, chosen, rows[0], tf.size(text))}
        if self._per == "word":
            if word_starts is None:
                word_starts, word_ends = extents(word_numbers(self.tokenizer, text, ids, starts, ends), starts, ends)
            vectors = self._word_vectors(vectors, word_of(starts, word_starts, text), tf.size(word_starts.values))
            starts, ends = word_starts, word_ends
        values = spans(text, starts.value_rowids(), starts.values, ends.values) | {"vector": vectors}
        return {name: starts.with_values(value) for name, value in values.items()}

    def _window_vectors(self, ids: tf.RaggedTensor, types: tf.RaggedTensor, chosen: tf.RaggedTensor) -> tf.Tensor:
        """Runs the model on windows and keeps only what the vectors are made from.

        Args:
            ids, types: int32 [windows, None], packed.
            chosen: bool [windows, None], whether a token's vector is taken from this window; without special tokens.

        Returns:
            float32 [tokens, size], the chosen tokens' vectors. Per sentence [windows, size]: the first token's vector,
            or the maximum or sum over the chosen tokens and the special tokens.
        """

        def compute(first: tf.Tensor, last: tf.Tensor) -> Tensors:
            features = dense_features(ids[first:last], types[first:last], length_multiple=4, max_length=self._length)
            return {"kept": self._kept(infer(self.model, features), chosen[first:last])}

        return chunked_map(compute, ids.nrows(), ids.bounding_shape(axis=1))["kept"]

    def _kept(self, states: tf.Tensor, chosen: tf.RaggedTensor) -> tf.Tensor:
        """float32 [tokens or windows, size]: the result of `_window_vectors` for a few windows."""
        if self._per != "sentence":
            return tf.boolean_mask(states, _with_special_tokens(chosen, False, states))
        return self._pooled(states, _with_special_tokens(chosen, True, states))

    def _pooled(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """float32 [rows, size]: the first token's vector, or the maximum or sum where `mask`, bool [rows, length]."""
        if self._pool == "cls":
            return states[:, 0]
        mask = mask[..., tf.newaxis]
        if self._pool == "max":
            return tf.reduce_max(tf.where(mask, states, states.dtype.min), 1)
        return tf.reduce_sum(states * tf.cast(mask, states.dtype), 1)

    def _sentence_vectors(
        self, pooled: tf.Tensor, chosen: tf.RaggedTensor, row: tf.Tensor, count: tf.Tensor
    ) -> tf.Tensor:
        """float32 [count, size]; every window of a text contributes its own [CLS] and [SEP]."""
        if self._pool == "cls":
            return tf.math.unsorted_segment_mean(pooled, row, count)
        if self._pool == "max":
            return tf.math.unsorted_segment_max(pooled, row, count)
        tokens = tf.reduce_sum(tf.cast(chosen, tf.float32), 1)[:, tf.newaxis] + 2.0
        return tf.math.unsorted_segment_sum(pooled, row, count) / tf.math.unsorted_segment_sum(tokens, row, count)

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
    """bool [windows, length] from `chosen`, bool [windows, None]: `value` at [CLS] and [SEP], False at padding."""
    edge = tf.fill([chosen.nrows(), 1], value)
    return tf.concat([edge, chosen, edge], 1).to_tensor(shape=tf.stack([-1, tf.shape(states)[1]]))
