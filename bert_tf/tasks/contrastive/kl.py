"""KL divergence of the distribution over a row's texts from that of a teacher's scores."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive.groups import Groups

_NEVER = -1e9


def loss(groups: Groups, config: EmbeddingsConfig) -> tf.Tensor:
    """Mean over rows, times temperature ** 2, which keeps the size of its gradient (Hinton et al., 2015)."""
    absent = _NEVER * tf.cast(~groups.present[:, 1:], tf.float32)
    ours, theirs = (values / config.temperature + absent for values in (groups.products(), groups.labels))
    shares = tf.nn.softmax(theirs)
    divergence = tf.reduce_sum(shares * (tf.nn.log_softmax(theirs) - tf.nn.log_softmax(ours)), 1)
    return config.temperature**2 * tf.reduce_mean(divergence)
