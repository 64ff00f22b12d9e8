"""The interface between a task and the code that trains, evaluates, predicts and exports."""

import abc
import types
from collections.abc import Callable, Mapping
from typing import ClassVar, Self, TypedDict

import keras
import tensorflow as tf

from bert_tf.model.encoder import BertEncoder
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.types import Json, Tensors, TfFunction


class TaskDescription(TypedDict):
    """A task as saved with its model: its `name` and `settings()`."""

    name: str
    settings: Json


class Task(abc.ABC):
    """Base class of all tasks. To add one, write a subclass in a new file and list it in `tasks/__init__.py`.

    A task that needs a new head adds a function that makes it to `model/heads.py`, where `_BUILDERS` lists it, and
    adds the head's variables to `model/variables.py`.

    Attributes:
        name: the task's name in configs and saved models.
        tokenizer: tokenizes its texts.
        losses: names of the losses; training minimizes their sum.
        metric_names: names of the other metrics that `loss_and_metrics` returns.
        mode: "max" if a higher `monitor` is better, else "min".
        histograms: name -> length of each array that `counts` returns, for TensorBoard.
        counted: answers with as many items as an example needs: name of the served count -> names of these answers.
    """

    name: str
    tokenizer: Tokenizer
    losses: tuple[str, ...]
    metric_names: tuple[str, ...]
    mode: str = "min"
    histograms: Mapping[str, int] = types.MappingProxyType({})
    counted: ClassVar[Mapping[str, tuple[str, ...]]] = types.MappingProxyType({})

    @property
    def monitor(self) -> str:
        """Name of the metric that selects the best checkpoint."""
        return "loss"

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
    def from_settings(cls, settings: Json, tokenizer: Tokenizer) -> Self:
        """Restores the task from its `settings()`; raises as `arguments`."""
        create: Callable[..., Self] = cls
        return create(tokenizer, **cls.arguments(settings))

    @classmethod
    def head(cls, settings: Json) -> str:
        """Name of the head of a model with these settings, a key of `model.variables.HEADS`. Default: the task's name.

        Args:
            settings: as `settings()` returns, or the subset that is known of a converted checkpoint.
        """
        return cls.name

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

    @abc.abstractmethod
    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        """Inputs of the exported model: named specs, each [batch, ...]."""

    def received(self, columns: Tensors) -> Tensors:
        """The client's columns without values that a server may have added. Default: unchanged.

        Args:
            columns: by the names of `inputs`.
        """
        return columns

    @abc.abstractmethod
    def token_features(self, columns: Tensors) -> Tensors:
        """Features of the exported model's inputs; of a text with several windows, those of its first.

        Args:
            columns: by the names of `inputs`.

        Returns:
            Dense tensors [batch, ...], the encoder's inputs among them.
        """

    @abc.abstractmethod
    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        """Signatures of the exported model, by name (see `tasks.signatures`)."""
