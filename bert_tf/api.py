"""Python API: a class per task with `from_pretrained`, `fit`, `predict`, `evaluate`, `save` and `export`.

Each class is a thin layer over a task in `bert_tf.tasks`: `fit` runs the code of `python -m bert_tf.finetune`,
`predict` that of `python -m bert_tf.predict`, and so on, on values in memory instead of files.
"""

import abc
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import keras
import numpy as np
import tensorflow as tf

from bert_tf import quiet
from bert_tf.checkpoints import directory as model_directory
from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.hub import SCHEME
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import ExampleData, FeatureConfig, FinetuneConfig, TrainConfig, to_dict
from bert_tf.config.values import annotations, fitting, misfit, shown, unknown_field
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.files import cause, check_output, text_path, write_json
from bert_tf.inference.embedder import Embedder, open_embedder
from bert_tf.inference.extraction import extract
from bert_tf.inference.saved_model import Exported, export, export_run, on_cpu
from bert_tf.inputs.datasets.examples import ReadReport, TaggedExample
from bert_tf.inputs.datasets.formats import FORMATS
from bert_tf.inputs.datasets.sources import Data, InMemory
from bert_tf.inputs.datasets.text_files import whole
from bert_tf.model.encoder import BertEncoder, encoder_of
from bert_tf.report.file_reporter import FileReporter
from bert_tf.tasks import TASKS
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.codec import check_finite
from bert_tf.tasks.intent_and_slots import IntentAndSlots as IntentAndSlotsTask
from bert_tf.tasks.masked_lm import MaskedLM as MaskedLMTask
from bert_tf.tasks.multi_label import MultiLabel
from bert_tf.tasks.multiple_choice import MultipleChoice as MultipleChoiceTask
from bert_tf.tasks.question_answering import QuestionAnswering
from bert_tf.tasks.regression import Regression
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.tagging import Tagging
from bert_tf.tasks.task import FineTuningTask, Task
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import strategy
from bert_tf.training.dtype import check_inference_dtype, infer_in
from bert_tf.training.reporter import SILENT
from bert_tf.training.runs import finetuning
from bert_tf.training.state.run_manifest import remedy
from bert_tf.training.state.signals import Interrupted
from bert_tf.training.tf_internals import forgetting_custom_gradients
from bert_tf.types import Array, Json, Metrics, StrPath, TfFunction

# Lists, NumPy arrays, pandas columns or data frames, tf.data datasets, or any other iterable.
Values: TypeAlias = Any
_Lines: TypeAlias = list[tuple[str, Json]]  # (location, object as in JSON lines) of each example
_Task = TypeVar("_Task", bound=Task)
# Endings of the names in results.json that are left out of Keras' History.
_NOT_METRICS = ("kind", "step", "phase", "mfu", "_seconds", "_per_second")
_NO_VOCABULARY = "no WordPiece vocabulary to tokenize text with; expected a model with vocab.txt"


class _Model(abc.ABC, Generic[_Task]):
    """A pre-trained or fine-tuned model of one kind of task.

    Attributes:
        tokenizer: its tokenizer.
    """

    _kind: ClassVar[type[Task]]  # models of this task, and of its subclasses, are loaded with their heads
    tokenizer: Tokenizer

    def __init__(self, path: str, checkpoint: Checkpoint, dtype: str) -> None:
        check_inference_dtype(dtype)
        tokenizer = checkpoint.tokenizer()
        if tokenizer is None:
            raise DataError(f"{path}: {_NO_VOCABULARY}")
        self._path, self.tokenizer, self._dtype = path, tokenizer, dtype
        self._loaded: tuple[_Task, keras.Model] | None = None
        self._results: Json = {}
        self._lacks = ""  # why the model cannot be used before `fit`, if it has a head of this kind
        if checkpoint.task and issubclass(TASKS.get(checkpoint.task["name"], Task), self._kind):
            self._load(*model_directory.task_and_model(checkpoint, path))
            self._results = model_directory.read_results(path)

    def _load(self, task: Any, model: keras.Model) -> None:
        infer_in(self._dtype, model)
        self._loaded = task, model
        self.__dict__.pop("_predict", None)  # traced for the previous model

    def _trained(self) -> tuple[_Task, keras.Model]:
        if self._loaded is None:
            lacks = self._lacks or f"no {self._kind.name} head"
            raise BertTfError(f"{self._path}: {lacks}; call fit first, or load a model that was fine-tuned for it")
        return self._loaded

    @property
    def task(self) -> _Task:
        """The task of the model."""
        return self._trained()[0]

    @property
    def model(self) -> keras.Model:
        """The Keras model: encoder and head."""
        return self._trained()[1]

    @property
    def encoder(self) -> BertEncoder:
        """The Keras model of the encoder, a part of `model`."""
        return encoder_of(self.model)

    def save(self, path: StrPath) -> None:
        """Writes the model to a directory, for `from_pretrained` and the programs of this package."""
        task, model = self._trained()
        path = text_path(path)
        model_directory.save(path, model, encoder_of(model), task)
        results = os.path.join(path, model_directory.RESULTS)
        if self._results:
            write_json(results, self._results)
        elif os.path.exists(results):
            os.remove(results)  # of another model

    def export(self, path: StrPath, *, attention: bool = False, check: bool = True, optimize: str = "none") -> Exported:
        """Exports a SavedModel that takes text, as the next version in a directory for TF Serving.

        Args:
            path: directory of the served model, as for TF Serving's --model_base_path.
            attention: adds a signature that returns tokens and attention probabilities.
            check: compares the answers of the export with this model's, in a new process.
            optimize: "none", "bfloat16" (half the size, and faster on processors that multiply in bfloat16) or "int8"
                (a quarter of the size, and faster on x86 processors with VNNI or AMX).
        """
        fitting(attention, bool, "attention")
        _check_export(path, check, optimize)
        # An export computes in float32 on the CPU, whatever this model does.
        with tempfile.TemporaryDirectory() as saved:
            self.save(saved)
            return export_run(saved, os.fspath(path), attention=attention, check=check, optimize=optimize)


class _FineTuned(_Model[FineTuningTask]):
    """Base class of the models for fine-tuning tasks.

    `x` and `y` are lists, NumPy arrays, pandas columns, or other iterables of equal length; or `x` alone is a
    tf.data.Dataset of (input, label) pairs, or what `bert_tf.read` returns.
    """

    _kind: ClassVar[type[FineTuningTask]]
    _format: ClassVar[ExampleData]
    _config: Any  # of the class _kind.Config
    _inputs: ClassVar[str] = "single texts, or pairs of texts,"  # those of different formats
    _element_rank: ClassVar[int] = 0  # of the tensors of an input in an unbatched tf.data.Dataset

    def __init__(self, path: str, checkpoint: Checkpoint, dtype: str, settings: Json) -> None:
        for name in settings.keys() - {field.name for field in dataclasses.fields(self._kind.Config)}:
            raise ConfigError(unknown_field(self._kind.Config, name, type(self).__name__))
        settings = {name: _plain(value) for name, value in settings.items()}
        if "labels" in settings:
            labels = [_integer(whole(label)) for label in _listed(settings["labels"], "labels")]  # as those of examples
            settings["labels"] = tuple(str(label) if isinstance(label, int) else label for label in labels)
        super().__init__(path, checkpoint, dtype)
        config = self._kind.Config() if self._loaded is None else self.task.config
        self._config = dataclasses.replace(config, **settings).check() if settings else config
        if self._loaded is None:
            return
        limit = self.encoder.config.max_position_embeddings
        if self._config.max_length > limit:
            raise ConfigError(f"max_length is {self._config.max_length}; it must be at most the model's {limit}")
        if settings.get("labels") and settings["labels"] != tuple(self.task.state.labels):
            self._lacks = (
                f"the model has the labels {', '.join(map(repr, self.task.state.labels))}, not those asked for"
            )
        elif self._kind.head(to_dict(self._config)) != self._kind.head(to_dict(config)):
            self._lacks = "the model has another head than the one asked for"
        if self._lacks:
            self._loaded = None  # another head must be trained first
        else:
            task, model = self._loaded
            self._loaded = task.replaced(config=self._config), model

    @classmethod
    def from_pretrained(cls, path: StrPath, *, dtype: str = "float32", **settings: Any) -> Self:
        """Opens a model.

        Args:
            path: a model in any format that `bert_tf.load` reads, or "hf://OWNER/NAME". If it was fine-tuned for this
                kind of task it can predict at once; otherwise call `fit`.
            dtype: number format of the encoder's matrix products in `predict` and `evaluate`: "float32", "bfloat16", or
                "auto", which takes bfloat16 where the processor or GPU has it. With bfloat16, `model` and `encoder`
                are for inference only, and do not follow changes of their weights. What is saved stays float32.
            **settings: fields of the task's config, such as max_length.
        """
        path = _absolute(path)
        return cls(path, open_with_warnings(path), dtype, settings)

    def fit(
        self,
        x: Values,
        y: Values = None,
        *,
        validation_data: Any = None,
        epochs: float = 3.0,
        batch_size: int = 32,
        learning_rate: float = 5e-5,
        directory: StrPath | None = None,
        verbose: bool | int = True,
        **train: Any,
    ) -> keras.callbacks.History:
        """Fine-tunes the pre-trained model, as `python -m bert_tf.finetune` does.

        Every call starts from the weights that `from_pretrained` opened, as scikit-learn's `fit` does. The fine-tuned
        model predicts in the `dtype` of `from_pretrained`, whatever number format was used in training.

        Args:
            x: inputs; see the class.
            y: their labels.
            validation_data: (x, y), or what `x` alone can be; evaluated after every epoch.
            epochs: passes over the data.
            batch_size: examples per update.
            learning_rate: peak of the schedule.
            directory: keeps checkpoints, curves and the model; the same call resumes an interrupted run from there.
                None keeps nothing on disk.
            verbose: shows a progress bar and validation metrics.
            **train: other fields of `bert_tf.config.TrainConfig`, such as seed, dtype or patience.

        Returns:
            Keras' History: `history` maps each metric to a list with its value for every epoch, the validation metrics
            with the prefix "val_".
        """
        fitting(verbose, bool | int, "verbose")
        if directory is not None:
            check_output(directory, directory=True)
        settings = _train_settings(train | {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate})
        given = {"train": self._labelled(x, y, "x")}
        if "log_every" not in train:
            settings.log_every = min(settings.log_every, math.ceil(len(given["train"]) / settings.batch_size))
        if validation_data is not None:
            alone = isinstance(validation_data, tf.data.Dataset | Data)
            x, y = (validation_data, None) if alone else _pair(validation_data)
            given["validation"] = self._labelled(x, y, "validation x")
        data = self._data(given["train"])
        values = [self._data(one) for one in given.values() if not isinstance(one, Data)]
        if any(one != values[0] for one in values):
            raise DataError(f"x and validation x differ; expected {self._inputs} in both")
        config = FinetuneConfig(self._config, data, settings)
        with (
            tempfile.TemporaryDirectory() if directory is None else contextlib.nullcontext(directory) as folder,
            forgetting_custom_gradients(),
            remedy("choose another directory, or remove this one"),
            contextlib.nullcontext() if verbose else quiet.silence(),
        ):
            try:
                results = finetuning.finetune(
                    config,
                    # Values name their parts as here, whatever the columns of a file beside them are called.
                    InMemory(values[0] if values else data, self._kind.example, given),
                    self._path,
                    os.fspath(folder),
                    _strategy(),
                    reporter=FileReporter() if directory else SILENT,
                )
            except Interrupted as stop:
                raise KeyboardInterrupt(f"stopped at step {stop.step}; fit resumes if it has a directory") from None
            self._load(*model_directory.load_fine_tuned(os.fspath(folder)))
        self._results = results
        return _history(results)

    def predict(self, x: Values, *, batch_size: int = 32) -> list[Json]:
        """Predicts for each input a dict of plain Python values; see the class for its contents."""
        batch_size = _batch_size(batch_size)
        given = self._read(x) if isinstance(x, Data) else self._lines(_listed(x, "x", self._element_rank), None, "x")
        if not given:
            return []
        source = InMemory(self._data(given), self._kind.example, {"x": given})
        examples = list(source.examples(ReadReport(), "x", labelled=False))
        return [self._answer(prediction) for _, prediction in self._predict(examples, batch_size)]

    def evaluate(self, x: Values, y: Values = None, *, batch_size: int = 32) -> Metrics:
        """Evaluates the model: loss, the task's metrics and its official metrics."""
        batch_size = _batch_size(batch_size)
        task, model = self._trained()
        given = self._labelled(x, y, "x")
        source = InMemory(self._data(given), self._kind.example, {"validation": given})
        split = finetuning.Split(source, "validation")
        split.prepare(task)
        with forgetting_custom_gradients():
            return finetuning.Evaluation(task, model, split, batch_size, _strategy())()

    @functools.cached_property
    def _predict(self) -> Callable[[Iterable[Any], int], Iterator[tuple[Any, Json]]]:
        return finetuning.predictor(*self._trained(), _strategy())

    def _labelled(self, x: Values, y: Values, name: str) -> "_Lines | Data":
        """Examples with labels."""
        if isinstance(x, Data):
            if y is not None:
                raise ConfigError(f"{name} is what read returned, which has the labels; leave y out")
            return self._read(x)
        if isinstance(x, tf.data.Dataset) and y is None:
            pairs = _listed(x, name, self._element_rank)
            if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
                raise DataError(f"{name} is a dataset of {x.element_spec}; expected pairs (input, label)")
            inputs, labels = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        elif y is None:
            raise ConfigError(f"{name} has no labels; give them as y, or give a tf.data.Dataset of (input, label)")
        else:
            inputs, labels = _listed(x, name, self._element_rank), self._listed_labels(y, name)
        if len(inputs) != len(labels):
            raise DataError(f"{name} has {len(inputs)} inputs and {len(labels)} labels; expected one label per input")
        if not inputs:
            raise DataError(f"{name} is empty; expected at least one example")
        return self._lines(inputs, labels, name)

    def _read(self, data: Data) -> Data:
        """The data, if its examples are of this kind."""
        if data.examples and not isinstance(data.examples[0], self._kind.example):
            fitting = ", ".join(name for name, form in FORMATS.items() if form.example is self._kind.example)
            raise ConfigError(
                f"{data.where} was read as {data.format.format!r}, which is for another class than "
                f"{type(self).__name__}; for this one: {fitting}"
            )
        return data

    def _listed_labels(self, y: Values, name: str) -> list[Any]:
        return _listed(y, f"the labels of {name}")

    def _lines(self, inputs: list[Any], labels: list[Any] | None, name: str) -> _Lines:
        lines = []
        for index, value in enumerate(inputs):
            location = f"{name}[{index}]"
            line = self._input(value, location, labelled=labels is not None)
            if labels is not None and not _missing(labels[index]):
                line |= self._gold(labels[index], line, f"the label of {location}")
            lines.append((location, line))
        return lines

    @abc.abstractmethod
    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        """An input as an object of JSON lines (`inputs.datasets.json_lines`), which is where its parts are checked."""

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        """The fields of JSON lines for the label of the input `line`."""
        return {"label": label}

    def _data(self, given: "_Lines | Data") -> ExampleData:
        """Saved with the model: the format of files with such examples."""
        return given.format if isinstance(given, Data) else self._format_of(given)

    def _format_of(self, lines: _Lines) -> ExampleData:
        """The format of files with such examples."""
        return self._format

    def _answer(self, prediction: Json) -> Json:
        """A prediction as `predict` returns it."""
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in prediction.items()}
        return {name: value for name, value in plain.items() if name != "id"}


class _TextModel(_FineTuned):
    """A model of texts or pairs of texts."""

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        texts = tuple(value) if isinstance(value, tuple | list) else (value,)
        if not 1 <= len(texts) <= 2 or isinstance(value, Mapping):
            raise DataError(f"{location} is {shown(value)}; expected a text, or a pair of texts")
        return dict(zip(("text", "second_text"), texts, strict=False))

    def _lines(self, inputs: list[Any], labels: list[Any] | None, name: str) -> _Lines:
        lines = super()._lines(inputs, labels, name)
        for location, line in lines:
            if ("second_text" in line) != ("second_text" in lines[0][1]):
                raise DataError(f"{location} and {lines[0][0]}: one is a text, the other a pair; expected one kind")
        return lines

    def _format_of(self, lines: _Lines) -> ExampleData:
        second = "second_text" if "second_text" in lines[0][1] else ""
        return ExampleData(text="text", second_text=second, label="label")


class TextClassifier(_TextModel):
    """Classifies texts, or pairs of texts given as tuples.

    Labels are strings or integers. Floats without a fraction count as integers, because pandas stores an integer column
    with missing values as floats. `predict` returns the label and the probability of each label; the labels are
    integers if those of the training data were.

    Examples:
        >>> classifier = bert_tf.TextClassifier.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> texts, labels = ["A film to remember.", "Two lost hours."], ["positive", "negative"]
        >>> history = classifier.fit(texts, labels, epochs=1)
        >>> classifier.predict(["A quiet, moving film."])
        [{'label': ..., 'probabilities': {'negative': ..., 'positive': ...}}]
        >>> sorted(classifier.evaluate(texts, labels))
        ['accuracy', 'loss', 'macro_f1', 'truncated_share']
    """

    _kind = Classification

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        return {"label": _integer(label)}

    def _answer(self, prediction: Json) -> Json:
        task: Any = self.task
        if not task.state.has_integers:
            return super()._answer(prediction)
        shares = {int(label): share for label, share in prediction["probabilities"].items()}
        return {"label": int(prediction["label"]), "probabilities": shares}


class MultiLabelClassifier(_TextModel):
    """Predicts any number of labels for a text or a pair of texts.

    The labels of a text are a list of strings. The labels of all texts can also be a matrix of 0 and 1 (a NumPy array
    or a data frame) with a column per label, named by the setting `labels`, else by the data frame, else by its number.
    `predict` returns the labels above the threshold and the probability of each label.

    Examples:
        >>> model = bert_tf.MultiLabelClassifier.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> texts = ["The plot is thin but the music is lovely.", "Great music.", "I fell asleep."]
        >>> history = model.fit(texts, [["plot", "music"], ["music"], []], epochs=1)
        >>> model.predict(["What a soundtrack!"])
        [{'labels': [...], 'probabilities': {'music': ..., 'plot': ...}}]
    """

    _kind = MultiLabel

    def fit(self, x: Values, y: Values = None, **settings: Any) -> keras.callbacks.History:
        """As `TextClassifier.fit`."""
        before, columns = self._config, _columns(y)
        if columns and not before.labels:  # all of them: a label may have no example
            self._config = dataclasses.replace(before, labels=columns)
        try:
            return super().fit(x, y, **settings)
        finally:
            self._config = before

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        if not isinstance(label, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in label):
            raise DataError(
                f"{location} is {shown(label)}; expected a list of strings, or all labels as a NumPy matrix of 0 and 1"
            )
        return {"label": sorted(label)}

    def _listed_labels(self, y: Values, name: str) -> list[Any]:
        columns = _columns(y)
        if not columns:
            return super()._listed_labels(y, name)
        labels = tuple(self._config.labels or (self.task.state.labels if self._loaded else columns))
        matrix = y.to_numpy() if hasattr(y, "columns") else np.asarray(y)
        if hasattr(y, "columns") and sorted(columns) == sorted(labels):
            matrix = matrix[:, [columns.index(label) for label in labels]]
        elif hasattr(y, "columns") or matrix.shape[1] != len(labels):
            found = ", ".join(columns) if hasattr(y, "columns") else f"{len(columns)} columns"
            raise DataError(f"the labels of {name} are {found}; expected {', '.join(labels)}")
        wrong = np.argwhere(~np.isin(matrix, (0, 1)))
        if len(wrong):
            row, column = wrong[0]
            raise DataError(f"the labels of {name}[{row}] hold {shown(_plain(matrix[row, column]))}; expected 0 and 1")
        return [tuple(itertools.compress(labels, row)) for row in matrix]


class TextRegressor(_TextModel):
    """Predicts a number for a text or a pair of texts; `predict` returns it as `value`.

    Examples:
        >>> model = bert_tf.TextRegressor.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> pairs = [("A man plays.", "Someone plays."), ("A cat sleeps.", "The market fell.")]
        >>> history = model.fit(pairs, [4.2, 0.3], epochs=1)
        >>> model.predict([("A dog runs.", "A dog is running.")])
        [{'value': ...}]
    """

    _kind = Regression


class TokenClassifier(_FineTuned):
    """Tags words, or characters: named entities, parts of speech.

    An input is a list of words, and its label a list with one tag per word. Or an input is a text, and its label has
    one tag per character, spaces included, as in KLUE's named entities. Tags such as B-PER and I-PER form entities.

    `predict` also takes texts, which a model of words splits into words. It returns `text`, `words` (or characters),
    one of `tags` and one of `scores` for each of them (0 where there is no wordpiece), and for entities `spans`: text,
    label, start and end in characters of the text, and score.

    Examples:
        >>> tagger = bert_tf.TokenClassifier.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> sentences = [["Ada", "lived", "in", "London", "."], ["Seoul", "is", "large", "."]]
        >>> tags = [["B-PER", "O", "O", "B-LOC", "O"], ["B-LOC", "O", "O", "O"]]
        >>> history = tagger.fit(sentences, tags, epochs=1)
        >>> tagger.predict(["She was born in Seoul."])[0]["words"]
        ['She', 'was', 'born', 'in', 'Seoul', '.']
    """

    _kind = Tagging
    _inputs = "lists of words, or texts with a tag for each character,"
    _element_rank = 1

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        if isinstance(value, str):
            return {"text": value}
        if not isinstance(value, list | tuple) or not value:
            raise DataError(f"{location} is {shown(value)}; expected a list of words, or a text")
        return {"words": list(value)}

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        if not isinstance(label, list | tuple):
            unit, parts = ("character", line["text"]) if "text" in line else ("word", line["words"])
            raise DataError(f"{location} is {shown(label)}; expected {len(parts)} tags, one per {unit}")
        return {"tags": list(label)}

    def _format_of(self, lines: _Lines) -> ExampleData:
        return ExampleData(format="klue/ner" if any("text" in line for _, line in lines) else "conll")


class IntentAndSlots(TokenClassifier):
    """Predicts the intent of a text and tags its words, for dialogue systems.

    Inputs are those of `TokenClassifier`, and a label is a pair: the intent, a string, and the list of tags. `predict`
    adds `intent` and `intent_probabilities` to the answer of `TokenClassifier`.

    Examples:
        >>> assistant = bert_tf.IntentAndSlots.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> requests = [["play", "some", "jazz"], ["weather", "in", "Oslo"]]
        >>> labels = [("PlayMusic", ["O", "O", "B-genre"]), ("GetWeather", ["O", "O", "B-city"])]
        >>> history = assistant.fit(requests, labels, epochs=1)
        >>> assistant.predict(["play folk"])[0]["intent_probabilities"]
        {'GetWeather': ..., 'PlayMusic': ...}
    """

    _kind = IntentAndSlotsTask

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        intent, tags = _fields(label, ("intent", "tags"), location)
        return {"label": intent} | super()._gold(tags, line, location)


class QuestionAnswerer(_FineTuned):
    """Answers questions with a part of a text, as in SQuAD.

    An input is a pair (question, context) or a dict with these keys. A label is the text of the answer, meaning its
    first occurrence in the context; or a list of dicts with `text` and `answer_start`, or a dict with a list of
    each, as in SQuAD; or None if the question has no answer (with the setting unanswerable=True). `predict` returns
    `answer`, its `start` and `end` in characters of the context, its `probability`, and the best candidates as `nbest`.

    Examples:
        >>> reader = bert_tf.QuestionAnswerer.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> pair = ("When was Mozart born?", "Mozart was born in Salzburg in 1756.")
        >>> history = reader.fit([pair], ["1756"], epochs=1)
        >>> answer = reader.predict([pair])[0]
        >>> pair[1][answer["start"] : answer["end"]] == answer["answer"]
        True
    """

    _kind = QuestionAnswering

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        line = dict(zip(("question", "context"), _fields(value, ("question", "context"), location), strict=True))
        return line | ({"answers": []} if labelled else {})

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        if isinstance(label, Mapping):
            return {
                "answers": {name: list(value) if isinstance(value, tuple) else value for name, value in label.items()}
            }
        if isinstance(label, list | tuple):
            return {"answers": list(label)}
        if not isinstance(label, str):
            raise DataError(f"{location} is {shown(label)}; expected a text, None, or a dict or list as in SQuAD")
        # Its first occurrence; a text that does not occur is not at 0 either, which the reader counts.
        start = max(0, line["context"].find(label)) if isinstance(line["context"], str) else 0
        return {"answers": [{"text": label, "start": start}] if label else []}

    def _format_of(self, lines: _Lines) -> ExampleData:
        return ExampleData(format="squad2" if self._config.unanswerable else "squad")


class MultipleChoice(_FineTuned):
    """Chooses the text that fits a context.

    An input is a tuple (context, choices) or (context, question, choices), or a dict with these keys. A label is the
    index of the right choice. `predict` returns `choice` (its index), `label` (its text) and the `probabilities` of all
    choices.

    Examples:
        >>> model = bert_tf.MultipleChoice.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> questions = [("The vase fell.", ["It broke.", "It sang."])]
        >>> history = model.fit(questions, [0], epochs=1)
        >>> model.predict(questions)
        [{'choice': ..., 'label': ..., 'probabilities': [..., ...]}]
    """

    _kind = MultipleChoiceTask
    _format = ExampleData(format="choices")

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        if isinstance(value, Mapping):
            value = {"question": ""} | dict(value)
        elif isinstance(value, list | tuple) and len(value) == 2:
            value = (value[0], "", value[1])
        names = ("context", "question", "choices")
        context, question, choices = _fields(value, names, location)
        choices = list(choices) if isinstance(choices, tuple) else choices
        return dict(zip(names, (context, question, choices), strict=True))


class MaskedLM(_Model[MaskedLMTask]):
    """A pre-trained masked language model, which fills in [MASK].

    Examples:
        >>> model = bert_tf.MaskedLM.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> model.predict(["Paris is the [MASK] of France."])
        [[[{'token': ..., 'probability': ...}, ...]]]
    """

    _kind = MaskedLMTask

    @classmethod
    def from_pretrained(cls, path: StrPath, *, dtype: str = "float32") -> Self:
        """Opens a model that has its masked-language-model head.

        Args:
            path: a model in any format that `bert_tf.load` reads, or "hf://OWNER/NAME".
            dtype: as for `TextClassifier.from_pretrained`.
        """
        path = _absolute(path)
        model = cls(path, open_with_warnings(path), dtype)
        if model._loaded is None:
            raise DataError(f"{path}: no masked-language-model head; expected a pre-trained model that kept its head")
        return model

    def predict(self, texts: Values, *, batch_size: int = 32) -> list[list[list[Json]]]:
        """Predicts the wordpieces of each [MASK] within the model's maximum length.

        Returns:
            A list per text and, in it, a list per [MASK]: dicts of token and probability, the best first.
        """
        batch_size, listed = _batch_size(batch_size), _texts(texts)
        predictions: list[list[list[Json]]] = []
        for first in range(0, len(listed), batch_size):
            outputs = self._predict(tf.constant(listed[first : first + batch_size]))
            columns = [outputs[name].numpy() for name in ("tokens", "probabilities", "mask_count")]
            check_finite({"probabilities": columns[1]}, [f"texts[{first + row}]" for row in range(len(columns[1]))])
            for tokens, shares, masks in zip(*columns, strict=True):
                best = [zip(tokens[mask], shares[mask].tolist(), strict=True) for mask in range(masks)]
                predictions.append(
                    [[{"token": token.decode(), "probability": share} for token, share in one] for one in best]
                )
        return predictions

    @functools.cached_property
    def _predict(self) -> TfFunction:
        task, model = self._trained()
        return task.signatures(model)[DEFAULT]


class SentenceEncoder:
    """Computes vectors of texts.

    Attributes:
        encoder: the Keras model.
        tokenizer: its tokenizer.

    Examples:
        >>> encoder = bert_tf.SentenceEncoder.from_pretrained("hf://sentence-transformers/all-MiniLM-L6-v2")
        >>> vectors = encoder.encode(["A man plays a guitar.", "Someone makes music.", "The market fell."])
        >>> vectors.shape
        (3, 384)
        >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
        True
    """

    def __init__(self, path: str, settings: Json, dtype: str) -> None:
        check_inference_dtype(dtype)
        self._path, self._settings = path, settings
        self._embedder = open_embedder(path, **settings)
        self._with_prompt: dict[str, Embedder] = {}
        infer_in(dtype, self._embedder.model)
        self.encoder, self.tokenizer = self._embedder.encoder, self._embedder.tokenizer

    @classmethod
    def from_pretrained(
        cls,
        path: StrPath,
        *,
        pool: str | None = None,
        layers: Sequence[int] | None = None,
        max_length: int | None = None,
        long_texts: str | None = None,
        dtype: str = "float32",
    ) -> Self:
        """Opens a model.

        A sentence encoder as sentence-transformers publishes it (modules.json) computes the vectors that it was trained
        for: pooling, dense layers, normalization, its maximum length and its prompts are read with it. What is given
        here replaces these settings; for other models, the defaults are those in parentheses.

        Args:
            path: a model in any format that `bert_tf.load` reads, or "hf://OWNER/NAME".
            pool: how the vectors of tokens are pooled: "mean" (default), "cls", "max", "mean_sqrt_len", "weightedmean"
                or "lasttoken", or several joined by "+"; see `bert_tf.config.EmbeddingConfig`.
            layers: the layers whose states are summed; 0 for the embeddings, -1 for the last layer (default).
            max_length: tokens per text or window; 0 for the model's maximum (default).
            long_texts: "window" (default) averages over windows of a longer text, "head" cuts it.
            dtype: as for `TextClassifier.from_pretrained`.
        """
        settings: Json = {"pool": pool, "max_length": max_length, "long_texts": long_texts}
        chosen: Any = tuple(layers) if isinstance(layers, range) else _plain(layers)
        settings["features"] = None if layers is None else FeatureConfig(chosen)
        return cls(_absolute(path), {name: value for name, value in settings.items() if value is not None}, dtype)

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that the model was published with, by name."""
        return dict(self._embedder.config.prompts)

    def encode(self, texts: Values, *, prompt_name: str | None = None, batch_size: int = 32) -> Array:
        """Computes vectors, in batches of texts of similar length.

        Args:
            texts: the texts.
            prompt_name: the one of `prompts` to put in front of each text; None for the model's default, "" for none.
            batch_size: texts per batch.

        Returns:
            float32 [texts, size].
        """
        batch_size, embedder = _batch_size(batch_size), self._prompted(prompt_name)
        examples = [
            TaggedExample(str(index), text, None, None, None, None, f"texts[{index}]")
            for index, text in enumerate(_texts(texts))
        ]
        vectors = [values["vector"] for _, values in extract(embedder, examples, batch_size, progress=False)]
        return np.stack(vectors) if vectors else np.zeros([0, embedder.size], np.float32)

    def _prompted(self, prompt_name: str | None) -> Embedder:
        fitting(prompt_name, str | None, "prompt_name")
        if prompt_name is None:
            return self._embedder
        if prompt_name not in self._with_prompt:
            self._with_prompt[prompt_name] = self._embedder.with_prompt(prompt_name)
        return self._with_prompt[prompt_name]

    def save(self, path: StrPath) -> None:
        """Writes the model with its settings to a directory, for `from_pretrained` and the programs of this package."""
        model_directory.save_checkpoint(self._embedder.checkpoint(), text_path(path))

    def export(
        self, path: StrPath, *, prompt_name: str | None = None, check: bool = True, optimize: str = "none"
    ) -> Exported:
        """Exports a SavedModel that takes text and returns vectors.

        Args:
            path: as for `TextClassifier.export`.
            check: as for `TextClassifier.export`.
            optimize: as for `TextClassifier.export`.
            prompt_name: as for `encode`; the SavedModel puts this one in front of every text.
        """
        _check_export(path, check, optimize)
        with on_cpu():  # an export is compared with the model on the CPU
            embedder = open_embedder(self._path, **self._settings)
        if prompt_name is not None:
            embedder = embedder.with_prompt(prompt_name)
        return export(embedder, embedder.model, os.fspath(path), check=check, optimize=optimize)


def _listed(values: Values, name: str, element_rank: int = 0) -> list[Any]:
    """Values as a list of Python values; rows of a matrix and of a data frame become lists.

    Args:
        name: for errors.
        element_rank: of the tensors in an unbatched tf.data.Dataset.
    """
    if isinstance(values, set | frozenset):
        raise ConfigError(f"{name} is {shown(values)}, and a set has no order; expected a list")
    try:
        iter(values)
        is_list = not isinstance(values, str | bytes | Mapping)
    except (TypeError, NotImplementedError):  # also of arrays and tensors without dimensions, and of Keras' inputs
        is_list = False
    if not is_list:
        raise ConfigError(f"{name} is {type(values).__name__} {shown(values)}; expected a list")
    if isinstance(values, tf.data.Dataset):
        return _of_dataset(values, name, element_rank)
    try:
        return [_plain(value) for value in _unpacked(values)]
    except RecursionError:
        raise ConfigError(f"{name} has lists in lists without end; expected a list") from None


def _of_dataset(values: tf.data.Dataset, name: str, element_rank: int) -> list[Any]:
    if values.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ConfigError(f"{name} is an endless tf.data.Dataset; leave repeat() out")
    ranks = [getattr(getattr(spec, "shape", None), "rank", None) for spec in tf.nest.flatten(values.element_spec)]
    if any(rank is None for rank in ranks):
        raise ConfigError(
            f"{name} is a tf.data.Dataset of {values.element_spec}; expected tensors of known shape, such as "
            "tf.TensorSpec((), tf.string)"
        )
    batched = all(rank > element_rank for rank in ranks if rank is not None)
    try:
        return [_plain(value) for value in (values.unbatch() if batched else values).as_numpy_iterator()]
    except tf.errors.OpError as error:
        raise DataError(f"{name}: the tf.data.Dataset cannot be read: {cause(error)}") from None


def _unpacked(values: Any) -> Any:
    """The values that another library's container holds, as lists or scalars; anything else unchanged."""
    if isinstance(values, tf.RaggedTensor):
        return values.to_list()
    if hasattr(values, "to_numpy"):  # pandas
        values = values.to_numpy()
    if isinstance(values, tf.Tensor) and hasattr(values, "numpy"):  # not in graphs
        values = values.numpy()
    # Otherwise they would become whole numbers: nanoseconds.
    is_time = isinstance(values, np.generic | np.ndarray) and values.dtype.kind in "mM"
    return values.tolist() if isinstance(values, np.generic | np.ndarray) and not is_time else values


def _plain(value: Any) -> Any:
    """A value of another library, or a container of such values, as plain Python."""
    value = _unpacked(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value  # no text
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(_plain, value))
    return value


def _columns(labels: Values) -> tuple[str, ...]:
    """Names of the columns of a matrix (NumPy) or a data frame (pandas); () for anything else."""
    if hasattr(labels, "columns"):
        return tuple(map(str, labels.columns))
    matrix = isinstance(labels, np.ndarray) and labels.ndim == 2
    return tuple(map(str, range(labels.shape[1]))) if matrix else ()


def _pair(validation_data: Any) -> tuple[Values, Values]:
    if not isinstance(validation_data, tuple | list) or len(validation_data) != 2:
        raise ConfigError("validation_data is no pair; expected (x, y) or a tf.data.Dataset")
    return validation_data[0], validation_data[1]


def _absolute(path: StrPath) -> str:
    """The path, whatever the working directory becomes."""
    text = text_path(path)
    return text if text.startswith(SCHEME) else os.path.abspath(text)


def _strategy() -> tf.distribute.Strategy:
    """The strategy in whose scope this runs, else the best one for this machine."""
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else strategy.create()


def _texts(values: Values) -> list[str]:
    texts = _listed(values, "texts")
    if wrong := misfit(texts, list[str], "texts", in_json=True):
        raise DataError(wrong)
    return texts


def _missing(label: Any) -> bool:
    """Whether a label is None or, as pandas marks a missing value, NaN, NA or NaT."""
    if isinstance(label, float | np.datetime64 | np.timedelta64):  # the latter from NaT
        return bool(label != label)
    return label is None or type(label).__name__ == "NAType"


def _integer(label: Any) -> Any:
    """True and False as 1 and 0; anything else unchanged."""
    return int(label) if isinstance(label, bool) else label


def _fields(value: Any, names: Sequence[str], location: str) -> list[Any]:
    """The values of a dict with these keys, or of a tuple of this length."""
    if isinstance(value, Mapping) and set(names) <= value.keys():
        return [value[name] for name in names]
    if not isinstance(value, list | tuple) or len(value) != len(names):
        raise DataError(
            f"{location} is {shown(value)}; expected {', '.join(names)}: a tuple, or a dict with these keys"
        )
    return list(value)


def _train_settings(values: Json) -> TrainConfig:
    """The settings of a run, from the keyword arguments of `fit`."""
    for name in values.keys() - {field.name for field in dataclasses.fields(TrainConfig)}:
        raise ConfigError(unknown_field(TrainConfig, name, "fit"))
    return TrainConfig(**{name: _plain(value) for name, value in values.items()}).check()


def _batch_size(value: Any) -> int:
    """The value as an int, if it is a batch size."""
    kind, rule = annotations(TrainConfig)["batch_size"]
    return fitting(_plain(value), kind, "batch_size", rule)


def _check_export(path: StrPath, check: bool, optimize: str) -> None:
    check_output(path, directory=True)
    fitting(check, bool, "check")
    fitting(optimize, str, "optimize")


def _history(results: Json) -> keras.callbacks.History:
    """The results of a run as Keras' History: training metrics are means over the logged points of each epoch."""
    per_epoch = results["steps_per_epoch"]
    numbers = range(math.ceil(results["steps"] / per_epoch))
    history = keras.callbacks.History()
    history.epoch, history.history = list(numbers), {}

    def add(prefix: str, rows: list[Json], merge: Callable[[list[float]], float]) -> None:
        names = dict.fromkeys(name for row in rows for name in row if not name.endswith(_NOT_METRICS))
        for name in names:
            epochs: list[list[float]] = [[] for _ in numbers]
            for row in rows:
                if name in row and row["step"]:
                    epochs[min(math.ceil(row["step"] / per_epoch), len(numbers)) - 1].append(row[name])
            history.history[prefix + name] = [merge(values) if values else math.nan for values in epochs]

    add("", results["history"], lambda values: sum(values) / len(values))
    add("val_", results["evaluations"], lambda values: values[-1])
    return history
