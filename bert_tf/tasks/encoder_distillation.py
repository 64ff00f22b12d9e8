"""Distillation of encoders: a small one, the student, learns what a larger one, its teacher, computes of plain text."""

import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.config import BertConfig, EncoderDistillation
from bert_tf.errors import ConfigError
from bert_tf.model.encoder import BertEncoder, encoder_of
from bert_tf.model.encoder_distillation import inner_states, masked_lm_with_states
from bert_tf.model.head_table import HEADS
from bert_tf.model.heads import BertPretrainer
from bert_tf.model.mode import infer
from bert_tf.tasks.masked_lm import CorpusObjective, MaskedLM, MaskedLMObjective, MaskedTokenObjective
from bert_tf.tasks.objective import Objective, Predictions, SoftOutput, Sum, TokenObjective, tokens_of
from bert_tf.tasks.soft_targets import soft_loss
from bert_tf.tasks.task import PretrainingTask, Task
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Tensors

TEACHER = "teacher"  # in the outputs: those of the teacher
_PARTS = {"q": 0, "k": 1, "v": 2}  # of "qkv"
_PADDING = -1e9  # added to the scores of padding; finite, so that 0 times their logarithm is 0


class RelationObjective(CorpusObjective, TokenObjective):
    """Divergence of the relations between tokens in one layer of teacher and student.

    MiniLM: Wang et al., 2020, arXiv:2002.10957, section 3; MiniLMv2: Wang et al., 2021, arXiv:2012.15828, section 3.1.
    Queries, keys or values are split into relation heads; a relation is the softmax over the tokens of a text of their
    scaled products. The loss of each is the Kullback-Leibler divergence of the student's from the teacher's, the mean
    over heads and tokens.

    Args:
        tokenizer, max_length, languages: as for `CorpusObjective`.
        relations, heads: as `relations` and `relation_heads` of `EncoderDistillation`.
    """

    def __init__(
        self, tokenizer: BaseTokenizer, max_length: int, languages: Sequence[str], relations: Sequence[str], heads: int
    ) -> None:
        self.losses = tuple(f"{relation}_loss" for relation in relations)
        super().__init__(tokenizer, max_length, languages)
        self._relations, self._heads = relations, heads

    def build(self, encoder: BertEncoder) -> keras.Model:
        return inner_states(encoder, [encoder.config.num_layers])

    def predictions(self, features: Tensors, outputs: Tensors) -> Predictions:
        tokens = tokens_of(features)
        padding = (1.0 - tokens)[:, tf.newaxis, tf.newaxis] * _PADDING
        values = {}
        for relation in self._relations:
            found, wanted = (
                _scores(of["qkv"][0], relation, self._heads) + padding for of in (outputs, outputs[TEACHER])
            )
            divergences = soft_loss(SoftOutput("softmax"), found, wanted, 1.0)  # [batch, heads, length]
            values[f"{relation}_loss"] = tf.reduce_mean(divergences, 1)
        return Predictions(values, tokens)


class SoftTargetObjective(MaskedTokenObjective):
    """Divergence of the predictions of masked tokens from the teacher's (Hinton et al., 2015, arXiv:1503.02531).

    The metric soft_agreement is the share of masked tokens for which both predict the same.

    Args:
        temperature: divides the logits.
        languages: as for `PredictionObjective`.
    """

    losses = ("soft_loss",)
    metric_names = ("soft_agreement",)

    def __init__(self, temperature: float, languages: Sequence[str] = ()) -> None:
        super().__init__(languages)
        self._temperature = temperature

    def build(self, encoder: BertEncoder) -> keras.Model:
        return masked_lm_with_states(BertPretrainer(encoder, next_sentence=False))

    def predictions(self, features: Tensors, outputs: Tensors) -> Predictions:
        found, wanted = (of["mlm_logits"] for of in (outputs, outputs[TEACHER]))
        loss = soft_loss(SoftOutput("softmax"), found, wanted, self._temperature)
        same = tf.cast(tf.argmax(found, -1, tf.int32) == tf.argmax(wanted, -1, tf.int32), tf.float32)
        return Predictions({"soft_loss": loss, "soft_agreement": same}, features["masked_lm_weights"])


class CosineObjective(TokenObjective):
    """1 - cosine of the last hidden states of student and teacher at each token."""

    losses = ("cosine_loss",)

    def build(self, encoder: BertEncoder) -> keras.Model:
        return encoder

    def predictions(self, features: Tensors, outputs: Tensors) -> Predictions:
        states = (tf.cast(of["sequence_output"], tf.float32) for of in (outputs, outputs[TEACHER]))
        found, wanted = (tf.math.l2_normalize(one, -1) for one in states)
        return Predictions({"cosine_loss": 1.0 - tf.reduce_sum(found * wanted, -1)}, tokens_of(features))


class LayersObjective(CorpusObjective, TokenObjective):
    """Squared errors of embeddings, hidden states and attention scores (TinyBERT: Jiao et al., 2020, section 3.1).

    Means over the components of a state, or over heads and tokens attended to; those of hidden states and of attention
    are summed over the layers. Scores are those before the softmax, as in the paper.

    Args:
        tokenizer, max_length, languages: as for `CorpusObjective`.
        heads: number of attention heads of each layer.
        width: hidden size of the teacher.
    """

    losses = ("embedding_loss", "hidden_loss", "attention_loss")

    def __init__(
        self, tokenizer: BaseTokenizer, max_length: int, languages: Sequence[str], heads: Sequence[int], width: int
    ) -> None:
        super().__init__(tokenizer, max_length, languages)
        self._heads, self._width = heads, width

    def build(self, encoder: BertEncoder) -> keras.Model:
        return inner_states(encoder, range(1, encoder.config.num_layers + 1), self._width)

    def predictions(self, features: Tensors, outputs: Tensors) -> Predictions:
        tokens, wanted = tokens_of(features), outputs[TEACHER]
        errors = [tf.reduce_mean(_squared_errors(*pair), -1) for pair in _pairs(outputs["states"], wanted["states"])]
        attended = tokens[:, tf.newaxis] / tf.reduce_sum(tokens, 1)[:, tf.newaxis, tf.newaxis]  # [batch, 1, length]
        attention = []
        for *pair, heads in _pairs(outputs["qkv"], wanted["qkv"], self._heads):
            squares = _squared_errors(*(_scores(qkv, "qk", heads) for qkv in pair))
            attention.append(tf.reduce_sum(tf.reduce_mean(squares, 1) * attended, -1))
        values = dict(zip(self.losses, (errors[0], tf.add_n(errors[1:]), tf.add_n(attention)), strict=True))
        return Predictions(values, tokens)


class Taught(Sum):
    """Objectives that compare a student with its teacher, which is neither trained nor saved.

    Args:
        parts: find the outputs of the teacher as `TEACHER` in those of the model, which the first one builds.
        factors: the weight of each loss in the sum. Parts whose losses have no weight are left out.
        teacher: computes without dropout, from the same features as the student.
    """

    def __init__(self, parts: Sequence[Objective], factors: Sequence[float], teacher: keras.Model) -> None:
        weights = dict(zip((name for part in parts for name in part.losses), factors, strict=True))
        parts, build = [part for part in parts if any(weights[name] for name in part.losses)], parts[0].build
        super().__init__([("", part) for part in parts], build)
        self.loss_weights = {name: weights[name] for name in self.losses}
        teacher.trainable = False
        self._teacher, self.teacher_size = teacher, teacher.count_params()

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        found = infer(self._teacher, features, skip_padding=False)  # which XLA cannot compile
        return super().loss_and_metrics(features, outputs | {TEACHER: tf.nest.map_structure(tf.stop_gradient, found)})


class DistilledEncoder(PretrainingTask):
    """Trains an encoder to compute what its teacher computes; saved as an encoder without a head or, with the objective
    "distilbert", as a masked language model.

    Args:
        tokenizer, max_length, languages: as for `MaskedLM`.
        objective: "minilm", "distilbert" or "tinybert".
        settings: checked by `check_teacher`.
        student: the architecture of the encoder.
        teacher: an encoder, for "distilbert" a masked language model.
    """

    name = "encoder_distillation"

    def __init__(
        self,
        tokenizer: BaseTokenizer,
        max_length: int,
        languages: Sequence[str] = (),
        *,
        objective: str,
        settings: EncoderDistillation,
        student: BertConfig,
        teacher: keras.Model,
    ) -> None:
        super().__init__(tokenizer, max_length)
        self._has_head = objective == "distilbert"
        larger = encoder_of(teacher)
        parts: list[Objective]
        if objective == "minilm":
            parts = [RelationObjective(tokenizer, max_length, languages, settings.relations, settings.relation_heads)]
            teacher = inner_states(larger, [settings.layer_of(larger.config)])
        elif objective == "tinybert":
            parts = [LayersObjective(tokenizer, max_length, languages, student.layer_heads, larger.config.hidden_size)]
            every = larger.config.num_layers // student.num_layers
            teacher = inner_states(larger, range(every, larger.config.num_layers + 1, every))
        else:
            parts = [
                SoftTargetObjective(settings.temperature, languages),
                MaskedLMObjective(tokenizer, max_length, languages),
            ]
            parts += [CosineObjective(languages)]
            teacher = masked_lm_with_states(teacher)
        self.objective = Taught(parts, settings.factors(objective), teacher)

    def saved(self, config: BertConfig) -> dict[str, tuple[Task | None, BertConfig]]:
        return {"": (MaskedLM(self.tokenizer, self.max_length) if self._has_head else None, config)}


def check_teacher(
    objective: str, settings: EncoderDistillation, student: BertConfig, teacher: BertConfig, head: str | None
) -> None:
    """Raises ConfigError for a teacher from which the student cannot learn with this objective.

    Args:
        objective, settings: as for `DistilledEncoder`.
        student, teacher: their architectures.
        head: of the teacher, a key of `model.head_table.HEADS`, or None.
    """
    if teacher.attention != student.attention:
        raise ConfigError(
            f"the teacher's attention is {teacher.attention!r}, the student's {student.attention!r}; both must be "
            "'bidirectional'"
        )
    if objective == "minilm":
        heads, layer = settings.relation_heads, settings.teacher_layer
        if not 1 <= abs(layer) <= teacher.num_layers:
            raise ConfigError(
                f"distillation.teacher_layer is {layer}, but the teacher has {teacher.num_layers} layers; expected 1 "
                f"to {teacher.num_layers}, or -1 for the last"
            )
        # All attention heads of a layer together: the hidden size, unless some were pruned.
        own = student.layer_heads[-1] * student.head_size
        found = teacher.layer_heads[settings.layer_of(teacher) - 1] * teacher.head_size
        if own % heads or found % heads:
            both = [number for number in range(1, own + 1) if not own % number and not found % number]
            raise ConfigError(
                f"distillation.relation_heads is {heads}, but the queries of the student have {own} columns, those of "
                f"the teacher {found}; choose a divisor of both: {', '.join(map(str, both))}"
            )
    elif objective == "tinybert":
        if "rotary" in (student.positions, teacher.positions):
            raise ConfigError(
                f"the student's positions are {student.positions!r}, the teacher's {teacher.positions!r}, and "
                "data.objective=tinybert compares queries and keys before they are rotated; set data.objective=minilm"
            )
        if teacher.num_layers % student.num_layers:
            raise ConfigError(
                f"model.num_layers is {student.num_layers}, which does not divide the {teacher.num_layers} layers of "
                "the teacher; with data.objective=tinybert each layer learns from a layer of the teacher"
            )
        every = teacher.num_layers // student.num_layers
        ours, theirs = student.layer_heads, teacher.layer_heads[every - 1 :: every]
        if ours != theirs:
            raise ConfigError(
                f"the student's layers have {_listed(ours)} heads, those of the teacher from which they learn "
                f"{_listed(theirs)}; with data.objective=tinybert they need as many: set model.num_heads, or "
                "data.objective=minilm"
            )
    elif not head or "masked_lm" not in HEADS[head].parts:
        raise ConfigError(
            f"the teacher has {f'the head {head}' if head else 'no head'}, but data.objective=distilbert needs its "
            "predictions of masked tokens; give a masked language model, or set data.objective=minilm"
        )
    elif settings.factors(objective)[2] and student.hidden_size != teacher.hidden_size:
        raise ConfigError(
            f"model.hidden_size is {student.hidden_size}, the teacher's {teacher.hidden_size}, so their states have no "
            f"cosine; set model.hidden_size={teacher.hidden_size}, or distillation.weights=(5,2,0)"
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _scores(qkv: tf.Tensor, relation: str, heads: int) -> tf.Tensor:
    """Scaled products of each token with each: float32 [batch, heads, length, length].

    Args:
        qkv: [batch, length, 3 * hidden].
        relation: two of the letters q, k and v.
        heads: into which each third is split.
    """
    parts = tf.split(qkv, 3, -1)
    first, second = (_heads(parts[_PARTS[letter]], heads) for letter in relation)
    scale = tf.constant(first.shape[-1] ** -0.5, first.dtype)
    return tf.cast(tf.matmul(first * scale, second, transpose_b=True), tf.float32)


def _heads(states: tf.Tensor, heads: int) -> tf.Tensor:
    """[batch, length, hidden] -> [batch, heads, length, hidden / heads]."""
    shape = tf.shape(states)
    split = tf.reshape(states, [shape[0], shape[1], heads, states.shape[-1] // heads])
    return tf.transpose(split, [0, 2, 1, 3])


def _squared_errors(found: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    return tf.square(tf.cast(found, tf.float32) - tf.cast(wanted, tf.float32))


_pairs = functools.partial(zip, strict=True)
