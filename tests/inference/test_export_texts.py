"""Exports of every task on texts: in a process without bert_tf, the answers of predict to hundreds of real texts."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.config import ExampleData
from bert_tf.files import bundled
from bert_tf.inference.saved_model import export
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.multi_label import MultiLabel, MultiLabelConfig
from bert_tf.tasks.regression import Regression, RegressionConfig
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import predictor
from tests.inference import runtimes
from tests.model.small import PIECES, randomize, small_config

pytestmark = pytest.mark.slow  # traces and writes three models

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz")]
HOW = {"max_length": 24, "long_texts": "window"}  # most of the sentences are longer


def make(kind):
    tokenizer, encoder = Tokenizer(VOCABULARY), BertEncoder(small_config(vocab_size=len(VOCABULARY), num_layers=1))
    task = {
        "classes of pairs": lambda: Classification(
            tokenizer, ClassificationConfig(**HOW), labels=("a", "b", "c"), pair=True
        ),
        "numbers of pairs": lambda: Regression(
            tokenizer, RegressionConfig(**HOW), ExampleData(), labels=("value",), pair=True, scale=(3.25, 3.5)
        ),
        "texts apart": lambda: Regression(
            tokenizer,
            RegressionConfig(head="cosine", max_length=24),
            ExampleData(),
            labels=("value",),
            pair=True,
            scale=(0.0, 5.0),
        ),
        "several labels": lambda: MultiLabel(
            tokenizer, MultiLabelConfig(threshold=0.4, max_length=24, long_texts="head_tail"), labels=("x", "y", "z")
        ),
    }[kind]()
    return task, randomize(task.build(encoder), scale=0.5)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Kind -> task, predictions of the Python model, answers of the exported one."""
    folder = tmp_path_factory.mktemp("texts")
    texts = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:300]
    texts += ["", " ", "[MASK] [SEP]", "가나다 ÉÀ", "a" * 300]
    asked, predictions, tasks = [], {}, {}
    for kind in ("classes of pairs", "numbers of pairs", "texts apart", "several labels"):
        tasks[kind], model = make(kind)
        path = export(tasks[kind], model, str(folder / kind.replace(" ", "_")), check=False).path
        pairs = [(text, other) for text, other in zip(texts, texts[7:] + texts[:7], strict=True)]
        given = pairs if tasks[kind].state.pair else [(text,) for text in texts]
        examples = [TextExample(str(row), some, None, "") for row, some in enumerate(given)]
        predictions[kind] = [one for _, one in predictor(tasks[kind], model, STRATEGY)(examples, 32)]
        asked.append((path, [dict(zip(("text", "second_text"), some, strict=False)) for some in given]))
    sessions = runtimes.Sessions()
    for path, questions in asked:
        sessions.ask(path, questions)
    answers = sessions.answers()
    return {kind: (tasks[kind], predictions[kind], some) for kind, some in zip(tasks, answers, strict=True)}


def test_classes_of_windowed_pairs_equal_those_of_predict(answered):
    task, predictions, answers = answered["classes of pairs"]
    expected = np.array([list(one["probabilities"].values()) for one in predictions])
    np.testing.assert_allclose([answer["probabilities"] for answer in answers], expected, atol=1e-5)
    assert [answer["label"] for answer in answers] == [one["label"] for one in predictions]
    assert answers[0]["labels"] == list(task.state.labels)
    assert np.ptp(expected, 0).min() > 0.01  # the model's answers depend on the text


def test_numbers_of_windowed_pairs_equal_those_of_predict(answered):
    _, predictions, answers = answered["numbers of pairs"]
    expected = np.array([one["value"] for one in predictions])
    np.testing.assert_allclose([answer["value"] for answer in answers], expected, atol=1e-5)
    assert (expected.min(), expected.max()) == (3.25, 3.5)  # some were out of range
    assert np.unique(expected).size > 100


def test_several_labels_equal_those_of_predict(answered):
    task, predictions, answers = answered["several labels"]
    expected = np.array([list(one["probabilities"].values()) for one in predictions])
    np.testing.assert_allclose([answer["probabilities"] for answer in answers], expected, atol=1e-5)
    given = [
        [label for label, is_given in zip(task.state.labels, answer["given"], strict=True) if is_given]
        for answer in answers
    ]
    assert given == [one["labels"] for one in predictions]
    assert len(set(map(tuple, given))) > 1
    np.testing.assert_array_equal([answer["given"] for answer in answers], expected >= 0.4)
