"""A model from an encoder and the name of its head."""

from bert_tf.model import heads
from bert_tf.model.pretrainer import BertPretrainer


def build(encoder, head, labels=None):
    """The keras.Model that has the variables of `variables.variable_shapes`.

    Args:
        encoder: BertEncoder.
        head: a key of `variables.HEADS`, or None: the encoder itself.
        labels: size of the output of a head that has labels.
    """
    if head in ("classification", "tagging"):
        return {"classification": heads.classifier, "tagging": heads.tagger}[head](encoder, labels)
    return {
        None: lambda encoder: encoder,
        "pretraining": BertPretrainer,
        "masked_lm": heads.masked_lm,
        "next_sentence": heads.next_sentence,
        "question_answering": heads.question_answerer,
        "multiple_choice": heads.chooser,
    }[head](encoder)
