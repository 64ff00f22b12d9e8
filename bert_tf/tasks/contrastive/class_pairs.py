"""Cosines of all pairs are 1 within a class, and 0 between classes (Tunstall et al., 2022, arXiv:2209.11055)."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.model.sentence_vectors import unit
from bert_tf.tasks.contrastive.groups import Groups, mean_where


def loss(groups: Groups, _: EmbeddingsConfig | None = None) -> tf.Tensor:
    """Mean squared difference; pairs of the same class and other pairs each weigh a half, however many there are."""
    vectors = unit(groups.firsts)
    cosines = tf.matmul(vectors, vectors, transpose_b=True)
    same = groups.labels[:, tf.newaxis] == groups.labels[tf.newaxis]
    itself = tf.eye(tf.shape(vectors)[0]) > 0
    return 0.5 * (mean_where(tf.square(1.0 - cosines), same & ~itself) + mean_where(tf.square(cosines), ~same))
