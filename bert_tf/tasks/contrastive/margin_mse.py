"""MarginMSE: dot products differ as a teacher's scores do (Hofstaetter et al., 2020, arXiv:2010.02666)."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive.groups import Groups, mean_where


def loss(groups: Groups, _: EmbeddingsConfig) -> tf.Tensor:
    """Mean squared difference of the margins between the second text and each further one."""
    return mean_where(squared(groups.products(), groups.labels), groups.present[:, 2:])


def squared(ours: tf.Tensor, theirs: tf.Tensor) -> tf.Tensor:
    """float32 [rows, texts - 1]: squared differences of the margins of the first score of each row and the others."""
    margins, expected = (values[:, :1] - values[:, 1:] for values in (ours, theirs))
    return tf.square(margins - expected)
