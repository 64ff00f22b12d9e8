"""Models on disk: this project's own directory and other people's formats."""

import os

from bert_tf.checkpoints import directory, huggingface
from bert_tf.errors import DataError


def load(path, *, dtype=None):
    """An encoder and its tokenizer from a directory of this project's or of Hugging Face's layout.

    Args:
        path: directory with config.json, model.safetensors and vocab.txt.
        dtype: Keras dtype policy to compute in; None for the global one.

    Returns:
        BertEncoder, Tokenizer.

    Raises:
        DataError: for a directory of neither layout, or one whose parts do not fit each other.
    """
    if not os.path.isdir(path):
        raise DataError(f"{path}: no such directory; expected a model directory with config.json")
    config = directory.read_config(path)
    reader = directory if config.get("format") == directory.FORMAT else huggingface
    return reader.load(path, config, dtype)
