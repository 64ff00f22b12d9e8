"""Interface between a run and the presentation of its results, which is not training's business."""

from typing import TYPE_CHECKING, Protocol

from bert_tf.types import Json, Metrics

if TYPE_CHECKING:
    from bert_tf.training.evaluation import Evaluation

# Files that a reporter may write into a model directory.
CURVES, PAGE, TRIALS = "curves.png", "report.html", "trials.md"


class Curves(Protocol):
    """Training curves: the attributes of `training.state.history.History` of these names."""

    points: list[Json]
    evaluations: list[Json]
    resumes: list[int]


class Reporter:
    """Gets results as soon as there are any, by the chief only; this base class ignores them."""

    def load(self) -> None:
        """Loads libraries that the first curves and the evaluation need; may be called in a thread, or not at all."""

    def curves(self, directory: str, title: str, monitor: str, history: Curves) -> None:
        """Called at each evaluation and at the end of training.

        Args:
            directory: of the model, as below.
            title: of the run.
            monitor: name of the metric by which evaluations are compared.
        """

    def evaluation(self, directory: str, evaluation: "Evaluation", metrics: Metrics) -> None:
        """Called after the model is saved.

        Args:
            metrics: returned by the last call of `evaluation`, or its row in History.evaluations.
        """

    def trials(self, directory: str, summary: Json) -> None:
        """Called with the summary of a sweep (`training.runs.sweep.finetune_best`)."""

    def ablation(self, directory: str, rows: list[Json]) -> None:
        """Called with the results of an ablation (`training.runs.ablation.ablate`)."""

    def compression_step(self, row: Json, metric: str) -> None:
        """Called after each step of a compression.

        Args:
            row: as in results.json, or "name", "title" and "reason" of a step that was left out.
            metric: name of the metric.
        """

    def compression(self, directory: str, results: Json) -> None:
        """Called with the results of a compression (`training.runs.compression.compress`)."""


SILENT = Reporter()
