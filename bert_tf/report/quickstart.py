"""The page the quick start leaves behind, from its results."""

import statistics

from bert_tf.report.curves import curve_plot, series_of
from bert_tf.report.page import (
    Html,
    code,
    command,
    escape,
    figures,
    heading,
    measure,
    page,
    paragraph,
    plots,
    section,
    table,
)
from bert_tf.report.statistics import wilson_interval

_STAGES = {
    "vocabulary": "Learning the vocabulary",
    "pretraining": "Pre-training tiny",
    "finetuning tiny": "Fine-tuning tiny",
    "finetuning minilm": "Fine-tuning the real weights",
    "export": "Exporting",
    "answers": "Answering, in a new process",
}


def quickstart_page(results):
    """Makes the page from the content of the quick start's `results.json`.

    Args:
        results: dict; any part may be missing, then the page does without it.

    Returns:
        The page as `Html`.
    """
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
            _circumstances(results),
        ],
        subtitle="Raw text in, a served answer out: what was trained here, how well it does, and how to go on.",
        summary=_key_figures(results),
    )


def duration(seconds):
    """Seconds as a reader says them: `12.3 s`, `5 min 40 s`."""
    if seconds < 59.95:  # above, it would read "60.0 s"
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def _percent(share):
    return f"{share:.1%}"


def _key_figures(results):
    items = []
    if comparison := results.get("comparison"):
        best = max(comparison, key=lambda row: row["accuracy"])
        items.append((_percent(best["accuracy"]), f"validation accuracy, {best['model']}"))
    pretraining = results.get("pretraining") or {}
    evaluations = [e for e in pretraining.get("evaluations") or [] if e.get("mlm_accuracy") is not None]
    if evaluations:
        items.append((_percent(evaluations[-1]["mlm_accuracy"]), "of hidden words found by tiny, validation documents"))
    speeds = [r["sequences_per_second"] for r in pretraining.get("history") or [] if r.get("sequences_per_second")]
    if speeds:
        items.append((f"{statistics.median(speeds):,.0f}", "sequences a second in pre-training, median"))
    if total := (results.get("seconds") or {}).get("total"):
        items.append((duration(total), "from raw text to the exported model"))
    return figures(items)


def _comparison(rows):
    if not rows:
        return ""
    lines = []
    for row in rows:
        interval = wilson_interval(row["correct"], row["total"]) if row.get("total") else None
        lines.append(
            (
                row["model"],
                measure(_percent(row["accuracy"]), row["accuracy"], interval),
                f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}%" if interval else "",
                f"{row['correct']}/{row['total']}" if interval else "",
            )
        )
    return section(
        "Movie reviews: positive or negative",
        paragraph(
            "The same validation sentences for every model. The paler end of a bar is the 95% interval (Wilson)."
        ),
        table(lines, ("Model", "Accuracy", "95% interval", "Correct"), numbers=(2, 3)),
    )


def _predictions(rows):
    if not rows:
        return ""
    lines = []
    for row in rows:
        share = (row.get("probabilities") or {}).get(row["label"])
        lines.append((row["text"], row["label"], "" if share is None else measure(_percent(share), share)))
    return section(
        "Answers of the exported model",
        paragraph("Plain strings into the SavedModel, run by a session in a new process, as TF Serving runs it."),
        table(lines, ("Sentence", "Label", "Probability")),
    )


def _fill_mask(rows):
    if not rows:
        return ""
    lines = []
    for row in rows:
        text = Html(str(escape(row["text"])).replace("[MASK]", '<span class="mark">[MASK]</span>'))
        fillings = "".join(
            f'<li><span>{escape(filling["token"])}</span><span class="muted">{filling["probability"]:.1%}</span></li>'
            for filling in row.get("fillings") or []
        )
        lines.append((text, Html(f'<ol class="fillings">{fillings}</ol>')))
    return section(
        "What the tiny model puts into the gap",
        paragraph("Pre-trained here, for minutes, on the bundled speeches alone: expect their words."),
        table(lines, ("Sentence", "Best fillings and their probability")),
    )


def _curves(part, curves):
    """Draws (key, title, y label, percent), training and validation together."""
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


def _finetuning(parts):
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


def _pretraining(part):
    drawings = _curves(
        part,
        [
            ("mlm_loss", "MLM loss", "cross-entropy (nats)", False),
            ("mlm_accuracy", "MLM accuracy", "share of hidden words", True),
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
            ("vocab_size", "{:,} word pieces"),
            ("steps", "{:,} steps"),
        ]
        if part.get(key) is not None
    ]
    explanation = "MLM: which word is hidden? NSP: does the second part follow the first in the same document?"
    return section(
        "Pre-training from raw text",
        paragraph(", ".join(facts) + ".") if facts else "",
        paragraph(explanation) if drawings else "",
        drawings,
    )


def _time(seconds):
    stages = {_STAGES.get(name, name): value for name, value in seconds.items() if name != "total"}
    if not stages:
        return ""
    total = seconds.get("total") or sum(stages.values())
    lines = [(name, measure(duration(value), value / total if total else 0.0)) for name, value in stages.items()]
    return section("Where the time went", table(lines, ("Stage", f"Share of {duration(total)}")))


def _commands(commands):
    return section("Commands to go on with", *(command(purpose, text) for purpose, text in commands))


def _circumstances(results):
    rows = [("created", results["created"])] if results.get("created") else []
    rows += [*(results.get("machine") or {}).items(), *(results.get("versions") or {}).items()]
    text = "\n".join(f"{name}: {value}" for name, value in rows)
    return section("Made with", code(text)) if rows else ""
