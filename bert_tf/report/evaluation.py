"""The page about how a model answers a data set, from what evaluation found."""

import math

from bert_tf.metrics.calibration import calibration_errors
from bert_tf.metrics.units import SHARE, unit_of
from bert_tf.report.page import Html, escape, figures, join, measure, page, paragraph, plots, section, table
from bert_tf.report.reliability import reliability_plot

# More classes than this make a matrix that nobody can read; then the pairs most often confused are listed.
_MATRIX = 12
_PAIRS = 25
_LOCATIONS = 20  # places of skipped examples that are shown, a reason
_CHARACTERS = 600  # of a text or an answer that are shown


def evaluation_page(title, data, examples, monitor, measured, baseline, error_analysis, read_report):
    """Makes the page.

    Args:
        title: what was measured.
        data: where the examples come from.
        examples: how many there were.
        monitor: name of the metric that counts.
        measured: dict name -> float: losses, measures and scores.
        baseline: dict name of a score -> float, what answers given without reading score.
        error_analysis: tasks.error_analysis.ErrorAnalysis.
        read_report: inputs.examples.ReadReport, what was left out or changed in reading.

    Returns:
        The page as `Html`.
    """
    return page(
        title,
        [
            _scores(monitor, measured, baseline, error_analysis.intervals),
            _confusion(error_analysis.confusion),
            _table(error_analysis.table),
            _calibration(error_analysis.confidences, error_analysis.correct),
            _cases(
                "The worst mistakes",
                "Surest first, where the model says how sure it is. Some of them may be mistakes of the labels.",
                error_analysis.errors,
            ),
            _cases("Answers", "", error_analysis.examples),
            _left_out(read_report),
        ],
        subtitle=f"{examples:,} examples of {data}",
        summary=_key_figures(monitor, measured, baseline, error_analysis, read_report),
    )


def _text(value, unit=SHARE):
    return unit.text(value) if math.isfinite(value) else str(value)


def _range(low, high, unit):
    dash = " to " if low < 0 else "–"  # not to be taken for a minus
    low, high = _text(low, unit), _text(high, unit)
    return f"{low.removesuffix('%') if high.endswith('%') else low}{dash}{high}"


def _key_figures(monitor, measured, baseline, error_analysis, read_report):
    unit = unit_of(monitor, measured)
    items = [(_text(measured[monitor], unit), monitor)]
    if monitor in error_analysis.intervals:
        items.append((_range(*error_analysis.intervals[monitor], unit), f"95% interval of {monitor}"))
    if monitor in baseline:
        items.append((_text(baseline[monitor], unit), "baseline: answers given without reading"))
    if "truncated_share" in measured:
        items.append((_text(measured["truncated_share"]), "of the inputs were too long and cut"))
    if read_report.counts:
        items.append((f"{read_report.counts.total():,}", "examples skipped or mended"))
    return figures(items)


def _scores(monitor, measured, baseline, intervals):
    # Scores of parts, such as PER/f1, stand in the task's own table.
    names = [name for name in measured if "/" not in name and name not in (monitor, "truncated_share")]
    scored = [name for name in names if name in baseline]
    lines = []
    for name in (monitor, *scored, *(name for name in names if name not in baseline)):
        interval, value, unit = intervals.get(name), measured[name], unit_of(name, measured)
        text = _text(value, unit)
        lines.append(
            (
                Html(f"<strong>{escape(name)}</strong>") if name == monitor else name,
                measure(text, value, interval) if name in baseline and unit.is_part and 0 <= value <= 1 else text,
                _range(*interval, unit) if interval else "",
                _text(baseline[name], unit) if name in baseline else "",
            )
        )
    return section(
        "Scores",
        paragraph(
            "The paler end of a bar is the 95% interval: how far the score moves when the examples are drawn again "
            "(bootstrap). The baseline is what answers given without reading score: a model must be above it."
        ),
        table(lines, ("Score", "Value", "95% interval", "Floor"), numbers=(2, 3)),
    )


def _confusion(confusion):
    if not confusion:
        return ""
    if len(confusion.labels) <= _MATRIX:
        rows = [
            (label, *(_cell(count, sum(counts)) for count in counts), f"{sum(counts):,}")
            for label, counts in zip(confusion.labels, confusion.counts, strict=True)
        ]
        numbers = range(1, len(confusion.labels) + 2)
        return section(
            "Which class was taken for which",
            paragraph("A row is a right class, a column what the model said; the shade is the share of the row."),
            table(rows, ("right \\ said", *confusion.labels, "all"), numbers=numbers),
        )
    pairs = [
        (right, said, count, sum(counts))
        for right, counts in zip(confusion.labels, confusion.counts, strict=True)
        for said, count in zip(confusion.labels, counts, strict=True)
        if count and right != said
    ]
    pairs = sorted(pairs, key=lambda pair: -pair[2])[:_PAIRS]
    rows = [(right, said, f"{count:,}", f"{count / every:.1%}") for right, said, count, every in pairs]
    return section(
        "The classes most often taken for another",
        table(rows, ("Right", "Said", "How often", "Share of the right class"), numbers=(2, 3)) if rows else "",
    )


def _cell(count, of_row):
    """A count on a ground that is the stronger the larger its share of the row; pale enough to read on."""
    share = count / of_row if of_row else 0.0
    return Html(f'<span class="cell" style="--share:{share:.0%}">{count:,}</span>')


def _table(shown):
    if not shown:
        return ""
    rows = [
        tuple(_text(value) if isinstance(value, float) else f"{value:,}" if index else value
              for index, value in enumerate(row))
        for row in shown.rows
    ]  # fmt: skip
    return section(shown.title, table(rows, shown.header, numbers=range(1, len(shown.header))))


def _calibration(confidences, correct):
    if not len(confidences):
        return ""
    errors = calibration_errors(confidences, correct)
    return section(
        "Is it right as often as it says?",
        paragraph(
            f"On average it was {errors['confidence']:.1%} sure, and right in {sum(correct) / len(correct):.1%}. "
            "Points on the dotted line are honest, below it the model is too sure of itself; lines through the points "
            f"are 95% intervals (Wilson). Expected calibration error: {errors['expected_calibration_error']:.1%}."
        ),
        plots(reliability_plot(confidences, correct)),
    )


def _cases(heading, explanation, cases):
    if not cases:
        return ""
    sure = any(case.confidence is not None for case in cases)
    header = ("Text", "Right", "Said", *(["Confidence"] if sure else []), "Place")
    rows = [
        (
            join(Html(f'<p class="text">{escape(_short(text))}</p>') for text in case.texts),
            *(Html(f'<p class="answer">{escape(_short(text))}</p>') for text in (case.expected, case.answered)),
            *([_text(case.confidence) if case.confidence is not None else ""] if sure else []),
            Html(f'<span class="muted">{escape(_in_file(case.location))}</span>'),
        )
        for case in cases
    ]
    return section(
        heading,
        paragraph(explanation) if explanation else "",
        table(rows, header, numbers=(3,) if sure else ()),
    )


def _short(text):
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


def _in_file(location):
    """A location without the folders, which the page's first lines tell."""
    return location.rpartition("/")[2]


def _left_out(read_report):
    rows = [
        (
            reason,
            f"{count:,}",
            ", ".join(map(_in_file, read_report.locations[reason][:_LOCATIONS]))
            + (", …" if count > _LOCATIONS else ""),
        )
        for reason, count in read_report.counts.most_common()
    ]
    return section(
        "What was left out or mended", table(rows, ("Reason", "How often", "Where"), numbers=(1,)) if rows else ""
    )
