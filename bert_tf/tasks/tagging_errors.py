"""Error analysis of tagging: entities by type or words by tag, and the sentences with most errors."""

import collections
import itertools
from collections.abc import Container, Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.metrics import bootstrap
from bert_tf.metrics import entities as metrics
from bert_tf.metrics.accuracy_and_f1 import precision_recall_f1
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample, Table
from bert_tf.tasks.tags import learned, scored, starts_of, words_of
from bert_tf.types import Array, Json

_Sentences: TypeAlias = Sequence[Sequence[str]]  # the tags of each


def tagging_errors(
    scheme: str, unit: str, examples: list[TaggedExample], predictions: list[Json], *, klue: bool
) -> ErrorAnalysis:
    """Analyses a tagger's predictions.

    Args:
        scheme, unit: of the task.
        examples, predictions: as for `Benchmark.error_analysis`.
        klue: whether KLUE's two metrics are among the official ones.

    Returns:
        The analysis; its confidences are those of the predicted entities.
    """
    tags = [learned(example, scheme) for example in examples], [one["tags"] for one in predictions]
    gold, predicted = (
        [scored(example, own, unit) for example, own in zip(examples, sentences, strict=True)] for sentences in tags
    )
    intervals = bootstrap.intervals(
        lambda right, words: {"accuracy": right.sum() / max(words.sum(), 1)}, *metrics.tag_counts(gold, predicted).T
    )
    read = _entities if scheme else _tagged
    true, answered = ([read(*one) for one in zip(examples, sentences, strict=True)] for sentences in tags)
    wrong = [(_without(*both), _without(*both[::-1])) for both in zip(true, answered, strict=True)]
    errors = [
        ErrorExample(
            (examples[index].text,), ", ".join(wrong[index][0]), ", ".join(wrong[index][1]), examples[index].location
        )
        for index in sorted(range(len(wrong)), key=lambda index: -max(map(len, wrong[index])))[:LISTED]
        if any(wrong[index])
    ]
    if not scheme:
        return ErrorAnalysis(intervals=intervals, table=_table_of_tags(gold, predicted), errors=errors)
    types, counts = metrics.span_counts(gold, predicted)
    intervals |= bootstrap.intervals(lambda counts: metrics.entity_shares(counts.sum(0)), counts.sum(2))
    if klue:
        intervals |= bootstrap.intervals(metrics.klue_scores, *metrics.klue_counts(gold, predicted))
    spans = [
        (span["score"], (span["start"], span["end"], span["label"]) in of_sentence)
        for of_sentence, prediction in zip(true, predictions, strict=True)
        for span in prediction["spans"]
    ]
    return ErrorAnalysis(
        intervals=intervals,
        table=_table("Entities by type", ("type", "entities"), types, counts.sum(0)),
        confidences=[score for score, _ in spans],
        correct=[is_right for _, is_right in spans],
        errors=errors,
    )


def _entities(example: TaggedExample, tags: Sequence[str]) -> dict[Hashable, str]:
    """The entities of a sentence: (start, end, type), in characters of its text -> text for the reader."""
    starts = starts_of(example)
    ends = [start + len(word) for start, word in zip(starts, words_of(example), strict=True)]
    spans = [(starts[first], ends[last - 1], kind) for first, last, kind in metrics.entities(tags)]
    return {span: f"{example.text[span[0] : span[1]]} ({span[2]})" for span in spans}


def _tagged(example: TaggedExample, tags: Sequence[str]) -> dict[Hashable, str]:
    """The tags of a sentence: (index of the word, tag) -> text for the reader."""
    words = words_of(example)
    return {(index, tag): f"{words[index]} ({tag})" for index, tag in enumerate(tags)}


def _without(items: Mapping[Hashable, str], others: Container[Hashable]) -> list[str]:
    """The texts of those items that are not among the others."""
    return [text for key, text in items.items() if key not in others]


def _table_of_tags(gold: _Sentences, predicted: _Sentences) -> Table:
    true, answered = (list(itertools.chain.from_iterable(sentences)) for sentences in (gold, predicted))
    right = [tag for tag, other in zip(true, answered, strict=True) if tag == other]
    counters = [collections.Counter(tags) for tags in (right, answered, true)]
    tags = sorted(counters[2] | counters[1], key=lambda tag: -counters[2][tag])
    return _table("Tags", ("tag", "words"), tags, np.array([[counter[tag] for tag in tags] for counter in counters]))


def _table(title: str, names: tuple[str, str], kinds: Sequence[str], counts: Array) -> Table:
    """A row for each kind, from the numbers of correct, predicted and true items, int [3, kinds]."""
    _, predicted, true = counts
    columns = (*precision_recall_f1(*counts), true, predicted)
    rows = list(zip(kinds, *(column.tolist() for column in columns), strict=True))
    return Table(title, (names[0], "precision", "recall", "f1", names[1], "predicted"), rows)
