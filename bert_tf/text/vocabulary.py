"""WordPiece vocabulary files: one piece per line; the line number, from 0, is its id."""

import os
import unicodedata
from collections.abc import Sequence

from bert_tf.config.values import half_pairs
from bert_tf.errors import DataError
from bert_tf.files import text_path, write_text
from bert_tf.text.codepoints import SPECIAL_PIECES
from bert_tf.text.encoding import decode
from bert_tf.types import StrPath

MAX_PIECE_BYTES = 256  # the limit of TF Text's WordPiece op, without "##"
# Pieces with capitals or composed characters are ignored up to this share: they may have been added later.
_STRAY = 0.001
# A space before a word, in SentencePiece and in byte-level BPE.
_SPACES, _MOST_SPACED = ("\u2581", "\u0120"), 0.05


def read_vocabulary(path: StrPath) -> list[str]:
    """Reads a vocabulary file (UTF-8) in the format of google-research/bert.

    Lines end in LF or CRLF. Blank lines at the end are ignored; other blank lines keep their id, and no text has it.

    Returns:
        The pieces by id, checked by `check_vocabulary`.
    """
    path = text_path(path)
    if path.endswith((".json", ".model")):
        raise DataError(
            f"{path}: expected the vocab.txt of WordPiece; BytePairTokenizer opens a vocab.json, and "
            "SentencePieceTokenizer a .model file"
        )
    pieces = read_pieces(path)
    check_vocabulary(pieces, path)
    return pieces


def read_pieces(path: str) -> list[str]:
    """Reads a vocabulary file as `read_vocabulary`, of any kind of pieces."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise DataError(f"cannot read the vocabulary {path}: {error.strerror}; expected a vocab.txt") from error
    text = decode(data, path)
    # Not str.splitlines: a piece may be a character that it treats as a line end, such as U+2028.
    pieces = [line.removesuffix("\r") for line in text.split("\n")]
    while pieces and not pieces[-1]:
        pieces.pop()
    return pieces


def write_vocabulary(path: StrPath, pieces: Sequence[str]) -> None:
    """Writes a vocabulary file atomically, after `check_vocabulary`; replaces an existing file.

    Raises:
        OSError: the file cannot be written.
    """
    check_vocabulary(pieces, f"the vocabulary for {os.fspath(path)}")
    write_text(path, vocabulary_text(pieces))


def vocabulary_text(pieces: Sequence[str]) -> str:
    """The content of a vocabulary file."""
    return "".join(f"{piece}\n" for piece in pieces)


def check_vocabulary(pieces: Sequence[str], source: str = "the vocabulary") -> None:
    """Checks that pieces are a valid vocabulary.

    Args:
        pieces: in the order of their ids.
        source: where they come from, for error messages.

    Raises:
        DataError: no pieces, a special token missing, a duplicate that is not blank, or a piece that is too long or
            contains NUL or a line end.
    """
    if not pieces:
        raise DataError(f"{source} is empty; expected one piece per line")
    if spaced := spaced_pieces(pieces):
        raise DataError(
            f"{source}: {len(spaced):,} of its {len(pieces):,} pieces begin with {_SPACES[0]} or {_SPACES[1]}, such as "
            f"{spaced[0]!r}, and none with ##; expected WordPiece: use the .model, or vocab.json and merges.txt, of "
            "this vocabulary"
        )
    # Before single lines: of a file that is no vocabulary, these would be named.
    there = set(pieces)
    missing = [piece for piece in SPECIAL_PIECES if piece not in there]
    if missing:
        raise DataError(
            f"{source}: no {', '.join(missing)} among its {len(pieces)} pieces; a BERT vocabulary has all of "
            f"{' '.join(SPECIAL_PIECES)}"
        )
    lines: dict[str, int] = {}
    for line, piece in enumerate(pieces, start=1):
        if piece in lines and piece.strip():
            # A removed line would shift the ids of all later ones.
            first = lines[piece]
            raise DataError(
                f"{source}, line {line}: the piece {piece!r} is already on line {first}; empty line {first}, but keep "
                "it: the last of them counts in google-research/bert, and line numbers are ids"
            )
        if half := next(half_pairs(piece, f"{source}, line {line}:"), None):
            raise DataError(half)
        if len(piece.removeprefix("##").encode()) > MAX_PIECE_BYTES:
            raise DataError(
                f"{source}, line {line}: more than {MAX_PIECE_BYTES} bytes; expected a vocabulary, one piece per line"
            )
        if "\0" in piece or "\n" in piece or piece.endswith("\r"):
            raise DataError(
                f"{source}, line {line}: NUL or a line end in the piece {piece!r}; empty the line, but keep it"
            )
        lines[piece] = line


def spaced_pieces(pieces: Sequence[str]) -> list[str]:
    """Those that begin with a space of SentencePiece or byte-level BPE; none if the vocabulary may be WordPiece."""
    spaced = [piece for piece in pieces if piece.startswith(_SPACES)]
    wordpiece = any(piece.startswith("##") for piece in pieces)
    return spaced if len(spaced) > _MOST_SPACED * len(pieces) and not wordpiece else []


def check_size(pieces: Sequence[str], expected: int, source: str) -> None:
    """Checks that a vocabulary has the size of a checkpoint's.

    Args:
        pieces: in the order of their ids.
        expected: the checkpoint's `vocab_size`.
        source: the file with the pieces.
    """
    missing = expected - len(pieces)
    if not missing:
        return
    advice = "use the one that came with the checkpoint"
    if not source.endswith((".json", ".model", "merges.txt")):
        advice += ", with all of its lines, as their numbers are the ids"
        # Tables are padded as hardware prefers. Elsewhere, lines at the end would only hide that one is missing above.
        if missing > 0 and expected % 8 == 0:
            advice += (
                "; if it is that, and the checkpoint's embedding table was padded to a multiple of 8, append "
                f"{missing} lines to vocab.txt, [padding0] to [padding{missing - 1}]"
            )
    raise DataError(f"{source} has {len(pieces)} pieces, but the checkpoint was trained with {expected}; {advice}")


def guess_tokenizer(pieces: Sequence[str]) -> tuple[dict[str, bool], str]:
    """Guesses a tokenizer's settings from its vocabulary, for checkpoints that do not store them.

    Lower-cased text has no capitals, and text with accents stripped is decomposed (NFD). So a vocabulary with capitals
    or composed characters was learned without these steps.

    Returns:
        Keyword arguments for `Tokenizer`, and a sentence that explains the guess.
    """
    words = [piece for piece in pieces if not (piece.startswith("[") and piece.endswith("]"))]  # no special tokens
    capitals = [piece for piece in words if piece.lower() != piece]
    composed = [piece for piece in words if unicodedata.normalize("NFD", piece) != piece]
    lower_case = len(capitals) <= _STRAY * len(words)
    strip_accents = lower_case and len(composed) <= _STRAY * len(words)
    case, accents = "lower-cases" if lower_case else "keeps case", "strips" if strip_accents else "keeps"
    return (
        {"lower_case": lower_case, "strip_accents": strip_accents, "split_cjk": True},
        f"the tokenizer {case} and {accents} accents: guessed from the vocabulary, in which {_count(capitals)} of "
        f"{len(words):,} pieces have capitals and {_count(composed)} have composed characters",
    )


def _count(pieces: Sequence[str]) -> str:
    return f"{len(pieces):,} (such as {pieces[0]!r})" if pieces else "0"
