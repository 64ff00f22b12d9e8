"""Rerankers: losses against formulas, files of CrossEncoders, and what is refused."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats
from scipy.special import expit, log_softmax, softmax

import bert_tf
from bert_tf.checkpoints.conversion import convert
from bert_tf.config import ExampleData, RerankerConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TextGroup
from bert_tf.tasks.reranking import Reranking
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.tasks.harness import fitted
from tests.zoo import LENGTH, VOCABULARY, pretrained

GROUPS = [("a b", "c d", "b"), ("the good", "a b c", "d d", "a"), ("c", "d a", "b")]
RANDOM = np.random.default_rng(0)
LOGITS, SCORES = RANDOM.normal(size=[3, 3]), RANDOM.normal(size=[3, 3])
PRESENT = np.array([[1, 1, 0], [1, 1, 1], [1, 1, 0]], bool)


def loss(objective, labels, activation="linear", **settings):
    examples = [TextGroup(str(row), group, None, f"x[{row}]") for row, group in enumerate(GROUPS)]
    task = Reranking.learn(Tokenizer(VOCABULARY), RerankerConfig(max_length=LENGTH), ExampleData(), examples, None)
    task = task.replaced(config=RerankerConfig(objective=objective, **settings), activation=activation)
    known = {"labels": tf.constant(labels, tf.float32), "present": tf.constant(PRESENT)}
    total, weight = task.objective.joint_loss({"scores": tf.constant(LOGITS, tf.float32)}, known)["loss"]
    return float(total / weight)


def test_losses_equal_their_formulas_without_absent_texts():
    first = np.zeros([3, 3])
    first[:, 0] = 1.0
    bce = -np.log(expit(np.where(first > 0, LOGITS, -LOGITS)))[PRESENT].mean()
    assert loss("bce", first) == pytest.approx(bce, rel=1e-5)
    assert loss("mse", SCORES) == pytest.approx(np.square(LOGITS - SCORES)[PRESENT].mean(), rel=1e-5)
    squared = np.square(expit(LOGITS) - SCORES)[PRESENT].mean()
    assert loss("mse", SCORES, activation="sigmoid") == pytest.approx(squared, rel=1e-5)
    masked, theirs = (np.where(PRESENT, values, -np.inf) for values in (LOGITS, SCORES))
    assert loss("softmax", first) == pytest.approx(-log_softmax(masked, 1)[:, 0].mean(), rel=1e-5)
    rows = zip(LOGITS, SCORES, PRESENT, strict=True)
    margins = [np.square(x[0] - x[1:] - (y[0] - y[1:]))[own[1:]] for x, y, own in rows]
    assert loss("margin_mse", SCORES) == pytest.approx(np.concatenate(margins).mean(), rel=1e-5)
    shares = softmax(theirs / 2, 1)
    logs = [np.where(PRESENT, log_softmax(values / 2, 1), 0) for values in (theirs, masked)]
    divergence = 4 * np.sum(shares * (logs[0] - logs[1]), 1).mean()
    assert loss("kl", SCORES, temperature=2.0) == pytest.approx(divergence, rel=1e-4)


def test_a_cross_encoder_is_written_and_read_with_its_activation(tmp_path):
    model = bert_tf.Reranker.from_pretrained(pretrained(), max_length=LENGTH)
    model.fit(GROUPS, epochs=1, batch_size=2, learning_rate=1e-3, verbose=False)  # bce: the sigmoid is taken
    model.save(tmp_path / "ours")
    convert(str(tmp_path / "ours"), "huggingface", str(tmp_path / "theirs"))
    again = bert_tf.Reranker.from_pretrained(tmp_path / "theirs", max_length=LENGTH)
    assert again.predict(GROUPS) == model.predict(GROUPS)
    # Without what bert_tf keeps in config.json, as a CrossEncoder is published.
    values = json.loads((tmp_path / "theirs" / "config.json").read_text())
    values.pop("bert_tf", None)
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(values))
    published = bert_tf.Reranker.from_pretrained(tmp_path / "theirs", max_length=LENGTH)
    number = bert_tf.TextRegressor.from_pretrained(tmp_path / "theirs", max_length=LENGTH)
    pairs = [group[:2] for group in GROUPS]
    scores = [one["scores"][0] for one in published.predict(pairs)]
    np.testing.assert_allclose(scores, [one["value"] for one in number.predict(pairs)], rtol=1e-5)
    np.testing.assert_allclose(scores, [one["scores"][0] for one in model.predict(pairs)], rtol=1e-5)


@pytest.mark.slow
def test_losses_are_those_of_sentence_transformers(tmp_path):
    sys.modules.setdefault("triton", None)  # PyTorch's would load the libraries of a GPU a second time
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("sentence_transformers.cross_encoder")
    fitted("reranking").model.save(tmp_path / "ours")
    convert(str(tmp_path / "ours"), "huggingface", str(tmp_path / "theirs"))
    values = json.loads((tmp_path / "theirs" / "config.json").read_text())
    values.pop("bert_tf", None)
    values |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(values))
    encoder = theirs.CrossEncoder(str(tmp_path / "theirs"), device="cpu", max_length=LENGTH)
    losses = theirs.losses
    groups = [("a b", "c d", "b"), ("the good", "a b c", "d d"), ("c", "d a", "b")]
    scores = SCORES[:, :2].tolist()
    queries, firsts, seconds = map(list, zip(*groups, strict=True))
    pairs = [queries * 2, firsts + seconds]
    expected = {
        "bce": losses.BinaryCrossEntropyLoss(encoder)(pairs, torch.tensor([1.0] * 3 + [0.0] * 3)),
        "mse": losses.MSELoss(encoder)(pairs, torch.tensor(np.float32(scores).T.ravel())),
        "margin_mse": losses.MarginMSELoss(encoder)([queries, firsts, seconds], torch.tensor(np.float32(scores))),
    }
    settings = {"epochs": 1, "batch_size": 3, "learning_rate": 1e-12, "dtype": "float32", "verbose": False}
    for objective, value in expected.items():
        given = {"max_length": LENGTH, "objective": objective}
        model = bert_tf.Reranker.from_pretrained(tmp_path / "theirs", **given)
        history = model.fit(groups, None if objective == "bce" else scores, **settings)
        assert history.history["loss"][0] == pytest.approx(value.item(), rel=1e-5), objective


def test_texts_are_sorted_by_their_scores():
    model = fitted("reranking").model
    texts = ["a b", "c d", "the good", "d"]
    ranked = model.rank("the good", texts)
    scores = model.predict([("the good", *texts)])[0]["scores"]
    assert [one["score"] for one in ranked] == sorted(scores, reverse=True)
    assert all(one["text"] == texts[one["index"]] and one["score"] == scores[one["index"]] for one in ranked)
    assert model.rank("a", []) == []


def test_scores_do_not_depend_on_the_other_texts():
    model = fitted("reranking").model
    together = model.predict([("the good", "a b", "c d the good", "d")])[0]["scores"]
    alone = [model.predict([("the good", text)])[0]["scores"][0] for text in ("a b", "c d the good", "d")]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_numbers_of_pairs_are_what_scores_are_compared_with():
    pairs, numbers = [group[:2] for group in GROUPS], [3.0, 1.0, 2.0]
    model = bert_tf.Reranker.from_pretrained(fitted("reranking").folder, max_length=LENGTH)
    scores = [one["scores"][0] for one in model.predict(pairs)]
    assert model.evaluate(pairs, numbers)["spearman"] == pytest.approx(stats.spearmanr(numbers, scores).statistic)
    assert set(model.evaluate(GROUPS)) >= {"mrr@10", "recall@1"}
    with raises(DataError, "validation x[0]", "scored pairs", "triplets"):
        model.fit(GROUPS, validation_data=(pairs, numbers), verbose=False)


def test_queries_with_one_text_are_not_counted_as_found():
    model = fitted("reranking").model
    swapped = [(query, *texts[::-1]) for query, *texts in GROUPS]
    found, groups = min((model.evaluate(groups)["mrr@10"], groups) for groups in (GROUPS, swapped))
    assert found < 1
    pair = GROUPS[0][:2]
    assert model.evaluate([*groups, pair])["mrr@10"] == found
    with raises(DataError, "x[0]", "pairs", "bert_tf.mine"):
        model.evaluate([pair])


def test_a_part_of_a_batch_without_examples_has_a_finite_loss():
    losses = []
    for accumulation in (1, 4):
        model = bert_tf.Reranker.from_pretrained(pretrained(), max_length=LENGTH, objective="kl")
        scores = [[0.5, 1.0], [1.0, 2.0, 0.0], [3.0, 1.0]]
        given = {"batch_size": 8, "accumulation": accumulation, "dtype": "float32", "verbose": False, "seed": 1}
        losses.append(model.fit(GROUPS, scores, epochs=1, learning_rate=1e-12, **given).history["loss"])
    assert np.isfinite(losses).all()


def test_what_a_reranker_cannot_learn_from_is_one_line():
    model = bert_tf.Reranker.from_pretrained(pretrained(), max_length=LENGTH)
    pairs = [group[:2] for group in GROUPS]
    with raises(DataError, "x[0]", "pairs", "bert_tf.mine"):
        model.fit(pairs, verbose=False)
    with raises(DataError, "x[0]", "'u'", "number"):
        model.fit(pairs, ["u"] * 3, verbose=False)
    with raises(DataError, "x[1]", "negative"):
        model.fit([GROUPS[0], ("a", "b", "b")], verbose=False)
    with raises(DataError, "x[0]", "'a'", "query and texts"):
        model.fit(["a"], verbose=False)
    with raises(ConfigError, "task.objective", "'kl'", "triplets", "bce or softmax"):
        bert_tf.Reranker.from_pretrained(pretrained(), max_length=LENGTH, objective="kl").fit(GROUPS, verbose=False)
    with raises(ConfigError, "task.long_texts", "window"):
        RerankerConfig(long_texts="window").check()
