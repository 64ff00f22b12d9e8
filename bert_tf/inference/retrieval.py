"""Search in a collection of texts by their vectors, exactly, and its evaluation by judgements.

Texts and vectors of the collection are read and computed in blocks: memory holds one block, the ids, and the best of
each query.
"""

import itertools
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.config import ExampleData
from bert_tf.errors import DataError
from bert_tf.inference.embedder import Embedder
from bert_tf.inference.extraction import vectors_of
from bert_tf.inputs.datasets.examples import ReadReport, TextGroup, is_blank
from bert_tf.inputs.datasets.groups import read_judgements, read_texts_by_id
from bert_tf.inputs.datasets.sources import Source
from bert_tf.metrics.retrieval import by_query, nearest, unit_vectors
from bert_tf.metrics.statistics import bootstrap_intervals
from bert_tf.progress import bar
from bert_tf.tasks.benchmark import LISTED, ErrorAnalysis, ErrorExample
from bert_tf.types import Array

BLOCK = 8192  # texts that are encoded at a time
DEPTH = 100  # of rankings, for recall@100


class Collection(NamedTuple):
    """Texts, queries and judgements.

    Attributes:
        where: name, for messages.
        texts: streams (id, text) of all texts, as often as it is called.
        queries: text by id, of those with a judgement.
        judgements: by query, the relevance of texts by their ids; above 0 is relevant.
        itself: id of the text that a query is itself, which it is not to find.
    """

    where: str
    texts: Callable[[], Iterator[tuple[str, str]]]
    queries: dict[str, str]
    judgements: dict[str, dict[str, float]]
    itself: dict[str, str]


def open_collection(path: str, data: ExampleData, split: str, report: ReadReport) -> Collection:
    """Opens a folder in BEIR's layout, or examples from which a sentence encoder can learn.

    Args:
        path: folder with corpus.jsonl, queries.jsonl and qrels/; else as for `Source`, such as a file of SQuAD: the
            second texts of all examples are the collection, and each first text is a query for its own.
        data: of the examples.
        split: of judgements or examples.
        report: counts queries and judgements that are left out.
    """
    if os.path.exists(os.path.join(path, "corpus.jsonl")):
        return _open_beir(path, split, report)
    source = Source(data, path, TextGroup)
    texts: dict[str, str] = {}
    queries: dict[str, str] = {}
    judgements: dict[str, dict[str, float]] = {}
    for example in source.examples(report, split):
        if len(example.texts) < 2:
            raise DataError(f"{example.location}: a single text; expected a query and a text that it should find")
        check_unscored(example)
        for text in example.texts[1:]:
            texts.setdefault(text, str(len(texts)))
        query = queries.setdefault(example.texts[0], str(len(queries)))
        judgements.setdefault(query, {})[texts[example.texts[1]]] = 1.0
    by_id = {query: text for text, query in queries.items()}
    itself = {query: texts[text] for query, text in by_id.items() if text in texts}
    return Collection(
        source.where(split),
        lambda: ((one, text) for text, one in texts.items()),
        by_id,
        judgements,
        _unjudged(itself, judgements),
    )


def check_unscored(example: TextGroup) -> None:
    """Raises DataError for a pair with a number, which may say that its texts do not belong together."""
    if example.label is not None and not isinstance(example.label, tuple):
        raise DataError(f"{example.location}: a pair with a number; expected texts that belong together, without any")


def _unjudged(itself: dict[str, str], judgements: dict[str, dict[str, float]]) -> dict[str, str]:
    return {query: one for query, one in itself.items() if query in judgements and one not in judgements[query]}


def _open_beir(path: str, split: str, report: ReadReport) -> Collection:
    corpus, tables = os.path.join(path, "corpus.jsonl"), os.path.join(path, "qrels")
    names = [split, *(["dev"] if split == "validation" else [])]
    found = next((name for name in names if os.path.exists(os.path.join(tables, f"{name}.tsv"))), split)
    table = os.path.join(tables, f"{found}.tsv")

    def texts() -> Iterator[tuple[str, str]]:
        return ((one, text) for one, text, _ in read_texts_by_id(corpus, title=True))

    known: set[str] = set()
    for one, text, location in read_texts_by_id(corpus, title=True):
        if one in known:
            raise DataError(f"{location}: the id {one!r} was used before; make ids unique")
        known.add(one)
        if is_blank(text):
            report.add("text that is empty", location)
    queries: dict[str, str] = {}
    for one, text, location in read_texts_by_id(os.path.join(path, "queries.jsonl")):
        if one in queries:
            raise DataError(f"{location}: the id {one!r} was used before; make ids unique")
        if is_blank(text):
            report.add("query that is empty", location)
        queries[one] = text
    judgements: dict[str, dict[str, float]] = {}
    for query, document, relevance, location in read_judgements(table):
        if query not in queries or document not in known:
            report.add("left out: judgement of an unknown id", location)
        elif document in judgements.setdefault(query, {}) and judgements[query][document] != relevance:
            raise DataError(
                f"{location}: {query} and {document} were judged before, as {judgements[query][document]:g}"
            )
        else:
            judgements[query][document] = relevance
    judged = {query: own for query, own in judgements.items() if max(own.values()) > 0}
    for query in judgements:
        if query not in judged:
            report.add("left out: query without a relevant text", query)
    if not judged:
        raise DataError(f"{table}: no query has a relevant text; expected at least one")
    # A query that is a text of the corpus has its id (ArguAna, Quora).
    itself = _unjudged({query: query for query in judged if query in known}, judged)
    return Collection(path, texts, {query: queries[query] for query in judged}, judged, itself)


class Ranking(NamedTuple):
    """What queries find, the best first.

    Attributes:
        queries: ids.
        found: ids of texts for each query.
        scores: of these texts.
    """

    queries: Sequence[str]
    found: Sequence[Sequence[str]]
    scores: Sequence[Sequence[float]]

    def metrics(self, judgements: dict[str, dict[str, float]]) -> dict[str, Array]:
        """Metrics of each query, as `metrics.retrieval.by_query`."""
        numbers: dict[str, int] = {}
        judged = [{numbers.setdefault(one, len(numbers)): gain for one, gain in judgements[query].items()}
                  for query in self.queries]  # fmt: skip
        found = [[numbers.get(one, -1) for one in ranking] for ranking in self.found]
        return by_query(found, judged)


class Encoding(NamedTuple):
    """How texts become vectors whose dot products are compared.

    Attributes:
        queries, texts: from texts to their vectors [texts, size], a NumPy or a sparse SciPy array.
        size: of the vectors.
    """

    queries: Callable[[list[str]], Any]
    texts: Callable[[list[str]], Any]
    size: int


def encoding_of(embedder: Embedder, batch_size: int) -> Encoding:
    """Unit vectors of queries and texts, with the prompts "query" and "passage" (or "document") where there are any."""

    def of(name: str) -> Callable[[list[str]], Array]:
        own = embedder.with_prompt(name)
        return lambda texts: unit_vectors(vectors_of(own, texts, batch_size)).astype(np.float32)

    config = embedder.config
    return Encoding(of(config.query_name), of(config.passage_name), embedder.size)


def search(encoding: Encoding, collection: Collection, depth: int = DEPTH) -> Ranking:
    """What the queries of a collection find, by the dot products of vectors."""
    ids: list[str] = []

    def blocks() -> Iterator[Any]:
        texts = collection.texts()
        with bar("encode", None, "text") as line:
            while block := list(itertools.islice(texts, BLOCK)):
                ids.extend(one for one, _ in block)
                yield encoding.texts([text for _, text in block])
                line.update(len(block))

    queries = list(collection.queries)
    indices, products = nearest(encoding.queries(list(collection.queries.values())), blocks(), depth + 1)
    rows = [
        [(ids[number], float(value)) for number, value in zip(row, values, strict=True)
         if ids[number] != collection.itself.get(query)][:depth]
        for query, row, values in zip(queries, indices, products, strict=True)
    ]  # fmt: skip
    return Ranking(queries, [[one for one, _ in row] for row in rows], [[value for _, value in row] for row in rows])


def reranked(
    ranking: Ranking,
    collection: Collection,
    count: int,
    score: Callable[[Iterator[tuple[str, list[str]]]], Iterator[list[float]]],
) -> Ranking:
    """The ranking with its first `count` texts of each query sorted by other scores.

    Args:
        score: streams the scores of each query's texts, for queries and texts.
    """
    texts = texts_with(collection, {one for found in ranking.found for one in found[:count]})
    groups = (
        (collection.queries[query], [texts[one] for one in found[:count]])
        for query, found in zip(ranking.queries, ranking.found, strict=True)
    )
    sorted_ids, new = [], []
    for found, scores in zip(ranking.found, score(groups), strict=True):
        order = np.argsort(-np.array(scores), kind="stable")
        sorted_ids.append([*(found[at] for at in order), *found[count:]])
        # Scores of a run file fall from rank to rank: those that follow are below the last one.
        lowest = min(scores, default=0.0)
        new.append([*(scores[at] for at in order), *(lowest - 1 - at for at in range(len(found) - len(order)))])
    return Ranking(ranking.queries, sorted_ids, new)


def texts_with(collection: Collection, wanted: set[str]) -> dict[str, str]:
    """The texts with these ids."""
    return {one: text for one, text in collection.texts() if one in wanted}


def analysis_of(collection: Collection, ranking: Ranking, columns: dict[str, Array]) -> ErrorAnalysis:
    """Intervals of the metrics, and the queries that did not find a relevant text first, the worst first."""
    names = list(columns)
    intervals = bootstrap_intervals(
        lambda *values: {name: float(np.mean(one)) for name, one in zip(names, values, strict=True)}, *columns.values()
    )
    wrong = [
        row
        for row in np.argsort(columns["mrr@10"], kind="stable")
        if ranking.found[row] and collection.judgements[ranking.queries[row]].get(ranking.found[row][0], 0) <= 0
    ][:LISTED]
    best = {row: max(collection.judgements[ranking.queries[row]].items(), key=lambda one: one[1])[0] for row in wrong}
    texts = texts_with(collection, {*best.values(), *(ranking.found[row][0] for row in wrong)})
    errors = [
        ErrorExample(
            (collection.queries[ranking.queries[row]],),
            texts[best[row]],
            texts[ranking.found[row][0]],
            ranking.queries[row],
        )
        for row in wrong
    ]
    return ErrorAnalysis(intervals=intervals, errors=errors)


def write_run(path: str, ranking: Ranking) -> None:
    """Writes a run file of TREC: query, Q0, text, rank from 1, score, name of the run.

    White space in an id, which would end its column, is written as in URLs: "%20".
    """

    def column(one: str) -> str:
        return re.sub(r"\s", lambda space: urllib.parse.quote(space[0]), one)

    with open(path, "w", encoding="utf-8") as file:
        for query, found, scores in zip(ranking.queries, ranking.found, ranking.scores, strict=True):
            for rank, (one, score) in enumerate(zip(found, scores, strict=True), 1):
                file.write(f"{column(query)} Q0 {column(one)} {rank} {score:.9g} bert_tf\n")
