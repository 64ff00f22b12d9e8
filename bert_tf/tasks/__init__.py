"""The tasks, by name. Adding one is adding a file and a line here."""

from bert_tf.tasks.classification import Classification
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.pretraining import Pretraining

TASKS = {task.name: task for task in (Pretraining, MaskedLM, Classification)}
