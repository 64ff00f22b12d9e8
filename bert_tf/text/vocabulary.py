"""WordPiece vocabulary files: one piece per line; the line number, from 0, is its id."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from absl import logging

from bert_tf.config.values import half_pairs
from bert_tf.errors import DataError
from bert_tf.files import read_bytes, text_path, write_text
from bert_tf.text.codepoints import CJK_RANGES, SPECIAL_PIECES, is_punctuation
from bert_tf.text.encoding import decode
from bert_tf.text.normalization_table import cleaned
from bert_tf.types import Json, StrPath

MAX_PIECE_BYTES = 256  # the limit of TF Text's WordPiece op, without "##"
# Of any other tokenizer: the longest of GPT-2 have 128. A piece of millions takes a thousand times its size in memory.
MAX_PIECE_CHARACTERS = 1000
# Pieces that a setting hides are ignored up to this share: they may have been added later.
_STRAY = 0.001
_WARNED = set[int]()  # hashes of pieces with settings
# A space before a word, in SentencePiece and in byte-level BPE; the end of a word, or its going on, in other BPE.
_SPACES, _ENDS = ("\u2581", "\u0120"), ("</w>", "@@")
_MOST_FOREIGN = 0.05  # share of pieces with such marks that WordPiece may have


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
    text = decode(read_bytes(path, "a vocab.txt"), path)
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
    if marked := _foreign(pieces, [piece for piece in pieces if piece.endswith(_ENDS)]):
        raise DataError(
            f"{source}: {len(marked):,} of its {len(pieces):,} pieces end with {_ENDS[0]} or {_ENDS[1]}, such as "
            f"{marked[0]!r}, and none begins with ##; expected WordPiece, whose pieces inside of words do: this is a "
            "vocabulary of another kind of BPE, for which there is no tokenizer here"
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


def check_length(piece: str, number: int) -> None:
    """Raises DataError for a piece with more than `MAX_PIECE_CHARACTERS`; `number` is its id."""
    if len(piece) > MAX_PIECE_CHARACTERS:
        raise DataError(
            f"piece {number}, {piece[:20]!r}..., has {len(piece):,} characters; expected at most "
            f"{MAX_PIECE_CHARACTERS:,}"
        )


def spaced_pieces(pieces: Sequence[str]) -> list[str]:
    """Those that begin with a space of SentencePiece or byte-level BPE; none if the vocabulary may be WordPiece."""
    return _foreign(pieces, [piece for piece in pieces if piece.startswith(_SPACES)])


def _foreign(pieces: Sequence[str], marked: list[str]) -> list[str]:
    """The pieces with marks of another kind of vocabulary; none if the vocabulary may be WordPiece."""
    wordpiece = any(piece.startswith("##") for piece in pieces)
    return marked if len(marked) > _MOST_FOREIGN * len(pieces) and not wordpiece else []


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


# What a tokenizer makes of a character: (the character, lower_case, strip_accents) -> text.
Clean: TypeAlias = Callable[[str, bool, bool], str]


@functools.lru_cache(maxsize=4)
def hidden_pieces(pieces: tuple[str, ...], clean: Clean = cleaned) -> dict[str, list[str]]:
    """Setting of `Tokenizer` -> the pieces that no text reaches while it is True.

    Lower-cased text has no capitals, text without accents has no character that decomposes (NFD), and with `split_cjk`
    each ideograph is a word. Under "" are pieces that no setting reaches: with characters that are always cleaned away,
    or with punctuation inside of a word. Special tokens are left out.
    """
    words = {piece: piece.removeprefix("##") for piece in pieces if not (piece[:1] == "[" and piece[-1:] == "]")}
    # Alphabets are often completed with all single characters as "##x": these do not count where texts are split.
    longer = {word: text for word, text in words.items() if len(text) > 1}
    characters = set().union(*words.values())

    def having(characters: set[str], among: Mapping[str, str]) -> list[str]:
        return [word for word, text in among.items() if not characters.isdisjoint(text)] if characters else []

    def changed(lower_case: bool = False, strip_accents: bool = False) -> set[str]:
        return {char for char in characters if clean(char, lower_case, strip_accents).strip() != char}

    removed = changed()
    ideographs = {char for char in characters if any(first <= ord(char) <= last for first, last in CJK_RANGES)}
    lost = [*having(removed, words), *having({char for char in characters if is_punctuation(char)}, longer)]
    return {
        "lower_case": having(changed(lower_case=True) - removed, words),
        "strip_accents": having(changed(strip_accents=True) - removed, words),
        "split_cjk": having(ideographs, longer),
        "": [*dict.fromkeys(lost)],
    }


def decided(
    pieces: Sequence[str],
    lower_case: bool | None = None,
    strip_accents: bool | None = None,
    split_cjk: bool | None = None,
    *,
    clean: Clean = cleaned,
) -> Json:
    """The settings of `Tokenizer`, where None is BERT's default unless that hides pieces: then the vocabulary decides.

    So a vocabulary with capitals keeps case and accents, and one with composed characters, such as Hangul syllables,
    keeps accents. By default `strip_accents` is True only with `lower_case`.
    """
    hidden = hidden_pieces(tuple(pieces), clean)
    found = {name: len(those) <= _STRAY * len(pieces) for name, those in hidden.items()}
    lower = found["lower_case"] if lower_case is None else lower_case
    return {
        "lower_case": lower,
        "strip_accents": lower and found["strip_accents"] if strip_accents is None else strip_accents,
        "split_cjk": found["split_cjk"] if split_cjk is None else split_cjk,
    }


def decision(pieces: Sequence[str], given: Mapping[str, bool | None], clean: Clean = cleaned) -> str:
    """Says which of the settings that are None are False by `decided`, and why; "" for none."""
    hidden = hidden_pieces(tuple(pieces), clean)
    names = [name for name, value in given.items() if value is None and len(hidden[name]) > _STRAY * len(pieces)]
    if given["lower_case"] is False:  # then accents are kept anyway
        names = [name for name in names if name != "strip_accents"]
    examples = " and ".join(dict.fromkeys(repr(_example(hidden[name])) for name in names))
    made = " and ".join(f"{name}=False" for name in names)
    return f"{made}, as the vocabulary has pieces such as {examples}" if names else ""


def unreachable(pieces: Sequence[str], settings: Mapping[str, bool], clean: Clean = cleaned) -> str:
    """Says how many pieces no text reaches with these settings, and which settings reach them; "" for a few or none."""
    hidden = hidden_pieces(tuple(pieces), clean)
    most = _STRAY * len(pieces)
    hiding = [name for name, value in settings.items() if value and len(hidden.get(name, ())) > most]
    lines = []
    if hiding:
        lost = set().union(*(hidden[name] for name in hiding))
        examples = " and ".join(dict.fromkeys(repr(_example(hidden[name])) for name in hiding))
        lines.append(
            f"{len(lost):,} of {len(pieces):,} pieces cannot be reached with "
            f"{' and '.join(f'{name}=True' for name in hiding)}, such as {examples}; "
            f"{' and '.join(f'{name}=False' for name in hiding)} would reach them"
        )
    if "split_cjk" in settings and len(hidden[""]) > most:  # only WordPiece splits texts before
        lines.append(
            f"{len(hidden['']):,} of {len(pieces):,} pieces cannot be reached, such as {_example(hidden[''])!r}: words "
            "are split at punctuation, and control characters are dropped"
        )
    return "; ".join(lines)


def warn_of_unreachable(
    pieces: Sequence[str], settings: Mapping[str, bool], clean: Clean = cleaned, *, silent: bool = False
) -> None:
    """Logs what `unreachable` says, once in a process: programs open a vocabulary for each part that needs it.

    Args:
        pieces, settings, clean: as for `unreachable`.
        silent: logs nothing, now and later.
    """
    key = hash((tuple(pieces), *settings.items()))
    if key not in _WARNED and not silent and (found := unreachable(pieces, settings, clean)):
        logging.warning("vocabulary: %s", found)
    _WARNED.add(key)


def guess_tokenizer(pieces: Sequence[str]) -> tuple[Json, str]:
    """Guesses a tokenizer's settings from its vocabulary (`decided`), for checkpoints that do not store them.

    Returns:
        Keyword arguments for `Tokenizer`, and a sentence that explains the guess.
    """
    settings, hidden = decided(pieces), hidden_pieces(tuple(pieces))
    case = "lower-cases" if settings["lower_case"] else "keeps case"
    accents = "strips" if settings["strip_accents"] else "keeps"
    apart = "" if settings["split_cjk"] else ", and ideographs together in words,"
    several = "" if settings["split_cjk"] else f", and {_count(hidden['split_cjk'])} have ideographs beside others"
    return settings, (
        f"the tokenizer {case} and {accents} accents{apart}: guessed from the vocabulary, in which "
        f"{_count(hidden['lower_case'])} of {len(pieces):,} pieces have capitals and "
        f"{_count(hidden['strip_accents'])} have composed characters{several}"
    )


def _example(pieces: Sequence[str]) -> str:
    """One of the pieces, a whole word of several characters if there is one."""
    return next((piece for piece in pieces if len(piece) > 1 and not piece.startswith("##")), pieces[0])


def _count(pieces: Sequence[str]) -> str:
    return f"{len(pieces):,} (such as {pieces[0]!r})" if pieces else "0"
