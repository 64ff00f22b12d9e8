"""Changes to a checkpoint during conversion: another dtype, more vocabulary pieces, more positions."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor import Tensor, as_dtype
from bert_tf.errors import ConfigError, DataError
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import check_vocabulary
from bert_tf.types import Array

DTYPES = ("float32", "float16", "bfloat16")

_MakeRows: TypeAlias = Callable[[Array, int], Array]  # (table, number of new rows) -> the new rows


def cast(checkpoint: Checkpoint, dtype: str) -> Checkpoint:
    """Casts every weight to `dtype`, a name in `DTYPES`; Adam's slots stay as they are.

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
    changed = _with_rows(checkpoint, "embeddings/word_embeddings", count, _mean)
    changed = _with_rows(changed, "masked_lm/bias", count, _mean)
    config = dataclasses.replace(checkpoint.config, vocab_size=len(old) + count)
    warnings = [
        f"vocabulary: {count} added (ids {len(old)} to {len(old) + count - 1}), each with the mean of the {len(old)} "
        "word embeddings"
    ]
    extended = [*old, *pieces]
    tokenizer = Tokenizer(extended, **checkpoint.tokenizer.get_config())
    result = dataclasses.replace(changed, config=config, tokenizer=tokenizer, warnings=checkpoint.warnings + warnings)
    words = [piece for piece in pieces if not piece.startswith("##")]
    tokens = tokenizer.tokenize(words).to_list()
    unseen = [piece for piece, ids in zip(words, tokens, strict=True) if ids != [extended.index(piece)]]
    if unseen:
        result.warnings.append(
            f"the tokenizer never produces these, as it lower-cases text or splits it at punctuation first: "
            f"{' '.join(unseen[:10])}"
        )
    return result


def extend_positions(checkpoint: Checkpoint, length: int) -> Checkpoint:
    """Extends the position embeddings to inputs of `length` tokens.

    The learned embeddings are repeated from the start (Beltagy et al., 2020, Longformer, section 5): attention that
    learned to look at neighbours still finds them everywhere but at the seams.
    """
    config, path = checkpoint.config, "embeddings/position_embeddings"
    more = length - config.max_position_embeddings
    if more <= 0:
        raise ConfigError(f"max_position_embeddings {length}: the checkpoint has {config.max_position_embeddings}")

    def repeated(table: Array, count: int) -> Array:
        learned = table[config.position_offset :]
        return np.resize(learned, (count, table.shape[1]))  # repeats from the start

    source_metadata = dict(checkpoint.source_metadata)
    if "tokenizer_config" in source_metadata:  # its length limit no longer holds
        source_metadata["tokenizer_config"] = {
            name: value for name, value in source_metadata["tokenizer_config"].items() if name != "model_max_length"
        }
    return dataclasses.replace(
        _with_rows(checkpoint, path, more, repeated),
        config=dataclasses.replace(config, max_position_embeddings=length),
        source_metadata=source_metadata,
        warnings=[
            *checkpoint.warnings,
            f"positions: extended from {config.max_position_embeddings} to {length} by repeating the learned ones from "
            "the start; train on long texts before relying on them",
        ],
    )


def _mean(table: Array, count: int) -> Array:
    return np.repeat(table.astype(np.float64).mean(0, keepdims=True), count, axis=0)


def _with_rows(checkpoint: Checkpoint, path: str, count: int, make: _MakeRows) -> Checkpoint:
    """Appends the rows `make(array, count)` to a variable, if the checkpoint has it; its Adam slots get zeros."""
    tensors, slots = dict(checkpoint.tensors), dict(checkpoint.slots)
    if path in tensors:
        tensors[path] = _longer(tensors[path], count, make)
    for name in (f"{path}/m", f"{path}/v"):
        if name in slots:
            slots[name] = _longer(slots[name], count, lambda table, count: np.zeros((count, *table.shape[1:])))
    return dataclasses.replace(checkpoint, tensors=tensors, slots=slots)


def _longer(tensor: Tensor, count: int, make: _MakeRows) -> Tensor:
    return tensor.mapped(
        lambda table: np.concatenate([table, make(table, count).astype(table.dtype)]),
        shape=(tensor.shape[0] + count, *tensor.shape[1:]),
        source=f"{tensor.source}, {count} rows added",
    )
