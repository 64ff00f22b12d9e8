"""Masked language model and next-sentence prediction (paper, section 3.1)."""

import tensorflow as tf

from bert_tf.tasks.masked_lm import MaskedLM


class Pretraining(MaskedLM):
    """Both pre-training objectives; served, it is the masked language model."""

    name = "pretraining"
    losses = (*MaskedLM.losses, "nsp_loss")
    metric_names = (*MaskedLM.metric_names, "nsp_accuracy")

    def weights(self, features):
        return super().weights(features) | {"nsp_loss": tf.reduce_sum(_pairs(features))}

    def loss_and_metrics(self, features, outputs):
        following, counted = features["next_sentence_labels"], _pairs(features)
        pairs = tf.reduce_sum(counted)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(following, outputs["nsp_logits"])
        told = tf.cast(tf.argmax(outputs["nsp_logits"], -1, tf.int32) == following, tf.float32)
        return super().loss_and_metrics(features, outputs) | {
            "nsp_loss": (tf.reduce_sum(loss * counted), pairs),
            "nsp_accuracy": (tf.reduce_sum(told * counted), pairs),
        }


def _pairs(features):
    """float32 of the labels' shape: 1.0 where there is a pair; packed rows have room for more than they hold."""
    labels = features["next_sentence_labels"]
    return features.get("next_sentence_weights", tf.ones(tf.shape(labels)))
