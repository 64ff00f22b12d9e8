"""Byte-level BPE (GPT-2, RoBERTa) in the TensorFlow graph.

TensorFlow has no op for it, but SentencePiece's merges by rank, too. So each word becomes a text of one character per
byte, for which a model is made of the merges: piece i is token i, its score the negated rank of its merge.
"""

import contextlib
import json
import os
import types
from collections.abc import Mapping, Sequence
from typing import Self

import tensorflow as tf

from bert_tf.config.values import checked_arguments
from bert_tf.errors import DataError, located
from bert_tf.files import text_path
from bert_tf.text.base import Added, rows_of, special_names
from bert_tf.text.byte_pair_model import BYTES, by_id, byte_pair_model, check_merges, read_byte_pairs
from bert_tf.text.codepoints import RE2_WHITE_SPACE, quoted
from bert_tf.text.composition import Composition
from bert_tf.text.operations import SentencePiece
from bert_tf.text.segments import split_around, within_texts
from bert_tf.text.subwords import SubwordTokenizer, begins_of, whole_characters
from bert_tf.types import Json, StrPath

# The last of a run of white space belongs to the word after it. (RE2 has no `\s+(?!\S)`.)
_LAST_SPACE = f"([{RE2_WHITE_SPACE}])([{RE2_WHITE_SPACE}][^{RE2_WHITE_SPACE}])"
_WORD = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\pL+| ?\pN+| ?[^{RE2_WHITE_SPACE}\pL\pN]+|[{RE2_WHITE_SPACE}]+"  # of GPT-2
# Between words: not in UTF-8, in no class above, and in no merge.
_WALL = b"\xff"


@checked_arguments
class BytePairTokenizer(SubwordTokenizer):
    """The byte-level BPE tokenizer of GPT-2 and RoBERTa.

    The ids are those of Hugging Face's `tokenizers` (`ByteLevel`). No text is unknown. ModernBERT has it with `nfc` and
    with added pieces for several spaces.

    Examples:
        >>> from tokenizers.pre_tokenizers import ByteLevel
        >>> specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        >>> pieces = [*sorted(ByteLevel.alphabet()), *specials, "he", "ll", "hell", "hello"]
        >>> tokenizer = bert_tf.BytePairTokenizer(pieces, ["h e", "l l", "he ll", "hell o"])
        >>> [[tokenizer.vocab[piece] for piece in row] for row in tokenizer.tokenize(["hello hell"]).to_list()]
        [['hello', 'Ġ', 'hell']]
        >>> tokenizer.encode(["hello"])["input_word_ids"].numpy()
        array([[256, 264, 258]], dtype=int32)
    """

    KIND, FILES = "byte_bpe", ("vocab.json", "merges.txt")
    SETTINGS = ("add_prefix_space", "nfc")

    def __init__(
        self,
        vocab: StrPath | Mapping[str, int] | Sequence[str],
        merges: StrPath | Sequence[str],
        add_prefix_space: bool = False,
        added_pieces: Added = types.MappingProxyType({}),
        nfc: bool = False,
    ) -> None:
        """Builds the tokenizer.

        Args:
            vocab: path of a vocab.json, ids by piece, or the pieces by id; with GPT-2's characters for bytes ("Ġ" is a
                space), and the special tokens <pad>, <unk>, <s>, </s> and <mask>, or BERT's.
            merges: path of a merges.txt, or its lines: two pieces separated by a space, by rank.
            add_prefix_space: put a space before a text that does not begin with one, so that its first word has the
                pieces that it has within a text; models for tagging are often trained so.
            added_pieces: of the pieces, those that were added to the vocabulary, which stand for their names and not
                for bytes: see the attribute. Those that are not special are looked for in texts, too, the longest
                first, unless they have one of the flags about white space and words, or a merge makes them.
            nfc: compose characters first (Unicode's canonical form NFC): e and a combining accent become é.

        Raises:
            DataError: a file cannot be read; a byte or a special token is missing, a piece occurs twice, or a merge
                makes no piece; a merges.txt has lost lines; or text would be merged otherwise than by pairs.
        """
        location: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if isinstance(vocab, (str, os.PathLike)) and isinstance(merges, (str, os.PathLike)):
            pieces, pairs = read_byte_pairs(vocab, merges)
            location = located(f"{text_path(vocab)} and {os.path.basename(merges)}")
        elif isinstance(vocab, (str, os.PathLike)) or isinstance(merges, (str, os.PathLike)):
            raise DataError("vocab and merges are a file and values in memory; expected two files, or two values")
        else:
            ids = vocab.items() if isinstance(vocab, Mapping) else ((piece, at) for at, piece in enumerate(vocab))
            location = located("vocab and merges")
            with located("vocab"):
                pieces, pairs = by_id(list(ids)), list(merges)
        self._merges = tuple(pairs)
        with location:
            names = special_names(pieces)
            apart = frozenset({*names, *added_pieces})
            model, texts, whole = byte_pair_model(tuple(pieces), self._merges, apart)
            self._searched = _searched(added_pieces, self._merges)
            if isinstance(vocab, (str, os.PathLike)):
                check_merges(pieces, pairs, added_pieces)
        super().__init__(pieces, names, texts, added_pieces)
        self._op = SentencePiece(model)
        self.add_prefix_space = self._adds_space = add_prefix_space
        self.nfc, self._normalizer = nfc, Composition() if nfc else None
        # As a word, an added piece is itself, not the ordinary one of the same text.
        numbers = [pieces.index(piece) for piece in self._searched]
        hidden = {texts[number] for number in numbers}
        whole = [*(number for number in whole if texts[number] not in hidden), *numbers]
        with tf.init_scope():
            hashes = _hashed(tf.gather(texts, whole))
            order = tf.argsort(hashes)
            self._hashes, self._whole = tf.gather(hashes, order), tf.gather(tf.constant(whole), order)
            self._lengths = tf.constant([len(text) for text in texts], tf.int64)

    @property
    def merges(self) -> list[str]:
        """The merges by rank, each two pieces separated by a space."""
        return list(self._merges)

    def get_config(self) -> Json:
        return self._settings | self._added_setting()

    @property
    def _settings(self) -> Json:
        return {name: True for name in self.SETTINGS if getattr(self, name)}

    def searches(self, piece: str) -> bool:
        return super().searches(piece) or piece in self._searched

    def contents(self) -> tuple[bytes, ...]:
        ids = {piece: number for number, piece in enumerate(self.vocab)}
        merges = ["#version: 0.2", *self._merges, ""]
        return json.dumps(ids, ensure_ascii=False).encode(), "\n".join(merges).encode()

    def __reduce__(self) -> tuple[type, tuple[list[str], list[str], bool, Added, bool]]:
        return type(self), (self.vocab, self.merges, self.add_prefix_space, {**self.added_pieces}, self.nfc)

    def _needed_pieces(self, used: set[int], characters: bool) -> set[int]:
        # A piece has one merge, and its parts have theirs, down to the bytes: these are all merges of the texts. They
        # are done in the same order without the others, of which the texts had no pair at its turn. Bytes always stay.
        pieces = self.vocab
        numbers = {piece: number for number, piece in enumerate(pieces)}
        merges = {merge.replace(" ", ""): merge.split(" ") for merge in self._merges}
        single = (numbers[char] for char in BYTES if char in numbers)
        found, pending = set[int](), [*used, *self.special_ids, *self.added_ids, *single]
        while pending:
            number = pending.pop()
            if number not in found:
                found.add(number)
                pending += map(numbers.__getitem__, merges.get(pieces[number], ()))
        return found

    def _subset(self, ids: Sequence[int]) -> Self:
        pieces = self.vocab
        kept = [pieces[number] for number in ids]
        known = set(kept)
        merges = [merge for merge in self._merges if known.issuperset(_with_result(merge))]
        return type(self)(kept, merges, **self._settings, **self._added_setting(ids))

    def _pieces_of(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        ids, starts, ends = self._added_and_others(texts, with_offsets)
        if with_offsets and self.nfc:
            # A part of a character that was composed is a part of all that it is made of.
            rows = rows_of(ids.row_splits)
            shift = tf.gather(begins_of(texts), rows)
            starts, ends = (at - shift for at in whole_characters(texts, rows, starts + shift, ends + shift))
        return ids, starts, ends

    def _added_and_others(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """As `_pieces_of`, with pieces that may end within a character."""
        if not self._searched:
            return self._word_pieces(texts, None, with_offsets)
        parts, added = split_around(texts, "|".join(map(quoted, self._searched)))
        ids, starts, ends = self._word_pieces(parts.values, added, with_offsets)
        if with_offsets:
            shift = tf.gather(within_texts(parts, texts), rows_of(ids.row_splits))
            starts, ends = starts + shift, ends + shift
        return parts.with_values(ids).merge_dims(1, 2), starts, ends

    def _word_pieces(
        self, texts: tf.Tensor, added: tf.Tensor | None, with_offsets: bool
    ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """As `_added_and_others`; `added` is bool [texts], the texts that are added pieces, or None for none."""
        if self.add_prefix_space:
            prefixed = tf.strings.regex_full_match(texts, "(?s)[^ ].*")
            if added is not None:
                prefixed &= ~added
            texts = tf.where(prefixed, " " + texts, texts)
        walled = tf.strings.regex_replace(texts, _LAST_SPACE, rb"\1" + _WALL + rb"\2")
        walled = tf.strings.regex_replace(walled, _WORD, rb"\0" + _WALL)
        words = tf.strings.split(walled if added is None else tf.where(added, texts, walled), _WALL)
        # Words repeat, and the op takes most of the time: it sees each word of the batch once.
        different, index = tf.unique(words.values)
        merged, rows = self._merged(different)
        ids = words.with_values(tf.gather(merged, tf.gather(rows, index))).merge_dims(1, 2)
        if not with_offsets:
            nothing = tf.zeros([0], tf.int64)
            return ids, nothing, nothing
        # Pieces cover all bytes, so the lengths are enough.
        ends = tf.cumsum(tf.gather(self._lengths, ids.values))
        before = tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64), exclusive=True)
        rows = ids.value_rowids()
        ends -= tf.gather(before, rows)
        starts = ends - tf.gather(self._lengths, ids.values)
        if self.add_prefix_space:  # which is not in the text
            added = tf.gather(tf.cast(prefixed, tf.int64), rows)
            starts, ends = tf.maximum(starts - added, 0), ends - added
        return ids, starts, ends

    def _merged(self, words: tf.Tensor) -> tf.RaggedTensor:
        """ids [words, None] in another order, and the row of each word, int32 [words]."""
        # Words that are pieces are found by their hashes, which is faster.
        at = tf.searchsorted(self._hashes, _hashed(words))
        pieces = tf.gather(self._whole, tf.minimum(at, tf.size(self._whole) - 1))
        whole = tf.gather(self._texts, pieces) == words
        letters = tf.strings.unicode_transcode(tf.boolean_mask(words, ~whole), "ISO-8859-1", "UTF-8")  # one per byte
        others = self._op.tokenize(tf.strings.regex_replace(letters, r"\x00", "\u0100"))
        single = tf.boolean_mask(pieces, whole)
        ends = others.row_splits[-1] + tf.range(1, tf.size(single, tf.int64) + 1)
        ids = tf.concat([others.values, single], 0)
        merged = tf.RaggedTensor.from_row_splits(ids, tf.concat([others.row_splits, ends], 0), validate=False)
        number = tf.cumsum(tf.cast(whole, tf.int32))  # of pieces up to each word
        count = tf.shape(others.row_splits)[0] - 1
        return merged, tf.where(whole, count + number - 1, tf.range(tf.size(words)) - number)


def _searched(added: Added, merges: Sequence[str]) -> tuple[str, ...]:
    """The added pieces that texts are split at without being special, the longest first."""
    made = {merge.replace(" ", "") for merge in merges}
    found = (piece for piece, flags in added.items() if {*flags} <= {"normalized"} and piece not in made)
    return tuple(sorted((piece for piece in found if piece not in BYTES), key=len, reverse=True))


def _with_result(merge: str) -> list[str]:
    """The two pieces of a merge, and the one that it makes."""
    return [*merge.split(" "), merge.replace(" ", "")]


def _hashed(words: tf.Tensor) -> tf.Tensor:
    """int64 [words]"""
    return tf.strings.to_hash_bucket_fast(words, 1 << 62)
