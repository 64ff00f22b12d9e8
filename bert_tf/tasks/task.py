"""A task: codec, objective and, if it is fine-tuned, benchmark; and how it is saved with its model."""

import abc
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypedDict

import keras

from bert_tf.config import BertConfig, EmbeddingConfig, ExampleData, to_dict
from bert_tf.config.tasks import TaskConfig, check_labels, check_weights
from bert_tf.config.values import Rule, annotations, misfit, restored
from bert_tf.errors import ConfigError
from bert_tf.inputs.datasets.examples import Labels, ReadReport
from bert_tf.inputs.datasets.sources import metrics_of
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks.benchmark import Benchmark
from bert_tf.tasks.codec import Codec
from bert_tf.tasks.objective import Objective
from bert_tf.tasks.signatures import Served
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Json, TfFunction, Writer


class TaskDescription(TypedDict):
    """A task as saved with its model: its `name` and `settings()`."""

    name: str
    settings: Json


class Task(abc.ABC):
    """Base class of all tasks. To add one, write a subclass in a new file and list it in `tasks/__init__.py`.

    A task that needs a new head adds its builder to `model/heads.py` and its row to `model/head_table.py`.

    Attributes:
        name: the task's name in configs and saved models.
        tokenizer: tokenizes its texts.
        codec: from inputs to answers: what an export needs.
        objective: what a training step needs.
        monitor: name of the metric that selects the best checkpoint.
        mode: "max" if a higher `monitor` is better, else "min".
        vectors: how the model computes vectors of sentences, if it is trained for these.
        problem_type: what Transformers calls a classifier for the task; "" if it has no name for it.
    """

    name: str
    problem_type: ClassVar[str] = ""
    tokenizer: BaseTokenizer
    codec: Served
    objective: Objective
    monitor: str = "loss"
    mode: str = "min"
    vectors: EmbeddingConfig | None = None

    @abc.abstractmethod
    def settings(self) -> Json:
        """JSON-ready values from which `from_settings` restores the task; saved with the model."""

    @classmethod
    @abc.abstractmethod
    def arguments(cls, settings: Json) -> Json:
        """Keyword arguments of the class from `settings()`, or the subset that is known of a converted checkpoint.

        Raises:
            ConfigError: a setting is unknown, or its value is invalid.
        """

    @classmethod
    def from_settings(cls, settings: Json, tokenizer: BaseTokenizer) -> Self:
        """Restores the task from its `settings()`; raises as `arguments`."""
        create: Callable[..., Self] = cls
        return create(tokenizer, **cls.arguments(settings))

    @classmethod
    def head(cls, settings: Json) -> str:
        """Name of the head of a model with these settings, a key of `model.head_table.HEADS`. Default: the task's name.

        Args:
            settings: as `settings()` returns, or the subset that is known of a converted checkpoint.
        """
        return cls.name

    def build(self, encoder: BertEncoder) -> keras.Model:
        """Builds the model on `encoder`: a dict of features in, a dict of outputs out."""
        return self.objective.build(encoder)

    def saved(self, config: BertConfig) -> dict[str, tuple["Task | None", BertConfig]]:
        """The models that a run writes: subfolder of its directory -> (task, config of the encoder). Without a
        task, the encoder alone.

        Default: the task itself, in the directory ("").

        Args:
            config: of the encoder that `build` was given. The variables that only the model in the subfolder NAME has
                are NAME/... in the model that `build` returns.
        """
        return {"": (self, config)}

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        """Signatures of the exported model, by name (see `tasks.signatures`)."""
        return self.codec.signatures(model)


class _Settings(TypedDict):
    max_length: Annotated[int, Rule(at_least=1, at_most=1_000_000)]


class PretrainingTask(Task):
    """A task learned from text without labels.

    Args:
        tokenizer: tokenizes the texts.
        max_length: tokens per input, special tokens included.
    """

    def __init__(self, tokenizer: BaseTokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length

    def settings(self) -> Json:
        return {"max_length": self.max_length}

    @classmethod
    def arguments(cls, settings: Json) -> Json:
        if wrong := misfit(settings, _Settings, "task.settings", in_json=True):
            raise ConfigError(wrong)
        return {"max_length": settings["max_length"]}


@dataclasses.dataclass
class State:
    """What a task learns from examples besides weights; saved with the model's config.

    If a name is also a field of the config (`labels`, `class_weights`), the learned value wins. The defaults are for
    those that the settings of a converted model lack.
    """


class FineTuningTask(Task):
    """A task learned from labelled examples.

    Args:
        tokenizer: tokenizes the texts.
        config: an instance of `Config`; None for its defaults.
        data: saved with the model, so that evaluation reads the same kind of files.
        **state: fields of its state.

    Attributes:
        Config: class of the task's settings; `FinetuneConfig.task` is an instance.
        State: class of its state.
        state: what it has learned; the parts share it.
        example: class of its examples, e.g. TextExample.
        benchmark: judges predictions, by the metrics of the data set.
        meanings: settings that say what the outputs of the head mean, with the value of models that have none: training
            goes on with the head of a checkpoint that has the same.
        continues: names of other tasks with whose heads training goes on.
    """

    meanings: ClassVar[Mapping[str, Any]] = types.MappingProxyType(
        {"labels": None, "intents": None, "activation": "linear"}
    )
    continues: ClassVar[tuple[str, ...]] = ()
    Config: ClassVar[type[TaskConfig]]
    State: ClassVar[type[State]] = State
    example: ClassVar[type[Any]]
    codec: Codec

    def __init__(
        self, tokenizer: BaseTokenizer, config: Any = None, data: ExampleData | None = None, **state: Any
    ) -> None:
        self.tokenizer = tokenizer
        self.config: Any = self.Config() if config is None else config
        self.data = ExampleData() if data is None else data
        self.state: Any = self.State(**state)
        self._assemble()

    def _assemble(self) -> None:
        """Makes the parts, from the config, the data and the state."""
        self.codec, self.objective, self.benchmark = self._parts(metrics_of(self.data))
        self.monitor, self.mode = self.benchmark.monitor, self.benchmark.mode

    @abc.abstractmethod
    def _parts(self, metrics: str) -> tuple[Any, Objective, Benchmark[Any]]:
        """Codec, objective and benchmark; `metrics` as for `Benchmark`."""

    @classmethod
    def learn(
        cls, tokenizer: BaseTokenizer, config: Any, data: ExampleData, examples: list[Any], labels: Labels | None
    ) -> Self:
        """Creates a new task for training: learns its state, and checks that it can learn from the examples.

        Args:
            tokenizer, data: as for the class.
            config: the checked config, of the class `Config`.
            examples: the training examples.
            labels: the labels that the format defines, as `Source.labels` returns.
        """
        task = cls(tokenizer, config, data)
        task._learn(examples, labels)
        task._assemble()
        return task

    def _learn(self, examples: list[Any], labels: Labels | None) -> None:
        """Sets the state, and what the data decides of the config. Default: nothing.

        Args:
            examples, labels: as for `learn`.
        """

    def replaced(self, *, config: Any = None, data: ExampleData | None = None, **state: Any) -> Self:
        """The task with another config, other data, or other values in its state."""
        return type(self)(self.tokenizer, config or self.config, data or self.data, **vars(self.state) | state)

    def check(self, examples: list[Any], read_report: ReadReport) -> None:
        """Adds to the report what the task will repair in labelled examples, or cannot use. Default: nothing."""

    def writers(self) -> dict[str, Writer]:
        """File formats of the predictions: those of the codec and of the benchmark."""
        return self.codec.writers() | self.benchmark.writers()

    def settings(self) -> Json:
        state = dataclasses.asdict(self.state)
        # Through JSON, so that values are as they will be read back: tuples become lists.
        return json.loads(json.dumps(to_dict(self.config) | state | {"data": to_dict(self.data)}))

    @classmethod
    def arguments(cls, settings: Json) -> Json:
        settings = dict(settings)
        data = restored(ExampleData, settings.pop("data", {}), "task.settings.data")
        names = [field.name for field in dataclasses.fields(cls.State)]
        state = {name: settings.pop(name) for name in names if name in settings}
        # The limits are those of the config field of that name, if any.
        limited, kinds = annotations(cls.Config), typing.get_type_hints(cls.State)
        for name, value in state.items():
            kind, rule = limited.get(name) or (kinds[name], {})
            if wrong := misfit(value, kind, f"task.settings.{name}", rule, in_json=True):
                raise ConfigError(wrong)
        if "labels" in state:
            check_labels(state["labels"] or [""], "one or more, each once")
            check_weights(state.get("class_weights", ()), state["labels"])
        return {"config": restored(cls.Config, settings, "task.settings"), "data": data} | state
