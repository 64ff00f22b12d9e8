"""Fine-tuning of a student on a teacher's answers, beside the labels that there are or without any."""

import copy
import dataclasses
import itertools
import os
from typing import Any, Unpack

import tensorflow as tf

from bert_tf.checkpoints.student import check_smaller, copy_layers, copy_words, with_layers
from bert_tf.config import FinetuneConfig
from bert_tf.errors import ConfigError
from bert_tf.inputs.datasets.examples import Labels
from bert_tf.inputs.datasets.sources import Examples, InMemory, Source
from bert_tf.inputs.identity import tokenizer_identity
from bert_tf.model.encoder import BertEncoder, encoder_of
from bert_tf.tasks import task_of
from bert_tf.tasks.objective import check_of_examples
from bert_tf.tasks.soft_targets import Distilled, SoftTargets
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text.base import BaseTokenizer
from bert_tf.training.evaluation import Evaluation, Split
from bert_tf.training.runs.finetuning import FineTuningRun, Start, check, needs_pooler
from bert_tf.training.runs.run import Place, PlaceOptions
from bert_tf.training.strategy import is_chief
from bert_tf.training.teacher import Teacher
from bert_tf.types import Json, Tensors

TEXTS = "texts"  # the role of examples without labels
ANSWERS = "teacher_answers"  # the folder in a model directory
# Values of a state that a student's examples and settings decide, if they do; all others are the teacher's.
_OWN = ("class_weights", "scale")


class TaskDistillationRun(FineTuningRun):
    """Fine-tunes a student, which learns from a teacher's answers.

    Args:
        config: with `distillation`.
        data, place, like: as for `FineTuningRun`.
        start: the student; None for a new one, that of config.distillation.
        teacher: a model that was fine-tuned for the task.
        answers: folder for the teacher's answers, unless config.distillation names one; "" for one in the directory of
            the run.
    """

    program = "distill"

    def __init__(
        self,
        config: FinetuneConfig,
        data: str | InMemory,
        start: Start | None,
        place: Place,
        *,
        teacher: Start,
        answers: str = "",
        like: Json | None = None,
    ) -> None:
        assert config.distillation is not None
        self._settings, self._kind = config.distillation, task_of(config.task)
        self.teacher = Teacher(teacher.path, teacher.checkpoint)
        if type(self.teacher.task) is not self._kind:
            raise ConfigError(
                f"the teacher {teacher.path} was fine-tuned for {self.teacher.task.name}, and task is a "
                f"{type(config.task).__name__}, for {self._kind.name}; choose another teacher or task"
            )
        self._folder = answers
        self._targets: SoftTargets | None = None
        super().__init__(config, data, start, place, like=like, teacher=teacher.path)
        check_of_examples(self._own.objective, "distillation")
        # What is trained has another objective.
        self.task = copy.copy(self._own)
        self.task.objective = Distilled(self._own.objective, self._settings, labelled=TEXTS not in self.splits)

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
        own = {"teacher": self.teacher.identity} | ({TEXTS: texts[0].identity(texts[1])} if texts else {})
        return super().identities(source) | own

    def open_encoder(self, dtype: str | None) -> tuple[BertEncoder, BaseTokenizer, Json]:
        """The student, its tokenizer and its identity.

        A new one has layers or the words of its teacher, and the teacher's tokenizer.
        """
        if self._start:
            if found := self._settings.of_new_student:
                raise ConfigError(
                    f"--init names the student {self._start.path}, and {found[0]} another, new one; leave one of them "
                    "out"
                )
            return super().open_encoder(dtype)
        tokenizer = self.teacher.task.tokenizer
        teacher, layers = self.teacher.checkpoint.config, self._settings.layers
        if layers:
            student_config = with_layers(teacher, layers)
        else:
            student_config = self._settings.student_config(teacher, tokenizer.vocab_size)
        student_config = dataclasses.replace(student_config, pooler=needs_pooler(self.config.task))
        identity = {
            "model": dataclasses.asdict(student_config),
            "tokenizer": tokenizer_identity(tokenizer)["fingerprint"],
        }
        student = BertEncoder(student_config, dtype=dtype)
        if layers:
            copy_layers(self.teacher.checkpoint, student)
        else:
            copy_words(self.teacher.checkpoint, student, tokenizer)
        return student, tokenizer, identity

    def learn(self, tokenizer: BaseTokenizer, labels: Labels | None) -> FineTuningTask:
        """The student's task: it has the labels of the teacher."""
        check_smaller(self.encoder.config, encoder_of(self.teacher.model).config, self.teacher.path)
        task = self._task(tokenizer, labels)
        if task.codec.compared_by_token and (
            tokenizer_identity(tokenizer)["fingerprint"] != self.teacher.identity["tokenizer"]
        ):
            what = "characters" if "unit" in vars(self.teacher.task.state) else "positions of tokens"
            raise ConfigError(
                f"the student's tokenizer is not the teacher's, but the answers of {task.name} are about {what}; "
                "choose a student with the teacher's tokenizer"
            )
        self.teacher.share_settings(task)
        return task

    def _task(self, tokenizer: BaseTokenizer, labels: Labels | None) -> FineTuningTask:
        config: Any = self.config.task
        train, data = self.splits["train"], self.config.data
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
            return self._kind(tokenizer, config, data, **of_teacher)
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
        return task.replaced(**of_teacher | {name: learned[name] for name in _OWN if learned.get(name)})

    def columns(self) -> Tensors:
        """The columns of all training examples, those without labels last."""
        return _joined([part.columns for part in self._learned()])

    def batches(self, epoch: tf.Tensor | int) -> tf.data.Dataset:
        """The batches of an epoch with the teacher's answers, after `prepare`."""
        assert self._targets is not None
        return super().batches(epoch).map(self._targets, num_parallel_calls=tf.data.AUTOTUNE)

    def prepare(self) -> None:
        """Has the teacher answer all training examples, unless the folder of its answers holds them."""
        self.claim()
        codec, parts = self.teacher.task.codec, self._learned()
        columns = _joined([codec.to_tensors(part.examples, labelled=False) for part in parts])
        locations = list(itertools.chain.from_iterable(codec.locations(part.examples) for part in parts))
        folder = self._settings.answers or self._folder or os.path.join(self.directory, ANSWERS)
        answers = self.teacher.answers(columns, locations, folder, self.strategy, write=is_chief(self.strategy))
        train, objective = self.splits["train"], self._own.objective
        labelled = len(codec.locations(train.examples)) if train.labelled else 0
        self._targets = SoftTargets(objective, answers, labelled)
        objective.start_near({name: given.values for name, given in answers.items()})

    def finish(self, results: Json) -> None:
        super().finish(results)
        if "validation" in self.splits:
            results["teacher_results"] = self.teacher_results()

    def teacher_results(self) -> Json:
        """The teacher's size and its metrics on the validation set."""
        own, teacher = copy.copy(self.splits["validation"]), self.teacher
        own.columns = teacher.task.codec.to_tensors(own.examples, labelled=True)
        metrics = Evaluation(teacher.task, teacher.model, own, self.train.batch_size, self.strategy)()
        return {"path": teacher.path, "parameters": teacher.model.count_params(), "metrics": metrics}

    def _learned(self) -> list[Split]:
        """The training examples, those without labels last."""
        return [self.splits[role] for role in ("train", TEXTS) if role in self.splits]


def distill(
    config: FinetuneConfig,
    data: str | InMemory,
    init: str,
    model_dir: str,
    strategy: tf.distribute.Strategy,
    *,
    teacher: str,
    **how: Unpack[PlaceOptions],
) -> Json:
    """Has a student learn a task from a teacher.

    Args:
        config, data: as for `TaskDistillationRun`.
        init: the student, for `bert_tf.load`; "" for a new one.
        teacher: in any format that `bert_tf.load` reads.
        model_dir, strategy, how: fields of `Place`.

    Returns:
        The contents of results.json.
    """
    check(config, teacher=True)
    start, place = Start.open(init) if init else None, Place(model_dir, strategy, **how)
    return TaskDistillationRun(config, data, start, place, teacher=Start.open(teacher)).run()


def _joined(parts: list[Tensors]) -> Tensors:
    return {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}


def _listed(labels: Any) -> str:
    return ", ".join(map(repr, labels[:10])) + ", ..." * (len(labels) > 10)
