"""`Checkpoint`: a model on disk in any format, the common form that all formats are read into and written from."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import keras

from bert_tf.checkpoints.tensor import Tensor, as_dtype, lasting
from bert_tf.checkpoints.weight_map import WeightMap, read_mapped
from bert_tf.config import BertConfig, EmbeddingConfig, FeatureConfig, from_dict
from bert_tf.config.values import shown
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import HEADS, Labels, Reads, build, variable_shapes
from bert_tf.model.mode import Mode, computing
from bert_tf.model.ranges import Ranges
from bert_tf.tasks import TASKS
from bert_tf.tasks.task import Task
from bert_tf.text import BaseTokenizer
from bert_tf.types import Json, Shapes, StrPath


def head_of(task: Mapping[str, Any]) -> str | None:
    """The head of a task {"name", "settings"}, a key of `model.head_table.HEADS`; None for an unknown task."""
    kind = TASKS.get(task["name"])
    head = kind.head(task.get("settings", {})) if kind else task["name"]  # heads of other formats have no task here
    return head if head in HEADS else None


def foreign_config(values: Mapping[str, Any], names: Mapping[str, str], file: str) -> BertConfig:
    """BertConfig of another project's settings; DataError for invalid ones.

    Args:
        values: by field of BertConfig.
        names: field to its name in `file`, for errors.
        file: path, for errors.
    """
    try:
        return BertConfig(**values).check()
    except BertTfError as error:
        text = re.sub(r"(?:model\.)?(\w+)", lambda match: names.get(match[1], match[1]), str(error))
        raise DataError(f"{file}: {text}") from None


def check_width(settings: Mapping[str, Any], file: str) -> None:
    """Raises DataError for an `embedding_size` of 0, which is this project's value for embeddings without projection.

    Args:
        settings: with the width of the embeddings, as another project writes it.
        file: path, for errors.
    """
    if settings["embedding_size"] == 0:
        raise DataError(f"{file}: embedding_size is {settings['embedding_size']!r}; expected a whole number from 1")


ELSEWHERE = "; --format=bert_tf holds every model"


def check_writable(checkpoint: "Checkpoint", library: str, heads: Collection[str | None], **required: object) -> None:
    """Raises ConfigError for a head or a setting that `library` does not have.

    Args:
        checkpoint: to write.
        library: its name.
        heads: keys of `model.head_table.HEADS` that it has.
        **required: values of settings, besides those of every encoder like BERT's.
    """
    if checkpoint.head and checkpoint.head not in heads:
        raise ConfigError(f"the head is {checkpoint.head}, which {library} does not have{ELSEWHERE}")
    config = checkpoint.config
    for field, size in {"heads_per_layer": config.num_heads, "intermediate_sizes": config.intermediate_size}.items():
        sizes = getattr(config, field)
        if set(sizes) - {size}:
            raise ConfigError(f"model.{field} is {shown(sizes)}, and in {library} each layer has {size}{ELSEWHERE}")
    for field, value in (BertConfig().parts | required).items():
        ours = getattr(config, field)
        if ours != value:
            raise ConfigError(f"model.{field} is {ours!r}, and in {library} it is {value!r}{ELSEWHERE}")


@dataclasses.dataclass(frozen=True)
class Report:
    """What was guessed, made up or left out when a model was read, changed or written.

    Attributes:
        warnings: guesses, defaults and made-up values.
        unused_tensors: names of the tensors that were not read or not written, each with the reason.
        no_head: why the head of the model cannot be read; "" if it can, or if there is none.
        no_tokenizer: why a tokenizer that lies beside it cannot be read, and what to do; "" if it can, or if there is
            none.
        no_vectors: the reason why the vectors that it was published for cannot be computed here; "" if they can.
    """

    warnings: tuple[str, ...] = ()
    unused_tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    no_head: str = ""
    no_tokenizer: str = ""
    no_vectors: str = ""

    def __add__(self, other: "Report") -> "Report":
        """Both, one after the other."""
        return Report(
            (*self.warnings, *other.warnings),
            {**self.unused_tensors, **other.unused_tensors},
            self.no_head or other.no_head,
            self.no_tokenizer or other.no_tokenizer,
            self.no_vectors or other.no_vectors,
        )


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model on disk, in any format.

    Attributes:
        tensors: Tensors by variable path.
        task: {"name", "settings"} as in saved models; None for a bare encoder.
        tokenizer: None if the checkpoint has none that this version reads.
        vectors: how vectors of sentences are computed, if it was published for them; their layers are in `tensors`.
        moments: Adam's, under "PATH/m" and "PATH/v"; empty if the checkpoint has none.
        step: number of updates done, if known.
        ranges: of an encoder that was fine-tuned for int8, by path (`variables.range_shapes`); {} of others. They suit
            these weights only.
        source_metadata: {"format", ...} with the settings of a foreign format that have no equivalent here, kept so
            that they can be written back.
        report: of how it was read and changed.
    """

    config: BertConfig
    tensors: dict[str, Tensor]
    task: Json | None = None
    tokenizer: BaseTokenizer | None = None
    vectors: EmbeddingConfig | None = None
    moments: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    step: int | None = None
    ranges: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    source_metadata: Json = dataclasses.field(default_factory=dict)
    report: Report = Report()

    @property
    def head(self) -> str | None:
        """A key of `model.head_table.HEADS`; None for a bare encoder or a task that this version lacks."""
        return head_of(self.task) if self.task else None

    @property
    def labels(self) -> list[str] | None:
        """Labels in the order of the logits; None if the head has no labels."""
        return self.task["settings"]["labels"] if self.task and self.head and HEADS[self.head].labels else None

    @property
    def own_vectors(self) -> EmbeddingConfig | None:
        """How its vectors of sentences are computed: those that it was published for, or that its head reads."""
        reads = self._head()[2]
        return reads if isinstance(reads, EmbeddingConfig) else self.vectors

    def is_for(self, task: type[Task]) -> bool:
        """Whether it is a model for this task."""
        return self.task is not None and self.task["name"] == task.name

    def tokenizer_of_text(self, path: StrPath) -> BaseTokenizer:
        """The tokenizer; DataError, which names `path`, if there is none."""
        if self.report.no_tokenizer:
            raise DataError(f"{path}: {self.report.no_tokenizer}")
        if self.tokenizer is None:
            raise DataError(
                f"{path}: no vocabulary to tokenize text with; expected a model with vocab.txt, with vocab.json and "
                "merges.txt, or with a .model file"
            )
        return self.tokenizer

    def shapes(self) -> Shapes:
        """Shapes of the model's variables by path, those of `vectors` included."""
        shapes = variable_shapes(self.config, *self._head())
        return {**shapes, **self.vectors.shapes(self.config.hidden_size)} if self.vectors else shapes

    def reported(self, *warnings: str, **others: Any) -> "Checkpoint":
        """The checkpoint with these warnings, and other fields of `Report`, added to its report."""
        return dataclasses.replace(self, report=self.report + Report(warnings, **others))

    def lasting(self) -> "Checkpoint":
        """The same model, whatever becomes of its files: reads the weights of those that do not stay open."""
        tensors, ranges = ({path: lasting(one) for path, one in part.items()} for part in (self.tensors, self.ranges))
        return dataclasses.replace(self, tensors=tensors, ranges=ranges)

    def with_tensors(self, table: WeightMap, store: Mapping[str, Tensor], file: str) -> "Checkpoint":
        """With the tensors that `weight_map.read_mapped` finds; without a head that the checkpoint does not hold."""
        found = self
        try:
            tensors = read_mapped(table, self.shapes(), store, file)
        except DataError as error:
            found = self.without_head(str(error))
            tensors = read_mapped(table, found.shapes(), store, file)  # fails again if it is not the head
        return dataclasses.replace(found, tensors=tensors)

    def without_head(self, why: str) -> "Checkpoint":
        """Only the encoder, as the head cannot be read."""
        left = dataclasses.replace(self, task=None)
        return left.reported(f"head: only the encoder is read: {why}", no_head=why)

    def encoder(self, *, pooler: bool | None = None, dtype: str | None = None) -> BertEncoder:
        """The encoder with these weights; arguments as in `bert_tf.load`."""
        config = self.config if pooler is None else dataclasses.replace(self.config, pooler=pooler)
        with computing(Mode(zeros=True)):
            encoder = BertEncoder(config, dtype=dtype)
        new_pooler = config.pooler and not self.config.pooler
        assign([v for v in encoder.weights if not (new_pooler and v.path.startswith("pooler/"))], self.tensors)
        self._assign_ranges(encoder)
        return encoder

    def model(self, dtype: str | None = None) -> keras.Model:
        """Encoder and head with these weights; the encoder itself if there is no head, DataError if it is damaged."""
        if self.report.no_head:
            raise DataError(self.report.no_head)
        with computing(Mode(zeros=True)):
            encoder = BertEncoder(self.config, dtype=dtype)
            model = build(encoder, *self._head())
        assign(model.weights, self.tensors)
        self._assign_ranges(encoder)
        return model

    def _assign_ranges(self, encoder: BertEncoder) -> None:
        if self.ranges:
            encoder.ranges = Ranges(encoder.blocks())
            for path, variable in encoder.ranges.by_path.items():
                variable.assign(self.ranges[path].read())

    def _head(self) -> tuple[str | None, Labels, Reads]:
        """The head, the number of its labels if it has any, and what it reads of the encoder if that can be chosen."""
        if not self.task or not self.head:
            return None, None, None
        head, settings = HEADS[self.head], self.task["settings"]
        reads: Reads = None
        if head.reads == "features":
            reads = features = from_dict(FeatureConfig, settings.get("features", {}))
            features.check(self.config.num_layers)
        elif head.reads == "vectors":
            reads = vectors = from_dict(EmbeddingConfig, settings.get("vectors") or {}).check()
            vectors.features.check(self.config.num_layers)
        return self.head, head.sizes(settings), reads


class Written(NamedTuple):
    """What a format was written as.

    Attributes:
        names: the name in the file of each variable and moment that was written, by path; several joined by " + ".
        report: what the format has no place for, what was made up for it, and what its own programs compute otherwise.
    """

    names: dict[str, str]
    report: Report = Report()


def assign(variables: Iterable[keras.Variable], tensors: Mapping[str, Tensor]) -> None:
    """Assigns each variable the tensor of its path, reading one tensor at a time."""
    for variable in variables:
        variable.assign(as_dtype(tensors[variable.path], variable.dtype, variable.path).read())
