"""The curves of a run: in history.jsonl and for TensorBoard."""

import contextlib
import json
import math
import os

import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram import metadata as histogram

from bert_tf.files import nan_for_null, to_json, write_text
from bert_tf.progress import log, metrics_line
from bert_tf.training.speed import SECONDS
from bert_tf.training.state import event_files

_SHOWN = ("training", "evaluation")  # kinds of rows that TensorBoard gets
_BUCKETS = 64  # of a histogram, at most: more than the width of TensorBoard's picture shows


class History:
    """Points of the training curves and of the evaluations.

    Attributes:
        points: list of dicts: step, phase (its number, from 0), loss, the task's metrics, gradient_norm,
            learning_rate; of the updates since the point before, the rates of `Speed.rates`, and what the seconds went
            to: training_seconds, evaluation_seconds, saving_seconds, start_seconds, each left out where it is 0.
        evaluations: list of dicts: step and what the evaluation measured.
        resumes: list of int, the steps from which the run went on after an interruption.

    Args:
        directory: where history.jsonl and tensorboard/ go.
        step: of the checkpoint the run goes on from; what was noted after it is forgotten, it will come again.
        title: above the curves of curves.png.
        monitor: name of the metric by which evaluations are compared, which is drawn there.
        write: False keeps everything in memory (workers other than the chief).
        on_error: what happens where something can not be written, e.g. because the disk is full: "stop", an error, or
            "go_on", a line on standard error; with the next point, history.jsonl gets what it lacks.
    """

    def __init__(self, directory, step, *, title="", monitor="loss", write=True, on_error="stop"):
        self._path = os.path.join(directory, "history.jsonl")
        rows = []
        if os.path.exists(self._path):
            with open(self._path, encoding="utf-8", errors="replace") as file:
                rows = [row for row in map(_row, file) if row and row["step"] <= step]
        self._rows, self._whole = rows, True  # what history.jsonl should hold, and whether it does
        self._on_error, self._failing = on_error, set()
        self.points = [row for row in rows if row["kind"] == "training"]
        self.evaluations = [row for row in rows if row["kind"] == "evaluation"]
        self.resumes = [row["step"] for row in rows if row["kind"] == "resume"]
        self._directory, self._title, self._monitor, self._write = directory, title, monitor, write
        self._writers = {}
        if write:
            write_text(self._path, _lines(rows))
            for kind in _SHOWN:
                event_files.forget(self._events(kind), step)

    def resume(self, step):
        """Notes that the run goes on from a checkpoint of an earlier process."""
        self.resumes.append(step)
        self._note({"kind": "resume", "step": step})

    def point(self, step, phase, metrics, learning_rate, speed, histograms=None):
        """Notes a point of the training curves.

        Args:
            step: updates done.
            phase: index of the phase they belong to.
            metrics: dict name -> float, means over the updates since the point before.
            learning_rate: of the last of them.
            speed: dict name -> float, `Speed.point`'s.
            histograms: dict name -> int array [n], how often each of 0 to n - 1 came; for TensorBoard alone.
        """
        row = {"kind": "training", "step": step, "phase": phase} | metrics
        row |= {"learning_rate": float(learning_rate)} | speed
        self.points.append(row)
        self._note(row, histograms or {})

    def evaluation(self, step, metrics, print_line=print):
        """Notes and prints an evaluation."""
        row = {"kind": "evaluation", "step": step} | metrics
        self.evaluations.append(row)
        self._note(row)
        self.draw()
        print_line(f"  step {step}, validation: {metrics_line(metrics)}")

    def draw(self):
        """Writes curves.png."""
        if self._write:
            # Matplotlib takes a second to load, which every program that imports this module would pay.
            from bert_tf.report.training_curves import draw_curves

            path = os.path.join(self._directory, "curves.png")
            with self._failures("curves.png"):
                draw_curves(path, self.points, self.evaluations, self.resumes, title=self._title, monitor=self._monitor)

    def _note(self, row, histograms=()):
        self._rows.append(row)
        if not self._write:
            return
        with self._failures("history.jsonl"):
            self._append(row)
        if self._whole and row["kind"] in _SHOWN:  # else there is no room for either
            with self._failures("tensorboard"):
                self._show(row, histograms)

    def _append(self, row):
        if self._whole:
            self._whole = False
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(_lines([row]))
        else:  # rows are missing, or there is half of one
            write_text(self._path, _lines(self._rows))
        self._whole = True

    def _show(self, row, histograms):
        # What is taken out here is put back if all went well: else the file may end in half a record, and readers would
        # not come to what stands behind it.
        writer = self._writers.pop(row["kind"], None) or tf.summary.create_file_writer(self._events(row["kind"]))
        with writer.as_default(row["step"]):
            for name, value in row.items():
                if name not in ("kind", "step"):
                    tf.summary.scalar(name, value)
            for name in histograms:
                _write_histogram(name, histograms[name])
        writer.flush()
        self._writers[row["kind"]] = writer

    def _events(self, kind):
        return os.path.join(self._directory, "tensorboard", kind)

    @contextlib.contextmanager
    def _failures(self, name):
        """Makes errors of writing a line, where that is what was asked for: one for each time that it begins."""
        try:
            yield
            self._failing.discard(name)
        except (OSError, tf.errors.OpError) as error:
            if self._on_error == "stop":
                raise
            if name not in self._failing:
                self._failing.add(name)
                reason = (
                    error.strerror if isinstance(error, OSError) else error.message.splitlines()[0].rsplit("; ")[-1]
                )
                path = os.path.join(self._directory, name)
                log(f"{path} could not be written: {reason}; training goes on (train.on_save_error)")


def by_phase(points, pending=None):
    """What a run reached in each phase, resumes included: for results.json.

    Args:
        points: History.points.
        pending: `Speed.point`'s after the last point, the seconds of which go to the last phase.

    Returns:
        list of dicts, one a phase: phase; sequences_per_second, tokens_per_second, mfu, means over the training
        time; padding_share, over the points; seconds, a dict from training, evaluation, saving and start.
    """
    found = []
    for phase in sorted({point["phase"] for point in points}):
        rows = [point for point in points if point["phase"] == phase]
        spent = rows + [pending or {}] * (phase == points[-1]["phase"])
        row = {"phase": phase}
        for name in ("sequences_per_second", "tokens_per_second", "mfu"):
            timed = [(point[name], point["training_seconds"]) for point in rows if name in point]
            if timed:
                row[name] = sum(rate * seconds for rate, seconds in timed) / sum(seconds for _, seconds in timed)
        shares = [point.get("padding_share", math.nan) for point in rows]
        shares = [share for share in shares if math.isfinite(share)]  # NaN: all updates of that point were skipped
        if shares:
            row["padding_share"] = sum(shares) / len(shares)
        row["seconds"] = {name: round(sum(some.get(f"{name}_seconds", 0.0) for some in spent), 2) for name in SECONDS}
        found.append(row)
    return found


def _write_histogram(name, counts):
    """Writes counts as they are; tf.summary.histogram wants the values, a million of them for a large batch."""
    counts = np.trim_zeros(counts, "b")
    width = max(1, -(-len(counts) // _BUCKETS))
    counts = np.pad(counts, [0, -len(counts) % width]).reshape([-1, width]).sum(1)
    edges = np.arange(len(counts) + 1) * width - 0.5  # each whole number lies inside of a bucket
    buckets = np.stack([edges[:-1], edges[1:], counts], 1)
    metadata = histogram.create_summary_metadata(display_name=None, description=None)
    tf.summary.write(name, tf.constant(buckets, tf.float64), metadata=metadata)


def _lines(rows):
    return "".join(to_json(row) + "\n" for row in rows)


def _row(line):
    """A line's row; None for what is none, such as the half line that a full disk may leave at the end."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    if not isinstance(row, dict) or not {"kind", "step"} <= row.keys():
        return None
    if "utilisation" in row:  # its name until version 0.1
        row["mfu"] = row.pop("utilisation")
    return nan_for_null(row)
