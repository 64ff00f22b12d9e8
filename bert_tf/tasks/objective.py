"""The objective of a task: what a training step computes."""

import abc
import types
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from bert_tf.model.encoder import BertEncoder
from bert_tf.types import Tensors


class Objective(abc.ABC):
    """Head, losses, their normalizers, and metrics as sums and weights.

    Attributes:
        losses: names of the losses; training minimizes their sum.
        metric_names: names of the other metrics that `loss_and_metrics` returns.
        histograms: name -> length of each array that `counts` returns, for TensorBoard.
    """

    losses: tuple[str, ...] = ("loss",)
    metric_names: tuple[str, ...] = ()
    histograms: Mapping[str, int] = types.MappingProxyType({})

    @abc.abstractmethod
    def build(self, encoder: BertEncoder) -> keras.Model:
        """Builds the model on `encoder`: a dict of features in, a dict of outputs out."""

    @abc.abstractmethod
    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Normalizer of each loss, from the features alone: loss name -> float32 scalar.

        The loop sums it over replicas and micro-batches before the first backward pass, so that the result does not
        depend on how a batch was split.
        """

    @abc.abstractmethod
    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Losses and simple metrics of one batch: name -> (float32 sum, float32 weight)."""

    def counts(self, features: Tensors) -> dict[str, tf.Tensor]:
        """Histograms of a batch: name -> float32 [histograms[name]], the number of examples with value 0, 1, 2, ...

        Part of the replica step, so it must not contain host ops. Default: none.
        """
        return {}


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
        self.metric_names = tuple(prefix + name for prefix, part in parts for name in part.metric_names)
        self.histograms = {prefix + name: bins for prefix, part in parts for name, bins in part.histograms.items()}

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


def rows_of(features: Tensors) -> tf.Tensor:
    """float32 scalar: the number of labelled rows, the normalizer of a loss in which each counts as 1."""
    return tf.cast(tf.shape(features["labels"])[0], tf.float32)


def truncated_share(features: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
    """Sum and weight of the metric of this name, the share of examples that lost tokens, counted at first windows."""
    first = tf.cast(features["window"] == 0, tf.float32)
    return tf.reduce_sum(first * tf.cast(features["truncated"], tf.float32)), tf.reduce_sum(first)
