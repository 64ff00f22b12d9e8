"""The codec of a task: from examples to features, and from the model's outputs to answers.

    examples -> to_tensors -> preprocess -> rows of features -> model -> postprocess -> aggregate_windows -> answers

`to_tensors` turns Python values into tensors; everything after it is TensorFlow code that training, evaluation,
prediction and the exported model share. An example is one row of features, or several if its text is cut into windows;
the answers have one entry per example.
"""

import abc
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config.tasks import TaskConfig
from bert_tf.errors import DataError
from bert_tf.inputs.batching import Rows, padded_rows
from bert_tf.model.chunks import map_in_chunks
from bert_tf.model.mode import infer
from bert_tf.tasks.signatures import (
    DEFAULT,
    TOKENS,
    Served,
    dense,
    padded,
    signature,
    token_signature,
    unpadded,
)
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Array, Json, Tensors, TfFunction, Writer


class Codec(Served):
    """Base class of the codecs of the fine-tuning tasks.

    Args:
        tokenizer: tokenizes the texts.
        config: of the task.
        state: of the task.

    Attributes:
        example_api: "classify" or "regress" if TF Serving's API of that name fits the task, else "".
        optional: names of the inputs that may be "", and that Examples may leave out.
        compared_settings: fields of the config that a teacher must share with its student.
    """

    example_api: ClassVar[str] = ""
    optional: ClassVar[frozenset[str]] = frozenset()
    compared_settings: ClassVar[tuple[str, ...]] = ()
    config: TaskConfig

    def __init__(self, tokenizer: BaseTokenizer, config: Any, state: Any) -> None:
        self.tokenizer, self.config, self.state = tokenizer, config, state

    @property
    def windows(self) -> bool:
        """Whether an example can be several rows."""
        return False

    @property
    def joins(self) -> bool:
        """Whether examples of one document are read together."""
        return False

    @property
    def compared_by_token(self) -> bool:
        """Whether answers are about single tokens, so that a student and its teacher need the same tokenizer."""
        return False

    @functools.cached_property
    def rows(self) -> Rows:
        """Makes batches of rows from columns."""
        return Rows(self.preprocess, self.pad, windows=self.windows)

    @functools.cached_property
    def training_rows(self) -> Rows:
        """The same for training. Default: `rows`."""
        return self.rows

    @abc.abstractmethod
    def to_tensors(self, examples: list[Any], *, labelled: bool) -> Tensors:
        """Columns for `preprocess`: those named by `inputs` and, if `labelled`, the targets.

        Args:
            examples: all with labels if `labelled`.
            labelled: whether to include the targets.

        Returns:
            name -> tensor or RaggedTensor [examples, ...]. A task that reads several examples together, such as the
            sentences of a document, has one entry per group; `preprocess` and `aggregate_windows` then call each group
            an example.
        """

    def texts(self, columns: Tensors) -> list[tf.Tensor]:
        """The texts in columns, as `to_tensors` returns them: string [n] for each of the `inputs` that is text."""
        given = self.read_texts(columns)
        return [one.flat_values if isinstance(one, tf.RaggedTensor) else tf.reshape(one, [-1]) for one in given]

    def read_texts(self, columns: Tensors) -> list[tf.Tensor | tf.RaggedTensor]:
        """As `texts`, by example: string [examples, ...]."""
        return [columns[spec.name] for spec in self.inputs() if spec.dtype == tf.string]

    @abc.abstractmethod
    def unlabelled(self, examples: list[Any]) -> list[Any]:
        """Examples without labels with ones that mean nothing and are not learned, for `to_tensors`."""

    @abc.abstractmethod
    def preprocess(self, columns: Tensors) -> Tensors:
        """Makes rows of features, in graph code.

        Args:
            columns: as `to_tensors` returns, or those named by `inputs` as a client sends them.

        Returns:
            Tensors and RaggedTensors [rows, ...]: input_word_ids, input_type_ids (ragged int32 [rows, None]); row
            int64, the example of each row, ascending; and what `postprocess` and the objective need. Features with one
            value per token are ragged.
        """

    def pad(self, features: Tensors, *, few_lengths: bool = False) -> Tensors:
        """Pads rows of ragged features for the model: dense tensors [rows, length].

        Args:
            few_lengths: pads to one of few lengths, for programs compiled for each.
        """
        return padded_rows(features, self.config.max_length, few_lengths=few_lengths)

    @abc.abstractmethod
    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        """Numeric results of each row, in graph code: dense tensors [rows, ...].

        Where the second dimension depends on the row's length, padding must be 0.
        """

    @abc.abstractmethod
    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        """The answers, which the exported model returns with those that `served` adds.

        Args:
            columns: [examples, ...] each.
            rows: int64 [rows], the example of each row, ascending.
            decoded: what `postprocess` returned for all rows.

        Returns:
            name -> tensor or RaggedTensor [examples, ...]; ragged ones are served padded with 0 or "".
        """

    def served(self, answers: Tensors) -> Tensors:
        """Adds to answers what only a client needs, not `predictions`, such as names of labels. Default: nothing.

        Args:
            answers: as `aggregate_windows` returns, which is graph code.
        """
        return answers

    @abc.abstractmethod
    def answer_tokens(self, features: Tensors, outputs: Tensors) -> Tensors:
        """Answers of the exported model to a client that sends token ids, in graph code.

        Args:
            features: the encoder's inputs, [rows, ..., length].
            outputs: the model's outputs for them.

        Returns:
            Dense tensors [rows, ...].
        """

    def example_outputs(self, columns: Tensors, answers: Tensors) -> Tensors:
        """Outputs of `example_api`.

        Args:
            columns: by the names of `inputs`.
            answers: the exported model's answers to them.

        Returns:
            For "classify" classes string and scores float32 [batch, n]; for "regress" outputs float32 [batch].

        Raises:
            NotImplementedError: the task has no `example_api`.
        """
        raise NotImplementedError

    def requests(self, examples: list[Any]) -> Iterator[tuple[Sequence[int], str, dict[str, Array]]]:
        """What a client sends to get exactly the answers of `predict`.

        Yields:
            (indices of examples, the signature, its inputs), each example once.
        """
        columns = self.to_tensors(examples, labelled=False)
        yield range(len(examples)), DEFAULT, {spec.name: dense(columns[spec.name]).numpy() for spec in self.inputs()}

    def response(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """The answers, as `predictions` takes them, in a server's outputs for one of the `requests`."""
        return unpadded(outputs, self.counted)

    def predictions(self, examples: list[Any], answers: dict[str, Array], *, finite: bool = True) -> list[Json]:
        """The answers as objects with `id`, one per example; `predict` writes them as JSON, mappings as objects.

        Args:
            examples: as given to `to_tensors`.
            answers: as `aggregate_windows` returns; a ragged one as an array of arrays.
            finite: whether all answers must be finite.

        Raises:
            DataError: an answer is NaN or infinite.
        """
        if finite:
            check_finite(answers, self.locations(examples))
        return self._predictions(examples, answers)

    @abc.abstractmethod
    def _predictions(self, examples: list[Any], answers: dict[str, Array]) -> list[Json]:
        """`predictions`, whether or not the answers are finite."""

    def distinct(self, examples: list[Any]) -> tuple[list[Any], Callable[[list[Json]], list[Json]]]:
        """What to predict to evaluate these examples, and the function from its predictions to theirs.

        Default: the examples. A task whose examples have many parts in common predicts each part once.
        """
        return examples, lambda predictions: predictions

    def locations(self, examples: list[Any]) -> list[str]:
        """Where each entry of `to_tensors` begins, for errors."""
        return [example.location for example in examples]

    def chunks(self, examples: Iterable[Any], size: int) -> Iterator[list[Any]]:
        """Splits a stream of examples into lists of about `size` that can be predicted independently."""
        examples = iter(examples)
        while chunk := list(itertools.islice(examples, size)):
            yield chunk

    def writers(self) -> dict[str, Writer]:
        """File formats of the predictions: file extension -> writer.

        A writer iterates over the (example, prediction) pairs once and may return a line for the user. A writer of
        .zip finds the previous file at the path, to add to it. Further files go into the folder of the path, and their
        names begin as that of the path does.
        """
        return {".jsonl": write_json_lines}

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        from_text = text_signature(self, model, self.inputs())

        def from_tokens(features: Tensors) -> Tensors:
            return map_in_chunks(lambda part: self.answer_tokens(part, infer(model, part)), features)

        made = {DEFAULT: from_text, TOKENS: token_signature(model, from_tokens)}
        if self.example_api:
            made[self.example_api] = example_signature(self, from_text)
        return made

    def token_features(self, columns: Tensors) -> Tensors:
        features = self.preprocess(columns)
        first = tf.searchsorted(features["row"], tf.range(tf.reduce_max(tf.concat([features["row"], [-1]], 0)) + 1))
        return {name: tf.gather(value, first) for name, value in self.pad(features).items()}


def text_signature(
    codec: Codec,
    model: keras.Model,
    specs: Sequence[tf.TensorSpec],
    columns_of: Callable[[Tensors], Tensors] = lambda columns: columns,
) -> TfFunction:
    """From texts to the codec's answers; many rows, or windows, go through the model in chunks.

    Args:
        codec, model: of the export.
        specs: the input signature, named.
        columns_of: maps the inputs, by their names, to the columns of `Codec.preprocess`.
    """
    names = [spec.name for spec in specs]

    def serve(*values: tf.Tensor) -> Tensors:
        columns = columns_of(dict(zip(names, values, strict=True)))
        features = codec.preprocess(columns)
        rows = features["row"]

        def decoded(part: Tensors) -> Tensors:
            return codec.postprocess(part, infer(model, part))

        answers = codec.aggregate_windows(columns, rows, map_in_chunks(decoded, codec.pad(features)))
        return padded(codec.served(answers), codec.counted)

    return signature(serve, specs)


def example_signature(codec: Codec, from_text: TfFunction) -> TfFunction:
    """TF Serving's Classify or Regress API: serialized tf.train.Examples with the codec's inputs as features.

    Args:
        codec: with an `example_api`.
        from_text: its `text_signature`.
    """

    def parsed(spec: tf.TensorSpec) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
        if spec.shape.rank == 1:
            return tf.io.FixedLenFeature([], tf.string, "" if spec.name in codec.optional else None)
        return tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64)

    features = {spec.name: parsed(spec) for spec in codec.inputs()}

    def serve(examples: tf.Tensor) -> Tensors:
        columns = padded(tf.io.parse_example(examples, features))
        return codec.example_outputs(columns, from_text(*(columns[name] for name in features)))

    return signature(serve, [tf.TensorSpec([None], tf.string, name="inputs")])


def check_finite(answers: Mapping[str, Iterable[Any]], locations: Sequence[str]) -> None:
    """Raises DataError if a model answers NaN or infinity.

    Args:
        answers: by name, the values of each row: arrays or numbers, of any dtype.
        locations: of the rows, for the error.
    """
    for name, values in answers.items():
        for location, value in zip(locations, values, strict=True):
            array = np.asarray(value)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(
                    f"{location}: the model computes {name!r} as NaN or infinity; its weights are damaged or its "
                    "training diverged: use another checkpoint"
                )


def write_json_lines(path: str, predicted: Iterable[tuple[Any, Json]]) -> None:
    """Writes each prediction as a line of JSON."""
    with open(path, "w", encoding="utf-8") as file:
        for _, prediction in predicted:
            file.write(json.dumps(prediction, ensure_ascii=False, default=dict) + "\n")


def strings(values: Array) -> list[str]:
    """Decodes the bytes of a string tensor's array, flattened."""
    return [value.decode("utf-8", "replace") for value in np.asarray(values).ravel()]
