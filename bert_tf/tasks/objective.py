"""The objective of a task: what a training step computes."""

import abc
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.model.encoder import BertEncoder
from bert_tf.types import Array, Tensors

LABELLED = "labelled"  # bool [rows], in distillation: whether the labels of a row are learned or mean nothing


class SoftOutput(NamedTuple):
    """An output of a model that a student can learn from its teacher.

    Attributes:
        kind: what the output is: "softmax" (logits of a distribution), "sigmoid" (of independent probabilities) or
            "number".
        weight: of its loss, relative to the other outputs.
        over_parts: whether it is one distribution over the parts of an example, instead of something about each part.
        read: function from the output to the logits or numbers that are compared.
    """

    kind: str = "softmax"
    weight: float = 1.0
    over_parts: bool = False
    read: Callable[[tf.Tensor], tf.Tensor] = lambda output: output


class Objective(abc.ABC):
    """Head, losses, their normalizers, and metrics as sums and weights.

    Attributes:
        losses: names of the losses; training minimizes their weighted sum.
        loss_weights: weights of losses in this sum; those of the others are 1.
        metric_names: names of the other metrics that `loss_and_metrics` returns.
        totals: names of those among them that are sums over the data, such as a number of tokens, instead of means.
        histograms: name -> length of each array that `counts` returns, for TensorBoard.
        soft_outputs: those outputs of the model that a student can learn from its teacher's, by name.
        teacher_size: number of weights that it reads besides those of the model: of a teacher.
    """

    losses: tuple[str, ...] = ("loss",)
    loss_weights: Mapping[str, float] = types.MappingProxyType({})
    metric_names: tuple[str, ...] = ()
    totals: tuple[str, ...] = ()
    histograms: Mapping[str, int] = types.MappingProxyType({})
    soft_outputs: Mapping[str, SoftOutput] = types.MappingProxyType({})
    teacher_size: int = 0

    @abc.abstractmethod
    def build(self, encoder: BertEncoder) -> keras.Model:
        """Builds the model on `encoder`: a dict of features in, a dict of outputs out."""

    def start_near(self, outputs: Mapping[str, Array]) -> None:  # noqa: B027
        """Prepares `build` for a model whose outputs will be like these: float32 [n, width] by name. Default: nothing.

        A student gets those of its teacher, which it may learn from instead of labels.
        """

    @abc.abstractmethod
    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Normalizer of each loss, from the features alone: loss name -> float32 scalar.

        The loop sums it over replicas and micro-batches before the first backward pass, so that the result does not
        depend on how a batch was split.
        """

    @abc.abstractmethod
    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Losses and simple metrics of one batch: name -> (float32 sum, float32 weight)."""

    def total(self, losses: Mapping[str, Any]) -> Any:
        """The weighted sum of these losses, numbers or tensors by name."""
        return sum(self.loss_weights.get(name, 1.0) * value for name, value in losses.items())

    def counts(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Histograms of a batch: name -> float32 [histograms[name]], the number of examples with value 0, 1, 2, ...

        Part of the replica step, so it must not contain host ops. Default: none.
        """
        return {}

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        """What each of the `soft_outputs` of a batch answers.

        Returns:
            name -> int32 [rows] or [rows, n]: the number of the word, choice or other part of its example that each
            entry of the output is about, from 0; -1 for none. The output has this shape if it is `over_parts`, else one
            dimension more.
        """
        raise NotImplementedError


class JointObjective(Objective):
    """Base class of objectives whose loss is about all examples of a batch together, of all replicas.

    A model computes each of the `pieces` of a part of a batch; `joined` puts their outputs together; and `joint_loss`
    gets the outputs and what is `known` of the whole batch. So a batch can be larger than what fits into memory
    (`training/whole_batch.py`). Evaluations have no loss, which would depend on the batches.

    Attributes:
        separable: whether the loss is a sum over the examples, so that parts of a batch need not know each other.
        least: examples that a batch needs for any gradient.
    """

    separable: bool = False
    least: int = 1

    @abc.abstractmethod
    def pieces(self, features: Tensors) -> list[Tensors]:
        """The inputs of the model, of any number of calls."""

    @abc.abstractmethod
    def joined(self, outputs: list[Tensors], features: Tensors) -> Tensors:
        """Float32 tensors [rows, ...] by name from the outputs for the `pieces` of these features."""

    @abc.abstractmethod
    def known(self, features: Tensors) -> Tensors:
        """Tensors [rows, ...] of the features that `joint_loss` reads."""

    @abc.abstractmethod
    def joint_loss(self, outputs: Tensors, known: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """As `loss_and_metrics`, of the whole batch: [rows, ...] each, as `joined` and `known` return."""

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        return {}


def check_of_examples(objective: Objective, what: str) -> None:
    """Raises ConfigError if the loss is about a whole batch, so that no example has one, which `what` needs."""
    if isinstance(objective, JointObjective):
        raise ConfigError(
            f"{what} needs a loss of each example, and this model has learned one of whole batches; fine-tune an "
            "ordinary head instead"
        )


class Sum(Objective):
    """Several objectives on one encoder: the sum of their losses.

    Args:
        parts: (prefix, objective) each. The names of its losses and metrics get the prefix, as have those of its
            outputs in the model.
        build: builds the model with the heads of all parts.
    """

    def __init__(self, parts: Sequence[tuple[str, Objective]], build: Callable[[BertEncoder], keras.Model]) -> None:
        self._parts, self._build = parts, build
        self.losses = tuple(prefix + name for prefix, part in parts for name in part.losses)
        self.loss_weights = {
            prefix + name: value for prefix, part in parts for name, value in part.loss_weights.items()
        }
        self.metric_names = tuple(prefix + name for prefix, part in parts for name in part.metric_names)
        self.totals = tuple(prefix + name for prefix, part in parts for name in part.totals)
        self.histograms = {prefix + name: bins for prefix, part in parts for name, bins in part.histograms.items()}
        self.soft_outputs = {prefix + name: one for prefix, part in parts for name, one in part.soft_outputs.items()}

    def build(self, encoder: BertEncoder) -> keras.Model:
        return self._build(encoder)

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {prefix + name: value for prefix, part in self._parts for name, value in part.weights(features).items()}

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        made: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}
        for prefix, part in self._parts:
            own = {name.removeprefix(prefix): value for name, value in outputs.items() if name.startswith(prefix)}
            made |= {prefix + name: value for name, value in part.loss_and_metrics(features, own).items()}
        return made

    def counts(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {prefix + name: value for prefix, part in self._parts for name, value in part.counts(features).items()}

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {prefix + name: one for prefix, part in self._parts for name, one in part.answered(features).items()}


class Predictions(NamedTuple):
    """Predictions of a batch, such as those of masked tokens or of pairs.

    Attributes:
        values: losses and metrics by name, float32 [batch] or [batch, n].
        weights: float32, 1.0 for a prediction, 0.0 for an unused slot.
    """

    values: dict[str, tf.Tensor]
    weights: tf.Tensor


class PredictionObjective(Objective):
    """Base class of objectives whose losses and metrics are means over predictions.

    Args:
        languages: names of the languages of the feature `language_ids` (`inputs.corpus.dataset`); the losses and
            metrics of each are added to the metrics, as "ko/mlm_loss". () for features without languages.
    """

    def __init__(self, languages: Sequence[str] = ()) -> None:
        self.languages = languages
        names = (*self.losses, *self.metric_names)
        self.metric_names += tuple(f"{language}/{name}" for language in languages for name in names)

    @abc.abstractmethod
    def predictions(self, features: Tensors, outputs: Tensors) -> Predictions:
        """The predictions of a batch, with a value for each of the losses and metrics."""

    @abc.abstractmethod
    def positions(self, features: Tensors) -> tf.Tensor:
        """int32 in the shape of the predictions: the position in its row of a token of each."""

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        values, weights = self.predictions(features, outputs)
        count = tf.reduce_sum(weights)
        means = {name: (tf.reduce_sum(value * weights), count) for name, value in values.items()}
        if self.languages:
            spoken = tf.gather(features["language_ids"], self.positions(features), batch_dims=1)
            counts = self.by_language(weights, spoken)
            for name, value in values.items():
                sums = self.by_language(value * weights, spoken)
                means |= {f"{language}/{name}": (sums[language], counts[language]) for language in self.languages}
        return means

    def by_language(self, values: tf.Tensor, language_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Sums of float32 values by the name of their languages; int32 in the same shape."""
        flat = tf.reshape(values, [-1]), tf.reshape(language_ids, [-1])
        sums = tf.math.unsorted_segment_sum(*flat, len(self.languages))
        return dict(zip(self.languages, tf.unstack(sums), strict=True))


class TokenObjective(PredictionObjective):
    """Base class of objectives with a value for each token, padding left out."""

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return dict.fromkeys(self.losses, tf.reduce_sum(tokens_of(features)))

    def positions(self, features: Tensors) -> tf.Tensor:
        mask = features["input_mask"]
        return tf.zeros_like(mask) + tf.range(tf.shape(mask)[1])


def tokens_of(features: Tensors) -> tf.Tensor:
    """float32 [batch, length]: 1.0 at tokens, 0.0 at padding."""
    return tf.cast(features["input_mask"] > 0, tf.float32)


def rows_of(features: Tensors) -> tf.Tensor:
    """float32 scalar: the number of labelled rows, the normalizer of a loss in which each counts as 1."""
    return tf.cast(tf.shape(features["labels"])[0], tf.float32)


def whole_examples(features: Tensors) -> dict[str, tf.Tensor]:
    """`Objective.answered` where the output "logits" is about the example as a whole."""
    return {"logits": tf.zeros_like(features["row"], tf.int32)}


def truncated_share(features: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
    """Sum and weight of the metric of this name, the share of examples that lost tokens, counted at first windows."""
    first = tf.cast(features["window"] == 0, tf.float32)
    return tf.reduce_sum(first * tf.cast(features["truncated"], tf.float32)), tf.reduce_sum(first)
