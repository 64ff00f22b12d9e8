"""Changes to a checkpoint during conversion: another dtype, more or fewer vocabulary pieces, more positions."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor import Tensor, as_dtype, first_rows
from bert_tf.checkpoints.tokenizer_files.files import real_pieces
from bert_tf.errors import ConfigError, DataError
from bert_tf.model.head_table import HEADS
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.regression import Regression
from bert_tf.tasks.reranking import Reranking
from bert_tf.text import BaseTokenizer, Tokenizer
from bert_tf.text.vocabulary import check_vocabulary
from bert_tf.types import Array, Json

DTYPES = ("float32", "float16", "bfloat16")

# The variables with a row for each piece.
_OF_PIECES = ("embeddings/word_embeddings", "masked_lm/bias")
# Of a corpus, every 20th text is held out to estimate what trimming loses, up to a number that fits in memory.
_EVERY, _MOST_HELD_OUT, _BATCH = 20, 10_000, 4000

_MakeRows: TypeAlias = Callable[[Array, int], Array]  # (table, number of new rows) -> the new rows


def cast(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """Casts every weight to `dtype`, a name in `DTYPES`; Adam's moments stay as they are.

    Values that overflow are found only when a tensor is read; reading it then raises DataError.
    """
    tensors = {path: as_dtype(tensor, dtype, path) for path, tensor in checkpoint.tensors.items()}
    return dataclasses.replace(checkpoint, tensors=tensors)


def add_pieces(checkpoint: Checkpoint, pieces: Sequence[str]) -> Checkpoint:
    """Appends pieces to the vocabulary.

    Each new piece gets the mean of the existing word embeddings and of the masked-LM biases, so that it is neither
    likely nor unlikely from the start (Hewitt, 2021, "Initializing New Word Embeddings for Pretrained Language
    Models").
    """
    if not isinstance(checkpoint.tokenizer, Tokenizer):
        raise ConfigError("the checkpoint has no WordPiece vocabulary, so no pieces can be added to it")
    old = checkpoint.tokenizer.vocab
    known = set(old)
    twice = [piece for piece in pieces if piece in known]
    if twice:
        raise DataError(f"the vocabulary already has {twice[0]!r}; remove it from the pieces to add")
    check_vocabulary([*old, *pieces], "the vocabulary with the new pieces")
    count = len(pieces)
    changed = checkpoint
    for path in _OF_PIECES:
        changed = _with_rows(changed, path, count, _mean)
    config = dataclasses.replace(checkpoint.config, vocab_size=len(old) + count)
    warnings = [
        f"vocabulary: {count} added (ids {len(old)} to {len(old) + count - 1}), each with the mean of the {len(old)} "
        "word embeddings"
    ]
    extended = [*old, *pieces]
    tokenizer = Tokenizer(extended, **checkpoint.tokenizer.get_config())
    words = [piece for piece in pieces if not piece.startswith("##")]
    tokens = tokenizer.tokenize(words).to_list()
    unseen = [piece for piece, ids in zip(words, tokens, strict=True) if ids != [extended.index(piece)]]
    if unseen:
        warnings.append(
            f"the tokenizer never produces these, as it lower-cases text or splits it at punctuation first: "
            f"{' '.join(unseen[:10])}"
        )
    return dataclasses.replace(changed, config=config, tokenizer=tokenizer).reported(*warnings)


def trim_vocabulary(
    checkpoint: Checkpoint, texts: Iterable[str | bytes], characters: bool = True
) -> tuple[Checkpoint, Json]:
    """Removes the pieces that no text uses, with their word embeddings and masked-LM biases.

    The tokens of these texts stay the same (see `BaseTokenizer.needed_pieces`); their ids become smaller. What other
    texts lose is estimated from every 20th text, which is tokenized with the pieces of the others.

    Args:
        checkpoint: with a tokenizer.
        texts: a sample of the texts that the model is for; read once, and not kept in memory.
        characters: also keep each piece that is one character, so that other texts get no new unknown tokens.

    Returns:
        The checkpoint, and a report, JSON-ready: texts, the number of them; pieces and weights, [before, after];
        pieces_used, the number of pieces that the texts use; held_out, of every 20th text: their number, texts, and
        tokens, changed, how many of the tokens are others now, and unknown, unknown tokens [before, after]; None for
        fewer than 20 texts.

    Raises:
        DataError: the checkpoint has no tokenizer, or the texts have no tokens.
    """
    tokenizer = checkpoint.tokenizer_of_text("the model")
    count, used, held_out = 0, set[int](), list[str | bytes]()
    iterator = iter(texts)
    while batch := list(itertools.islice(iterator, _BATCH)):
        count += len(batch)
        if len(held_out) < _MOST_HELD_OUT:
            held_out += batch[_EVERY - 1 :: _EVERY]
            del batch[_EVERY - 1 :: _EVERY]
        used |= tokenizer.pieces_of(batch)
    all_used = used | (tokenizer.pieces_of(held_out) if held_out else set())
    if not all_used - set(tokenizer.special_ids):
        raise DataError(f"none of the {count:,} texts has a piece of the vocabulary; expected texts of its language")
    ids, trimmed = _subset(tokenizer, all_used, characters)
    config = dataclasses.replace(checkpoint.config, vocab_size=len(ids))
    changed = dataclasses.replace(
        _chosen_rows(checkpoint, ids), config=config, tokenizer=trimmed, source_metadata=_renumbered(checkpoint, ids)
    )
    report: Json = {
        "texts": count,
        "pieces_used": len(all_used),
        "pieces": [checkpoint.config.vocab_size, len(ids)],
        "weights": [sum(tensor.size for tensor in one.tensors.values()) for one in (checkpoint, changed)],
        "held_out": _loss(held_out, tokenizer, *_subset(tokenizer, used, characters)) if held_out else None,
    }
    return changed, report


def _subset(tokenizer: BaseTokenizer, used: Iterable[int], characters: bool) -> tuple[list[int], BaseTokenizer]:
    """The ids of the pieces to keep, ascending, and the tokenizer of these."""
    real = len(real_pieces(tokenizer.vocab))
    ids = sorted(number for number in tokenizer.needed_pieces(used, characters) if number < real)
    return ids, tokenizer.subset(ids)


def _loss(texts: Sequence[str | bytes], before: BaseTokenizer, ids: Sequence[int], after: BaseTokenizer) -> Json:
    """How the tokens of texts differ between a tokenizer and the one of its pieces `ids`; see `trim_vocabulary`."""
    tokens = []
    for tokenizer, numbers in ((before, np.arange(before.vocab_size)), (after, np.asarray(ids))):
        pieces, starts, ends = tokenizer.tokenize_with_offsets(list(texts))
        columns = numbers[pieces.values], pieces.value_rowids().numpy(), starts.values.numpy(), ends.values.numpy()
        tokens.append(list(zip(*(column.tolist() for column in columns), strict=True)))
    same = set(tokens[1])
    return {
        "texts": len(texts),
        "tokens": len(tokens[0]),
        "changed": sum(token not in same for token in tokens[0]),
        "unknown": [sum(token[0] == before.unk_id for token in one) for one in tokens],
    }


def _chosen_rows(checkpoint: Checkpoint, ids: Sequence[int]) -> Checkpoint:
    """Only these rows of the variables with a row for each piece, and of their Adam moments."""

    def chosen(tensors: dict[str, Tensor], paths: Iterable[str]) -> dict[str, Tensor]:
        return tensors | {
            path: tensors[path].mapped(
                lambda table: table[ids],
                shape=(len(ids), *tensors[path].shape[1:]),
                source=f"{tensors[path].source}, {len(ids)} of {tensors[path].shape[0]} rows",
            )
            for path in paths
            if path in tensors
        }

    moments = chosen(checkpoint.moments, [f"{path}/{moment}" for path in _OF_PIECES for moment in "mv"])
    return dataclasses.replace(checkpoint, tensors=chosen(checkpoint.tensors, _OF_PIECES), moments=moments)


def _renumbered(checkpoint: Checkpoint, ids: Sequence[int]) -> Json:
    """`source_metadata` with the new ids of special tokens; those of the tokenizer are set when it is written."""
    numbers = {old: new for new, old in enumerate(ids)}
    result = dict(checkpoint.source_metadata)
    if "config" in result:
        result["config"] = {
            name: numbers.get(value) if name.endswith("_token_id") and isinstance(value, int) else value
            for name, value in result["config"].items()
        }
    return result


def resize_positions(checkpoint: Checkpoint, length: int) -> Checkpoint:
    """Changes the longest input of a model to `length` tokens.

    Longer ones repeat the learned position embeddings from the start (Beltagy et al., 2020, Longformer, section 5):
    attention that learned to look at neighbours still finds them everywhere but at the seams. Shorter ones compute what
    they did before.

    Raises:
        ConfigError: the model has this length, its task reads longer inputs, or it is below 1.
    """
    config, path = checkpoint.config, "embeddings/position_embeddings"
    before = config.max_position_embeddings
    needed = checkpoint.task["settings"].get("max_length", 0) if checkpoint.task else 0
    if length == before or length < 1:
        raise ConfigError(f"max_position_embeddings {length}: the checkpoint has {before}")
    if length < needed:
        raise ConfigError(f"max_position_embeddings {length}: the task of the model reads up to {needed} tokens")

    def repeated(table: Array, count: int) -> Array:
        learned = table[config.position_offset :]
        return np.resize(learned, (count, table.shape[1]))  # repeats from the start

    if config.positions == "table" and length > before:
        checkpoint = _with_rows(checkpoint, path, length - before, repeated).reported(
            f"positions: extended from {before} to {length} by repeating the learned ones from the start; train on "
            "long texts before relying on them"
        )
    elif length < before:
        checkpoint = _with_first_rows(checkpoint, path, config.position_offset + length)
    source_metadata = dict(checkpoint.source_metadata)
    if "tokenizer_config" in source_metadata:  # its length limit no longer holds
        source_metadata["tokenizer_config"] = {
            name: value for name, value in source_metadata["tokenizer_config"].items() if name != "model_max_length"
        }
    config = dataclasses.replace(config, max_position_embeddings=length)
    return dataclasses.replace(checkpoint, config=config, source_metadata=source_metadata)


def _with_first_rows(checkpoint: Checkpoint, path: str, rows: int) -> Checkpoint:
    """Cuts a variable, if the checkpoint has it, and its Adam moments."""
    tensors, moments = dict(checkpoint.tensors), dict(checkpoint.moments)
    for found in (tensors, moments):
        for name in {path, f"{path}/m", f"{path}/v"} & found.keys():
            found[name] = first_rows(found[name], rows)
    return dataclasses.replace(checkpoint, tensors=tensors, moments=moments)


def _mean(table: Array, count: int) -> Array:
    return np.repeat(table.astype(np.float64).mean(0, keepdims=True), count, axis=0)


def _with_rows(checkpoint: Checkpoint, path: str, count: int, make: _MakeRows) -> Checkpoint:
    """Appends the rows `make(array, count)` to a variable, if the checkpoint has it; its Adam moments get zeros."""
    tensors, moments = dict(checkpoint.tensors), dict(checkpoint.moments)
    if path in tensors:
        tensors[path] = _longer(tensors[path], count, make)
    for name in (f"{path}/m", f"{path}/v"):
        if name in moments:
            moments[name] = _longer(moments[name], count, lambda table, count: np.zeros((count, *table.shape[1:])))
    return dataclasses.replace(checkpoint, tensors=tensors, moments=moments)


def _longer(tensor: Tensor, count: int, make: _MakeRows) -> Tensor:
    return tensor.mapped(
        lambda table: np.concatenate([table, make(table, count).astype(table.dtype)]),
        shape=(tensor.shape[0] + count, *tensor.shape[1:]),
        source=f"{tensor.source}, {count} rows added",
    )


def as_masked_lm(checkpoint: Checkpoint) -> Checkpoint:
    """A pre-trained model with a second head, such as next-sentence prediction, as a masked language model alone."""
    task = checkpoint.task
    if not task or not checkpoint.head or checkpoint.head == "masked_lm":
        return checkpoint
    if "masked_lm" not in HEADS[checkpoint.head].parts:
        return checkpoint
    kept = {name: task["settings"][name] for name in ("max_length",) if name in task["settings"]}
    return dataclasses.replace(checkpoint, task={"name": MaskedLM.name, "settings": kept})


def as_reranker(checkpoint: Checkpoint) -> Checkpoint:
    """A model that predicts a number for a pair, such as a CrossEncoder, as one that scores a query with a text."""
    task = checkpoint.task
    if not task or task["name"] != Regression.name or checkpoint.head != "classification":
        return checkpoint
    kept = {name: task["settings"][name] for name in ("max_length", "activation") if name in task["settings"]}
    settings = {"activation": "linear", **kept, "labels": ["score"]}
    return dataclasses.replace(checkpoint, task={"name": Reranking.name, "settings": settings})
