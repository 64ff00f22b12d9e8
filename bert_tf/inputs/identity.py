"""Content fingerprints of corpora, files, weights and batches; used to detect changed inputs on resume."""

import hashlib
import os
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.corpus.shards import DESCRIPTION, are_shards, digest
from bert_tf.types import Json, Tensors


def corpus_identity(files: Sequence[str]) -> Json:
    """Identifies a corpus by the names and sizes of its files, which are not read themselves.

    A text file that changed without changing its size is not noticed.

    Args:
        files: text files or shards, in the order in which training numbers them.

    Returns:
        dict, JSON-ready: files, their number; bytes, the sum of their sizes; names_and_sizes, a digest of each file's
        name (without folders) and size, in this order; for shards also prepared, a digest of their corpus.json files.
    """
    sizes = [tf.io.gfile.stat(file).length for file in files]
    names = [[os.path.basename(file), size] for file, size in zip(files, sizes, strict=True)]
    identity = {"files": len(files), "bytes": sum(sizes), "names_and_sizes": digest(names)}
    if are_shards(files):
        folders = dict.fromkeys(os.path.dirname(file) for file in files)
        identity["prepared"] = digest([file_identity(os.path.join(folder, DESCRIPTION)) for folder in folders])
    return identity


def check_unchanged(files: Sequence[str], before: Json) -> None:
    """Raises a DataError if files that are being read no longer have this `corpus_identity`: see there."""
    try:
        now = corpus_identity(files)
    except tf.errors.OpError:  # a file system that does not answer now; reading from it reports that it never does
        return
    if now != before:
        raise DataError(
            f"{', '.join(files[:3])}{', ...' * (len(files) > 3)}: changed while the run read them, from "
            f"{before['bytes']} to {now['bytes']} bytes; restore them and run the same command again to resume"
        )


def file_identity(path: str) -> str:
    """Identifies a file: the first 16 hexadecimal digits of the SHA-256 of its bytes."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def weights_identity(variables: Iterable[tf.Variable]) -> str:
    """Identifies variables: CRC-32 over all their bytes, in order, as 8 hexadecimal digits; one second per gigabyte."""
    checksum = 0
    for variable in variables:
        checksum = zlib.crc32(variable.numpy().tobytes(), checksum)
    return f"{checksum:08x}"


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
