"""Vocabularies of byte-level BPE: GPT-2's files, their checks, and the SentencePiece model that merges as they say."""

import functools
import json
from collections.abc import Collection, Sequence

import numpy as np

from bert_tf.config.values import half_pairs
from bert_tf.errors import DataError, located
from bert_tf.files import read_bytes, text_path
from bert_tf.text.base import NAMES
from bert_tf.text.encoding import decode
from bert_tf.text.sentence_piece import unchanging_charsmap
from bert_tf.text.vocabulary import check_length
from bert_tf.types import StrPath


def _printable_bytes() -> dict[str, int]:
    """GPT-2's alphabet: a printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


BYTES = _printable_bytes()
_IN_NO_TEXT = {0xC0, 0xC1, *range(0xF5, 0x100)}  # bytes that UTF-8 never contains; learned vocabularies may lack them
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
        return by_id(ids), lines[header:]


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
        if len(piece) > 1 and not (piece in made or piece in apart or piece in NAMES)
        if _bytes_of(piece) and any(piece[:at] in known and piece[at:] in known for at in range(1, len(piece)))
    ]
    if len(lost) > most:
        raise DataError(
            f"{len(lost):,} of {len(pieces):,} pieces, such as {lost[-1]!r}, have no merge that makes them among the "
            f"{len(merges):,}; expected the merges of this vocabulary, with all lines: get the file again (tokens that "
            "were added later belong into added_tokens.json)"
        )


def by_id(ids: Sequence[tuple[str, int]]) -> list[str]:
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


def _letters(text: bytes) -> str:
    """A character per byte; NUL, which SentencePiece cannot hold, has another one."""
    return text.decode("latin-1").replace("\0", "\u0100")


def _bytes_of(piece: str) -> bytes:
    """What a piece stands for; nothing if it has other characters than GPT-2's for bytes."""
    return bytes(BYTES[char] for char in piece) if all(char in BYTES for char in piece) else b""


@functools.lru_cache(maxsize=4)
def byte_pair_model(
    pieces: tuple[str, ...], merges: tuple[str, ...], names: frozenset[str]
) -> tuple[bytes, list[bytes], list[int]]:
    """The SentencePiece model of a vocabulary, what each piece stands for, and the pieces that are kept as words.

    Args:
        pieces, merges: of the vocabulary.
        names: pieces that stand for their names, if no merge makes them.
    """
    from sentencepiece import sentencepiece_model_pb2  # its message classes take a moment

    ids = {piece: number for number, piece in enumerate(pieces)}
    lacking = [char for char, byte in BYTES.items() if char not in ids and byte not in _IN_NO_TEXT]
    if lacking:
        named = ", ".join(f"0x{BYTES[char]:02x} ({char!r})" for char in lacking[:3])
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
        texts.append((b"" if piece in names and piece not in ranks else _bytes_of(piece)) or piece.encode())
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
    words = [*ordinary, *side_by_side(ordinary)]
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


def side_by_side(pieces: Sequence[str]) -> list[str]:
    """10,000 texts of two to four pieces at random, to compare ways of merging."""
    random = np.random.default_rng(0)
    return ["".join(pieces[at] for at in random.integers(len(pieces), size=2 + n % 3)) for n in range(10_000)]
