"""HTML page about an evaluation: metrics, confusions, calibration and example predictions."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bert_tf.metrics.calibration import calibration_errors
from bert_tf.metrics.units import SHARE, Unit, unit_of
from bert_tf.report.page import Html, escape, join, key_figures, meter, page, paragraph, plots, section, table
from bert_tf.report.reliability import reliability_plot
from bert_tf.types import Array

if TYPE_CHECKING:  # a report does not need TensorFlow, which the tasks and readers import
    from bert_tf.inputs.datasets.examples import ReadReport
    from bert_tf.tasks.error_analysis import Confusion, ErrorAnalysis, ErrorExample, Table

# With more classes a matrix is unreadable; the most frequent confusions are listed instead.
_MATRIX = 12
_PAIRS = 25
_LOCATIONS = 20  # locations of skipped examples shown per reason
_CHARACTERS = 600  # shown of a text or an answer


def evaluation_page(
    title: str,
    data: str,
    examples: int,
    monitor: str,
    measured: Mapping[str, float],
    baseline: Mapping[str, float],
    error_analysis: "ErrorAnalysis",
    read_report: "ReadReport",
) -> Html:
    """Builds the page.

    Args:
        title: name of the task.
        data: name of the data set.
        examples: number of evaluated examples.
        monitor: name of the main metric.
        measured: losses and metrics by name.
        baseline: metrics of predictions made without reading the inputs.
        error_analysis: of the predictions.
        read_report: examples that were skipped or repaired when the data was read.
    """
    return page(
        title,
        [
            _metrics(monitor, measured, baseline, error_analysis.intervals),
            _confusion(error_analysis.confusion),
            _table(error_analysis.table),
            _calibration(error_analysis.confidences, error_analysis.correct),
            _examples(
                "Worst mistakes",
                "Most confident first, if the model gives a confidence. Some may be labelling errors.",
                error_analysis.errors,
            ),
            _examples("Example predictions", "", error_analysis.examples),
            _read_report(read_report),
        ],
        subtitle=f"{examples:,} examples of {data}",
        summary=_summary(monitor, measured, baseline, error_analysis, read_report),
    )


def _text(value: float, unit: Unit = SHARE) -> str:
    return unit.text(value) if math.isfinite(value) else str(value)


def _range(low: float, high: float, unit: Unit) -> str:
    dash = " to " if low < 0 else "–"  # which could be mistaken for a minus
    first, last = _text(low, unit), _text(high, unit)
    return f"{first.removesuffix('%') if last.endswith('%') else first}{dash}{last}"


def _summary(
    monitor: str,
    measured: Mapping[str, float],
    baseline: Mapping[str, float],
    error_analysis: "ErrorAnalysis",
    read_report: "ReadReport",
) -> Html:
    unit = unit_of(monitor, measured)
    items = [(_text(measured[monitor], unit), monitor)]
    if monitor in error_analysis.intervals:
        items.append((_range(*error_analysis.intervals[monitor], unit), f"95% interval of {monitor}"))
    if monitor in baseline:
        items.append((_text(baseline[monitor], unit), "baseline: predictions without reading the inputs"))
    if "truncated_share" in measured:
        items.append((_text(measured["truncated_share"]), "of the inputs were truncated"))
    if read_report.counts:
        items.append((f"{read_report.counts.total():,}", "examples skipped or repaired"))
    return key_figures(items)


def _metrics(
    monitor: str,
    measured: Mapping[str, float],
    baseline: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
) -> Html:
    # Metrics of parts, such as PER/f1, are in the task's own table.
    names = [name for name in measured if "/" not in name and name not in (monitor, "truncated_share")]
    with_baseline = [name for name in names if name in baseline]
    lines = []
    for name in (monitor, *with_baseline, *(name for name in names if name not in baseline)):
        interval, value, unit = intervals.get(name), measured[name], unit_of(name, measured)
        text = _text(value, unit)
        lines.append(
            (
                Html(f"<strong>{escape(name)}</strong>") if name == monitor else name,
                meter(text, value, interval) if name in baseline and unit.is_part and 0 <= value <= 1 else text,
                _range(*interval, unit) if interval else "",
                _text(baseline[name], unit) if name in baseline else "",
            )
        )
    return section(
        "Metrics",
        paragraph(
            "The paler end of a bar is the 95% bootstrap interval: how much the metric varies when the examples are "
            "resampled. The baseline belongs to predictions made without reading the inputs; a model must exceed it."
        ),
        table(lines, ("Metric", "Value", "95% interval", "Baseline"), numbers=(2, 3)),
    )


def _confusion(confusion: "Confusion | None") -> Html:
    if not confusion:
        return Html("")
    if len(confusion.labels) <= _MATRIX:
        rows = [
            (label, *(_cell(count, sum(counts)) for count in counts), f"{sum(counts):,}")
            for label, counts in zip(confusion.labels, confusion.counts, strict=True)
        ]
        numbers = range(1, len(confusion.labels) + 2)
        return section(
            "Confusion matrix",
            paragraph("Rows are true classes, columns are predicted classes; the shade is the share of the row."),
            table(rows, ("true \\ predicted", *confusion.labels, "total"), numbers=numbers),
        )
    pairs = [
        (true, predicted, count, sum(counts))
        for true, counts in zip(confusion.labels, confusion.counts, strict=True)
        for predicted, count in zip(confusion.labels, counts, strict=True)
        if count and true != predicted
    ]
    pairs = sorted(pairs, key=lambda pair: -pair[2])[:_PAIRS]
    lines = [(true, predicted, f"{count:,}", f"{count / total:.1%}") for true, predicted, count, total in pairs]
    return section(
        "Most frequent confusions",
        table(lines, ("True class", "Predicted class", "Count", "Share of the true class"), numbers=(2, 3))
        if lines
        else "",
    )


def _cell(count: int, row_total: int) -> Html:
    """A count on a background that is darker for a larger share of the row, and light enough to read on."""
    share = count / row_total if row_total else 0.0
    return Html(f'<span class="cell" style="--share:{share:.0%}">{count:,}</span>')


def _table(breakdown: "Table | None") -> Html:
    if not breakdown:
        return Html("")
    rows = [
        tuple(_text(value) if isinstance(value, float) else f"{value:,}" if index else value
              for index, value in enumerate(row))
        for row in breakdown.rows
    ]  # fmt: skip
    return section(breakdown.title, table(rows, breakdown.header, numbers=range(1, len(breakdown.header))))


def _calibration(confidences: Sequence[float] | Array, correct: Sequence[bool] | Array) -> Html:
    if not len(confidences):
        return Html("")
    errors = calibration_errors(confidences, correct)
    return section(
        "Calibration",
        paragraph(
            f"The mean confidence is {errors['confidence']:.1%}; {sum(correct) / len(correct):.1%} of the predictions "
            "are correct. On the dotted line the model is well calibrated, below it overconfident; lines through the "
            "points are 95% intervals (Wilson). "
            f"Expected calibration error: {errors['expected_calibration_error']:.1%}."
        ),
        plots(reliability_plot(confidences, correct)),
    )


def _examples(heading: str, explanation: str, examples: "Sequence[ErrorExample]") -> Html:
    if not examples:
        return Html("")
    has_confidence = any(example.confidence is not None for example in examples)
    header = ("Text", "Expected", "Predicted", *(["Confidence"] if has_confidence else []), "Location")
    rows = [
        (
            join(Html(f'<p class="text">{escape(_shortened(text))}</p>') for text in example.texts),
            *(
                Html(f'<p class="answer">{escape(_shortened(text))}</p>')
                for text in (example.expected, example.answered)
            ),
            *([_text(example.confidence) if example.confidence is not None else ""] if has_confidence else []),
            Html(f'<span class="muted">{escape(_without_folders(example.location))}</span>'),
        )
        for example in examples
    ]
    return section(
        heading,
        paragraph(explanation) if explanation else "",
        table(rows, header, numbers=(3,) if has_confidence else ()),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


def _without_folders(location: str) -> str:
    """Removes the folders, which the page shows in its subtitle."""
    return location.rpartition("/")[2]


def _read_report(read_report: "ReadReport") -> Html:
    rows = [
        (
            reason,
            f"{count:,}",
            ", ".join(map(_without_folders, read_report.locations[reason][:_LOCATIONS]))
            + (", …" if count > _LOCATIONS else ""),
        )
        for reason, count in read_report.counts.most_common()
    ]
    return section(
        "Skipped and repaired examples", table(rows, ("Reason", "Count", "Locations"), numbers=(1,)) if rows else ""
    )
