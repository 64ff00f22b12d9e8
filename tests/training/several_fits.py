"""Fits and opens models of different shapes, one after the other on two replicas."""

import logging

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.training.strategy import create
from tests.model.small import PIECES, small_config

TEXTS = ["the good", "a b", "b a", "good"]


class Warnings(logging.Handler):
    """Keeps TensorFlow's warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def pretrained(path, **shape):
    """Writes a pre-trained model with its head."""
    encoder = bert_tf.BertEncoder(small_config(num_layers=1, **shape))
    task = MaskedLM(bert_tf.Tokenizer(PIECES), 16)
    directory.save(path, task.build(encoder), encoder, task)
    return path


def fit(kind, labels, path):
    """Trains a class of the Python API on rows with these labels."""
    model = kind.from_pretrained(path, max_length=16)
    settings = {"epochs": 1, "batch_size": 4, "dtype": "float32", "verbose": False}
    # As `fit` finds it on a machine with several GPUs.
    with create("mirrored").scope():
        history = model.fit(TEXTS * 2, labels * (8 // len(labels)), **settings)
    assert history.history["loss"][0] > 0
    return model


def main(folder):
    small = pretrained(f"{folder}/small")
    fit(bert_tf.TextClassifier, ["p", "q"], small).save(f"{folder}/fitted")
    fit(bert_tf.TextRegressor, [0.5, 1.5], pretrained(f"{folder}/large", hidden_size=48))
    # TensorFlow warns of the fifth trace of one function; here, of the third.
    polymorphic_function.FREQUENT_TRACING_WARNING_THRESHOLD = 3
    tf.get_logger().addHandler(warnings := Warnings())
    for _ in range(3):
        bert_tf.MaskedLM.from_pretrained(small).predict(["a [MASK]"])
        bert_tf.SentenceEncoder.from_pretrained(small).encode(TEXTS)
        model = bert_tf.TextClassifier.from_pretrained(f"{folder}/fitted")
        model.predict(TEXTS)
        model.evaluate(TEXTS, ["p", "q", "p", "q"])
    assert not [message for message in warnings.messages if "retracing" in message]
