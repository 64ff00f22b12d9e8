import math

import numpy as np
import pytest
import sklearn.metrics

from bert_tf.errors import DataError
from bert_tf.metrics.accuracy_and_f1 import accuracy, binary_f1, correlations, macro_f1, matthews, multi_label, scope
from tests.errors import raises

# tp 3, fp 1, fn 2, tn 4
LABELS = [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
PREDICTIONS = [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]


def test_two_classes_by_hand():
    assert accuracy(LABELS, PREDICTIONS) == {"accuracy": 0.7}
    assert binary_f1(LABELS, PREDICTIONS) == pytest.approx({"f1": 6 / 9})
    assert binary_f1(LABELS, PREDICTIONS, positive=0) == pytest.approx({"f1": 8 / 11})
    assert macro_f1(LABELS, PREDICTIONS) == pytest.approx({"macro_f1": (6 / 9 + 8 / 11) / 2})
    assert matthews(LABELS, PREDICTIONS) == pytest.approx({"matthews": (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6)})


def test_in_scope_accuracy_and_out_of_scope_recall_each_count_their_own_queries():
    labels, found = ["a", "b", "oos", "a", "oos", "oos"], ["a", "oos", "oos", "b", "a", "oos"]
    expected = {"in_scope_accuracy": 1 / 3, "out_of_scope_recall": 2 / 3}
    assert scope(labels, found, "oos") == pytest.approx(expected)
    assert scope([0, 1, 2, 0, 2, 2], [0, 2, 2, 1, 0, 2], 2) == pytest.approx(expected)
    assert scope(["a"], ["a"], "oos") == {"in_scope_accuracy": 1.0, "out_of_scope_recall": 0.0}


def test_classes_may_be_names_or_numbers():
    names = np.array(["no", "yes"])
    named = [names[LABELS], list(names[PREDICTIONS])]
    assert binary_f1(*named, positive="yes") == binary_f1(LABELS, PREDICTIONS)
    for metric in (accuracy, macro_f1, matthews):
        assert metric(*named) == metric(LABELS, PREDICTIONS)


def test_metrics_of_many_classes_equal_scikit_learns():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 12, 200)
    predictions = np.where(rng.random(200) < 0.7, labels, rng.integers(0, 12, 200))
    macro = sklearn.metrics.f1_score(labels, predictions, average="macro")
    assert macro_f1(labels, predictions) == pytest.approx({"macro_f1": macro})
    coefficient = sklearn.metrics.matthews_corrcoef(labels, predictions)
    assert matthews(labels, predictions) == pytest.approx({"matthews": coefficient})
    many = np.tile(labels, 1000), np.tile(predictions, 1000)
    assert matthews(*many) == pytest.approx({"matthews": coefficient})


def test_correlations_by_hand():
    # Ranks 1 2 3 4 and 1 3 2 4: 1 - 6 * 2 / (4 * 15).
    found = correlations([1, 2, 3, 4], [0, 5, 1, 50])
    assert found["spearman"] == pytest.approx(0.8)
    x, y = np.array([1, 2, 3, 4]) - 2.5, np.array([0, 5, 1, 50]) - 14
    assert found["pearson"] == pytest.approx((x @ y) / math.sqrt((x @ x) * (y @ y)))
    # Equal values share a rank: 1.5 1.5 3.
    assert correlations([1, 2, 3], [5, 5, 9])["spearman"] == pytest.approx(math.sqrt(3) / 2)


def test_constant_predictions_have_no_correlation():
    assert correlations([1, 2, 3], [2, 2, 2]) == {"pearson": 0, "spearman": 0}
    assert matthews([0, 1, 1], [1, 1, 1]) == {"matthews": 0}
    assert binary_f1([0, 0], [0, 0]) == {"f1": 0}


def test_several_labels_by_hand():
    labels = [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]]
    predictions = [[1, 1, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0]]
    # tp, fp, fn of each label: 2 1 0; 2 1 0; 0 0 0.
    expected = {"micro_f1": 8 / 10, "macro_f1": (4 / 5 + 4 / 5 + 0) / 3, "exact_match": 0.5}
    assert multi_label(labels, predictions) == pytest.approx(expected)
    one = multi_label(np.array(LABELS)[:, None], np.array(PREDICTIONS)[:, None])
    assert one == pytest.approx({"micro_f1": 6 / 9, "macro_f1": 6 / 9, "exact_match": 0.7})


@pytest.mark.parametrize("metric", [accuracy, binary_f1, macro_f1, matthews, correlations, multi_label])
def test_empty_and_mismatched_inputs_are_refused(metric):
    with raises(DataError, "no labels"):
        metric([], [])
    with raises(DataError, "2 labels", "1 predictions"):
        metric([1, 0], [1])


@pytest.mark.parametrize("metric", [accuracy, binary_f1, macro_f1, matthews])
@pytest.mark.parametrize("predictions", [["1", "0"], [0.9, 0.1], [[1], [0]]])
def test_values_that_cannot_be_compared_are_refused(metric, predictions):
    with raises(DataError, "int64", "(2,)"):
        metric([1, 0], predictions)


def test_correlations_with_predictions_that_are_not_finite_are_nan():
    assert all(map(math.isnan, correlations([1, 2, 3], [1, math.nan, 2]).values()))
    assert all(map(math.isnan, correlations([1, 2, 3], [1, math.inf, 2]).values()))


def test_invalid_values_are_refused():
    with raises(DataError, "at least two"):
        correlations([1], [1])
    with raises(DataError, "hold 2"):
        multi_label([[0, 1]], [[0, 2]])
    with raises(DataError, "(1, 2)", "(1, 3)"):
        multi_label([[0, 1]], [[0, 1, 1]])
