"""Classification: reading, encoding, batches and metrics."""

import collections
import json
import tracemalloc

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from scipy.special import log_softmax, softmax

from bert_tf.config import ExampleData
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
from bert_tf.inputs.datasets.sources import Source
from bert_tf.metrics.calibration import calibration_errors
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.labels import labels_of
from bert_tf.tasks.multi_label import MultiLabel
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import PIECES


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(PIECES)


@pytest.fixture(scope="module")
def task(tokenizer):
    """One for all tests, because it keeps the graph that it has traced."""
    return make(tokenizer, ("neg", "pos"), max_length=20)


def make(tokenizer, labels, *, pair=False, **config):
    return Classification(tokenizer, ClassificationConfig(**config), labels=labels, pair=pair)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(path, *, labelled=True):
    return list(Source(ExampleData(), path, TextExample).examples(ReadReport(), "test", labelled=labelled))


def test_labels_are_mapped_to_their_indices(task, tmp_path):
    columns = task.codec.to_tensors(
        read(write(tmp_path / "a.tsv", "sentence\tlabel\na b\tpos\nc\tneg\n")), labelled=True
    )
    assert columns["text"].numpy().tolist() == [b"a b", b"c"]
    assert columns["labels"].numpy().tolist() == [1, 0]


def test_a_label_seen_only_in_evaluation_counts_as_an_error_and_in_one_line(task, tmp_path):
    path = write(tmp_path / "dev.tsv", "sentence\tlabel\na\tpos\nb\tneutral\nc\tneutral\nd\tmixed\n")
    examples, read_report = read(path), ReadReport()
    task.check(examples, read_report)
    assert read_report.lines() == [
        f"never predicted: label 'neutral', 'mixed', not in the training data: 3 ({path}:3, {path}:4, {path}:5)"
    ]
    features = {"labels": task.codec.to_tensors(examples, labelled=True)["labels"], "window": tf.zeros([4], tf.int64),
                "truncated": tf.zeros([4], tf.bool)}  # fmt: skip
    logits = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 1.0], [0.0, 1.0]], np.float32)
    sums = task.objective.loss_and_metrics(features, {"logits": tf.constant(logits)})
    assert [float(value) for value in sums["accuracy"]] == [1.0, 4.0]
    np.testing.assert_allclose([float(value) for value in sums["loss"]], [-log_softmax(logits[0])[1], 1.0], rtol=1e-6)
    predictions = [
        {"label": label, "probabilities": {"neg": 0.4, "pos": 0.6}} for label in ("pos", "neg", "pos", "pos")
    ]
    gold, predicted = (["pos", "neutral", "neutral", "mixed"], [one["label"] for one in predictions])
    scores = task.benchmark.official_metrics(examples, predictions)
    assert scores["accuracy"] == 0.25
    assert scores["macro_f1"] == pytest.approx(sklearn.metrics.f1_score(gold, predicted, average="macro"))
    assert task.benchmark.baseline(examples)["accuracy"] == 0.5  # of the most frequent class, known or not
    analysis = task.benchmark.error_analysis(examples, predictions)
    assert analysis.confusion.labels == ["neg", "pos", "neutral", "mixed"]
    np.testing.assert_array_equal(
        analysis.confusion.counts,
        sklearn.metrics.confusion_matrix(gold, predicted, labels=analysis.confusion.labels),
    )
    assert [(error.expected, error.answered) for error in analysis.errors] == [
        ("neutral", "pos"),
        ("mixed", "pos"),
        ("neutral", "neg"),
    ]


def test_a_training_label_that_is_not_among_the_labels_of_the_task_is_an_error_with_file_and_line(tokenizer, tmp_path):
    examples = read(write(tmp_path / "train.tsv", "sentence\tlabel\na\tpos\n\nb\tneutral\n"))
    with pytest.raises(DataError) as raised:
        Classification.learn(tokenizer, ClassificationConfig(labels=("neg", "pos")), ExampleData(), examples, None)
    assert (
        str(raised.value)
        == f"{tmp_path}/train.tsv:4: label 'neutral' is not one of the model's: 'neg', 'pos'; correct it"
    )


def test_a_model_that_does_not_say_whether_labels_are_integers_takes_whole_floats_of_tables(tokenizer, tmp_path):
    task = Classification(tokenizer, ClassificationConfig(), labels=["1", "5"], pair=False)  # as a converted one
    examples = read(write(tmp_path / "dev.tsv", "sentence\tlabel\na\t5.0\nb\t1\n"))
    task.check(examples, ReadReport())
    assert task.codec.to_tensors(examples, labelled=True)["labels"].numpy().tolist() == [1, 0]


@pytest.mark.parametrize("kind", [Classification, MultiLabel])
def test_memory_for_many_labels_is_a_few_numbers_each(tokenizer, kind):
    labels = [f"label{number}" for number in range(1500)]
    task = kind(tokenizer, kind.Config(), labels=labels, pair=False)
    examples = [TextExample(str(row), ("a",), labels[row], f"file:{row}") for row in range(300)]
    logits = tf.random.stateless_normal([300, 1500], [0, 0])
    columns = {"text": tf.constant(["a"] * 300)}
    tracemalloc.start()
    answers = {
        name: value.numpy()
        for name, value in task.codec.aggregate_windows(columns, tf.range(300), {"logits": logits}).items()
    }
    predictions = task.codec.predictions(examples, answers)
    task.benchmark.official_metrics(examples, predictions)
    assert tracemalloc.get_traced_memory()[1] < 300 * 1500 * 16
    tracemalloc.stop()
    assert predictions[7]["probabilities"] == dict(zip(labels, answers["probabilities"][7].tolist(), strict=True))


def test_texts_without_labels_are_read_for_prediction(task, tmp_path):
    path = write(tmp_path / "a.tsv", "sentence\na\nb\n")
    assert task.codec.to_tensors(read(path, labelled=False), labelled=False).keys() == {"text"}
    with raises(DataError, "a.tsv: no column 'label'", "data.label", "predict"):
        read(path)


@pytest.mark.parametrize(
    "labels, expected",
    [
        (["b", "a", "b"], ("a", "b")),
        (["10", "9", "1", "10"], ("1", "9", "10")),
        (["x", "2", "10"], ("2", "10", "x")),
        (["²", "1"], ("1", "²")),
        (["-2", "10", "-10", "-", "2"], ("-10", "-2", "2", "10", "-")),
    ],
)
def test_labels_are_sorted_and_numbers_by_their_value(labels, expected):
    assert labels_of(labels, "file:1") == expected


def test_a_single_label_is_refused(tokenizer, tmp_path):
    path = write(tmp_path / "a.tsv", "sentence\tlabel\ty\na b\tpos\t1\nc\tpos\t0\n")
    with pytest.raises(DataError) as raised:
        Classification.learn(tokenizer, ClassificationConfig(), ExampleData(), read(path), None)
    expected = "every label is 'pos'; expected at least two: is data.label (now 'label') the right column?"
    assert str(raised.value) == f"{path}:2 and all following: {expected}"


def encode(task, *texts):
    columns = {spec.name: tf.constant(text) for spec, text in zip(task.codec.inputs(), texts, strict=True)}
    features = task.codec.preprocess(columns)
    return features["input_word_ids"], features["input_type_ids"], features["truncated"]


def test_single_texts_are_truncated_at_the_end_and_reported(task):
    texts = ["a b c", "a " * 18, "a " * 19, ""]
    ids, types, cut = encode(task, texts)
    a = PIECES.index("a")
    assert ids.to_list() == [[2, a, a + 1, a + 2, 3], [2, *[a] * 18, 3], [2, *[a] * 18, 3], [2, 3]]
    assert not any(map(any, types.to_list()))
    assert cut.numpy().tolist() == [False, False, True, False]


def test_the_longer_text_of_a_pair_is_truncated(tokenizer):
    task = make(tokenizer, ("x", "y"), pair=True, max_length=10)
    ids, types, cut = encode(task, ["a " * 9, "a", "", ""], ["b b", "b", "b", ""])
    a, b = PIECES.index("a"), PIECES.index("b")
    assert ids.to_list() == [[2, *[a] * 5, 3, b, b, 3], [2, a, 3, b, 3], [2, 3, b, 3], [2, 3, 3]]
    assert types.to_list() == [[0] * 7 + [1] * 3, [0, 0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1]]
    assert cut.numpy().tolist() == [True, False, False, False]


def make_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(list("abcdefgh"), rng.integers(0, 30))) for _ in range(count)]
    return {"text": tf.constant(texts), "labels": tf.constant(rng.integers(0, 2, count), tf.int32)}


SHUFFLED = (3, 4)


@pytest.mark.parametrize(
    "count, batch_size, seed",
    [(40, 1, SHUFFLED), (3, 32, None), pytest.param(1200, 33, None, marks=pytest.mark.slow), (1200, 33, SHUFFLED)],
)
def test_each_row_occurs_once_with_its_own_text_and_label(task, count, batch_size, seed):
    rows = make_rows(count)
    seed = seed and tf.constant(seed, tf.int64)
    seen = []
    for batch in task.codec.rows.batches(rows, batch_size, seed=seed):
        ids, mask = batch["input_word_ids"].numpy(), batch["input_mask"].numpy()
        assert ids.shape[1] % 4 == 0 or ids.shape[1] == task.max_length
        assert len(ids) <= batch_size
        for row, label, tokens, real, cut in zip(
            batch["row"].numpy(), batch["labels"].numpy(), ids, mask, batch["truncated"].numpy(), strict=True
        ):
            words = rows["text"][row].numpy().decode().split()
            assert tokens[: real.sum()].tolist() == [2, *(PIECES.index(word) for word in words[:18]), 3]
            assert not tokens[real.sum() :].any()
            assert label == rows["labels"][row].numpy()
            assert cut == (len(words) > 18)
            seen.append(row)
    assert sorted(seen) == list(range(count))


def test_lengths_are_multiples_of_four_within_the_limit(tokenizer):
    task = make(tokenizer, ("neg", "pos"), max_length=64)
    widths = {batch["input_word_ids"].shape[1] for batch in task.codec.rows.batches(make_rows(300), 8)}
    assert all(width % 4 == 0 for width in widths)
    assert len(widths) > 1


def test_the_seed_determines_the_order_and_which_rows_share_a_batch(task):
    rows = make_rows(2000)  # several pools
    batches = tf.function(
        lambda seed: task.codec.rows.batches(rows, 8, seed=seed), autograph=False
    )  # traced once for all orders

    def order(*seed):
        return [tuple(batch["row"].numpy().tolist()) for batch in batches(tf.constant(seed, tf.int64))]

    first, again, *others = order(0, 1), order(0, 1), order(0, 2), order(1, 1)
    assert first == again
    for other in others:
        assert len(set(map(frozenset, first)) & set(map(frozenset, other))) < 20


def test_rows_without_labels_give_batches_without_labels(task):
    (batch,) = task.codec.rows.batches({"text": tf.constant(["a", "b"])}, 4)
    assert "labels" not in batch


def test_metrics_are_sums_over_the_rows_with_their_number_as_weight(task):
    logits = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    labels = np.array([0, 1, 1, 0, 1, 0, 0], np.int32)
    features = {"labels": tf.constant(labels), "truncated": tf.constant([True, False] * 3 + [True])}
    features["window"] = tf.constant([0, 1, 0, 0, 0, 0, 1], tf.int64)  # two are additional windows of the previous text
    sums = task.objective.loss_and_metrics(features, {"logits": tf.constant(logits)})
    np.testing.assert_allclose(sums["loss"], [-log_softmax(logits, -1)[range(7), labels].sum(), 7], rtol=1e-6)
    np.testing.assert_allclose(sums["accuracy"], [(logits.argmax(-1) == labels).sum(), 7])
    np.testing.assert_allclose(sums["truncated_share"], [3, 5])
    assert task.objective.weights(features).keys() == set(task.objective.losses)
    assert float(task.objective.weights(features)["loss"]) == float(sums["loss"][1])
    assert set(sums) == {*task.objective.losses, *task.objective.metric_names}


def test_predictions_are_written_as_a_table(task, tmp_path):
    logits = np.array([[0.3, -2.0], [-1000.0, 1000.0]], np.float32)
    texts = {"text": tf.constant(["a", "b"])}
    answers = {
        name: value.numpy()
        for name, value in task.codec.aggregate_windows(texts, tf.range(2), {"logits": logits}).items()
    }
    examples = [TextExample(str(row), ("a",), None, "") for row in range(2)]
    path = tmp_path / "a.tsv"
    task.writers()[".tsv"](path, zip(examples, task.codec.predictions(examples, answers), strict=True))
    header, *lines = [line.split("\t") for line in path.read_text().splitlines()]
    assert header == ["label", "neg", "pos"]
    assert [line[0] for line in lines] == ["neg", "pos"]
    np.testing.assert_allclose(np.float64([line[1:] for line in lines]), softmax(logits, -1), atol=1e-6)


def test_error_analysis_has_confusions_most_confident_errors_and_intervals_of_every_metric(tokenizer):
    labels, random = ("x", "y", "z", "unused"), np.random.default_rng(0)
    task = make(tokenizer, labels)
    gold, sure = random.integers(0, 3, 200), random.dirichlet([1] * 3, 200)
    examples = [TextExample(str(n), (f"text {n}",), labels[label], f"file:{n}") for n, label in enumerate(gold)]
    predictions = [
        {"label": labels[row.argmax()], "probabilities": dict(zip(labels, [*row, 0.0], strict=True))} for row in sure
    ]
    error_analysis = task.benchmark.error_analysis(examples, predictions)

    found = [prediction["label"] for prediction in predictions]
    counts = collections.Counter(zip([example.label for example in examples], found, strict=True))
    assert tuple(error_analysis.confusion.labels) == tuple(labels)
    assert error_analysis.confusion.counts.tolist() == [[counts[one, other] for other in labels] for one in labels]

    worst = error_analysis.errors[0]
    place = max((n for n in range(200) if found[n] != labels[gold[n]]), key=lambda n: sure[n].max())
    assert worst == ((f"text {place}",), labels[gold[place]], found[place], f"file:{place}", sure[place].max())
    assert len(error_analysis.errors) == 50
    assert [case.confidence for case in error_analysis.errors] == sorted(
        (c.confidence for c in error_analysis.errors), reverse=True
    )

    assert error_analysis.intervals.keys() == {"accuracy", "macro_f1"}
    assert calibration_errors(error_analysis.confidences, error_analysis.correct)["confidence"] == pytest.approx(
        sure.max(1).mean()
    )
    assert sum(error_analysis.correct) == sum(counts[label, label] for label in labels)


@pytest.mark.parametrize(
    "format, labels",
    [
        ("tsv", ("x", "y")),
        ("glue/cola", ("0", "1")),
        ("glue/qqp", ("1", "0")),
        ("glue/mnli", ("neutral", "entailment", "contradiction")),
        ("clinc150", ("a", "b", "oos")),
    ],
)
def test_every_metric_lies_within_its_interval(tokenizer, format, labels):
    random, task = np.random.default_rng(0), make(tokenizer, labels)
    task = task.replaced(data=ExampleData(format=format))
    gold = random.choice(labels, 40)
    found = np.where(random.random(40) < 0.7, gold, random.choice(labels, 40))
    examples = [TextExample(str(n), ("a",), str(label), f"file:{n}") for n, label in enumerate(gold)]
    predictions = [{"label": str(label), "probabilities": {str(label): 1.0}} for label in found]
    scores, intervals = (
        task.benchmark.official_metrics(examples, predictions),
        task.benchmark.error_analysis(examples, predictions).intervals,
    )
    assert intervals.keys() == scores.keys()
    for name, (low, high) in intervals.items():
        assert low < scores[name] < high, name


@pytest.mark.parametrize("format, best", [("table", "accuracy"), ("klue/ynat", "macro_f1"), ("glue/mrpc", "score")])
def test_the_official_metric_selects_the_best_model(tokenizer, format, best):
    task = make(tokenizer, ("0", "1"))
    task = task.replaced(data=ExampleData(format=format))
    assert task.monitor == best
    examples = [TextExample("0", ("a",), "1", "file:0")]
    assert best in task.benchmark.official_metrics(examples, [{"label": "1"}])


def test_the_task_is_restored_from_its_settings(tokenizer):
    task = make(tokenizer, ("x", "y"), pair=True, max_length=9)
    task = task.replaced(data=ExampleData(format="nsmc", label="c"))
    again = Classification.from_settings(json.loads(json.dumps(task.settings())), tokenizer)
    assert json.dumps(again.settings()) == json.dumps(task.settings())
    assert (again.data, again.config, again.state.pair) == (task.data, task.config, True)


def test_long_texts_keep_the_configured_part(tokenizer):
    text = " ".join("abcdefgh")
    kept = {"head": "abcd", "tail": "efgh", "head_tail": "abgh"}
    for setting, letters in kept.items():
        ids, _, cut = encode(make(tokenizer, ("x", "y"), max_length=6, long_texts=setting), [text])
        assert ids.to_list() == [[2, *(PIECES.index(letter) for letter in letters), 3]], setting
        assert cut.numpy().all()


def test_windows_truncate_nothing_and_their_logits_are_averaged(tokenizer):
    task = make(tokenizer, ("x", "y"), max_length=6, long_texts="window")
    texts = ["a b c d e f", "", "a b c d"]
    features = task.codec.preprocess({"text": tf.constant(texts)})
    assert features["row"].numpy().tolist() == [0, 0, 1, 2]
    a = PIECES.index("a")
    assert features["input_word_ids"].to_list() == [[2, a, a + 1, a + 2, a + 3, 3], [2, a + 4, a + 5, 3], [2, 3],
                                                    [2, a, a + 1, a + 2, a + 3, 3]]  # fmt: skip
    assert not features["truncated"].numpy().any()
    logits = np.array([[1.0, 0.0], [3.0, 2.0], [0.0, 5.0], [1.0, 1.0]], np.float32)
    answers = task.codec.aggregate_windows({"text": tf.constant(texts)}, features["row"], {"logits": logits})
    np.testing.assert_allclose(answers["probabilities"], softmax([[2.0, 1.0], [0.0, 5.0], [1.0, 1.0]], -1), rtol=1e-6)
