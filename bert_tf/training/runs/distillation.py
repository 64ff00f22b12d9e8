"""What a run that learns from a teacher adds to fine-tuning: the student, its labels, and the teacher's answers."""

import copy
import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints.student import check_smaller, copy_layers, copy_words, with_layers
from bert_tf.config import FinetuneConfig, TaskDistillation
from bert_tf.errors import ConfigError
from bert_tf.inputs.datasets.examples import Labels
from bert_tf.inputs.datasets.sources import Examples, Source
from bert_tf.inputs.identity import tokenizer_identity
from bert_tf.model.encoder import BertEncoder, encoder_of
from bert_tf.tasks import task_of
from bert_tf.tasks.distillation import Distilled, SoftTargets
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text.base import BaseTokenizer
from bert_tf.training.evaluation import Evaluation, Split
from bert_tf.training.strategy import is_chief
from bert_tf.training.teacher import Teacher
from bert_tf.types import Json, Tensors

TEXTS = "texts"  # the role of examples without labels
ANSWERS = "teacher_answers"  # the folder in a model directory
# Values of a state that a student's examples and settings decide, if they do; all others are the teacher's.
_OWN = ("class_weights", "scale")


class Distillation:
    """The teacher of a run.

    Args:
        config: with `distillation`.
        path: of the teacher.
    """

    def __init__(self, config: FinetuneConfig, path: str) -> None:
        assert config.distillation is not None
        self._settings: TaskDistillation = config.distillation
        self._kind = task_of(config.task)
        self.teacher = Teacher(path)
        if type(self.teacher.task) is not self._kind:
            raise ConfigError(
                f"the teacher {path} was fine-tuned for {self.teacher.task.name}, and task is a "
                f"{type(config.task).__name__}, for {self._kind.name}; choose another teacher or task"
            )
        self._targets: SoftTargets | None = None

    def read(self, source: Examples) -> dict[str, Split]:
        """The examples by role, TEXTS among them if there are any."""
        splits = {
            role: Split(source, role, labelled=role != TEXTS and (role != "train" or self._settings.weight < 1))
            for role in source.roles
        }
        if texts := self._texts(source):
            splits[TEXTS] = Split(*texts, labelled=False)
        return splits

    def _texts(self, source: Examples) -> tuple[Source, str] | None:
        """Where the examples without labels are, if the settings name a file of them, and their role there."""
        path = self._settings.texts
        if not isinstance(source, Source) or not path:
            return None
        # By itself, also beside a set of TFDS or a format that has all parts in one file.
        return (Source(source.data, path, self._kind.example), "test") if os.path.isabs(path) else (source, path)

    def identities(self, source: Examples) -> Json:
        """Fingerprints of the teacher and of the examples without labels."""
        texts = self._texts(source)
        return {"teacher": self.teacher.identity} | ({TEXTS: texts[0].identity(texts[1])} if texts else {})

    def new_student(self, pooler: bool, dtype: str | None) -> tuple[BertEncoder, BaseTokenizer, Json]:
        """A new student with layers or the words of its teacher, with the teacher's tokenizer, and its identity.

        Args:
            pooler: whether the task reads the pooled output.
            dtype: as for `bert_tf.load`.
        """
        tokenizer = self.teacher.task.tokenizer
        teacher, layers = self.teacher.checkpoint.config, self._settings.layers
        if layers:
            config = with_layers(teacher, layers)
        else:
            config = self._settings.student_config(teacher, tokenizer.vocab_size)
        config = dataclasses.replace(config, pooler=pooler)
        identity = {
            "model": dataclasses.asdict(config),
            "tokenizer": tokenizer_identity(tokenizer)["fingerprint"],
        }
        student = BertEncoder(config, dtype=dtype)
        if layers:
            copy_layers(self.teacher.checkpoint, student)
        else:
            copy_words(self.teacher.checkpoint, student, tokenizer)
        return student, tokenizer, identity

    def check(self, student: BertEncoder) -> None:
        """Refuses a student that is larger than its teacher."""
        check_smaller(student.config, encoder_of(self.teacher.model).config, self.teacher.path)

    def learn(
        self, tokenizer: BaseTokenizer, config: Any, data: Any, train: Split, labels: Labels | None
    ) -> FineTuningTask:
        """The student's task: it has the labels of the teacher.

        Args:
            tokenizer, config, data: as for `FineTuningTask.learn`.
            train: the training examples.
            labels: those of the format.
        """
        teacher: Any = self.teacher.task
        of_teacher = vars(teacher.state)
        if getattr(config, "labels", ()) and tuple(config.labels) != tuple(of_teacher["labels"]):
            raise ConfigError(
                f"task.labels are {_listed(config.labels)}, and the teacher's {_listed(of_teacher['labels'])}; leave "
                "task.labels out"
            )
        if getattr(config, "unanswerable", None) != getattr(teacher.config, "unanswerable", None):
            raise ConfigError(
                f"task.unanswerable is {config.unanswerable}, but the teacher was trained with "
                f"{teacher.config.unanswerable}; set it to that"
            )
        if hasattr(config, "labels"):
            config = dataclasses.replace(config, labels=tuple(of_teacher["labels"]))
        if getattr(config, "scheme", None) == "":
            config = dataclasses.replace(config, scheme=teacher.codec.scheme or teacher.config.scheme)
        if not train.labelled:
            task = self._kind(tokenizer, config, data, **of_teacher)
        else:
            task = self._kind.learn(tokenizer, config, data, train.examples, labels)
            learned = vars(task.state)
            for name in {"labels", "intents"} & learned.keys():
                if unknown := sorted(set(learned[name]) - set(of_teacher[name])):
                    raise ConfigError(
                        f"{train.where} has the label {unknown[0]!r}, and the teacher knows only "
                        f"{_listed(of_teacher[name])}; choose other examples or another teacher"
                    )
            if learned.get("unit") != of_teacher.get("unit"):
                raise ConfigError(
                    f"{train.where} tags {learned['unit']}, and the teacher {of_teacher['unit']}; choose other "
                    "examples or another teacher"
                )
            task = task.replaced(**of_teacher | {name: learned[name] for name in _OWN if learned.get(name)})
        if task.codec.compared_by_token and (
            tokenizer_identity(tokenizer)["fingerprint"] != self.teacher.identity["tokenizer"]
        ):
            what = "characters" if "unit" in of_teacher else "positions of tokens"
            raise ConfigError(
                f"the student's tokenizer is not the teacher's, but the answers of {task.name} are about {what}; "
                "choose a student with the teacher's tokenizer"
            )
        self.teacher.share_settings(task)
        return task

    def columns(self, splits: Mapping[str, Split]) -> Tensors:
        """The columns of all training examples, those without labels last."""
        return _joined([part.columns for part in _learned(splits)])

    def prepare(
        self, task: FineTuningTask, splits: Mapping[str, Split], folder: str, strategy: tf.distribute.Strategy
    ) -> None:
        """Has the teacher answer all training examples, unless the folder holds its answers.

        Args:
            task: of the student.
            folder: in the model directory; the setting `answers` is another one.
        """
        codec = self.teacher.task.codec
        parts = _learned(splits)
        columns = _joined([codec.to_tensors(part.examples, labelled=False) for part in parts])
        locations = list(itertools.chain.from_iterable(codec.locations(part.examples) for part in parts))
        answers = self.teacher.answers(
            columns, locations, self._settings.answers or folder, strategy, write=is_chief(strategy)
        )
        labelled = len(codec.locations(splits["train"].examples)) if splits["train"].labelled else 0
        self._targets = SoftTargets(task.objective, answers, labelled)
        task.objective.start_near({name: given.values for name, given in answers.items()})

    def batches(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Adds the teacher's answers to batches of the student's rows, after `prepare`."""
        assert self._targets is not None
        return batches.map(self._targets, num_parallel_calls=tf.data.AUTOTUNE)

    def trained(self, task: FineTuningTask, splits: Mapping[str, Split]) -> FineTuningTask:
        """The task with the objective that is trained."""
        found = copy.copy(task)
        found.objective = Distilled(task.objective, self._settings, labelled=TEXTS not in splits)
        return found

    def results(self, validation: Split, batch_size: int, strategy: tf.distribute.Strategy) -> Json:
        """The teacher's size and its metrics on the validation set."""
        own = copy.copy(validation)
        own.columns = self.teacher.task.codec.to_tensors(own.examples, labelled=True)
        metrics = Evaluation(self.teacher.task, self.teacher.model, own, batch_size, strategy)()
        return {"path": self.teacher.path, "parameters": self.teacher.model.count_params(), "metrics": metrics}


def _learned(splits: Mapping[str, Split]) -> list[Split]:
    """The training examples, those without labels last."""
    return [splits[role] for role in ("train", TEXTS) if role in splits]


def _joined(parts: list[Tensors]) -> Tensors:
    return {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}


def _listed(labels: Any) -> str:
    return ", ".join(map(repr, labels[:10])) + ", ..." * (len(labels) > 10)
