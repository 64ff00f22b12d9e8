"""The cosine of two texts is a number (Reimers and Gurevych, 2019, arXiv:1908.10084)."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive.groups import Groups


def loss(groups: Groups, _: EmbeddingsConfig) -> tf.Tensor:
    """Mean squared difference."""
    return tf.reduce_mean(tf.square(groups.cosines() - groups.labels))
