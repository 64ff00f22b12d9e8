"""Guesses a tokenizer's settings from its vocabulary, for checkpoints that do not store them."""

import unicodedata
from collections.abc import Sequence

# Pieces of a kind are ignored up to this share of the vocabulary: they may have been added to it later.
_STRAY = 0.001


def guess_tokenizer(pieces: Sequence[str]) -> tuple[dict[str, bool], str]:
    """Guesses a tokenizer's settings.

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
