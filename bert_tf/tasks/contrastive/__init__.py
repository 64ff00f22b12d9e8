"""Objectives of sentence encoders: a file each, and the table of all. An objective is a function of the vectors of a
batch and the settings of the task to a float32 scalar, the mean over the examples.
"""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.model.sentence_vectors import unit
from bert_tf.tasks.contrastive import (
    batch_hard,
    class_pairs,
    cosent,
    cosine,
    in_batch,
    kl,
    margin_mse,
    same_vectors,
    triplet,
)
from bert_tf.tasks.contrastive.groups import Groups

__all__ = ["LOSSES", "Groups", "loss_of"]

LOSSES: dict[str, Callable[[Groups, EmbeddingsConfig], tf.Tensor]] = {
    "in_batch": in_batch.loss,
    "triplet": triplet.loss,
    "cosent": cosent.loss,
    "cosine": cosine.loss,
    "batch_hard": batch_hard.loss,
    "class_pairs": class_pairs.loss,
    "margin_mse": margin_mse.loss,
    "kl": kl.loss,
    "same_vectors": same_vectors.loss,
}


def loss_of(groups: Groups, config: EmbeddingsConfig) -> tf.Tensor:
    """The loss of `config.objective`; with `matryoshka`, the sum of those of vectors that are cut and have length 1."""
    loss = LOSSES[config.objective]
    if not config.matryoshka:
        return loss(groups, config)
    cut = [groups._replace(vectors=unit(groups.vectors[..., :size])) for size in config.matryoshka]
    return tf.add_n([loss(part, config) for part in cut])
