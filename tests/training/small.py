"""Runs small enough for tests: the zoo's encoder on synthetic features, and a regression that is traced faster."""

import contextlib
import warnings

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.model.dropout import Dropout
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.tasks.objective import Objective
from bert_tf.tasks.task import Task
from bert_tf.text import Tokenizer
from bert_tf.training.loop import Hooks, Loop
from bert_tf.training.trainer import Trainer
from tests import zoo
from tests.zoo import LENGTH, VOCABULARY

EXAMPLES, PREDICTIONS = 96, 4


@contextlib.contextmanager
def eagerly():
    """For functions that are called once, such as those of each model of a search: tracing would take longest."""
    tf.config.run_functions_eagerly(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though")  # functions of tf.data have graphs all the same
            yield
    finally:
        tf.config.run_functions_eagerly(False)


class Stop(Exception):
    """Ends a run from inside, like a defect or a machine that goes down."""


def features(seed=7):
    """Synthetic pre-training features; later examples have more masks, so replicas get uneven numbers."""
    random = np.random.default_rng(seed)
    lengths = random.integers(6, LENGTH + 1, EXAMPLES)
    mask = np.arange(LENGTH) < lengths[:, None]
    masks = 1 + np.arange(EXAMPLES) * PREDICTIONS // EXAMPLES
    return {
        "input_word_ids": np.where(mask, random.integers(5, len(VOCABULARY), mask.shape), 0).astype("int32"),
        "input_mask": mask.astype("int32"),
        "input_type_ids": ((np.arange(LENGTH) >= lengths[:, None] // 2) & mask).astype("int32"),
        "masked_lm_positions": np.stack([random.permutation(6)[:PREDICTIONS] for _ in lengths]).astype("int32"),
        "masked_lm_ids": random.integers(5, len(VOCABULARY), [EXAMPLES, PREDICTIONS]).astype("int32"),
        "masked_lm_weights": (np.arange(PREDICTIONS) < masks[:, None]).astype("float32"),
        "next_sentence_labels": random.integers(0, 2, EXAMPLES).astype("int32"),
    }


def epochs(batch_size=8, *, shuffle=True, examples=EXAMPLES):
    """An argument for Trainer.run: a function from the epoch to its batches, in a new order every epoch."""
    tensors = {name: tf.constant(value[:examples]) for name, value in features().items()}

    def batches(epoch):
        order = tf.range(examples)
        if shuffle:
            order = tf.random.experimental.stateless_shuffle(order, tf.stack([0, tf.cast(epoch, tf.int32)]))
        rows = {name: tf.gather(value, order) for name, value in tensors.items()}
        return tf.data.Dataset.from_tensor_slices(rows).batch(batch_size)

    return batches


def with_nan(batches, nonfinite_steps, *, first_row=0, per_epoch=EXAMPLES // 8):
    """The same batches with weights of NaN in the batches of these numbers, from `first_row` on."""

    def spoiled(epoch):
        def spoil(number, rows):
            weights = rows["masked_lm_weights"]
            bad = tf.reduce_any(epoch * per_epoch + number == tf.constant(nonfinite_steps, tf.int64))
            hit = bad & (tf.range(tf.shape(weights)[0]) >= first_row)
            return rows | {"masked_lm_weights": tf.where(hit[:, tf.newaxis], float("nan"), weights)}

        return batches(epoch).enumerate().map(spoil)

    return spoiled


class _Numbers(Objective):
    """Whether a pair's first ids are large, in a model of three layers."""

    metric_names = ("error",)

    def __init__(self, dropout):
        self.dropout = dropout

    def build(self, encoder):
        ids = keras.Input((LENGTH,), dtype="int32", name="input_word_ids")
        x = Dropout(self.dropout)(keras.layers.Embedding(len(VOCABULARY), 8, name="embedding")(ids)[:, 0])
        return keras.Model({"input_word_ids": ids}, keras.layers.Dense(1, name="dense")(x))

    def weights(self, features):
        return {"loss": tf.reduce_sum(features["masked_lm_weights"])}

    def loss_and_metrics(self, features, outputs):
        weights = tf.reduce_sum(features["masked_lm_weights"], -1)
        errors = outputs[:, 0] - tf.cast(features["input_word_ids"][:, 0], tf.float32) / len(VOCABULARY)
        weight = tf.reduce_sum(weights)
        return {
            "loss": (tf.reduce_sum(weights * tf.square(errors)), weight),
            "error": (tf.reduce_sum(weights * tf.abs(errors)), weight),
        }


class Regression(Task):
    """All that the loop needs of a task."""

    name = "regression"

    def __init__(self, dropout):
        self.objective = _Numbers(dropout)

    def settings(self):
        return {"dropout": self.objective.dropout}

    @classmethod
    def arguments(cls, settings):
        return settings


def trainer(
    strategy=None,
    *,
    bert=True,
    dropout=0.0,
    dtype="float32",
    weights=3,
    total_steps=12,
    shape=None,
    flash_attention=False,
    **train,
):
    """A Trainer of BERT's pre-training or of the regression; the same `weights` seed gives the same initial weights.

    `shape` has further fields of the encoder.
    """
    strategy = strategy or tf.distribute.OneDeviceStrategy("/cpu:0")
    settings = {"batch_size": 8, "learning_rate": 1e-3, "steps": total_steps, "log_every": 4, "steps_per_call": 2}
    keras.utils.set_random_seed(weights)
    task = Pretraining(Tokenizer(VOCABULARY), LENGTH) if bert else Regression(dropout)
    shape = {"dropout": dropout, "attention_dropout": dropout} | (shape or {})
    with strategy.scope():
        model = task.build(zoo.encoder(dtype=dtype, **shape) if bert else None)
    config = TrainConfig(**(settings | train)).check()
    ways = {"jit_compile": config.jit_compile == "on", "flash_attention": flash_attention}
    return Trainer(task, model, config, strategy, total_steps, **ways)


def loop_of(trained, inputs, folder, title="test", **hooks):
    """A Loop whose Hooks have these attributes and methods."""
    around = Hooks(str(folder), title)
    vars(around).update(hooks)
    return Loop(trained, inputs, around)


def weights_of(trained):
    """dict path -> array: the weights and the optimizer's slots."""
    weights = {variable.path: variable.numpy() for variable in trained.model.weights}
    return weights | {name: variable.numpy() for name, variable in trained.optimizer.slots.items()}


def difference(ones, others):
    """Largest difference of any weight, relative to the largest value of its variable."""
    assert ones.keys() == others.keys()
    return max(np.abs(ones[name] - others[name]).max() / max(np.abs(ones[name]).max(), 1e-3) for name in ones)


def curve(points):
    """The points of a history without values that depend on the speed of the machine."""
    speeds = ("kind", "mfu")
    return [
        {
            name: value
            for name, value in point.items()
            if name not in speeds and not name.endswith(("_second", "_seconds"))
        }
        for point in points
    ]
