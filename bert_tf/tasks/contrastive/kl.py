"""KL divergence of the distribution over a row's texts from that of a teacher's scores."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive.groups import Groups

_NEVER = -1e9


def loss(groups: Groups, config: EmbeddingsConfig) -> tf.Tensor:
    """The mean of `divergences`."""
    return tf.reduce_mean(divergences(groups.products(), groups.labels, groups.present[:, 1:], config.temperature))


def divergences(ours: tf.Tensor, theirs: tf.Tensor, present: tf.Tensor, temperature: float) -> tf.Tensor:
    """float32 [rows], times temperature ** 2, which keeps the size of its gradient (Hinton et al., 2015).

    Args:
        ours, theirs: float32 [rows, n], scores.
        present: bool [rows, n].
    """
    absent = _NEVER * tf.cast(~present, tf.float32)
    ours, theirs = (values / temperature + absent for values in (ours, theirs))
    shares = tf.nn.softmax(theirs)
    return temperature**2 * tf.reduce_sum(shares * (tf.nn.log_softmax(theirs) - tf.nn.log_softmax(ours)), 1)
