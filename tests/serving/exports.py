"""Small exported models, and comparison of their answers with those of `predict`."""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.checkpoints.directory import save
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.serving.export import export
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.fine_tuning_task import FineTuningTask
from bert_tf.text import Tokenizer
from bert_tf.training.runs.finetuning import predicting
from tests.model.small import PIECES, randomize, small_config

LENGTH = 32
VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz")]


class Exported(NamedTuple):
    """A task, its model, and the folder of the version."""

    task: FineTuningTask
    model: keras.Model
    path: str


def exported(task, folder, seed=0, model_dir=None):
    """Exports a small random model of a task, and saves it like `finetune` if `model_dir` is given."""
    encoder = BertEncoder(small_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, num_layers=1))
    model = randomize(task.build(encoder), seed, scale=0.5)
    if model_dir:
        save(str(model_dir), model, encoder, task)
    return Exported(task, model, export(task, model, str(folder), check=False).path)


def classifier():
    config = ClassificationConfig(max_length=LENGTH)
    return Classification(Tokenizer(VOCABULARY), config, labels=("negative", "positive"), pair=False)


def examples_of(texts, place="rows"):
    return [TextExample(str(row), (text,), None, f"{place}:{row + 1}") for row, text in enumerate(texts)]


def by_predict(exported, examples):
    """Predictions of `predict` without an export: list of dicts."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return [prediction for _, prediction in predicting(exported.task, exported.model, examples, 32, strategy)]


def check_same(found, expected):
    """Strings must be equal, numbers within 1e-5 of the value or of 1."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    elif isinstance(expected, Mapping):
        assert list(found) == list(expected)
        for name, value in expected.items():
            check_same(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_same(one, other)
    else:
        assert found == expected
