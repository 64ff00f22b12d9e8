"""HTML page about the results of the quick start."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from bert_tf.report.curves import curve_plot, series_of
from bert_tf.report.page import (
    Html,
    code,
    command,
    escape,
    heading,
    key_figures,
    meter,
    page,
    paragraph,
    plots,
    section,
    table,
)
from bert_tf.report.statistics import wilson_interval
from bert_tf.types import Json

_STAGES = {
    "vocabulary": "Learning the vocabulary",
    "pretraining": "Pre-training tiny",
    "finetuning tiny": "Fine-tuning tiny",
    "finetuning minilm": "Fine-tuning the real weights",
    "export": "Exporting",
    "answers": "Predicting, in a new process",
}


def quickstart_page(results: Json) -> Html:
    """Builds the page from the content of the quick start's `results.json`, any part of which may be missing."""
    return page(
        "bert_tf quick start",
        [
            _comparison(results.get("comparison") or []),
            _predictions(results.get("predictions") or []),
            _fill_mask(results.get("fill_mask") or []),
            _finetuning(results.get("finetuning") or {}),
            _pretraining(results.get("pretraining") or {}),
            _time(results.get("seconds") or {}),
            _commands(results.get("commands") or []),
            _environment(results),
        ],
        subtitle="From raw text to served predictions: the models trained here, their accuracy, and the next steps.",
        summary=_summary(results),
    )


def duration(seconds: float) -> str:
    """Formats seconds: `12.3 s`, `5 min 40 s`."""
    if seconds < 59.95:  # larger values would be rounded to "60.0 s"
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _summary(results: Json) -> Html:
    items = []
    if comparison := results.get("comparison"):
        best = max(comparison, key=lambda row: row["accuracy"])
        items.append((_percent(best["accuracy"]), f"validation accuracy, {best['model']}"))
    pretraining = results.get("pretraining") or {}
    evaluations = [e for e in pretraining.get("evaluations") or [] if e.get("mlm_accuracy") is not None]
    if evaluations:
        items.append(
            (
                _percent(evaluations[-1]["mlm_accuracy"]),
                "of masked words predicted correctly by tiny, validation documents",
            )
        )
    speeds = [r["sequences_per_second"] for r in pretraining.get("history") or [] if r.get("sequences_per_second")]
    if speeds:
        items.append((f"{statistics.median(speeds):,.0f}", "sequences per second in pre-training, median"))
    if total := (results.get("seconds") or {}).get("total"):
        items.append((duration(total), "from raw text to the exported model"))
    return key_figures(items)


def _comparison(rows: Sequence[Json]) -> Html:
    if not rows:
        return Html("")
    lines = []
    for row in rows:
        interval = wilson_interval(row["correct"], row["total"]) if row.get("total") else None
        lines.append(
            (
                row["model"],
                meter(_percent(row["accuracy"]), row["accuracy"], interval),
                f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}%" if interval else "",
                f"{row['correct']}/{row['total']}" if interval else "",
            )
        )
    return section(
        "Movie reviews: positive or negative",
        paragraph(
            "All models are evaluated on the same validation sentences. The paler end of a bar is the 95% interval "
            "(Wilson)."
        ),
        table(lines, ("Model", "Accuracy", "95% interval", "Correct"), numbers=(2, 3)),
    )


def _predictions(rows: Sequence[Json]) -> Html:
    if not rows:
        return Html("")
    lines = []
    for row in rows:
        share = (row.get("probabilities") or {}).get(row["label"])
        lines.append((row["text"], row["label"], "" if share is None else meter(_percent(share), share)))
    return section(
        "Predictions of the exported model",
        paragraph("The SavedModel reads plain strings. A session in a new process runs it, as TF Serving does."),
        table(lines, ("Sentence", "Label", "Probability")),
    )


def _fill_mask(rows: Sequence[Json]) -> Html:
    if not rows:
        return Html("")
    lines = []
    for row in rows:
        text = Html(str(escape(row["text"])).replace("[MASK]", '<span class="mark">[MASK]</span>'))
        fillings = "".join(
            f'<li><span>{escape(filling["token"])}</span><span class="muted">{filling["probability"]:.1%}</span></li>'
            for filling in row.get("fillings") or []
        )
        lines.append((text, Html(f'<ol class="fillings">{fillings}</ol>')))
    return section(
        "Masked words predicted by the tiny model",
        paragraph("Pre-trained here for minutes, only on the bundled speeches: expect their vocabulary."),
        table(lines, ("Sentence", "Top predictions and their probabilities")),
    )


def _curves(part: Json, curves: Iterable[tuple[str, str, str, bool]]) -> Html:
    """Plots training and validation curves for each (key, title, y label, percent)."""
    history, evaluations = part.get("history") or [], part.get("evaluations") or []
    return plots(
        *(
            curve_plot(
                [series_of("training", history, key), series_of("validation", evaluations, key, sparse=True)],
                title,
                "step",
                label,
                percent=percent,
            )
            for key, title, label, percent in curves
        )
    )


def _finetuning(parts: Mapping[str, Json | None]) -> Html:
    blocks = []
    for name, part in parts.items():
        drawings = _curves(
            part or {},
            [
                ("accuracy", "Accuracy", "share of sentences", True),
                ("loss", "Loss", "cross-entropy (nats)", False),
                ("learning_rate", "Learning rate", "learning rate", False),
            ],
        )
        if drawings:
            blocks += [heading(name), drawings]
    return section("Fine-tuning", *blocks)


def _pretraining(part: Json) -> Html:
    drawings = _curves(
        part,
        [
            ("mlm_loss", "MLM loss", "cross-entropy (nats)", False),
            ("mlm_accuracy", "MLM accuracy", "share of masked words", True),
            ("learning_rate", "Learning rate", "learning rate", False),
            ("nsp_loss", "NSP loss", "cross-entropy (nats)", False),
            ("nsp_accuracy", "NSP accuracy", "share of pairs", True),
            ("loss", "Sum of both losses", "cross-entropy (nats)", False),
        ],
    )
    facts = [
        text.format(part[key])
        for key, text in [
            ("model", "{}"),
            ("parameters", "{:,} parameters"),
            ("vocab_size", "{:,} wordpieces"),
            ("steps", "{:,} steps"),
        ]
        if part.get(key) is not None
    ]
    explanation = "MLM: predict the masked words. NSP: does the second segment follow the first in the same document?"
    return section(
        "Pre-training from raw text",
        paragraph(", ".join(facts) + ".") if facts else "",
        paragraph(explanation) if drawings else "",
        drawings,
    )


def _time(seconds: Mapping[str, float]) -> Html:
    stages = {_STAGES.get(name, name): value for name, value in seconds.items() if name != "total"}
    if not stages:
        return Html("")
    total = seconds.get("total") or sum(stages.values())
    lines = [(name, meter(duration(value), value / total if total else 0.0)) for name, value in stages.items()]
    return section("Time per stage", table(lines, ("Stage", f"Share of {duration(total)}")))


def _commands(commands: Iterable[Sequence[str]]) -> Html:
    return section("Next steps", *(command(purpose, text) for purpose, text in commands))


def _environment(results: Json) -> Html:
    rows = [("created", results["created"])] if results.get("created") else []
    rows += [*(results.get("machine") or {}).items(), *(results.get("versions") or {}).items()]
    text = "\n".join(f"{name}: {value}" for name, value in rows)
    return section("Environment", code(text)) if rows else Html("")
