"""Content fingerprints of settings, tokenizers, files, weights and batches; used to detect changed inputs on resume."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.files import checksum
from bert_tf.text import BaseTokenizer, Tokenizer
from bert_tf.types import Json, Tensors

_FORMAT = 1  # of token ids: what other code makes of a text with the same settings is another tokenizer's


def digest(value: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a JSON-ready value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def tokenizer_identity(tokenizer: BaseTokenizer) -> Json:
    """The settings of a tokenizer that determine the token ids, and their fingerprint.

    Returns:
        dict, JSON-ready: format, vocabulary (SHA-256 of its files), vocab_size, kind (WordPiece has none, as before
        there were others), those of its `get_config`, and fingerprint, the `digest` of the others.
    """
    settings: Json = {
        "format": _FORMAT,
        "vocabulary": hashlib.sha256(b"".join(tokenizer.contents())).hexdigest(),
        "vocab_size": tokenizer.vocab_size,
    } | tokenizer.description
    if settings["kind"] == Tokenizer.KIND:
        del settings["kind"]
    return settings | {"fingerprint": digest(settings)}


def file_identity(path: str) -> str:
    """Identifies a file: the first 16 hexadecimal digits of the SHA-256 of its bytes."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def weights_identity(variables: Iterable[tf.Variable]) -> str:
    """Identifies variables: the `checksum` of all their bytes, in order."""
    total = checksum(b"")
    for variable in variables:
        total = checksum(variable.numpy().tobytes(), total)
    return total


def tensors_identity(tensors: Tensors) -> str:
    """Identifies dense and ragged tensors by name: the first 16 hexadecimal digits of a SHA-256 of their values."""
    total = hashlib.sha256()
    for tensor in tf.nest.flatten(tensors, expand_composites=True):  # in the order of their names
        values = tensor.numpy()
        if values.dtype == object:
            values = np.array([hashlib.sha256(one).digest() for one in values.flat], "S32")
        total.update(f"{tensor.dtype.name} {tensor.shape} ".encode() + values.tobytes())
    return total.hexdigest()[:16]


def batch_fingerprint(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Identifies a batch; runs in graphs.

    Args:
        features: tensors of fixed-size types.

    Returns:
        uint8 [8]: FarmHash64 over the features' own FarmHash64 values, in the order of their names.
    """
    prints = [tf.fingerprint(tf.reshape(features[name], [1, -1]))[0] for name in sorted(features)]
    return tf.fingerprint(tf.reshape(tf.stack(prints), [1, -1]))[0]
