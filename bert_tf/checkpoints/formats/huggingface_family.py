"""What is known of a family of models in Transformers: its classes, tensors and settings."""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from bert_tf.checkpoints.weight_map import PYTORCH, WeightMap, expand, listed_names, names_of
from bert_tf.config import BertConfig
from bert_tf.model.head_table import HEADS
from bert_tf.types import Json

# Names in files of the first releases.
_GAMMA = {r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"}


def reads_pooled(head: str | None) -> bool:
    """Whether a head, a key of HEADS, or None for none, reads the pooled output."""
    return head is not None and HEADS[head].pooled


@dataclasses.dataclass(frozen=True)
class Layers:
    """What the class of a head has besides the encoder.

    Attributes:
        names: of its layers, as for `weight_map.expand`. A classifier of two layers on the first token is a pooler and
            a classifier.
        settings: values in config.json with which the class computes what this project's head does.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Parts(Protocol):
    """Fields of BertConfig that config.json describes in its own way.

    Attributes:
        fields: their names.
        settings: keys of config.json that `write` makes, or that stand for others.
    """

    fields: tuple[str, ...]
    settings: tuple[str, ...]

    def read(self, settings: Json, file: str) -> dict[str, Any]:
        """The values of `fields`; DataError, which names `file`, for what nothing here computes."""

    def write(self, config: BertConfig) -> Json:
        """The settings of a model."""


@dataclasses.dataclass(frozen=True)
class Family:
    """Models with the same names of classes, tensors and settings (transformers, models/*).

    Attributes:
        model_type: its name in config.json.
        stem: start of the names of its classes.
        prefix: start of the names of the encoder's tensors in a model with a head.
        names: of the encoder's layers, as for `weight_map.expand`.
        heads: by head, a key of HEADS, or None for the encoder alone; if tensors of several are there, the first has
            them.
        decoder: the layer with the output matrix of the masked language model, which is the word embedding.
        fields: field of BertConfig -> its name in config.json. For `position_offset`, that is "pad_token_id": positions
            start after the row of the padding token.
        constants: fields of BertConfig that have one value in all models. The pooler's activation is also that of the
            first of two layers of a classifier.
        defaults: values of the fields that config.json may lack.
        parts: the parts of a block that config.json describes; None for those of BERT.
        todays_settings: function from config.json and its path to the same in today's keys; None if all are.
        older: other names of tensors in files: a regular expression -> what it is today, after the prefix; "{a,b}" for
            several tensors, whose rows one holds.
        adds_pooler: whether the class of the encoder alone has a pooler if it is not asked.
        has_types: whether there is always a table of token types.
        always_projects: whether there is a projection even if the embeddings are as wide as the hidden states.
        tokenizer: class that Transformers takes if none is named, where not the files decide.
    """

    model_type: str
    stem: str
    prefix: str
    names: Mapping[str, str]
    heads: Mapping[str | None, Layers]
    decoder: str
    fields: Mapping[str, str]
    constants: Mapping[str, Any]
    defaults: Mapping[str, Any]
    parts: Parts | None = None
    todays_settings: Callable[[Json, str], Json] | None = None
    older: Mapping[str, str] = dataclasses.field(default_factory=lambda: _GAMMA)
    adds_pooler: bool = True
    has_types: bool = True
    always_projects: bool = False
    tokenizer: str | None = None

    @property
    def counts_padding(self) -> bool:
        """Whether positions start after the row of the padding token."""
        return "position_offset" in self.fields

    @property
    def part_fields(self) -> tuple[str, ...]:
        """The fields of BertConfig that `parts` reads."""
        return self.parts.fields if self.parts else ()

    def makes_up_types(self, config: BertConfig) -> bool:
        """Whether a model without token types is written with one, of zeros."""
        return not config.type_vocab_size and self.has_types and "type_vocab_size" in self.fields

    def embedding_size(self, width: int, hidden_size: int) -> int:
        """BertConfig's `embedding_size` of a model with embeddings of this width: 0 if there is no projection."""
        return width if "embedding_size" in self.fields and (self.always_projects or width != hidden_size) else 0

    def has_pooler(self, head: str | None) -> bool:
        """Whether the class for a head has a pooler, or two layers on the first token."""
        return reads_pooled(head) or (head is None and "pooler" in self.names)

    @property
    def beginnings(self) -> set[str]:
        """The parts of the encoder, the pooler aside: each is the start of tensor names, up to the first dot."""
        return {name.partition(".")[0] for ours, name in self.names.items() if ours != "pooler"}

    def plain_names(self, name: str) -> list[str]:
        """The names, without prefix, of a tensor in a file; of several tensors if it holds their rows."""
        name = name.removeprefix(self.prefix)
        for older, today in self.older.items():
            name = re.sub(older, today, name)
        return listed_names(name)

    def layer_in(self, tensors: Iterable[str]) -> str | None:
        """The name in the file of a matrix of the first layer if all of them are among these names, else None."""
        table = expand({ours: theirs for ours, theirs in self.names.items() if ours.startswith("layer_")}, PYTORCH, 1)
        names = names_of(table, [path for path in table if path.endswith("/kernel")])
        found = {plain: name for name in tensors for plain in self.plain_names(name)}
        return found[min(names)] if names <= found.keys() else None

    def class_name(self, head: str | None) -> str:
        """The class for a head, a key of `heads`."""
        return self.stem + (HEADS[head].transformers if head else "Model")

    def weight_map(self, config: BertConfig, head: str | None, prefix: str = "") -> WeightMap:
        """The weight map of the encoder, its names starting with `prefix`, and a head."""
        names = {ours: prefix + theirs for ours, theirs in self.names.items()} | dict(self.heads[head].names)
        return expand(names, PYTORCH, config.num_blocks)

    def copies(self, head: str | None) -> dict[str, str]:
        """Tensors that copy others, with the originals: the output matrix, and where it has the bias a second time."""
        names = self.heads[head].names
        if "masked_lm/bias" not in names:
            return {}
        words, bias = self.names["embeddings/word_embeddings"], names["masked_lm/bias"]
        copies = {f"{self.decoder}.weight": words, f"{self.decoder}.bias": bias}
        return {copy: original for copy, original in copies.items() if copy != original}

    def find_head(self, tensors: Collection[str]) -> str | None:
        """The first head of which each part has tensors; None if there is none.

        Args:
            tensors: names, without the encoder's prefix.
        """
        for head, its in self.heads.items():
            pooler = {"pooler": self.names["pooler"]} if reads_pooled(head) and "pooler" in self.names else {}
            layers = [(ours.partition("/")[0], theirs) for ours, theirs in (pooler | dict(its.names)).items()]
            found = {part for part, layer in layers if any(f"{name}.".startswith(f"{layer}.") for name in tensors)}
            if its.names and found == {part for part, _ in layers}:
                return head
        return None
