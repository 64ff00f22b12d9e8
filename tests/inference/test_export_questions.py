"""Exported question answering and multiple choice: the answers of `predict` to hundreds of real questions."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.config import ExampleData
from bert_tf.inference.saved_model import export
from bert_tf.inputs.datasets.copa import read_copa
from bert_tf.inputs.datasets.examples import ChoiceExample, QuestionExample, ReadReport
from bert_tf.inputs.datasets.squad import read_squad
from bert_tf.tasks.multiple_choice import MultipleChoice, MultipleChoiceConfig
from bert_tf.tasks.question_answering import QuestionAnswering, QuestionAnsweringConfig
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import predictor
from tests.inference import runtimes
from tests.model.small import PIECES, randomize, small_config
from tests.packages import shared

pytestmark = pytest.mark.slow
LENGTH = 64
STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")


def with_model(task):
    config = small_config(vocab_size=task.tokenizer.vocab_size, max_position_embeddings=LENGTH)
    return task, randomize(task.build(BertEncoder(config)), scale=0.5)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Both tasks with model, real examples and export folder; and the answers of a new process."""
    korean = Tokenizer(shared("korean/wordpiece_vocab_32200.txt"), lower_case=False)
    questions = QuestionAnswering(
        korean,
        QuestionAnsweringConfig(max_length=LENGTH, stride=20, n_best=3, unanswerable=True),
        ExampleData(format="korquad"),
        null_threshold=-0.55,  # in the middle of this model's values
    )
    asked = read_squad(str(shared("korean/korquad/KorQuAD_v1.0_dev.json")), ReadReport())
    asked = [*itertools.islice(asked, 0, 5774, 19), QuestionExample("x", "", " \u200b", None, "")]
    letters = Tokenizer([*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz")])
    choices = MultipleChoice(letters, MultipleChoiceConfig(max_length=LENGTH))
    items = list(itertools.islice(read_copa(shared("english/copa/copa-dev.xml")), 300))
    items += [ChoiceExample("x", "", "", ("", "a", "the good"), None, "")]
    both = [(*with_model(questions), asked), (*with_model(choices), items)]
    paths = [export(task, model, str(tmp_path_factory.mktemp(task.name)), check=False).path for task, model, _ in both]
    requests = (
        [{"question": one.question, "context": one.context} for one in asked],
        [{"context": one.context, "question": one.question, "choices": one.choices} for one in items],
    )
    sessions = runtimes.Sessions()
    for path, questions in zip(paths, requests, strict=True):
        sessions.ask(path, questions)
    answers = sessions.answers()
    return [
        (task, model, examples, path, answered)
        for (task, model, examples), path, answered in zip(both, paths, answers, strict=True)
    ]


def test_answers_to_questions_equal_those_of_predict(served):
    task, model, examples, _, answers = served[0]
    assert len(answers) == len(examples) > 300
    told, empty = 0, 0
    for example, prediction in predictor(task, model, STRATEGY)(examples, 32):
        answer = answers.pop(0)
        best = [one["score"] for one in prediction["nbest"]]
        assert answer["null_odds"] == pytest.approx(prediction["null_odds"], abs=1e-3)
        np.testing.assert_allclose(answer["nbest_scores"], best, atol=1e-3)
        if abs(answer["null_odds"] - task.state.null_threshold) < 1e-3 or np.diff(best).max(initial=-1) > -1e-3:
            continue  # too close for float32
        told += 1
        empty += not answer["answer"]
        for name in ("answer", "start", "end"):
            assert answer[name] == prediction[name]
        assert answer["probability"] == pytest.approx(prediction["probability"], abs=1e-3)
        assert example.context[answer["start"] : answer["end"]] == answer["answer"]
        for name, key in (("answers", "answer"), ("starts", "start"), ("ends", "end")):
            assert answer[f"nbest_{name}"] == [one[key] for one in prediction["nbest"]]
    assert told > 200
    assert 20 < empty < told - 20  # some are answered and some are not


def test_chosen_endings_equal_those_of_predict(served):
    task, model, examples, _, answers = served[1]
    assert len(answers) == len(examples) > 300
    for answer, (_, prediction) in zip(answers, predictor(task, model, STRATEGY)(examples, 32), strict=True):
        np.testing.assert_allclose(answer["probabilities"], prediction["probabilities"], atol=1e-4)
        if abs(np.diff(sorted(answer["probabilities"])[-2:])) > 1e-4:
            assert (answer["choice"], answer["label"]) == (prediction["choice"], prediction["label"])
    assert len({answer["choice"] for answer in answers}) > 1
