"""A model from an encoder and the name of its head."""

import functools

from bert_tf.model import heads
from bert_tf.model.pretrainer import BertPretrainer
from bert_tf.model.variables import HEADS

_MAKERS = {
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


def build(encoder, head, labels=None, features=None, *, frozen=False):
    """The keras.Model that has the variables of `variables.variable_shapes`.

    Args:
        encoder: BertEncoder.
        head: a key of `variables.HEADS`, or None: the encoder itself.
        labels: size of the output of a head that has labels.
        features: FeatureConfig of a head that reads other layers than the last, see `heads.bilstm_tagger`.
        frozen: of a tagger, whether the encoder is not trained.

    Raises:
        ConfigError: if the head sits on a pooled output and the encoder has none.
    """
    if head is None:
        return encoder
    options = {"labels": labels if HEADS[head] else None, "features": features, "frozen": frozen}
    return _MAKERS[head](encoder, **{name: value for name, value in options.items() if value})
