"""The benchmark of a task: how its predictions are judged."""

import abc
from typing import Any, Generic, TypeVar

from bert_tf.tasks.codec import Codec
from bert_tf.tasks.error_analysis import ErrorAnalysis
from bert_tf.types import Json, Metrics, Writer

_Codec = TypeVar("_Codec", bound=Codec)


class Benchmark(abc.ABC, Generic[_Codec]):
    """Official metrics of predictions, and what a report shows of them.

    Args:
        codec: of the task.
        metrics: name of the data set's metrics, as in its row of `inputs.datasets.formats.FORMATS`; "" for usual ones.

    Attributes:
        monitor: name of the metric that selects the best checkpoint.
        mode: "max" if a higher `monitor` is better, else "min".
    """

    monitor: str
    mode: str = "max"

    def __init__(self, codec: _Codec, metrics: str) -> None:
        self.codec, self.metrics = codec, metrics

    @abc.abstractmethod
    def official_metrics(self, examples: list[Any], predictions: list[Json]) -> Metrics:
        """The task's official metrics, `monitor` among them.

        Args:
            examples: labelled.
            predictions: as the codec's `predictions` returns.
        """

    @abc.abstractmethod
    def baseline(self, examples: list[Any]) -> Metrics:
        """`official_metrics` of predictions made without reading, usually the most frequent label for all."""

    def tune(self, examples: list[Any], predictions: list[Json]) -> None:
        """Fits state on the validation set that is saved with the model, such as a threshold. Default: nothing.

        Fine-tuning calls it after each evaluation's predictions and before their metrics; `evaluate` never does.

        Args:
            examples, predictions: as for `official_metrics`.
        """

    def error_analysis(self, examples: list[Any], predictions: list[Json]) -> ErrorAnalysis:
        """What the report shows besides metrics and baseline. Default: nothing, and the report leaves it out.

        The names of its intervals must be those of `official_metrics`. `bootstrap.intervals` computes them.

        Args:
            examples, predictions: as for `official_metrics`.
        """
        return ErrorAnalysis()

    def writers(self) -> dict[str, Writer]:
        """Files for the data set's leaderboard or official script, as the codec's `writers`. Default: none."""
        return {}
