"""Training curves and evaluations: history.jsonl and TensorBoard files."""

import contextlib
import glob
import math
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

import numpy as np
import tensorflow as tf
from tensorboard.plugins.histogram import metadata as histogram

from bert_tf.errors import BertTfError, DataError
from bert_tf.files import cause, checked, nan_for_null, parse_json, replacing, to_json, write_text
from bert_tf.metrics.units import metrics_line
from bert_tf.progress import log
from bert_tf.training.reporter import CURVES
from bert_tf.training.speed import SECONDS
from bert_tf.types import Array, Json, Metrics

_Numbers = dict[str, float | None]
_SHOWN = ("training", "evaluation")  # kinds of rows written to TensorBoard
_BUCKETS = 64  # maximum per histogram: more than TensorBoard's plots can show


class History:
    """Points of the training curves, and evaluations.

    Attributes:
        points: dicts with step, phase (number from 0), loss, the task's metrics, gradient_norm, learning_rate; over the
            updates since the previous point, the rates of `Speed.rates`, and the time by category: training_seconds,
            evaluation_seconds, saving_seconds, start_seconds, each left out if 0.
        evaluations: dicts with step and the metrics of the evaluation.
        resumes: the steps from which the run was resumed.
        stopped: the step at which a callback ended the run; None if none did.

    Args:
        directory: gets history.jsonl and tensorboard/.
        step: of the checkpoint from which the run resumes; rows of later steps are removed, they will be written again.
        write: False keeps everything in memory (workers other than the chief).
        draw: presents the curves (`Reporter.curves`); called at each evaluation, and by `draw`.

    All methods raise a BertTfError if a file cannot be written, e.g. because the disk is full; a line or an event that
    was written only in part is removed when the run resumes.
    """

    def __init__(
        self,
        directory: str,
        step: int,
        *,
        write: bool = True,
        draw: Callable[["History"], None] = lambda history: None,
    ) -> None:
        self._path = os.path.join(directory, "history.jsonl")
        rows = [row for row in _read(self._path, warn=write) if row["step"] <= step]
        self._count = len(rows)  # of history.jsonl
        self.points = [row for row in rows if row["kind"] == "training"]
        self.evaluations = [row for row in rows if row["kind"] == "evaluation"]
        self.resumes: list[int] = [row["step"] for row in rows if row["kind"] == "resume"]
        self.stopped: int | None = next((row["step"] for row in rows if row["kind"] == "stop"), None)
        self._directory, self._draw, self._write = directory, draw, write
        self._drawn = -1  # number of rows that are in the curves
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        if write:
            write_text(self._path, _lines(rows))
            for kind in _SHOWN:
                _remove_events_after(self._events(kind), step)

    def resume(self, step: int) -> None:
        """Records that the run resumes from a checkpoint of an earlier process."""
        self.resumes.append(step)
        self._record({"kind": "resume", "step": step})

    def stop(self, step: int) -> None:
        """Records that a callback has ended the run."""
        self.stopped = step
        self._record({"kind": "stop", "step": step})

    def point(
        self,
        step: int,
        phase: int,
        metrics: Metrics,
        learning_rate: tf.Tensor | float,
        speed: Mapping[str, float],
        histograms: Mapping[str, Array] | None = None,
    ) -> None:
        """Records a point of the training curves.

        Args:
            step: updates done.
            phase: index of the phase to which they belong.
            metrics: means over the updates since the previous point.
            learning_rate: of the last update.
            speed: from `Speed.point`.
            histograms: by name, counts [n] of the values 0 to n - 1; for TensorBoard only.
        """
        row: Json = {"kind": "training", "step": step, "phase": phase, **metrics}
        row |= {"learning_rate": float(learning_rate), **speed}
        self.points.append(row)
        self._record(row, histograms or {})

    def evaluation(self, step: int, metrics: Metrics, print_line: Callable[[str], object] = print) -> None:
        """Records and prints an evaluation."""
        row: Json = {"kind": "evaluation", "step": step, **metrics}
        self.evaluations.append(row)
        self._record(row)
        self.draw()
        print_line(f"  step {step}, validation: {metrics_line(metrics)}")

    def draw(self) -> None:
        """Presents the curves, unless they are as before, or a run ends before its first point."""
        if self._write and self._drawn != self._count and (self.points or self.evaluations):
            with self._failures(CURVES):
                self._draw(self)
                self._drawn = self._count

    def _record(self, row: Json, histograms: Mapping[str, Array] = types.MappingProxyType({})) -> None:
        self._count += 1
        if not self._write:
            return
        with self._failures("history.jsonl"), open(self._path, "a", encoding="utf-8") as file:
            file.write(_lines([row]))
        if row["kind"] in _SHOWN:
            with self._failures("tensorboard"):
                self._write_events(row, histograms)

    def _write_events(self, row: Json, histograms: Mapping[str, Array]) -> None:
        if row["kind"] not in self._writers:
            self._writers[row["kind"]] = tf.summary.create_file_writer(self._events(row["kind"]))
        writer = self._writers[row["kind"]]
        with writer.as_default(row["step"]):
            for name, value in row.items():
                if name not in ("kind", "step"):
                    tf.summary.scalar(name, value)
            for name in histograms:
                _write_histogram(name, histograms[name])
        writer.flush()

    def _events(self, kind: str) -> str:
        return os.path.join(self._directory, "tensorboard", kind)

    @contextlib.contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        """Names the file and the remedy in write errors."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            raise BertTfError(
                f"{os.path.join(self._directory, name)} could not be written: {cause(error)}; make room and run the "
                "same command again to resume"
            ) from None


def _remove_events_after(folder: str, step: int) -> None:
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
        events = list(_read_events(path))
        kept = [raw for raw, event_step in events if event_step <= step]
        if len(kept) < len(events):
            with replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
                for raw in kept:
                    writer.write(raw)
        if len(kept) > 1:  # the first event is the file's version, with step 0
            return


def _read_events(path: str) -> Iterator[tuple[bytes, int]]:
    """Yields (bytes, step) of all complete events: a kill may have truncated the last one."""
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield record, tf.compat.v1.Event.FromString(record).step
    except tf.errors.DataLossError:
        return


def by_phase(points: Sequence[Json], pending: Mapping[str, float] | None = None) -> list[Json]:
    """Speed and time of a run by phase, resumes included: for results.json.

    Args:
        points: `History.points`.
        pending: `Speed.point` after the last point; its seconds are added to the last phase.

    Returns:
        One dict per phase: phase; sequences_per_second, tokens_per_second, mfu, means over the training time;
        padding_share, mean over the points; seconds, a dict of training, evaluation, saving and start.
    """
    phases = []
    for phase in sorted({point["phase"] for point in points}):
        rows = [point for point in points if point["phase"] == phase]
        spent = rows + [pending or {}] * (phase == points[-1]["phase"])
        row: Json = {"phase": phase}
        for name in ("sequences_per_second", "tokens_per_second", "mfu"):
            timed = [
                (point[name], point["training_seconds"]) for point in rows if {name, "training_seconds"} <= {*point}
            ]
            if total := sum(seconds for _, seconds in timed):
                row[name] = sum(rate * seconds for rate, seconds in timed) / total
        shares = [point.get("padding_share", math.nan) for point in rows]
        shares = [share for share in shares if math.isfinite(share)]  # NaN: all updates of that point were skipped
        if shares:
            row["padding_share"] = sum(shares) / len(shares)
        row["seconds"] = {name: round(sum(point.get(f"{name}_seconds", 0.0) for point in spent), 2) for name in SECONDS}
        phases.append(row)
    return phases


def _write_histogram(name: str, counts: Array) -> None:
    """Writes the counts themselves; tf.summary.histogram takes the values, a million of them for a large batch."""
    counts = np.trim_zeros(counts, "b")
    width = max(1, -(-len(counts) // _BUCKETS))
    counts = np.pad(counts, [0, -len(counts) % width]).reshape([-1, width]).sum(1)
    edges = np.arange(len(counts) + 1) * width - 0.5  # each integer lies inside of a bucket
    buckets = np.stack([edges[:-1], edges[1:], counts], 1)
    metadata = histogram.create_summary_metadata(display_name=None, description=None)
    tf.summary.write(name, tf.constant(buckets, tf.float64), metadata=metadata)


def _lines(rows: Iterable[Json]) -> str:
    return "".join(to_json(row) + "\n" for row in rows)


class _Row(TypedDict):
    kind: str
    step: int


class _Point(_Row):
    phase: int


def _read(path: str, *, warn: bool) -> list[Json]:
    """The rows of a history.jsonl, if it exists; without lines that are no rows, such as a truncated last one.

    A full disk or a killed process may leave such lines, and the run can resume without them: a point of the curves is
    missing. `warn` prints the number of these lines, and what is wrong with the first; half a last line is not counted.
    """
    rows, wrong = [], []
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = parse_json(line.rstrip(b"\n"), path, Json, number)
                location = f"{path}:{number}"
                checked(row, _Point if row.get("kind") == "training" else _Row, location)
                checked({name: value for name, value in row.items() if name != "kind"}, _Numbers, location)
                rows.append(nan_for_null(row))
            except DataError as error:
                if line.endswith(b"\n"):  # else the process was killed while it wrote this line
                    wrong.append(str(error))
    if wrong and warn:
        log(f"{wrong[0]}; left out of the curves: {len(wrong):,} line{'s' * (len(wrong) > 1)}")
    return rows
