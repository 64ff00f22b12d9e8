"""The curves of a run: in history.jsonl, for TensorBoard, and for the progress line."""

import json
import os
import time

import tensorflow as tf

from bert_tf.files import write_text


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
            self._writers = {
                kind: tf.summary.create_file_writer(os.path.join(folder, kind)) for kind in ("training", "evaluation")
            }
        self._pending, self._since = [], None

    def add(self, step, steps, measures, batch_size, learning_rate, log_every):
        """Takes the means over `steps` updates in; a point every `log_every`. Returns the text of the progress line."""
        now = time.perf_counter()
        elapsed = now - self._since if self._since else None
        self._since = now
        self._pending.append((steps, measures, elapsed))
        # The first call also traces and compiles: its time says nothing.
        timed = [(count, seconds) for count, _, seconds in self._pending if seconds]
        rate = sum(count for count, _ in timed) / sum(seconds for _, seconds in timed) if timed else None
        if step % log_every == 0:
            total = sum(count for count, _, _ in self._pending)
            means = {name: sum(count * row[name] for count, row, _ in self._pending) / total for name in measures}
            row = {"kind": "training", "step": step} | means | {"learning_rate": float(learning_rate)}
            if rate:
                row |= {"steps_per_second": rate, "sequences_per_second": rate * batch_size}
            self.points.append(row)
            self._note(row)
            self._pending = []
        shown = [f"{name} {value:.3f}" for name, value in measures.items() if name != "gradient_norm"]
        if rate:
            shown.append(f"{rate * batch_size:.0f} sequences/s")
        return ", ".join(shown)

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
