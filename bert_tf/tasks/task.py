"""The one interface between a task and everything that trains, evaluates, predicts and exports."""

import abc
import types
from collections.abc import Mapping


class Task(abc.ABC):
    """One kind of task. A new task is a new file with a subclass, named in `tasks/__init__.py`.

    If it sits on the encoder in a way of its own, that is a new head: a maker in `model/heads.py`, named in
    `model/build.py`, and its variables in `model/variables.py`.

    Attributes:
        name: what configs and saved models call it.
        tokenizer: Tokenizer that its texts go through.
        losses: names of the losses, whose sum training minimizes.
        metric_names: names of the other metrics that `loss_and_metrics` returns.
        monitor: name of the metric by which evaluations are compared.
        mode: "max" if a higher value is better, else "min".
        histograms: dict name -> length of what `counts` gives under that name, for TensorBoard.
    """

    name: str
    losses: tuple[str, ...]
    metric_names: tuple[str, ...]
    monitor: str = "loss"
    mode: str = "min"
    histograms: Mapping[str, int] = types.MappingProxyType({})

    @abc.abstractmethod
    def settings(self):
        """JSON-ready dict from which `from_settings` makes the task again: saved with the model."""

    @classmethod
    @abc.abstractmethod
    def from_settings(cls, settings, tokenizer):
        """The task that `settings()` described."""

    @classmethod
    def head(cls, settings):
        """What a model with these settings has on its encoder: a key of `model.variables.HEADS`. Here the task's name.

        Args:
            settings: dict as `settings()` gives, or what a converted checkpoint knows of it.
        """
        return cls.name

    @abc.abstractmethod
    def build(self, encoder):
        """The keras.Model from feature dicts to output dicts that sits on `encoder`."""

    @abc.abstractmethod
    def weights(self, features):
        """dict loss name -> float32 scalar: what the loss is divided by, from the features alone.

        The loop adds it up over replicas and micro-batches before the first backward pass, so that the result does not
        depend on how a batch was split.
        """

    @abc.abstractmethod
    def loss_and_metrics(self, features, outputs):
        """dict name -> (float32 sum, float32 weight) of losses and simple metrics of one batch."""

    def counts(self, features):
        """dict name -> float32 [histograms[name]]: how many examples have 0, 1, 2, ... of something.

        Part of the replica step, so it holds no host op. Here: none.
        """
        return {}

    @abc.abstractmethod
    def inputs(self):
        """What the exported model is asked with: tuple of named tf.TensorSpecs, each [batch, ...]."""

    def received(self, columns):
        """What a client sent, without what a server may have put in on the way. Here: all.

        Args:
            columns: dict of tensors, named as `inputs` are.
        """
        return columns

    @abc.abstractmethod
    def token_features(self, columns):
        """The features of a model that is asked, the first window's of each text where there are several.

        Args:
            columns: dict of tensors, named as `inputs` are.

        Returns:
            dict of dense tensors [batch, ...], the encoder's inputs among them.
        """

    @abc.abstractmethod
    def signatures(self, model):
        """What an exported model answers: dict name of a signature -> tf.function (`tasks.signatures`)."""
