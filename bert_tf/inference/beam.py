"""Predictions of an exported model for millions of rows, as an Apache Beam pipeline on any runner.

    shards of rows -> batches of similar length -> RunInference -> predictions of a shard -> its file

The process that starts the pipeline copies the rows next to the output, one file per shard
(`prediction_shards.py`); the pipeline starts from the numbers of the shards, so texts go through no shuffle. A worker
that gets all rows of a shard in one bundle, as happens where steps are fused, writes the shard at once, so that it
survives an interruption. Otherwise the predictions are grouped by shard first, in compressed blocks.
"""

import collections
import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import apache_beam as beam
import tensorflow as tf
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, PredictionResult, RunInference
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.transforms.window import GlobalWindows

from bert_tf import errors
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference.card import CARD, EXTRA
from bert_tf.inference.prediction_shards import Shards, stage
from bert_tf.inference.predictions import Predictor, batches, check, load, task_of
from bert_tf.inputs.identity import file_identity
from bert_tf.tasks import FineTuningTask
from bert_tf.text.unknown import UnknownTokens
from bert_tf.types import Writer
from bert_tf.version import __version__

# Characters of predictions that a worker holds if shards do not arrive one after the other.
_HELD = 1 << 26
# The index of the variables has a checksum of each, so it identifies the weights.
_IDENTIFYING = ("saved_model.pb", "variables/variables.index", f"{EXTRA}/{CARD}")

ModelSource: TypeAlias = tuple[str, ExampleData]  # an exported version and the data of its examples
Row: TypeAlias = tuple[int, int]  # number of the shard, and index in it


class ExportHandler(ModelHandler[Any, PredictionResult, Predictor]):
    """RunInference's handler of an exported version: maps examples to what `predict` writes for them.

    Args:
        version: folder of the version, on a file system that TensorFlow knows and all workers can reach.
        data: of the examples; None for what the model was trained on.
        threads: of TensorFlow in each worker process; 0 for one per core.
    """

    def __init__(self, version: str, data: ExampleData | None = None, threads: int = 0) -> None:
        super().__init__()
        self._version, self._data, self._threads = version, data, threads

    def load_model(self) -> Predictor:
        if self._threads:
            # A process in which TensorFlow has started to work keeps its threads.
            with contextlib.suppress(RuntimeError):
                tf.config.threading.set_intra_op_parallelism_threads(self._threads)
                tf.config.threading.set_inter_op_parallelism_threads(self._threads)
        return load(self._version, self._data)

    def run_inference(
        self, batch: Sequence[Any], model: Predictor, inference_args: dict[str, Any] | None = None
    ) -> list[PredictionResult]:
        """Predictions for a batch.

        Args:
            batch: examples of the task.
            model: what `load_model` returned.
            inference_args: not used.

        Returns:
            One result per example, whose `inference` is a JSON-ready dict.
        """
        predictions = model.predictions(list(batch))
        return [PredictionResult(example, one, self._version) for example, one in zip(batch, predictions, strict=True)]

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        return sum(len(str(example)) for example in batch)  # only for Beam's metrics: nothing is pickled for it

    def get_metrics_namespace(self) -> str:
        return "bert_tf"


def predict(
    version: str,
    task: FineTuningTask,
    examples: Iterable[Any],
    output: str,
    batch_size: int,
    options: PipelineOptions,
) -> tuple[Shards, list[int]]:
    """Runs the pipeline.

    A shard gets its name when it is complete. After an interruption the same call resumes: complete shards that were
    made from the same rows by the same model stay as they are.

    Args:
        version: folder of an exported version.
        task: as `task_of` returns it.
        examples: labelled or not.
        output: path from which the names of the shards are derived; its extension selects the format.
        batch_size: rows per batch.
        options: as `beam_options.pipeline_options` returns them.

    Returns:
        The shards, and the numbers of those that this call made.
    """
    extension = os.path.splitext(output)[1]
    writers = [name for name in task.writers() if name != ".zip"]
    if extension not in writers:
        raise ConfigError(f"--output={output}: in shards a {task.name} model writes {', '.join(writers)}; choose one")
    version, output = _absolute(version), _absolute(output)
    settings = [__version__, extension, *(file_identity(os.path.join(version, name)) for name in _IDENTIFYING)]
    unknown = UnknownTokens(task.tokenizer)

    def checked(part: list[Any]) -> None:
        unknown.read(task.codec.texts(check(task, part)))

    shards = stage(output, examples, task.example, settings, checked)
    missing = shards.begin()
    if missing:
        source = (version, task.data)
        handler: Any = KeyedModelHandler(ExportHandler(*source, _threads(options)))
        with errors.of_workers(), beam.Pipeline(options=options) as pipeline:
            (
                pipeline
                | "Shards" >> beam.Create(missing)
                | "Spread" >> beam.Reshuffle()
                | "Batches" >> beam.ParDo(_Batches(shards, source, batch_size))
                | "Answer" >> RunInference(handler.with_no_batching())
                | "Write" >> beam.ParDo(_Write(shards, source))
                | "Group by shard" >> beam.GroupByKey()
                | "Write the rest" >> beam.ParDo(_WriteGrouped(shards, source))
            )
    shards.finish()
    return shards, missing


def _absolute(path: str) -> str:
    """A local path as workers with another current directory find it."""
    return path if "://" in path else os.path.abspath(path)


def _threads(options: PipelineOptions) -> int:
    """Threads of TensorFlow per worker process, so that those of this machine share its cores; 0 for one per core."""
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode != "multi_processing":
        return 0
    cores = os.cpu_count() or 1
    return max(cores // (direct.direct_num_workers or cores), 1)


class _Batches(beam.DoFn):
    """Number of a shard -> lists of ((shard, row), example) of similar length, unless the shard is complete."""

    def __init__(self, shards: Shards, source: ModelSource, batch_size: int) -> None:
        self._shards, self._source, self._batch_size = shards, source, batch_size

    def setup(self) -> None:
        self._task = task_of(*self._source)

    def process(self, number: int) -> Iterator[list[tuple[Row, Any]]]:
        if self._shards.is_complete(number):  # by an attempt that failed later
            return
        examples = self._shards.examples(number)
        for rows in batches(self._task, examples, self._batch_size):
            yield [((number, row), examples[row]) for row in rows]


class _WritesShards(beam.DoFn):
    """Base of the steps that write shards in the task's format."""

    def __init__(self, shards: Shards, source: ModelSource) -> None:
        self._shards, self._source = shards, source

    def setup(self) -> None:
        self._writers: dict[str, Writer] = task_of(*self._source).writers()

    def _write(self, number: int, rows: dict[int, str]) -> None:
        """Writes a shard; `rows` maps each row to its JSON."""
        path = self._shards.path(number)
        predictions = (json.loads(rows[row]) for row in range(len(rows)))
        self._shards.write(number, predictions, self._writers[os.path.splitext(path)[1]])


class _Write(_WritesShards):
    """((shard, row), PredictionResult) -> nothing for shards that arrive complete, which are written; else blocks."""

    def start_bundle(self) -> None:
        self._held: dict[int, dict[int, str]] = collections.defaultdict(dict)
        self._size = 0

    def process(self, element: tuple[Row, PredictionResult]) -> Iterator[tuple[int, bytes]]:
        (number, row), result = element
        prediction = json.dumps(result.inference, ensure_ascii=False, default=dict)
        self._held[number][row] = prediction
        self._size += len(prediction)
        if len(self._held[number]) == self._shards.rows(number):
            rows = self._held.pop(number)
            self._size -= sum(map(len, rows.values()))
            self._write(number, rows)
        elif self._size > _HELD:
            yield from self._blocks()

    def finish_bundle(self) -> Iterator[Any]:
        for block in self._blocks():
            yield GlobalWindows.windowed_value_at_end_of_window(block)

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        for number, rows in self._held.items():
            yield number, zlib.compress(json.dumps(rows).encode(), 1)
        self.start_bundle()


class _WriteGrouped(_WritesShards):
    """(Shard, blocks of `_Write`) -> the shard, written."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> None:
        number, blocks = element
        rows: dict[int, str] = {}
        for block in blocks:
            rows |= {int(row): prediction for row, prediction in json.loads(zlib.decompress(block)).items()}
        if len(rows) == self._shards.rows(number):
            self._write(number, rows)
        elif not self._shards.is_complete(number):
            raise DataError(f"{self._shards.path(number)}: {len(rows)} of {self._shards.rows(number)} rows came back")
