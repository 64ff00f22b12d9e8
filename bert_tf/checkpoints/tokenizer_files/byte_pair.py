"""Byte-level BPE in a Hugging Face directory: vocab.json with merges.txt, or tokenizer.json of the type BPE."""

from bert_tf.checkpoints.tokenizer_files.files import (
    CONFIG,
    LIBRARY,
    Known,
    TokenizerFiles,
    UnsupportedTokenizer,
    real_pieces,
    require_known,
    write_library,
)
from bert_tf.errors import DataError, located
from bert_tf.files import checked
from bert_tf.text.base import ROBERTA
from bert_tf.text.byte_pair import BytePairTokenizer, check_merges, read_byte_pairs
from bert_tf.types import Json

FILES: tuple[str, ...] = BytePairTokenizer.FILES
GENERATED = {"add_prefix_space"}  # by `write`, in tokenizer_config.json

_PRE_TOKENIZERS: Known = {"ByteLevel": {"add_prefix_space": (False,), "use_regex": (True,)}}
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
    if not files.generic and files.config.get("add_prefix_space"):
        raise UnsupportedTokenizer(f"add_prefix_space is true in {CONFIG}, which puts a space before texts")
    listed = _of_library(files) if files.library else None
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
    with located(source):
        tokenizer = BytePairTokenizer(complete, merges)
        check_merges(pieces, merges, files.added())
    return tokenizer


def _of_library(files: TokenizerFiles) -> tuple[list[str], list[str]]:
    """The pieces and merges of tokenizer.json, as from `read_byte_pairs`."""
    if files.algorithm != "BPE":
        raise UnsupportedTokenizer(f"{LIBRARY} holds {files.algorithm!r}, not byte-level BPE")
    require_known(files.components("normalizer"), {}, "normalizes text by")
    steps = files.components("pre_tokenizer")
    require_known(steps, _PRE_TOKENIZERS, "splits text by")
    if len(steps) != 1:
        raise UnsupportedTokenizer(f"{LIBRARY} splits text by {len(steps)} steps, not by ByteLevel alone")
    for name, accepted in _MODEL.items():
        if files.model.get(name) not in accepted:
            raise UnsupportedTokenizer(f"{LIBRARY} has BPE with {name} {files.model[name]!r}")
    file = files.file(LIBRARY)
    merges = checked(files.model.get("merges") or [], list[str | list[str]], file, "model.merges")
    # Strings or, in newer files, pairs.
    lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    return files.listed(), lines


def write(path: str, tokenizer: BytePairTokenizer) -> Json:
    """Writes the vocabulary; returns the settings for tokenizer_config.json."""
    real = BytePairTokenizer(real_pieces(tokenizer.vocab), tokenizer.merges)
    if tokenizer.special_names == ROBERTA:
        real.save(path)
        return {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False}
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    ids = {piece: number for number, piece in enumerate(real.vocab)}
    merges = [(first, second) for first, _, second in (merge.partition(" ") for merge in real.merges)]
    library = Tokenizer(models.BPE(ids, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return write_library(path, library, tokenizer)
