"""Masked language model and next-sentence prediction (paper, section 3.1)."""

import tensorflow as tf

from bert_tf.tasks.masked_lm import MaskedLM


class Pretraining(MaskedLM):
    """Both pre-training objectives; served, it is the masked language model."""

    name = "pretraining"
    losses = (*MaskedLM.losses, "nsp_loss")
    metrics = (*MaskedLM.metrics, "nsp_accuracy")

    def weights(self, features):
        pairs = tf.shape(features["next_sentence_labels"])[0]
        return super().weights(features) | {"nsp_loss": tf.cast(pairs, tf.float32)}

    def measures(self, features, outputs):
        following, pairs = features["next_sentence_labels"], self.weights(features)["nsp_loss"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(following, outputs["nsp_logits"])
        told = tf.cast(tf.argmax(outputs["nsp_logits"], -1, tf.int32) == following, tf.float32)
        return super().measures(features, outputs) | {
            "nsp_loss": (tf.reduce_sum(loss), pairs),
            "nsp_accuracy": (tf.reduce_sum(told), pairs),
        }
