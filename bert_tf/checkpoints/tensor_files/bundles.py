"""TensorFlow's checkpoint files, PREFIX.index and PREFIX.data-*: read, and written, a few tensors at a time."""

import contextlib
import errno
import glob
import os
import tempfile

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.errors import DataError

# What tf.train.Checkpoint adds; its other names are paths through Python objects, not names of variables.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# What `write_bundle` holds in memory. A model that is larger becomes several data files.
_SHARD_BYTES = 2**28
# Below Python, TensorFlow turns some kinds of its errors into Python's own.
_ERRORS = (tf.errors.OpError, IndexError, RuntimeError, ValueError)


def holds_objects(prefix):
    """Whether a checkpoint was written by tf.train.Checkpoint; False also where there is none that can be read."""
    try:
        return OBJECT_GRAPH in _reader(prefix).get_variable_to_shape_map()
    except DataError:
        return False


def stem(path):
    """The prefix of a checkpoint from it, or from the name of its index file."""
    return path.removesuffix(".index")


def prefixes(path, *, objects):
    """Prefixes, sorted, of the checkpoints in a directory that tf.train.Checkpoint wrote; of the others if False."""
    files = (os.path.join(path, file) for file in os.listdir(path) if file.endswith(".index"))
    return sorted(prefix for prefix in map(stem, files) if holds_objects(prefix) == objects)


def choose(path, candidates):
    """The checkpoint of a directory to read: the newest by its file `checkpoint`, or the only one.

    Args:
        path: directory.
        candidates: list of prefixes in it, at least one.

    Returns:
        Prefix, and a list of warnings: one where there were several.

    Raises:
        DataError: nothing tells which.
    """
    if len(candidates) == 1:
        return candidates[0], []
    state = tf.train.get_checkpoint_state(path)
    # Only the last part: the directory may have been moved since.
    newest = os.path.join(path, os.path.basename(state.model_checkpoint_path)) if state else None
    if newest not in candidates:
        names = ", ".join(map(os.path.basename, candidates))
        raise DataError(f"{path} holds several checkpoints: {names}; name one, as in {candidates[-1]}")
    return newest, [f"{newest} was read: of {len(candidates)} checkpoints, the one that the file `checkpoint` names"]


def open_bundle(prefix):
    """The tensors of a checkpoint.

    Args:
        prefix: path of its files without ".index" and ".data-*".

    Returns:
        dict name -> Tensor, by name; strings, as OBJECT_GRAPH, have the dtype "object".

    Raises:
        DataError: a file is not there, cut short or not of this format; also when a tensor that is damaged is read.
    """
    reader = _reader(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    tensors = {
        name: Tensor(tuple(shape), np.dtype(dtypes[name].as_numpy_dtype).name, _read(reader, name, prefix), name)
        for name, shape in sorted(reader.get_variable_to_shape_map().items())
    }
    # The index alone is opened: without this, a download that broke off would be found only half way through.
    promised = sum(tensor.nbytes for tensor in tensors.values() if tensor.dtype != "object")
    files = glob.glob(f"{glob.escape(prefix)}.data-*-of-*")
    found = sum(map(os.path.getsize, files))
    if found < promised:
        raise DataError(
            f"{prefix}.data-*: {found:,} bytes, and its index lists tensors of {promised:,}: "
            "a file is missing or cut short; fetch it again"
        )
    return tensors


def write_bundle(prefix, tensors):
    """Writes a checkpoint, reading a few tensors at a time; small ones become one data file.

    Args:
        prefix: path of its files without ".index" and ".data-*", in a directory that is there.
        tensors: dict name -> Tensor.

    Raises:
        OSError: the files can not be written.
    """
    # Beside the result, for shards are renamed, not copied, when they are joined.
    with tempfile.TemporaryDirectory(dir=os.path.dirname(prefix), prefix=".shards.") as folder, tf.device("CPU"):
        shards = []
        for names in _shards(tensors):
            arrays = [tf.constant(tensors[name].read()) for name in names]
            shards.append(os.path.join(folder, str(len(shards))))
            with _system_errors(prefix):
                tf.raw_ops.SaveV2(
                    prefix=shards[-1], tensor_names=names, shape_and_slices=[""] * len(names), tensors=arrays
                )
        with _system_errors(prefix):
            tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=shards, destination_prefix=prefix, delete_old_dirs=False)


@contextlib.contextmanager
def _system_errors(prefix):
    """Turns TensorFlow's errors, which name nodes and temporary files, into the system's, of the file PREFIX."""
    try:
        yield
    except tf.errors.OpError as error:
        reason = _line(error).partition(" [Op:")[0].rpartition("; ")[2]  # "FILE; No space left on device [Op:SaveV2]"
        raise OSError(errno.EIO, reason, prefix) from None


def _shards(tensors):
    """Lists of names, in order, of tensors that together fit into _SHARD_BYTES."""
    names, size = [], 0
    for name, tensor in tensors.items():
        if names and size + tensor.nbytes > _SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.nbytes
    yield names


def _reader(prefix):
    try:
        return tf.train.load_checkpoint(prefix)
    except _ERRORS as error:
        if glob.has_magic(prefix):
            raise DataError(
                f"{prefix}: TensorFlow takes *, ? and [ in a path for a pattern; rename that part"
            ) from None
        raise DataError(f"{prefix}.index can not be read: {_line(error)}; expected a TensorFlow checkpoint") from None


def _read(reader, name, prefix):
    def read():
        try:
            value = reader.get_tensor(name)
            # NumPy's own type for bytes would drop zeros at the end.
            return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)
        except _ERRORS as error:
            raise DataError(f"{prefix}: {name} can not be read: {_line(error)}; fetch the files again") from None

    return read


def _line(error):
    return " ".join(str(getattr(error, "message", error)).split())
