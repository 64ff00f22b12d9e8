"""What a report shows of tags: entities by type or words by tag, and the sentences with most mistakes."""

import collections
import itertools
import operator

import numpy as np

from bert_tf.metrics import bootstrap
from bert_tf.metrics import tagging as metrics
from bert_tf.metrics.counts import precision_recall_f1
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample, Table
from bert_tf.tasks.tags import learned, scored


def tagging_errors(scheme, unit, examples, predictions, *, klue):
    """What a report shows of a tagger's answers.

    Args:
        scheme, unit: of the task.
        examples, predictions: as for `FineTuningTask.error_analysis`.
        klue: whether KLUE's two figures are among the scores.

    Returns:
        ErrorAnalysis; an answer whose confidence is shown is a predicted entity.
    """
    tags = [learned(example, scheme) for example in examples], [one["tags"] for one in predictions]
    gold, found = ([scored(example, own, unit) for example, own in zip(examples, some, strict=True)] for some in tags)
    right = [(sum(map(operator.eq, *both)), len(both[0])) for both in zip(gold, found, strict=True)]
    intervals = {"accuracy": bootstrap.interval_of_sums(lambda sums: sums[:, 0] / np.maximum(sums[:, 1], 1), right)}
    read = _entities if scheme else _tagged
    true, said = ([read(*one) for one in zip(examples, some, strict=True)] for some in tags)
    wrong = [(_without(*both), _without(*both[::-1])) for both in zip(true, said, strict=True)]
    errors = [
        ErrorExample(
            (examples[index].text,), ", ".join(wrong[index][0]), ", ".join(wrong[index][1]), examples[index].location
        )
        for index in sorted(range(len(wrong)), key=lambda index: -max(map(len, wrong[index])))[:LISTED]
        if any(wrong[index])
    ]
    if not scheme:
        return ErrorAnalysis(intervals=intervals, table=_table_of_tags(gold, found), errors=errors)
    intervals |= _intervals_of_entities(gold, found)
    if klue:
        terms = metrics.klue_terms(gold, found)
        intervals |= {name: bootstrap.interval_of_sums(*of_sentences) for name, of_sentences in terms.items()}
    spans = [
        (span["score"], (span["start"], span["end"], span["label"]) in of_sentence)
        for of_sentence, prediction in zip(true, predictions, strict=True)
        for span in prediction["spans"]
    ]
    return ErrorAnalysis(
        intervals=intervals,
        table=_table_of_types(metrics.entity_scores(gold, found)),
        confidences=[score for score, _ in spans],
        correct=[is_right for _, is_right in spans],
        errors=errors,
    )


def _intervals_of_entities(gold, found):
    counts = metrics.entity_counts(gold, found)
    return {
        name: bootstrap.interval_of_sums(lambda sums, index=index: precision_recall_f1(*sums.T)[index], counts)
        for index, name in enumerate(("precision", "recall", "f1"))
    }


def _entities(example, tags):
    """The entities of a sentence: dict (start, end, type), in characters of its text -> what a reader sees of it."""
    ends = [start + len(word) for start, word in zip(example.starts, example.words, strict=True)]
    spans = [(example.starts[first], ends[last - 1], kind) for first, last, kind in metrics.entities(tags)]
    return {span: f"{example.text[span[0] : span[1]]} ({span[2]})" for span in spans}


def _tagged(example, tags):
    """The tags of a sentence: dict (number of the word, tag) -> what a reader sees of it."""
    return {(index, tag): f"{example.words[index]} ({tag})" for index, tag in enumerate(tags)}


def _without(some, others):
    """What a reader sees of those that are not among the others."""
    return [shown for index, shown in some.items() if index not in others]


def _table_of_types(scores):
    kinds = [name.removesuffix("/f1") for name in scores if name.endswith("/f1")]
    columns = ("precision", "recall", "f1", "entities", "predicted_entities")
    rows = [
        (kind, *(scores[f"{kind}/{name}"] if index < 3 else int(scores[f"{kind}/{name}"])
                 for index, name in enumerate(columns)))
        for kind in kinds
    ]  # fmt: skip
    return Table("Entities by type", ("type", "precision", "recall", "f1", "entities", "predicted"), rows)


def _table_of_tags(gold, found):
    gold, found = (list(itertools.chain.from_iterable(sentences)) for sentences in (gold, found))
    true, said = collections.Counter(gold), collections.Counter(found)
    right = collections.Counter(tag for tag, other in zip(gold, found, strict=True) if tag == other)
    rows = [
        (tag, *map(float, precision_recall_f1(right[tag], said[tag], true[tag])), true[tag], said[tag])
        for tag in sorted(true | said, key=lambda tag: -true[tag])
    ]
    return Table("Tags", ("tag", "precision", "recall", "f1", "words", "predicted"), rows)
