"""Base class of all fine-tuning tasks: from examples to predictions.

    examples -> to_tensors -> preprocess -> rows of features -> model -> postprocess -> aggregate_windows -> answers

`to_tensors` turns Python values into tensors; everything after it is TensorFlow code that training, evaluation,
prediction and the exported model share. An example is one row of features, or several if its text is cut into windows;
the answers have one entry per example.
"""

import abc
import functools
import itertools
import json
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import ExampleData, to_dict
from bert_tf.config.tasks import TaskConfig, check_labels, check_weights
from bert_tf.config.values import annotations, misfit, restored
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.batching import batch_by_length
from bert_tf.inputs.datasets.examples import Labels, ReadReport
from bert_tf.model.chunks import map_in_chunks
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import build
from bert_tf.model.inference import infer
from bert_tf.quiet import traced_function
from bert_tf.tasks.error_analysis import ErrorAnalysis
from bert_tf.tasks.signatures import DEFAULT, TOKENS, example_signature, text_signature, token_signature
from bert_tf.tasks.task import Task
from bert_tf.text.packing import dense_features, length_steps
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.types import Array, Json, Metrics, Tensors, TfFunction, Writer

# Batches whose examples are sorted by length together: more would mean less padding, but a less random order.
_POOL = 32
# Lengths are rounded up to a multiple of this: matrix kernels are faster, and compiled ones see fewer shapes.
_LENGTH_MULTIPLE = 4


class FineTuningTask(Task):
    """A task learned from labelled examples.

    Args:
        tokenizer: tokenizes the texts.
        config: an instance of `Config`; None for its defaults.
        data: saved with the model, so that evaluation reads the same kind of files.
        **state: fitted attributes of a trained task, by the names in `state`.

    Attributes:
        Config: class of the task's settings; `FinetuneConfig.task` is an instance.
        example: class of its examples, e.g. TextExample.
        state: names of fitted attributes saved with the config, `labels` among them if the head has one output per
            label. If a name is also a config field (`labels`, `class_weights`), the fitted value wins. A class has
            defaults for those that the settings of a converted model lack.
        example_api: "classify" or "regress" if TF Serving's API of that name fits the task, else "".
        optional: names of the inputs that may be "", and that Examples may leave out.
    """

    Config: ClassVar[type[TaskConfig]]
    example: ClassVar[type[Any]]
    state: ClassVar[tuple[str, ...]] = ()
    example_api: ClassVar[str] = ""
    optional: ClassVar[frozenset[str]] = frozenset()
    losses = ("loss",)
    mode = "max"
    config: TaskConfig
    labels: Sequence[str]

    def __init__(
        self, tokenizer: Tokenizer, config: TaskConfig | None = None, data: ExampleData | None = None, **state: Any
    ) -> None:
        self.tokenizer = tokenizer
        self.config = self.Config() if config is None else config
        self.data = ExampleData() if data is None else data
        for name, value in state.items():  # a converted checkpoint has only some: the class has defaults for the rest
            setattr(self, name, value)

    @property
    def windows(self) -> bool:
        """Whether an example can be several rows."""
        return False

    @classmethod
    def create(
        cls, tokenizer: Tokenizer, config: Any, data: ExampleData, examples: list[Any], labels: Labels | None
    ) -> Self:
        """Creates a new task for training.

        Args:
            tokenizer, data: as for the class.
            config: the checked config, of the class `Config`.
            examples, labels: as for `fit`.
        """
        task = cls(tokenizer, config, data)
        task.fit(examples, labels)
        return task

    def fit(self, examples: list[Any], labels: Labels | None) -> None:
        """Fits state on the training examples, and checks that the task can learn from them. Default: nothing.

        Args:
            examples: the training examples.
            labels: the labels that the format defines, as `Source.labels` returns.
        """

    def tune(self, examples: list[Any], predictions: list[Json]) -> None:
        """Fits state on the validation set that is saved with the model, such as a threshold. Default: nothing.

        Fine-tuning calls it after each evaluation's predictions and before their metrics; `evaluate` never does.

        Args:
            examples: labelled.
            predictions: as `predictions` returns.
        """

    def settings(self) -> Json:
        state = {name: getattr(self, name) for name in self.state}
        # Through JSON, so that values are as they will be read back: tuples become lists.
        return json.loads(json.dumps(to_dict(self.config) | state | {"data": to_dict(self.data)}))

    @classmethod
    def arguments(cls, settings: Json) -> Json:
        settings = dict(settings)
        data = restored(ExampleData, settings.pop("data", {}), "task.settings.data")
        state = {name: settings.pop(name) for name in cls.state if name in settings}
        # The limits are those of the config field of that name, if any.
        limited, kinds = annotations(cls.Config), typing.get_type_hints(cls)
        for name, value in state.items():
            kind, rule = limited.get(name) or (kinds[name], {})
            if wrong := misfit(value, kind, f"task.settings.{name}", rule, in_json=True):
                raise ConfigError(wrong)
        if "labels" in state:
            check_labels(state["labels"] or [""], "one or more, each once")
            check_weights(state.get("class_weights", ()), state["labels"])
        return {"config": restored(cls.Config, settings, "task.settings"), "data": data} | state

    def build(self, encoder: BertEncoder) -> keras.Model:
        labels = len(self.labels) if "labels" in self.state else None
        return build(encoder, self.head(self.settings()), labels)

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

    @abc.abstractmethod
    def preprocess(self, columns: Tensors) -> Tensors:
        """Makes rows of features, in graph code.

        Args:
            columns: as `to_tensors` returns, or only those named by `inputs`.

        Returns:
            Tensors and RaggedTensors [rows, ...]: input_word_ids, input_type_ids (ragged int32 [rows, None]); row
            int64, the example of each row, ascending; and what `weights`, `loss_and_metrics` and `postprocess` need.
            Features with one value per token are ragged.
        """

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Default: each row counts as 1."""
        return {"loss": tf.cast(tf.shape(features["labels"])[0], tf.float32)}

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

    def sent(self, columns: dict[str, Array]) -> dict[str, Array]:
        """The columns as a client must send them to get exactly the answers of `predict`. Default: unchanged.

        Args:
            columns: by the names of `inputs`.
        """
        return columns

    def returned(self, answers: dict[str, Array]) -> dict[str, Array]:
        """Converts the server's answers to `sent(columns)` into answers to `columns`."""
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

    def locations(self, examples: list[Any]) -> list[str]:
        """Where each entry of `to_tensors` begins, for errors."""
        return [example.location for example in examples]

    @abc.abstractmethod
    def official_metrics(self, examples: list[Any], predictions: list[Json]) -> Metrics:
        """The task's official metrics, `monitor` among them.

        Args:
            examples: labelled.
            predictions: as `predictions` returns.
        """

    @abc.abstractmethod
    def baseline(self, examples: list[Any]) -> Metrics:
        """`official_metrics` of predictions made without reading, usually the most frequent label for all."""

    def check(self, examples: list[Any], read_report: ReadReport) -> None:
        """Adds to the report what the task will repair in labelled examples, or cannot use. Default: nothing."""

    def chunks(self, examples: Iterable[Any], size: int) -> Iterator[list[Any]]:
        """Splits a stream of examples into lists of about `size` that can be predicted independently."""
        examples = iter(examples)
        while chunk := list(itertools.islice(examples, size)):
            yield chunk

    def error_analysis(self, examples: list[Any], predictions: list[Json]) -> ErrorAnalysis:
        """What the report shows besides metrics and baseline. Default: nothing, and the report leaves it out.

        The names of its intervals must be those of `official_metrics`. `bootstrap.intervals` computes them.

        Args:
            examples, predictions: as for `official_metrics`.
        """
        return ErrorAnalysis()

    def writers(self) -> dict[str, Writer]:
        """File formats of the predictions: file extension -> writer.

        A writer iterates over the (example, prediction) pairs once and may return a line for the user. A writer of
        .zip finds the previous file at the path, to add to it. Further files go into the folder of the path, and their
        names begin as that of the path does.
        """
        return {".jsonl": write_json_lines}

    def pad(self, features: Tensors, *, few_lengths: bool = False) -> Tensors:
        """Pads rows of ragged features for the model: dense tensors [rows, length].

        Args:
            few_lengths: pads to one of few lengths, for programs compiled for each.
        """
        features = dict(features)
        ids, types = features.pop("input_word_ids"), features.pop("input_type_ids")
        most = self.config.max_length
        lengths = length_steps(most) if few_lengths else ()
        dense = dense_features(ids, types, length_multiple=_LENGTH_MULTIPLE, lengths=lengths, max_length=most)
        shape = tf.stack([-1, tf.shape(dense["input_word_ids"])[1]])
        for name, value in features.items():
            dense[name] = value.to_tensor(shape=shape) if isinstance(value, tf.RaggedTensor) else value
        return dense

    @tf.autograph.experimental.do_not_convert
    def batches(
        self, columns: Tensors, batch_size: int, *, seed: tf.Tensor | None = None, few_lengths: bool = False
    ) -> tf.data.Dataset:
        """Batches of rows of similar length, each row once.

        Args:
            columns: as `to_tensors` returns.
            batch_size: rows per batch.
            seed: int64 [2], shuffles the rows; None keeps them near their original position (evaluation).
            few_lengths: as for `pad`.

        Returns:
            Dataset of features as `pad` returns; `window` int64 [rows] numbers the rows of each example from 0.
        """
        if seed is None and not self.windows and count(columns) <= batch_size:
            return tf.data.Dataset.from_tensors(self._single_batch(columns))  # a pipeline takes a second to set up
        pools = self._pools(columns, batch_size, seed)
        if self.windows:  # more rows than examples: each pool would end with a partial batch
            pools = pools.unbatch().ragged_batch(batch_size * _POOL)
        pad = functools.partial(self.pad, few_lengths=few_lengths)
        return batch_by_length(pools, batch_size, seed=seed).map(pad, num_parallel_calls=tf.data.AUTOTUNE)

    @tf.autograph.experimental.do_not_convert
    def count_rows(self, columns: Tensors) -> int:
        """Number of rows of features of all examples."""
        if not self.windows:
            return count(columns)
        pools = self._pools(columns, 32, None).map(lambda features: tf.size(features["row"], tf.int64))
        return int(pools.reduce(tf.constant(0, tf.int64), lambda total, rows: total + rows))

    @functools.cached_property
    def _traced_preprocess(self) -> TfFunction:
        """`preprocess`, traced only once for the many datasets of a long prediction: tracing takes seconds."""
        return traced_function(self.preprocess)

    @functools.cached_property
    def _single_batch(self) -> TfFunction:
        """Function from columns to one batch, as `batches` makes it."""
        return traced_function(lambda columns: self.pad(_numbered(self.preprocess(columns))), reduce_retracing=True)

    def _pools(self, columns: Tensors, batch_size: int, seed: tf.Tensor | None) -> tf.data.Dataset:
        """Pools of rows of features, shuffled if there is a seed."""
        # A traced function counts as stateful, and then the position in the training data could not be saved.
        preprocess = self._traced_preprocess if seed is None else self.preprocess
        order = tf.range(count(columns), dtype=tf.int64)
        if seed is not None:
            order = tf.random.experimental.stateless_shuffle(order, seed)

        def encode(examples: tf.Tensor) -> Tensors:
            features = _numbered(preprocess({name: tf.gather(value, examples) for name, value in columns.items()}))
            features |= {"row": tf.gather(examples, features["row"])}
            if seed is None or not self.windows:
                return features
            # Otherwise the windows of a text would share a batch. No other pool begins with this example.
            of_pool = tf.random.experimental.stateless_fold_in(seed, examples[0])
            shuffled = tf.random.experimental.stateless_shuffle(tf.range(tf.size(features["row"])), of_pool)
            return {name: tf.gather(value, shuffled) for name, value in features.items()}

        pools = tf.data.Dataset.from_tensor_slices(order).batch(batch_size * _POOL)
        return pools.map(encode, num_parallel_calls=tf.data.AUTOTUNE)

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        from_text = text_signature(self, model, self.inputs(), self.received)

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


def _numbered(features: Tensors) -> Tensors:
    """Adds `window`, int64 [rows]: the number of each row within its example."""
    rows = features["row"]
    return features | {"window": tf.range(tf.size(rows, tf.int64)) - tf.searchsorted(rows, rows, out_type=tf.int64)}


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


def truncated_share(features: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
    """Sum and weight of the metric of this name, the share of examples that lost tokens, counted at first windows."""
    first = tf.cast(features["window"] == 0, tf.float32)
    return tf.reduce_sum(first * tf.cast(features["truncated"], tf.float32)), tf.reduce_sum(first)


def count(columns: Tensors) -> int:
    """Number of examples."""
    return int(next(iter(columns.values())).shape[0])


def write_json_lines(path: str, predicted: Iterable[tuple[Any, Json]]) -> None:
    """Writes each prediction as a line of JSON."""
    with open(path, "w", encoding="utf-8") as file:
        for _, prediction in predicted:
            file.write(json.dumps(prediction, ensure_ascii=False, default=dict) + "\n")


def strings(values: Array) -> list[str]:
    """Decodes the bytes of a string tensor's array, flattened."""
    return [value.decode("utf-8", "replace") for value in np.asarray(values).ravel()]
