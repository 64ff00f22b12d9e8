"""Small checkpoints with every kind of head, random in every weight."""

import numpy as np

import bert_tf
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.model.heads import build
from bert_tf.model.variables import HEADS
from tests.model.small import FAMILY, PIECES, randomize, small_config

LABELS = ["no", "ja", "vielleicht é"]
# Heads that can be written in every format.
TASKS = [None, "pretraining", "masked_lm", "next_sentence", "classification", "tagging", "question_answering"]
TASKS += ["multiple_choice"]
# Architectures of families in Transformers: fields of BertConfig.
FAMILIES = {
    "bert": {},
    "roberta": {"position_offset": 2, "type_vocab_size": 1, "activation": "erf_gelu"},
    **FAMILY,
}
_COMMON = [head for head in TASKS if head not in ("pretraining", "next_sentence")]
# Heads of which Transformers has a class in a family.
HEADS_OF = {
    "bert": TASKS,
    "roberta": _COMMON,
    "distilbert": _COMMON,
    "electra": [*_COMMON, "replaced_token_detection"],
    "albert": [*_COMMON, "pretraining"],
}


def small_checkpoint(head=None, seed=0, labels=LABELS, **config):
    """A Checkpoint in memory, and its model.

    Args:
        head: None or a key of HEADS.
        labels: of heads that have labels.
        config: fields of BertConfig that differ from `small_config`.
    """
    encoder = bert_tf.BertEncoder(small_config(**config))
    labels = list(labels) if head and HEADS[head] else None
    model = randomize(build(encoder, head, labels and len(labels)), seed)
    settings = {"max_length": 20} | ({"labels": labels} if labels else {})
    name = head and head.removesuffix("_bilstm")
    if name != head:
        settings["head"] = "bilstm"
    checkpoint = Checkpoint(
        config=encoder.config,
        tensors={one.path: Tensor(tuple(one.shape), one.dtype, one.numpy, one.path) for one in model.weights},
        task={"name": name, "settings": settings} if head else None,
        tokenizer=bert_tf.Tokenizer(PIECES, lower_case=False, strip_accents=True, split_cjk=False),
    )
    return checkpoint, model


def assert_same_tokenizer(one, other):
    """Two tokenizers, or None, have the same vocabulary and settings."""
    assert (one and (one.description, one.contents())) == (other and (other.description, other.contents()))


def assert_same(one, other):
    """Two Checkpoints hold the same model, bit for bit."""
    assert one.config == other.config
    assert (one.head, one.labels) == (other.head, other.labels)
    assert one.vectors == other.vectors
    assert_same_tokenizer(one.tokenizer, other.tokenizer)
    assert one.tensors.keys() == other.tensors.keys()
    for path, tensor in one.tensors.items():
        assert other.tensors[path].dtype == tensor.dtype, path
        np.testing.assert_array_equal(other.tensors[path].read(), tensor.read(), err_msg=path)
