"""`bert_tf.distill`: a small model that learns from the answers of a large one."""

import functools
import os
from collections.abc import Sequence
from typing import Any, TypeVar

import keras

from bert_tf.api import task_models
from bert_tf.api.base import FineTuned, absolute
from bert_tf.api.plain_values import Values
from bert_tf.checkpoints import directory as model_directory
from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import BertConfig, TaskDistillation
from bert_tf.config.train import BatchSize
from bert_tf.config.values import checked_arguments
from bert_tf.errors import ConfigError, DataError
from bert_tf.tasks import TASKS
from bert_tf.training.runs.finetuning import Start
from bert_tf.training.runs.task_distillation import TEXTS, TaskDistillationRun
from bert_tf.types import StrPath

_Teacher = TypeVar("_Teacher", bound=FineTuned)


@checked_arguments
def distill(
    teacher: _Teacher | StrPath,
    student: BertConfig | int | StrPath,
    texts: Values = None,
    *,
    labelled_data: Any = None,
    validation_data: Any = None,
    temperature: float = TaskDistillation.temperature,
    weight: float = TaskDistillation.weight,
    epochs: float = 3.0,
    batch_size: BatchSize = 32,
    learning_rate: float | None = None,
    directory: StrPath | None = None,
    verbose: bool | int = True,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **train: Any,
) -> _Teacher:
    """Trains a student on a teacher's answers, as `python -m bert_tf.distill` does.

    Args:
        teacher: a fine-tuned model, such as a `TextClassifier`, or its path.
        student: path of a pre-trained model to start from, in any format that `bert_tf.load` reads. Or a new student,
            which gets the teacher's tokenizer: its architecture (vocab_size 0: as large as the teacher's), for one that
            starts with the principal components of the teacher's word embeddings; or a number of layers, for one that
            starts with as many evenly spaced layers of the teacher and its embeddings.
        texts: inputs without labels, as the teacher's `predict` takes them.
        labelled_data: (x, y), or what `x` alone can be in `fit`; their labels are learned, too.
        validation_data: the same, evaluated after every epoch.
        temperature: softens the probabilities of both, as in `bert_tf.config.TaskDistillation`.
        weight: share of the teacher's answers in the loss; 1 without `labelled_data`.
        epochs: as for `TextClassifier.fit`, like all arguments below.
        batch_size: examples in an update.
        learning_rate: None for one that fits the width of the student.
        directory: keeps checkpoints, curves and the model, so that the same call resumes.
        verbose: whether to print the progress.
        callbacks: Keras callbacks.
        **train: other fields of `bert_tf.config.TrainConfig`.

    Returns:
        The student, a model of the teacher's class with its settings and labels.

    Examples:
        >>> teacher = bert_tf.TextClassifier.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> texts, labels = ["A film to remember.", "Two lost hours."], ["positive", "negative"]
        >>> history = teacher.fit(texts, labels, epochs=1)
        >>> tiny = bert_tf.BertConfig.from_name("tiny", vocab_size=0)
        >>> student = bert_tf.distill(teacher, tiny, ["A quiet, moving film.", "I left early."], epochs=1)
        >>> student.predict(["A quiet, moving film."])
        [{'label': ..., 'probabilities': {'negative': ..., 'positive': ...}}]
    """
    teacher = teacher if isinstance(teacher, FineTuned) else _opened(teacher)
    if texts is None and labelled_data is None:
        raise ConfigError("there is nothing to learn from; give texts, labelled_data or both")
    settings = TaskDistillation(temperature, weight).check()
    if labelled_data is None:
        settings.weight = 1.0
    path = ""
    if isinstance(student, BertConfig):
        settings.student = student
        checkpoint = Checkpoint(student, {}, tokenizer=teacher.tokenizer)
    elif isinstance(student, int):
        settings.layers = student
        checkpoint = Checkpoint(teacher.encoder.config, {}, tokenizer=teacher.tokenizer)
    else:
        path = absolute(student)
        checkpoint = open_with_warnings(path)
    settings.check()
    model = teacher._untrained(path, checkpoint)
    given = {}
    if labelled_data is not None:
        given["train"] = model._both(labelled_data, "labelled x")
    if texts is not None:
        given[TEXTS if given else "train"] = model._unlabelled(texts, "texts")
        if not all(given.values()):
            raise DataError("texts is empty; expected at least one text")
    if validation_data is not None:
        given["validation"] = model._both(validation_data, "validation x")
    train |= {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    # Also what `fit` has made of it.
    stored = model_directory.stored(teacher.model, teacher.encoder, teacher.task)[""]
    make_run = functools.partial(TaskDistillationRun, teacher=Start(teacher._path, stored))
    model._train(given, train, directory, bool(verbose), callbacks, settings, make_run)
    return model


def _opened(path: StrPath) -> Any:
    """The model of a path, of the class for its task."""
    task = open_with_warnings(absolute(path)).task
    kind = TASKS.get(task["name"]) if task else None
    models = [one for one in vars(task_models).values() if isinstance(one, type) and issubclass(one, FineTuned)]
    found = next((one for one in models if getattr(one, "_kind", None) is kind and kind), None)
    if found is None:
        raise DataError(f"{os.fspath(path)}: not fine-tuned; expected a teacher that knows a task")
    return found.from_pretrained(path)
