"""Triplets from classes: the farthest text of the same class, the nearest of another (Hermans et al., 2017)."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.model.sentence_vectors import unit
from bert_tf.tasks.contrastive.groups import Groups


def loss(groups: Groups, config: EmbeddingsConfig) -> tf.Tensor:
    """Mean over rows, in cosine distance; a text that has no other of its class is at distance 0 from it."""
    vectors = unit(groups.firsts)
    distances = 1.0 - tf.matmul(vectors, vectors, transpose_b=True)
    same = groups.labels[:, tf.newaxis] == groups.labels[tf.newaxis]
    itself = tf.eye(tf.shape(vectors)[0]) > 0
    farthest = tf.reduce_max(tf.where(same & ~itself, distances, 0.0), 1)
    largest = tf.reduce_max(distances, 1, keepdims=True)  # where there is no other class
    nearest = tf.reduce_min(tf.where(same, distances + largest, distances), 1)
    return tf.reduce_mean(tf.nn.relu(farthest - nearest + config.margin))
