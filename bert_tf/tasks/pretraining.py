"""Pre-training: masked language model and next-sentence prediction (paper, section 3.1)."""

import tensorflow as tf

from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.types import Tensors


class Pretraining(MaskedLM):
    """Both pre-training objectives; when served, only the masked language model."""

    name = "pretraining"
    losses = (*MaskedLM.losses, "nsp_loss")
    metric_names = (*MaskedLM.metric_names, "nsp_accuracy")

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return super().weights(features) | {"nsp_loss": tf.reduce_sum(_pairs(features))}

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        following, counted = features["next_sentence_labels"], _pairs(features)
        pairs = tf.reduce_sum(counted)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(following, outputs["nsp_logits"])
        right = tf.cast(tf.argmax(outputs["nsp_logits"], -1, tf.int32) == following, tf.float32)
        return super().loss_and_metrics(features, outputs) | {
            "nsp_loss": (tf.reduce_sum(loss * counted), pairs),
            "nsp_accuracy": (tf.reduce_sum(right * counted), pairs),
        }


def _pairs(features: Tensors) -> tf.Tensor:
    """float32 in the shape of the labels: 1.0 for each pair, 0.0 for the unused slots of packed rows."""
    labels = features["next_sentence_labels"]
    return features.get("next_sentence_weights", tf.ones(tf.shape(labels)))
