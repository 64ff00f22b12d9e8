"""TensorBoard's event files: removes the events after the checkpoint from which a run resumes."""

import glob
import os
from collections.abc import Iterator

import tensorflow as tf

from bert_tf.files import replacing


def remove_after(folder: str, step: int) -> None:
    """Removes the events of later steps, which the resumed run will write again.

    TensorBoard's fast loader would show the new events in their place, but its Python reader, which notebooks and other
    programs use, shows both: it removes points only at a marker of a restart, which TensorFlow 2 does not write.

    Args:
        folder: holds the event files of a run, none of which is being written.
        step: the last step to keep.
    """
    # One file per process, its name begins with the start time. If a file has events to keep, all earlier files
    # have only such events.
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")), reverse=True):
        events = list(_read(path))
        kept = [raw for raw, event_step in events if event_step <= step]
        if len(kept) < len(events):
            with replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
                for raw in kept:
                    writer.write(raw)
        if len(kept) > 1:  # the first event is the file's version, with step 0
            return


def _read(path: str) -> Iterator[tuple[bytes, int]]:
    """Yields (bytes, step) of all complete events: a kill may have truncated the last one."""
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield record, tf.compat.v1.Event.FromString(record).step
    except tf.errors.DataLossError:
        return
