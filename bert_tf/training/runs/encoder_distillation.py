"""Pre-training of a student that learns from a teacher's encoder."""

import functools
from collections.abc import Callable
from typing import Unpack

import keras
import tensorflow as tf

from bert_tf.checkpoints.student import check_copy, check_smaller, copy_layers
from bert_tf.config import PretrainConfig, PretrainingData, TokenizerConfig, to_dict
from bert_tf.config.encoder_distillation import OBJECTIVES
from bert_tf.errors import ConfigError
from bert_tf.inputs.identity import tokenizer_identity, weights_identity
from bert_tf.tasks.encoder_distillation import DistilledEncoder, check_teacher
from bert_tf.text import BaseTokenizer, open_tokenizer
from bert_tf.training.runs.finetuning import Start
from bert_tf.training.runs.pretraining import PretrainingRun
from bert_tf.training.runs.run import Place, PlaceOptions
from bert_tf.training.speed import distillation_flops
from bert_tf.types import Json


class EncoderDistillationRun(PretrainingRun):
    """Pre-trains a student with one of the objectives of `config.distillation`.

    Args:
        config, place: as for `PretrainingRun`.
        teacher: the encoder from which it learns, whose tokenizer it gets.

    Raises:
        ConfigError: the objective has no teacher, or `config.tokenizer` is another tokenizer.
        DataError: the teacher has no tokenizer.
    """

    program = "distill"

    def __init__(self, config: PretrainConfig, place: Place, *, teacher: Start) -> None:
        self._teacher, self._path = teacher.checkpoint, teacher.path
        self._settings, self._objective = config.distillation, config.data.objective
        super().__init__(config, place, teacher=teacher.path)

    def check_objective(self, objective: str) -> None:
        if objective not in OBJECTIVES:
            raise ConfigError(
                f"data.objective is {objective!r}, which has no teacher; set it to one of {', '.join(OBJECTIVES)}"
            )

    def open_tokenizer(self) -> BaseTokenizer:
        config, tokenizer = self.config, self._teacher.tokenizer_of_text(self._path)
        if config.tokenizer != TokenizerConfig():
            same = tokenizer_identity(open_tokenizer(config.tokenizer.vocab, config.tokenizer))
            if same["fingerprint"] != tokenizer_identity(tokenizer)["fingerprint"]:
                raise ConfigError(
                    f"tokenizer.vocab is {config.tokenizer.vocab!r}, another tokenizer than that of {self._path}; both "
                    "must have the same tokens: leave out the settings of the tokenizer, and the student gets the "
                    "teacher's"
                )
        return tokenizer

    @property
    def vocabulary(self) -> str:
        return self._path

    def check_model(self) -> None:
        student, teacher = self.model_config, self._teacher.config
        check_smaller(student, teacher, self._path)
        if self.longest > teacher.max_position_embeddings:
            raise ConfigError(
                f"data.max_length is {self.longest}, but the teacher has {teacher.max_position_embeddings} positions; "
                "lower data.max_length"
            )
        check_teacher(self._objective, self._settings, student, teacher, self._teacher.head)
        if self._settings.copy_layers:
            check_copy(student, teacher)

    def make_task(self) -> DistilledEncoder:
        """The task of learning from the teacher, which computes in the student's number format."""
        with self.strategy.scope():
            encoder_alone = self._objective != "distilbert"
            teacher, dtype = self._teacher, self.dtype
            model = teacher.encoder(pooler=False, dtype=dtype) if encoder_alone else teacher.model(dtype)
        identity = {"model": to_dict(teacher.config), "weights": weights_identity(model.weights)}
        self.record["inputs"]["teacher"] = identity
        return DistilledEncoder(
            self.tokenizer,
            self.longest,
            self.languages,
            objective=self._objective,
            settings=self._settings,
            student=self.model_config,
            teacher=model,
        )

    def row_flops(self, data: PretrainingData) -> Callable[[float], float]:
        """Of training on a row, the teacher's part included."""
        student, teacher = self.model_config, self._teacher.config
        return functools.partial(
            distillation_flops, student=student, teacher=teacher, data=data, settings=self._settings
        )

    def initialize(self, model: keras.Model) -> None:
        """Copies layers to the new student, if it starts with some."""
        if self._settings.copy_layers:
            copy_layers(self._teacher, model)


def distill_encoder(
    config: PretrainConfig,
    model_dir: str,
    strategy: tf.distribute.Strategy,
    *,
    teacher: str,
    dry_run: bool = False,
    **how: Unpack[PlaceOptions],
) -> Json:
    """Pre-trains a student of a teacher; `teacher` is a checkpoint for `bert_tf.load`, the rest as for `pretrain`."""
    run = EncoderDistillationRun(config, Place(model_dir, strategy, **how), teacher=Start.open(teacher))
    return run.dry_run() if dry_run else run.run()
