"""Presentation of runs as files in the model directory; tables are Markdown that is also readable as plain text."""

import importlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bert_tf.files import write_text
from bert_tf.metrics.units import unit_of
from bert_tf.progress import duration
from bert_tf.training.reporter import CURVES, PAGE, TRIALS, Curves, Reporter
from bert_tf.types import Json, Metrics

if TYPE_CHECKING:
    from bert_tf.training.evaluation import Evaluation


class FileReporter(Reporter):
    """Writes curves.png, report.html, trials.md, ablation.md and ablation.png, and prints the tables."""

    # Plots and pages are imported where they are needed: Matplotlib takes a second to load.

    def load(self) -> None:
        importlib.import_module("bert_tf.report.plots")
        importlib.import_module("bert_tf.report.pages")

    def curves(self, directory: str, title: str, monitor: str, history: Curves) -> None:
        from bert_tf.report.plots import draw_curves

        path = os.path.join(directory, CURVES)
        draw_curves(path, history.points, history.evaluations, history.resumes, title=title, monitor=monitor)

    def evaluation(self, directory: str, evaluation: "Evaluation", metrics: Metrics) -> None:
        from bert_tf.report.pages import evaluation_page

        assert evaluation.predictions is not None, "an evaluation is reported after its first call"
        page = evaluation_page(evaluation.task, evaluation.split, evaluation.predictions, metrics)
        write_text(os.path.join(directory, PAGE), page)

    def trials(self, directory: str, summary: Json) -> None:
        text = trials_table(summary)
        print(f"\n{text}")
        write_text(os.path.join(directory, TRIALS), text)

    def ablation(self, directory: str, rows: list[Json]) -> None:
        from bert_tf.report.plots import draw_ablation

        text = ablation_table(rows)
        write_text(os.path.join(directory, "ablation.md"), text)
        draw_ablation(os.path.join(directory, "ablation.png"), rows)
        print(f"\n{text}")

    def compression(self, directory: str, results: Json) -> None:
        from bert_tf.report.pages import compression_page

        write_text(os.path.join(directory, PAGE), compression_page(results))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table with columns as wide as their widest cell.

    Args:
        header: column titles.
        rows: one cell per column.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |\n"

    return line(header) + line(["-" * width for width in widths]) + "".join(map(line, rows))


def print_pretrained(results: Json, model_dir: str) -> None:
    """Prints the end of a pre-training run: its results by language, if it has several, and what was written."""
    if "languages" in results:
        print(languages_table(results["languages"]))
    print(f"{model_dir}: {results['steps']} steps done; wrote the model and results.json")


def languages_table(rows: Sequence[Json]) -> str:
    """The languages of a pre-training run.

    Args:
        rows: "languages" in its results.json.
    """
    # Not all languages need to have validation text.
    names = [*dict.fromkeys(name for row in rows for name in row)]
    metrics = [name for name in names if name not in ("language", "text_share", "share", "tokens")]
    header = ("language", "share of the text", "share in training", "tokens read", *metrics)
    lines = [
        (
            row["language"],
            f"{row['text_share']:.1%}",
            f"{row['share']:.1%}",
            f"{row['tokens']:,}",
            *(unit_of(name, ()).text(row[name]) if name in row else "" for name in metrics),
        )
        for row in rows
    ]
    return table(header, lines)


def ablation_table(rows: Sequence[Json]) -> str:
    """The results of an ablation.

    Args:
        rows: as returned by `training.runs.ablation.ablate`.
    """
    seeds = len(rows[0]["accuracies"])
    header = ("model", "size", "parameters", "mean accuracy", "deviation", "each seed", "difference from the first")
    lines = [
        (
            row["name"],
            row["size"],
            f"{row['parameters'] / 1e6:.1f} M",
            f"{row['mean']:.3f}",
            "" if row["deviation"] is None else f"{row['deviation']:.3f}",
            ", ".join(f"{value:.3f}" for value in row["accuracies"]),
            f"{row['mean'] - rows[0]['mean']:+.3f}" if row is not rows[0] else "",
        )
        for row in rows
    ]
    note = (
        f"Validation accuracy on the bundled movie reviews after pre-training on the bundled speeches; {seeds} seeds."
    )
    return f"{table(header, lines)}\n{note}\n"


def trials_table(summary: Json) -> str:
    """The runs of a sweep and, if each choice of settings had several runs, the choices.

    Args:
        summary: as returned by `training.runs.sweep.finetune`.
    """
    metric = summary["measure"][0]

    def note(row: Json) -> str:
        notes = ["best"] if row["name"] == summary["best"] else []
        return ", ".join(notes + ([] if row["learned"] else ["did not learn: not better than the baseline"]))

    values = {row["name"]: row["final"][metric] for row in summary["trials"]}
    rows = [
        (row["name"], f"{values[row['name']]:.4f}", f"{row['steps']:,}", duration(row["seconds"]), note(row))
        for row in summary["trials"]
    ]
    baseline = ("baseline", f"{summary['baseline'][metric]:.4f}", "", "", "answers without reading the text")
    parts = [table(("run", metric, "steps", "time", ""), [*rows, baseline])]
    if summary["groups"][0]["deviation"]:
        choices = [
            (
                ", ".join(f"{name} {value:g}" for name, value in group["settings"].items()) or "all",
                f"{group['mean'][metric]:.4f} ± {group['deviation'][metric]:.4f}",
                f"{values[group['best']]:.4f}",
                f"{group['runs'] - len(group['failed'])} of {group['runs']}",
            )
            for group in summary["groups"]
        ]
        parts.append(table(("settings", f"{metric}, mean ± deviation", "best", "learned"), choices))
    return "\n".join(parts)
