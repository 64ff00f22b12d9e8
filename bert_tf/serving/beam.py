"""Predictions of an exported model for rows by the million, as an Apache Beam pipeline on any runner.

    shards of rows -> batches of similar length -> RunInference -> predictions of a shard -> its file

The process that starts copies the rows beside the output, a file a shard (`serving.shards`); the pipeline begins with
the shards' numbers. So texts go through no shuffle. A worker whose rows arrive in one bundle, as they do where steps
are fused, writes their shard at once: it is there when the job is interrupted. Elsewhere the predictions are grouped by
shard first, in compressed blocks.
"""

import collections
import contextlib
import functools
import json
import logging
import os
import re
import tempfile
import zlib

import apache_beam as beam
import numpy as np
import tensorflow as tf
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, PredictionResult, RunInference
from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.transforms.window import GlobalWindows

from bert_tf import __version__, errors
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.inputs.identity import file_identity
from bert_tf.serving import ask
from bert_tf.serving.card import CARD, EXTRA, task_of_export
from bert_tf.serving.shards import stage
from bert_tf.tasks import FineTuningTask
from bert_tf.tasks.signatures import unpadded
from bert_tf.tasks.tagging import Tagging

# Characters of predictions that a worker holds where shards do not arrive one after the other.
_HELD = 1 << 26
# The index of the variables has a checksum of each, so that it tells weights apart.
_IDENTIFYING = ("saved_model.pb", "variables/variables.index", f"{EXTRA}/{CARD}")


class ExportHandler(ModelHandler):
    """RunInference's view of an exported version: examples in, what `predict` writes of each out.

    Args:
        version: folder of the version, on a file system that TensorFlow knows and all workers reach.
        data: ExampleData of the examples; None for what the model learned from.
        threads: of TensorFlow in a worker's process; 0: one a core.
    """

    def __init__(self, version, data=None, threads=0):
        super().__init__()
        self._version, self._data, self._threads = version, data, threads

    def load_model(self):
        return _Answering(self._version, self._data, self._threads)

    def run_inference(self, batch, model, inference_args=None):
        """PredictionResults of a batch.

        Args:
            batch: sequence of examples of the task's kind.
            model: what `load_model` returned.
            inference_args: not used.

        Returns:
            list of PredictionResult, whose `inference` is a JSON-ready dict.
        """
        found = model.predictions(list(batch))
        return [PredictionResult(example, one, self._version) for example, one in zip(batch, found, strict=True)]

    def get_num_bytes(self, batch):
        return sum(len(str(example)) for example in batch)  # only for Beam's metrics: nothing is pickled for it

    def get_metrics_namespace(self):
        return "bert_tf"


class _Answering:
    """A version that is loaded by a session, as TF Serving does it, and its task."""

    def __init__(self, version, data, threads):
        if threads:
            # A process in which TensorFlow has begun to work keeps the threads that it has.
            with contextlib.suppress(RuntimeError):
                tf.config.threading.set_intra_op_parallelism_threads(threads)
                tf.config.threading.set_inter_op_parallelism_threads(threads)
        with _local(version) as path:
            self._task = task_of(version, data)
            try:
                self._model = ask.Model(path)
            except ValueError as error:
                raise DataError(f"{error}; export it again") from None

    def predictions(self, examples):
        columns = self._task.to_tensors(examples, labelled=False)
        inputs = self._task.sent({spec.name: _dense(columns[spec.name]) for spec in self._task.inputs()})
        try:
            answers = self._model.run(inputs)
        except (ValueError, tf.errors.OpError) as error:
            location = f"{examples[0].location} and rows of similar length"
            raise DataError(f"{location}: the model failed: {ask.reason(error)}") from None
        answers = self._task.returned(unpadded(answers, self._task.counted))
        return self._task.predictions(examples, answers)


def _dense(value):
    """A column as an array that a session takes; lists of texts are filled up with ""."""
    return (value.to_tensor() if isinstance(value, tf.RaggedTensor) else value).numpy()


def find_version(folder):
    """Path of the newest version below a model's folder; of a version's folder that folder.

    Raises:
        DataError: there is no version.
    """
    if tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
        return folder
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    names = [name.rstrip("/") for name in names if re.fullmatch("[0-9]+/?", name)]
    if not names:
        raise DataError(f"{folder}: no exported model; expected what `python -m bert_tf.export` wrote")
    return os.path.join(folder, max(names, key=int))


def task_of(version, data=None):
    """The task of an exported version.

    Args:
        version: folder of the version.
        data: ExampleData of the examples; None for what the model learned from.

    Raises:
        DataError: it was not exported by this program.
        ConfigError: it is no fine-tuned model.
    """
    with _local(version, EXTRA) as path:
        task = task_of_export(path)
    if not isinstance(task, FineTuningTask):
        raise ConfigError(f"{version}: a {task.name} model, which answers no examples; expected a fine-tuned one")
    if getattr(task, "pair", False) is None:
        task.pair = False  # what the signature takes of a model that has seen no example
    task.data = data or task.data
    return task


@contextlib.contextmanager
def _local(version, part=""):
    """Gives a path at which plain Python can read a version, or only a folder of it."""
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


def predict(version, task, examples, output, batch_size, options):
    """Runs the pipeline.

    A shard appears under its name when it is whole. After an interruption the same call goes on: shards that are whole
    and were made of the same rows by the same model stay as they are.

    Args:
        version: folder of an exported version.
        task: what `task_of` gave.
        examples: iterable, labelled or not.
        output: path that the shards' names are made of; its ending says how they are written.
        batch_size: rows at once.
        options: apache_beam.options.pipeline_options.PipelineOptions.

    Returns:
        (Shards, list of the numbers of those that were made now).

    Raises:
        ConfigError: the task can not write that kind of file in shards.
        DataError: for examples that the model can not answer, with their location.
    """
    ending = os.path.splitext(output)[1]
    writers = [name for name in task.writers() if name != ".zip"]
    if ending not in writers:
        raise ConfigError(f"--output={output}: in shards a {task.name} model writes {', '.join(writers)}; choose one")
    version, output = _absolute(version), _absolute(output)
    settings = [__version__, ending, *(file_identity(os.path.join(version, name)) for name in _IDENTIFYING)]
    shards = stage(output, examples, task.example, settings, functools.partial(_check, task))
    missing = shards.begin()
    if missing:
        answering = (version, task.data)
        handler = KeyedModelHandler(ExportHandler(*answering, _threads(options)))
        with _errors_in_one_line(), beam.Pipeline(options=options) as pipeline:
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


def _absolute(path):
    """A local path as workers with another current directory find it."""
    return path if "://" in path else os.path.abspath(path)


def _threads(options):
    """Threads of TensorFlow in a worker, so that all workers of this machine have one a core; 0: one a core each."""
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode != "multi_processing":
        return 0
    return max(os.cpu_count() // (direct.direct_num_workers or os.cpu_count()), 1)


def _check(task, examples):
    """Raises DataError for examples that an exported model can not answer."""
    if isinstance(task, Tagging):
        # The signature takes a text, which it cuts into words itself; and no document.
        given = (one for one in examples if one.words and (task.unit == "words" or one.document is not None))
        if example := next(given, None):
            raise DataError(
                f"{example.location}: words, but an exported model takes the text alone; give it as "
                '{"text": "..."}, or predict without --runner'
            )
    task.to_tensors(examples, labelled=False)


@contextlib.contextmanager
def _errors_in_one_line():
    """Raises what went wrong in a worker as the BertTfError that it was there, without the runner's words."""
    log = logging.getLogger("apache_beam.runners.common")  # which prints the stack trace first
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    except BertTfError as error:
        raise type(error)(_of_worker(str(error))) from None
    except Exception as error:  # of runners whose workers are other processes: a stack trace, as text
        found = re.findall(r"bert_tf\.errors\.(\w+): (.*)", str(error))
        if not found:
            raise
        name, message = found[-1]
        raise getattr(errors, name)(_of_worker(message)) from None
    finally:
        log.setLevel(level)


def _of_worker(message):
    """An error's message without the step that Beam appends."""
    return re.sub(r" \[while running '.*", "", message, flags=re.DOTALL)


class _Batches(beam.DoFn):
    """Number of a shard -> lists of ((shard, row), example) of similar length, unless the shard is whole."""

    def __init__(self, shards, answering, batch_size):
        self._shards, self._answering, self._batch_size = shards, answering, batch_size

    def setup(self):
        self._task = task_of(*self._answering)

    def process(self, number):
        if self._shards.is_whole(number):  # by an attempt that failed after it
            return
        examples = self._shards.examples(number)
        order = np.argsort(self._lengths(examples), kind="stable").tolist()
        for first in range(0, len(order), self._batch_size):
            yield [((number, row), examples[row]) for row in order[first : first + self._batch_size]]

    def _lengths(self, examples):
        """int64 [examples]: tokens, of a list of texts those of the longest.

        Batches of equal bytes have five times as much padding, and counting tokens takes a hundredth of answering.
        """
        columns, lengths = self._task.to_tensors(examples, labelled=False), 0
        for spec in self._task.inputs():
            column = columns[spec.name]
            if isinstance(column, tf.RaggedTensor):
                lengths += tf.reduce_max(column.with_values(self._tokens(column.values)), 1)
            else:
                lengths += self._tokens(column)
        return lengths.numpy()

    def _tokens(self, texts):
        return self._task.tokenizer.tokenize(texts).row_lengths()


class _WritesShards(beam.DoFn):
    """What writes shards in the task's format."""

    def __init__(self, shards, answering):
        self._shards, self._answering = shards, answering

    def setup(self):
        self._writers = task_of(*self._answering).writers()

    def _write(self, number, rows):
        """Writes a shard of dict row -> JSON."""
        path = self._shards.path(number)
        predictions = (json.loads(rows[row]) for row in range(len(rows)))
        self._shards.write(number, predictions, self._writers[os.path.splitext(path)[1]])


class _Write(_WritesShards):
    """((shard, row), PredictionResult) -> the shards that arrive as a whole, written; of others (shard, block)."""

    def start_bundle(self):
        self._held, self._size = collections.defaultdict(dict), 0

    def process(self, element):
        (number, row), result = element
        prediction = json.dumps(result.inference, ensure_ascii=False)
        self._held[number][row] = prediction
        self._size += len(prediction)
        if len(self._held[number]) == self._shards.rows(number):
            rows = self._held.pop(number)
            self._size -= sum(map(len, rows.values()))
            self._write(number, rows)
        elif self._size > _HELD:
            yield from self._blocks()

    def finish_bundle(self):
        for block in self._blocks():
            yield GlobalWindows.windowed_value_at_end_of_window(block)

    def _blocks(self):
        for number, rows in self._held.items():
            yield number, zlib.compress(json.dumps(rows).encode(), 1)
        self.start_bundle()


class _WriteGrouped(_WritesShards):
    """(Shard, blocks of `_Write`) -> the shard, written."""

    def process(self, element):
        number, blocks = element
        rows = {}
        for block in blocks:
            rows |= {int(row): prediction for row, prediction in json.loads(zlib.decompress(block)).items()}
        if len(rows) == self._shards.rows(number):
            self._write(number, rows)
        elif not self._shards.is_whole(number):
            raise DataError(f"{self._shards.path(number)}: {len(rows)} of {self._shards.rows(number)} rows came back")
