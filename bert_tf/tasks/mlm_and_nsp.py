"""Pre-training: masked language model and next-sentence prediction (paper, section 3.1)."""

import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.masked_lm import MaskedLM, MaskedLMObjective
from bert_tf.tasks.objective import PredictionObjective, Predictions, Sum
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Tensors


class NextSentenceObjective(PredictionObjective):
    """Cross-entropy of next-sentence prediction."""

    losses = ("nsp_loss",)
    metric_names = ("nsp_accuracy",)

    def build(self, encoder: BertEncoder) -> keras.Model:
        return build(encoder, "next_sentence")

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"nsp_loss": tf.reduce_sum(_pairs(features))}

    def predictions(self, features: Tensors, outputs: Tensors) -> Predictions:
        following = features["next_sentence_labels"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(following, outputs["nsp_logits"])
        right = tf.cast(tf.argmax(outputs["nsp_logits"], -1, tf.int32) == following, tf.float32)
        return Predictions({"nsp_loss": loss, "nsp_accuracy": right}, _pairs(features))

    def positions(self, features: Tensors) -> tf.Tensor:
        return features.get("first_token_positions", tf.zeros_like(features["next_sentence_labels"]))


class Pretraining(MaskedLM):
    """Both pre-training objectives; when served, only the masked language model."""

    name = "pretraining"

    def __init__(self, tokenizer: BaseTokenizer, max_length: int, languages: Sequence[str] = ()) -> None:
        super().__init__(tokenizer, max_length)
        both = (MaskedLMObjective(tokenizer, max_length, languages), NextSentenceObjective(languages))
        self.objective = Sum([("", part) for part in both], functools.partial(build, head="pretraining"))


def _pairs(features: Tensors) -> tf.Tensor:
    """float32 in the shape of the labels: 1.0 for each pair, 0.0 for the unused slots of packed rows."""
    labels = features["next_sentence_labels"]
    return features.get("next_sentence_weights", tf.ones(tf.shape(labels)))
