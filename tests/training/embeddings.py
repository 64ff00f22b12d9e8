"""Training of a sentence encoder on two replicas, in its own process: python -m tests.training.embeddings FOLDER."""

import os
import sys

import keras
import numpy as np

from bert_tf.config import EmbeddingConfig, EmbeddingsConfig, ExampleData, TrainConfig
from bert_tf.inputs.datasets.examples import TextGroup
from bert_tf.tasks.embeddings import Embeddings
from bert_tf.text import Tokenizer
from bert_tf.training.phases import Input
from bert_tf.training.strategy import create
from bert_tf.training.trainer import Trainer
from tests import zoo
from tests.training.processes import virtual_devices
from tests.training.small import loop_of, weights_of
from tests.zoo import VOCABULARY

TEXTS = ["a b", "c d", "the good", "good", "b c the", "d a", "c the", "a a b", "d", "the a c b", "b b"]
# Rows of two or three texts.
EXAMPLES = [
    TextGroup(str(number), (text, f"{text} c", *([f"d {text}"] if number % 2 else [])), None, f"x[{number}]")
    for number, text in enumerate(TEXTS)
]


def task_of(examples=EXAMPLES, **settings):
    config = EmbeddingsConfig(vectors=EmbeddingConfig(pool="mean"), max_length=8, **settings).published(None, 8)
    return Embeddings.learn(Tokenizer(VOCABULARY), config, ExampleData(format="groups"), examples, None)


def features_of(task, examples=EXAMPLES):
    """The features of one batch with all examples."""
    codec = task.codec
    (batch,) = codec.training_rows.batches(codec.to_tensors(examples, labelled=True), len(examples))
    return batch


def model_of(task, dropout=0.0):
    keras.utils.set_random_seed(3)
    return task.build(zoo.encoder(dtype="float32", dropout=dropout, attention_dropout=dropout))


def train(strategy, folder, accumulation=1, updates=3):
    """dict name -> array: weights, slots and the loss after a few updates on batches of 8 and 3."""
    task = task_of()
    columns = task.codec.to_tensors(EXAMPLES, labelled=True)
    with strategy.scope():
        model = model_of(task)
    config = TrainConfig(batch_size=8, learning_rate=1e-3, accumulation=accumulation, log_every=1, dtype="float32")
    trained = Trainer(task, model, config, strategy, updates)
    batches = Input(lambda epoch: task.codec.training_rows.batches(columns, 8))
    history = loop_of(trained, [batches], os.path.join(folder, "run")).run()
    return weights_of(trained) | {"loss": np.array([point["loss"] for point in history.points])}


def main(folder):
    virtual_devices(2)
    np.savez(os.path.join(folder, "two.npz"), **train(create("mirrored"), folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
