"""Tokenizers in Hugging Face's directories: one module for each kind, and the choice among them."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bert_tf.checkpoints.tokenizer_files import byte_pair, sentence_piece, wordpiece
from bert_tf.checkpoints.tokenizer_files.files import (
    CONFIG,
    GENERIC_CLASSES,
    LIBRARY,
    SPECIAL_NAMES,
    TokenizerFiles,
    UnsupportedTokenizer,
    add_pieces,
    read_config,
    real_pieces,
)
from bert_tf.checkpoints.tokenizer_files.sentence_piece_library import is_of_pieces
from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.files import write_json
from bert_tf.text import BaseTokenizer, Tokenizer
from bert_tf.text.base import FLAGS, ROBERTA, SPECIAL
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from bert_tf.types import Json

if TYPE_CHECKING:
    import tokenizers

__all__ = ["library_of", "other_settings", "read_config", "read_tokenizer", "write_tokenizer"]


class _Kind(Protocol):
    """A module of one kind of tokenizer."""

    FILES: tuple[str, ...]  # names of vocabularies, besides tokenizer.json
    GENERATED: set[str]  # names in tokenizer_config.json

    def read(self, files: TokenizerFiles) -> BaseTokenizer:
        """Reads the tokenizer."""

    def write(self, path: str, tokenizer: Any) -> Json:
        """Writes the vocabulary; returns the settings for tokenizer_config.json."""

    def library(self, tokenizer: Any, pieces: Sequence[str]) -> "tokenizers.Tokenizer":
        """The tokenizer.json of a tokenizer with these pieces, and without added ones."""


_KINDS: tuple[_Kind, ...] = (wordpiece, byte_pair, sentence_piece)
_WRITERS: dict[type[BaseTokenizer], _Kind] = {
    Tokenizer: wordpiece,
    BytePairTokenizer: byte_pair,
    SentencePieceTokenizer: sentence_piece,
}
# Class of the tokenizer, without "Fast" at its end -> its kind.
_CLASSES: dict[str, _Kind] = {
    "BertTokenizer": wordpiece,
    "DistilBertTokenizer": wordpiece,
    "ElectraTokenizer": wordpiece,
    "RobertaTokenizer": byte_pair,
    "XLMRobertaTokenizer": sentence_piece,
    "CamembertTokenizer": sentence_piece,
    "AlbertTokenizer": sentence_piece,
    "KoBertTokenizer": sentence_piece,
    "XLNetTokenizer": sentence_piece,
}
_ALGORITHMS: dict[str | None, _Kind] = {"WordPiece": wordpiece, "BPE": byte_pair, "Unigram": sentence_piece}
# For a tokenizer.json that is not supported. Classes that follow it in everything do not tell how to read a vocab.txt.
_WAY_OUT = (
    "put the .model file that it was made of beside it, or its vocab.txt, with a tokenizer_class such as BertTokenizer "
    f"in {CONFIG}, or give the model ids"
)
# Of no use in another directory: old paths, and code that would be downloaded and run.
_NOT_KEPT = {"auto_map", "name_or_path", "tokenizer_file", "vocab_file"}


def read_tokenizer(
    path: str, config: Json, vocab_size: int, *, default_class: str | None, required: bool
) -> tuple[BaseTokenizer | None, list[str]]:
    """Reads vocabulary and settings, as Transformers would use them.

    Args:
        path: directory.
        config: content of tokenizer_config.json.
        vocab_size: of the model.
        default_class: class of the tokenizer if `config` names none.
        required: whether it is an error if the directory has no tokenizer at all.

    Returns:
        The tokenizer, and warnings. If it is not of a kind that is supported, None, and a warning that says why, and
        what to do.

    Raises:
        DataError: a file is damaged, or the vocabulary is not that of the model.
    """
    files = TokenizerFiles.open(path, config, default_class=default_class, known=_CLASSES.keys(), vocab_size=vocab_size)
    beside = files.without_library()
    try:
        kind = _kind(files)
        if not kind:
            if required:
                names = " nor ".join(_CLASSES.get(files.name or "", wordpiece).FILES)
                raise DataError(f"{path}: neither {names} nor {LIBRARY}; download the one of this model")
            raise UnsupportedTokenizer("the directory has none")
        tokenizer = kind.read(files)
    except UnsupportedTokenizer as reason:
        return _read_beside(beside, str(reason))
    files.compare(tokenizer)
    return tokenizer, files.warnings


def _read_beside(files: TokenizerFiles, reason: str) -> tuple[BaseTokenizer | None, list[str]]:
    """As `read_tokenizer`, from files without a tokenizer.json, which cannot be read for this reason."""
    try:
        kind = _kind(files)
        if not kind:
            return _none(reason)
        tokenizer = kind.read(files)
    except UnsupportedTokenizer:
        return _none(reason)
    files.compare(tokenizer)
    names = " and ".join(filter(files.has, kind.FILES)) or sentence_piece.found(files)
    return tokenizer, [*files.warnings, f"tokenizer: {names} is used, as {reason}"]


def _none(reason: str) -> tuple[None, list[str]]:
    return None, [f"tokenizer: none, as {reason}; {_WAY_OUT}"]


def _kind(files: TokenizerFiles) -> _Kind | None:
    """The kind of the tokenizer; None if the directory has none of the files that it needs."""
    name = files.name
    named = _CLASSES.get(name or "")
    if files.library:
        files.check_version()
        if is_of_pieces(files):
            return sentence_piece
        by_library = _ALGORITHMS.get(files.algorithm)
        if not by_library:
            raise UnsupportedTokenizer(f"{LIBRARY} holds {files.algorithm!r}, not WordPiece, BPE or Unigram")
        return named or by_library
    if sentence_piece.numbers_lines(files) or (files.generic and sentence_piece.found(files)):
        return sentence_piece
    if files.generic:
        raise UnsupportedTokenizer(f"{name} needs a {LIBRARY} or a .model file, which is not there")
    return next((kind for kind in ([named] if named else _KINDS) if any(map(files.has, kind.FILES))), None)


def other_settings(config: Json) -> Json:
    """The settings in tokenizer_config.json to write back unchanged: all that `write_tokenizer` does not generate."""
    generated = {"tokenizer_class", *SPECIAL_NAMES, *(name for kind in _KINDS for name in kind.GENERATED)}
    return {name: value for name, value in config.items() if name not in generated | _NOT_KEPT}


def write_tokenizer(path: str, tokenizer: BaseTokenizer, config: Json, model: BertConfig, stem: str) -> list[str]:
    """Writes the vocabulary and tokenizer_config.json, in the files that Transformers has for the tokenizer.

    Args:
        path: directory.
        tokenizer: to write.
        config: from `other_settings`, or {}.
        model: config of the model.
        stem: start of the names of the model's classes in Transformers.

    Returns:
        Warnings.

    Raises:
        ConfigError: no files of Transformers can hold the tokenizer; nothing was written.
    """
    settings = _WRITERS[type(tokenizer)].write(path, tokenizer)
    if isinstance(tokenizer, Tokenizer) and _CLASSES.get(f"{stem}Tokenizer") == wordpiece:
        settings["tokenizer_class"] = f"{stem}Tokenizer"  # of DistilBERT and ELECTRA, which do the same as BERT's
    config = _of_vocabulary(config, {piece: number for number, piece in enumerate(real_pieces(tokenizer.vocab))})
    if decoder := _decoder(config.get("added_tokens_decoder") or {}, tokenizer):
        config["added_tokens_decoder"] = decoder
    longest = model.max_position_embeddings
    result: Json = config | settings | {"model_max_length": min(config.get("model_max_length") or longest, longest)}
    result |= dict(zip(SPECIAL_NAMES, tokenizer.special_names, strict=True))
    # As the model has them, whatever the class of the tokenizer: types 0 and 1 need two rows.
    types = ["token_type_ids"] if model.type_vocab_size > 1 else []
    result["model_input_names"] = ["input_ids", *types, "attention_mask"]
    write_json(os.path.join(path, CONFIG), result)
    if settings["tokenizer_class"] in GENERIC_CLASSES and not os.path.exists(os.path.join(path, LIBRARY)):
        return ["tokenizer: Transformers adds no special tokens around texts, as it has no class for such a model"]
    return []


def library_of(tokenizer: BaseTokenizer, pieces: Sequence[str]) -> bytes:
    """The content of a tokenizer.json that adds no special tokens around texts.

    Args:
        tokenizer: to write.
        pieces: the first ones of its vocabulary, without special tokens that no text has.

    Raises:
        ConfigError: tokenizer.json cannot hold the tokenizer.
    """
    made = _WRITERS[type(tokenizer)].library(tokenizer, pieces)
    add_pieces(made, {piece: flags for piece, flags in tokenizer.added_pieces.items() if piece in {*pieces}})
    return made.to_str().encode()


def _decoder(decoder: Json, tokenizer: BaseTokenizer) -> Json:
    """The `added_tokens_decoder` of a source, with the added pieces of the tokenizer.

    And with <mask>, which takes the white space before it along only in some releases if no file says so.
    """
    known = {token["content"] for token in decoder.values()}
    added = {ROBERTA.mask: (SPECIAL, "lstrip")} | {**tokenizer.added_pieces}
    tokens = {
        str(number): {"content": piece} | {flag: flag in added[piece] for flag in FLAGS}
        for number, piece in enumerate(tokenizer.vocab)
        if piece in added and piece not in known
    }
    return decoder | tokens


def _of_vocabulary(config: Json, ids: Mapping[str, int]) -> Json:
    """A tokenizer_config.json with the ids of a vocabulary, and without the tokens that it lacks.

    Transformers would append these: their ids would have no row in the word embedding.
    """

    def known(token: Any) -> bool:
        return (token.get("content") if isinstance(token, dict) else token) in ids

    result: Json = {}
    for name, value in config.items():
        if name == "added_tokens_decoder":
            tokens = {ids[token["content"]]: token for token in (value or {}).values() if known(token)}
            result[name] = {str(number): tokens[number] for number in sorted(tokens)}
        elif name.endswith("special_tokens") and isinstance(value, list):
            result[name] = [token for token in value if known(token)]
        elif name.endswith("special_tokens") and isinstance(value, dict):
            result[name] = {key: token for key, token in value.items() if known(token)}
        elif not name.endswith("_token") or not isinstance(value, str | dict) or known(value):
            result[name] = value
    if isinstance(result.get("extra_special_tokens"), list):  # Transformers 4 reads an object only, and this list
        result["additional_special_tokens"] = result.pop("extra_special_tokens")
    return result
