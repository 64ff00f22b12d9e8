"""TensorBoard's event files: taking back what a run noted after the checkpoint that it goes on from."""

import glob
import os

import tensorflow as tf

from bert_tf.files import replacing


def forget(folder, step):
    """Removes the events of later steps.

    They will come again. TensorBoard's fast loader would show the new ones in their place, but its Python reader, which
    notebooks and other programs use, shows both: it removes points only at a marker of a restart, which TensorFlow 2
    does not write.

    Args:
        folder: holds the event files of a run, none of which is being written.
        step: the last one to keep.
    """
    # A process writes a file; the names begin with the time. Before one that began early enough all are.
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")), reverse=True):
        events = list(_read(path))
        kept = [raw for raw, its_step in events if its_step <= step]
        if len(kept) < len(events):
            with replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
                for raw in kept:
                    writer.write(raw)
        if len(kept) > 1:  # the first is the file's version, of step 0
            return


def _read(path):
    """(bytes of the event, its step) of all that are whole: a kill may have cut the last one short."""
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield record, tf.compat.v1.Event.FromString(record).step
    except tf.errors.DataLossError:
        return
