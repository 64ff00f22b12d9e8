"""Atomic file writes on every file system that TensorFlow knows: write to a temporary name, then rename."""

import contextlib
import json
import uuid

import tensorflow as tf

PARTIAL = ".part"  # how the names end that files have while they are written


@contextlib.contextmanager
def replacing(path):
    """Gives a temporary path beside `path`; when the block ends well it gets the final name, else it is removed."""
    temporary = f"{path}.{uuid.uuid4().hex}{PARTIAL}"  # a runner may have two workers do the same
    try:
        yield temporary
        tf.io.gfile.rename(temporary, path, overwrite=True)
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)


def write_json(path, value, indent=None):
    """Writes a value as JSON, whole or not at all."""
    with replacing(path) as temporary, tf.io.gfile.GFile(temporary, "w") as file:
        file.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def read_json(path):
    """Reads a JSON file that `write_json` wrote."""
    with tf.io.gfile.GFile(path) as file:
        return json.load(file)
