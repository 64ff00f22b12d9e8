import numpy as np
import pytest

from bert_tf.errors import ConfigError, DataError
from bert_tf.metrics.glue import GLUE_SETS, check_submission, glue_scores
from tests.errors import raises


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("cola", "ax"), {"matthews"}),
        (("sst2", "mnli_matched", "mnli_mismatched", "qnli", "rte", "wnli"), {"accuracy"}),
        (("mrpc", "qqp"), {"accuracy", "f1"}),
    ],
)
def test_each_task_has_the_metrics_of_the_leaderboard(names, expected):
    for name in names:
        classes = np.array(GLUE_SETS[name].labels)
        labels, predictions = classes[[0, 1, 1, 0]], classes[[0, 1, 0, 0]]
        scores = glue_scores(name, labels, predictions)
        assert set(scores) == expected | {"score"}
        # tp 1, fn 1, tn 2
        by_hand = {"accuracy": 3 / 4, "f1": 2 / 3, "matthews": 1 * 2 / np.sqrt(1 * 2 * 2 * 3)}
        by_hand = {metric: by_hand[metric] for metric in expected}
        assert scores == pytest.approx(by_hand | {"score": np.mean(list(by_hand.values()))})


def test_the_score_of_sts_b_is_the_mean_of_two_correlations():
    scores = glue_scores("stsb", [0, 2.5, 5, 3], [0.1, 2.0, 3.0, 4.0])
    assert set(scores) == {"pearson", "spearman", "score"}
    assert scores["spearman"] == pytest.approx(0.8)
    assert scores["score"] == pytest.approx((scores["pearson"] + 0.8) / 2)


def test_nine_tasks_have_eleven_files():
    assert len(GLUE_SETS) == len({task.file for task in GLUE_SETS.values()}) == 11


def test_a_complete_submission_is_valid():
    for name, task in GLUE_SETS.items():
        values = np.array([0.0, 5.0, 2.5] if name == "stsb" else task.labels)
        check_submission(name, np.resize(values, task.test_rows))


@pytest.mark.parametrize(
    ("name", "predictions", "message"),
    [
        ("rte", ["entailment"] * 2999, ("2999", "RTE", "3000")),
        ("wnli", ["entailment"] * 146, ("1", "'entailment'", "'0'", "'1'")),
        ("qnli", ["entailment", "neutral"] + ["entailment"] * 5461, ("2", "'neutral'")),
        ("stsb", [5.2] + [1.0] * 1378, ("1 predictions", "5.2", "0", "5")),
    ],
)
def test_an_invalid_submission_is_refused(name, predictions, message):
    with raises(DataError, *message):
        check_submission(name, predictions)


def test_unknown_labels_and_tasks_are_refused():
    with raises(DataError, "label 2", "'maybe'"):
        glue_scores("rte", ["entailment", "maybe"], ["entailment"] * 2)
    with raises(DataError, "1", "'2'"):
        glue_scores("mrpc", ["1"], ["2"])
    with raises(ConfigError, "GLUE", "'mnli'"):
        glue_scores("mnli", [], [])
