"""Predictions of an exported model for millions of rows, as an Apache Beam pipeline on any runner.

    shards of rows -> batches of similar length -> RunInference -> predictions of a shard -> its file

The process that starts the pipeline copies the rows next to the output, one file per shard (`serving.shards`); the
pipeline starts from the numbers of the shards, so texts go through no shuffle. A worker that gets all rows of a shard
in one bundle, as happens where steps are fused, writes the shard at once, so that it survives an interruption.
Otherwise the predictions are grouped by shard first, in compressed blocks.
"""

import collections
import contextlib
import functools
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import apache_beam as beam
import numpy as np
import tensorflow as tf
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, PredictionResult, RunInference
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.transforms.window import GlobalWindows

from bert_tf import __version__, errors
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_json
from bert_tf.inputs.identity import file_identity
from bert_tf.serving import ask
from bert_tf.serving.card import CARD, EXTRA, task_of_export
from bert_tf.serving.shards import Shards, stage
from bert_tf.tasks import FineTuningTask
from bert_tf.tasks.signatures import DEFAULT, WORDS, unpadded
from bert_tf.tasks.tagging import Tagging
from bert_tf.tasks.texts import TextTask
from bert_tf.types import Array, Json, Writer

# Characters of predictions that a worker holds if shards do not arrive one after the other.
_HELD = 1 << 26
# The index of the variables has a checksum of each, so it identifies the weights.
_IDENTIFYING = ("saved_model.pb", "variables/variables.index", f"{EXTRA}/{CARD}")

Answering: TypeAlias = tuple[str, ExampleData]  # an exported version and the data of its examples
Row: TypeAlias = tuple[int, int]  # number of the shard, and index in it


class ExportHandler(ModelHandler[Any, PredictionResult, "_Model"]):
    """RunInference's handler of an exported version: maps examples to what `predict` writes for them.

    Args:
        version: folder of the version, on a file system that TensorFlow knows and all workers can reach.
        data: of the examples; None for what the model was trained on.
        threads: of TensorFlow in each worker process; 0 for one per core.
    """

    def __init__(self, version: str, data: ExampleData | None = None, threads: int = 0) -> None:
        super().__init__()
        self._version, self._data, self._threads = version, data, threads

    def load_model(self) -> "_Model":
        return _Model(self._version, self._data, self._threads)

    def run_inference(
        self, batch: Sequence[Any], model: "_Model", inference_args: dict[str, Any] | None = None
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


class _Model:
    """A version, loaded by a session as TF Serving does, and its task."""

    def __init__(self, version: str, data: ExampleData | None, threads: int) -> None:
        if threads:
            # A process in which TensorFlow has started to work keeps its threads.
            with contextlib.suppress(RuntimeError):
                tf.config.threading.set_intra_op_parallelism_threads(threads)
                tf.config.threading.set_inter_op_parallelism_threads(threads)
        with _local(version) as path:
            self._task = task_of(version, data)
            try:
                self._model = ask.Model(path)
            except ValueError as error:
                raise DataError(f"{error}; export it again") from None

    def predictions(self, examples: list[Any]) -> list[Json]:
        if not _with_words(self._task):
            return self._answered(examples)
        made: dict[int, Json] = {}
        for has_words in (False, True):
            rows = [row for row, one in enumerate(examples) if (one.words is not None) is has_words]
            made |= zip(rows, self._answered([examples[row] for row in rows], has_words), strict=True)
        return [made[row] for row in range(len(examples))]

    def _answered(self, examples: list[Any], has_words: bool = False) -> list[Json]:
        """The predictions for examples that all have given words, or all none."""
        if not examples:
            return []
        if has_words:
            signature, inputs = WORDS, {"words": _dense(tf.ragged.constant([one.words for one in examples], tf.string))}
        else:
            columns, signature = self._task.to_tensors(examples, labelled=False), DEFAULT
            inputs = self._task.sent({spec.name: _dense(columns[spec.name]) for spec in self._task.inputs()})
        try:
            answers = self._model.run(inputs, signature)
        except (ValueError, tf.errors.OpError) as error:
            location = f"{examples[0].location} and rows of similar length"
            raise DataError(f"{location}: the model failed: {ask.reason(error)}") from None
        return self._task.predictions(examples, self._task.returned(unpadded(answers, self._task.counted)))


def _with_words(task: FineTuningTask) -> bool:
    """Whether examples may have words, which the signature `words` takes."""
    return isinstance(task, Tagging) and task.unit == "words"


def _dense(value: tf.Tensor | tf.RaggedTensor) -> Array:
    """A column as the array that a session takes; lists of texts are padded with ""."""
    return (value.to_tensor() if isinstance(value, tf.RaggedTensor) else value).numpy()


def find_version(folder: str) -> str:
    """Path of the newest version in a model's folder, or of the version that `folder` itself is."""
    if tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
        return folder
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    names = [name.rstrip("/") for name in names if re.fullmatch("[0-9]+/?", name)]
    if not names:
        raise DataError(f"{folder}: no exported model; expected what `python -m bert_tf.export` wrote")
    return os.path.join(folder, max(names, key=int))


def task_of(version: str, data: ExampleData | None = None) -> FineTuningTask:
    """The task of an exported version.

    Args:
        version: folder of the version.
        data: of the examples; None for what the model was trained on.
    """
    with _local(version, EXTRA) as path:
        task = task_of_export(path)
    if not isinstance(task, FineTuningTask):
        raise ConfigError(f"{version}: a {task.name} model, which answers no examples; expected a fine-tuned one")
    if isinstance(task, TextTask) and task.pair is None:
        task.pair = False  # what the signature of a model that has seen no example takes
    task.data = data or task.data
    return task


@contextlib.contextmanager
def _local(version: str, part: str = "") -> Iterator[str]:
    """A path at which plain Python can read a version, or only a folder of it."""
    if "://" not in version:
        yield version
        return
    with tempfile.TemporaryDirectory() as local:
        for folder, _, names in tf.io.gfile.walk(os.path.join(version, part)):
            target = os.path.join(local, os.path.relpath(folder, version))
            os.makedirs(target, exist_ok=True)
            for name in names:
                tf.io.gfile.copy(os.path.join(folder, name), os.path.join(target, name))
        yield local


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
    with _local(version, EXTRA) as path:
        takes_words = WORDS in read_json(os.path.join(path, EXTRA, CARD), dict[str, Any]).get("signatures", ())
    settings = [__version__, extension, *(file_identity(os.path.join(version, name)) for name in _IDENTIFYING)]
    shards = stage(output, examples, task.example, settings, functools.partial(_check, task, takes_words))
    missing = shards.begin()
    if missing:
        answering = (version, task.data)
        handler: Any = KeyedModelHandler(ExportHandler(*answering, _threads(options)))
        with errors.of_workers(), beam.Pipeline(options=options) as pipeline:
            (
                pipeline
                | "Shards" >> beam.Create(missing)
                | "Spread" >> beam.Reshuffle()
                | "Batches" >> beam.ParDo(_Batches(shards, answering, batch_size))
                | "Answer" >> RunInference(handler.with_no_batching())
                | "Write" >> beam.ParDo(_Write(shards, answering))
                | "Group by shard" >> beam.GroupByKey()
                | "Write the rest" >> beam.ParDo(_WriteGrouped(shards, answering))
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


def _check(task: FineTuningTask, takes_words: bool, examples: list[Any]) -> None:
    """Raises DataError for examples that an exported model cannot answer."""
    if isinstance(task, Tagging):
        if _with_words(task) and not takes_words and (example := next((one for one in examples if one.words), None)):
            raise DataError(
                f"{example.location}: words, but this exported model, written by an older version, takes only texts; "
                'export it again, give {"text": "..."}, or predict without --runner'
            )
        in_documents = (one for one in examples if one.document is not None)
        if task.config.context == "document" and (example := next(in_documents, None)):
            raise DataError(
                f"{example.location}: a sentence of a document, which the model reads together with the others; "
                "predict without --runner"
            )
    task.to_tensors(examples, labelled=False)


class _Batches(beam.DoFn):
    """Number of a shard -> lists of ((shard, row), example) of similar length, unless the shard is complete."""

    def __init__(self, shards: Shards, answering: Answering, batch_size: int) -> None:
        self._shards, self._answering, self._batch_size = shards, answering, batch_size

    def setup(self) -> None:
        self._task = task_of(*self._answering)

    def process(self, number: int) -> Iterator[list[tuple[Row, Any]]]:
        if self._shards.is_complete(number):  # by an attempt that failed later
            return
        examples = self._shards.examples(number)
        order = np.argsort(self._lengths(examples), kind="stable").tolist()
        for first in range(0, len(order), self._batch_size):
            yield [((number, row), examples[row]) for row in order[first : first + self._batch_size]]

    def _lengths(self, examples: list[Any]) -> Array:
        """int64 [examples]: tokens per example; of a list of texts those of the longest.

        Batches of equal bytes have five times as much padding, and counting tokens takes 1% of the inference time.
        """
        columns, lengths = self._task.to_tensors(examples, labelled=False), tf.constant(0, tf.int64)
        for spec in self._task.inputs():
            column = columns[spec.name]
            if isinstance(column, tf.RaggedTensor):
                lengths += tf.reduce_max(column.with_values(self._tokens(column.values)), 1)
            else:
                lengths += self._tokens(column)
        return lengths.numpy()

    def _tokens(self, texts: tf.Tensor) -> tf.Tensor:
        return self._task.tokenizer.tokenize(texts).row_lengths()


class _WritesShards(beam.DoFn):
    """Base of the steps that write shards in the task's format."""

    def __init__(self, shards: Shards, answering: Answering) -> None:
        self._shards, self._answering = shards, answering

    def setup(self) -> None:
        self._writers: dict[str, Writer] = task_of(*self._answering).writers()

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
