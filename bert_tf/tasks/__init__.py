"""The tasks, by name. Adding one is adding a file and a line here."""

from bert_tf.errors import ConfigError
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.downstream import Downstream
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.multiple_choice import MultipleChoice, MultipleChoiceConfig
from bert_tf.tasks.pretraining import Pretraining
from bert_tf.tasks.question_answering import QuestionAnswering, QuestionAnsweringConfig

__all__ = ["ClassificationConfig", "Downstream", "MultipleChoiceConfig", "QuestionAnsweringConfig", "task_of"]

TASKS = {task.name: task for task in (Pretraining, MaskedLM, Classification, QuestionAnswering, MultipleChoice)}


def task_of(config):
    """The class of tasks that a `FinetuneConfig.task` is for.

    Raises:
        ConfigError: it is for none.
    """
    for task in TASKS.values():
        if issubclass(task, Downstream) and type(config) is task.Config:
            return task
    known = ", ".join(task.Config.__name__ for task in TASKS.values() if issubclass(task, Downstream))
    raise ConfigError(f"task is a {type(config).__name__}; expected one of {known}")
