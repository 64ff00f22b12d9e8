"""Sparse vectors: against the formula on Hugging Face's and our logits, training, and exports."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.config import EmbeddingsConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference.retrieval import Collection, Encoding, search
from bert_tf.inference.sparse_embedder import SparseEmbedder
from bert_tf.tasks.contrastive import Groups, loss_of
from bert_tf.tasks.mlm_and_nsp import Pretraining
from tests import zoo
from tests.errors import raises
from tests.model.small import randomize
from tests.zoo import pretrained

TEXTS = ["a b", "the good c d a b", "d"]
PAIRS = [("a b", "c d"), ("the good", "a b c"), ("c", "d a"), ("b", "good good")]


@pytest.fixture(scope="module")
def encoder():
    return bert_tf.SparseEncoder.from_pretrained(pretrained(), max_length=16)


def expected(encoder, text):
    """dict piece -> weight, from the logits at each token of the text alone."""
    features = encoder.tokenizer.encode([text], max_length=16)
    length = int(features["input_mask"].numpy().sum())
    features = {name: value[:, :length] for name, value in features.items()}
    inputs = features | {"masked_lm_positions": tf.range(length)[tf.newaxis]}
    logits = encoder.model(inputs)["mlm_logits"].numpy()[0]
    weights = np.log1p(np.maximum(logits, 0)).max(0)
    return {encoder.tokenizer.vocab[number]: weight for number, weight in enumerate(weights) if weight > 0}


def test_weights_are_the_largest_of_all_tokens_and_sorted(encoder):
    for text, found in zip(TEXTS, encoder.encode(TEXTS), strict=True):
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert found == pytest.approx(expected(encoder, text), rel=1e-4, abs=1e-5)
    assert encoder.encode([]) == []


def test_an_export_returns_the_pieces_and_their_weights(encoder, tmp_path):
    served = tf.saved_model.load(encoder.export(tmp_path / "served").path).signatures["serving_default"]
    answers = {name: value.numpy() for name, value in served(tf.constant(TEXTS)).items()}
    for row, found in enumerate(encoder.encode(TEXTS)):
        count = answers["piece_count"][row]
        pieces = [piece.decode() for piece in answers["pieces"][row][:count]]
        assert dict(zip(pieces, answers["weights"][row], strict=False)) == pytest.approx(found, rel=1e-4)
        assert not answers["weights"][row][count:].any()
        ids = answers["ids"][row][:count]
        assert [encoder.tokenizer.vocab[number] for number in ids] == pieces


def test_training_by_dot_products_makes_vectors_sparse_and_is_saved(encoder, tmp_path):
    model = bert_tf.SparseEncoder.from_pretrained(pretrained(), max_length=16)
    settings = {"batch_size": 4, "learning_rate": 1e-3, "dtype": "float32", "verbose": False, "schedule": "constant"}
    history = model.fit(PAIRS, epochs=40, validation_data=PAIRS, flops=(1.0, 1.0), **settings)
    before, after = (sum(map(len, one.encode([pair[1] for pair in PAIRS]))) for one in (encoder, model))
    assert after < before and history.history["pieces"][-1] < history.history["pieces"][0]
    assert "val_mrr@10" in history.history
    model.save(tmp_path / "saved")
    again = bert_tf.SparseEncoder.from_pretrained(tmp_path / "saved")
    assert again.encode(TEXTS) == model.encode(TEXTS)
    assert again.task.max_length == 16


def test_similarities_are_dot_products():
    vectors = np.random.default_rng(0).uniform(size=[3, 2, 8]).astype("float32")
    groups = Groups(tf.constant(vectors), tf.reshape(tf.range(6, dtype=tf.int64), [3, 2]), tf.zeros([3]), dots=True)
    scores = np.float64(vectors[:, 0]) @ np.float64(vectors[:, 1]).T
    right = np.diag(scores) - np.log(np.exp(scores).sum(1))
    config = EmbeddingsConfig(objective="in_batch", sparse=True).published(None, 16)
    assert float(loss_of(groups, config)) == pytest.approx(-right.mean(), rel=1e-5)


def test_what_cannot_be_sparse_is_one_line(encoder, tmp_path):
    with raises(ConfigError, "task.objective", "'cosent'", "in_batch"):
        encoder.fit(PAIRS, [1, 2, 3, 4], objective="cosent", verbose=False)
    with raises(ConfigError, "scored pairs"):
        encoder.fit(PAIRS, [1, 2, 3, 4], verbose=False)
    with raises(ConfigError, "task.flops", "two"):
        encoder.fit(PAIRS, flops=(1.0,), verbose=False)
    with raises(ConfigError, "task.matryoshka"):
        encoder.fit(PAIRS, matryoshka=(4,), verbose=False)
    dense = bert_tf.SentenceEncoder.from_pretrained(pretrained())
    dense.save(tmp_path / "dense")
    with raises(DataError, "masked-language-model head"):
        bert_tf.SparseEncoder.from_pretrained(tmp_path / "dense")


def test_a_model_with_a_second_head_is_a_masked_language_model(encoder, tmp_path):
    own, task = zoo.encoder(), Pretraining(bert_tf.Tokenizer(zoo.VOCABULARY), zoo.LENGTH)
    directory.save(str(tmp_path / "pretrained"), randomize(task.build(own)), own, task)
    again = bert_tf.SparseEncoder.from_pretrained(tmp_path / "pretrained", max_length=16)
    again.save(tmp_path / "sparse")
    for model in (again, bert_tf.SparseEncoder.from_pretrained(tmp_path / "sparse")):
        assert model.encode(TEXTS) == [pytest.approx(expected(again, text), rel=1e-4, abs=1e-5) for text in TEXTS]
    with raises(ConfigError, "query_prompt"):
        again.fit(PAIRS, query_prompt="query: ")


def test_a_collection_is_searched_and_evaluated_by_dot_products(encoder, tmp_path):
    encoder.save(tmp_path / "sparse")
    embedder = SparseEmbedder(directory.read(str(tmp_path / "sparse")), "")
    texts = {second: str(number) for number, (_, second) in enumerate(PAIRS)}
    queries = {first: first for first, _ in PAIRS}
    collection = Collection("", lambda: iter(zip(texts.values(), texts, strict=True)), queries, {}, {})
    encode = functools.partial(embedder, batch_size=2)
    ranking = search(Encoding(encode, encode, 0), collection)
    first, second = ([expected(encoder, text) for text in part] for part in zip(*PAIRS, strict=True))
    products = np.array([[sum(one.get(name, 0) * own[name] for name in own) for one in second] for own in first])
    np.testing.assert_allclose(ranking.scores, -np.sort(-products, 1), rtol=1e-4, atol=1e-4)
    ranks = [1 + np.sum(row > row[place]) for place, row in enumerate(products)]
    assert encoder.evaluate(PAIRS)["mrr@10"] == pytest.approx(np.mean(1 / np.array(ranks)))
    assert encoder.encode(PAIRS[0], batch_size=1) == [
        pytest.approx(own, rel=1e-4, abs=1e-5) for own in (first[0], second[0])
    ]


def test_other_programs_do_not_take_its_states_for_vectors(programs, encoder, tmp_path):
    encoder.save(tmp_path / "sparse")
    with raises(DataError, "sparse encoder", "SparseEncoder"):
        bert_tf.SentenceEncoder.from_pretrained(tmp_path / "sparse")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"query": a, "positive": b}) + "\n" for a, b in PAIRS))
    given = f"--init={tmp_path / 'sparse'}", f"--data_dir={pairs}", f"--output={tmp_path / 'out'}"
    programs.succeed("retrieve", *given)
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["size"] == encoder.tokenizer.vocab_size
    assert results["final"]["mrr@10"] == pytest.approx(encoder.evaluate(PAIRS)["mrr@10"])
