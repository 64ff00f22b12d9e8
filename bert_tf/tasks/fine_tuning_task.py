"""What all tasks share that an encoder is fine-tuned on: from examples to answers, the same way everywhere.

    examples -> to_tensors -> preprocess -> rows of features -> model -> postprocess -> aggregate_windows -> answers, one an example

`to_tensors` turns Python values into tensors; from there on it is TensorFlow code that training, evaluation, prediction
and the exported model all run. An example is one row of features, or several where its text is cut into windows.
"""

import abc
import dataclasses
import functools
import itertools
import json
import types
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.config import ExampleData, from_dict, to_dict
from bert_tf.config.values import with_new_names
from bert_tf.errors import ConfigError
from bert_tf.inputs.batching import batch_by_length
from bert_tf.inputs.packing import dense_features
from bert_tf.model.build import build
from bert_tf.model.chunks import map_in_chunks
from bert_tf.tasks.error_analysis import ErrorAnalysis
from bert_tf.tasks.signatures import DEFAULT, TOKENS, example_signature, text_signature, token_signature
from bert_tf.tasks.task import Task

# Examples sorted by length together, in batches: more would leave less padding and less chance in the order.
_POOL = 32
# Lengths are rounded up to a multiple of this: matrix kernels like it, and compiled ones see few shapes.
_LENGTH_MULTIPLE = 4


@dataclasses.dataclass
class TaskConfig:
    """What every such task can be told.

    Attributes:
        max_length: tokens an input, specials counted.
    """

    max_length: int = 128

    def check(self):
        """The config itself.

        Raises:
            ConfigError: for values that no run can have.
        """
        if self.max_length < 8:
            raise ConfigError(f"task.max_length is {self.max_length}; it must be at least 8")
        return self


class FineTuningTask(Task):
    """A task that is learned from labelled examples.

    Args:
        tokenizer: Tokenizer.
        config: of the class `Config`; None for its defaults.
        data: ExampleData, kept with the model so that it reads the same kind of files again.
        **state: what `create` found out, under the names in `state`.

    Attributes:
        Config: TaskConfig with the task's settings; `FinetuneConfig.task` is one.
        example: what its examples are, e.g. TextExample.
        state: names of the other attributes that settings hold, `labels` among them where the head has an output a
            label; a class gives those a default that the settings of a converted model lack. Settings have one value
            under a name: of `labels` and `class_weights`, which configs have too, that of the attribute, which is what
            the config says if it says anything.
        windows: whether an example can be several rows.
        counted: which answers have as many items as an example needs; dict name of the served count -> names of those
            answers.
        example_api: "classify" or "regress" where TF Serving's API of that name fits the task; else "".
    """

    Config: ClassVar[type]
    example: ClassVar[type]
    state: ClassVar[tuple[str, ...]] = ()
    windows: ClassVar[bool] = False
    counted: ClassVar[Mapping[str, tuple[str, ...]]] = types.MappingProxyType({})
    example_api: ClassVar[str] = ""
    mode = "max"

    def __init__(self, tokenizer, config=None, data=None, **state):
        self.tokenizer = tokenizer
        self.config = self.Config() if config is None else config
        self.data = ExampleData() if data is None else data
        for name, value in state.items():  # a converted checkpoint knows some only: the class has the others' defaults
            setattr(self, name, value)

    @classmethod
    @abc.abstractmethod
    def create(cls, tokenizer, config, data, examples, labels):
        """A new task.

        Args:
            tokenizer, config, data: as for the class; the config is checked.
            examples: list, what it is trained on.
            labels: what the format says they are, as `Source.labels` gives.

        Raises:
            ConfigError, DataError: for settings and examples from which nothing can be learned.
        """

    def tune(self, examples, predictions):
        """Settles what is found out on the evaluation's examples and saved with the model, such as a threshold.

        Called in fine-tuning after each evaluation's predictions and before they are scored, never by `evaluate`. Here
        there is nothing to settle.

        Args:
            examples: list, labelled.
            predictions: list of dicts as `predictions` gives.
        """

    def settings(self):
        state = {name: getattr(self, name) for name in self.state}
        # As they come back: tuples as lists.
        return json.loads(json.dumps(to_dict(self.config) | state | {"data": to_dict(self.data)}))

    @classmethod
    def from_settings(cls, settings, tokenizer):
        settings = dict(settings)
        data = from_dict(ExampleData, with_new_names(ExampleData, settings.pop("data", {})))
        state = {name: settings.pop(name) for name in cls.state if name in settings}
        return cls(tokenizer, from_dict(cls.Config, settings), data, **state)

    def build(self, encoder):
        labels = len(self.labels) if "labels" in self.state else None
        return build(encoder, self.head(self.settings()), labels)

    @abc.abstractmethod
    def to_tensors(self, examples, *, labelled):
        """The columns that `preprocess` takes: those of `inputs`, and what is to be learned if `labelled`.

        Args:
            examples: list.
            labelled: whether each has its label.

        Returns:
            dict name -> tensor or RaggedTensor [examples, ...]; of a task that takes several examples together, as
            sentences of a document, an entry for each such group, which then is what `preprocess` and `aggregate_windows` call an
            example.

        Raises:
            DataError: a label that the task does not have, with its location.
        """

    @abc.abstractmethod
    def preprocess(self, columns):
        """Rows of features, in graph code.

        Args:
            columns: dict as `to_tensors` gives, or only what `inputs` names.

        Returns:
            dict of tensors and RaggedTensors [rows, ...]: input_word_ids, input_type_ids (ragged int32 [rows, None]);
            row int64, the example of each, ascending; what `weights`, `loss_and_metrics` and `postprocess` need. Ragged is what has
            a value a token.
        """

    @abc.abstractmethod
    def postprocess(self, features, outputs):
        """What each row says, as numbers, in graph code: dict of dense tensors [rows, ...].

        Where the second dimension depends on the row's length, what is behind the row's end must be 0.
        """

    @abc.abstractmethod
    def aggregate_windows(self, columns, rows, decoded):
        """The answers: what the exported model returns.

        Args:
            columns: dict of [examples, ...].
            rows: int64 [rows], the example of each row, ascending.
            decoded: dict, what `postprocess` gave of all rows.

        Returns:
            dict name -> tensor or RaggedTensor [examples, ...]; what is ragged is served padded with 0 or "".
        """

    def sent(self, columns):
        """What a client that wants the very answers of `predict` sends. Here: the columns.

        Args:
            columns: dict of arrays, named as `inputs` are.
        """
        return columns

    def returned(self, answers):
        """The answers, dict of arrays, to what `sent` gave, as answers to the columns."""
        return answers

    @abc.abstractmethod
    def answer_tokens(self, features, outputs):
        """What the exported model answers where a client sends token ids, in graph code.

        Args:
            features: dict of the encoder's inputs, [rows, ..., length].
            outputs: dict, what the model makes of them.

        Returns:
            dict of dense tensors [rows, ...].
        """

    def example_outputs(self, columns, answers):
        """What `example_api` answers.

        Args:
            columns: dict of tensors, named as `inputs` are.
            answers: dict, what the exported model says of them.

        Returns:
            dict of tensors: for "classify" classes string and scores float32 [batch, n]; for "regress" outputs float32
            [batch].
        """
        raise NotImplementedError

    @abc.abstractmethod
    def predictions(self, examples, answers):
        """The answers as JSON-ready dicts with `id`, one an example, what `predict` writes.

        Args:
            examples: list, as `to_tensors` was given.
            answers: dict of arrays, as `aggregate_windows` gives; a ragged one as an array of arrays.
        """

    @abc.abstractmethod
    def official_metrics(self, examples, predictions):
        """The task's official metrics.

        Args:
            examples: list, labelled.
            predictions: list of dicts as `predictions` gives.

        Returns:
            dict name -> float, `monitor` among them.
        """

    @abc.abstractmethod
    def baseline(self, examples):
        """What answers given without reading score, mostly the commonest one to all: a dict like that of `official_metrics`."""

    def check(self, examples, read_report):
        """Counts what the task will mend in labelled examples, or can not use of them. Here: nothing.

        Args:
            examples: list.
            read_report: ReadReport.
        """

    def chunks(self, examples, size):
        """A stream of examples as lists of about `size` that can be answered apart from each other."""
        examples = iter(examples)
        while chunk := list(itertools.islice(examples, size)):
            yield chunk

    def error_analysis(self, examples, predictions):
        """What the report shows besides scores and baseline; here nothing, which is left out there.

        Args:
            examples, predictions: as for `official_metrics`.

        Returns:
            ErrorAnalysis. Its intervals have names that `official_metrics` has. They are drawn a thousand times: compute what an
            example adds to a score once, and draw that (`bootstrap.interval_of_mean`, `interval_of_sums`).
        """
        return ErrorAnalysis()

    def writers(self):
        """The files that predictions can be written to.

        Returns:
            dict ending -> function of (path, iterable of (example, prediction)), which it goes through once; it may
            return a line for the user. At the path of a .zip it finds what the file held before, to be added to.
            Further files go into the folder of `path`; their names begin as that of `path`.
        """
        return {".jsonl": write_json_lines}

    def pad(self, features):
        """Rows of ragged features as the model takes them: dict of dense tensors [rows, length]."""
        features = dict(features)
        ids, types = features.pop("input_word_ids"), features.pop("input_type_ids")
        dense = dense_features(ids, types, length_multiple=_LENGTH_MULTIPLE, max_length=self.config.max_length)
        shape = tf.stack([-1, tf.shape(dense["input_word_ids"])[1]])
        for name, value in features.items():
            dense[name] = value.to_tensor(shape=shape) if isinstance(value, tf.RaggedTensor) else value
        return dense

    def batches(self, columns, batch_size, *, seed=None):
        """Batches of rows of similar length, each row once.

        Args:
            columns: what `to_tensors` returns.
            batch_size: rows a batch.
            seed: int64 [2] of the order; None keeps rows near their original position (evaluation).

        Returns:
            Dataset of what `pad` gives; `window` int64 [rows] numbers the rows of each example from 0.
        """
        pools = self._pools(columns, batch_size, seed)
        if self.windows:  # more rows than examples: of each pool a batch would stay partial
            pools = pools.unbatch().ragged_batch(batch_size * _POOL)
        return batch_by_length(pools, batch_size, seed=seed).map(self.pad, num_parallel_calls=tf.data.AUTOTUNE)

    def count_rows(self, columns):
        """Rows of features that all examples make: int."""
        if not self.windows:
            return count(columns)
        pools = self._pools(columns, 32, None).map(lambda features: tf.size(features["row"], tf.int64))
        return int(pools.reduce(tf.constant(0, tf.int64), lambda total, rows: total + rows))

    @functools.cached_property
    def _traced(self):
        """`preprocess`, which takes seconds to trace, traced once for the many data sets that a long prediction makes."""
        return tf.function(self.preprocess)

    def _pools(self, columns, batch_size, seed):
        # A traced function counts as stateful, and then where the rows of training stood could not be saved.
        encode_rows = self._traced if seed is None else self.preprocess
        order = tf.range(count(columns), dtype=tf.int64)
        if seed is not None:
            order = tf.random.experimental.stateless_shuffle(order, seed)

        def encode(examples):
            features = encode_rows({name: tf.gather(value, examples) for name, value in columns.items()})
            rows = features["row"]
            number = tf.range(tf.size(rows, tf.int64)) - tf.searchsorted(rows, rows, out_type=tf.int64)
            features |= {"row": tf.gather(examples, rows), "window": number}
            if seed is None or not self.windows:
                return features
            # Else windows of one text would be learned from in one batch. No other pool begins with this example.
            of_pool = tf.random.experimental.stateless_fold_in(seed, examples[0])
            shuffled = tf.random.experimental.stateless_shuffle(tf.range(tf.size(rows)), of_pool)
            return {name: tf.gather(value, shuffled) for name, value in features.items()}

        pools = tf.data.Dataset.from_tensor_slices(order).batch(batch_size * _POOL)
        return pools.map(encode, num_parallel_calls=tf.data.AUTOTUNE)

    def signatures(self, model):
        from_text = text_signature(self, model)

        def from_tokens(features):
            return map_in_chunks(lambda part: self.answer_tokens(part, model(part, training=False)), features)

        found = {DEFAULT: from_text, TOKENS: token_signature(model, from_tokens)}
        if self.example_api:
            found[self.example_api] = example_signature(self, from_text)
        return found

    def token_features(self, columns):
        features = self.preprocess(columns)
        first = tf.searchsorted(features["row"], tf.range(tf.reduce_max(tf.concat([features["row"], [-1]], 0)) + 1))
        return {name: tf.gather(value, first) for name, value in self.pad(features).items()}


def truncated_share(features):
    """Sum and weight of the measure of this name: examples that lost tokens, of all; each has one first window."""
    first = tf.cast(features["window"] == 0, tf.float32)
    return tf.reduce_sum(first * tf.cast(features["truncated"], tf.float32)), tf.reduce_sum(first)


def count(columns):
    """Examples in columns: int."""
    return int(next(iter(columns.values())).shape[0])


def write_json_lines(path, predicted):
    """Writes each prediction as a line of JSON."""
    with open(path, "w", encoding="utf-8") as file:
        for _, prediction in predicted:
            file.write(json.dumps(prediction, ensure_ascii=False) + "\n")


def strings(values):
    """Bytes, as string tensors come, to a list of str."""
    return [value.decode("utf-8", "replace") for value in np.asarray(values).ravel()]
