"""WordPiece tokenizer in the TensorFlow graph: the same code in training, evaluation and a served model."""

import functools
import os
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Self

import numpy as np
import tensorflow as tf

from bert_tf.config.values import Rule, checked_arguments
from bert_tf.text.base import BERT, SPECIAL, Added, BaseTokenizer, rows_of
from bert_tf.text.codepoints import FILLER, is_punctuation
from bert_tf.text.normalization_table import stand_ins
from bert_tf.text.normalizer import Normalizer, replace_invalid, string_tensor
from bert_tf.text.operations import WordPiece
from bert_tf.text.segments import Segments
from bert_tf.text.vocabulary import (
    check_vocabulary,
    decided,
    read_vocabulary,
    unreachable,
    vocabulary_text,
    warn_of_unreachable,
)
from bert_tf.types import Array, Json, Strings, StrPath

MAX_WORD_CHARS = 200  # longer words become [UNK], as in google-research/bert
LONGEST_WORD = 1_000_000  # of `max_input_chars_per_word`
_NORMALIZER = ("lower_case", "strip_accents", "split_cjk")


def _character_lengths() -> Array:
    """int64 [256]: distance from a byte to the end of its character, by the byte's value; 1 if it is not the first."""
    lengths = np.ones(256, np.int64)
    lengths[0xC2:0xE0], lengths[0xE0:0xF0], lengths[0xF0:0xF5] = 2, 3, 4
    return lengths


def _op_vocabulary(pieces: Sequence[str], split_cjk: bool, apart: Collection[str]) -> list[str]:
    """The vocabulary for the WordPiece op, in the characters that the normalizer writes; without those in `apart`."""
    table = stand_ins(split_cjk)
    # Words never contain these, nor a space, but the op would match them. Its builder reserves U+0011.
    reserved = {"\x11", *map(chr, table.values())}
    vocabulary = [
        piece.translate(table)
        if piece.split() == [piece] and reserved.isdisjoint(piece) and piece not in apart
        else f"[{piece_id}]\x11"  # keeps the id and never matches
        for piece_id, piece in enumerate(pieces)
    ]
    # The builder refuses a vocabulary in which nothing could match; this character is in no normalized text.
    vocabulary[pieces.index(BERT.mask)] = "\x02"
    return vocabulary


@functools.lru_cache(maxsize=1)
def _numbers(pieces: tuple[str, ...], split_cjk: bool, apart: frozenset[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(_op_vocabulary(pieces, split_cjk, apart))}


def _without(pieces: Sequence[str], others: Collection[str]) -> list[str]:
    return [piece for piece in pieces if piece not in others]


def _matches(word: str, numbers: Mapping[str, int]) -> Iterator[int]:
    """The ids of the longest pieces from the start of a word on, up to where none matches."""
    start = 0
    while start < len(word):
        prefix, stops = "##" if start else "", range(len(word), start, -1)
        stop = next((stop for stop in stops if prefix + word[start:stop] in numbers), None)
        if stop is None:
            return
        yield numbers[prefix + word[start:stop]]
        start = stop


@checked_arguments
class Tokenizer(BaseTokenizer):
    """BERT's tokenizer (BasicTokenizer and WordpieceTokenizer of google-research/bert, tokenization.py).

    Works on strings and string tensors, eagerly and in graphs; an exported model contains all it needs as constants.

    Invalid UTF-8 is skipped like in Python's `bytes.decode("utf-8", "ignore")`.

    Attributes:
        continues: bool [vocab_size], True for pieces that begin with "##".

    Examples:
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "chess", "!"]
        >>> tokenizer = bert_tf.Tokenizer(pieces)
        >>> tokenizer.tokenize(["Playing chess!"])
        <tf.RaggedTensor [[5, 6, 7, 8]]>
        >>> tokenizer.encode(["Playing chess!"])["input_word_ids"].numpy()
        array([[2, 5, 6, 7, 8, 3]], dtype=int32)
    """

    KIND, FILES = "wordpiece", ("vocab.txt",)
    SETTINGS = (*_NORMALIZER, "max_input_chars_per_word")

    def __init__(
        self,
        vocab: StrPath | Sequence[str],
        lower_case: bool | None = None,
        strip_accents: bool | None = None,
        split_cjk: bool | None = None,
        max_input_chars_per_word: Annotated[int, Rule(at_least=1, at_most=LONGEST_WORD)] = MAX_WORD_CHARS,
        added_pieces: Added = types.MappingProxyType({}),
    ) -> None:
        """Builds the tokenizer.

        Settings that are None are True, as BERT's, unless the vocabulary shows that it was made without them: it has
        pieces with capitals, with accents or composed characters such as Hangul syllables, or with several ideographs.
        A warning says how many pieces no text reaches with the settings that are given.

        Args:
            vocab: path of a vocab.txt, or the pieces by id.
            lower_case: lower-case the text.
            strip_accents: decompose the text (NFD; Hangul syllables too) and drop accents. By default never without
                `lower_case`.
            split_cjk: make every CJK ideograph a separate word.
            max_input_chars_per_word: longer words are [UNK]; 200 in google-research/bert, 100 in Transformers.
            added_pieces: of the pieces, those that were added to the vocabulary: see the attribute.
        """
        if isinstance(vocab, (str, os.PathLike)):
            pieces = read_vocabulary(vocab)
        else:
            pieces = list(vocab)
            check_vocabulary(pieces)
        self.max_input_chars_per_word = max_input_chars_per_word
        super().__init__(pieces, BERT, [piece.startswith("##") for piece in pieces], added_pieces)
        # Words of texts are never special tokens, which are not among what a setting hides, either. The op needs [UNK],
        # which is no word, as it has brackets.
        special = {piece for piece, flags in self.added_pieces.items() if SPECIAL in flags}
        self._apart = frozenset(special - {BERT.unk})
        ordinary = _without(pieces, self._apart)
        settings = decided(ordinary, lower_case, strip_accents, split_cjk)
        warn_of_unreachable(ordinary, settings)
        self._segments = Segments(pieces, BERT, self.added_pieces)
        self._normalizer = Normalizer(**settings)
        self.lower_case = self._normalizer.lower_case
        self.strip_accents = self._normalizer.strip_accents
        self.split_cjk = self._normalizer.split_cjk
        vocabulary = _op_vocabulary(pieces, self.split_cjk, self._apart)
        self._wordpiece = WordPiece(vocabulary, BERT.unk, self.max_input_chars_per_word)
        with tf.init_scope():  # constants, even if a tokenizer is created inside a graph
            self._stands_alone = tf.constant(
                [piece == "[UNK]" or (len(piece) == 1 and is_punctuation(piece)) for piece in pieces]
            )
            self._character_lengths = tf.constant(_character_lengths())

    def get_config(self) -> Json:
        settings = {name: getattr(self, name) for name in self.SETTINGS}
        # Versions before this setting open what has its default.
        return {name: value for name, value in settings.items() if value != MAX_WORD_CHARS} | self._added_setting()

    @property
    def _settings(self) -> dict[str, bool]:
        return {name: getattr(self, name) for name in _NORMALIZER}

    def unreachable(self) -> str:
        return unreachable(_without(self.vocab, self._apart), self._settings)

    def contents(self) -> tuple[bytes, ...]:
        return (vocabulary_text(self.vocab).encode(),)

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[list[str], Json]]:
        return type(self)._derived, (self.vocab, self.get_config())

    def pieces_of(self, strings: Strings) -> set[int]:
        """As in `BaseTokenizer`; of a word that is [UNK], with the pieces that matched before one was missing.

        Without these, a shorter piece might match in their place, and the rest of the word after it.
        """
        if self._segments.splits(special_tokens=False):
            strings = self._segments.ordinary(replace_invalid(string_tensor(strings), FILLER.encode()))
        _, normalized, *_ = self._normalizer.normalize(strings)
        _, _, *tokens = self._tokenize(strings)
        ids, row_splits, starts, ends = (values.numpy() for values in tokens)
        (unknown,) = np.nonzero(ids == self.unk_id)
        rows, texts = np.searchsorted(row_splits, unknown, side="right") - 1, normalized.numpy()
        words = {texts[row][starts[at] : ends[at]] for row, at in zip(rows, unknown, strict=True)}
        numbers = _numbers(tuple(self.vocab), self.split_cjk, self._apart) if words else {}
        matched = (word for word in map(bytes.decode, words) if len(word) <= self.max_input_chars_per_word)
        return set(np.unique(ids).tolist()).union(*(_matches(word, numbers) for word in matched))

    def _needed_pieces(self, used: set[int], characters: bool) -> set[int]:
        # At each place in a word, the longest piece that matches is taken. In a part of the vocabulary that has it, it
        # still is the longest one; and where no piece matched, none does.
        single = (at for at, piece in enumerate(self.vocab) if len(piece.removeprefix("##")) == 1)
        return {*used, *self.special_ids, *self.added_ids, *(single if characters else ())}

    def _subset(self, ids: Sequence[int]) -> Self:
        pieces = self.vocab
        settings = {name: value for name, value in self.get_config().items() if name != "added_pieces"}
        return self._derived([pieces[number] for number in ids], settings | self._added_setting(ids))

    @classmethod
    def _derived(cls, pieces: Sequence[str], settings: Json) -> Self:
        """A tokenizer of another one's pieces, of which that one has warned."""
        added = {piece for piece, flags in settings.get("added_pieces", {}).items() if SPECIAL in flags}
        warn_of_unreachable(_without(pieces, added), {name: settings[name] for name in _NORMALIZER}, silent=True)
        return cls(pieces, **settings)

    def tokenize(self, strings: Strings, special_tokens: bool = False) -> tf.RaggedTensor:
        """Converts text to token ids, without adding [CLS] and [SEP].

        Args:
            strings: string [batch], a list, or one string (a batch of one).
            special_tokens: treat "[MASK]", "[SEP]", "[CLS]", "[UNK]" and "[PAD]" in the text as special tokens instead
                of ordinary text. Special `added_pieces` always are tokens.

        Returns:
            int32 [batch, None].
        """
        if self._segments.splits(special_tokens):
            return self._with_specials(strings, special_tokens, with_offsets=False)[1]
        _, _, ids, row_splits, _, _ = self._tokenize(strings)
        return tf.RaggedTensor.from_row_splits(ids, row_splits, validate=False)

    def tokenize_with_offsets(
        self, strings: Strings, special_tokens: bool = False
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Converts text to token ids and their offsets in the original text.

        A piece covers whole characters of the original text, so two pieces of one character ("İ") share it. Characters
        that normalization deletes are part of a piece only inside it.

        Args:
            strings: see `tokenize`.
            special_tokens: see `tokenize`.

        Returns:
            ids, starts, ends: int32 [batch, None]. Piece j of row i is bytes starts[i, j] to ends[i, j] (exclusive,
            always more than starts[i, j]) of strings[i].
        """
        if self._segments.splits(special_tokens):
            text, ids, starts, ends = self._with_specials(strings, special_tokens, with_offsets=True)
            begins = tf.cumsum(tf.cast(tf.strings.length(text), tf.int64), exclusive=True)
            shift = tf.gather(begins, rows_of(ids.row_splits))
            starts, ends = starts - shift, ends - shift
        else:
            ids, starts, ends = self._segment_pieces(string_tensor(strings), with_offsets=True)
        return ids, *(ids.with_values(tf.cast(at, tf.int32)) for at in (starts, ends))

    def _with_specials(
        self, strings: Strings, special_tokens: bool, with_offsets: bool
    ) -> tuple[tf.Tensor, tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Text without invalid bytes, and its tokens as `Segments.tokenize` returns them."""
        text = replace_invalid(string_tensor(strings), FILLER.encode())
        tokenize = functools.partial(self._segment_pieces, with_offsets=with_offsets)
        return text, *self._segments.tokenize(text, tokenize, special_tokens=special_tokens, with_offsets=with_offsets)

    def _segment_pieces(self, segments: tf.Tensor, with_offsets: bool) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """As `SubwordTokenizer._segment_pieces`."""
        text, (offsets, offset_splits), ids, row_splits, starts, ends = self._tokenize(segments, with_offsets)
        if not with_offsets:
            return tf.RaggedTensor.from_row_splits(ids, row_splits, validate=False), starts, ends
        rows = rows_of(row_splits)  # [pieces]
        begins = tf.gather(offset_splits, rows)
        first_bytes = tf.gather(offsets, begins + starts)
        last_bytes = tf.gather(offsets, begins + ends - 1)
        # For a changed character the offset of each byte is the character's start; for an unchanged one the bytes have
        # their own offsets. In both cases the value of the byte there gives the distance to the character's end.
        all_bytes = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
        text_begins = tf.cumsum(tf.cast(tf.strings.length(text), tf.int64), exclusive=True)
        ending = tf.gather(all_bytes, tf.gather(text_begins, rows) + last_bytes)
        past_last = last_bytes + tf.gather(self._character_lengths, tf.cast(ending, tf.int32))
        return tf.RaggedTensor.from_row_splits(ids, row_splits, validate=False), first_bytes, past_last

    def tokenize_with_words(self, strings: Strings) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Converts text to token ids and marks the first piece of each word; words are separated by white space.

        So a Korean word that contains Chinese characters is one word, although each of these is a token without "##".
        Punctuation marks and [UNK] are separate words.

        Args:
            strings: see `tokenize`.

        Returns:
            ids: int32 [batch, None].
            word_starts: bool [batch, None].
        """
        if self._segments.splits(special_tokens=False):
            found = self.tokenize(strings)
            return found, self.word_starts(found)
        _, _, ids, row_splits, starts, ends = self._tokenize(strings)
        alone, rows = tf.gather(self._stands_alone, ids), rows_of(row_splits)
        # Normalized text still has all its white space, and nothing else between two pieces.
        begins = (starts[1:] != ends[:-1]) | alone[1:] | alone[:-1] | (rows[1:] != rows[:-1])
        begins = tf.concat([tf.ones_like(ids[:1], tf.bool), begins], axis=0)
        return tuple(tf.RaggedTensor.from_row_splits(v, row_splits, validate=False) for v in (ids, begins))

    def _texts_of(self, ids: tf.Tensor) -> tf.Tensor:
        pieces = tf.gather(self._pieces, ids)
        return tf.where(tf.gather(self.continues, ids), tf.strings.regex_replace(pieces, "^##", ""), " " + pieces)

    def _tokenize(
        self, strings: Strings, with_offsets: bool = False
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Text without invalid bytes, the normalizer's offsets into it, and the tokens (see `WordPieces`)."""
        text, normalized, *offsets = self._normalizer.normalize(strings, with_offsets)
        return text, offsets, *self._wordpiece.tokenize(normalized)
