"""Predictions of an exported model for millions of rows, as an Apache Beam pipeline on any runner.

The process that starts the pipeline copies the rows next to the output, one file per shard (`serving.shards`); the
pipeline starts from the numbers of the shards, so texts go through no shuffle. A worker answers the rows of a shard and
writes it before it takes another one, so that it survives an interruption.
"""

import contextlib
import functools
import json
import os
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import tensorflow as tf
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.utils.shared import Shared

from bert_tf import __version__, errors
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError
from bert_tf.inputs.identity import file_identity
from bert_tf.serving.card import CARD, EXTRA
from bert_tf.serving.predictions import Predictor, batches, check, load, signatures_of
from bert_tf.serving.shards import Shards, stage
from bert_tf.tasks import FineTuningTask
from bert_tf.tasks.signatures import WORDS

# The index of the variables has a checksum of each, so it identifies the weights.
_IDENTIFYING = ("saved_model.pb", "variables/variables.index", f"{EXTRA}/{CARD}")


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
    shards = stage(
        output, examples, task.example, settings, functools.partial(check, task, WORDS in signatures_of(version))
    )
    missing = shards.begin()
    if missing:
        answer = _Answer(shards, version, task.data, batch_size, _threads(options))
        with errors.of_workers(), beam.Pipeline(options=options) as pipeline:
            pipeline | "Shards" >> beam.Create(missing) | "Spread" >> beam.Reshuffle() | "Answer" >> beam.ParDo(answer)
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


class _Answer(beam.DoFn):
    """Number of a shard -> nothing: answers its rows and writes it, unless it is complete.

    Args:
        version: folder of an exported version, on a file system that TensorFlow knows and all workers can reach.
        data: of the examples.
        batch_size: rows per batch.
        threads: of TensorFlow in each worker process; 0 for one per core.
    """

    def __init__(self, shards: Shards, version: str, data: ExampleData, batch_size: int, threads: int) -> None:
        self._shards, self._version, self._data = shards, version, data
        self._batch_size, self._threads = batch_size, threads
        self._shared = Shared()  # one model for all threads of a process

    def setup(self) -> None:
        self._predictor: Predictor = self._shared.acquire(self._load)

    def _load(self) -> Predictor:
        if self._threads:
            # A process in which TensorFlow has started to work keeps its threads.
            with contextlib.suppress(RuntimeError):
                tf.config.threading.set_intra_op_parallelism_threads(self._threads)
                tf.config.threading.set_inter_op_parallelism_threads(self._threads)
        return load(self._version, self._data)

    def process(self, number: int) -> None:
        if self._shards.is_complete(number):  # by an attempt that failed later
            return
        task, examples = self._predictor.task, self._shards.examples(number)
        answered: dict[int, str] = {}  # by row, as JSON, which takes less memory than objects
        for rows in batches(task, examples, self._batch_size):
            predictions = self._predictor.predictions([examples[row] for row in rows])
            lines = (json.dumps(one, ensure_ascii=False, default=dict) for one in predictions)
            answered |= zip(rows, lines, strict=True)
        writer = task.writers()[os.path.splitext(self._shards.path(number))[1]]
        self._shards.write(number, (json.loads(answered[row]) for row in range(len(examples))), writer)
