"""Vectors of texts, of their words or of their tokens, in graph code: for `extract`, and as a SavedModel."""

import dataclasses

import tensorflow as tf

from bert_tf.config import FeatureConfig, to_dict
from bert_tf.errors import ConfigError
from bert_tf.inputs.packing import dense_features, pack
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.model.chunks import chunked_map, map_in_chunks
from bert_tf.model.features import feature_model
from bert_tf.tasks.signatures import DEFAULT, TOKENS, padded, signature, token_signature
from bert_tf.text.words import extents, pieces_with_accents, spans, word_numbers, word_of

# What a vector is of -> how it can be made of tokens' vectors.
POOLS = {"sentence": ("mean", "cls", "max"), "word": ("first", "mean", "max"), "token": ("",)}


@dataclasses.dataclass
class EmbeddingConfig:
    """Which vectors.

    Attributes:
        per: what a vector is of: "sentence" (the whole text), "word" or "token".
        pool: of a sentence "mean" (over all tokens, [CLS] and [SEP] among them), "cls" or "max"; of a word "first"
            (its first piece, as the paper's tagger takes it), "mean" or "max"; "" for the first of these.
        features: what a token's vector is.
        max_length: tokens of a window, specials counted; 0 for as many as the model takes. Longer texts are several
            windows; each token is taken where it has most context.
    """

    per: str = "sentence"
    pool: str = ""
    features: FeatureConfig = dataclasses.field(default_factory=FeatureConfig)
    max_length: int = 0


class Embedder:
    """Text in, vectors out.

    Args:
        encoder: BertEncoder.
        tokenizer: Tokenizer.
        config: EmbeddingConfig.

    Raises:
        ConfigError: for settings that fit neither each other nor the encoder.
    """

    def __init__(self, encoder, tokenizer, config):
        if config.per not in POOLS:
            raise ConfigError(f"vectors per {config.per!r} are unknown; choose one of {', '.join(POOLS)}")
        self._per, self._pool = config.per, config.pool or POOLS[config.per][0]
        if self._pool not in POOLS[config.per]:
            choices = (
                f"choose one of {', '.join(POOLS[config.per])}" if config.per != "token" else "a token has its own"
            )
            raise ConfigError(f"pool {config.pool!r} is not for vectors per {config.per}; {choices}")
        limit = encoder.config.max_position_embeddings
        self._length = config.max_length or limit
        if not 3 <= self._length <= limit:
            raise ConfigError(f"max_length is {config.max_length}; it must be from 3 to the model's {limit}")
        self.tokenizer, self._features = tokenizer, config.features
        self.model = feature_model(encoder, config.features)
        self.counted = {} if self._per == "sentence" else {f"{self._per}_count": ("vector", "text", "start", "end")}

    name = "vectors"

    def settings(self):
        """What vectors these are, JSON-ready."""
        return {"per": self._per, "pool": self._pool, "max_length": self._length, "features": to_dict(self._features)}

    def inputs(self):
        """What the exported model is asked with."""
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def signatures(self, model):
        """As of `tasks.task.Task`: of text what calling the object returns, padded with 0 and ""; of token ids the same
        vector per sentence, and else that of each token, 0 at padding.
        """

        def from_tokens(features):
            return map_in_chunks(lambda part: {"vector": self._of_tokens(model(part, training=False), part)}, features)

        from_text = signature(lambda text: padded(self(text), self.counted), self.inputs())
        return {DEFAULT: from_text, TOKENS: token_signature(model, from_tokens)}

    def _of_tokens(self, states, features):
        there = features["input_mask"] > 0
        if self._per != "sentence":
            return tf.where(there[..., tf.newaxis], states, 0.0)
        found = self._pooled(states, there)
        count = tf.reduce_sum(tf.cast(there, tf.float32), 1)[:, tf.newaxis]
        return tf.math.divide_no_nan(found, count) if self._pool == "mean" else found

    def token_features(self, columns):
        """As of `tasks.task.Task`."""
        ids = self.tokenizer.tokenize(columns["text"])[:, : self._length - 2]
        return dense_features(*pack(ids, cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id))

    def __call__(self, text, word_starts=None, word_ends=None):
        """The vectors of some texts.

        Args:
            text: string [batch].
            word_starts, word_ends: RaggedTensors int32 [batch, None], bytes of the text, for vectors of given words;
                None for words as `text.words.word_numbers` finds them.

        Returns:
            dict: vector, float32 [batch, size] per sentence; else RaggedTensor [batch, None, size], and beside it text
            (string), start and end (int32, characters of the text), RaggedTensors [batch, None]. A word that no piece
            is made of has a vector of zeros.
        """
        ids, starts, ends = pieces_with_accents(self.tokenizer, text)
        budget = self._length - 2
        rows = windows(ids.row_lengths(), budget, (budget + 1) // 2)
        packed, types = pack(cut(ids, *rows), cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id)
        chosen = most_context(*rows)
        found = self._computed(packed, types, chosen)
        if self._per == "sentence":
            return {"vector": self._sentences(found, chosen, rows[0], tf.size(text))}
        if self._per == "word":
            if word_starts is None:
                word_starts, word_ends = extents(word_numbers(self.tokenizer, text, ids, starts, ends), starts, ends)
            found = self._words(found, word_of(starts, word_starts, text), tf.size(word_starts.values))
            starts, ends = word_starts, word_ends
        values = spans(text, starts.value_rowids(), starts.values, ends.values) | {"vector": found}
        return {name: starts.with_values(value) for name, value in values.items()}

    def _computed(self, ids, types, chosen):
        """What is kept of the windows.

        Args:
            ids, types: RaggedTensors int32 [windows, None], packed.
            chosen: RaggedTensor bool [windows, None], the tokens, without specials, that are taken from each window.

        Returns:
            float32 [tokens, size], the chosen ones'; per sentence [windows, size]: of the window's first token, or over
            the chosen ones and the specials the largest value or the sum.
        """

        def compute(first, last):
            features = dense_features(ids[first:last], types[first:last], length_multiple=4, max_length=self._length)
            return {"kept": self._kept(self.model(features, training=False), chosen[first:last])}

        return chunked_map(compute, ids.nrows(), ids.bounding_shape(axis=1))["kept"]

    def _kept(self, states, chosen):
        """What `_computed` returns of some windows: float32 [tokens or windows, size]."""
        if self._per != "sentence":
            return tf.boolean_mask(states, _framed(chosen, False, states))
        return self._pooled(states, _framed(chosen, True, states))

    def _pooled(self, states, counted):
        """float32 [rows, size]: the first token's, or of the counted ones (bool [rows, length]) the largest or sum."""
        if self._pool == "cls":
            return states[:, 0]
        counted = counted[..., tf.newaxis]
        if self._pool == "max":
            return tf.reduce_max(tf.where(counted, states, states.dtype.min), 1)
        return tf.reduce_sum(states * tf.cast(counted, states.dtype), 1)

    def _sentences(self, found, chosen, row, count):
        """float32 [count, size]; of a text of several windows each has its own [CLS] and [SEP]."""
        if self._pool == "cls":
            return tf.math.unsorted_segment_mean(found, row, count)
        if self._pool == "max":
            return tf.math.unsorted_segment_max(found, row, count)
        counted = tf.reduce_sum(tf.cast(chosen, tf.float32), 1)[:, tf.newaxis] + 2.0
        return tf.math.unsorted_segment_sum(found, row, count) / tf.math.unsorted_segment_sum(counted, row, count)

    def _words(self, tokens, word, count):
        """float32 [count, size] from those of tokens, each in the word of that place."""
        if self._pool == "first":
            first = tf.concat([word[:1] >= 0, word[1:] != word[:-1]], 0)
            tokens, word = tf.boolean_mask(tokens, first), tf.boolean_mask(word, first)
        if self._pool != "max":
            return tf.math.unsorted_segment_mean(tokens, word, count)
        best = tf.math.unsorted_segment_max(tokens, word, count)
        return tf.where(best > best.dtype.min, best, 0.0)


def _framed(chosen, specials, states):
    """bool [windows, length] of RaggedTensor [windows, None]: with what [CLS] and [SEP] get; False at padding."""
    edge = tf.fill([chosen.nrows(), 1], specials)
    return tf.concat([edge, chosen, edge], 1).to_tensor(shape=tf.stack([-1, tf.shape(states)[1]]))
