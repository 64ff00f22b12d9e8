"""The signatures of an exported model: tf.functions from the client's inputs to its answers.

    serving_default     texts in, the task's answers out
    words               lists of words in, for tags and vectors of words
    tokens              token ids in, for clients that tokenize themselves
    classify, regress   serialized tf.train.Examples in, for TF Serving's Classify and Regress APIs
    attention           texts in, tokens and attention probabilities out

Each checks the shapes of its inputs: a server passes tensors of any shape to the graph.
"""

import abc
import copy
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert_tf.model.chunks import chunked_map
from bert_tf.model.encoder import attention_probabilities, encoder_inputs, encoder_of
from bert_tf.quiet import traced_function
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Array, Tensors, TfFunction

DEFAULT, WORDS, TOKENS = "serving_default", "words", "tokens"
CLASSIFY, REGRESS, ATTENTION = "classify", "regress", "attention"
# Memory of an answer, in bytes, of which a server takes several times as much. No server sends more.
_LARGEST_ANSWER = 2**30
_STRING_BYTES = 24  # of TensorFlow's strings, without text that does not fit in these
# The input of the signature `words`, padded with "".
WORD_LISTS = tf.TensorSpec([None, None], tf.string, name=WORDS)


class Served(abc.ABC):
    """Base class of codecs: what an export needs of a model, the way from a client's inputs to answers.

    Attributes:
        tokenizer: tokenizes its texts.
        counted: answers with as many items as an example needs: name of the served count -> names of these answers.
        attends: whether an export can have the signature `attention`.
        reads_masks: whether it answers about the mask tokens in a text.
    """

    tokenizer: BaseTokenizer
    counted: Mapping[str, tuple[str, ...]] = types.MappingProxyType({})
    attends: ClassVar[bool] = True
    reads_masks: ClassVar[bool] = False

    @abc.abstractmethod
    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        """Inputs of the exported model: named specs, each [batch, ...]."""

    @abc.abstractmethod
    def token_features(self, columns: Tensors) -> Tensors:
        """Features of the exported model's inputs; of a text with several windows, those of its first.

        Args:
            columns: by the names of `inputs`.

        Returns:
            Dense tensors [batch, ...], the encoder's inputs among them.
        """

    @abc.abstractmethod
    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        """Signatures of the exported model, by name (see `tasks.signatures`)."""

    def token_outputs(self, model: keras.Model, features: Tensors) -> Tensors:
        """What an export from token ids alone returns, float32 by name, for a runtime without ops for text.

        Default: the outputs of the model.

        Args:
            features: the model's inputs.
        """
        return model(features, training=False)


def signature(function: Callable[..., Tensors], specs: Sequence[tf.TensorSpec]) -> TfFunction:
    """A tf.function that checks that its inputs have these shapes and the same number of rows.

    Args:
        function: takes one tensor per spec, in their order.
        specs: the input signature, named.
    """

    def serve(*values: tf.Tensor) -> Tensors:
        # Unlike an assertion on the rank, this is not optimized away because the signature promises the shape.
        first, *others = (tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True))
        checks = [
            tf.debugging.assert_equal(
                tf.shape(value)[0],
                tf.shape(first)[0],
                f"{spec.name} has a different number of rows than {specs[0].name}",
            )
            for value, spec in zip(others, specs[1:], strict=True)
        ]
        with tf.control_dependencies(checks):
            return function(*map(tf.identity, (first, *others)))

    return traced_function(serve, input_signature=specs)


def token_signature(model: keras.Model, answer: Callable[[Tensors], Tensors]) -> TfFunction:
    """From the encoder's inputs to answers.

    Args:
        model: a model whose inputs include the encoder's.
        answer: maps the encoder's inputs, int32 [rows, ..., length], to tensors [rows, ...].
    """
    config = encoder_of(model).config
    limit = config.max_position_embeddings
    shapes = {tensor.name: tensor.shape for tensor in model.inputs}
    specs = [tf.TensorSpec(shapes[name], tf.int32, name=name) for name in encoder_inputs()]
    sizes = {"input_word_ids": config.vocab_size, "input_mask": 2}
    if config.type_vocab_size > 1:  # else they are not used
        sizes["input_type_ids"] = config.type_vocab_size

    def serve(*values: tf.Tensor) -> Tensors:
        features = {spec.name: value for spec, value in zip(specs, values, strict=True)}
        shape = tf.shape(values[0])
        message = f"input_word_ids: a row has more than {limit} tokens, the most that the model takes"
        checks = [tf.debugging.assert_less_equal(shape[-1], limit, message=message)]
        for spec, value in zip(specs[1:], values[1:], strict=True):
            message = f"{spec.name}: its shape differs from that of input_word_ids"
            checks.append(tf.debugging.assert_equal(tf.shape(value), shape, message=message))
        for name, size in sizes.items():
            message = f"{name}: a value is not from 0 to {size - 1}"
            within = tf.reduce_all((features[name] >= 0) & (features[name] < size))
            checks.append(tf.debugging.Assert(within, [message]))
        if len(specs[0].shape) == 2:  # with several sequences per example, an empty one is a missing one
            has_token = tf.reduce_any(features["input_mask"] > 0, 1)
            checks.append(tf.debugging.Assert(tf.reduce_all(has_token), ["input_mask: a row has no token"]))
        # At least one token, because a model reads the first, even in a request without rows.
        missing = tf.concat([[0], tf.maximum(1 - shape[1:], 0)], 0)
        paddings = tf.stack([tf.zeros_like(missing), missing], 1)
        with tf.control_dependencies(checks):
            return answer({name: tf.pad(value, paddings) for name, value in features.items()})

    return signature(serve, specs)


def attention_signature(codec: Served, model: keras.Model) -> TfFunction:
    """From texts to the tokens and attention probabilities of the first window of each.

    If an example is several sequences, such as choices, each output has one more dimension for these.

    Returns:
        tf.function that maps the codec's inputs to a dict: tokens string (as to be shown), continues bool (whether a
        token continues the word of the one before it), ids int32, types int32 (segment ids), starts and ends int32
        (byte offsets in the token's text), texts int32 (index of that text among the inputs; -1 for the special tokens)
        [batch, length]; token_count int32 [batch]; attention_bytes string [batch]: uint8 [layers,
        heads, tokens, tokens] in C order, 255 for probability 1, each token's attention in the last dimension;
        attention_shape int32 [batch, 4].
    """
    encoder = encoder_of(model)

    def serve(*values: tf.Tensor) -> Tensors:
        tokenizer = _NumberingTokenizer(codec.tokenizer)
        numbering = copy.copy(codec)
        numbering.tokenizer = tokenizer  # type: ignore[assignment]  # has what codecs use of a Tokenizer
        columns = dict(zip((spec.name for spec in codec.inputs()), values, strict=True))
        features = numbering.token_features(columns)
        features, tokens = tokenizer.resolved({name: features[name] for name in encoder_inputs()})
        outer = tf.shape(features["input_word_ids"])[:-1]  # [batch], or [batch, sequences]
        length = tf.shape(features["input_word_ids"])[-1]
        flat = {name: tf.reshape(value, tf.stack([-1, length])) for name, value in features.items()}

        def compute(first: tf.Tensor, last: tf.Tensor) -> Tensors:
            part = {name: value[first:last] for name, value in flat.items()}
            counts = tf.reduce_sum(part["input_mask"], 1)
            levels = tf.cast(tf.round(attention_probabilities(encoder, part) * 255), tf.uint8)
            encoded = tf.map_fn(_attention_bytes, (levels, counts), fn_output_signature=tf.TensorSpec([], tf.string))
            return {"attention_bytes": encoded, "token_count": counts}

        rows = tf.shape(flat["input_word_ids"])[0]
        heads = max(encoder.config.layer_heads)
        # These strings are in memory four times until they are an answer.
        size = 4 * encoder.config.num_layers * heads
        squares = tf.square(tf.reduce_sum(tf.cast(flat["input_mask"], tf.int64), 1))
        with tf.control_dependencies([check_size(size * tf.reduce_sum(squares))]):
            rows = tf.identity(rows)
        # Most of the memory is for the probabilities, of which there are many more than tokens.
        attention = chunked_map(compute, rows, length * length // 8 + length)
        counts = attention["token_count"]
        shape = [tf.fill([rows], size) for size in (encoder.config.num_layers, heads)]
        attention["attention_shape"] = tf.stack([*shape, counts, counts], 1)
        return tokens | {
            name: tf.reshape(value, tf.concat([outer, tf.shape(value)[1:]], 0)) for name, value in attention.items()
        }

    return signature(serve, codec.inputs())


def _attention_bytes(levels_and_count: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    """string scalar: the attention uint8 [layers, heads, length, length] of one sequence, cut to its tokens."""
    levels, count = levels_and_count
    levels = levels[..., :count, :count]
    # No op makes a string from numbers. A serialized tensor ends with its values as they are in memory.
    serialized = tf.io.serialize_tensor(levels)
    size = tf.size(levels)
    return tf.strings.substr(serialized, tf.strings.length(serialized) - size, size)


class _NumberingTokenizer:
    """A tokenizer that returns a unique number for each token instead of its id.

    Codecs pack, cut and pad ids without reading them. So the numbers in the features identify each token and its text.
    """

    def __init__(self, tokenizer: BaseTokenizer) -> None:
        self._tokenizer = tokenizer
        self._calls: list[tuple[tf.Tensor, ...]] = []  # of the tokens of each call: what `resolved` looks up

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def tokenize(self, strings: tf.Tensor, special_tokens: bool = False) -> tf.RaggedTensor:
        return self.tokenize_with_offsets(strings, special_tokens)[0]

    def tokenize_with_offsets(
        self, strings: tf.Tensor, special_tokens: bool = False
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        ids, starts, ends = self._tokenizer.tokenize_with_offsets(strings, special_tokens)
        text = tf.fill(tf.shape(ids.values), len(self._calls))
        before = sum((tf.size(call[0]) for call in self._calls), self._tokenizer.vocab_size)
        continues = ~self._tokenizer.word_starts(ids).values
        self._calls.append((ids.values, starts.values, ends.values, text, continues))
        return ids.with_values(before + tf.range(tf.size(ids.values))), starts, ends

    @property
    def continues(self) -> tf.Tensor:
        known = self._tokenizer.continues
        return tf.concat([known, *(tf.gather(known, ids) for ids, *_ in self._calls)], 0)

    def resolved(self, features: Tensors) -> tuple[Tensors, Tensors]:
        """The encoder's inputs with ids for numbers, and the tokens as `attention_signature` returns them."""
        numbers = features["input_word_ids"]
        size = self._tokenizer.vocab_size
        none = tf.zeros([size], tf.int32)
        special = tf.range(size), none, none, none - 1, none > 0
        columns = zip(special, *self._calls, strict=True)
        ids, starts, ends, texts, continues = (tf.gather(tf.concat(column, 0), numbers) for column in columns)
        is_token = features["input_mask"] > 0
        tokens = tf.where(is_token, tf.gather(tf.constant(self._tokenizer.readable), ids), "")
        texts, continues = tf.where(is_token, texts, -1), is_token & continues
        answer = {"tokens": tokens, "continues": continues, "ids": ids, "types": features["input_type_ids"]}
        return features | {"input_word_ids": ids}, answer | {"starts": starts, "ends": ends, "texts": texts}


def padded(answers: Tensors, counted: Mapping[str, tuple[str, ...]] | None = None) -> Tensors:
    """Pads RaggedTensors with 0 or "", as a server returns them, and adds the number of items before the padding.

    Args:
        answers: tensors and RaggedTensors [examples, ...].
        counted: as in `Served`; None to add no counts.
    """
    # Outputs with the same number of items in each row are counted together, for a small graph.
    items: dict[int, tuple[tf.RaggedTensor, int]] = {}
    for value in answers.values():
        if isinstance(value, tf.RaggedTensor):
            key = id(value.row_splits)
            first, size = items.get(key, (value, 0))
            items[key] = first, size + _item_bytes(value)
    sizes = [
        first.nrows(tf.int64) * tf.cast(tf.reduce_max(first.row_lengths()), tf.int64) * size
        for first, size in items.values()
    ]
    # A long text makes all rows as long: one of 200 kB among a thousand would take gigabytes.
    with tf.control_dependencies([check_size(sum(sizes[1:], sizes[0]))] if sizes else []):
        made = {name: dense(value) for name, value in answers.items()}
    for name, (first, *_) in (counted or {}).items():
        if first in answers:
            made[name] = tf.cast(answers[first].row_lengths(), tf.int32)
    return made


def check_size(size: tf.Tensor) -> tf.Operation:
    """An operation that fails if an answer would take too much memory.

    Args:
        size: int64 scalar, in bytes.
    """
    most = _LARGEST_ANSWER // 2**20
    message = f"the answer would take more than {most} MB of memory; ask for fewer rows at a time, of similar lengths"
    return tf.debugging.Assert(size <= _LARGEST_ANSWER, [message])


def _item_bytes(value: tf.RaggedTensor) -> int:
    size = _STRING_BYTES if value.dtype == tf.string else value.dtype.size
    return size * math.prod(value.values.shape[1:])


def dense(value: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    """A tensor whose rows are padded with 0 or ""."""
    return value.to_tensor() if isinstance(value, tf.RaggedTensor) else value


def unpadded(answers: dict[str, Array], counted: Mapping[str, tuple[str, ...]]) -> dict[str, Array]:
    """Reverses `padded`, for arrays; ragged values are arrays of arrays."""
    counts = {member: answers[name] for name, members in counted.items() for member in members if name in answers}
    made = {}
    for name, values in answers.items():
        if name in counted:
            continue
        if name in counts:
            rows = [row[:count] for row, count in zip(values, counts[name], strict=True)]
            values = np.empty(len(rows), object)
            for index, row in enumerate(rows):
                values[index] = row
        made[name] = values
    return made
