"""Every task answers an empty text like any other: `predict` needs an answer for each row."""

import json

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, softmax

from bert_tf import BertEncoder
from bert_tf.inputs.datasets.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample, tagged
from bert_tf.tasks import TASKS
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import predictor
from tests.model.small import PIECES, randomize, small_config

CLS, SEP, A = (PIECES.index(piece) for piece in ("[CLS]", "[SEP]", "a"))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(PIECES)


def made(name, tokenizer, **settings):
    """A task and a model with random weights."""
    task = TASKS[name].from_settings({"max_length": 16} | settings, tokenizer)
    return task, randomize(task.build(BertEncoder(small_config(num_layers=1))), scale=0.5)


def answered(task, model, examples):
    """The predictions of examples, in order, as written to files."""
    predicted = list(predictor(task, model, tf.distribute.OneDeviceStrategy("/cpu:0"))(examples, 2))
    assert [example for example, _ in predicted] == examples
    return [json.loads(json.dumps(prediction, default=dict)) for _, prediction in predicted]


def logits_of(model, *ids, types=None):
    """The model's logits of a single row of wordpieces, without padding."""
    inputs = {"input_word_ids": [ids], "input_type_ids": [types or [0] * len(ids)], "input_mask": [[1] * len(ids)]}
    return model({name: tf.constant(value) for name, value in inputs.items()})["logits"].numpy()[0]


@pytest.mark.parametrize(
    ("name", "long_texts"),
    [
        ("classification", "window"),
        ("regression", "head"),
        ("multi_label_classification", "head"),
        pytest.param("classification", "head", marks=pytest.mark.slow),
        pytest.param("regression", "window", marks=pytest.mark.slow),
        pytest.param("multi_label_classification", "window", marks=pytest.mark.slow),
    ],
)
def test_an_empty_text_is_predicted_from_the_special_tokens_alone(tokenizer, name, long_texts):
    labels = ["value"] if name == "regression" else ["x", "y"]
    task, model = made(name, tokenizer, labels=labels, long_texts=long_texts)
    examples = [TextExample(str(n), (text,), None, "") for n, text in enumerate(["a", "", " ", "a a"])]
    predictions = answered(task, model, examples)
    logits = logits_of(model, CLS, SEP)
    for prediction in predictions[1:3]:
        if name == "regression":
            assert prediction["value"] == pytest.approx(logits[0], abs=1e-5)
        else:
            expected = softmax(logits) if name == "classification" else expit(logits)
            np.testing.assert_allclose(list(prediction["probabilities"].values()), expected, atol=1e-5)
    assert predictions[0] != predictions[1] | {"id": "0"}


def test_a_pair_with_an_empty_half_is_predicted_from_the_other_half(tokenizer):
    task, model = made("classification", tokenizer, labels=["x", "y"], pair=True)
    examples = [TextExample(str(n), pair, None, "") for n, pair in enumerate([("a", ""), ("", "a"), ("", "")])]
    expected = [
        logits_of(model, CLS, A, SEP, SEP, types=[0, 0, 0, 1]),
        logits_of(model, CLS, SEP, A, SEP, types=[0, 0, 1, 1]),
        logits_of(model, CLS, SEP, SEP, types=[0, 0, 1]),
    ]
    found = [list(prediction["probabilities"].values()) for prediction in answered(task, model, examples)]
    np.testing.assert_allclose(found, softmax(expected, axis=1), atol=1e-5)


@pytest.mark.parametrize(
    ("context", "unit"),
    [
        ("sentence", "words"),
        pytest.param("document", "characters", marks=pytest.mark.slow),
        pytest.param("sentence", "characters", marks=pytest.mark.slow),
        pytest.param("document", "words", marks=pytest.mark.slow),
    ],
)
def test_a_sentence_without_words_has_no_tags_and_does_not_shift_others(tokenizer, unit, context):
    labels = ["O", "B-X", "I-X"]
    task, model = made("tagging", tokenizer, labels=labels, unit=unit, context=context)
    full = [tagged("0", "ab", None, 0, "", joiner="" if unit == "characters" else " ")]
    full.append(full[0]._replace(id="3", document=1))
    empty = [tagged("1", [], None, 0, ""), TaggedExample("2", "", None, None, None, 0, "")]
    predictions = answered(task, model, [full[0], *empty, full[1]])
    for prediction in predictions[1:3]:
        assert (prediction["words"], prediction["tags"], prediction["spans"]) == ([], [], [])
    assert [predictions[0], predictions[3]] == answered(task, model, full)
    assert answered(task, model, empty) == predictions[1:3]


@pytest.mark.parametrize("unanswerable", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_empty_context_has_no_answer_and_an_empty_question_may_have_any(tokenizer, unanswerable):
    task, model = made("question_answering", tokenizer, unanswerable=unanswerable, null_threshold=1e9)
    asked = [("a?", ""), ("a?", " "), ("", "a b")]
    examples = [QuestionExample(str(n), *texts, None, "") for n, texts in enumerate(asked)]
    *nothing, something = answered(task, model, examples)
    for prediction in nothing:
        assert (prediction["answer"], prediction["start"], prediction["end"], prediction["nbest"]) == ("", 0, 0, [])
    assert something["answer"] and something["answer"] in "a b"


def test_empty_choices_and_contexts_are_predicted(tokenizer):
    task, model = made("multiple_choice", tokenizer)
    asked = [("", ("a", "b")), ("a", ("", "b")), ("a", ("", ""))]
    examples = [ChoiceExample(str(n), context, "", choices, None, "") for n, (context, choices) in enumerate(asked)]
    first, second, third = answered(task, model, examples)
    assert sum(first["probabilities"]) == pytest.approx(1) and first["choice"] in (0, 1)
    # In the exported model an empty choice is no choice.
    assert (second["choice"], second["probabilities"]) == (1, [0.0, 1.0])
    assert (third["label"], third["probabilities"]) == ("", [0.0, 0.0])
