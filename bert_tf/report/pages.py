"""Self-contained HTML pages, made of the templates in templates/.

Jinja escapes all values, so that text from a data set or a model cannot break a page.
"""

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

import jinja2
import numpy as np

from bert_tf.metrics.calibration import calibration_errors
from bert_tf.metrics.statistics import wilson_interval
from bert_tf.metrics.units import SHARE, Unit, unit_of
from bert_tf.progress import duration
from bert_tf.report.plots import curve_plot, reliability_plot, tradeoff_plot
from bert_tf.types import Json, Metrics

if TYPE_CHECKING:  # a report does not need TensorFlow, which the tasks and readers import
    from bert_tf.inputs.datasets.examples import ReadReport
    from bert_tf.tasks.benchmark import Confusion, ErrorAnalysis
    from bert_tf.tasks.task import FineTuningTask
    from bert_tf.training.evaluation import Split

# With more classes a matrix is unreadable; the most frequent confusions are listed instead.
_MATRIX = 12
_PAIRS = 25
_CHARACTERS = 600  # shown of a text or an answer


def quickstart_page(results: Json) -> str:
    """Builds the page from the content of the quick start's results.json."""
    return _TEMPLATES.get_template("quickstart.html.j2").render(results=results)


def evaluation_page(task: "FineTuningTask", split: "Split", predictions: list[Json], measured: Metrics) -> str:
    """Builds a page with metrics, confusions, calibration and example predictions.

    Args:
        task: that was evaluated.
        split: its examples.
        predictions: of the examples.
        measured: losses and metrics by name; `kind` and `step` of the evaluation are not shown.
    """
    return analysis_page(
        Evaluated(
            task.name.replace("_", " ").capitalize(), split.where, len(split.examples), task.monitor, split.read_report
        ),
        measured,
        task.benchmark.baseline(split.examples),
        task.benchmark.error_analysis(split.examples, predictions),
    )


class Evaluated(NamedTuple):
    """What was evaluated.

    Attributes:
        title: of the page.
        data: name of the examples.
        examples: their number.
        monitor: the most important metric.
        read_report: examples that were skipped or repaired.
    """

    title: str
    data: str
    examples: int
    monitor: str
    read_report: "ReadReport"


def analysis_page(evaluated: Evaluated, measured: Metrics, baseline: Metrics, analysis: "ErrorAnalysis") -> str:
    """Builds the page of an evaluation from its parts; `measured` as for `evaluation_page`."""
    # Metrics of parts, such as PER/f1, are in the task's own table.
    names = [name for name in measured if "/" not in name and name not in ("kind", "step", "truncated_share")]
    names.sort(key=lambda name: (name != evaluated.monitor, name not in baseline))
    confusion, confidences, correct = analysis.confusion, analysis.confidences, analysis.correct
    is_matrix = confusion is not None and len(confusion.labels) <= _MATRIX
    calibration: Json = {}
    if len(confidences) and np.isfinite(confidences).all():  # else the model has diverged
        calibration = {
            **calibration_errors(confidences, correct),
            "accuracy": sum(correct) / len(correct),
            "plot": reliability_plot(confidences, correct),
        }
    return _TEMPLATES.get_template("evaluation.html.j2").render(
        **evaluated._asdict(),
        measured=measured,
        baseline=baseline,
        units={name: unit_of(name, measured) for name in names},
        analysis=analysis,
        matrix=confusion if is_matrix else None,
        confusions=_frequent(confusion) if confusion and not is_matrix else None,
        calibration=calibration,
    )


def compression_page(results: Json) -> str:
    """Builds the page from the results.json of `compress`."""
    metric, rows = results["metric"], results["rows"]
    return _TEMPLATES.get_template("compression.html.j2").render(
        results=results,
        metric=metric,
        unit=unit_of(metric, [metric]),
        rows=rows,
        best=next(row for row in rows if row["name"] == results["best"]),
        plot=tradeoff_plot(rows, metric),
    )


def _frequent(confusion: "Confusion") -> list[tuple[str, str, int, int]]:
    """The most frequent confusions: true and predicted class, count, examples of the true class."""
    counts = np.asarray(confusion.counts)
    totals = counts.sum(1)
    pairs = [
        (confusion.labels[true], confusion.labels[predicted], int(counts[true, predicted]), int(totals[true]))
        for true, predicted in np.argwhere(counts)
        if true != predicted
    ]
    return sorted(pairs, key=lambda pair: -pair[2])[:_PAIRS]


def _metric(value: float, unit: Unit = SHARE) -> str:
    return unit.text(value) if math.isfinite(value) else str(value)


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("bert_tf.report"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters |= {
    "duration": duration,
    "median": statistics.median,
    "metric": _metric,
    "name": lambda location: location.rpartition("/")[2],  # without folders, which the subtitle shows
    "percent": _metric,
    "shortened": lambda text: text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…",
}
_TEMPLATES.globals |= {"curve_plot": curve_plot, "wilson_interval": wilson_interval}
