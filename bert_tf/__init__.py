"""BERT on today's TensorFlow and Keras 3: from raw text to a SavedModel that TF Serving answers from."""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "BertConfig": "bert_tf.config",
    "BertEncoder": "bert_tf.model.encoder",
    "BertPretrainer": "bert_tf.model.pretrainer",
    "Tokenizer": "bert_tf.text.tokenizer",
    "load": "bert_tf.checkpoints",
}
__all__ = list(_HOMES)


def __getattr__(name):
    # Imported when first used: reading the version or a config should not wait for TensorFlow.
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__():
    return sorted([*globals(), *__all__])
