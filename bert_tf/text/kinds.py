"""Which kind of tokenizer files hold: by the ending of a vocabulary's name, or by what a model directory says."""

import os

from bert_tf.config.data import SavedTokenizer, TokenizerSettings
from bert_tf.config.values import restored
from bert_tf.errors import located
from bert_tf.files import text_path
from bert_tf.text.base import ALBERT, BaseTokenizer, special_names
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.normalizer import strips_accents
from bert_tf.text.sentence_piece import SentencePieceTokenizer, albert_tokenizer, parse_model, read_model
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.types import Json, StrPath

_FILES = {kind.KIND: kind.FILES for kind in (Tokenizer, BytePairTokenizer, SentencePieceTokenizer)}
FILES = tuple(name for files in _FILES.values() for name in files)  # that a model directory may have


def open_tokenizer(vocab: StrPath, settings: TokenizerSettings) -> BaseTokenizer:
    """Opens the tokenizer of a vocabulary.

    Args:
        vocab: path of a .model file, of a vocab.json with merges.txt beside it, or of a vocab.txt of any other name.
        settings: of WordPiece, and of ALBERT's SentencePiece.

    Raises:
        DataError: a file cannot be read, or does not hold what its name says.
    """
    path = text_path(vocab)
    if path.endswith(".model"):
        model = read_model(path)
        with located(path):
            if special_names([piece.piece for piece in parse_model(model).pieces]) != ALBERT:
                return SentencePieceTokenizer(model)
            accents = strips_accents(settings.lower_case, settings.strip_accents)
            return albert_tokenizer(model, settings.lower_case, accents)
    if path.endswith(".json"):
        return BytePairTokenizer(path, os.path.join(os.path.dirname(path), BytePairTokenizer.FILES[1]))
    return Tokenizer(path, settings.lower_case, settings.strip_accents, settings.split_cjk)


def saved_tokenizer(folder: str, description: Json) -> BaseTokenizer:
    """Opens the tokenizer that `BaseTokenizer.save` wrote.

    Args:
        folder: where it is.
        description: `BaseTokenizer.description`; without a kind, WordPiece.

    Raises:
        ConfigError: `description` is none.
        DataError: as `open_tokenizer`.
    """
    settings = restored(SavedTokenizer, description, "tokenizer")
    path = os.path.join(folder, _FILES[settings.kind][0])
    if settings.kind == SentencePieceTokenizer.KIND:
        named = {name: bool(description.get(name)) for name in SentencePieceTokenizer.SETTINGS}
        return SentencePieceTokenizer(path, **named)
    return open_tokenizer(path, settings)
