"""Predictions of an exported model for a task's examples, from a session or from a server that runs it."""

import concurrent.futures
import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_json, temporary_directory
from bert_tf.inference import ask, rest
from bert_tf.inference.card import CARD, EXTRA, task_of_export
from bert_tf.tasks import FineTuningTask
from bert_tf.tasks.codec import strings
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.texts import TextCodec
from bert_tf.text.unknown import UnknownTokens
from bert_tf.types import Array, Json, Tensors

# Requests that a server gets at once: it computes one while others are read, written or on their way.
_IN_FLIGHT = 4
# Rows that are sorted by length and held at a time.
_WINDOW = 4096
# Seconds before each further attempt at a request that the server could not take.
_PAUSES = (0.5, 1, 2, 4, 8, 16)


class Predictor:
    """Maps examples to what `predict` writes for them.

    Args:
        task: of the export.
        model: its model; `run` is all that is called.
    """

    def __init__(self, task: FineTuningTask, model: Any) -> None:
        self.task, self._model = task, model

    def predictions(self, examples: list[Any]) -> list[Json]:
        """Predictions for a batch of examples."""
        codec, made = self.task.codec, dict[int, Json]()
        for rows, signature, inputs in codec.requests(examples):
            asked = [examples[row] for row in rows]
            try:
                answers = self._model.run(inputs, signature)
            except ValueError as error:
                location = f"{asked[0].location} and rows of similar length"
                raise DataError(f"{location}: the model failed: {rest.reason(error)}") from None
            made |= zip(rows, codec.predictions(asked, codec.response(answers)), strict=True)
        return [made[row] for row in range(len(examples))]


class _Remote:
    """A model on a server, whose answers are arrays like a session's; waits for a server that is busy or restarts.

    Args:
        model: asked.
        labels: expected from a model that answers with its labels.
    """

    def __init__(self, model: rest.RemoteModel, labels: list[str]) -> None:
        self._model, self._labels = model, labels

    def run(self, inputs: dict[str, Array], signature: str) -> dict[str, Array]:
        dtypes = self._model.dtypes[signature]
        answers = {
            name: np.array(value, tf.as_dtype(types_pb2.DataType.Value(dtypes[name])).as_numpy_dtype)
            for name, value in self._answer(inputs, signature).items()
        }
        if "labels" in answers and (found := strings(answers["labels"][0])) != self._labels:
            raise _other_model(f"labels {', '.join(found)}", ", ".join(self._labels))
        return answers

    def _answer(self, inputs: dict[str, Array], signature: str) -> dict[str, Any]:
        for pause in (*_PAUSES, None):
            try:
                return self._model.run(inputs, signature)
            except rest.ServerError as error:
                if pause is None or not error.is_temporary:
                    raise DataError(str(error)) from None
            time.sleep(pause)
        raise AssertionError


def _other_model(found: str, expected: str) -> DataError:
    return DataError(f"the server's model has the {found}; expected those of --export_dir, {expected}: the same model")


def load(version: str, data: ExampleData | None = None) -> Predictor:
    """Loads an exported version in a session, as TF Serving does.

    Args:
        version: folder of the version, on a file system that TensorFlow knows.
        data: of the examples; None for what the model was trained on.
    """
    with local(version) as path:
        task = task_of(version, data)
        try:
            return Predictor(task, ask.Model(path))
        except ValueError as error:
            raise DataError(f"{error}; export it again") from None


class ServerClient:
    """An exported model on a server, TF Serving or `python -m bert_tf.serve`.

    All requests go to the version that the server runs at first: a file of predictions of two models is of no use.

    Args:
        url: of the model, as for `rest.RemoteModel`.
        export_dir: the export that the server runs: its folder with versions, or the version. The task's settings and
            the vocabulary are read from it, which servers do not tell; the weights may be missing.

    Raises:
        ConfigError: the URL is wrong.
        DataError: the server cannot be reached, or runs another model.

    Attributes:
        task: of the export.
    """

    def __init__(self, url: str, export_dir: str) -> None:
        try:
            self._model = rest.RemoteModel(url)
        except rest.ServerError as error:
            raise DataError(str(error)) from None
        except ValueError as error:
            raise ConfigError(f"--server={error}") from None
        self._model.pin()
        version = export_dir
        if not tf.io.gfile.exists(os.path.join(version, EXTRA, CARD)):
            version = os.path.join(export_dir, str(self._model.version))
            if not tf.io.gfile.exists(os.path.join(version, EXTRA, CARD)):
                raise DataError(
                    f"{version}: no {EXTRA}/{CARD}, but the server runs version {self._model.version}; name the folder "
                    "of the version that it was exported as"
                )
        self.task = task_of(version)
        names = signatures_of(version).get(DEFAULT, {})
        expected = {kind: sorted(names.get(kind, ())) for kind in ("inputs", "outputs")}
        found = {"inputs": [*self._model.signatures[DEFAULT]], "outputs": sorted(self._model.dtypes[DEFAULT])}
        for kind, of_server in found.items():
            if of_server != expected[kind]:
                raise _other_model(f"{kind} {', '.join(of_server)}", ", ".join(expected[kind]) or "none")

    def predicting(self, examples: Iterable[Any], batch_size: int) -> Iterator[tuple[Any, Json]]:
        """Predictions for a stream of examples, in order and with constant memory.

        Args:
            examples: labelled or not.
            batch_size: rows per request; the rows of a request have similar lengths.

        Yields:
            (example, its prediction, JSON-ready).

        Raises:
            DataError: an example cannot be answered, or the server fails.
        """
        predictor = Predictor(self.task, _Remote(self._model, list(getattr(self.task.state, "labels", ()))))
        unknown = UnknownTokens(self.task.tokenizer)
        with concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT) as pool:
            for window in self.task.codec.chunks(examples, _WINDOW):
                unknown.read(self.task.codec.texts(check(self.task, window)))
                rows = batches(self.task, window, batch_size)
                asked = [[window[row] for row in batch] for batch in rows]
                made: dict[int, Json] = {}
                for batch, predictions in zip(rows, pool.map(predictor.predictions, asked), strict=True):
                    made |= zip(batch, predictions, strict=True)
                yield from ((example, made[row]) for row, example in enumerate(window))


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
    with local(version, EXTRA) as path:
        task = task_of_export(path)
    if not isinstance(task, FineTuningTask):
        raise ConfigError(f"{version}: a {task.name} model, which answers no examples; expected a fine-tuned one")
    if isinstance(task.codec, TextCodec) and task.state.pair is None:
        return task.replaced(data=data, pair=False)  # a model that had seen no example was exported for single texts
    return task.replaced(data=data)


def signatures_of(version: str) -> dict[str, Any]:
    """The signatures of an exported version, as its model card describes them."""
    with local(version, EXTRA) as path:
        return read_json(os.path.join(path, EXTRA, CARD), dict[str, Any]).get("signatures", {})


@contextlib.contextmanager
def local(version: str, part: str = "") -> Iterator[str]:
    """A path at which plain Python can read a version, or only a folder of it."""
    if "://" not in version:
        yield version
        return
    with temporary_directory() as copy:
        for folder, _, names in tf.io.gfile.walk(os.path.join(version, part)):
            target = os.path.join(copy, os.path.relpath(folder, version))
            os.makedirs(target, exist_ok=True)
            for name in names:
                tf.io.gfile.copy(os.path.join(folder, name), os.path.join(target, name))
        yield copy


def check(task: FineTuningTask, examples: list[Any]) -> Tensors:
    """Raises DataError for examples that an exported model cannot answer; returns their columns."""
    if task.codec.joins and (example := next((one for one in examples if one.document is not None), None)):
        raise DataError(
            f"{example.location}: a sentence of a document, which the model reads together with the others "
            "(task.context=document), but its exports do not; predict and evaluate with --model_dir"
        )
    return task.codec.to_tensors(examples, labelled=False)


def batches(task: FineTuningTask, examples: list[Any], batch_size: int) -> list[list[int]]:
    """Splits examples into batches of similar numbers of tokens.

    Batches of equal bytes have five times as much padding, and counting tokens takes 1% of the inference time.

    Returns:
        For each batch the indices of its examples.
    """

    def tokens(texts: tf.Tensor) -> tf.Tensor:
        return task.tokenizer.tokenize(texts).row_lengths()

    columns, lengths = task.codec.to_tensors(examples, labelled=False), tf.constant(0, tf.int64)
    for spec in task.codec.inputs():
        column = columns[spec.name]
        if isinstance(column, tf.RaggedTensor):  # of a list of texts the longest counts
            lengths += tf.reduce_max(column.with_values(tokens(column.values)), 1)
        else:
            lengths += tokens(column)
    order = np.argsort(lengths.numpy(), kind="stable").tolist()
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
