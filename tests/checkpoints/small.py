"""Small checkpoints with every kind of head, random in every weight."""

import functools

import numpy as np

import bert_tf
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.model.head_table import HEADS, build, variable_shapes
from tests.model.small import FAMILY, GTE, MODERNBERT, NOMIC_BERT, PIECES, small_config

LABELS = ["no", "ja", "vielleicht é"]
# Heads that can be written in every format.
TASKS = [None, "pretraining", "masked_lm", "next_sentence", "classification", "tagging", "question_answering"]
TASKS += ["multiple_choice"]
# Architectures of families in Transformers: fields of BertConfig.
FAMILIES = {
    "bert": {},
    "roberta": {"position_offset": 2, "type_vocab_size": 1, "activation": "erf_gelu"},
    **FAMILY,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC_BERT,
    "gte": GTE,
}
_COMMON = [head for head in TASKS if head not in ("pretraining", "next_sentence")]
_WITHOUT_SPANS = [None, "masked_lm", "classification", "tagging"]
# Heads of which Transformers has a class in a family.
HEADS_OF = {
    "bert": TASKS,
    "roberta": _COMMON,
    "distilbert": _COMMON,
    "electra": [*_COMMON, "replaced_token_detection"],
    "albert": [*_COMMON, "pretraining"],
    "modernbert": _COMMON,
    "nomic_bert": _WITHOUT_SPANS,
    "gte": _WITHOUT_SPANS,
}


@functools.cache
def _tokenizer():
    return bert_tf.Tokenizer(PIECES, lower_case=False, strip_accents=True, split_cjk=False)


def small_checkpoint(head=None, seed=0, labels=LABELS, **config):
    """A Checkpoint in memory.

    Args:
        head: None or a key of HEADS.
        labels: of heads that have labels.
        config: fields of BertConfig that differ from `small_config`.
    """
    config, rng = small_config(**config), np.random.default_rng(seed)
    labels = list(labels) if head and HEADS[head].labels else None
    shapes = variable_shapes(config, head, labels and len(labels))
    values = {path: rng.normal(0, 0.3, shape).astype(np.float32) for path, shape in shapes.items()}
    tensors = {path: Tensor(value.shape, "float32", value.copy, path) for path, value in values.items()}
    settings = {"max_length": 20} | ({"labels": labels} if labels else {})
    name = head and head.removesuffix("_bilstm")
    if name != head:
        settings["head"] = "bilstm"
    task = {"name": name, "settings": settings} if head else None
    return Checkpoint(config=config, tensors=tensors, task=task, tokenizer=_tokenizer())


def model_of(checkpoint):
    """The model of a `small_checkpoint`."""
    labels = checkpoint.labels
    model = build(bert_tf.BertEncoder(checkpoint.config), checkpoint.head, labels and len(labels))
    assert {variable.path for variable in model.weights} == checkpoint.tensors.keys()
    for variable in model.weights:
        variable.assign(checkpoint.tensors[variable.path].read())
    return model


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
