"""Learning rates over a run (paper, appendix A.2; Vaswani et al., 2017, section 5.3)."""

import math

import tensorflow as tf


def learning_rate(config, total_steps):
    """The schedule that a TrainConfig describes.

    Warm-up is linear. After it, with `left` the share of the updates between its end and `total_steps` that is still
    to come, 1 at first and 0 at `total_steps`, the rate is
        linear      end + (peak - end) * left
        polynomial  end + (peak - end) * left ** power
        cosine      end + (peak - end) * (1 + cos(pi * (1 - left))) / 2
        noam        peak * sqrt(warm-up updates / number of this update)
        constant    peak
    and at `total_steps` and beyond that of the end. Noam's peak is what Vaswani et al. write as
    (width * warm-up updates) ** -0.5.

    Args:
        config: TrainConfig with nothing left to its recipe (`TrainConfig.resolved`).
        total_steps: updates of the run.

    Returns:
        function from an int tensor (or int), the updates done before this one, to a float32 scalar, this one's rate.
    """
    peak, warmup = config.learning_rate, float(warmup_steps(config, total_steps))
    least = config.end_learning_rate / peak if peak else 0.0
    # google-research/bert calls the first update 0 in the rise, and lets the fall begin at 0 too.
    number = 0.0 if config.warmup_from_zero else 1.0
    fall = total_steps if config.decay_from_start else total_steps - warmup

    def rate(step):
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


# What is left of the rate by what is left of the run.
_SHAPES = {
    "linear": lambda left, _: left,
    "polynomial": lambda left, power: left**power,
    "cosine": lambda left, _: 0.5 + 0.5 * tf.cos(math.pi * (1.0 - left)),
}


def warmup_steps(config, total_steps):
    """Updates with a rising rate: `config.warmup_steps`, or the share `config.warmup` of the run, rounded down."""
    return int(config.warmup * total_steps) if config.warmup_steps is None else config.warmup_steps
