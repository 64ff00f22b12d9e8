"""Checkpoint formats: `open_checkpoint` recognises the format of a checkpoint and reads it."""

import os
from typing import Protocol

from bert_tf.checkpoints import directory, hub, static_model
from bert_tf.checkpoints.formats import google, huggingface, model_garden
from bert_tf.checkpoints.stored_model import Checkpoint, Written
from bert_tf.errors import DataError
from bert_tf.files import text_path


class ReadableFormat(Protocol):
    """A module that reads a format."""

    FORMAT: str

    def recognises(self, path: str) -> bool:
        """Whether `path`, a directory, file or prefix of files, is of this format."""

    def read(self, path: str, allow_pickle: bool = False) -> Checkpoint:
        """Opens a checkpoint; its tensors stay on disk."""


class WritableFormat(Protocol):
    """A module that writes a format."""

    FORMAT: str

    def write(self, checkpoint: Checkpoint, path: str) -> Written:
        """Writes a checkpoint into an empty directory."""


# Files beside the weights that change what other programs compute with a model -> what is in them.
_NEVER_READ = {
    "adapter_config.json": "an adapter, which is not applied: merge it into the model with peft (merge_and_unload)",
}
_ONLY_IN_HUGGING_FACE = {
    "modules.json": "modules of sentence-transformers, which are not applied",
    "tokenizer_config.json": "settings of a tokenizer, which are not applied",
    "special_tokens_map.json": "names of special tokens, which are not applied",
    "added_tokens.json": "more tokens, which texts do not get",
    "tokenizer.json": "a tokenizer, which is not the one that is used",
}

_READERS: tuple[ReadableFormat, ...] = (directory, model_garden, google, huggingface)


def open_checkpoint(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Checkpoint:
    """Opens a checkpoint; its tensors stay on disk.

    Args:
        path: directory or file, or "hf://OWNER/NAME[@REVISION]" (see `hub.fetch`).
        allow_pickle: see `bert_tf.load`.
    """
    path = local(text_path(path), allow_pickle)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # reading it may never end
        raise DataError(f"{path} is a pipe or a device; expected a model directory or a file")
    if static_model.recognises(path):
        raise DataError(
            f"{path}: a static model (model2vec), which has no encoder; expected an encoder here. SentenceEncoder, "
            "extract, retrieve and mine open static models"
        )
    reader = format_of(path)
    if not reader:
        raise DataError(f"{path}: {_unrecognised(path)}")
    checkpoint = reader.read(path, allow_pickle)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    unread = _NEVER_READ if reader.FORMAT == huggingface.FORMAT else _NEVER_READ | _ONLY_IN_HUGGING_FACE
    beside = {name: what for name, what in unread.items() if os.path.exists(os.path.join(folder, name))}
    return checkpoint.reported(*(f"unread: {name} holds {what}" for name, what in beside.items()))


def format_of(path: str) -> ReadableFormat | None:
    """The format of a path on this machine: of a directory, a file or a prefix of file names; None if unknown."""
    return next((reader for reader in _READERS if reader.recognises(path)), None)


def _unrecognised(path: str) -> str:
    """Error text for a path that no reader recognises."""
    if not os.path.exists(path):
        return (
            "no such directory; expected a model directory, the prefix of a checkpoint, or hf://OWNER/NAME for a model "
            "on the Hugging Face Hub"
        )
    if not os.path.isdir(path):
        return "a file; expected its directory, with all files of the model"
    if os.path.exists(os.path.join(path, "adapter_config.json")):
        return (
            "an adapter (PEFT), not a complete model; merge it into its base model with peft (merge_and_unload) and "
            "save that"
        )
    below = sorted(name for name in os.listdir(path) if _is_model(os.path.join(path, name)))
    if below:
        found = ", ".join(below[:8])
        return f"not a model, but has models in {found}; name one of them: {os.path.join(path, below[0])}"
    return (
        "not a model of a known format; expected config.json (bert_tf, Hugging Face), bert_config.json, "
        "albert_config.json or *.index (Google), or saved_model.pb (TF-Hub)"
    )


def _is_model(path: str) -> bool:
    return os.path.isdir(path) and format_of(path) is not None


def local(path: str | os.PathLike[str], allow_pickle: bool = False) -> str:
    """A path on this machine: the path itself, or the cached copy of a model on the Hub."""
    path = os.fspath(path)
    return hub.fetch(path, allow_pickle) if path.startswith(hub.SCHEME) else path
