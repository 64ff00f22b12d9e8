"""MarginMSE: dot products differ as a teacher's scores do (Hofstaetter et al., 2020, arXiv:2010.02666)."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive.groups import Groups, mean_where


def loss(groups: Groups, _: EmbeddingsConfig) -> tf.Tensor:
    """Mean squared difference of the margins between the second text and each further one."""
    products, scores = groups.products(), groups.labels
    margins, expected = (values[:, :1] - values[:, 1:] for values in (products, scores))
    return mean_where(tf.square(margins - expected), groups.present[:, 2:])
