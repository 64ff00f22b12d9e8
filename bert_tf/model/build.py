"""Builds a model from an encoder and the name of a head."""

import functools
from collections.abc import Callable

import keras

from bert_tf.config import FeatureConfig
from bert_tf.model import heads
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.pretrainer import BertPretrainer
from bert_tf.model.variables import HEADS

_BUILDERS: dict[str, Callable[..., keras.Model]] = {
    "pretraining": BertPretrainer,
    "masked_lm": functools.partial(BertPretrainer, next_sentence=False),
    "next_sentence": heads.next_sentence,
    "classification": heads.classifier,
    "tagging": heads.tagger,
    "question_answering": heads.span_head,
    "multiple_choice": heads.multiple_choice_head,
    "cosine": heads.cosine,
    "classification_bilstm": heads.bilstm_classifier,
    "tagging_bilstm": heads.bilstm_tagger,
}


def build(
    encoder: BertEncoder,
    head: str | None,
    labels: int | None = None,
    features: FeatureConfig | None = None,
    *,
    frozen: bool = False,
) -> keras.Model:
    """Builds the model with the variables of `variables.variable_shapes`.

    Args:
        encoder: its variables are shared with the model.
        head: a key of `variables.HEADS`, or None for the encoder itself.
        labels: output size, for heads with labels.
        features: layers that the BiLSTM of `heads.bilstm_tagger` reads; None for the last layer.
        frozen: for taggers, whether to train the head only and leave the encoder unchanged.
    """
    if head is None:
        return encoder
    options = {"labels": labels if HEADS[head] else None, "features": features, "frozen": frozen}
    return _BUILDERS[head](encoder, **{name: value for name, value in options.items() if value})
