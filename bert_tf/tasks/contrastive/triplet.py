"""Triplets: the second text is nearer to the first than each further one is, by a margin."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.model.sentence_vectors import unit
from bert_tf.tasks.contrastive.groups import Groups, mean_where


def loss(groups: Groups, config: EmbeddingsConfig) -> tf.Tensor:
    """Mean over all further texts, in cosine distance."""
    cosines = groups._replace(vectors=unit(groups.vectors)).products()
    too_near = tf.nn.relu(cosines[:, 1:] - cosines[:, :1] + config.margin)
    return mean_where(too_near, groups.present[:, 2:])
