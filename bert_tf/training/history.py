"""The curves of a run: in history.jsonl, for TensorBoard, and for the progress line."""

import json
import os
import time

import tensorflow as tf

from bert_tf.files import write_text
from bert_tf.training import event_files


class History:
    """Points of the training curves and of the evaluations.

    Attributes:
        points: list of dicts: step, loss, the task's measures, gradient_norm, learning_rate, steps_per_second,
            sequences_per_second.
        evaluations: list of dicts: step and what the evaluation measured.

    Args:
        directory: where history.jsonl and tensorboard/ go.
        step: of the checkpoint the run goes on from; what was noted after it is forgotten, it will come again.
        write: False keeps everything in memory (workers other than the chief).
    """

    def __init__(self, directory, step, *, write=True):
        self._path = os.path.join(directory, "history.jsonl")
        rows = []
        if os.path.exists(self._path):
            with open(self._path, encoding="utf-8") as file:
                rows = [row for row in map(_row, file) if row and row["step"] <= step]
        self.points = [row for row in rows if row["kind"] == "training"]
        self.evaluations = [row for row in rows if row["kind"] == "evaluation"]
        self._write = write
        if write:
            write_text(self._path, "".join(json.dumps(row) + "\n" for row in rows))
            folder = os.path.join(directory, "tensorboard")
            folders = {kind: os.path.join(folder, kind) for kind in ("training", "evaluation")}
            for one in folders.values():
                event_files.forget(one, step)
            self._writers = {kind: tf.summary.create_file_writer(one) for kind, one in folders.items()}
        self._timed, self._since = [], None  # (updates, seconds) since the last point; when the last call ended

    def progress(self, steps, measures, batch_size):
        """Notes that `steps` more updates are done; returns the text of the progress line."""
        now = time.perf_counter()
        # The first call also traces and compiles: its time says nothing.
        if self._since:
            self._timed.append((steps, now - self._since))
        self._since, self._batch_size = now, batch_size
        shown = [f"{name} {value:.3f}" for name, value in measures.items() if name != "gradient_norm"]
        if self._timed:
            shown.append(f"{self._rate() * batch_size:.0f} sequences/s")
        return ", ".join(shown)

    def point(self, step, measures, learning_rate):
        """Notes a point of the training curves: means over the updates since the one before."""
        row = {"kind": "training", "step": step} | measures | {"learning_rate": float(learning_rate)}
        if self._timed:
            row |= {"steps_per_second": self._rate(), "sequences_per_second": self._rate() * self._batch_size}
        self.points.append(row)
        self._note(row)
        self._timed = []

    def _rate(self):
        return sum(steps for steps, _ in self._timed) / sum(seconds for _, seconds in self._timed)

    def evaluation(self, step, measures, say=print):
        """Notes and prints an evaluation."""
        row = {"kind": "evaluation", "step": step} | measures
        self.evaluations.append(row)
        self._note(row)
        self._since = None  # the time an evaluation takes is not the next step's
        say(f"  step {step}, held out: " + ", ".join(f"{name} {value:.4f}" for name, value in measures.items()))

    def _note(self, row):
        if not self._write:
            return
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        with self._writers[row["kind"]].as_default(row["step"]):
            for name, value in row.items():
                if name not in ("kind", "step"):
                    tf.summary.scalar(name, value)
        self._writers[row["kind"]].flush()


def _row(line):
    """A line's row; None for the half line that a full disk may leave at the end."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
