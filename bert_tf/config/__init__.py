"""Settings of models, data and training: typed, checked, and saved next to the results."""

import dataclasses
from typing import Annotated, Any, Self, TypedDict

from bert_tf.config.data import ExampleData as ExampleData
from bert_tf.config.data import PretrainingData as PretrainingData
from bert_tf.config.data import TokenizerConfig as TokenizerConfig
from bert_tf.config.data import named_corpora
from bert_tf.config.embeddings import DenseConfig as DenseConfig
from bert_tf.config.embeddings import EmbeddingConfig as EmbeddingConfig
from bert_tf.config.encoder_distillation import EncoderDistillation as EncoderDistillation
from bert_tf.config.model import BertConfig as BertConfig
from bert_tf.config.model import FeatureConfig as FeatureConfig
from bert_tf.config.task_distillation import TaskDistillation as TaskDistillation
from bert_tf.config.tasks import *  # noqa: F403  # the config of each task
from bert_tf.config.tasks import TaskConfig as TaskConfig
from bert_tf.config.train import GridConfig as GridConfig
from bert_tf.config.train import PhaseConfig as PhaseConfig
from bert_tf.config.train import TrainConfig as TrainConfig
from bert_tf.config.values import check_fields, shown
from bert_tf.config.values import from_dict as from_dict
from bert_tf.config.values import to_dict as to_dict
from bert_tf.errors import ConfigError
from bert_tf.types import Json


@dataclasses.dataclass
class PretrainConfig:
    """A pre-training run.

    Attributes:
        input: glob patterns of text files, or folders of prepared shards, separated by commas; not read if
            data.languages is set.
        validation: the same for validation text, with the names of the languages if data.languages is set; "" for none.
        tokenizer: the vocabulary and its settings.
        model: the architecture; vocab_size 0 means the size of the vocabulary.
        data: how sequences are built and masked.
        distillation: what is learned from a teacher, for the objectives that need one.
        train: optimization, checkpoints and logging.
        callbacks: "module:function", which gets the directory of a run and returns its Keras callbacks; "" for none.
    """

    input: str = ""
    validation: str = ""
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    model: BertConfig = dataclasses.field(default_factory=BertConfig)
    data: PretrainingData = dataclasses.field(default_factory=PretrainingData)
    distillation: EncoderDistillation = dataclasses.field(default_factory=EncoderDistillation)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    callbacks: str = ""

    def check(self) -> Self:
        """Raises ConfigError for invalid settings; `model` is checked when the size of the vocabulary is known."""
        check_fields(self)
        for part in (self.tokenizer, self.data, self.train):
            part.check()
        self.distillation.check(self.data.objective)
        if self.data.languages and self.validation:
            known = named_corpora(self.data.languages, "data.languages")
            if unknown := named_corpora(self.validation, "validation").keys() - known.keys():
                raise ConfigError(
                    f"validation names {shown(min(unknown))}, which data.languages does not have; expected some of "
                    f"{', '.join(known)}"
                )
        for number, phase in enumerate(self.train.phases):
            try:
                self.data.in_phase(phase).check()
            except ConfigError as error:
                raise ConfigError(f"in train.phases[{number}]: {error}") from None
        return self


@dataclasses.dataclass
class FinetuneConfig:
    """A fine-tuning run.

    Attributes:
        task: one of the configs in `bert_tf.config.tasks`, such as ClassificationConfig.
        data: the examples.
        train: optimization, checkpoints and logging; phases are not supported.
        search: whether to try all combinations in `grid` and keep the one that is best on the validation set.
        grid: the values to try.
        distillation: what is learned from a teacher (`python -m bert_tf.distill`); None without one.
        callbacks: as in `PretrainConfig`.
    """

    task: object
    data: ExampleData = dataclasses.field(default_factory=ExampleData)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    search: bool = False
    grid: GridConfig = dataclasses.field(default_factory=GridConfig)
    distillation: TaskDistillation | None = None
    callbacks: str = ""

    def check(self) -> Self:
        """Raises ConfigError for invalid settings, except those of a task that is not one of ours."""
        check_fields(self)
        if isinstance(self.task, TaskConfig):
            self.task.check()
        for part in (self.data, self.train, self.grid, self.distillation):
            if part:
                part.check()
        if self.train.phases:
            raise ConfigError("train.phases is set, but only pre-training has phases; leave it out")
        self._check_search()
        return self

    def _check_search(self) -> None:
        if self.grid != GridConfig() and not self.search:
            raise ConfigError("grid is set, but search is off; add --config.search, or leave grid out")
        if self.search and self.grid.epochs and self.train.steps:
            raise ConfigError(
                f"search tries several epochs, but train.steps is {self.train.steps} and overrides them; set "
                "train.steps=0, or grid.epochs=()"
            )
        if self.search and self.grid == GridConfig((), (), ()):
            raise ConfigError("search has nothing to try: grid has no values; give it some, e.g. grid.epochs=(2.0,3.0)")


class _Change(TypedDict):
    step: int
    changes: dict[str, list[Any]]


class FlashAttention(TypedDict):
    """Whether cuDNN computes the attention of a run, and why, or why not."""

    setting: str
    used: bool
    reason: str


class RunRecord(TypedDict, total=False):
    """run.json, and the same part of results.json. Other keys are compared like these when a run resumes."""

    program: str
    config: Json
    computes_in: Annotated[str, {"choices": ("float32", "mixed_bfloat16", "mixed_float16")}]
    jit_compile: bool
    flash_attention: FlashAttention
    inputs: Json
    skipped: Json | int
    changes: list[_Change]
