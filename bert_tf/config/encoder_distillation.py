"""Settings of the distillation of encoders: what a student imitates of its teacher."""

import dataclasses
from typing import Self

from bert_tf.config.model import BertConfig
from bert_tf.config.values import check_fields, setting
from bert_tf.errors import ConfigError

# Objectives that need a teacher, and their settings.
_FIELDS = {
    "minilm": ("relations", "relation_heads", "teacher_layer", "weights", "copy_layers"),
    "distilbert": ("temperature", "weights", "copy_layers"),
    "tinybert": ("weights", "copy_layers"),
}
OBJECTIVES = tuple(_FIELDS)
# Weights of the losses in the papers.
_WEIGHTS = {"distilbert": (5.0, 2.0, 1.0), "tinybert": (1.0, 1.0, 1.0)}


@dataclasses.dataclass
class EncoderDistillation:
    """What an encoder learns from a larger one, for the objectives "minilm", "distilbert" and "tinybert".

    Attributes:
        relations: for "minilm": what is compared, of queries (q), keys (k) and values (v) of one layer: ("qq", "kk",
            "vv") is MiniLMv2, ("qk", "vv") MiniLM.
        relation_heads: for "minilm": heads into which these are split, whatever the number of attention heads; must
            divide the hidden sizes of student and teacher.
        teacher_layer: for "minilm": number of the teacher's layer, from 1; negative numbers count from the end.
        temperature: for "distilbert": divides the logits of student and teacher.
        weights: of the losses; () for those of the papers. "minilm": one per relation (1 each); "distilbert": soft
            targets, masked language model, cosine (5, 2, 1); "tinybert": embeddings, hidden states, attention (1 each).
        copy_layers: whether the student starts with evenly spaced layers of the teacher, its embeddings and its head,
            as DistilBERT does; they must have the same sizes.
    """

    relations: tuple[str, ...] = setting(("qq", "kk", "vv"), choices=("qq", "kk", "vv", "qk"))
    relation_heads: int = setting(48, at_least=1, at_most=10_000)
    teacher_layer: int = setting(-1, at_least=-1000, at_most=1000)
    temperature: float = setting(2.0, above=0, at_most=1000)
    weights: tuple[float, ...] = setting((), at_least=0, at_most=1e6)
    copy_layers: bool = False

    def check(self, objective: str) -> Self:
        """Raises ConfigError for invalid values, and for settings that `objective` does not have."""
        check_fields(self, "distillation")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default and field.name not in _FIELDS.get(objective, ()):
                having = ", ".join(name for name, fields in _FIELDS.items() if field.name in fields)
                raise ConfigError(
                    f"distillation.{field.name} is {value!r}, but data.objective is {objective!r}; only {having} has "
                    "this setting"
                )
        if not self.relations or len(set(self.relations)) < len(self.relations):
            raise ConfigError(f"distillation.relations is {self.relations!r}; expected one or more, each once")
        if self.weights and (len(self.weights) != (count := len(self._published(objective))) or not sum(self.weights)):
            raise ConfigError(
                f"distillation.weights is {self.weights!r}; expected {count} numbers, at least one of them above 0"
            )
        return self

    def layer_of(self, teacher: BertConfig) -> int:
        """The number from 1 of the teacher's layer that is compared."""
        return self.teacher_layer % (teacher.num_layers + 1)

    def factors(self, objective: str) -> tuple[float, ...]:
        """The weights of the losses, those of the papers filled in."""
        return self.weights or self._published(objective)

    def _published(self, objective: str) -> tuple[float, ...]:
        return _WEIGHTS.get(objective) or (1.0,) * len(self.relations)
