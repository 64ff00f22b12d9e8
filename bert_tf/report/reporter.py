"""Presentation of runs as files in the model directory."""

import importlib
import os
from typing import TYPE_CHECKING

from bert_tf.files import write_text
from bert_tf.report import tables
from bert_tf.training.reporter import CURVES, PAGE, TRIALS, Reporter
from bert_tf.types import Json, Metrics

if TYPE_CHECKING:
    from bert_tf.training.runs.finetuning import Evaluation
    from bert_tf.training.state.history import History


class FileReporter(Reporter):
    """Writes curves.png, report.html, trials.md, ablation.md and ablation.png, and prints the tables."""

    # Plots and pages are imported where they are needed: Matplotlib takes a second to load.

    def load(self) -> None:
        importlib.import_module("bert_tf.report.plots")
        importlib.import_module("bert_tf.report.pages")

    def curves(self, directory: str, title: str, monitor: str, history: "History") -> None:
        from bert_tf.report.plots import draw_curves

        path = os.path.join(directory, CURVES)
        draw_curves(path, history.points, history.evaluations, history.resumes, title=title, monitor=monitor)

    def evaluation(self, directory: str, evaluation: "Evaluation", metrics: Metrics) -> None:
        from bert_tf.report.pages import evaluation_page

        assert evaluation.predictions is not None, "an evaluation is reported after its first call"
        page = evaluation_page(evaluation.task, evaluation.split, evaluation.predictions, metrics)
        write_text(os.path.join(directory, PAGE), page)

    def trials(self, directory: str, summary: Json) -> None:
        text = tables.trials(summary)
        print(f"\n{text}")
        write_text(os.path.join(directory, TRIALS), text)

    def ablation(self, directory: str, rows: list[Json]) -> None:
        from bert_tf.report.plots import draw_ablation

        text = tables.ablation(rows)
        write_text(os.path.join(directory, "ablation.md"), text)
        draw_ablation(os.path.join(directory, "ablation.png"), rows)
        print(f"\n{text}")
