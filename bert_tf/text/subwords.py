"""Tokenizers whose pieces contain the white space before words: from text to token ids, special tokens and offsets."""

import abc
import functools
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from bert_tf.config.values import checked_arguments
from bert_tf.errors import ConfigError
from bert_tf.text.base import SPECIAL, Added, BaseTokenizer, Specials, is_among, rows_of
from bert_tf.text.codepoints import WHITE_SPACE, is_punctuation, white_space_codes
from bert_tf.text.normalizer import is_valid, replace_invalid, string_tensor
from bert_tf.text.operations import SentencePiece
from bert_tf.text.segments import WALL, Segments
from bert_tf.types import Strings


class TextNormalizer(Protocol):
    """What changes texts before they are segmented: `AlbertNormalizer` or `Composition`."""

    def normalize(self, texts: tf.Tensor, with_offsets: bool = False) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes string [batch], valid UTF-8; returns texts, offsets and row_splits as `Normalizer.normalize`."""


@checked_arguments
class SubwordTokenizer(BaseTokenizer):
    """A tokenizer whose pieces contain the white space before words: byte-level BPE and SentencePiece."""

    keeps_spaces = True
    _adds_space = False  # before a text
    _normalizer: TextNormalizer | None = None

    def __init__(self, pieces: Sequence[str], names: Specials, texts: Sequence[bytes], added: Added) -> None:
        """See `BaseTokenizer`.

        Args:
            pieces: by id.
            names: of the special tokens, which are among the pieces.
            texts: what each piece stands for; special tokens for their names.
            added: as for `BaseTokenizer`.
        """
        special = {*names, *(piece for piece, flags in added.items() if SPECIAL in flags)}
        decoded = [text.decode("utf-8", "replace") for text in texts]
        spaces = tuple(WHITE_SPACE)
        opens = [text.startswith(spaces) for text in decoded]
        super().__init__(
            pieces, names, [not (o or piece in special) for o, piece in zip(opens, pieces, strict=True)], added
        )
        self._segments = Segments(pieces, names, self.added_pieces)
        bare = (text.strip() for text in decoded)
        alone = [
            piece in special or (len(text) == 1 and is_punctuation(text))
            for piece, text in zip(pieces, bare, strict=True)
        ]
        blank = [not text.strip(WHITE_SPACE) for text in decoded]
        with tf.init_scope():
            self._opens, self._alone, self._blank = map(tf.constant, (opens, alone, blank))
            self._closes = tf.constant([text.endswith(spaces) for text in decoded])
            self._texts = tf.constant(texts)

    @abc.abstractmethod
    def _pieces_of(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Tokenizes normalized texts without special tokens.

        Args:
            texts: string [texts], valid UTF-8.
            with_offsets: whether the offsets are needed.

        Returns:
            ids int32 [texts, None]; starts and ends int64 [pieces] in bytes of their texts, possibly equal or within a
            character. Empty without `with_offsets`.
        """

    def _segment_pieces(self, segments: tf.Tensor, with_offsets: bool) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """As `_pieces_of`, of texts that are not normalized."""
        if not self._normalizer:
            return self._pieces_of(segments, with_offsets)
        texts, offsets, begins = self._normalizer.normalize(segments, with_offsets)
        ids, starts, ends = self._pieces_of(texts, with_offsets)
        if with_offsets:
            at = tf.gather(begins, rows_of(ids.row_splits))
            # A piece ends where the character after it begins, so it has the accents that were dropped there; or with
            # its own last character, if that is the same one.
            last = tf.gather(offsets, at + tf.maximum(ends - 1, starts))
            starts, ends = tf.gather(offsets, at + starts), tf.maximum(tf.gather(offsets, at + ends), last + 1)
        return ids, starts, ends

    def tokenize(self, strings: Strings, special_tokens: bool = False) -> tf.RaggedTensor:
        text = string_tensor(strings)
        valid = tf.cond(is_valid(text), lambda: text, lambda: replace_invalid(text))
        return self._tokenize(valid, special_tokens, with_offsets=False)[0]

    def tokenize_with_offsets(
        self, strings: Strings, special_tokens: bool = False
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        text = string_tensor(strings)
        valid = is_valid(text)
        clean = tf.cond(valid, lambda: text, lambda: replace_invalid(text))
        ids, starts, ends = self._tokenize(clean, special_tokens, with_offsets=True)
        starts, ends = whole_characters(clean, rows_of(ids.row_splits), starts, ends)

        def in_all() -> tuple[tf.Tensor, tf.Tensor]:
            marked = tf.strings.reduce_join(replace_invalid(text, WALL))
            kept = tf.where(tf.io.decode_raw(marked, tf.uint8) != WALL[0])[:, 0]
            return tf.gather(kept, starts), tf.gather(kept, ends - 1) + 1

        starts, ends = tf.cond(valid, lambda: (starts, ends), in_all)
        begins = tf.gather(begins_of(text), rows_of(ids.row_splits))
        return ids, *(ids.with_values(tf.cast(at - begins, tf.int32)) for at in (starts, ends))

    def tokenize_with_words(self, strings: Strings) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        ids = self.tokenize(strings)
        return ids, self._word_starts(ids)

    def _word_starts(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        rows, values = rows_of(ids.row_splits), ids.values
        alone, closes = tf.gather(self._alone, values), tf.gather(self._closes, values)
        begins = tf.gather(self._opens, values)[1:] | closes[:-1] | alone[1:] | alone[:-1]
        # White space alone is a part of the word after it.
        begins = begins & ~tf.gather(self._blank, values)[:-1] | (rows[1:] != rows[:-1])
        return ids.with_values(tf.concat([tf.ones_like(values[:1], tf.bool), begins], 0))

    def _texts_of(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._texts, ids)

    def _trimmed(self, texts: tf.Tensor) -> tf.Tensor:
        # A piece may end within a character.
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        return tf.strings.regex_replace(texts, "^ ", "") if self._adds_space else texts

    def _tokenize(
        self, text: tf.Tensor, special_tokens: bool, with_offsets: bool
    ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """ids [batch, None]; starts and ends int64 [pieces] in the concatenation of all texts."""
        if self._segments.splits(special_tokens):
            tokenize = functools.partial(self._segment_pieces, with_offsets=with_offsets)
            return self._segments.tokenize(text, tokenize, special_tokens=special_tokens, with_offsets=with_offsets)
        ids, starts, ends = self._segment_pieces(text, with_offsets)
        if with_offsets:
            shift = tf.gather(begins_of(text), rows_of(ids.row_splits))
            starts, ends = starts + shift, ends + shift
        return ids, starts, ends


def check_in_graph(tokenizer: BaseTokenizer, use: str) -> None:
    """Raises ConfigError if the graphs of a tokenizer cannot leave this process, as those of its kind without TF Text.

    Args:
        tokenizer: to check.
        use: what needs its graphs elsewhere, for the message.
    """
    if isinstance(tokenizer, SubwordTokenizer) and not SentencePiece.IN_GRAPH:
        raise ConfigError(
            f"{use} with a tokenizer of the kind {tokenizer.KIND} needs TensorFlow Text, which cannot be imported "
            "here; use Python 3.13 or older with pip install 'bert_tf[text]'"
        )


def begins_of(text: tf.Tensor) -> tf.Tensor:
    """int64 [batch]: where each text begins in the concatenation of all."""
    return tf.cumsum(tf.cast(tf.strings.length(text), tf.int64), exclusive=True)


def whole_characters(
    text: tf.Tensor, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Widens pieces to whole characters, and takes white space off their ends if anything is left.

    Args:
        text: string [batch], valid UTF-8.
        rows: int64 [pieces], the text of each piece.
        starts, ends: int64 [pieces], in the concatenation of all texts; an empty piece is part of the character there.

    Returns:
        starts, ends: int64 [pieces], each end more than its start.
    """
    codes, char_starts = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
    begins = begins_of(text)
    chars = char_starts.values + tf.gather(begins, char_starts.value_rowids())  # [characters]
    last_of_row = tf.gather(char_starts.row_limits(), rows) - 1
    first = tf.minimum(tf.searchsorted(chars, starts, side="right", out_type=tf.int64) - 1, last_of_row)
    last = tf.searchsorted(chars, tf.maximum(ends - 1, starts), side="right", out_type=tf.int64) - 1
    last = tf.maximum(first, tf.minimum(last, last_of_row))
    others = tf.where(~is_among(codes.values, white_space_codes()))[:, 0]  # characters that are no white space
    padded = tf.concat([[-1], others, [tf.size(chars, tf.int64)]], 0)
    inner_first = tf.gather(padded, tf.searchsorted(others, first, out_type=tf.int64) + 1)
    inner_last = tf.gather(padded, tf.searchsorted(others, last, side="right", out_type=tf.int64))
    within = inner_first <= inner_last
    first, last = tf.where(within, inner_first, first), tf.where(within, inner_last, last)
    total = tf.reduce_sum(tf.cast(tf.strings.length(text), tf.int64))
    return tf.gather(chars, first), tf.gather(tf.concat([chars[1:], [total]], 0), last)
