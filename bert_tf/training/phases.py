"""The parts of a run: in each, batches have one shape; the learning rate goes over all of them."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.errors import ConfigError
from bert_tf.training import schedules


class Input(NamedTuple):
    """What one phase of a run trains on.

    Attributes:
        batches: function of the epoch (int64 scalar tensor) to a Dataset of feature dicts, whole batches.
        prepare: function of a micro-batch's features to features, a part of the training step.
        evaluate: function without arguments to a dict of floats, or None.
        length: positions of a row, at most.
        row_flops: function from the positions of a row to the floating-point operations of training on it
            (`speed.row_flops`); None where nobody knows.
    """

    batches: Callable
    prepare: Callable = lambda features: features
    evaluate: Callable | None = None
    length: int = 1
    row_flops: Callable[[float], float] | None = None


@dataclasses.dataclass(frozen=True)
class Phase:
    """One part of a run.

    Attributes:
        number: 0 for the first.
        first: updates done before it.
        end: updates done after it.
        config: TrainConfig, what counts in it, with nothing left to the recipe.
        restarts: whether the learning rate begins anew.
    """

    number: int
    first: int
    end: int
    config: TrainConfig
    restarts: bool


def split(config, total_steps, replicas=1):
    """The phases of a run.

    Args:
        config: TrainConfig.
        total_steps: updates of the run.
        replicas: that share each batch.

    Returns:
        list of Phase, one for a config without phases.

    Raises:
        ConfigError: a phase has no step at all, or batches that can not be split.
    """
    config = config.resolved()
    if not config.phases:
        _check_batch(config, replicas)
        return [Phase(0, 0, total_steps, config, True)]
    phases, first, share = [], 0, 0.0
    for number, one in enumerate(config.phases):
        share += one.share
        end = round(share * total_steps)
        if end == first:
            raise ConfigError(
                f"train.phases[{number}].share is {one.share} of {total_steps} steps, which makes none; leave "
                "the phase out or train longer"
            )
        restarts = number == 0 or one.learning_rate is not None
        phases.append(Phase(number, first, end, config.in_phase(one), restarts))
        _check_batch(phases[-1].config, replicas, f"train.phases[{number}]: ")
        first = end
    return phases


def _check_batch(config, replicas, where=""):
    if config.batch_size % (replicas * config.accumulation):
        raise ConfigError(
            f"{where}train.batch_size {config.batch_size} can not be split into {replicas} replicas x "
            f"{config.accumulation} micro-batches; make it a multiple of {replicas * config.accumulation}"
        )


def learning_rate(phases):
    """The learning rate over all phases.

    Args:
        phases: list of Phase, as `split` gives.

    Returns:
        function from the updates done before this one, an int tensor or int, to a float32 scalar.
    """
    begins = [phase for phase in phases if phase.restarts]
    ends = [phase.first for phase in begins[1:]] + [phases[-1].end]
    rates = [
        (phase.first, schedules.learning_rate(phase.config, end - phase.first))
        for phase, end in zip(begins, ends, strict=True)
    ]

    def rate(step):
        value = rates[0][1](step)
        for first, own in rates[1:]:
            value = tf.where(step >= first, own(step - first), value)
        return value

    return rate
