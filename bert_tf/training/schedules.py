"""Learning-rate schedules (paper, appendix A.2; Vaswani et al., 2017, section 5.3)."""

import math
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from bert_tf.config import TrainConfig

# The updates done before this one, an int tensor or int -> float32 scalar, this update's learning rate.
Schedule: TypeAlias = Callable[[tf.Tensor | int], tf.Tensor]


def learning_rate(config: TrainConfig, total_steps: int) -> Schedule:
    """The schedule that a config describes.

    Warm-up is linear. After it, `left` is the remaining share of the updates between the end of warm-up and
    `total_steps`: 1 at first and 0 at `total_steps`. The rate is
        linear      end + (peak - end) * left
        polynomial  end + (peak - end) * left ** power
        cosine      end + (peak - end) * (1 + cos(pi * (1 - left))) / 2
        noam        peak * sqrt(warm-up updates / number of this update)
        constant    peak
        stable      peak, until the last `decay` of the updates; in these end + (peak - end) * (1 - sqrt(1 - left)),
                    where `left` is the share of these updates that remains (warm-up, stable, decay: Haegele et al.,
                    2024, arXiv:2405.18392; ModernBERT)
    From `total_steps` on, linear, polynomial, cosine and stable stay at `end`. Noam's peak is what Vaswani et al. write
    as (width * warm-up updates) ** -0.5.

    Args:
        config: resolved (`TrainConfig.resolved`), with a learning rate.
        total_steps: updates of the run.
    """
    peak, warmup = config.learning_rate, float(warmup_steps(config, total_steps))
    assert peak is not None
    least = config.end_learning_rate / peak if peak else 0.0
    # google-research/bert counts the first update of warm-up as 0, and starts the decay at 0 too.
    number = 0.0 if config.warmup_from_zero else 1.0
    fall = total_steps if config.decay_from_start else total_steps - warmup
    if config.schedule == "stable":
        fall = min(fall, config.decay * total_steps)

    def rate(step: tf.Tensor | int) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rising = (step + number) / max(warmup, 1.0)
        left = tf.clip_by_value((total_steps - step) / max(fall, 1.0), 0.0, 1.0)
        if config.schedule == "constant":
            share = 1.0
        elif config.schedule == "noam":
            share = tf.sqrt(max(warmup, 1.0) / (step + 1.0))
        else:
            share = least + (1.0 - least) * _SHAPES[config.schedule](left, config.power)
        return peak * tf.where(step < warmup, rising, share)

    return rate


# The remaining share of the rate as a function of the remaining share of the run.
_SHAPES: dict[str, Callable[[tf.Tensor, float], tf.Tensor]] = {
    "linear": lambda left, _: left,
    "polynomial": lambda left, power: left**power,
    "cosine": lambda left, _: 0.5 + 0.5 * tf.cos(math.pi * (1.0 - left)),
    "stable": lambda left, _: 1.0 - tf.sqrt(1.0 - left),
}


def warmup_steps(config: TrainConfig, total_steps: int) -> int:
    """Updates with a rising rate: `config.warmup_steps`, or the share `config.warmup` of the run, rounded down."""
    return int(config.warmup * total_steps) if config.warmup_steps is None else config.warmup_steps
