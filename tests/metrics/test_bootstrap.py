import numpy as np
import pytest
import sklearn.metrics
from scipy import stats

from bert_tf.errors import DataError
from bert_tf.metrics import bootstrap
from bert_tf.metrics.bootstrap import interval_of_mean, interval_of_sums, intervals_of_counts
from bert_tf.metrics.classification import accuracy, binary_f1, class_intervals, correlations, correlations_of_resamples
from bert_tf.metrics.counts import precision_recall_f1
from bert_tf.metrics.tagging import entity_counts, entity_scores
from tests.metrics.resamples import few_draws, interval


def test_nineteen_of_twenty_intervals_hold_the_true_accuracy():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(400):
        low, high = interval_of_mean(rng.random(150) < 0.8, seed=trial)
        hits += low <= 0.8 <= high
    # What 400 trials would show, in all but one of a thousand cases, if the true share were 0.93 to 0.96: at this size
    # the percentile method is known to fall a little short of 0.95.
    assert stats.binom.ppf(5e-4, 400, 0.93) <= hits <= stats.binom.ppf(1 - 5e-4, 400, 0.96)


def test_the_interval_of_a_mean_is_that_of_the_normal_law_for_many_examples():
    values = np.random.default_rng(1).normal(3, 2, 2000)
    low, high = interval_of_mean(values, resamples=4000)
    half = 1.96 * values.std() / np.sqrt(2000)
    assert low == pytest.approx(values.mean() - half, abs=0.08 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.08 * half)
    narrow = interval_of_mean(values, resamples=4000, confidence=0.5)
    assert narrow[1] - narrow[0] == pytest.approx(2 * 0.6745 / 1.96 * half, rel=0.08)


def test_every_example_is_drawn_as_often_as_the_others():
    low, high = interval_of_mean(np.arange(5), resamples=20000, confidence=1)
    assert (low, high) == (0, 4)  # of 5 ** 5 resamples, one is all first examples and one all last
    middles = [
        interval_of_sums(lambda sums, place=place: sums[:, place], np.eye(4), confidence=0)[0] for place in range(4)
    ]
    assert middles == [1] * 4


def test_sums_and_examples_give_the_same_interval():
    rng = np.random.default_rng(2)
    labels, predictions = rng.random((2, 60)) < 0.5
    found = interval(lambda *pair: binary_f1(*pair) | accuracy(*pair), labels, predictions, resamples=100)
    terms = np.stack([labels & predictions, labels | predictions, labels == predictions], 1)
    f1 = interval_of_sums(lambda sums: 2 * sums[:, 0] / (sums[:, 0] + sums[:, 1]), terms, resamples=100)
    assert found["f1"] == pytest.approx(f1)
    assert found["accuracy"] == pytest.approx(interval_of_mean(labels == predictions, resamples=100))


def test_counts_of_classes_and_examples_give_the_same_intervals(monkeypatch):
    few_draws(monkeypatch)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, 30)  # few: in some resamples a class is missing
    predictions = np.where(rng.random(30) < 0.6, labels, rng.integers(0, 4, 30))

    def scored(labels, predictions):
        return {
            "accuracy": np.mean(labels == predictions),
            "f1": sklearn.metrics.f1_score(labels == 1, predictions == 1, zero_division=0),
            "macro_f1": sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0),
            "matthews": sklearn.metrics.matthews_corrcoef(labels, predictions),
        }

    found = class_intervals(
        lambda counts: {
            "accuracy": counts.accuracy(),
            "f1": counts.f1_of("b"),
            "macro_f1": counts.macro_f1(),
            "matthews": counts.matthews(),
        },
        ["a", "b", "c", "d", "unused"],
        labels,
        predictions,
    )
    expected = interval(scored, labels, predictions)
    assert found.keys() == expected.keys()
    for name, ends in expected.items():
        assert found[name] == pytest.approx(ends), name


@pytest.mark.parametrize("examples", [3, 40])
def test_correlations_of_all_draws_at_once_are_those_of_each(examples):
    rng = np.random.default_rng(6)
    labels = rng.normal(size=examples).round(1)  # of 3 examples a draw often has but one; of 40 some are equal
    predictions = labels + rng.normal(size=examples).round(1)
    expected = interval(correlations, labels, predictions, resamples=100)
    measure = correlations_of_resamples(labels, predictions)
    found = intervals_of_counts(measure, [np.arange(examples)], [examples], resamples=100)
    assert found["pearson"] == pytest.approx(expected["pearson"])
    assert found["spearman"] == pytest.approx(expected["spearman"])
    one_draw_of_each = measure(np.array([[2] + [0] * (examples - 1), [1] * examples]))
    assert [values[0] for values in one_draw_of_each.values()] == [0, 0]
    assert {name: values[1] for name, values in one_draw_of_each.items()} == pytest.approx(
        correlations(labels, predictions)
    )


def test_sentences_are_drawn_whole():
    labels = [["B-PER", "I-PER"], ["O"], ["B-LOC", "O", "B-PER"], ["O", "O"]] * 5
    predictions = [["B-PER", "O"], ["O"], ["B-LOC", "O", "O"], ["O", "B-LOC"]] * 5
    found = interval(entity_scores, labels, predictions, resamples=50)["f1"]
    counts = entity_counts(labels, predictions)
    assert found == pytest.approx(interval_of_sums(lambda sums: precision_recall_f1(*sums.T)[2], counts, resamples=50))


def test_draws_do_not_depend_on_the_parts_they_are_made_in(monkeypatch):
    values = np.random.default_rng(3).normal(size=41)
    kinds = np.arange(41) % 3

    def counted(counts):
        return {"share": counts[:, 1] / counts.sum(1)}

    whole, of_counts = interval_of_mean(values), intervals_of_counts(counted, [kinds], [3])
    assert of_counts["share"] == pytest.approx(interval_of_mean(kinds == 1))
    monkeypatch.setattr(bootstrap, "_CHUNK", 7 * 41)
    assert interval_of_mean(values) == pytest.approx(whole, rel=1e-12)  # products are rounded as they are cut
    assert intervals_of_counts(counted, [kinds], [3]) == of_counts
    assert interval_of_mean(values, seed=1) != whole


def test_models_are_compared_on_the_same_draws():
    rng = np.random.default_rng(4)
    one = rng.random(300) < 0.7
    two = one | (rng.random(300) < 0.1)  # never wrong where the first is right
    both = {"one": interval_of_mean(one), "two": interval_of_mean(two)}
    gain = interval(lambda one, two: {"gain": two.mean() - one.mean()}, one, two)["gain"]
    assert both["two"][0] < both["one"][1]  # apart, the intervals overlap
    assert 0 < gain[0] < two.mean() - one.mean() < gain[1]


def test_no_examples_no_draws_and_lengths_that_differ_are_refused():
    with pytest.raises(DataError, match="no examples"):
        interval_of_mean([])
    with pytest.raises(DataError, match="2 values of column 1, 3 values of column 2"):
        intervals_of_counts(lambda *counts: {}, [[0, 1], [0, 1, 0]], [2, 2])
    with pytest.raises(DataError, match="0 resamples"):
        interval_of_mean([1.0], resamples=0)
