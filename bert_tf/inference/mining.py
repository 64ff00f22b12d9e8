"""Hard negatives: texts that a model finds for a query, and that do not belong to it."""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.config import to_dict
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import check_own_directory, read_json, write_json
from bert_tf.inference.embedder import Embedder
from bert_tf.inference.extraction import vectors_of
from bert_tf.inference.retrieval import BLOCK
from bert_tf.inputs.identity import digest, tokenizer_identity, weights_identity
from bert_tf.locks import locked
from bert_tf.metrics.retrieval import nearest, unit_vectors
from bert_tf.progress import bar
from bert_tf.types import Array, Json

# In the folder of vectors: what they are of, and how many there are; and they themselves.
_DONE, _VECTORS = "done.json", "vectors.npy"


class Limits(NamedTuple):
    """Which of the texts that a query finds are negatives.

    Attributes:
        first, last: ranks, from 1: the first ones may belong to the query without anybody having said so.
        negatives: number of them for each query.
        margin: a negative's score is at least so much below that of the text that belongs to the query; None for any.
        max_score: highest score of a negative; None for any.
        draw: whether negatives are drawn from the ranks, instead of taking the first ones.
        seed: of the draw.
    """

    first: int = 10
    last: int = 100
    negatives: int = 5
    margin: float | None = None
    max_score: float | None = None
    draw: bool = False
    seed: int = 0

    def check(self) -> "Limits":
        """Raises ConfigError for ranks that cannot hold as many negatives."""
        if not 1 <= self.first <= self.last:
            raise ConfigError(f"the ranks are {self.first} to {self.last}; expected ascending ones from 1")
        if self.negatives > self.last - self.first + 1:
            raise ConfigError(f"{self.negatives} negatives from the ranks {self.first} to {self.last}; expected fewer")
        return self

    def before_scores(self) -> "Limits":
        """Limits before `filtered`: all texts of the ranks, if other scores may leave out some."""
        if self.margin is None and self.max_score is None:
            return self
        return Limits(self.first, self.last, self.last - self.first + 1)

    def chooser(self) -> Callable[[float, list[tuple[str, float]]], list[tuple[str, float]]]:
        """A function from the score of a right text, and candidates with theirs, to the chosen ones."""
        generator = np.random.default_rng(self.seed)

        def choose(right: float, candidates: list[tuple[str, float]]) -> list[tuple[str, float]]:
            fitting = [
                (text, value)
                for text, value in candidates
                if (self.margin is None or value <= right - self.margin)
                and (self.max_score is None or value <= self.max_score)
            ]
            if self.draw and len(fitting) > self.negatives:
                chosen = np.sort(generator.choice(len(fitting), self.negatives, replace=False))
                fitting = [fitting[at] for at in chosen]
            return fitting[: self.negatives]

        return choose


class Mined(NamedTuple):
    """A pair with its negatives.

    Attributes:
        query, positive: the texts of the pair.
        negatives: texts, the nearest first.
        scores: of the positive and the negatives.
    """

    query: str
    positive: str
    negatives: Sequence[str]
    scores: Sequence[float]


def mine(
    embedder: Embedder, pairs: Sequence[tuple[str, str]], corpus: Sequence[str], folder: str, limits: Limits,
    batch_size: int, dtype: str = "float32",
) -> Iterator[Mined]:  # fmt: skip
    """Finds negatives for pairs.

    Args:
        embedder: of the vectors.
        pairs: queries and the texts that belong to them; a query may have several.
        corpus: all texts, each once, those of the pairs among them.
        folder: gets the vectors of the corpus while this runs; what a killed run has left there is used again.
        limits: of the negatives.
        batch_size: texts per batch.
        dtype: in which the embedder computes.

    Yields:
        Each pair with up to `limits.negatives` negatives, in the order of the pairs.
    """
    limits.check()
    if limits.first >= len(corpus):
        raise ConfigError(
            f"the ranks begin at {limits.first:,}, and there are {len(corpus):,} texts, of which one belongs to the "
            "query; lower --ranks, or add texts (--corpus)"
        )
    numbers = {text: number for number, text in enumerate(corpus)}
    if missing := next((text for _, text in pairs if text not in numbers), ""):
        raise DataError(f"a text that belongs to a query is not in the corpus: {missing[:80]!r}")
    own: dict[str, set[int]] = {}
    for query, text in pairs:
        own.setdefault(query, set()).add(numbers[text])
        if query in numbers:  # a query that is a text of the corpus finds itself
            own[query].add(numbers[query])
    vectors = _stored_vectors(embedder, corpus, folder, batch_size, dtype)
    queries = list(own)
    rows = {query: row for row, query in enumerate(queries)}
    asked = unit_vectors(vectors_of(embedder.with_prompt(embedder.config.query_name), queries, batch_size))
    most = limits.last + max(map(len, own.values()))
    indices, products = nearest(asked, _blocks(vectors), min(most, len(corpus)))
    choose = limits.chooser()
    for query, positive in pairs:
        row = rows[query]
        score = float(asked[row] @ vectors[numbers[positive]])
        others = [(corpus[int(one)], float(value)) for one, value in zip(indices[row], products[row], strict=True)
                  if int(one) not in own[query]]  # fmt: skip
        chosen = choose(score, others[limits.first - 1 : limits.last])
        yield Mined(query, positive, [text for text, _ in chosen], [score, *(value for _, value in chosen)])


def filtered(
    mined: Iterable[Mined], limits: Limits, score: Callable[[Iterator[tuple[str, list[str]]]], Iterator[list[float]]]
) -> Iterator[Mined]:
    """Chooses from negatives by other scores, such as those of a reranker.

    Args:
        mined: pairs with more negatives than are wanted.
        limits: of the scores, and of the number of negatives.
        score: of a pair's texts.
    """
    for_scores, for_pairs = itertools.tee(mined)
    scores = score((one.query, [one.positive, *one.negatives]) for one in for_scores)
    choose = limits.chooser()
    for one, (own, *others) in zip(for_pairs, scores, strict=True):
        chosen = choose(own, list(zip(one.negatives, others, strict=True)))
        yield one._replace(negatives=[text for text, _ in chosen], scores=[own, *(value for _, value in chosen)])


@contextlib.contextmanager
def vectors_in(folder: str) -> Iterator[None]:
    """Keeps a folder for the vectors of `mine`, which is removed when all has ended well.

    Raises:
        ConfigError: the folder holds other files, or another process uses it.
    """
    check_own_directory(folder, [_DONE, _VECTORS], "vectors")
    with locked(folder):
        yield
        for name in (_DONE, _VECTORS):
            os.remove(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # of a run that was killed before; or there are files of somebody else
        os.rmdir(folder)


def _stored_vectors(embedder: Embedder, corpus: Sequence[str], folder: str, batch_size: int, dtype: str) -> Array:
    """Unit vectors of the corpus, float32 [texts, size], in a file that is mapped into memory."""
    os.makedirs(folder, exist_ok=True)
    path, state = os.path.join(folder, _VECTORS), os.path.join(folder, _DONE)
    identity = digest(
        [
            weights_identity(embedder.weights),
            dtype,
            tokenizer_identity(embedder.tokenizer)["fingerprint"],
            to_dict(embedder.config),
            list(corpus),
        ]
    )
    before: Json = {}
    if os.path.exists(state) and os.path.exists(path):
        with contextlib.suppress(DataError):  # damaged
            before = read_json(state, Json)
    vectors: np.memmap[Any, Any] | None = None
    if before and before.get("made_of") == [identity, os.path.getsize(path)]:
        with contextlib.suppress(ValueError):  # a damaged header
            vectors = np.lib.format.open_memmap(path, "r+")
    done = before["texts"] if vectors is not None else 0
    if vectors is None:
        if os.path.exists(state):  # of other vectors, which the file no longer holds as soon as it is opened
            os.remove(state)
        vectors = np.lib.format.open_memmap(path, "w+", np.float32, (len(corpus), embedder.size))
    passages = embedder.with_prompt(embedder.config.passage_name)
    with bar("encode", len(corpus), "text", done=done) as line:
        for first in range(done, len(corpus), BLOCK):
            block = corpus[first : first + BLOCK]
            vectors[first : first + len(block)] = unit_vectors(vectors_of(passages, block, batch_size))
            vectors.flush()
            write_json(state, {"made_of": [identity, os.path.getsize(path)], "texts": first + len(block)})
            line.update(len(block))
    return vectors


def _blocks(vectors: Array) -> Iterator[Array]:
    return (np.asarray(vectors[first : first + BLOCK]) for first in range(0, len(vectors), BLOCK))


def write_groups(path: str, mined: Iterable[Mined], *, scores: bool = False) -> tuple[int, int]:
    """Writes JSON lines with query, positive, negatives and, if asked for, scores.

    Returns:
        (pairs, those without any negative, which are left out if there are scores: one alone teaches nothing).
    """
    count = without = 0
    with open(path, "w", encoding="utf-8") as file:
        for one in mined:
            without += not one.negatives
            if scores and not one.negatives:
                continue
            line: Json = {"query": one.query, "positive": one.positive, "negatives": list(one.negatives)}
            if scores:
                line["scores"] = [round(value, 6) for value in one.scores]
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count, without
