"""BERT on current TensorFlow and Keras 3: from raw text to a SavedModel that TF Serving can serve."""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "BertConfig": "bert_tf.config",
    "BertEncoder": "bert_tf.model.encoder",
    "BertPretrainer": "bert_tf.model.heads",
    "Tokenizer": "bert_tf.text.tokenizer",
    "load": "bert_tf.checkpoints",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    # Imported on first use: reading the version or a config should not wait for TensorFlow.
    if name not in _MODULES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
