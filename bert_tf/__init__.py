"""BERT on current TensorFlow and Keras 3: from raw text to a SavedModel that TF Serving can serve."""

import importlib
from typing import TYPE_CHECKING, Any

from bert_tf import quiet
from bert_tf.version import __version__ as __version__

if TYPE_CHECKING:
    from bert_tf.api.distill import distill as distill
    from bert_tf.api.sentence_encoder import SentenceEncoder as SentenceEncoder
    from bert_tf.api.sparse_encoder import SparseEncoder as SparseEncoder
    from bert_tf.api.task_models import *  # noqa: F403
    from bert_tf.checkpoints import load as load
    from bert_tf.config import BertConfig as BertConfig
    from bert_tf.inputs.datasets.sources import read as read
    from bert_tf.model.encoder import BertEncoder as BertEncoder
    from bert_tf.model.heads import BertPretrainer as BertPretrainer
    from bert_tf.text.byte_pair import BytePairTokenizer as BytePairTokenizer
    from bert_tf.text.sentence_piece import SentencePieceTokenizer as SentencePieceTokenizer
    from bert_tf.text.wordpiece import Tokenizer as Tokenizer

_MODULES = {
    "BertConfig": "bert_tf.config",
    "BertEncoder": "bert_tf.model.encoder",
    "BertPretrainer": "bert_tf.model.heads",
    "BytePairTokenizer": "bert_tf.text.byte_pair",
    "SentencePieceTokenizer": "bert_tf.text.sentence_piece",
    "Tokenizer": "bert_tf.text.wordpiece",
    "MaskedLM": "bert_tf.api.task_models",
    "SentenceEncoder": "bert_tf.api.sentence_encoder",
    "SparseEncoder": "bert_tf.api.sparse_encoder",
    "distill": "bert_tf.api.distill",
    "load": "bert_tf.checkpoints",
    "read": "bert_tf.inputs.datasets.sources",
}

quiet.hide_logs()  # before any module imports TensorFlow


def _modules() -> dict[str, str]:
    """The module of each public name."""
    from bert_tf.config.tasks import TaskConfig  # not at once: it needs NumPy, and programs that ask a server do not

    return dict.fromkeys(TaskConfig.of_tasks, "bert_tf.api.task_models") | _MODULES


def __getattr__(name: str) -> Any:
    # Imported on first use: reading the version or a config should not wait for TensorFlow.
    if name == "__all__":
        return sorted(_modules())
    # Classes of tasks are capitalized, unlike modules of the package, whose names are looked for here, too.
    modules = _modules() if name[:1].isupper() else _MODULES
    if name not in modules:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    if name != "BertConfig":
        quiet.import_tensorflow()
    return getattr(importlib.import_module(modules[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_modules()])
