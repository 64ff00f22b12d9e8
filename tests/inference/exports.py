"""Small exported models, and comparison of their answers with those of `predict`."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import keras
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.checkpoints.directory import load_task, save
from bert_tf.config import ExampleData
from bert_tf.files import bundled
from bert_tf.inference.saved_model import export
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.multi_label import MultiLabel, MultiLabelConfig
from bert_tf.tasks.multiple_choice import MultipleChoice, MultipleChoiceConfig
from bert_tf.tasks.question_answering import QuestionAnswering, QuestionAnsweringConfig
from bert_tf.tasks.regression import Regression, RegressionConfig
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import predictor
from tests import zoo
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


def of_kind(kind="one text"):
    """A task of `TASKS`, exported once for all tests, below `served`; beside it is its model directory, `model`."""

    def make(new):
        exported(TASKS[kind](Tokenizer(VOCABULARY)), new / "served", model_dir=new / "model")

    made = zoo.made(f"tasks/{kind}", make)
    return Exported(*load_task(str(made / "model")), str(made / "served/1"))


def classifier():
    config = ClassificationConfig(max_length=LENGTH)
    return Classification(Tokenizer(VOCABULARY), config, labels=("negative", "positive"), pair=False)


PAIRS = ExampleData(second_text="other")
LABELS = ("O", "B-X", "I-X", "B-Y", "I-Y")
TASKS = {
    "one text": lambda tokenizer: classifier(),
    "pairs in windows": lambda tokenizer: Classification(
        tokenizer, ClassificationConfig(max_length=24, long_texts="window"), PAIRS, labels=("a", "b", "c"), pair=True
    ),
    "numbers of pairs": lambda tokenizer: Regression(
        tokenizer, RegressionConfig(max_length=24), PAIRS, labels=("value",), pair=True, scale=(-9.0, 9.0)
    ),
    "several labels": lambda tokenizer: MultiLabel(
        tokenizer, MultiLabelConfig(threshold=0.4, max_length=24, long_texts="head_tail"), labels=("x", "y"), pair=False
    ),
    "words": lambda tokenizer: Tagging(tokenizer, TaggingConfig(max_length=24), labels=LABELS, unit="words"),
    "words of documents": lambda tokenizer: Tagging(
        tokenizer, TaggingConfig(max_length=24, context="document"), labels=("NOUN", "VERB"), unit="words"
    ),
    "characters": lambda tokenizer: Tagging(tokenizer, TaggingConfig(max_length=24), labels=LABELS, unit="characters"),
    "questions": lambda tokenizer: QuestionAnswering(
        tokenizer,
        QuestionAnsweringConfig(max_length=LENGTH, stride=10, n_best=3, unanswerable=True),
        ExampleData(format="squad2"),
        null_threshold=-0.5,
    ),
    "choices": lambda tokenizer: MultipleChoice(tokenizer, MultipleChoiceConfig(max_length=LENGTH)),
}


def write_rows(path, kind, count=300):
    """Writes JSON lines with the input fields of all tasks, of real sentences and seven unusual ones.

    Args:
        path: pathlib.Path.
        kind: of `TASKS`; for "words" every second row has given words.
        count: number of real sentences.
    """
    texts = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:count]
    texts += ["", " ", "\u200b", "a\u2028b\u0085c\td", "가나다 ÉÀ 😀", "the good " * 40, "e\u0301 नमस्ते"]
    rows = []
    for row, text in enumerate(texts):
        other = texts[row - 7]
        choices = [other, text[::-1], text, other][: 2 + row % 3]
        asked = {"question": text[:20], "context": f"{text} {other}", "choices": choices}
        rows.append({"id": f"r{row}", "sentence": text, "text": text, "other": other} | asked)
    if kind == "words":
        for row in rows[::2]:
            row["words"] = row["text"].split() or ["-"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def examples_of(texts, place="rows"):
    return [TextExample(str(row), (text,), None, f"{place}:{row + 1}") for row, text in enumerate(texts)]


def by_predict(exported, examples):
    """Predictions of `predict` without an export: list of dicts."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return [prediction for _, prediction in predictor(exported.task, exported.model, strategy)(examples, 32)]


def check_same(found, expected, tolerance=1e-5):
    """Strings must be equal, numbers within `tolerance` of the value or of 1."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)
    elif isinstance(expected, Mapping):
        assert list(found) == list(expected)
        for name, value in expected.items():
            check_same(found[name], value, tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_same(one, other, tolerance)
    else:
        assert found == expected
