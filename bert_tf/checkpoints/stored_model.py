"""`Checkpoint`: a model on disk in any format, the common form that all formats are read into and written from."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import keras

from bert_tf.checkpoints.tensor import Tensor, as_dtype
from bert_tf.checkpoints.weight_map import WeightMap, read_mapped
from bert_tf.config import BertConfig, EmbeddingConfig, FeatureConfig, from_dict
from bert_tf.config.values import shown
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import HEADS, Labels, build, variable_shapes
from bert_tf.model.mode import Mode, computing
from bert_tf.model.ranges import Ranges
from bert_tf.tasks import TASKS
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
    for field, value in ({"attention": "bidirectional", "norm": "post"} | required).items():
        ours = getattr(config, field)
        if ours != value:
            raise ConfigError(f"model.{field} is {ours!r}, and in {library} it is {value!r}{ELSEWHERE}")


@dataclasses.dataclass
class Checkpoint:
    """A model on disk, in any format.

    Attributes:
        tensors: Tensors by variable path.
        ranges: of an encoder that was fine-tuned for int8, by path (`variables.range_shapes`); {} of others. They suit
            these weights only.
        task: {"name", "settings"} as in saved models; None for a bare encoder.
        tokenizer: None if the checkpoint has none that this version reads.
        no_tokenizer: why a tokenizer that lies beside it cannot be read, and what to do; "" if it can, or if there is
            none.
        vectors: how vectors of sentences are computed, if it was published for them; their layers are in `tensors`.
        no_vectors: the reason why what it was published for cannot be computed here; "" if it can.
        no_head: why the head of the model cannot be read, so that `task` is None; "" if it can, or if there is none.
        slots: Adam's moments under "PATH/m" and "PATH/v"; empty if the checkpoint has none.
        step: number of updates done, if known.
        unused_tensors: names of the tensors that were not read, each with the reason.
        warnings: guesses, defaults and made-up values, for the conversion report.
        source_metadata: {"format", ...} with the settings of a foreign format that have no equivalent here, kept so
            that they can be written back.
    """

    config: BertConfig
    tensors: dict[str, Tensor]
    task: Json | None = None
    tokenizer: BaseTokenizer | None = None
    no_tokenizer: str = ""
    vectors: EmbeddingConfig | None = None
    no_vectors: str = ""
    no_head: str = ""
    slots: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    step: int | None = None
    unused_tensors: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    source_metadata: Json = dataclasses.field(default_factory=dict)
    ranges: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def head(self) -> str | None:
        """A key of `model.head_table.HEADS`; None for a bare encoder or a task that this version lacks."""
        return head_of(self.task) if self.task else None

    @property
    def labels(self) -> list[str] | None:
        """Labels in the order of the logits; None if the head has no labels."""
        return self.task["settings"]["labels"] if self.task and self.head and HEADS[self.head].labels else None

    def tokenizer_of_text(self, path: StrPath) -> BaseTokenizer:
        """The tokenizer; DataError, which names `path`, if there is none."""
        if self.no_tokenizer:
            raise DataError(f"{path}: {self.no_tokenizer}")
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

    def read_tensors(self, table: WeightMap, store: Mapping[str, Tensor], file: str) -> None:
        """Sets `tensors` by `weight_map.read_mapped`; a head that the checkpoint does not hold is left out."""
        try:
            self.tensors = read_mapped(table, self.shapes(), store, file)
        except DataError as error:
            self.leave_out_head(str(error))
            self.tensors = read_mapped(table, self.shapes(), store, file)  # fails again if it is not the head

    def leave_out_head(self, why: str) -> None:
        """Leaves only the encoder, as the head cannot be read."""
        self.task, self.no_head = None, why
        self.warnings.append(f"head: only the encoder is read: {why}")

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
        if self.no_head:
            raise DataError(self.no_head)
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

    def _head(self) -> tuple[str | None, Labels, FeatureConfig | None]:
        """The head, the number of its labels if it has any, and the layers that it reads if they can be chosen."""
        if not self.task or not self.head:
            return None, None, None
        head, settings, features = HEADS[self.head], self.task["settings"], None
        if head.features:
            features = from_dict(FeatureConfig, settings.get("features", {}))
            features.check(self.config.num_layers)
        return self.head, head.sizes(settings), features


def assign(variables: Iterable[keras.Variable], tensors: Mapping[str, Tensor]) -> None:
    """Assigns each variable the tensor of its path, reading one tensor at a time."""
    for variable in variables:
        variable.assign(as_dtype(tensors[variable.path], variable.dtype, variable.path).read())
