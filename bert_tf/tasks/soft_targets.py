"""Distillation of a task: soft targets, a teacher's answers beside the labels (Hinton et al., 2015, arXiv:1503.02531).

A teacher and its student may have different tokenizers and cut a text into different windows. Their answers are matched
by what they are about, a part of an example: the example itself, a word, a choice or a token (`Objective.answered`).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config.task_distillation import TaskDistillation
from bert_tf.errors import DataError
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks.objective import LABELLED, Objective, SoftOutput
from bert_tf.types import Array, Tensors

# Before the names of features: an output of the teacher's; where it is known, 1.0, else 0.0.
_SOFT, _KNOWN = "teacher/", "teacher_known/"
_LABEL = "label_"  # before the names of the losses of the labels
_MASKED = -1e9  # added to the logits of what is no part of the example


class Answers(NamedTuple):
    """What a teacher answers about the parts of each example, for one of its outputs.

    Attributes:
        values: float32 [parts of all examples, width]; NaN where the teacher has no answer.
        counts: int64 [examples], the number of parts of each.
    """

    values: Array
    counts: Array


def collect(parts: list[tuple[Array, Array, Array]], examples: int, locate: Callable[[int], str]) -> Answers:
    """Collects the answers of batches; where several windows answer the same, the answer is their mean.

    Args:
        parts: of each batch the outputs, float32 [rows, ...], what they are about (`Objective.answered`), and the
            example of each row, int64 [rows].
        examples: number of examples.
        locate: function from the number of an example to its location, for errors.

    Raises:
        DataError: an answer is NaN or infinite.
    """
    found: list[tuple[Array, Array, Array]] = []
    for outputs, about, rows in parts:
        is_answer = about >= 0
        of_rows = np.broadcast_to(rows.reshape([-1] + [1] * (about.ndim - 1)), about.shape)
        found.append((outputs[is_answer].reshape(int(is_answer.sum()), -1), about[is_answer], of_rows[is_answer]))
    values, about, rows = (np.concatenate(columns) for columns in zip(*found, strict=True))
    wrong = rows[~np.isfinite(values).all(1)]
    if wrong.size:
        raise DataError(
            f"{locate(int(wrong.min()))}: the teacher's answer is NaN or infinite; its weights are damaged or its "
            "training diverged: use another teacher"
        )
    counts = np.zeros(examples, np.int64)
    np.maximum.at(counts, rows, about + 1)
    place = (np.cumsum(counts) - counts)[rows] + about
    sums, times = np.zeros([counts.sum(), values.shape[1]], np.float64), np.zeros(counts.sum(), np.int64)
    np.add.at(sums, place, values)
    np.add.at(times, place, 1)
    sums[times == 0] = np.nan
    return Answers((sums / np.maximum(times, 1)[:, np.newaxis]).astype(np.float32), counts)


class SoftTargets:
    """Adds the teacher's answers to the features of a student's rows, in graph code.

    Args:
        objective: of the student's task.
        answers: of the teacher, by output.
        labelled: number of examples with labels that are learned; they are the first ones.
    """

    def __init__(self, objective: Objective, answers: Mapping[str, Answers], labelled: int) -> None:
        self._objective, self._labelled = objective, labelled
        self._answers = {
            name: (tf.constant(values), tf.constant(counts), tf.constant(np.cumsum(counts) - counts))
            for name, (values, counts) in answers.items()
        }

    def __call__(self, features: Tensors) -> Tensors:
        """Adds the answers to a batch, padded with 0 where there is none."""
        features = features | {LABELLED: features["row"] < self._labelled}
        for name, about in self._objective.answered(features).items():
            values, counts, firsts = self._answers[name]
            rows = tf.reshape(features["row"], tf.concat([[-1], tf.ones([tf.rank(about) - 1], tf.int32)], 0))
            about = tf.cast(about, tf.int64)
            has_part = (about >= 0) & (about < tf.gather(counts, rows))
            soft = tf.gather(values, tf.where(has_part, tf.gather(firsts, rows) + about, 0))
            known = has_part & ~tf.math.is_nan(soft[..., 0])
            features[_SOFT + name] = tf.where(known[..., tf.newaxis], soft, 0.0)
            features[_KNOWN + name] = tf.cast(known, tf.float32)
        return features


class Distilled(Objective):
    """The objective of a task and, for each of its `soft_outputs`, the difference to a teacher's output.

    Training minimizes (1 - weight) times the loss of the labels plus weight times that of the soft targets. Both are
    means over all rows, where those without labels have a label loss of 0, so that few labels weigh little; the metrics
    of the labels are means over the rows that have them.

    Args:
        objective: of the task.
        config: temperature and weight.
        labelled: whether all rows have labels that are learned; else the feature `labelled` tells which.
    """

    def __init__(self, objective: Objective, config: TaskDistillation, *, labelled: bool) -> None:
        self._objective, self._all_labelled = objective, labelled
        self._temperature, self._hard = config.temperature, config.weight < 1
        self._soft = {_loss_name(name): (name, output) for name, output in objective.soft_outputs.items()}
        self.losses = (*(_LABEL + name for name in objective.losses if self._hard), *self._soft)
        self.loss_weights = {
            _LABEL + name: (1 - config.weight) * objective.loss_weights.get(name, 1.0) for name in objective.losses
        } | {loss: config.weight * output.weight for loss, (_, output) in self._soft.items()}
        self.metric_names = objective.metric_names if self._hard else ()
        self.totals = objective.totals if self._hard else ()

    def build(self, encoder: BertEncoder) -> keras.Model:
        return self._objective.build(encoder)

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        """As in Objective; rows without labels count like the others."""
        soft = {loss: tf.reduce_sum(_weights(features, name, output)) for loss, (name, output) in self._soft.items()}
        hard = self._objective.weights(features) if self._hard else {}
        return {_LABEL + name: value for name, value in hard.items()} | soft

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        made: dict[str, tuple[tf.Tensor, tf.Tensor]] = {}
        for loss, (name, output) in self._soft.items():
            weights = _weights(features, name, output)
            student, teacher = output.read(outputs[name]), features[_SOFT + name]
            if output.over_parts:
                masked = _MASKED * (1 - features[_KNOWN + name])
                student, teacher = student + masked, teacher[..., 0] + masked
            values = soft_loss(output, student, teacher, self._temperature)
            made[loss] = tf.reduce_sum(values * weights), tf.reduce_sum(weights)
        if not self._hard:
            return made
        weights = self._objective.weights(features)
        if not self._all_labelled:
            rows = tf.where(features[LABELLED])[:, 0]
            features, outputs = (
                {name: tf.gather(value, rows) for name, value in columns.items()} for columns in (features, outputs)
            )
        for name, (total, weight) in self._objective.loss_and_metrics(features, outputs).items():
            if name in self._objective.losses:  # over all rows, as it is minimized
                made[_LABEL + name] = total, weights[name]
            else:
                made[name] = total, weight
        return made


def _loss_name(output: str) -> str:
    """soft_loss for logits, soft_NAME_loss for NAME_logits."""
    return f"soft_{output.removesuffix('logits')}loss"


def _weights(features: Tensors, name: str, output: SoftOutput) -> tf.Tensor:
    """float32, of each distribution or number: 1.0 where the teacher's is known, else 0.0."""
    known = features[_KNOWN + name]
    return tf.reduce_max(known, -1) if output.over_parts else known


def soft_loss(output: SoftOutput, student: tf.Tensor, teacher: tf.Tensor, temperature: float) -> tf.Tensor:
    """The difference between a student's and its teacher's output.

    Args:
        output: says what they are: for "softmax" the loss is the Kullback-Leibler divergence of the student's
            distribution from the teacher's; for "sigmoid" the mean of those of the single labels; for "number" the mean
            squared error. Both divergences are those at the temperature T, times its square, so that the gradient does
            not vanish with it (Hinton et al., 2015, section 2.1).
        student, teacher: float32 [..., width].
        temperature: divides logits.

    Returns:
        float32 [...].
    """
    if output.kind == "number":
        return tf.reduce_mean(tf.math.squared_difference(student, teacher), -1)
    student, teacher = student / temperature, teacher / temperature
    if output.kind == "softmax":
        log_p, log_q = tf.nn.log_softmax(teacher), tf.nn.log_softmax(student)
        divergence = tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), -1)
    else:
        p = tf.sigmoid(teacher)
        yes = p * (tf.math.log_sigmoid(teacher) - tf.math.log_sigmoid(student))
        no = (1 - p) * (tf.math.log_sigmoid(-teacher) - tf.math.log_sigmoid(-student))
        divergence = tf.reduce_mean(yes + no, -1)
    return temperature**2 * divergence
