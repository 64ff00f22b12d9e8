"""Error analysis against hand-made answers. For classification and regression see their own tests."""

import numpy as np
import pytest

from bert_tf.config import ExampleData
from bert_tf.inputs.datasets.examples import Answer, ChoiceExample, QuestionExample, tagged
from bert_tf.metrics import statistics
from bert_tf.metrics.accuracy_and_f1 import accuracy
from bert_tf.metrics.entities import KLUE_LABELS, repair
from bert_tf.tasks.benchmark import LISTED, ErrorExample, analysis_of_choices
from bert_tf.tasks.multiple_choice import MultipleChoice
from bert_tf.tasks.question_answering import QuestionAnswering, QuestionAnsweringConfig
from bert_tf.tasks.tagging import Tagging
from bert_tf.text import Tokenizer
from tests.model.small import PIECES


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(PIECES)


def test_the_most_confident_of_many_errors_are_shown():
    def shown(confidences, predicted):
        columns = np.zeros(len(predicted), int), np.array(predicted), np.array(confidences)
        analysis = analysis_of_choices(accuracy, *columns, lambda index: ((), "", "", str(index)))
        return [int(error.location) for error in analysis.errors]

    assert shown([0.5, 0.9, 0.7, 0.5, 0.7], [1, 0, 1, 1, 1]) == [2, 4, 0, 3]
    assert shown([0.5], [0]) == []
    assert len(shown([0.5] * 200, [1] * 200)) == LISTED


def found_by(task, examples, predictions):
    """The error analysis; each interval must be of a metric and contain it."""
    error_analysis, scores = (
        task.benchmark.error_analysis(examples, predictions),
        task.benchmark.official_metrics(examples, predictions),
    )
    assert error_analysis.intervals and task.monitor in error_analysis.intervals
    for name, (low, high) in error_analysis.intervals.items():
        assert low <= scores[name] <= high, name
    return error_analysis


@pytest.fixture
def resampled(monkeypatch):
    """Function from a task, examples and predictions to the intervals of the official metrics of resamples."""
    monkeypatch.setattr(statistics, "RESAMPLES", 50)

    def intervals(task, examples, predictions):
        def metrics(rows):
            # Each draw of a question counts as a question of its own.
            drawn = [examples[row]._replace(id=str(number)) for number, row in enumerate(rows)]
            return task.benchmark.official_metrics(
                drawn, [predictions[row] | {"id": one.id} for one, row in zip(drawn, rows, strict=True)]
            )

        return statistics.bootstrap_intervals(metrics, np.arange(len(examples)))

    return intervals


def sentence(words, tags, number):
    return tagged(str(number), words.split(), tags.split(), None, f"file:{number}")


def span(text, label, start, score):
    return {"text": text, "label": label, "start": start, "end": start + len(text), "score": score}


def test_entities_are_grouped_by_type_and_only_differing_ones_are_errors(tokenizer):
    task = Tagging(tokenizer, labels=("O", "B-X", "I-X", "B-Y", "I-Y"), unit="words")
    examples = [sentence("a b c d", "B-X I-X O B-Y", 0), sentence("e f", "O B-X", 1), sentence("g", "O", 2)]
    predictions = [
        {"tags": ["B-X", "O", "O", "B-Y"], "spans": [span("a", "X", 0, 0.9), span("d", "Y", 6, 0.8)]},
        {"tags": ["O", "B-X"], "spans": [span("f", "X", 2, 0.7)]},
        {"tags": ["O"], "spans": []},
    ]
    error_analysis = found_by(task, examples, predictions)
    assert error_analysis.errors == [ErrorExample(("a b c d",), "a b (X)", "a (X)", "file:0")]
    assert (error_analysis.confidences, error_analysis.correct) == ([0.9, 0.8, 0.7], [False, True, True])
    assert error_analysis.table.header[1:] == ("precision", "recall", "f1", "entities", "predicted")
    assert dict((row[0], row[1:]) for row in error_analysis.table.rows) == {
        "X": (0.5, 0.5, 0.5, 2, 2),
        "Y": (1.0, 1.0, 1.0, 1, 1),
    }


def test_parts_of_speech_have_a_row_per_tag_and_sentences_with_most_errors_come_first(tokenizer):
    task = Tagging(tokenizer, labels=("N", "V"), unit="words")
    examples = [sentence("a b", "N V", 0), sentence("c d e", "N N V", 1)]
    error_analysis = found_by(task, examples, [{"tags": ["N", "N"]}, {"tags": ["V", "V", "V"]}])
    assert [case.location for case in error_analysis.errors] == ["file:1", "file:0"]
    assert error_analysis.errors[1][1:3] == ("b (V)", "b (N)")
    assert {row[0]: row[1:] for row in error_analysis.table.rows} == {
        "N": (1 / 2, 1 / 3, 2 / 5, 3, 2),
        "V": (1 / 3, 1 / 2, 2 / 5, 2, 3),
    }


@pytest.mark.filterwarnings("error")
def test_intervals_can_be_computed_with_a_sentence_without_words(tokenizer):
    task = Tagging(tokenizer, labels=("N", "V"), unit="words")
    found_by(task, [sentence("", "", 0), sentence("a b", "N V", 1)], [{"tags": []}, {"tags": ["N", "V"]}])


@pytest.mark.parametrize(
    ("labels", "unit", "scores"),
    [
        (("N", "V"), "words", {"accuracy"}),
        (("O", "B-X", "I-X", "B-Y", "I-Y"), "words", {"precision", "recall", "f1", "accuracy"}),
        (
            KLUE_LABELS,
            "characters",
            {"precision", "recall", "f1", "accuracy", "entity_macro_f1", "character_macro_f1"},
        ),
    ],
)
def test_intervals_of_tagging_metrics_equal_those_of_scoring_each_resample(tokenizer, labels, unit, scores, resampled):
    random, task = (
        np.random.default_rng(0),
        Tagging(
            tokenizer,
            None,
            ExampleData(format="klue/ner" if unit == "characters" else "conll"),
            labels=labels,
            unit=unit,
        ),
    )
    examples, predictions = [], []
    for number in range(6):  # few: in some resamples a type is missing
        tags = random.choice(labels, 5)
        found = np.where(random.random(5) < 0.6, tags, random.choice(labels, 5)).tolist()
        found = repair(found) if len(labels) > 2 else found
        examples.append(sentence("a b c d e", " ".join(tags), number))
        predictions.append({"tags": found, "spans": []})

    expected, intervals = (
        resampled(task, examples, predictions),
        task.benchmark.error_analysis(examples, predictions).intervals,
    )
    assert intervals == {name: pytest.approx(expected[name]) for name in scores}


def question(number, context, *answers):
    answers = tuple(Answer(text, context.index(text)) for text in answers)
    return QuestionExample(str(number), f"asked {number}?", context, answers, f"file:{number}")


def answered(number, text, probability, null_odds=None):
    nbest = [{"answer": text, "probability": probability}] if text else []
    odds = {} if null_odds is None else {"null_odds": null_odds}
    return {"id": str(number), "answer": text, "probability": probability, "nbest": nbest} | odds


def test_the_most_confident_wrong_answers_come_first_with_context_of_the_right_one(tokenizer):
    task = QuestionAnswering(tokenizer, data=ExampleData(format="squad"))
    long = f"{'x ' * 500}right {'y ' * 500}"
    examples = [
        question(0, long, "right"),
        question(1, "good or bad", "good", "good"),
        question(2, "a b c", "a b", "a"),
    ]
    predictions = [answered(0, "y y", 0.4), answered(1, "bad", 0.9), answered(2, "a b", 0.8)]
    error_analysis = found_by(task, examples, predictions)
    assert [case.location for case in error_analysis.errors] == ["file:1", "file:0"]
    assert error_analysis.errors[0] == ErrorExample(("asked 1?", "good or bad"), "good", "bad", "file:1", 0.9)
    shown = error_analysis.errors[1].texts[1]
    assert shown == f"…{'x ' * 100}right {('y ' * 100)[:-1]}…"
    assert (error_analysis.confidences, error_analysis.correct) == ([0.4, 0.9, 0.8], [False, False, True])
    assert [case.expected for case in error_analysis.examples] == ["right", "good", "a b / a"]


def test_an_answer_below_the_threshold_counts_as_none(tokenizer):
    task = QuestionAnswering(tokenizer, QuestionAnsweringConfig(unanswerable=True), ExampleData(format="squad2"))
    task.state.null_threshold = 1.0
    examples = [question(0, "a b"), question(1, "a b", "a"), question(2, "a b")]
    predictions = [answered(0, "b", 0.9, null_odds=2.0), answered(1, "a", 0.8, 0.5), answered(2, "b", 0.7, 0.9)]
    error_analysis = found_by(task, examples, predictions)
    assert (error_analysis.confidences, error_analysis.correct) == ([0.8, 0.7], [True, False])
    assert [(case.location, case.expected, case.answered) for case in error_analysis.errors] == [
        ("file:2", "(no answer)", "b")
    ]
    assert error_analysis.examples[0].answered == "(no answer)"


def test_intervals_of_squad_2_metrics_equal_those_of_scoring_each_resample(tokenizer, resampled):
    random = np.random.default_rng(0)
    task = QuestionAnswering(tokenizer, QuestionAnsweringConfig(unanswerable=True), ExampleData(format="squad2"))
    examples = [question(number, "b c d e", *(["b c"] if number % 3 else [])) for number in range(30)]
    predictions = [
        answered(number, random.choice(["b c", "b", "d e", ""]), 0.5, random.normal()) for number in range(30)
    ]
    expected, intervals = (
        resampled(task, examples, predictions),
        task.benchmark.error_analysis(examples, predictions).intervals,
    )
    names = {f"{kind}{score}" for kind in ("", "HasAns_", "NoAns_", "best_") for score in ("exact", "f1")}
    assert intervals == {name: pytest.approx(expected[name]) for name in names}


def test_the_most_confident_wrong_choice_is_the_worst_error(tokenizer):
    examples = [
        ChoiceExample(str(number), f"context {number}", "which?" * number, ("one", "other"), 0, f"file:{number}")
        for number in range(3)
    ]
    predictions = [{"choice": int(share > 0.5), "probabilities": [1 - share, share]} for share in (0.25, 0.625, 0.75)]
    error_analysis = found_by(MultipleChoice(tokenizer), examples, predictions)
    assert [case.location for case in error_analysis.errors] == ["file:2", "file:1"]
    assert error_analysis.errors[1] == ErrorExample(("context 1", "which?"), "one", "other", "file:1", 0.625)
    assert (error_analysis.confidences, error_analysis.correct) == ([0.75, 0.625, 0.75], [True, False, False])
