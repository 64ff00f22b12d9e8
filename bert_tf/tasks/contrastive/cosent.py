"""CoSENT: cosines in the order of the numbers (Su, 2022, kexue.fm/archives/8847)."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive.groups import Groups


def loss(groups: Groups, config: EmbeddingsConfig) -> tf.Tensor:
    """log(1 + the sum of exp(scale * (cosine of i - cosine of j)) over all pairs i, j with a smaller number for i)."""
    scores, labels = config.scale * groups.cosines(), groups.labels
    differences = scores[:, tf.newaxis] - scores[tf.newaxis]
    wrong = tf.boolean_mask(differences, labels[:, tf.newaxis] < labels[tf.newaxis])
    return tf.reduce_logsumexp(tf.concat([[0.0], wrong], 0))
