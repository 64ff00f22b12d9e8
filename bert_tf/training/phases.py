"""Phases of a run: batches have one shape in each; the learning rate extends over all of them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.errors import ConfigError
from bert_tf.training import schedules
from bert_tf.types import Metrics, Tensors


class Input(NamedTuple):
    """Training data of one phase.

    Attributes:
        batches: function of the epoch (int64 scalar tensor) that returns a Dataset of feature dicts, whole batches.
        prepare: applied to a micro-batch's features, inside the training step.
        evaluate: returns the metrics; None for no evaluation.
        length: maximum positions per row.
        row_flops: function from the positions of a row to the floating-point operations of training on it
            (`speed.row_flops`); None if unknown.
        check: raises an error if the data has changed since the run began; called before each checkpoint.
    """

    batches: Callable[[tf.Tensor | int], tf.data.Dataset]
    prepare: Callable[[Tensors], Tensors] = lambda features: features
    evaluate: Callable[[], Metrics] | None = None
    length: int = 1
    row_flops: Callable[[float], float] | None = None
    check: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class Phase:
    """One phase of a run.

    Attributes:
        number: 0 for the first.
        first: updates done before it.
        end: updates done after it.
        config: the settings of this phase, resolved (`TrainConfig.resolved`).
        restarts: whether the learning-rate schedule starts again.
        rotary_base: as in `PhaseConfig`.
    """

    number: int
    first: int
    end: int
    config: TrainConfig
    restarts: bool
    rotary_base: float | None = None


def split(config: TrainConfig, total_steps: int, replicas: int = 1) -> list[Phase]:
    """The phases of a run, one for a config without phases.

    Args:
        total_steps: updates of the run.
        replicas: number of replicas that share each batch.
    """
    config = config.resolved()
    if not config.phases:
        _check_batch(config, replicas)
        return [Phase(0, 0, total_steps, config, True)]
    phases: list[Phase] = []
    first, share = 0, 0.0
    for number, settings in enumerate(config.phases):
        share += settings.share
        end = round(share * total_steps)
        if end == first:
            raise ConfigError(
                f"train.phases[{number}].share is {settings.share} of {total_steps} steps, which makes none; leave "
                "the phase out or train longer"
            )
        restarts = number == 0 or settings.learning_rate is not None
        phases.append(Phase(number, first, end, config.in_phase(settings), restarts, settings.rotary_base))
        _check_batch(phases[-1].config, replicas, f"train.phases[{number}]: ")
        first = end
    return phases


def _check_batch(config: TrainConfig, replicas: int, where: str = "") -> None:
    if config.batch_size % (replicas * config.accumulation):
        raise ConfigError(
            f"{where}train.batch_size {config.batch_size} cannot be split into {replicas} replicas x "
            f"{config.accumulation} micro-batches; make it a multiple of {replicas * config.accumulation}"
        )


def learning_rate(phases: Sequence[Phase]) -> schedules.Schedule:
    """The learning rate over all phases, as returned by `split`."""
    begins = [phase for phase in phases if phase.restarts]
    ends = [phase.first for phase in begins[1:]] + [phases[-1].end]
    rates = [
        (phase.first, schedules.learning_rate(phase.config, end - phase.first))
        for phase, end in zip(begins, ends, strict=True)
    ]

    def rate(step: tf.Tensor | int) -> tf.Tensor:
        value = rates[0][1](step)
        for first, phase_rate in rates[1:]:
            value = tf.where(step >= first, phase_rate(step - first), value)
        return value

    return rate
