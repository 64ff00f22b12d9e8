"""Vectors of sentences, words or tokens, computed in graph code; used by `extract` and exported as a SavedModel."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor import Tensor, as_dtype, tensor_of, tensor_of_variable
from bert_tf.config import EmbeddingConfig, to_dict
from bert_tf.config.values import unknown_field
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.model.activations import activation
from bert_tf.model.chunks import chunked_map, map_in_chunks
from bert_tf.model.encoder import BertEncoder, feature_model
from bert_tf.model.mode import infer
from bert_tf.quiet import traced_function
from bert_tf.tasks.signatures import DEFAULT, TOKENS, WORD_LISTS, WORDS, check_size, padded, signature, token_signature
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.packing import dense_features, truncate
from bert_tf.text.words import extents, given_words, quotable_pieces, spans, word_numbers, word_of
from bert_tf.types import Json, StrPath, Tensors, TfFunction


def _only_first(counts: tf.Tensor, reverse: bool = False) -> tf.Tensor:
    """float32 [rows, length]: 1 at the first (or last) True of each row."""
    number = tf.cumsum(tf.cast(counts, tf.int32), 1, reverse=reverse)
    return tf.cast(counts & (number == 1), tf.float32)


# Weights of the tokens, float32 [rows, length], from those that count, bool [rows, length]: the vector of a sentence is
# the weighted sum, divided by the sum of the weights. The maximum has none.
_WEIGHTS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "mean": lambda counts: tf.cast(counts, tf.float32),
    "mean_sqrt_len": lambda counts: tf.cast(counts, tf.float32),
    "weightedmean": lambda counts: tf.where(counts, tf.range(1.0, tf.cast(tf.shape(counts)[1], tf.float32) + 1.0), 0.0),
    "cls": _only_first,
    "lasttoken": functools.partial(_only_first, reverse=True),
}


def open_embedder(path: StrPath, per: str = "sentence", **settings: Any) -> "Embedder":
    """Opens a model to compute vectors.

    Args:
        path: as for `checkpoints.load`.
        per: as in `EmbeddingConfig`. Vectors of sentences are computed in the way that the model was published for.
        **settings: fields of `EmbeddingConfig` with other values.
    """
    checkpoint = open_with_warnings(path, vectors=per == "sentence")
    tokenizer = checkpoint.tokenizer_of_text(path)
    config = EmbeddingConfig(per)
    if per == "sentence":
        if checkpoint.no_vectors:
            raise DataError(checkpoint.no_vectors)
        config = checkpoint.vectors or config
    for name in settings.keys() - {field.name for field in dataclasses.fields(EmbeddingConfig)}:
        raise ConfigError(unknown_field(EmbeddingConfig, name, "vectors"))
    return Embedder(
        checkpoint.encoder(dtype="float32"), tokenizer, dataclasses.replace(config, **settings), checkpoint.tensors
    )


class Embedder:
    """Computes vectors from texts.

    Attributes:
        model: maps the encoder's inputs to token vectors, float32 [batch, length, size].
        counted: as in `tasks.signatures.Served`.
        codec: itself, a `Served`.
    """

    name = "vectors"

    def __init__(
        self,
        encoder: BertEncoder,
        tokenizer: BaseTokenizer,
        config: EmbeddingConfig,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Builds the model on an encoder.

        Args:
            encoder: its variables are shared.
            tokenizer: of the encoder.
            config: which vectors.
            tensors: by path; those of `config.dense` are used.
        """
        config.check()
        limit = encoder.config.max_position_embeddings
        length = config.max_length or limit
        if not 3 <= length <= limit:
            raise ConfigError(f"max_length is {config.max_length}; expected 3 to {limit}, the model's maximum")
        self.config = dataclasses.replace(config, pool="+".join(config.pools), max_length=length)
        self._per, self._pool, self._length = config.per, config.pools[0], length
        self.encoder, self.tokenizer = encoder, tokenizer
        self.model = feature_model(encoder, config.features)
        self._dense = _dense_layers(self.config, encoder.config.hidden_size, tensors or {})
        self._prompt_tokens = 0  # in front of what is pooled
        if config.prompt and not config.include_prompt:
            self._prompt_tokens = 1 + int(tokenizer.tokenize([config.prompt]).row_lengths()[0])  # and the first
        self.codec = self
        self.counted: dict[str, tuple[str, ...]] = {}
        if self._per != "sentence":
            self.counted = {f"{self._per}_count": ("vector", "text", "start", "end")}

    def with_prompt(self, name: str) -> "Embedder":
        """The same model with another prompt, by its name in the config; "" for none."""
        config = dataclasses.replace(self.config, prompt_name=name)
        return Embedder(self.encoder, self.tokenizer, config, self._tensors())

    @property
    def size(self) -> int:
        """Number of values of a vector."""
        return self._dense[-1].units if self._dense else len(self.config.pools) * self.model.output_shape[-1]

    def checkpoint(self) -> Checkpoint:
        """The model with its settings, to be written."""
        return Checkpoint(
            config=self.encoder.config,
            tensors={variable.path: tensor_of_variable(variable) for variable in self.encoder.weights}
            | self._tensors(),
            tokenizer=self.tokenizer,
            vectors=self.config,
        )

    def _tensors(self) -> dict[str, Tensor]:
        """Tensors of the dense layers by path."""
        paths = self.config.shapes(self.encoder.config.hidden_size)
        weights = [weight for layer in self._dense for weight in layer.weights]
        return {path: tensor_of(weight.numpy(), path) for path, weight in zip(paths, weights, strict=True)}

    @functools.cached_property
    def traced(self) -> TfFunction:
        """`__call__` as a graph."""
        return traced_function(self.__call__, reduce_retracing=True)

    def settings(self) -> Json:
        """JSON-ready description of the vectors, for the model card."""
        return to_dict(self.config)

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        """Inputs of the exported model."""
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        """Signatures of the exported model, as in `tasks.signatures.Served`.

        From text or words, the outputs are those of `__call__`, padded with 0 and "". From token ids, the output is
        the sentence's vector, or else a vector per token, 0 at padding.
        """

        def from_tokens(features: Tensors) -> Tensors:
            positions = tf.size(features["input_mask"], tf.int64)
            rows = tf.shape(features["input_mask"], tf.int64)[0]
            size = 4 * self.size * (rows if self._per == "sentence" else positions)
            with tf.control_dependencies([check_size(size)]):
                features = {name: tf.identity(value) for name, value in features.items()}
            return map_in_chunks(lambda part: {"vector": self._of_tokens(infer(model, part), part)}, features)

        from_text = signature(lambda text: padded(self(text), self.counted), self.inputs())
        made = {DEFAULT: from_text, TOKENS: token_signature(model, from_tokens)}
        if self._per == "word":
            made[WORDS] = signature(lambda words: padded(self(**given_words(words)), self.counted), (WORD_LISTS,))
        return made

    def _of_tokens(self, states: tf.Tensor, features: Tensors) -> tf.Tensor:
        vectors = self.sentence_vectors(states, features["input_mask"])
        return tf.where(features["input_mask"][..., tf.newaxis] > 0, states, 0.0) if vectors is None else vectors

    def sentence_vectors(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor | None:
        """float32 [rows, size], the vectors of sentences of one row each; None if this computes other vectors.

        Args:
            states: float32 [rows, length, size], of the model.
            mask: int32 [rows, length], 0 at padding.
        """
        return self._finished(self._pooled(states, mask > 0)) if self._per == "sentence" else None

    def token_features(self, columns: Tensors) -> Tensors:
        """Features of the first window of each text, as in `tasks.signatures.Served`."""
        return self.tokenizer.encode(self._prompted(columns["text"]), max_length=self._length)

    def _prompted(self, text: tf.Tensor) -> tf.Tensor:
        return self.config.prompt + text if self.config.prompt else text

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
        ids, starts, ends = quotable_pieces(self.tokenizer, self._prompted(text))
        budget = self._length - self.tokenizer.specials()
        if self.config.long_texts == "head":
            ids, _, _ = truncate(ids, budget=budget)
        rows = windows(ids.row_lengths(), budget, (budget + 1) // 2)
        packed, types = self.tokenizer.pack(cut(ids, *rows))
        chosen = most_context(*rows)
        kept = self._window_vectors(packed, types, chosen)
        if self._per == "sentence":
            return {"vector": self._finished(_of_texts(kept, rows[0], tf.size(text)))}
        vectors = kept["vector"]
        if self._per == "word":
            if word_starts is None:
                word_starts, word_ends = extents(word_numbers(self.tokenizer, text, ids, starts, ends), starts, ends)
            vectors = self._word_vectors(vectors, word_of(starts, word_starts, text), tf.size(word_starts.values))
            starts, ends = word_starts, word_ends
        values = spans(text, starts.value_rowids(), starts.values, ends.values) | {"vector": vectors}
        return {name: starts.with_values(value) for name, value in values.items()}

    def _window_vectors(self, ids: tf.RaggedTensor, types: tf.RaggedTensor, chosen: tf.RaggedTensor) -> Tensors:
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
            states, part = infer(self.model, features), chosen[first:last]
            if self._per == "sentence":
                return self._pooled(states, _with_special_tokens(part, True, states))
            return {"vector": tf.boolean_mask(states, _with_special_tokens(part, False, states))}

        return chunked_map(compute, ids.nrows(), ids.bounding_shape(axis=1))

    def _pooled(self, states: tf.Tensor, counts: tf.Tensor) -> Tensors:
        """What the vectors of sentences are made from.

        Args:
            states: float32 [rows, length, size].
            counts: bool [rows, length], the tokens that are pooled, apart from those of the prompt.

        Returns:
            By way to pool: float32 [rows, size], the maximum or the weighted sum; and, but for the maximum, by "WAY/of"
            the sum of the weights, float32 [rows, 1].
        """
        if self._prompt_tokens:
            counts &= tf.range(tf.shape(counts)[1]) >= self._prompt_tokens
        pooled: Tensors = {}
        for pool in self.config.pools:
            if pool == "max":
                pooled[pool] = tf.reduce_max(tf.where(tf.expand_dims(counts, -1), states, states.dtype.min), 1)
            else:
                weights = _WEIGHTS[pool](counts)
                pooled[pool] = tf.reduce_sum(states * tf.expand_dims(weights, -1), 1)
                pooled[f"{pool}/of"] = tf.reduce_sum(weights, 1, keepdims=True)
        return pooled

    def _finished(self, pooled: Tensors) -> tf.Tensor:
        """float32 [texts, size], the vectors of sentences from the result of `_pooled` for one row per text."""
        vectors = []
        for pool in self.config.pools:
            vector = pooled[pool]
            if pool != "max":
                of = pooled[f"{pool}/of"]
                if pool == "mean_sqrt_len":
                    vector *= tf.math.rsqrt(tf.maximum(of, 1.0))
                else:
                    vector = tf.math.divide_no_nan(vector, of)
            vectors.append(vector)
        vector = tf.concat(vectors, 1)
        for layer in self._dense:
            vector = layer(vector)
        if self.config.normalize:  # a length counts as 1e-12 at least, as in PyTorch's normalize
            vector *= tf.math.rsqrt(tf.maximum(tf.reduce_sum(tf.square(vector), 1, keepdims=True), 1e-24))
        return vector

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
    """The result of `Embedder._pooled` for windows, joined for each text; every window has special tokens.

    Args:
        kept: for windows.
        row: int64 [windows], the text of each.
        count: number of texts.
    """
    return {
        name: (tf.math.unsorted_segment_max if name == "max" else tf.math.unsorted_segment_sum)(value, row, count)
        for name, value in kept.items()
    }


def _dense_layers(config: EmbeddingConfig, hidden: int, tensors: Mapping[str, Tensor]) -> list[keras.layers.Dense]:
    """The layers of `config.dense` with their weights."""
    layers, shapes = [], config.shapes(hidden)
    for number, settings in enumerate(config.dense):
        path = f"vectors/dense_{number}"
        inputs, expected = shapes[f"{path}/kernel"][0], tensors[f"{path}/kernel"].shape[0]
        if inputs != expected:
            raise ConfigError(
                f"vectors of pool {config.pool!r} have {inputs} values, and the model's dense layer reads {expected}; "
                "leave pool and layers out"
            )
        function = activation(settings.activation) if settings.activation == "erf_gelu" else settings.activation
        layer = keras.layers.Dense(settings.units, function, settings.bias, name=f"dense_{number}", dtype="float32")
        layer.build([None, inputs])
        for name in ("kernel", "bias") if settings.bias else ("kernel",):
            getattr(layer, name).assign(as_dtype(tensors[f"{path}/{name}"], "float32", f"{path}/{name}").read())
        layers.append(layer)
    return layers
