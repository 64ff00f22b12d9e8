"""Retrieval: the nearest vectors, and how well a ranking finds what was judged relevant (as trec_eval defines it)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.types import Array, Metrics

# Rows of the corpus, and queries, that are compared at a time: 64 MB of scores.
_BLOCK, _QUERIES = 16_384, 1024
# Recall is measured at each of these depths, the mean reciprocal rank and nDCG at 10, mean average precision at 100.
DEPTHS = (1, 10, 100)


def nearest(queries: Array, corpus: Array | Iterable[Array], count: int) -> tuple[Array, Array]:
    """The vectors with the largest dot products, exactly.

    Args:
        queries: float [queries, size], an array of NumPy or a sparse one of SciPy.
        corpus: float [vectors, size], or several such arrays, one after the other: only one is needed at a time.
        count: to find for each query; fewer if the corpus has fewer.

    Returns:
        (indices int64, products float32), each [queries, count], the nearest first; among equal ones the first. Without
        queries, both are [0, 0].
    """
    blocks: Iterable[Any] = [corpus] if hasattr(corpus, "shape") else corpus
    asked = queries.shape[0]
    indices = np.zeros([asked, 0], np.int64)
    products = np.zeros([asked, 0], np.float32)
    first = 0
    for whole in blocks:
        for start in range(0, whole.shape[0], _BLOCK):
            block = whole[start : start + _BLOCK]
            parts = [
                _merged(indices[rows], products[rows], _products(queries[rows], block), first, count)
                for rows in (slice(low, low + _QUERIES) for low in range(0, asked, _QUERIES))
            ]
            if parts:
                indices, products = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            first += block.shape[0]
    return indices, products


def _products(queries: Any, vectors: Any) -> Array:
    """float32 [queries, vectors]."""
    found = queries @ vectors.T
    return np.asarray(found if isinstance(found, np.ndarray) else found.toarray(), np.float32)


def _merged(indices: Array, products: Array, scores: Array, first: int, count: int) -> tuple[Array, Array]:
    """The nearest of those that were found before and of a block, whose first vector has the number `first`."""
    if scores.shape[1] > count:
        chosen = np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)
        lowest = np.take_along_axis(scores, chosen, 1).min(1, keepdims=True)
        for row in np.flatnonzero((scores >= lowest).sum(1) > count):  # of the equal ones, the first
            above = np.flatnonzero(scores[row] > lowest[row])
            equal = np.flatnonzero(scores[row] == lowest[row])[: count - len(above)]
            chosen[row] = np.sort(np.concatenate([above, equal]))
    else:
        chosen = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    products = np.concatenate([products, np.take_along_axis(scores, chosen, 1)], 1)
    indices = np.concatenate([indices, chosen + first], 1)
    order = np.argsort(-products, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(indices, order, 1), np.take_along_axis(products, order, 1)


def by_query(
    found: Sequence[Sequence[int]] | Array, judgements: Sequence[Mapping[int, float]], depths: Sequence[int] = DEPTHS
) -> dict[str, Array]:
    """Metrics of each query, whose means are those of the ranking.

    Args:
        found: for each query, what was found, the best first.
        judgements: for each query, the relevance of what was judged, by the same numbers; above 0 is relevant.
        depths: of recall; the largest is also that of "map".

    Returns:
        recall@K: the share of relevant ones among the first K. mrr@10: 1 / rank of the first relevant one, 0 beyond 10.
        ndcg@10: the discounted cumulative gain, as a share of the best possible one (Jaervelin and Kekaelaeinen, 2002).
        map@K: mean precision at the ranks of relevant ones. float64 [queries] each.
    """
    deepest = max(depths)
    gains = np.zeros([len(judgements), max(deepest, 10)])
    ideal = np.zeros_like(gains)
    relevant = np.zeros(len(judgements))
    for row, (ranking, judged) in enumerate(zip(found, judgements, strict=True)):
        own = [judged.get(int(one), 0.0) for one in ranking[: gains.shape[1]]]
        gains[row, : len(own)] = own
        best = sorted((gain for gain in judged.values() if gain > 0), reverse=True)
        relevant[row] = len(best)
        ideal[row, : len(best)] = best[: gains.shape[1]]
    hits, ranks = gains > 0, np.arange(1, gains.shape[1] + 1)
    discount = 1.0 / np.log2(ranks[:10] + 1)
    counted = np.maximum(relevant, 1)
    metrics = {f"recall@{depth}": hits[:, :depth].sum(1) / counted for depth in depths}
    metrics["mrr@10"] = (hits[:, :10] / ranks[:10]).max(1)
    best_gain = (ideal[:, :10] * discount).sum(1)
    metrics["ndcg@10"] = (np.maximum(gains[:, :10], 0) * discount).sum(1) / np.where(best_gain > 0, best_gain, 1)
    precision = np.cumsum(hits, 1) / ranks
    metrics[f"map@{deepest}"] = (precision * hits)[:, :deepest].sum(1) / counted
    return metrics


def means(metrics: Mapping[str, Array]) -> Metrics:
    """The metrics of a ranking from those of its queries."""
    return {name: float(np.mean(values)) for name, values in metrics.items()}


def unit_vectors(vectors: Array) -> Array:
    """Vectors [n, size] of length 1, whose products are cosines; those of length 0 stay as they are."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)
