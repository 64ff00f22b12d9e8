"""Which format a checkpoint is in."""

import os

from bert_tf.checkpoints import directory, fairseq, google, hub, huggingface, model_garden
from bert_tf.errors import DataError

# Each has FORMAT, recognises(path) and read(path, allow_pickle) -> Checkpoint.
_READERS = (directory, fairseq, model_garden, google, huggingface)


def open_checkpoint(path, *, allow_pickle=False):
    """Opens a checkpoint; its tensors stay on disk.

    Args:
        path: directory or file, or "hf://OWNER/NAME[@REVISION]" (see `hub.fetch`).
        allow_pickle: see `bert_tf.load`.

    Returns:
        Checkpoint.

    Raises:
        DataError: nothing there, of no known format, or its parts do not fit each other.
    """
    path = local(path, allow_pickle)
    for reader in _READERS:
        if reader.recognises(path):  # also a prefix, which is no file's whole name
            return reader.read(path, allow_pickle)
    if not os.path.exists(path):
        raise DataError(f"{path}: no such directory; expected a model directory, or the prefix of a checkpoint")
    raise DataError(
        f"{path}: no model of a known format; expected config.json (bert_tf, Hugging Face), bert_config.json or "
        "*.index (Google), saved_model.pb (TF-Hub), or dict.txt and a .pt file (fairseq)"
    )


def local(path, allow_pickle=False):
    """A path on this machine: of what the Hub has, the copy in the cache."""
    path = os.fspath(path)
    return hub.fetch(path, allow_pickle) if path.startswith(hub.SCHEME) else path
