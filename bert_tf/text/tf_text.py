"""The operations of tokenizers by TensorFlow Text, of which this module uses a private API.

The public classes wrap these ops, but cannot return the offsets that the tokenizer needs, nor take its own model.
`tests/text/test_tf_text.py` fails first if a new version of TensorFlow Text changes one of them.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import flatbuffers
import numpy as np
import tensorflow as tf
from tensorflow_text.core.pybinds import pywrap_fast_wordpiece_tokenizer_model_builder as _builder
from tensorflow_text.python.ops.fast_bert_normalizer import gen_fast_bert_normalizer as _normalizer
from tensorflow_text.python.ops.fast_wordpiece_tokenizer import gen_fast_wordpiece_tokenizer as _wordpiece
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer as _sentencepiece

from bert_tf.text.codepoints import quoted
from bert_tf.text.normalization_table import Table
from bert_tf.text.trie import build_trie
from bert_tf.types import Array, WordPieces

# Two characters that a table replaces, such as two quotation marks, enter the op's table as two bytes that no UTF-8
# text contains.
_PAIR = b"\xf8\xf9"


def wordpiece_model(pieces: Sequence[str], max_bytes: int, unknown: str) -> bytes:
    """Builds the model of `wordpiece`.

    Args:
        pieces: the vocabulary by id; pieces inside of words begin with "##".
        max_bytes: words with more bytes become `unknown`.
        unknown: one of the pieces.
    """
    return _builder.build_fast_wordpiece_model(pieces, max_bytes, "##", unknown, False, False)


def wordpiece(texts: tf.Tensor, model: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Splits texts at white space and punctuation into words, and these into pieces.

    Args:
        texts: string [batch].
        model: uint8 [bytes], a `wordpiece_model`.

    Returns:
        ids int32 [pieces], row_splits int64 [batch + 1], starts and ends int64 [pieces] in bytes of the text.
    """
    _, ids, row_splits, starts, ends = _wordpiece.fast_wordpiece_tokenize_with_offsets(
        input_values=texts, wp_model=model
    )
    return tf.cast(ids, tf.int32), row_splits, starts, ends


def normalize(texts: tf.Tensor, model: tf.Tensor, *, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Replaces characters as a model says.

    Args:
        texts: string [batch].
        model: uint8 [bytes], a `normalizer_model`.
        with_offsets: also return the origin of each byte.

    Returns:
        normalized string [batch], offsets int64 [total], row_splits int64 [batch + 1]: see `Normalizer.normalize`.
    """
    return _normalizer.fast_bert_normalize(
        input_values=texts, fast_bert_normalizer_model=model, get_offsets=with_offsets
    )


def normalizer_model(replacements: Mapping[bytes, str], *, deletes_nul: bool) -> Array:
    """The model of `normalize`: uint8 [bytes], the flatbuffer of TF Text's fast_bert_normalizer_model.fbs.

    Args:
        replacements: by single characters other than U+0000, or bytes that are not UTF-8.
        deletes_nul: delete U+0000, which the trie cannot hold.
    """
    pool, offsets = bytearray(), dict[bytes, int]()
    values = {}
    for key, text in replacements.items():
        data = text.encode()
        if data not in offsets:
            offsets[data] = len(pool)
            pool += data
        values[key] = 1 << 30 | offsets[data] << 6 | len(data)  # bit 30: "differs from the character itself"

    builder = flatbuffers.Builder()
    trie = builder.CreateNumpyVector(build_trie(values))
    strings = builder.CreateNumpyVector(np.frombuffer(bytes(pool), np.uint8))
    builder.StartObject(4)  # the op does not read field 0, a bool for the rules that the table follows
    builder.PrependUOffsetTRelativeSlot(1, trie, 0)
    builder.PrependInt32Slot(2, deletes_nul << 30, 0)
    builder.PrependUOffsetTRelativeSlot(3, strings, 0)
    builder.Finish(builder.EndObject())
    return np.frombuffer(bytes(builder.Output()), np.uint8)


@functools.cache
def _model_of(table: Table) -> Array:
    replacements = {char.encode(): text for char, text in table.replacements.items() if len(char) == 1}
    for text in _pairs(table).values():
        replacements |= {_PAIR[:1]: text, _PAIR[1:]: ""}
    return normalizer_model(replacements, deletes_nul=replacements.pop(b"\0", None) == "")


def _pairs(table: Table) -> dict[str, str]:
    return {pair: text for pair, text in table.replacements.items() if len(pair) == 2}


class Replacer:
    """Replaces the characters of a table."""

    def __init__(self, table: Table) -> None:
        self._pairs = "|".join(map(quoted, _pairs(table)))
        with tf.init_scope():  # the model is a constant, even if it is created inside a graph
            self._model = tf.constant(_model_of(table))

    def replace(self, texts: tf.Tensor, *, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replaces in texts, string [batch], valid UTF-8; returns what `normalize` does."""
        if self._pairs:
            texts = tf.strings.regex_replace(texts, self._pairs, _PAIR)
        return normalize(texts, self._model, with_offsets=with_offsets)


@functools.lru_cache(maxsize=4)  # it takes 0.4 s, and programs make a tokenizer for each part that needs one
def _wordpiece_models(pieces: tuple[str, ...], unknown: str, limit: int) -> tuple[Array, slice, Array]:
    """A model of the WordPiece op for ordinary words, and the part of it that differs for long words: uint8.

    Both models are as large as the vocabulary and have only the limit not in common, so an export contains one of them.
    """
    # The op limits words by bytes. With a limit of 200 every word that might have more than 200 characters becomes
    # [UNK], which is how such words are found. Only batches with such a word are tokenized again, by the second model.
    ordinary, long_words = (
        np.frombuffer(wordpiece_model(pieces, size, unknown), np.uint8) for size in (limit, 4 * limit)
    )
    (changed,) = np.nonzero(ordinary != long_words)
    part = slice(int(changed[0]), int(changed[-1]) + 1)
    return ordinary, part, long_words[part]


class WordPiece:
    """Splits normalized texts into words, and these into pieces: the longest that matches from each place on.

    Args:
        pieces: the vocabulary by id; pieces inside of words begin with "##".
        unknown: the piece of words in which no piece matches somewhere, and of those that are too long.
        limit: most characters of a word.
    """

    def __init__(self, pieces: Sequence[str], unknown: str, limit: int) -> None:
        model, self._changed, long_words = _wordpiece_models(tuple(pieces), unknown, limit)
        self._limit, self._unknown = limit, pieces.index(unknown)
        with tf.init_scope():  # the buffers are constants, even if they are created inside a graph
            self._ordinary_model, self._for_long_words = tf.constant(model), tf.constant(long_words)
            self._continues = tf.constant([piece.startswith("##") for piece in pieces])

    def tokenize(self, texts: tf.Tensor) -> WordPieces:
        """Splits texts, string [batch], as `Normalizer.normalize` returns them."""
        tokens = _, _, starts, ends = wordpiece(texts, self._ordinary_model)
        any_long = tf.reduce_any(ends - starts > self._limit)
        return tf.cond(any_long, lambda: self._with_long_words(texts), lambda: tokens)

    def _with_long_words(self, normalized: tf.Tensor) -> WordPieces:
        """Tokenizes with each word that is too long as [UNK]; the op itself does so above four bytes a character."""
        before, after = self._ordinary_model[: self._changed.start], self._ordinary_model[self._changed.stop :]
        model = tf.concat([before, self._for_long_words, after], 0)
        ids, row_splits, starts, ends = wordpiece(normalized, model)
        is_first = tf.logical_not(tf.gather(self._continues, ids))  # [pieces]
        firsts = tf.where(is_first)[:, 0]  # [words]
        lasts = tf.concat([firsts, tf.size(ids, tf.int64)[tf.newaxis]], axis=0)[1:] - 1
        word_starts, word_ends = tf.gather(starts, firsts), tf.gather(ends, lasts)
        long_words = tf.where(word_ends - word_starts > self._limit)[:, 0]
        begins = tf.gather(word_starts, long_words)
        rows = tf.searchsorted(row_splits, tf.gather(firsts, long_words), side="right", out_type=tf.int64) - 1
        words = tf.strings.substr(tf.gather(normalized, rows), begins, tf.gather(word_ends, long_words) - begins)
        too_long = tf.strings.length(words, "UTF8_CHAR") > self._limit
        capped_word = tf.scatter_nd(long_words[:, tf.newaxis], too_long, tf.shape(firsts, tf.int64))
        word_of_piece = tf.cumsum(tf.cast(is_first, tf.int64)) - 1
        capped_piece = tf.gather(capped_word, word_of_piece)
        kept = tf.logical_or(is_first, tf.logical_not(capped_piece))
        kept_before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int64))], axis=0)
        return (
            tf.boolean_mask(tf.where(capped_piece, self._unknown, ids), kept),
            tf.gather(kept_before, row_splits),
            tf.boolean_mask(starts, kept),
            tf.boolean_mask(tf.where(capped_piece, tf.gather(word_ends, word_of_piece), ends), kept),
        )


class SentencePiece:
    """Tokenizes texts by a SentencePiece model, in the graph.

    Args:
        model: a serialized ModelProto. A graph contains it as an attribute, from which the kernel makes the resource,
            so a session that loads a SavedModel has nothing to initialize.

    Attributes:
        IN_GRAPH: whether a saved graph can do without this process.
    """

    IN_GRAPH: ClassVar[bool] = True

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._name = f"sentencepiece_{hashlib.sha256(model).hexdigest()}"
        with tf.init_scope():
            self._eager = self._resource()

    def _resource(self) -> tf.Tensor:
        with tf.device("/cpu:0"):  # there is no kernel for others
            return _sentencepiece.sentencepiece_op(model=self._model, shared_name=self._name)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts string [batch], valid UTF-8, to ids int32 [batch, None]."""
        ids, splits = self._called(_sentencepiece.sentencepiece_tokenize_op, texts)
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """As `tokenize`, and starts and ends int64 [pieces] in bytes of the text."""
        ids, splits, *offsets = self._called(_sentencepiece.sentencepiece_tokenize_with_offsets_op, texts)
        starts, ends = (tf.cast(values, tf.int64) for values in offsets)
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False), starts, ends

    def _called(self, op: Callable[..., Any], texts: tf.Tensor) -> Any:
        with tf.device("/cpu:0"):
            resource = self._eager if tf.executing_eagerly() else self._resource()
            # (nbest_size, alpha, add_bos, add_eos, reverse): the best segmentation, as it is.
            return op(resource, texts, 0, 1.0, False, False, False, out_type=tf.int32)
