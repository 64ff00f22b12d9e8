"""What files, weights and batches hold, in a few words: the same wherever they lie, others if they were changed."""

import hashlib
import os
import zlib

import tensorflow as tf

from bert_tf.inputs.corpus.shards import DESCRIPTION, are_shards, digest


def corpus_identity(files):
    """Of a corpus: as little is read as tells it from another one.

    Args:
        files: list of str, text files or shards, in the order in which training numbers them.

    Returns:
        dict: files, how many; bytes, of all; names_and_sizes, a digest of the names without folders and of each file's
        size, in this order; for shards also prepared, a digest of what describes them. A file of text that was changed
        without getting longer or shorter is not noticed.
    """
    sizes = [tf.io.gfile.stat(file).length for file in files]
    names = [[os.path.basename(file), size] for file, size in zip(files, sizes, strict=True)]
    identity = {"files": len(files), "bytes": sum(sizes), "names_and_sizes": digest(names)}
    if are_shards(files):
        folders = dict.fromkeys(os.path.dirname(file) for file in files)
        identity["prepared"] = digest([file_identity(os.path.join(folder, DESCRIPTION)) for folder in folders])
    return identity


def file_identity(path):
    """Of a file: the first 16 hexadecimal digits of the SHA-256 of its bytes."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def weights_identity(variables):
    """Of tf.Variables: a CRC-32 over the bytes of all in turn, 8 hexadecimal digits; a second for a gigabyte."""
    checksum = 0
    for variable in variables:
        checksum = zlib.crc32(variable.numpy().tobytes(), checksum)
    return f"{checksum:08x}"


def batch_fingerprint(features):
    """Of a batch, in graph code.

    Args:
        features: dict of tensors of fixed-size types.

    Returns:
        uint8 [8]: FarmHash64 over those of the features, these in the order of their names.
    """
    prints = [tf.fingerprint(tf.reshape(features[name], [1, -1]))[0] for name in sorted(features)]
    return tf.fingerprint(tf.reshape(tf.stack(prints), [1, -1]))[0]
