"""Error analysis of tagging: entities by type or words by tag, and the sentences with most errors."""

import collections
import itertools
import operator
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.metrics import bootstrap
from bert_tf.metrics import tagging as metrics
from bert_tf.metrics.counts import precision_recall_f1
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample, Table
from bert_tf.tasks.tags import learned, scored, starts_of, words_of
from bert_tf.types import Array, Json, Metrics

_Sentences: TypeAlias = Sequence[Sequence[str]]  # the tags of each


def tagging_errors(
    scheme: str, unit: str, examples: list[TaggedExample], predictions: list[Json], *, klue: bool
) -> ErrorAnalysis:
    """Analyses a tagger's predictions.

    Args:
        scheme, unit: of the task.
        examples, predictions: as for `FineTuningTask.error_analysis`.
        klue: whether KLUE's two metrics are among the official ones.

    Returns:
        The analysis; its confidences are those of the predicted entities.
    """
    tags = [learned(example, scheme) for example in examples], [one["tags"] for one in predictions]
    gold, predicted = (
        [scored(example, own, unit) for example, own in zip(examples, sentences, strict=True)] for sentences in tags
    )
    right = [(sum(map(operator.eq, *both)), len(both[0])) for both in zip(gold, predicted, strict=True)]
    intervals = {"accuracy": bootstrap.interval_of_sums(lambda sums: sums[:, 0] / np.maximum(sums[:, 1], 1), right)}
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
    intervals |= _intervals_of_entities(gold, predicted)
    if klue:
        terms = metrics.klue_terms(gold, predicted)
        intervals |= {name: bootstrap.interval_of_sums(*of_sentences) for name, of_sentences in terms.items()}
    spans = [
        (span["score"], (span["start"], span["end"], span["label"]) in of_sentence)
        for of_sentence, prediction in zip(true, predictions, strict=True)
        for span in prediction["spans"]
    ]
    return ErrorAnalysis(
        intervals=intervals,
        table=_table_of_types(metrics.entity_scores(gold, predicted)),
        confidences=[score for score, _ in spans],
        correct=[is_right for _, is_right in spans],
        errors=errors,
    )


def _intervals_of_entities(gold: _Sentences, predicted: _Sentences) -> dict[str, tuple[float, float]]:
    counts = metrics.entity_counts(gold, predicted)

    def metric(index: int) -> Callable[[Array], Array]:
        return lambda sums: precision_recall_f1(*sums.T)[index]

    return {
        name: bootstrap.interval_of_sums(metric(index), counts)
        for index, name in enumerate(("precision", "recall", "f1"))
    }


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


def _table_of_types(scores: Metrics) -> Table:
    kinds = [name.removesuffix("/f1") for name in scores if name.endswith("/f1")]
    columns = ("precision", "recall", "f1", "entities", "predicted_entities")
    rows = [
        (kind, *(scores[f"{kind}/{name}"] if index < 3 else int(scores[f"{kind}/{name}"])
                 for index, name in enumerate(columns)))
        for kind in kinds
    ]  # fmt: skip
    return Table("Entities by type", ("type", "precision", "recall", "f1", "entities", "predicted"), rows)


def _table_of_tags(gold: _Sentences, predicted: _Sentences) -> Table:
    true, answered = (list(itertools.chain.from_iterable(sentences)) for sentences in (gold, predicted))
    right = collections.Counter(tag for tag, other in zip(true, answered, strict=True) if tag == other)
    words, answers = collections.Counter(true), collections.Counter(answered)
    rows = [
        (tag, *map(float, precision_recall_f1(right[tag], answers[tag], words[tag])), words[tag], answers[tag])
        for tag in sorted(words | answers, key=lambda tag: -words[tag])
    ]
    return Table("Tags", ("tag", "precision", "recall", "f1", "words", "predicted"), rows)
