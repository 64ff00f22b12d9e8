"""The teacher of an encoder: what must be true of it before training, and the task of learning from it."""

import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.student import check_copy, check_smaller, copy_layers
from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, to_dict
from bert_tf.config.encoder_distillation import OBJECTIVES
from bert_tf.errors import ConfigError
from bert_tf.inputs.identity import tokenizer_identity, weights_identity
from bert_tf.tasks.encoder_distillation import DistilledEncoder, check_teacher
from bert_tf.text import open_tokenizer
from bert_tf.training.speed import distillation_flops
from bert_tf.types import Json


class EncoderTeacher:
    """The teacher of a pre-training run with one of the objectives of `EncoderDistillation`.

    Args:
        path: a checkpoint that `bert_tf.load` reads.
        config: of the run, checked.

    Attributes:
        tokenizer: the teacher's, which is the student's, too.
        config: its architecture.

    Raises:
        ConfigError: the objective has no teacher, or `config.tokenizer` is another tokenizer.
        DataError: `path` has no tokenizer, or is no model.
    """

    def __init__(self, path: str, config: PretrainConfig) -> None:
        self._path, self._settings, self._objective = path, config.distillation, config.data.objective
        if self._objective not in OBJECTIVES:
            raise ConfigError(
                f"data.objective is {self._objective!r}, which has no teacher; set it to one of {', '.join(OBJECTIVES)}"
            )
        self._checkpoint = open_with_warnings(path)
        self.tokenizer, self.config = self._checkpoint.tokenizer_of_text(path), self._checkpoint.config
        if config.tokenizer != TokenizerConfig():
            same = tokenizer_identity(open_tokenizer(config.tokenizer.vocab, config.tokenizer))
            if same["fingerprint"] != tokenizer_identity(self.tokenizer)["fingerprint"]:
                raise ConfigError(
                    f"tokenizer.vocab is {config.tokenizer.vocab!r}, another tokenizer than that of {path}; both "
                    "must have the same tokens: leave out the settings of the tokenizer, and the student gets the "
                    "teacher's"
                )

    def check(self, student: BertConfig, longest: int) -> None:
        """Raises ConfigError for a student that cannot learn from it, or sequences of up to `longest` tokens."""
        check_smaller(student, self.config, self._path)
        if longest > self.config.max_position_embeddings:
            raise ConfigError(
                f"data.max_length is {longest}, but the teacher has {self.config.max_position_embeddings} positions; "
                "lower data.max_length"
            )
        check_teacher(self._objective, self._settings, student, self.config, self._checkpoint.head)
        if self._settings.copy_layers:
            check_copy(student, self.config)

    def initialize(self, student: keras.Model) -> None:
        """Copies layers to the new student, if it starts with some."""
        if self._settings.copy_layers:
            copy_layers(self._checkpoint, student)

    def task(
        self,
        student: BertConfig,
        max_length: int,
        languages: Sequence[str],
        dtype: str,
        strategy: tf.distribute.Strategy,
    ) -> tuple[DistilledEncoder, Json]:
        """The task of learning from it, and its identity for run.json; it computes in this Keras policy."""
        with strategy.scope():
            encoder_alone = self._objective != "distilbert"
            checkpoint = self._checkpoint
            model = checkpoint.encoder(pooler=False, dtype=dtype) if encoder_alone else checkpoint.model(dtype)
        task = DistilledEncoder(
            self.tokenizer,
            max_length,
            languages,
            objective=self._objective,
            settings=self._settings,
            student=student,
            teacher=model,
        )
        return task, {"model": to_dict(self.config), "weights": weights_identity(model.weights)}

    def row_flops(self, student: BertConfig, data: PretrainingData) -> functools.partial[float]:
        """Function from the positions of a row to the operations of training on it, the teacher's included."""
        return functools.partial(
            distillation_flops, student=student, teacher=self.config, data=data, settings=self._settings
        )
