"""All texts of a row have the vector that a teacher gives the first (Reimers and Gurevych, 2020, arXiv:2004.09813)."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive.groups import Groups, mean_where


def loss(groups: Groups, _: EmbeddingsConfig) -> tf.Tensor:
    """Mean squared difference of the values."""
    squared = tf.reduce_mean(tf.square(groups.vectors - groups.labels[:, tf.newaxis]), -1)  # [rows, texts]
    return mean_where(squared, groups.present)
