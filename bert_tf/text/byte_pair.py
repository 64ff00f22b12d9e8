"""Byte-level BPE (GPT-2, RoBERTa) in the TensorFlow graph.

TensorFlow has no op for it, but SentencePiece's merges by rank, too. So each word becomes a text of one character per
byte, for which a model is made of the merges: piece i is token i, its score the negated rank of its merge.
"""

import contextlib
import functools
import json
import os
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import numpy as np
import tensorflow as tf

from bert_tf.config.values import checked_arguments, half_pairs
from bert_tf.errors import DataError, located
from bert_tf.files import read_bytes, text_path
from bert_tf.text.base import BERT, ROBERTA, Added, special_names
from bert_tf.text.codepoints import RE2_WHITE_SPACE
from bert_tf.text.encoding import decode
from bert_tf.text.sentence_piece import unchanging_charsmap
from bert_tf.text.subwords import SubwordTokenizer
from bert_tf.text.tf_text import SentencePiece
from bert_tf.text.vocabulary import check_length
from bert_tf.types import Json, StrPath

# The last of a run of white space belongs to the word after it. (RE2 has no `\s+(?!\S)`.)
_LAST_SPACE = f"([{RE2_WHITE_SPACE}])([{RE2_WHITE_SPACE}][^{RE2_WHITE_SPACE}])"
_WORD = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\pL+| ?\pN+| ?[^{RE2_WHITE_SPACE}\pL\pN]+|[{RE2_WHITE_SPACE}]+"  # of GPT-2
# Between words: not in UTF-8, in no class above, and in no merge.
_WALL = b"\xff"


def _printable_bytes() -> dict[str, int]:
    """GPT-2's alphabet: a printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _printable_bytes()
_SPELLED_BY_NONE = "\u2581"  # no byte has this character


def read_byte_pairs(vocab: StrPath, merges: StrPath) -> tuple[list[str], list[str]]:
    """Reads vocab.json and merges.txt in GPT-2's format.

    Returns:
        The pieces by id; and the merges by rank, each two pieces separated by a space.
    """
    path, merges_path = text_path(vocab), text_path(merges)
    content = decode(read_bytes(path, "a vocab.json"), path)
    try:
        ids = json.loads(content, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}; expected a JSON object of ids by token") from None
    if not isinstance(ids, list) or not all(isinstance(one, tuple) and type(one[1]) is int for one in ids):
        raise DataError(f"{path}: no object of whole numbers; expected a JSON object of ids by token")
    lines = decode(read_bytes(merges_path, "a merges.txt"), merges_path).split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    header = int(lines[:1] != [] and lines[0].startswith("#version"))
    with located(path):
        return _by_id(ids), lines[header:]


def check_merges(pieces: Sequence[str], merges: Sequence[str], apart: Collection[str] = (), most: float = 0) -> None:
    """Raises DataError if a merges.txt has lost lines: there are pieces that two others make, but without a merge.

    Every piece of a learned vocabulary (GPT-2's, RoBERTa's, of `tokenizers`) is a byte, a special token or the result
    of a merge. Pieces that people add later seldom consist of two others.

    Args:
        pieces: by id.
        merges: each two pieces separated by a space.
        apart: added tokens, which need no merge.
        most: number of such pieces that is accepted.
    """
    known, made = set(pieces), {merge.replace(" ", "") for merge in merges}
    lost = [
        piece
        for piece in pieces
        if len(piece) > 1 and not (piece in made or piece in apart or piece in (*BERT, *ROBERTA))
        if _bytes_of(piece) and any(piece[:at] in known and piece[at:] in known for at in range(1, len(piece)))
    ]
    if len(lost) > most:
        raise DataError(
            f"{len(lost):,} of {len(pieces):,} pieces, such as {lost[-1]!r}, have no merge that makes them among the "
            f"{len(merges):,}; expected the merges of this vocabulary, with all lines: get the file again (tokens that "
            "were added later belong into added_tokens.json)"
        )


def _by_id(ids: Sequence[tuple[str, int]]) -> list[str]:
    pieces: list[str | None] = [None] * len(ids)
    seen = set[str]()
    for piece, number in ids:
        if half := next(half_pairs(piece, "the vocabulary:"), None):
            raise DataError(half)
        if piece in seen:
            raise DataError(f"the token {piece!r} occurs twice; expected one id for each token")
        seen.add(piece)
        check_length(piece, number)
        if not 0 <= number < len(ids):
            raise DataError(f"{piece!r} has the id {number}; expected 0 to {len(ids) - 1}, without gaps")
        if pieces[number] is not None:
            raise DataError(f"{pieces[number]!r} and {piece!r} both have the id {number}; expected different ids")
        pieces[number] = piece
    return [str(piece) for piece in pieces]


@checked_arguments
class BytePairTokenizer(SubwordTokenizer):
    """The byte-level BPE tokenizer of GPT-2 and RoBERTa.

    The ids are those of Hugging Face's `tokenizers` (`ByteLevel`). No text is unknown.

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
    SETTINGS = ("add_prefix_space",)

    def __init__(
        self,
        vocab: StrPath | Mapping[str, int] | Sequence[str],
        merges: StrPath | Sequence[str],
        add_prefix_space: bool = False,
        added_pieces: Added = types.MappingProxyType({}),
    ) -> None:
        """Builds the tokenizer.

        Args:
            vocab: path of a vocab.json, ids by piece, or the pieces by id; with GPT-2's characters for bytes ("Ġ" is a
                space), and the special tokens <pad>, <unk>, <s>, </s> and <mask>, or BERT's.
            merges: path of a merges.txt, or its lines: two pieces separated by a space, by rank.
            add_prefix_space: put a space before a text that does not begin with one, so that its first word has the
                pieces that it has within a text; models for tagging are often trained so.
            added_pieces: of the pieces, those that were added to the vocabulary, which stand for their names and not
                for bytes: see the attribute.

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
                pieces, pairs = _by_id(list(ids)), list(merges)
        self._merges = tuple(pairs)
        with location:
            names = special_names(pieces)
            apart = frozenset({*names, *added_pieces})
            model, texts, whole = _model(tuple(pieces), self._merges, apart)
            if isinstance(vocab, (str, os.PathLike)):
                check_merges(pieces, pairs, added_pieces)
        super().__init__(pieces, names, texts, added_pieces)
        self._op = SentencePiece(model)
        self.add_prefix_space = self._adds_space = add_prefix_space
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
        return ({"add_prefix_space": True} if self.add_prefix_space else {}) | self._added_setting()

    def contents(self) -> tuple[bytes, ...]:
        ids = {piece: number for number, piece in enumerate(self.vocab)}
        merges = ["#version: 0.2", *self._merges, ""]
        return json.dumps(ids, ensure_ascii=False).encode(), "\n".join(merges).encode()

    def __reduce__(self) -> tuple[type, tuple[list[str], list[str], bool, Added]]:
        return type(self), (self.vocab, self.merges, self.add_prefix_space, {**self.added_pieces})

    def _needed_pieces(self, used: set[int], characters: bool) -> set[int]:
        # A piece has one merge, and its parts have theirs, down to the bytes: these are all merges of the texts. They
        # are done in the same order without the others, of which the texts had no pair at its turn. Bytes always stay.
        pieces = self.vocab
        numbers = {piece: number for number, piece in enumerate(pieces)}
        merges = {merge.replace(" ", ""): merge.split(" ") for merge in self._merges}
        found, pending = set[int](), [*used, *self.special_ids, *self.added_ids, *map(numbers.__getitem__, _BYTES)]
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
        return type(self)(kept, merges, self.add_prefix_space, **self._added_setting(ids))

    def _segment_pieces(self, segments: tf.Tensor, with_offsets: bool) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        if self.add_prefix_space:
            prefixed = tf.strings.regex_full_match(segments, "(?s)[^ ].*")
            segments = tf.where(prefixed, " " + segments, segments)
        walled = tf.strings.regex_replace(segments, _LAST_SPACE, rb"\1" + _WALL + rb"\2")
        words = tf.strings.split(tf.strings.regex_replace(walled, _WORD, rb"\0" + _WALL), _WALL)
        # Words repeat, and the op takes most of the time: it sees each word of the batch once.
        different, index = tf.unique(words.values)
        merged, rows = self._merged(different)
        ids = words.with_values(tf.gather(merged, tf.gather(rows, index))).merge_dims(1, 2)
        if not with_offsets:
            nothing = tf.zeros([0], tf.int64)
            return ids, nothing, nothing
        # Pieces cover all bytes, so the lengths are enough.
        ends = tf.cumsum(tf.gather(self._lengths, ids.values))
        before = tf.cumsum(tf.cast(tf.strings.length(segments), tf.int64), exclusive=True)
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


def _with_result(merge: str) -> list[str]:
    """The two pieces of a merge, and the one that it makes."""
    return [*merge.split(" "), merge.replace(" ", "")]


def _hashed(words: tf.Tensor) -> tf.Tensor:
    """int64 [words]"""
    return tf.strings.to_hash_bucket_fast(words, 1 << 62)


def _letters(text: bytes) -> str:
    """A character per byte; NUL, which SentencePiece cannot hold, has another one."""
    return text.decode("latin-1").replace("\0", "\u0100")


def _bytes_of(piece: str) -> bytes:
    """What a piece stands for; nothing if it has other characters than GPT-2's for bytes."""
    return bytes(_BYTES[char] for char in piece) if all(char in _BYTES for char in piece) else b""


@functools.lru_cache(maxsize=4)
def _model(
    pieces: tuple[str, ...], merges: tuple[str, ...], names: frozenset[str]
) -> tuple[bytes, list[bytes], list[int]]:
    """The SentencePiece model of a vocabulary, what each piece stands for, and the pieces that are kept as words.

    Args:
        pieces, merges: of the vocabulary.
        names: pieces that stand for their names.
    """
    from sentencepiece import sentencepiece_model_pb2  # its message classes take a moment

    ids = {piece: number for number, piece in enumerate(pieces)}
    lacking = [char for char in _BYTES if char not in ids]
    if lacking:
        named = ", ".join(f"0x{_BYTES[char]:02x} ({char!r})" for char in lacking[:3])
        raise DataError(f"no token for {len(lacking)} of the 256 bytes, such as {named}; expected one for each byte")
    ranks, pairs = dict[str, int](), list[tuple[str, str]]()
    for rank, merge in enumerate(merges):
        pair = merge.split(" ")
        if len(pair) != 2 or not all(pair):
            raise DataError(f"merge {rank + 1}, {merge!r}; expected two pieces separated by a space")
        unknown = next((piece for piece in (*pair, "".join(pair)) if piece not in ids), None)
        if unknown is not None:
            raise DataError(
                f"merge {rank + 1}, {merge!r}, but {unknown!r} is no token of the vocabulary; expected its own merges"
            )
        if "".join(pair) in ranks:
            first = merges[ranks["".join(pair)]]
            raise DataError(
                f"merge {rank + 1}, {merge!r}, makes the same token as {first!r}; expected one merge for each token"
            )
        ranks["".join(pair)] = rank
        pairs.append((pair[0], pair[1]))

    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.precompiled_charsmap = unchanging_charsmap()
    for setting in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        setattr(proto.normalizer_spec, setting, False)
    texts = []
    for number, piece in enumerate(pieces):
        texts.append((b"" if piece in names else _bytes_of(piece)) or piece.encode())
        if piece in ranks or len(piece) == 1:
            proto.pieces.add(piece=_letters(texts[-1]), score=-float(ranks[piece]) if piece in ranks else -1e9)
        else:  # keeps the id and is in no text
            proto.pieces.add(piece=f"{_SPELLED_BY_NONE}{number}", type=proto.SentencePiece.CONTROL)
    proto.pieces.add(piece=_SPELLED_BY_NONE, type=proto.SentencePiece.UNKNOWN)  # a model needs one; no text has it
    model = proto.SerializeToString()
    return model, texts, _checked_merging(pieces, pairs, model)


def _checked_merging(pieces: tuple[str, ...], pairs: list[tuple[str, str]], model: bytes) -> list[int]:
    """Raises DataError if merging by the joined string, as SentencePiece does, differs from merging by pairs.

    Compares them on all pieces, and on random pieces side by side. No published vocabulary differs.

    Returns:
        The ids of pieces that, as words, are these pieces.
    """
    import sentencepiece
    from tokenizers import models  # it merges by pairs

    by_pairs = models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=pairs)
    ordinary = [piece for piece in pieces if _bytes_of(piece)]
    random = np.random.default_rng(0)
    glued = ["".join(ordinary[at] for at in random.integers(len(ordinary), size=2 + n % 3)) for n in range(10_000)]
    words = [*ordinary, *glued]
    found = sentencepiece.SentencePieceProcessor(model_proto=model).encode(
        [_letters(_bytes_of(word)) for word in words]
    )
    for word, ids in zip(words, found, strict=True):
        expected = [token.id for token in by_pairs.tokenize(word)]
        if ids != expected:
            raise DataError(
                f"{word!r} is {[pieces[i] for i in expected]} if pieces are merged by pairs, but "
                f"{[pieces[i] for i in ids]} here, where they are merged by the joined string; use another vocabulary"
            )
    return [ids[0] for _, ids in zip(ordinary, found, strict=False) if len(ids) == 1]
