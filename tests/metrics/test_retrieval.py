import numpy as np
import pytest

from bert_tf.metrics.retrieval import by_query, means, nearest, unit_vectors


def test_the_nearest_are_those_of_sorting_all_products():
    random = np.random.default_rng(0)
    queries, corpus = random.normal(size=[7, 5]).astype("float32"), random.normal(size=[40, 5]).astype("float32")
    expected = np.argsort(-(queries @ corpus.T), axis=1)
    for count in (1, 3, 40):
        for given in (corpus, [corpus[:1], corpus[1:30], corpus[30:]], iter([corpus])):
            found, products = nearest(queries, given, count)
            np.testing.assert_array_equal(found, expected[:, :count])
            np.testing.assert_allclose(products, np.sort(queries @ corpus.T, 1)[:, ::-1][:, :count], rtol=1e-6)
    assert nearest(queries, corpus, 99)[0].shape == (7, 40)
    assert nearest(queries[:0], corpus, 3)[0].shape == (0, 0)


def test_blocks_and_equal_products_do_not_change_what_is_found(monkeypatch):
    corpus = np.repeat(np.eye(3, dtype="float32"), 5, 0)
    monkeypatch.setattr("bert_tf.metrics.retrieval._BLOCK", 4)
    monkeypatch.setattr("bert_tf.metrics.retrieval._QUERIES", 2)
    found, _ = nearest(np.eye(3, dtype="float32"), corpus, 5)
    np.testing.assert_array_equal(found, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]])


def test_of_equal_products_the_first_are_found():
    corpus = np.ones([300, 2], "float32")
    corpus[7], corpus[100] = 2, 0.5
    found, _ = nearest(np.ones([2, 2], "float32"), corpus, 20)
    np.testing.assert_array_equal(found, [[7, *range(7), *range(8, 20)]] * 2)


FOUND = [[3, 1, 2], [0, 1, 2], [9, 8, 7], [5]]
JUDGED = [{1: 1.0, 2: 2.0}, {7: 1.0}, {7: 1.0, 6: 3.0, 9: 0.0}, {}]


def test_metrics_equal_those_worked_out_by_hand():
    found = by_query(FOUND, JUDGED, depths=(1, 3))
    log = np.log2([2, 3, 4])
    best = [2 / log[0] + 1 / log[1], 1.0, 3 / log[0] + 1 / log[1], 1.0]
    gains = [1 / log[1] + 2 / log[2], 0, 1 / log[2], 0]
    expected = {
        "recall@1": [0, 0, 0, 0],
        "recall@3": [1, 0, 1 / 2, 0],
        "mrr@10": [1 / 2, 0, 1 / 3, 0],
        "ndcg@10": np.divide(gains, best),
        "map@3": [(1 / 2 + 2 / 3) / 2, 0, (1 / 3) / 2, 0],
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, err_msg=name)
    assert means(found)["recall@3"] == pytest.approx(1.5 / 4)


def test_vectors_get_length_one_and_zeros_stay():
    vectors = unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, 0]])


@pytest.mark.slow
def test_metrics_equal_those_of_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    random = np.random.default_rng(2)
    found = np.array([random.permutation(300)[:120] for _ in range(50)])
    judged = [{int(one): float(random.integers(0, 4)) for one in random.permutation(300)[:15]} for _ in range(50)]
    qrels = {str(row): {str(one): int(gain) for one, gain in own.items()} for row, own in enumerate(judged)}
    run = {str(row): {str(one): 1.0 / (1 + at) for at, one in enumerate(own)} for row, own in enumerate(found)}
    names = {"recall@1": "recall_1", "recall@10": "recall_10", "recall@100": "recall_100", "ndcg@10": "ndcg_cut_10",
             "map@100": "map_cut_100"}  # fmt: skip
    measures = {"recall.1,10,100", "ndcg_cut.10", "map_cut.100", "recip_rank"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    ours = by_query(found, judged)
    for name, other in names.items():
        np.testing.assert_allclose(ours[name], [theirs[str(row)][other] for row in range(50)], atol=1e-6, err_msg=name)
    reciprocal = np.array([theirs[str(row)]["recip_rank"] for row in range(50)])
    np.testing.assert_allclose(ours["mrr@10"], np.where(reciprocal >= 0.1, reciprocal, 0), atol=1e-6)
