"""Which kind of tokenizer files hold: by the ending of a vocabulary's name, or by what a model directory says."""

import os
from collections.abc import Callable, Mapping

from bert_tf.config.data import SavedTokenizer, TokenizerSettings
from bert_tf.config.values import restored
from bert_tf.errors import located
from bert_tf.files import check_unchanged, read_bytes, text_path
from bert_tf.progress import log
from bert_tf.text.base import ALBERT, BaseTokenizer, special_names
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.byte_pair_model import check_merges, read_byte_pairs
from bert_tf.text.normalization_table import albert_cleaned
from bert_tf.text.normalizer import strips_accents
from bert_tf.text.sentence_piece import SentencePieceTokenizer, albert_tokenizer, parse_model, read_model
from bert_tf.text.vocabulary import decided, decision, warn_of_unreachable
from bert_tf.text.wordpiece import Tokenizer
from bert_tf.types import Json, StrPath

_KINDS: dict[str, type[BaseTokenizer]] = {
    kind.KIND: kind for kind in (Tokenizer, BytePairTokenizer, SentencePieceTokenizer)
}
_MOST_ADDED = 0.01  # of the pieces
FILES = tuple(name for kind in _KINDS.values() for name in kind.FILES)  # that a model directory may have


def open_tokenizer(vocab: StrPath, settings: TokenizerSettings) -> BaseTokenizer:
    """Opens the tokenizer of a vocabulary.

    Args:
        vocab: path of a .model file, of a vocab.json with merges.txt beside it, or of a vocab.txt of any other name.
        settings: of WordPiece, and of ALBERT's SentencePiece; the vocabulary decides those that are None.

    Raises:
        DataError: a file cannot be read, or does not hold what its name says.
    """
    path = text_path(vocab)
    if path.endswith(".model"):
        model = read_model(path)
        with located(path):
            pieces = [piece.piece for piece in parse_model(model).pieces]
            if special_names(pieces) != ALBERT:
                return SentencePieceTokenizer(model)
            given: Json = {"lower_case": settings.lower_case, "strip_accents": settings.strip_accents}
            changes = decided(pieces, **given, clean=albert_cleaned)
            del changes["split_cjk"]
            warn_of_unreachable(pieces, changes, albert_cleaned)
            _log(path, decision(pieces, given, albert_cleaned))
            return albert_tokenizer(model, **changes)
    if path.endswith(".json"):
        return BytePairTokenizer(path, os.path.join(os.path.dirname(path), BytePairTokenizer.FILES[1]))
    given = {name: getattr(settings, name) for name in ("lower_case", "strip_accents", "split_cjk")}
    tokenizer = Tokenizer(path, settings.lower_case, settings.strip_accents, settings.split_cjk)
    _log(path, decision(tokenizer.vocab, given))
    return tokenizer


def _log(path: str, found: str) -> None:
    if found:
        log(f"{path}: {found}")


def saved_tokenizer(folder: str, description: Json, checksums: Mapping[str, str], listed: str) -> BaseTokenizer:
    """Opens the tokenizer that `BaseTokenizer.save` wrote.

    Args:
        folder: where it is.
        description: `BaseTokenizer.description`; without a kind, WordPiece.
        checksums: `BaseTokenizer.checksums`; without those that earlier versions did not write.
        listed: the file that lists them.

    Raises:
        ConfigError: `description` is none.
        DataError: as `open_tokenizer`, or a file was changed.
    """
    settings = restored(SavedTokenizer, description, "tokenizer")
    kind = _KINDS[settings.kind]
    paths = [os.path.join(folder, name) for name in kind.FILES]
    for name, path in zip(kind.FILES, paths, strict=True):
        if name in checksums:
            check_unchanged(path, read_bytes(path), checksums[name], listed)
    added = settings.added_pieces
    named = {name: description[name] for name in kind.SETTINGS if name in description} | {"added_pieces": added}
    if kind is Tokenizer:
        accents = strips_accents(settings.lower_case, settings.strip_accents)
        named |= {"lower_case": settings.lower_case, "strip_accents": accents, "split_cjk": settings.split_cjk}
    if kind is BytePairTokenizer:
        pieces, merges = read_byte_pairs(paths[0], paths[1])
        with located(f"{paths[0]} and {os.path.basename(paths[1])}"):
            if not checksums:  # and pieces that were added to the vocabulary before it was saved are not known
                check_merges(pieces, merges, added, most=_MOST_ADDED * len(pieces))
            return BytePairTokenizer(pieces, merges, **named)
    create: Callable[..., BaseTokenizer] = kind
    return create(*paths, **named)
