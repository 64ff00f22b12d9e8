"""Search in collections, its evaluation, and mining of negatives, against all products and by hand."""

import json
import shutil

import numpy as np
import pytest

from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference import mining, retrieval
from bert_tf.inference.embedder import Embedder, open_embedder
from bert_tf.inference.extraction import vectors_of
from bert_tf.inference.mining import Limits, mine, write_groups
from bert_tf.inference.reranking import open_reranker, score
from bert_tf.inference.retrieval import encoding_of, open_collection, search, write_run
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.groups import read_groups
from bert_tf.metrics.retrieval import means, unit_vectors
from tests.errors import raises
from tests.tasks.harness import fitted
from tests.zoo import pretrained

TEXTS = ["a b", "c d", "the good", "good a", "b c the", "d a", "c the", "a a b", "d", "the a c b", "b b", "good"]
QUERIES = {"q1": "a b c", "q2": "good good", "q3": "d d"}
JUDGED = {("q1", "d0"): 1, ("q1", "d4"): 2, ("q2", "d3"): 1, ("q3", "d1"): 0}


@pytest.fixture(scope="module")
def embedder():
    return open_embedder(pretrained(), normalize=True)


def write_beir(folder, texts=TEXTS, queries=QUERIES, judged=JUDGED):
    lines = [{"_id": f"d{number}", "title": "", "text": text} for number, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines = [{"_id": one, "text": text} for one, text in queries.items()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "qrels").mkdir(exist_ok=True)
    rows = "".join(f"{query}\t{one}\t{gain}\n" for (query, one), gain in judged.items())
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


def opened(path, split="test", **data):
    report = ReadReport()
    return open_collection(str(path), ExampleData(**({"format": "groups"} | data)), split, report), report


def vectors(embedder, texts):
    return unit_vectors(vectors_of(embedder, texts, 4))


def test_queries_find_the_texts_with_the_largest_cosines(embedder, tmp_path, monkeypatch):
    monkeypatch.setattr(retrieval, "BLOCK", 5)
    collection, report = opened(write_beir(tmp_path))
    assert list(collection.queries) == ["q1", "q2"]  # nothing is relevant to the third
    assert report.counts == {"left out: query without a relevant text": 1}
    ranking = search(encoding_of(embedder, 4), collection, depth=6)
    products = vectors(embedder, list(collection.queries.values())) @ vectors(embedder, TEXTS).T
    for row, found in enumerate(ranking.found):
        scores = [products[row, int(one[1:])] for one in found]
        np.testing.assert_allclose(scores, np.sort(products[row])[::-1][:6], atol=1e-5)
        np.testing.assert_allclose(scores, ranking.scores[row], atol=1e-5)
    own = means(ranking.metrics(collection.judgements))
    hits = [[one in {"d0", "d4"} for one in ranking.found[0]], [one == "d3" for one in ranking.found[1]]]
    assert own["recall@1"] == np.mean([hits[0][0] / 2, hits[1][0]])
    assert own["mrr@10"] == pytest.approx(np.mean([1 / (1 + hit.index(True)) if any(hit) else 0 for hit in hits]))


def test_prompts_of_queries_and_passages_are_put_in_front(embedder, tmp_path):
    collection, _ = opened(write_beir(tmp_path))
    config = embedder.config
    config = type(config)(**vars(config) | {"prompts": {"query": "a ", "passage": "the "}})
    with_prompts = Embedder(embedder.encoder, embedder.tokenizer, config)
    ranking = search(encoding_of(with_prompts, 4), collection, depth=12)
    asked = vectors(embedder, ["a " + text for text in collection.queries.values()])
    products = asked @ vectors(embedder, ["the " + text for text in TEXTS]).T
    np.testing.assert_allclose(ranking.scores, -np.sort(-products, 1), atol=1e-5)


def test_pairs_are_a_collection_of_their_second_texts(tmp_path):
    lines = [("a b", "c d"), ("a b", "good"), ("d", "c d")]
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"query": one, "positive": other}) + "\n" for one, other in lines)
    )
    collection, _ = opened(tmp_path / "x.jsonl")
    assert list(collection.texts()) == [("0", "c d"), ("1", "good")]
    assert collection.queries == {"0": "a b", "1": "d"}
    assert collection.judgements == {"0": {"0": 1.0, "1": 1.0}, "1": {"0": 1.0}}


def test_a_run_file_has_the_columns_of_trec(tmp_path):
    write_run(str(tmp_path / "run"), retrieval.Ranking(["q1"], [["d2", "d 1"]], np.array([[0.5, 0.25]])))
    assert (tmp_path / "run").read_text() == "q1 Q0 d2 1 0.5 bert_tf\nq1 Q0 d%201 2 0.25 bert_tf\n"


def test_judgements_of_unknown_ids_are_left_out_and_ids_used_twice_refused(tmp_path):
    judged = JUDGED | {("q1", "d99"): 1, ("q9", "d1"): 1}
    _, report = opened(write_beir(tmp_path, judged=judged))
    assert report.counts["left out: judgement of an unknown id"] == 2
    with raises(DataError, "corpus.jsonl:13", "'d0'"):
        path = write_beir(tmp_path) / "corpus.jsonl"
        path.write_text(path.read_text() + '{"_id": "d0", "text": "x"}\n')
        opened(tmp_path)
    with raises(DataError, "qrels/test.tsv", "relevant"):
        opened(write_beir(tmp_path, judged={("q1", "d0"): 0}))
    for wrong in ("x", "inf", "nan"):
        (tmp_path / "qrels" / "test.tsv").write_text(f"q1 0 d0 {wrong}\n")
        with raises(DataError, "qrels/test.tsv:1", f"'{wrong}'"):
            opened(tmp_path)


PAIRS = [("a b c", "a b"), ("a b c", "a a b"), ("good good", "good"), ("d", "d a")]


def mined(embedder, folder, **limits):
    own = Limits(**{"first": 1, "last": 8, "negatives": 3} | limits)
    return list(mine(embedder, PAIRS, TEXTS, str(folder), own, 4))


def test_negatives_are_the_nearest_texts_that_do_not_belong_to_the_query(embedder, tmp_path):
    products = vectors(embedder, [query for query, _ in PAIRS]) @ vectors(embedder, TEXTS).T
    own = [{"a b", "a a b"}, {"a b", "a a b"}, {"good"}, {"d a", "d"}]  # a query is no negative of itself
    for first in (1, 3):
        for row, one in enumerate(mined(embedder, tmp_path / str(first), first=first)):
            ranked = [TEXTS[number] for number in np.argsort(-products[row])]
            others = [text for text in ranked if text not in own[row]]
            found, expected = (
                [products[row, TEXTS.index(text)] for text in texts]
                for texts in (one.negatives, others[first - 1 : first + 2])
            )
            np.testing.assert_allclose(found, expected, atol=1e-5)
            assert (one.query, one.positive) == PAIRS[row] and not {*one.negatives} & own[row]
            texts = [one.positive, *one.negatives]
            np.testing.assert_allclose(one.scores, [products[row, TEXTS.index(text)] for text in texts], atol=1e-5)


def test_negatives_keep_their_distance_and_are_drawn_where_asked(embedder, tmp_path):
    every = list(mined(embedder, tmp_path, last=len(TEXTS), negatives=len(TEXTS)))
    highest = float(np.median([score for one in every for score in one.scores[1:]]))
    margin = float(np.median([one.scores[0] - score for one in every for score in one.scores[1:]]))
    cases = ({"margin": margin}, lambda right: right - margin), ({"max_score": highest}, lambda _: highest)
    for limits, limit_of in cases:
        lengths = []
        for one, of_all in zip(mined(embedder, tmp_path, last=len(TEXTS), **limits), every, strict=True):
            fitting = [
                text
                for text, score in zip(of_all.negatives, of_all.scores[1:], strict=True)
                if score <= limit_of(of_all.scores[0])
            ]
            assert one.negatives == fitting[:3]
            lengths.append(len(fitting))
        assert 0 < sum(lengths) < len(every) * len(of_all.negatives)
    drawn = [tuple(one.negatives for one in mined(embedder, tmp_path, draw=True, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_killed_run_continues_with_the_vectors_that_it_has(embedder, tmp_path, monkeypatch):
    monkeypatch.setattr(mining, "BLOCK", 5)
    calls = []

    def counted(*arguments):
        calls.append(len(arguments[1]))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return vectors_of(*arguments)

    monkeypatch.setattr(mining, "vectors_of", counted)
    with pytest.raises(KeyboardInterrupt):
        mined(embedder, tmp_path)
    found = mined(embedder, tmp_path)
    assert calls == [5, 5, 2, 2, 3]  # the last block again, then the queries
    (tmp_path / "vectors.npy").unlink()  # and the others are computed again, of which there are none yet
    calls[:] = [0, 0]
    with pytest.raises(KeyboardInterrupt):
        mined(embedder, tmp_path)
    assert not (tmp_path / "done.json").exists()
    monkeypatch.undo()
    assert [one.negatives for one in found] == [one.negatives for one in mined(embedder, tmp_path / "other")]


def test_groups_are_written_as_they_are_read(embedder, tmp_path):
    path = str(tmp_path / "x.jsonl")
    assert write_groups(path, mined(embedder, tmp_path, max_score=-2.0)) == (4, 4)
    found = mined(embedder, tmp_path)
    assert write_groups(path, found, scores=True) == (4, 0)
    read = list(read_groups(path))
    assert [one.texts for one in read] == [(own.query, own.positive, *own.negatives) for own in found]
    np.testing.assert_allclose([one.label for one in read], [own.scores for own in found], atol=1e-6)
    assert {len(one.texts) for one in read} == {5}


def test_ranks_that_cannot_hold_the_negatives_are_refused(embedder, tmp_path):
    with raises(ConfigError, "5", "1", "ranks"):
        mined(embedder, tmp_path, first=5, last=1)
    with raises(ConfigError, "3 negatives", "1 to 2"):
        mined(embedder, tmp_path, last=2)
    with raises(ConfigError, "12", "--corpus"):
        mined(embedder, tmp_path, first=12, last=20)


def lengths(groups):
    """Scores of a reranker that likes short texts."""
    return ([-float(len(text)) for text in texts] for _, texts in groups)


def test_a_reranker_sorts_the_first_texts_and_leaves_the_rest(embedder, tmp_path):
    collection, _ = opened(write_beir(tmp_path))
    before = search(encoding_of(embedder, 4), collection, depth=8)
    after = retrieval.reranked(before, collection, 5, lengths)
    for old, new, scores in zip(before.found, after.found, after.scores, strict=True):
        assert sorted(old[:5]) == sorted(new[:5]) and old[5:] == new[5:]
        sizes = [len(TEXTS[int(one[1:])]) for one in new[:5]]
        assert sizes == sorted(sizes) and (np.diff(scores) <= 0).all()


def test_negatives_are_chosen_by_the_scores_of_a_reranker(embedder, tmp_path):
    limits = Limits(1, 8, 3, margin=1.0)
    every = list(mine(embedder, PAIRS, TEXTS, str(tmp_path), limits.before_scores(), 4))
    assert all(len(one.negatives) == 8 for one in every)
    for one, of_all in zip(mining.filtered(iter(every), limits, lengths), every, strict=True):
        assert one.negatives == [text for text in of_all.negatives if len(text) > len(one.positive)][:3]
        assert one.scores == [-float(len(text)) for text in (one.positive, *one.negatives)]


def test_scores_of_the_programs_are_those_of_the_api():
    model = fitted("reranking").model
    groups = [("the good", ["a b", "c d"]), ("b", ["a"])]
    task, own = open_reranker(fitted("reranking").folder)
    found = list(score(task, own, groups))
    for (query, texts), scores in zip(groups, found, strict=True):
        np.testing.assert_allclose(scores, model.predict([(query, *texts)])[0]["scores"], rtol=1e-5, atol=1e-6)
    with raises(DataError, "reranker"):
        open_reranker(pretrained())


def test_a_query_that_is_a_text_of_the_collection_does_not_find_itself(embedder, tmp_path):
    judged = {("q1", "d0"): 1, ("d3", "d7"): 1}  # the same id, as in ArguAna
    queries = {"q1": "a b c", "d3": "good a"}
    (tmp_path / "beir").mkdir()
    collection, _ = opened(write_beir(tmp_path / "beir", queries=queries, judged=judged))
    found = dict(zip(collection.queries, search(encoding_of(embedder, 4), collection, depth=20).found, strict=True))
    assert len(found["q1"]) == len(TEXTS) and len(found["d3"]) == len(TEXTS) - 1 and "d3" not in found["d3"]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"query": a, "positive": b}) + "\n" for a, b in ("ab", "bc", "dd")))
    collection, _ = opened(path)
    ranking = search(encoding_of(embedder, 4), collection)
    assert [len(row) for row in ranking.found] == [3, 2, 3]  # a; b, which is a text; d, which is its own right text
    metrics = ranking.metrics(collection.judgements)
    assert metrics["recall@10"].tolist() == [1, 1, 1]


def test_the_validation_split_of_beir_is_its_dev_file(tmp_path):
    write_beir(tmp_path)
    (tmp_path / "qrels" / "test.tsv").rename(tmp_path / "qrels" / "dev.tsv")
    assert list(opened(tmp_path, "validation")[0].queries) == ["q1", "q2"]


def test_pairs_with_numbers_are_no_judgements(tmp_path):
    path = tmp_path / "scored.jsonl"
    path.write_text(json.dumps({"sentence1": "a", "sentence2": "b", "score": 0.0}) + "\n")
    with raises(DataError, "scored.jsonl:1", "number"):
        opened(path)


def test_the_programs_find_and_mine_with_vectors_of_a_size(programs, embedder, tmp_path):
    collection, out = tmp_path / "beir", tmp_path / "out"
    collection.mkdir()
    given = f"--data_dir={write_beir(collection)}", f"--init={pretrained()}"
    done = programs.succeed("retrieve", *given, "--size=8", f"--output={out}")
    results = json.loads((out / "results.json").read_text())
    short = embedder.replaced(size=8)
    expected = search(encoding_of(short, 4), opened(collection)[0])
    assert (results["size"], results["queries"]) == (8, 2)
    assert results["final"] == pytest.approx(means(expected.metrics(opened(collection)[0].judgements)), abs=1e-6)
    rows = [line.split() for line in (out / "run.trec").read_text().splitlines()]
    assert [row[2] for row in rows if row[0] == "q2"] == list(expected.found[1])
    assert "recall@1" in done.output and "left out" in (out / "report.html").read_text()
    done = programs("retrieve", *given, "--size=800", f"--output={out}")
    assert (done.status, done.error_line[:37]) == (2, "bert_tf: error: size is 800; expected")
    mined, pairs = tmp_path / "mined.jsonl", tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"query": a, "positive": a + " a"}) + "\n" for a in "abcd"))
    mining = f"--data_dir={pairs}", f"--init={pretrained()}", "--ranks=1,4", f"--output={mined}"
    programs.succeed("mine", *mining, "--negatives=2")
    lines = [json.loads(line) for line in mined.read_text().splitlines()]
    assert all(len(line["negatives"]) == 2 and line["positive"] not in line["negatives"] for line in lines)
    done = programs("mine", *mining, f"--output={pairs}")
    assert done.status == 2 and "pairs.jsonl" in done.error_line
    vectors = tmp_path / "mined.jsonl.vectors"
    assert not vectors.exists()
    done = programs("mine", *mining, "--negatives=2", "--margin=9")
    assert done.status == 1 and "no pair has a negative" in done.error_line and mined.read_text().count("\n") == 4
    shutil.rmtree(vectors)
    vectors.mkdir()
    (vectors / "thesis.txt").touch()
    done = programs("mine", *mining, "--negatives=2")
    assert done.status == 2 and "thesis.txt" in done.error_line and (vectors / "thesis.txt").exists()
