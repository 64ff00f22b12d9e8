"""Models on disk: this project's own directory and other people's formats."""

from absl import logging

from bert_tf.checkpoints.formats import open_checkpoint


def load(path, *, pooler=None, dtype=None, allow_pickle=False):
    """An encoder and its tokenizer from a checkpoint of any format that `formats.open_checkpoint` reads.

    Args:
        path: directory or file, or "hf://OWNER/NAME".
        pooler: None: as in the checkpoint; True: a new, untrained one where it has none; False: none.
        dtype: Keras dtype policy to compute in; None for the global one.
        allow_pickle: read pickled PyTorch files too (their tensors and plain containers only: no code is run).

    Returns:
        BertEncoder, Tokenizer (None if the checkpoint has no WordPiece vocabulary).

    Raises:
        DataError: for anything else, or a checkpoint whose parts do not fit each other; the line names them.
    """
    checkpoint = open_checkpoint(path, allow_pickle=allow_pickle)
    _warn(checkpoint, path)
    if pooler and not checkpoint.config.pooler:
        logging.warning("%s: has no pooler; a new one, untrained, is put on", path)
    return checkpoint.encoder(pooler=pooler, dtype=dtype), checkpoint.tokenizer()


def load_model(path, *, dtype=None, allow_pickle=False):
    """A model with its head; arguments and errors as in `load`.

    Returns:
        keras.Model (see `model.build.build`; the encoder itself where there is no head), Tokenizer or None, and the
        labels of its head (list of str) or None.
    """
    checkpoint = open_checkpoint(path, allow_pickle=allow_pickle)
    _warn(checkpoint, path)
    return checkpoint.model(dtype), checkpoint.tokenizer(), checkpoint.labels


def _warn(checkpoint, path):
    for note in checkpoint.warnings:
        logging.info("%s: %s", path, note)
    if checkpoint.unused_tensors:
        logging.warning("%s: left out: %s", path, ", ".join(checkpoint.unused_tensors))
