"""Presentation of runs as files in the model directory."""

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_tf.files import write_text
from bert_tf.progress import duration
from bert_tf.report.tables import markdown
from bert_tf.report.terminal import compression_line
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

    def compression_step(self, row: Json, metric: str) -> None:
        print(compression_line(row, metric), flush=True)

    def compression(self, directory: str, results: Json) -> None:
        from bert_tf.report.pages import compression_page

        write_text(os.path.join(directory, PAGE), compression_page(results))


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
    return f"{markdown(header, lines)}\n{note}\n"


def trials_table(summary: Json) -> str:
    """The runs of a sweep and, if each choice of settings had several runs, the choices.

    Args:
        summary: as returned by `training.runs.sweep.finetune_best`.
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
    parts = [markdown(("run", metric, "steps", "time", ""), [*rows, baseline])]
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
        parts.append(markdown(("settings", f"{metric}, mean ± deviation", "best", "learned"), choices))
    return "\n".join(parts)
