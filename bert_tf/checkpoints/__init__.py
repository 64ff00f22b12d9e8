"""Loading and saving models: this project's own directory format and the formats of other projects."""

import os

import keras
from absl import logging

from bert_tf.checkpoints.formats import open_checkpoint
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.weight_map import first_names
from bert_tf.config.values import checked_arguments
from bert_tf.model.encoder import BertEncoder
from bert_tf.text.base import BaseTokenizer

# Warnings of a Checkpoint that begin so are about what changes its answers: a guess that may be wrong, or something
# beside it that is not used.
_SHOWN = ("head:", "labels:", "tokenizer:", "unread:", "vectors:")


@checked_arguments
def load(
    path: str | os.PathLike[str], *, pooler: bool | None = None, dtype: str | None = None, allow_pickle: bool = False
) -> tuple[BertEncoder, BaseTokenizer | None]:
    """Loads an encoder and its tokenizer from a checkpoint of any format that `formats.open_checkpoint` reads.

    Args:
        path: directory or file, or "hf://OWNER/NAME".
        pooler: None: as in the checkpoint; True: the checkpoint's, or else a new, untrained one; False: none.
        dtype: Keras dtype policy to compute in; None for the global one.
        allow_pickle: read pickled PyTorch files too (needs PyTorch; only tensors and plain containers, no code is run).

    Returns:
        The encoder, and its tokenizer or None if the checkpoint has none that is read here.

    Examples:
        >>> encoder, tokenizer = bert_tf.load("hf://sentence-transformers/all-MiniLM-L6-v2")
        >>> outputs = encoder(tokenizer.encode(["A film to remember."]))
        >>> outputs["sequence_output"].shape  # [CLS] a film to remember . [SEP]
        TensorShape([1, 7, 384])
    """
    checkpoint = open_with_warnings(path, allow_pickle=allow_pickle)
    return new_encoder(checkpoint, path, pooler=pooler, dtype=dtype), checkpoint.tokenizer


def new_encoder(
    checkpoint: Checkpoint, path: str | os.PathLike[str], *, pooler: bool | None = None, dtype: str | None = None
) -> BertEncoder:
    """The encoder of a checkpoint; arguments as in `load`, a warning names `path`."""
    if pooler and not checkpoint.config.pooler:
        logging.warning("%s: the checkpoint has no pooler; a new, untrained one is added", path)
    return checkpoint.encoder(pooler=pooler, dtype=dtype)


def load_model(
    path: str | os.PathLike[str], *, dtype: str | None = None, allow_pickle: bool = False
) -> tuple[keras.Model, BaseTokenizer | None, list[str] | None]:
    """Loads a model with its head; arguments and errors as in `load`.

    Returns:
        The model (see `model.head_table.build`; the encoder itself if there is no head), its tokenizer or None, and the
        labels of its head in the order of the logits, or None.
    """
    checkpoint = open_with_warnings(path, allow_pickle=allow_pickle)
    return checkpoint.model(dtype), checkpoint.tokenizer, checkpoint.labels


def open_with_warnings(
    path: str | os.PathLike[str], *, allow_pickle: bool = False, vectors: bool = False
) -> Checkpoint:
    """As `formats.open_checkpoint`; also logs what was guessed or not used.

    Args:
        path, allow_pickle: as for `load`.
        vectors: whether the layers for vectors of sentences are used.
    """
    checkpoint = open_checkpoint(path, allow_pickle=allow_pickle)
    for note in checkpoint.report.warnings:
        log = logging.warning if note.startswith(_SHOWN) else logging.info
        log("%s: %s", path, note)
    unused = list(checkpoint.report.unused_tensors)
    if checkpoint.vectors and not vectors:
        unused += [checkpoint.tensors[name].source for name in checkpoint.vectors.shapes(checkpoint.config.hidden_size)]
    if unused:
        logging.warning("%s: tensors not used: %s", path, first_names(unused))
    return checkpoint
