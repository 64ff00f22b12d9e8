"""Base classes of the models of the Python API."""

import abc
import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import keras
import tensorflow as tf

from bert_tf import quiet
from bert_tf.api.plain_values import (
    Values,
    integer,
    is_missing,
    listed,
    pair_of,
    plain,
    train_settings,
)
from bert_tf.checkpoints import directory as model_directory
from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.run_files import RESULTS, read_results
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import ExampleData, FinetuneConfig, TaskDistillation, to_dict
from bert_tf.config.paths import unknown_field
from bert_tf.config.train import BatchSize, InferenceDtype
from bert_tf.config.values import checked_arguments, fitting
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.files import check_output, temporary_directory, text_path, write_json
from bert_tf.inference import portable
from bert_tf.inference.portable import ExportedFile
from bert_tf.inference.saved_model import Exported, export_run
from bert_tf.inference.session import ExportFormat, Optimization
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.formats import FORMATS
from bert_tf.inputs.datasets.kinds import KINDS
from bert_tf.inputs.datasets.sources import ROLES, Data, InMemory
from bert_tf.inputs.datasets.text_files import whole
from bert_tf.model.encoder import BertEncoder, encoder_of
from bert_tf.report.file_reporter import FileReporter
from bert_tf.tasks import TASKS
from bert_tf.tasks.task import FineTuningTask, Task
from bert_tf.text.base import BaseTokenizer
from bert_tf.training import strategy
from bert_tf.training.dtype import infer_in
from bert_tf.training.evaluation import Evaluation, Split, predictor
from bert_tf.training.reporter import SILENT
from bert_tf.training.runs.finetuning import FineTuningRun, Start
from bert_tf.training.runs.run import Place
from bert_tf.training.runs.task_distillation import TEXTS
from bert_tf.training.state.run_manifest import remedy
from bert_tf.training.state.signals import Interrupted
from bert_tf.training.tf_internals import forgetting_custom_gradients
from bert_tf.types import Json, Metrics, StrPath

Lines: TypeAlias = list[tuple[str, Json]]  # (location, object as in JSON lines) of each example
_Task = TypeVar("_Task", bound=Task)
# Endings of the names in results.json that are left out of Keras' History.
_NOT_METRICS = ("kind", "step", "phase", "mfu", "_seconds", "_per_second")


@checked_arguments
class Model(abc.ABC, Generic[_Task]):
    """A pre-trained or fine-tuned model of one kind of task.

    Attributes:
        tokenizer: its tokenizer.
    """

    _kind: ClassVar[type[Task]]  # models of this task, and of its subclasses, are loaded with their heads
    tokenizer: BaseTokenizer

    def __init__(self, path: str, checkpoint: Checkpoint, dtype: InferenceDtype) -> None:
        self._path, self.tokenizer, self._dtype = path, checkpoint.tokenizer_of_text(path), dtype
        self._loaded: tuple[_Task, keras.Model] | None = None
        self._results: Json = {}
        # Why the model cannot be used before `fit`, if it has a head.
        self._lacks = f"its head cannot be read ({checkpoint.report.no_head})" if checkpoint.report.no_head else ""
        if checkpoint.task and issubclass(TASKS.get(checkpoint.task["name"], Task), self._kind):
            self._load(*model_directory.task_and_model(checkpoint, path))
            self._results = read_results(path)

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
        results = os.path.join(path, RESULTS)
        if self._results:
            write_json(results, self._results)
        elif os.path.exists(results):
            os.remove(results)  # of another model

    def export(
        self,
        path: StrPath,
        *,
        format: ExportFormat = "saved_model",
        attention: bool = False,
        check: bool = True,
        optimize: Optimization = "none",
    ) -> Exported | ExportedFile:
        """Exports a SavedModel that takes text, as the next version in a directory for TF Serving; or another format.

        Args:
            path: directory of the served model, as for TF Serving's --model_base_path. For other formats, a new
                directory for the model and its tokenizer.
            format: "saved_model"; or "onnx" or "litert", which take token ids, for ONNX Runtime, Optimum and LiteRT.
            attention: adds a signature that returns tokens and attention probabilities to a SavedModel.
            check: compares the answers of the export with this model's, in a new process or the format's own runtime.
            optimize: "none", "bfloat16" (only in a SavedModel: half the size, and faster on processors that multiply in
                bfloat16), "int8" (a quarter of the size, and faster on x86 processors with VNNI or AMX) or "int4" (only
                in a SavedModel: a sixth of the size).
        """
        check_export(path, format, optimize)
        if attention and format != "saved_model":
            raise ConfigError(f"attention adds a signature to a SavedModel, and format is {format!r}; leave one out")
        # An export computes in float32 on the CPU, whatever this model does.
        with temporary_directory() as saved:
            self.save(saved)
            if format != "saved_model":
                return portable.export_run(saved, text_path(path), format, check=check, optimize=optimize)
            return export_run(saved, os.fspath(path), attention=attention, check=check, optimize=optimize)


@checked_arguments
class Trainable(abc.ABC):
    """Base class of what is trained on examples.

    `x` and `y` are lists, NumPy arrays, pandas columns, or other iterables of equal length; or `x` alone is a
    tf.data.Dataset of (input, label) pairs, or what `bert_tf.read` returns.
    """

    _kind: ClassVar[type[FineTuningTask]]
    _format: ClassVar[ExampleData]
    _config: Any  # of the class _kind.Config
    _inputs: ClassVar[str] = "single texts, or pairs of texts,"  # those of different formats
    _element_rank: ClassVar[int] = 0  # of the tensors of an input in an unbatched tf.data.Dataset
    _needs_labels: ClassVar[bool] = True
    _path: str
    _start: Start
    _results: Json

    def fit(
        self,
        x: Values,
        y: Values = None,
        *,
        validation_data: Any = None,
        epochs: float = 3.0,
        batch_size: BatchSize = 32,
        learning_rate: float | None = None,
        directory: StrPath | None = None,
        verbose: bool | int = True,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **train: Any,
    ) -> keras.callbacks.History:
        """Fine-tunes the pre-trained model, as `python -m bert_tf.finetune` does.

        Every call starts from the weights that `from_pretrained` opened, as scikit-learn's `fit` does, whatever has
        been saved in their place since. The fine-tuned model predicts in the `dtype` of `from_pretrained`, whatever
        number format was used in training.

        Args:
            x: inputs; see the class.
            y: their labels.
            validation_data: (x, y), or what `x` alone can be; evaluated after every epoch.
            epochs: passes over the data.
            batch_size: examples per update.
            learning_rate: peak of the schedule; None chooses it by the width of the model, 5e-5 for BERT-base.
            directory: keeps checkpoints, curves and the model; the same call resumes an interrupted run from there.
                None keeps nothing on disk.
            verbose: shows a progress bar and validation metrics.
            callbacks: Keras callbacks. An epoch is a pass over x; batches are reported with the points of the curves.
                `model.stop_training` ends the run; the learning rate is the schedule's.
            **train: other fields of `bert_tf.config.TrainConfig`, such as seed, dtype or patience.

        Returns:
            Keras' History: `history` maps each metric to a list with its value for every epoch, the validation metrics
            with the prefix "val_".
        """
        settings = train | {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
        given = {"train": self._labelled(x, y, "x")}
        if validation_data is not None:
            given["validation"] = self._both(validation_data, "validation x")
        return self._train(given, settings, directory, bool(verbose), callbacks)

    def _train(
        self,
        given: "dict[str, Lines | Data]",
        train: dict[str, Any],
        directory: StrPath | None,
        verbose: bool,
        callbacks: Sequence[keras.callbacks.Callback],
        distillation: TaskDistillation | None = None,
        make_run: Callable[..., FineTuningRun] = FineTuningRun,
    ) -> keras.callbacks.History:
        """`fit` on examples by role.

        Args:
            train: fields of TrainConfig.
            distillation: of the config.
            make_run: gets the arguments of `FineTuningRun`.
        """
        if directory is not None:
            check_output(directory, directory=True)
        settings = train_settings(train)
        if "log_every" not in train:
            examples = sum(len(one) for role, one in given.items() if role != "validation")
            settings.log_every = min(settings.log_every, math.ceil(examples / settings.batch_size))
        data = self._data(given["train"])
        if isinstance(given["train"], Data):  # the programs then find the same files
            read = {role: one.name(role) for role, one in given.items() if role in ROLES and isinstance(one, Data)}
            data = dataclasses.replace(data, **read)
        labelled = [one for role, one in given.items() if role != TEXTS]
        values = [self._data(one) for one in labelled if not isinstance(one, Data)]
        if any(one != values[0] for one in values):
            raise DataError(f"x and validation x differ; expected {self._inputs} in both")
        config = FinetuneConfig(self._config, data, settings, distillation=distillation)
        with (
            temporary_directory() if directory is None else contextlib.nullcontext(directory) as folder,
            forgetting_custom_gradients(),
            remedy("choose another directory, or remove this one"),
            contextlib.nullcontext() if verbose else quiet.silence(),
        ):
            reporter = FileReporter() if directory else SILENT
            place = Place(os.fspath(folder), current_strategy(), reporter=reporter, callbacks=callbacks)
            # Values name their parts as here, whatever the columns of a file beside them are called.
            source = InMemory(values[0] if values else data, self._kind.example, given)
            try:
                run = make_run(config, source, self._start if self._path else None, place)
                self._results = run.run()
            except Interrupted as stop:
                raise KeyboardInterrupt(f"stopped at step {stop.step}; fit resumes if it has a directory") from None
            self._take(run.trained)
        return history_of(self._results)

    @abc.abstractmethod
    def _take(self, trained: Checkpoint) -> None:
        """Becomes the model that a run has trained."""

    def _labelled(self, x: Values, y: Values, name: str) -> "Lines | Data":
        """Examples with labels."""
        if isinstance(x, Data):
            if y is not None:
                raise ConfigError(f"{name} is what read returned, which has the labels; leave y out")
            return self._read(x)
        if y is None and not self._needs_labels:
            inputs, labels = listed(x, name, self._element_rank), None
        elif isinstance(x, tf.data.Dataset) and y is None:
            pairs = listed(x, name, self._element_rank)
            if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
                raise DataError(f"{name} is a dataset of {x.element_spec}; expected pairs (input, label)")
            inputs, labels = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        elif y is None:
            raise ConfigError(f"{name} has no labels; give them as y, or give a tf.data.Dataset of (input, label)")
        else:
            inputs, labels = listed(x, name, self._element_rank), self._listed_labels(y, name)
        if labels is not None and len(inputs) != len(labels):
            raise DataError(f"{name} has {len(inputs)} inputs and {len(labels)} labels; expected one label per input")
        if not inputs:
            raise DataError(f"{name} is empty; expected at least one example")
        return self._lines(inputs, labels, name)

    def _both(self, data: Any, name: str) -> "Lines | Data":
        """Examples with labels from (x, y) or from what `x` alone can be."""
        alone = isinstance(data, tf.data.Dataset | Data) or not (self._needs_labels or isinstance(data, tuple))
        x, y = (data, None) if alone else pair_of(data)
        return self._labelled(x, y, name)

    def _unlabelled(self, x: Values, name: str) -> "Lines | Data":
        """Examples without labels."""
        return self._read(x) if isinstance(x, Data) else self._lines(listed(x, name, self._element_rank), None, name)

    def _read(self, data: Data) -> Data:
        """The data, if its examples are of this kind."""
        readable = (self._kind.example, *KINDS[self._kind.example].converts)
        if data.examples and type(data.examples[0]) not in readable:
            fitting = ", ".join(name for name, form in FORMATS.items() if form.example in readable)
            raise ConfigError(
                f"{data.where} was read as {data.format.format!r}, which is for another class than "
                f"{type(self).__name__}; for this one: {fitting}"
            )
        return data

    def _listed_labels(self, y: Values, name: str) -> list[Any]:
        return listed(y, f"the labels of {name}")

    def _lines(self, inputs: list[Any], labels: list[Any] | None, name: str) -> Lines:
        lines = []
        for index, value in enumerate(inputs):
            location = f"{name}[{index}]"
            line = self._input(value, location, labelled=labels is not None)
            if labels is not None and not is_missing(labels[index]):
                line |= self._gold(labels[index], line, f"the label of {location}")
            lines.append((location, line))
        return lines

    @abc.abstractmethod
    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        """An input as an object of JSON lines (`inputs.datasets.json_lines`), which is where its parts are checked."""

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        """The fields of JSON lines for the label of the input `line`."""
        return {"label": label}

    def _data(self, given: "Lines | Data") -> ExampleData:
        """Saved with the model: the format of files with such examples."""
        return given.format if isinstance(given, Data) else self._format_of(given)

    def _format_of(self, lines: Lines) -> ExampleData:
        """The format of files with such examples."""
        return self._format


@checked_arguments
class FineTuned(Model[FineTuningTask], Trainable):
    """Base class of the models for fine-tuning tasks; for `x` and `y` see `Trainable`."""

    _kind: ClassVar[type[FineTuningTask]]

    def __init__(self, path: str, checkpoint: Checkpoint, dtype: InferenceDtype, settings: Json) -> None:
        for name in settings.keys() - {field.name for field in dataclasses.fields(self._kind.Config)}:
            raise ConfigError(unknown_field(self._kind.Config, name, type(self).__name__))
        settings = {name: plain(value) for name, value in settings.items()}
        if "labels" in settings:
            given = fitting(listed(settings["labels"], "labels"), list[str | float | bool], "task.labels")
            labels = [integer(whole(label)) for label in given]  # as those of examples
            settings["labels"] = tuple(str(label) if isinstance(label, int) else label for label in labels)
        self._start = Start(path, checkpoint.lasting())
        super().__init__(path, self._start.checkpoint, dtype)
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
    def from_pretrained(cls, path: StrPath, *, dtype: InferenceDtype = "float32", **settings: Any) -> Self:
        """Opens a model.

        Args:
            path: a model in any format that `bert_tf.load` reads, or "hf://OWNER/NAME". If it was fine-tuned for this
                kind of task it can predict at once; otherwise call `fit`.
            dtype: number format of the encoder's matrix products in `predict` and `evaluate`: "float32", "bfloat16",
                "int8" (the rounding of an int8 export, for models fine-tuned with `quantization="int8"`), or "auto",
                which takes bfloat16 where the processor or GPU has it. With bfloat16, `model` and `encoder` are for
                inference only, and do not follow changes of their weights. What is saved stays float32.
            **settings: fields of the task's config, such as max_length.
        """
        path = absolute(path)
        return cls(path, open_with_warnings(path), dtype, settings)

    def _untrained(self, path: str, checkpoint: Checkpoint) -> Self:
        """A model of this class with the settings of this one."""
        model = type(self)(path, checkpoint, "float32", {})
        model._config = self.task.config
        return model

    def predict(self, x: Values, *, batch_size: BatchSize = 32) -> list[Json]:
        """Predicts for each input a dict of plain Python values; see the class for its contents."""
        given = self._unlabelled(x, "x")
        if not given:
            return []
        source = InMemory(self._data(given), self._kind.example, {"x": given})
        examples = list(source.examples(ReadReport(), "x", labelled=False))
        return [self._answer(prediction) for _, prediction in self._predict(examples, batch_size)]

    def evaluate(self, x: Values, y: Values = None, *, batch_size: BatchSize = 32) -> Metrics:
        """Evaluates the model: loss, the task's metrics and its official metrics."""
        task, model = self._trained()
        given = self._labelled(x, y, "x")
        source = InMemory(self._data(given), self._kind.example, {"validation": given})
        split = Split(source, "validation")
        split.prepare(task)
        with forgetting_custom_gradients():
            return Evaluation(task, model, split, batch_size, current_strategy())()

    @functools.cached_property
    def _predict(self) -> Callable[[Iterable[Any], int], Iterator[tuple[Any, Json]]]:
        return predictor(*self._trained(), current_strategy())

    @contextlib.contextmanager
    def _configured(self, **settings: Any) -> Iterator[None]:
        """Other settings of the task for one call."""
        before = self._config
        self._config = dataclasses.replace(before, **settings)
        try:
            yield
        finally:
            self._config = before

    def _take(self, trained: Checkpoint) -> None:
        self._load(*model_directory.task_and_model(trained, self._path))

    def _answer(self, prediction: Json) -> Json:
        """A prediction as `predict` returns it."""
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in prediction.items()}
        return {name: value for name, value in plain.items() if name != "id"}


def absolute(path: StrPath) -> str:
    """The path, whatever the working directory becomes."""
    text = text_path(path)
    return text if "://" in text else os.path.abspath(text)


def current_strategy() -> tf.distribute.Strategy:
    """The strategy in whose scope this runs, else the best one for this machine."""
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else strategy.create()


def check_export(path: StrPath, format: str, optimize: str) -> None:
    check_output(path, directory=True)
    if format != "saved_model":
        portable.check_portable(text_path(path), format, optimize)


def history_of(results: Json) -> keras.callbacks.History:
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
