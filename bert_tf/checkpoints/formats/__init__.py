"""Which format a checkpoint is in."""

import os

from bert_tf.checkpoints import directory, hub
from bert_tf.checkpoints.formats import fairseq, google, huggingface, model_garden
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
    raise DataError(f"{path}: {_what_else(path)}")


def _what_else(path):
    """What a path is that no reader takes, and what to name instead."""
    if not os.path.exists(path):
        return (
            "no such directory; expected a model directory, the prefix of a checkpoint, or hf://OWNER/NAME for a model "
            "of the Hub"
        )
    if not os.path.isdir(path):
        return "a file; expected the directory that it lies in, with all of a model's files"
    if os.path.exists(os.path.join(path, "adapter_config.json")):
        return (
            "an adapter (PEFT), which is part of a model only; merge it into its base model with peft "
            "(merge_and_unload) and save that"
        )
    below = sorted(name for name in os.listdir(path) if _is_model(os.path.join(path, name)))
    if below:
        return f"no model, but there is in {', '.join(below[:8])}; name it, as in {os.path.join(path, below[0])}"
    return (
        "no model of a known format; expected config.json (bert_tf, Hugging Face), bert_config.json or *.index "
        "(Google), saved_model.pb (TF-Hub), or dict.txt and a .pt file (fairseq)"
    )


def _is_model(path):
    return os.path.isdir(path) and any(reader.recognises(path) for reader in _READERS)


def local(path, allow_pickle=False):
    """A path on this machine: of what the Hub has, the copy in the cache."""
    path = os.fspath(path)
    return hub.fetch(path, allow_pickle) if path.startswith(hub.SCHEME) else path
