"""TensorFlow's checkpoint files, PREFIX.index and PREFIX.data-*, read and written a few tensors at a time."""

import functools
import glob
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.errors import DataError
from bert_tf.files import check_file, errors_naming
from bert_tf.memory import in_chunks
from bert_tf.types import Array

# An entry that tf.train.Checkpoint adds; its other names are paths through Python objects, not names of variables.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Limit of what `write_bundle` holds in memory. A larger model is written as several data files.
_SHARD_BYTES = 2**28
# TensorFlow's bindings turn some kinds of its errors into Python's own.
_ERRORS = (tf.errors.OpError, IndexError, MemoryError, RuntimeError, ValueError)


def holds_objects(prefix: str) -> bool:
    """Whether a checkpoint was written by tf.train.Checkpoint; False also if there is no readable checkpoint."""
    try:
        return OBJECT_GRAPH in _reader(prefix).get_variable_to_shape_map()
    except DataError:
        return False


def stem(path: str) -> str:
    """The prefix of a checkpoint, given as the prefix itself or as its index file."""
    return path.removesuffix(".index")


def prefixes(path: str, *, objects: bool) -> list[str]:
    """Sorted prefixes of the checkpoints in a directory: those of tf.train.Checkpoint if `objects`, else all others."""
    files = (os.path.join(path, file) for file in os.listdir(path) if file.endswith(".index"))
    return sorted(prefix for prefix in map(stem, files) if holds_objects(prefix) == objects)


def find_prefix(path: str, *, objects: bool, preferred: str = "") -> tuple[str, list[str]]:
    """Chooses the checkpoint to read.

    Args:
        path: a prefix or index file; or a directory, for the checkpoint with the name `preferred` in it, else the only
            one, else the newest according to its file `checkpoint`.
        objects: as for `prefixes`.
        preferred: name of a checkpoint.

    Returns:
        The prefix, and warnings: one if there were several candidates.
    """
    if not os.path.isdir(path):
        return stem(path), []
    candidates = prefixes(path, objects=objects)
    if not candidates:
        raise DataError(f"{path}: no checkpoint; expected {preferred}.index and {preferred}.data-*")
    if os.path.join(path, preferred) in candidates:
        return os.path.join(path, preferred), []
    if len(candidates) == 1:
        return candidates[0], []
    newest = listed(path)
    if newest is None or newest not in candidates:
        names = ", ".join(map(os.path.basename, candidates))
        raise DataError(f"{path} holds several checkpoints: {names}; name one, as in {candidates[-1]}")
    return newest, [f"{newest} was read: of {len(candidates)} checkpoints, the one that the file `checkpoint` names"]


def listed(path: str) -> str | None:
    """Prefix of the checkpoint that a directory's file `checkpoint` names; None if there is no readable one."""
    try:
        state = tf.train.get_checkpoint_state(path)
    except ValueError:  # not UTF-8, or empty; other damage is a log line of TensorFlow's
        return None
    # Only the last part: the directory may have been moved since.
    return os.path.join(path, os.path.basename(state.model_checkpoint_path)) if state else None


def open_bundle(prefix: str) -> dict[str, Tensor]:
    """Opens a checkpoint; a damaged tensor raises DataError when it is read.

    Args:
        prefix: path of its files without ".index" and ".data-*".

    Returns:
        Tensors by name, sorted; strings such as OBJECT_GRAPH have the dtype "object".
    """
    reader = _reader(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    tensors: dict[str, Tensor] = {}
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        read = functools.partial(_read, reader, name, prefix)
        tensors[name] = Tensor(tuple(shape), np.dtype(dtypes[name].as_numpy_dtype).name, read, name)
    # Only the index is opened: without this check, an incomplete download would be noticed only halfway through.
    expected = sum(tensor.nbytes for tensor in tensors.values() if tensor.dtype != "object")
    files = glob.glob(f"{glob.escape(prefix)}.data-*-of-*")
    found = sum(map(os.path.getsize, files))
    if found < expected:
        raise DataError(
            f"{prefix}.data-*: {found:,} bytes, but its index lists tensors of {expected:,}: "
            "a file is missing or truncated; download it again"
        )
    return tensors


def write_bundle(prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Writes a checkpoint, reading a few tensors at a time; a small one has a single data file.

    Args:
        prefix: path of its files without ".index" and ".data-*", in an existing directory.
        tensors: by name.

    Raises:
        OSError: the files cannot be written.
    """
    # In the same directory as the result, so that merging renames shards instead of copying them.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(prefix), prefix=".shards.") as folder, tf.device("CPU"):
        shards: list[str] = []
        for names in in_chunks(tensors, len(tensors), _SHARD_BYTES, lambda name: tensors[name].nbytes):
            arrays = [tf.constant(tensors[name].read()) for name in names]
            shards.append(os.path.join(folder, str(len(shards))))
            with errors_naming(prefix, folder):
                tf.raw_ops.SaveV2(
                    prefix=shards[-1], tensor_names=names, shape_and_slices=[""] * len(names), tensors=arrays
                )
        with errors_naming(prefix, folder):
            tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=shards, destination_prefix=prefix, delete_old_dirs=False)


def _reader(prefix: str) -> Any:  # a CheckpointReader, which TensorFlow does not export
    for file in glob.glob(f"{glob.escape(prefix)}.*"):
        check_file(file)
    try:
        return tf.train.load_checkpoint(prefix)
    except _ERRORS as error:
        if glob.has_magic(prefix):
            raise DataError(
                f"{prefix}: TensorFlow treats *, ? and [ in a path as a pattern; rename that part of the path"
            ) from None
        raise DataError(f"{prefix}.index cannot be read: {_line(error)}; expected a TensorFlow checkpoint") from None


def _read(reader: Any, name: str, prefix: str) -> Array:
    try:
        value = reader.get_tensor(name)
    except _ERRORS as error:
        raise DataError(f"{prefix}: {name} cannot be read: {_line(error)}; download the files again") from None
    # NumPy's own type for bytes would drop trailing zeros.
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def _line(error: Exception) -> str:
    return " ".join(str(getattr(error, "message", error)).split())
