"""Entities from tags, and their precision, recall and F1, equal to conlleval.pl and KLUE's own code."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from bert_tf.errors import ConfigError, DataError
from bert_tf.metrics.checks import check_lengths, check_names
from bert_tf.metrics.counts import precision_recall_f1
from bert_tf.types import Array, Metrics

Span: TypeAlias = tuple[int, int, str]  # start, end (exclusive), type of an entity
Sentences: TypeAlias = Sequence[Sequence[str]]  # the tags of each sentence

# BIO marks the first token of every entity with B, IOB1 (the files of CoNLL-2003) only directly after an entity of the
# same type; BIOES also marks last and single tokens.
SCHEMES = ("BIO", "BIOES", "IOB1")

# klue_baseline/data/klue_ner.py of KLUE-benchmark/KLUE-baseline, in its order.
KLUE_LABELS = (*(f"{prefix}-{kind}" for kind in ("PS", "LC", "OG", "DT", "TI", "QT") for prefix in "BI"), "O")


def entities(tags: Sequence[str]) -> list[Span]:
    """Returns the entities of one sentence, by the rules of conlleval.pl for both correct and broken tags.

    An entity starts at B or S, after O, after E or S, and at a change of type; it continues until the next start or O.
    So an I without a B is an entity, in every scheme. conlleval.pl itself does not know S, and misses a B right after
    an E: the result for BIOES equals conlleval.pl's for the same tags with S, and any tag after E or S, written as B,
    and E written as I.

    Args:
        tags: "O", or B, I, E or S with a hyphen and a type.

    Returns:
        (start, end, type) of each entity, `end` exclusive, in order.
    """
    spans: list[Span] = []
    start: int | None = None
    last_prefix, last_kind = "O", ""
    for index, tag in enumerate((*tags, "O")):
        prefix, kind = _split(tag)
        is_start = prefix != "O" and (prefix in "BS" or last_prefix in "OES" or kind != last_kind)
        if start is not None and (is_start or prefix == "O"):
            spans.append((start, index, last_kind))
            start = None
        if is_start:
            start = index
        last_prefix, last_kind = prefix, kind
    return spans


def encode(spans: Iterable[Span], length: int, scheme: str = "BIO") -> list[str]:
    """Returns the tags of one sentence, the inverse of `entities`.

    Args:
        spans: in order, not empty, without overlap.
        length: number of tokens.
        scheme: one of SCHEMES.
    """
    _check_scheme(scheme)
    tags, last_end, last_kind = ["O"] * length, 0, ""
    for start, end, kind in spans:
        if not last_end <= start < end <= length:
            raise DataError(f"entity {kind} at {start} to {end}; expected a span between {last_end} and {length}")
        tags[start:end] = [f"I-{kind}"] * (end - start)
        if scheme == "BIOES":
            tags[end - 1] = f"E-{kind}"
        if scheme == "BIOES" and end - start == 1:
            tags[start] = f"S-{kind}"
        elif scheme != "IOB1" or (start, kind) == (last_end, last_kind):
            tags[start] = f"B-{kind}"
        last_end, last_kind = end, kind
    return tags


def repair(tags: Sequence[str], scheme: str = "BIO") -> list[str]:
    """Converts tags of any scheme to valid tags of one of SCHEMES, with the same entities."""
    return encode(entities(tags), len(tags), scheme)


def entity_counts(labels: Sentences, predictions: Sentences) -> Array:
    """Counts entities per sentence, for precision, recall and F1.

    Args:
        labels: the tags of each sentence.
        predictions: the same shape.

    Returns:
        int64 [sentences, 3]: correctly predicted entities (start, end and type), predicted ones, true ones.
    """
    return np.array(
        [[len(true & predicted), len(predicted), len(true)] for true, predicted in _pairs(labels, predictions)]
    )


def entity_scores(labels: Sentences, predictions: Sentences) -> Metrics:
    """Computes the metrics of entities over all sentences, in total and per type.

    Args:
        labels: the tags of each sentence.
        predictions: the same shape.

    Returns:
        dict: "precision", "recall", "f1" over all entities, "accuracy" of tags; "entities" and "predicted_entities",
        their numbers; and for each type "TYPE/precision", "TYPE/recall", "TYPE/f1", "TYPE/entities",
        "TYPE/predicted_entities".
    """
    counts, total = _counts_by_type(labels, predictions)
    scores = _shares(*total) | {"accuracy": _accuracy(labels, predictions)}
    for kind in sorted(counts):
        scores |= {f"{kind}/{name}": value for name, value in _shares(*counts[kind]).items()}
    return scores


def klue_scores(labels: Sentences, predictions: Sentences) -> Metrics:
    """Computes KLUE's two metrics of named entities (Park et al., 2021, section 3.4), equal to its authors' code.

    From klue_baseline/metrics/functional.py and models/named_entity_recognition.py. Tags are of characters, without
    white space. Unlike in conlleval.pl, an entity starts only at a B: an I after neither a B nor an I of its type is no
    entity. The labels of the character metric include O, and the tokens [CLS] and [SEP] of each sentence count as O.
    The authors' code truncates labels and predictions to 128 tokens; here all are counted.

    Args:
        labels: the tags of each sentence: KLUE_LABELS, or others, which no prediction matches.
        predictions: the same shape, of KLUE_LABELS.

    Returns:
        dict: "entity_macro_f1", the mean over the types that occur or are predicted; "character_macro_f1", the mean
        over the thirteen labels, where a label that neither occurs nor is predicted counts as 1.
    """
    return {name: float(metric(terms.sum(0))) for name, (metric, terms) in klue_terms(labels, predictions).items()}


def klue_terms(labels: Sentences, predictions: Sentences) -> dict[str, tuple[Callable[[Array], Array], Array]]:
    """Computes the counts per sentence from which `klue_scores` are computed.

    Args:
        labels, predictions: as for `klue_scores`.

    Returns:
        dict name -> (function of sums of the terms, [..., terms], to float64 [...]; terms int64 [sentences, terms]).
    """
    _check_sentences(labels, predictions)
    check_names((tag for tags in predictions for tag in tags), KLUE_LABELS, "prediction")
    types = {tag[2:] for tag in KLUE_LABELS if tag != "O"}
    of_entities: list[list[list[str]]] = []
    of_characters: list[list[tuple[str, ...]]] = []
    for true, predicted in zip(labels, predictions, strict=True):
        true_spans, predicted_spans = set(_strict_entities(true)), set(_strict_entities(predicted))
        correct_spans = true_spans & predicted_spans
        of_entities.append([[kind for _, _, kind in spans] for spans in (correct_spans, predicted_spans, true_spans)])
        types.update(*of_entities[-1])
        correct = [tag for tag, prediction in zip(true, predicted, strict=True) if tag == prediction]
        of_characters.append([("O", *tags, "O") for tags in (correct, predicted, true)])
    return {
        "entity_macro_f1": (_mean_f1_of_occurring, _counts_of(sorted(types), of_entities)),
        "character_macro_f1": (_mean_f1_of_all, _counts_of(KLUE_LABELS, of_characters)),
    }


@functools.cache
def _split(tag: str) -> tuple[str, str]:
    """(prefix, type) of a tag; a type may contain hyphens."""
    prefix, _, kind = tag.partition("-")
    if tag != "O" and not (prefix in ("B", "I", "E", "S") and kind):
        raise DataError(f"tag {tag!r}; expected O, or B, I, E or S with a hyphen and a type, as in B-PER")
    return prefix, kind


def _check_scheme(scheme: str) -> None:
    if scheme not in SCHEMES:
        raise ConfigError(f"unknown tagging scheme {scheme!r}; expected one of {', '.join(SCHEMES)}")


def _check_sentences(labels: Sentences, predictions: Sentences) -> None:
    check_lengths(labels=labels, predictions=predictions)
    for number, (true, predicted) in enumerate(zip(labels, predictions, strict=True), 1):
        if len(true) != len(predicted):
            raise DataError(
                f"sentence {number}: {len(predicted)} predictions for {len(true)} tags; expected one per token"
            )
    if not any(map(len, labels)):
        raise DataError("no sentence has a tag: nothing to measure; expected at least one")


def _pairs(labels: Sentences, predictions: Sentences) -> list[tuple[set[Span], set[Span]]]:
    """(true entities, predicted entities) of each sentence."""
    _check_sentences(labels, predictions)
    pairs = zip(labels, predictions, strict=True)
    return [(set(entities(true)), set(entities(predicted))) for true, predicted in pairs]


def _counts_by_type(labels: Sentences, predictions: Sentences) -> tuple[dict[str, Array], Array]:
    """Type -> int [3]: correct, predicted, true entities; and the sum over all types."""
    counts: dict[str, Array] = collections.defaultdict(lambda: np.zeros(3, int))
    for true, predicted in _pairs(labels, predictions):
        for index, spans in enumerate((true & predicted, predicted, true)):
            for _, _, kind in spans:
                counts[kind][index] += 1
    return counts, sum(counts.values(), start=np.zeros(3, int))


def _accuracy(labels: Sentences, predictions: Sentences) -> float:
    """Share of correct tags."""
    pairs = zip(itertools.chain.from_iterable(labels), itertools.chain.from_iterable(predictions), strict=True)
    return sum(true == predicted for true, predicted in pairs) / sum(map(len, labels))


def _counts_of(kinds: Sequence[str], sentences: Sequence[Sequence[Sequence[str]]]) -> Array:
    """int64 [sentences, 3 * kinds]: counts of each kind in the correct, predicted and true lists of each sentence."""
    return np.array([[count[kind] for count in map(collections.Counter, lists) for kind in kinds]
                     for lists in sentences])  # fmt: skip


def _f1_of_kinds(counts: Array) -> tuple[Array, Array]:
    """(F1, whether the kind is predicted or true at all), [..., kinds] each, from sums of `_counts_of`."""
    correct, predicted, true = np.split(counts, 3, -1)
    return precision_recall_f1(correct, predicted, true)[2], predicted + true > 0


def _mean_f1_of_occurring(counts: Array) -> Array:
    f1, occurs = _f1_of_kinds(counts)
    return f1.sum(-1) / np.maximum(occurs.sum(-1), 1)


def _mean_f1_of_all(counts: Array) -> Array:
    f1, occurs = _f1_of_kinds(counts)
    return np.where(occurs, f1, 1).mean(-1)


def _shares(correct: int, predicted: int, true: int) -> Metrics:
    shares = map(float, precision_recall_f1(correct, predicted, true))
    counts = {"entities": float(true), "predicted_entities": float(predicted)}
    return dict(zip(("precision", "recall", "f1"), shares, strict=True)) | counts


def _strict_entities(tags: Sequence[str]) -> list[Span]:
    """(start, end, type) of each B with the I tags of its type that follow."""
    spans: list[Span] = []
    for index, tag in enumerate(tags):
        prefix, kind = _split(tag)
        if prefix == "B":
            spans.append((index, index + 1, kind))
        elif prefix == "I" and spans and spans[-1][1:] == (index, kind):
            spans[-1] = (spans[-1][0], index + 1, kind)
    return spans
