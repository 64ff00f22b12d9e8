"""What a vocabulary shows of the tokenizer that it was learnt with, for checkpoints that do not say."""

import unicodedata

# Up to this share of the vocabulary, pieces of a kind may be ones that somebody added to it later.
_STRAY = 0.001


def guess_tokenizer(pieces):
    """Guesses a tokenizer's settings.

    Text that was lower-cased holds no capitals, and text that lost its accents is decomposed (NFD): a vocabulary with
    pieces that could not come up otherwise was learnt without.

    Args:
        pieces: list of str.

    Returns:
        dict of keyword arguments for `Tokenizer`, and a sentence on what they were guessed from.
    """
    words = [piece for piece in pieces if not (piece.startswith("[") and piece.endswith("]"))]  # the specials apart
    capitals = [piece for piece in words if piece.lower() != piece]
    composed = [piece for piece in words if unicodedata.normalize("NFD", piece) != piece]
    lower_case = len(capitals) <= _STRAY * len(words)
    strip_accents = lower_case and len(composed) <= _STRAY * len(words)
    case, accents = "lower-cases" if lower_case else "keeps case", "strips" if strip_accents else "keeps"
    return (
        {"lower_case": lower_case, "strip_accents": strip_accents, "split_cjk": True},
        f"the tokenizer {case} and {accents} accents: guessed from the vocabulary, where of {len(words):,} pieces "
        f"{_count(capitals)} have capitals and {_count(composed)} composed characters",
    )


def _count(pieces):
    return f"{len(pieces):,} (as {pieces[0]!r})" if pieces else "0"
