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
from bert_tf.checkpoints import load, open_with_warnings
from bert_tf.checkpoints.hub import SCHEME
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import ExampleData, FeatureConfig, FinetuneConfig, TrainConfig, to_dict
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.files import write_json
from bert_tf.inputs.datasets.examples import (
    Answer,
    ChoiceExample,
    QuestionExample,
    TaggedExample,
    TextExample,
    tagged,
)
from bert_tf.inputs.datasets.sources import InMemory
from bert_tf.model.encoder import BertEncoder, encoder_of
from bert_tf.report.reporter import FileReporter
from bert_tf.serving.embeddings import Embedder, EmbeddingConfig
from bert_tf.serving.export import Exported, export, export_run, on_cpu
from bert_tf.serving.extraction import extract
from bert_tf.tasks import TASKS
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.fine_tuning_task import FineTuningTask, check_finite
from bert_tf.tasks.masked_lm import MaskedLM as MaskedLMTask
from bert_tf.tasks.multi_label import MultiLabel
from bert_tf.tasks.multiple_choice import MultipleChoice as MultipleChoiceTask
from bert_tf.tasks.question_answering import QuestionAnswering
from bert_tf.tasks.regression import Regression
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.tagging import Tagging
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.training import strategy
from bert_tf.training.precision import check_inference_dtype, infer_in
from bert_tf.training.reporter import SILENT
from bert_tf.training.runs import finetuning
from bert_tf.training.state.run_manifest import remedy
from bert_tf.training.state.signals import Interrupted
from bert_tf.training.tf_internals import forgetting_custom_gradients
from bert_tf.types import Array, Json, Metrics, StrPath, TfFunction

# Lists, NumPy arrays, pandas columns or data frames, tf.data datasets, or any other iterable.
Values: TypeAlias = Any
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
        if checkpoint.task and issubclass(TASKS.get(checkpoint.task["name"], Task), self._kind):
            self._load(*model_directory.task_and_model(checkpoint, path))
            self._results = model_directory.read_results(path)

    def _load(self, task: Any, model: keras.Model) -> None:
        infer_in(self._dtype, model)
        self._loaded = task, model
        self.__dict__.pop("_predict", None)  # traced for the previous model

    def _trained(self) -> tuple[_Task, keras.Model]:
        if self._loaded is None:
            raise BertTfError(
                f"{self._path}: no {self._kind.name} head; call fit first, or load a model that was fine-tuned for it"
            )
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
        model_directory.save(os.fspath(path), model, encoder_of(model), task)
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
        with (
            tempfile.TemporaryDirectory() as saved
        ):  # an export computes in float32 on the CPU, whatever this model does
            self.save(saved)
            return export_run(saved, os.fspath(path), attention=attention, check=check, optimize=optimize)


class _FineTuned(_Model[FineTuningTask]):
    """Base class of the models for fine-tuning tasks.

    `x` and `y` are lists, NumPy arrays, pandas columns, or other iterables of equal length; or `x` alone is a
    tf.data.Dataset of (input, label) pairs.
    """

    _kind: ClassVar[type[FineTuningTask]]
    _format: ClassVar[ExampleData]
    _config: Any  # of the class _kind.Config
    _element_rank: ClassVar[int] = 0  # of the tensors of an input in an unbatched tf.data.Dataset

    def __init__(self, path: str, checkpoint: Checkpoint, dtype: str, settings: Json) -> None:
        unknown = settings.keys() - {field.name for field in dataclasses.fields(self._kind.Config)}
        if unknown:
            known = ", ".join(field.name for field in dataclasses.fields(self._kind.Config))
            raise ConfigError(f"unknown setting {sorted(unknown)[0]!r}; {type(self).__name__} has {known}")
        super().__init__(path, checkpoint, dtype)
        config = self._kind.Config() if self._loaded is None else self.task.config
        self._config = dataclasses.replace(config, **settings).check() if settings else config
        if self._loaded is None:
            return
        limit = self.encoder.config.max_position_embeddings
        if self._config.max_length > limit:
            raise ConfigError(f"max_length is {self._config.max_length}; it must be at most the model's {limit}")
        if self._kind.head(to_dict(self._config)) == self._kind.head(to_dict(config)):
            self.task.config = self._config
        else:
            self._loaded = None  # another head must be trained first

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
            validation_data: (x, y) or a tf.data.Dataset; evaluated after every epoch.
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
        given = {"train": self._labelled(x, y, "x")}
        if validation_data is not None:
            x, y = (validation_data, None) if isinstance(validation_data, tf.data.Dataset) else _pair(validation_data)
            given["validation"] = self._labelled(x, y, "validation x")
        per_epoch = max(1, math.ceil(len(given["train"]) / max(1, batch_size)))
        settings: Json = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
        settings |= {"log_every": min(10, per_epoch)} | train
        try:
            config = FinetuneConfig(self._config, self._data(given["train"]), TrainConfig(**settings))
        except TypeError as error:
            raise ConfigError(f"{error}; fit takes the fields of TrainConfig") from None
        with (
            tempfile.TemporaryDirectory() if directory is None else contextlib.nullcontext(directory) as folder,
            forgetting_custom_gradients(),
            remedy("choose another directory, or remove this one"),
            contextlib.nullcontext() if verbose else quiet.silence(),
        ):
            try:
                results = finetuning.finetune(
                    config,
                    InMemory(given),
                    self._path,
                    os.fspath(folder),
                    _strategy(),
                    reporter=FileReporter() if directory else SILENT,
                )
            except Interrupted as stop:
                raise KeyboardInterrupt(f"stopped at step {stop.step}; fit resumes if it has a directory") from None
            self._load(*model_directory.load_fine_tuned(os.fspath(folder)))
        self._results = results
        return _history(results, epochs)

    def predict(self, x: Values, *, batch_size: int = 32) -> list[Json]:
        """Predicts for each input a dict of plain Python values; see the class for its contents."""
        examples = self._examples(_listed(x, "x", self._element_rank), None, "x")
        return [self._answer(prediction) for _, prediction in self._predict(examples, batch_size)]

    def evaluate(self, x: Values, y: Values = None, *, batch_size: int = 32) -> Metrics:
        """Evaluates the model: loss, the task's metrics and its official metrics."""
        task, model = self._trained()
        split = finetuning.Split(InMemory({"validation": self._labelled(x, y, "x")}), "validation")
        split.prepare(task)
        with forgetting_custom_gradients():
            return finetuning.Evaluation(task, model, split, batch_size, _strategy())()

    @functools.cached_property
    def _predict(self) -> Callable[[Iterable[Any], int], Iterator[tuple[Any, Json]]]:
        return finetuning.predictor(*self._trained(), _strategy())

    def _labelled(self, x: Values, y: Values, name: str) -> list[Any]:
        """Examples with labels."""
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
        return self._examples(inputs, labels, name)

    def _listed_labels(self, y: Values, name: str) -> list[Any]:
        return _listed(y, f"the labels of {name}")

    def _examples(self, inputs: list[Any], labels: list[Any] | None, name: str) -> list[Any]:
        columns = itertools.repeat(None) if labels is None else labels
        return [
            self._example(value, label, f"{name}[{index}]", labelled=labels is not None)
            for index, (value, label) in enumerate(zip(inputs, columns, strict=False))
        ]

    @abc.abstractmethod
    def _example(self, value: Any, label: Any, location: str, *, labelled: bool) -> Any:
        """An example of the task from an input and its label."""

    def _data(self, examples: list[Any]) -> ExampleData:
        """Saved with the model: the format of files with such examples."""
        return self._format

    def _answer(self, prediction: Json) -> Json:
        """A prediction as `predict` returns it."""
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in prediction.items()}
        return {name: value for name, value in plain.items() if name != "id"}


class _TextModel(_FineTuned):
    """A model of texts or pairs of texts."""

    def _example(self, value: Any, label: Any, location: str, *, labelled: bool) -> TextExample:
        texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, tuple | list) else ()
        if not 1 <= len(texts) <= 2 or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{location} is {_shown(value)}; expected a text, or a pair of texts")
        return TextExample(location, texts, self._label(label, location) if labelled else None, location)

    @abc.abstractmethod
    def _label(self, label: Any, location: str) -> Any:
        """A label as in `TextExample`."""

    def _data(self, examples: list[Any]) -> ExampleData:
        second = "second_text" if len(examples[0].texts) == 2 else ""
        return ExampleData(text="text", second_text=second, label="label")


class TextClassifier(_TextModel):
    """Classifies texts, or pairs of texts given as tuples.

    Labels are strings or integers. `predict` returns the label and the probability of each label; labels that are the
    numbers 0 to n - 1 are returned as integers.

    Examples:
        >>> path = "hf://google/bert_uncased_L-2_H-128_A-2"
        >>> classifier = bert_tf.TextClassifier.from_pretrained(path)
        >>> classifier.fit(texts, labels, validation_data=(dev_texts, dev_labels))
        >>> classifier.predict(["A film to remember."])
        [{'label': 'positive', 'probabilities': {'negative': 0.02, 'positive': 0.98}}]
    """

    _kind = Classification

    def _label(self, label: Any, location: str) -> str:
        return _class(label, location)

    def _answer(self, prediction: Json) -> Json:
        if tuple(self.task.labels) != tuple(map(str, range(len(self.task.labels)))):
            return super()._answer(prediction)
        shares = {int(label): share for label, share in prediction["probabilities"].items()}
        return {"label": int(prediction["label"]), "probabilities": shares}


class MultiLabelClassifier(_TextModel):
    """Predicts any number of labels for a text or a pair of texts.

    The labels of a text are a list of strings; a matrix of 0 and 1 (NumPy or a data frame) has a column per label,
    named by the setting `labels`, the columns of the data frame, or else by its number. `predict` returns labels, those
    above the threshold, and the probability of each.
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

    def _label(self, label: Any, location: str) -> tuple[str, ...]:
        if not isinstance(label, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in label):
            raise DataError(
                f"the labels of {location} are {_shown(label)}; expected a list of strings, or all labels as a NumPy "
                "matrix of 0 and 1"
            )
        return tuple(sorted(label))

    def _listed_labels(self, y: Values, name: str) -> list[Any]:
        columns = _columns(y)
        if not columns:
            return super()._listed_labels(y, name)
        labels = tuple(self._config.labels or (self.task.labels if self._loaded else columns))
        matrix = y.to_numpy() if hasattr(y, "columns") else np.asarray(y)
        if hasattr(y, "columns") and sorted(columns) == sorted(labels):
            matrix = matrix[:, [columns.index(label) for label in labels]]
        elif hasattr(y, "columns") or matrix.shape[1] != len(labels):
            found = ", ".join(columns) if hasattr(y, "columns") else f"{len(columns)} columns"
            raise DataError(f"the labels of {name} are {found}; expected {', '.join(labels)}")
        if not np.isin(matrix, (0, 1)).all():
            raise DataError(f"the labels of {name} hold other values than 0 and 1")
        return [tuple(itertools.compress(labels, row)) for row in matrix]


class TextRegressor(_TextModel):
    """Predicts a number for a text or a pair of texts. `predict` returns its value."""

    _kind = Regression

    def _label(self, label: Any, location: str) -> float:
        if isinstance(label, bool) or not isinstance(label, int | float) or not math.isfinite(label):
            raise DataError(f"the label of {location} is {_shown(label)}; expected a number")
        return float(label)


class TokenClassifier(_FineTuned):
    """Tags words: named entities, parts of speech.

    An input is a list of words; `predict` also takes a text, which it splits into words. A label is a list of tags, one
    per word; tags such as B-PER and I-PER form entities. `predict` returns text, words, tags, a score per word and, for
    entities, spans: text, label, start and end in characters of the text, and score.
    """

    _kind = Tagging
    _format = ExampleData(format="conll")
    _element_rank = 1

    def _example(self, value: Any, label: Any, location: str, *, labelled: bool) -> TaggedExample:
        if isinstance(value, str) and not labelled:
            return TaggedExample(location, value, None, None, None, None, location)
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) and word for word in value):
            raise DataError(f"{location} is {_shown(value)}; expected a list of words")
        if labelled and (not isinstance(label, list | tuple) or len(label) != len(value)):
            raise DataError(f"the label of {location} is {_shown(label)}; expected {len(value)} tags, one per word")
        tags = [_class(tag, location) for tag in label] if labelled else None
        return tagged(location, value, tags, None, location)


class QuestionAnswerer(_FineTuned):
    """Answers questions with a part of a text, as in SQuAD.

    An input is a pair (question, context) or a dict with these keys. A label is the answer: a text, of which the first
    occurrence in the context counts; a dict of the lists `text` and `answer_start`, as in SQuAD; or None for a question
    without an answer (with the setting unanswerable=True). `predict` returns the answer, its start and end in
    characters of the context, its probability, and the best candidates as `nbest`.
    """

    _kind = QuestionAnswering

    def _example(self, value: Any, label: Any, location: str, *, labelled: bool) -> QuestionExample:
        question, context = _fields(value, ("question", "context"), location)
        if not isinstance(question, str) or not isinstance(context, str):
            raise DataError(f"{location} is {_shown(value)}; expected the texts question and context")
        return QuestionExample(location, question, context, self._answers(label, context, location, labelled), location)

    def _answers(self, label: Any, context: str, location: str, labelled: bool) -> tuple[Answer, ...] | None:
        if not labelled:
            return None
        if isinstance(label, Mapping):
            texts, starts = _fields(label, ("text", "answer_start"), f"the label of {location}")
            lists = isinstance(texts, list | tuple) and isinstance(starts, list | tuple) and len(texts) == len(starts)
            pairs = list(zip(texts, starts, strict=True)) if lists else []
            if not lists or not all(isinstance(text, str) and isinstance(start, int) for text, start in pairs):
                raise DataError(f"the label of {location} is {_shown(label)}; expected lists of texts and of starts")
            answers = [Answer(text, start) for text, start in pairs]
        elif label is None or isinstance(label, str):
            found = context.find(label) if label else -1
            answers = [Answer(label, found if found >= 0 else None)] if label else []
        else:
            raise DataError(f"the label of {location} is {_shown(label)}; expected a text, None, or a dict as in SQuAD")
        for text, start, _ in answers:
            if start is not None and context[start : start + len(text)] != text:
                raise DataError(f"the label of {location} has {text!r} at {start}, where the context has another text")
        if not answers and not self._config.unanswerable:
            raise DataError(f"{location} has no answer; expected one, or from_pretrained(..., unanswerable=True)")
        return tuple(answers)

    def _data(self, examples: list[Any]) -> ExampleData:
        return ExampleData(format="squad2" if self._config.unanswerable else "squad")


class MultipleChoice(_FineTuned):
    """Chooses the text that fits a context.

    An input is a tuple (context, choices) or (context, question, choices), or a dict with these keys; a label is the
    index of the right choice. `predict` returns choice (an index), label (its text) and the probability of each choice.
    """

    _kind = MultipleChoiceTask
    _format = ExampleData(format="choices")

    def _example(self, value: Any, label: Any, location: str, *, labelled: bool) -> ChoiceExample:
        if isinstance(value, Mapping):
            value = {"question": ""} | dict(value)
        elif isinstance(value, list | tuple) and len(value) == 2:
            value = (value[0], "", value[1])
        context, question, choices = _fields(value, ("context", "question", "choices"), location)
        texts = [context, question, *choices] if isinstance(choices, list | tuple) else []
        if len(texts) < 4 or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{location} is {_shown(value)}; expected a context, a question and at least two choices")
        if labelled and (type(label) is not int or label not in range(len(choices))):
            raise DataError(
                f"the label of {location} is {_shown(label)}; expected an index from 0 to {len(choices) - 1}"
            )
        return ChoiceExample(location, context, question, tuple(choices), label if labelled else None, location)


class MaskedLM(_Model[MaskedLMTask]):
    """A pre-trained masked language model, which fills in [MASK]."""

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
        listed = _texts(texts)
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
    """

    def __init__(self, path: str, config: EmbeddingConfig, dtype: str) -> None:
        check_inference_dtype(dtype)
        self._path, self._config = path, config
        self._embedder = self._open()
        infer_in(dtype, self._embedder.model)
        self.encoder, self.tokenizer = encoder_of(self._embedder.model), self._embedder.tokenizer

    @classmethod
    def from_pretrained(
        cls,
        path: StrPath,
        *,
        pool: str = "mean",
        layers: Sequence[int] = (-1,),
        max_length: int = 0,
        dtype: str = "float32",
    ) -> Self:
        """Opens a model.

        Args:
            path: a model in any format that `bert_tf.load` reads, or "hf://OWNER/NAME".
            pool: how the vectors of tokens are pooled: "mean", "cls" or "max".
            layers: the layers whose states are summed; 0 for the embeddings, -1 for the last layer.
            max_length: tokens per window of a long text; 0 for the model's maximum.
            dtype: as for `TextClassifier.from_pretrained`.
        """
        return cls(_absolute(path), EmbeddingConfig("sentence", pool, FeatureConfig(tuple(layers)), max_length), dtype)

    def _open(self) -> Embedder:
        encoder, tokenizer = load(self._path)
        if tokenizer is None:
            raise DataError(f"{self._path}: {_NO_VOCABULARY}")
        return Embedder(encoder, tokenizer, self._config)

    def encode(self, texts: Values, *, batch_size: int = 32) -> Array:
        """Computes vectors, in batches of texts of similar length.

        Returns:
            float32 [texts, size].
        """
        examples = [
            TaggedExample(str(index), text, None, None, None, None, f"texts[{index}]")
            for index, text in enumerate(_texts(texts))
        ]
        vectors = [values["vector"] for _, values in extract(self._embedder, examples, batch_size, progress=False)]
        return np.stack(vectors) if vectors else np.zeros([0, self._embedder.model.output_shape[-1]], np.float32)

    def export(self, path: StrPath, *, check: bool = True, optimize: str = "none") -> Exported:
        """Exports a SavedModel that takes text and returns vectors; arguments as for `TextClassifier.export`."""
        with on_cpu():  # an export is compared with the model on the CPU
            embedder = self._open()
        return export(embedder, embedder.model, os.fspath(path), check=check, optimize=optimize)


def _listed(values: Values, name: str, element_rank: int = 0) -> list[Any]:
    """Values as a list of Python values; rows of a matrix and of a data frame become lists.

    Args:
        name: for errors.
        element_rank: of the tensors in an unbatched tf.data.Dataset.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {_shown(values)}; expected a list")
    if isinstance(values, tf.data.Dataset):
        if values.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ConfigError(f"{name} is an endless tf.data.Dataset; leave repeat() out")
        ranks = [spec.shape.rank for spec in tf.nest.flatten(values.element_spec)]
        batched = all(rank > element_rank for rank in ranks)
        return [_plain(value) for value in (values.unbatch() if batched else values).as_numpy_iterator()]
    if hasattr(values, "to_numpy"):  # pandas
        values = values.to_numpy()
    return [_plain(value) for value in (values.tolist() if isinstance(values, np.ndarray) else values)]


def _plain(value: Any) -> Any:
    """A value of NumPy, or a container of such values, as plain Python."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
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
    path = os.fspath(path)
    return path if path.startswith(SCHEME) else os.path.abspath(path)


def _strategy() -> tf.distribute.Strategy:
    """The strategy in whose scope this runs, else the best one for this machine."""
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else strategy.create()


def _texts(values: Values) -> list[str]:
    texts = _listed(values, "texts")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"texts[{index}] is {_shown(text)}; expected a text")
    return texts


def _class(label: Any, location: str) -> str:
    """A label or a tag as text."""
    if isinstance(label, int):
        return str(int(label))  # True is 1
    if not isinstance(label, str):
        raise DataError(f"the label of {location} is {_shown(label)}; expected a string or an integer")
    return label


def _fields(value: Any, names: Sequence[str], location: str) -> list[Any]:
    """The values of a dict with these keys, or of a tuple of this length."""
    if isinstance(value, Mapping) and set(names) <= value.keys():
        return [value[name] for name in names]
    if not isinstance(value, list | tuple) or len(value) != len(names):
        raise DataError(
            f"{location} is {_shown(value)}; expected {', '.join(names)}: a tuple, or a dict with these keys"
        )
    return list(value)


def _shown(value: Any) -> str:
    """A short description of a value for errors."""
    return f"{type(value).__name__} {repr(value)[:60]}"


def _history(results: Json, epochs: float) -> keras.callbacks.History:
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
