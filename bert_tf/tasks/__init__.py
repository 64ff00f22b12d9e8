"""The tasks, by name. To add one, add a file, list its class here and test it with a row in tests/tasks/harness.py."""

from typing import Any

from bert_tf.errors import ConfigError
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.embeddings import Embeddings
from bert_tf.tasks.intent_and_slots import IntentAndSlots
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.tasks.multi_label import MultiLabel
from bert_tf.tasks.multiple_choice import MultipleChoice
from bert_tf.tasks.question_answering import QuestionAnswering
from bert_tf.tasks.regression import Regression
from bert_tf.tasks.replaced_tokens import ReplacedTokenDetection
from bert_tf.tasks.reranking import Reranking
from bert_tf.tasks.sparse_encoding import SparseEncoding
from bert_tf.tasks.tagging import Tagging
from bert_tf.tasks.task import FineTuningTask, Task

__all__ = ["TASKS", "FineTuningTask", "MaskedLM", "Pretraining", "task_of"]

_PRETRAINED: tuple[type[Task], ...] = (Pretraining, MaskedLM, ReplacedTokenDetection, SparseEncoding)
_FINE_TUNED: tuple[type[FineTuningTask], ...] = (
    Classification,
    Regression,
    MultiLabel,
    Tagging,
    QuestionAnswering,
    MultipleChoice,
    IntentAndSlots,
    Embeddings,
    Reranking,
)
TASKS: dict[str, type[Task]] = {task.name: task for task in _PRETRAINED + _FINE_TUNED}


def task_of(config: Any) -> type[FineTuningTask]:
    """The class of the task that `config`, a `FinetuneConfig.task`, configures."""
    for task in _FINE_TUNED:
        if type(config) is task.Config:
            return task
    known = ", ".join(task.Config.__name__ for task in _FINE_TUNED)
    raise ConfigError(f"task is a {type(config).__name__}; expected one of {known}")
