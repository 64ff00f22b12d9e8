"""Byte-level BPE in a Hugging Face directory: vocab.json with merges.txt, or tokenizer.json of the type BPE."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_tf.checkpoints.tokenizer_files.files import (
    LIBRARY,
    TokenizerFiles,
    UnsupportedTokenizer,
    real_pieces,
    write_library,
)
from bert_tf.errors import DataError, located
from bert_tf.files import checked
from bert_tf.text.base import ROBERTA
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.byte_pair_model import check_merges, read_byte_pairs
from bert_tf.types import Json

if TYPE_CHECKING:
    import tokenizers

FILES: tuple[str, ...] = BytePairTokenizer.FILES
GENERATED = {"add_prefix_space"}  # by `write`, in tokenizer_config.json

ALGORITHM, _BYTE_LEVEL, _COMPOSES = "BPE", "ByteLevel", "NFC"
# Values of the model in tokenizer.json without an effect; no text is unknown to byte-level BPE.
_MODEL = {
    "dropout": (None, 0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "ignore_merges": (None, False),
}


def read(files: TokenizerFiles) -> BytePairTokenizer:
    """Reads the tokenizer.

    Raises:
        UnsupportedTokenizer: text is split in other ways.
    """
    usable = files.library and (files.algorithm == ALGORITHM or not files.has(*FILES))
    listed = _of_library(files) if usable else None
    stored = read_byte_pairs(*map(files.file, FILES)) if files.has(*FILES) else None
    if listed and stored and (stored[0][: len(listed[0])], stored[1]) != listed:
        files.differ(" and ".join(FILES))
        stored = None
    found = stored or listed
    if not found:
        there, lacking = sorted(FILES, key=files.has, reverse=True)
        raise DataError(f"{files.path}: {there} without {lacking}; download the one of this model")
    pieces, merges = found
    source = f"{files.file(FILES[0])} and {FILES[1]}" if stored else files.file(LIBRARY)
    complete = files.completed(pieces, source, fill=True)
    parts = ("normalizer", "pre_tokenizer")
    normalizers, steps = ([one.get("type") for one in files.components(part)] for part in parts)
    with located(source):
        # Classes of Transformers that are known here do without.
        nfc = files.generic and _COMPOSES in normalizers
        tokenizer = BytePairTokenizer(complete, merges, _adds_space(files), files.added_pieces, nfc)
        check_merges(pieces, merges, files.added())
    usual = steps == [_BYTE_LEVEL] and files.components("pre_tokenizer")[0].get("use_regex", True)
    if normalizers != [_COMPOSES] * tokenizer.nfc or not (listed and usual):
        files.compare_texts(tokenizer, beside=None if listed else " and ".join(FILES))
    return tokenizer


def _adds_space(files: TokenizerFiles) -> bool:
    """Whether a space is put before texts."""
    if not files.generic:
        return bool(files.config.get("add_prefix_space"))
    steps = files.components("pre_tokenizer")
    return any(one.get("add_prefix_space", True) for one in steps if one["type"] == _BYTE_LEVEL)


def _of_library(files: TokenizerFiles) -> tuple[list[str], list[str]]:
    """The pieces and merges of tokenizer.json, as from `read_byte_pairs`."""
    if files.algorithm != ALGORITHM:
        raise UnsupportedTokenizer(f"{LIBRARY} holds {files.algorithm!r}, not byte-level BPE")
    steps = [str(one.get("type")) for one in files.components("pre_tokenizer")]
    if _BYTE_LEVEL not in steps:
        raise UnsupportedTokenizer(f"{LIBRARY} splits text by {', '.join(steps) or 'nothing'}, not by {_BYTE_LEVEL}")
    return files.listed(), merges_of(files)


def merges_of(files: TokenizerFiles) -> list[str]:
    """The merges of a tokenizer.json of the type BPE, each two pieces separated by a space."""
    for name, accepted in _MODEL.items():
        if files.model.get(name) not in accepted:
            raise UnsupportedTokenizer(f"{LIBRARY} has BPE with {name} {files.model[name]!r}")
    file = files.file(LIBRARY)
    merges = checked(files.model.get("merges") or [], list[str | list[str]], file, "model.merges")
    # Strings or, in newer files, pairs.
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def write(path: str, tokenizer: BytePairTokenizer) -> Json:
    """Writes the vocabulary; returns the settings for tokenizer_config.json."""
    pieces = real_pieces(tokenizer.vocab)
    if tokenizer.special_names == ROBERTA and not tokenizer.nfc:
        BytePairTokenizer(pieces, tokenizer.merges, added_pieces=tokenizer.added_pieces).save(path)
        return {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": tokenizer.add_prefix_space}
    return write_library(path, library(tokenizer, pieces), tokenizer)


def library(tokenizer: BytePairTokenizer, pieces: Sequence[str]) -> "tokenizers.Tokenizer":
    """The tokenizer.json of a tokenizer with these pieces, and without added ones."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = {piece: number for number, piece in enumerate(pieces)}
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in tokenizer.merges)]
    made = Tokenizer(models.BPE(ids, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=tokenizer.add_prefix_space)
    if tokenizer.nfc:
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    return made
