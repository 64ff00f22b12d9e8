"""The page about how a model answers a data set, from what evaluation found."""

import math

from bert_tf.metrics.calibration import calibration_errors
from bert_tf.metrics.units import SHARE, unit_of
from bert_tf.report.page import Html, escape, figures, join, measure, page, paragraph, plots, section, table
from bert_tf.report.reliability import reliability_plot

# More classes than this make a matrix that nobody can read; then the pairs most often confused are listed.
_MATRIX = 12
_PAIRS = 25
_PLACES = 20  # places of skipped examples that are shown, a reason
_CHARACTERS = 600  # of a text or an answer that are shown


def evaluation_page(title, data, examples, best, measured, floor, findings, skips):
    """Makes the page.

    Args:
        title: what was measured.
        data: where the examples come from.
        examples: how many there were.
        best: name of the score that counts.
        measured: dict name -> float: losses, measures and scores.
        floor: dict name of a score -> float, what answers given without reading score.
        findings: tasks.findings.Findings.
        skips: inputs.examples.Skips, what was left out or changed in reading.

    Returns:
        The page as `Html`.
    """
    return page(
        title,
        [
            _scores(best, measured, floor, findings.intervals),
            _confusion(findings.confusion),
            _table(findings.table),
            _calibration(findings.confidences, findings.correct),
            _cases(
                "The worst mistakes",
                "Surest first, where the model says how sure it is. Some of them may be mistakes of the labels.",
                findings.errors,
            ),
            _cases("Answers", "", findings.examples),
            _left_out(skips),
        ],
        subtitle=f"{examples:,} examples of {data}",
        summary=_key_figures(best, measured, floor, findings, skips),
    )


def _text(value, unit=SHARE):
    return unit.text(value) if math.isfinite(value) else str(value)


def _range(low, high, unit):
    dash = " to " if low < 0 else "–"  # not to be taken for a minus
    low, high = _text(low, unit), _text(high, unit)
    return f"{low.removesuffix('%') if high.endswith('%') else low}{dash}{high}"


def _key_figures(best, measured, floor, findings, skips):
    unit = unit_of(best, measured)
    items = [(_text(measured[best], unit), best)]
    if best in findings.intervals:
        items.append((_range(*findings.intervals[best], unit), f"95% interval of {best}"))
    if best in floor:
        items.append((_text(floor[best], unit), "floor: answers given without reading"))
    if "truncated_share" in measured:
        items.append((_text(measured["truncated_share"]), "of the inputs were too long and cut"))
    if skips.counts:
        items.append((f"{skips.counts.total():,}", "examples skipped or mended"))
    return figures(items)


def _scores(best, measured, floor, intervals):
    # Scores of parts, such as PER/f1, stand in the task's own table.
    names = [name for name in measured if "/" not in name and name not in (best, "truncated_share")]
    scored = [name for name in names if name in floor]
    lines = []
    for name in (best, *scored, *(name for name in names if name not in floor)):
        interval, value, unit = intervals.get(name), measured[name], unit_of(name, measured)
        text = _text(value, unit)
        lines.append(
            (
                Html(f"<strong>{escape(name)}</strong>") if name == best else name,
                measure(text, value, interval) if name in floor and unit.is_part and 0 <= value <= 1 else text,
                _range(*interval, unit) if interval else "",
                _text(floor[name], unit) if name in floor else "",
            )
        )
    return section(
        "Scores",
        paragraph(
            "The paler end of a bar is the 95% interval: how far the score moves when the examples are drawn again "
            "(bootstrap). The floor is what answers given without reading score: a model must be above it."
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
        tuple(_text(value) if isinstance(value, float) else f"{value:,}" if place else value
              for place, value in enumerate(row))
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
            Html(f'<span class="muted">{escape(_in_file(case.place))}</span>'),
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


def _in_file(place):
    """A place without the folders, which the page's first lines tell."""
    return place.rpartition("/")[2]


def _left_out(skips):
    rows = [
        (
            reason,
            f"{count:,}",
            ", ".join(map(_in_file, skips.places[reason][:_PLACES])) + (", …" if count > _PLACES else ""),
        )
        for reason, count in skips.counts.most_common()
    ]
    return section(
        "What was left out or mended", table(rows, ("Reason", "How often", "Where"), numbers=(1,)) if rows else ""
    )
