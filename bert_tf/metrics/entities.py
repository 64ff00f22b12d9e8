"""Entities from tags, and their precision, recall and F1, equal to conlleval.pl and KLUE's own code."""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from bert_tf.errors import ConfigError, DataError
from bert_tf.metrics.accuracy_and_f1 import precision_recall_f1
from bert_tf.metrics.checks import check_lengths, check_names
from bert_tf.types import Array, Metrics

Span: TypeAlias = tuple[int, int, str]  # start, end (exclusive), type of an entity
Sentences: TypeAlias = Sequence[Sequence[str]]  # the tags of each sentence

# BIO marks the first token of every entity with B, IOB1 (the files of CoNLL-2003) only directly after an entity of the
# same type, and IO never, so that two of one type side by side are one; BIOES also marks last and single tokens.
SCHEMES = ("BIO", "BIOES", "IOB1", "IO")

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
    last_prefix, last_kind = "O", ""
    for index, tag in enumerate(tags):
        prefix, kind = _split(tag)
        if prefix in "BS" or (prefix != "O" and (last_prefix in "OES" or kind != last_kind)):
            spans.append((index, index + 1, kind))
        elif prefix != "O":
            spans[-1] = (spans[-1][0], index + 1, kind)
        last_prefix, last_kind = prefix, kind
    return spans


def encode(spans: Iterable[Span], length: int, scheme: str = "BIO") -> list[str]:
    """Returns the tags of one sentence, the inverse of `entities` but for IO.

    Args:
        spans: in order, not empty, without overlap.
        length: number of tokens.
        scheme: one of SCHEMES.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"unknown tagging scheme {scheme!r}; expected one of {', '.join(SCHEMES)}")
    tags, last_end, last_kind = ["O"] * length, 0, ""
    for start, end, kind in spans:
        if not last_end <= start < end <= length:
            raise DataError(f"entity {kind} at {start} to {end}; expected a span between {last_end} and {length}")
        tags[start:end] = [f"I-{kind}"] * (end - start)
        if scheme == "BIOES":
            tags[end - 1] = f"E-{kind}"
        if scheme == "BIOES" and end - start == 1:
            tags[start] = f"S-{kind}"
        elif scheme in ("BIO", "BIOES") or (scheme == "IOB1" and (start, kind) == (last_end, last_kind)):
            tags[start] = f"B-{kind}"
        last_end, last_kind = end, kind
    return tags


def repair(tags: Sequence[str], scheme: str = "BIO") -> list[str]:
    """Converts tags of any scheme to valid tags of one of SCHEMES, with the same entities."""
    return encode(entities(tags), len(tags), scheme)


def tag_counts(labels: Sentences, predictions: Sentences) -> Array:
    """Counts tags per sentence, for their accuracy.

    Args:
        labels: the tags of each sentence.
        predictions: the same shape.

    Returns:
        int64 [sentences, 2]: correctly predicted tags, all tags.
    """
    _check_sentences(labels, predictions)
    return np.array([(sum(map(operator.eq, *pair)), len(pair[0])) for pair in zip(labels, predictions, strict=True)])


def span_counts(
    labels: Sentences,
    predictions: Sentences,
    read: Callable[[Sequence[str]], Iterable[Span]] = entities,
    kinds: Iterable[str] = (),
) -> tuple[list[str], Array]:
    """Counts entities per sentence and type, for precision, recall and F1.

    Args:
        labels: the tags of each sentence.
        predictions: the same shape.
        read: finds the entities of a sentence.
        kinds: types to count even if there is none.

    Returns:
        (types, sorted; int64 [sentences, 3, types]: correctly predicted entities (start, end and type), predicted
        ones, true ones).
    """
    _check_sentences(labels, predictions)
    pairs = [(set(read(true)), set(read(predicted))) for true, predicted in zip(labels, predictions, strict=True)]
    types = sorted({*kinds, *(kind for pair in pairs for spans in pair for _, _, kind in spans)})
    numbers = {kind: number for number, kind in enumerate(types)}
    counts = np.zeros((len(pairs), 3, len(types)), int)
    for sentence, (true, predicted) in enumerate(pairs):
        for row, spans in enumerate((true & predicted, predicted, true)):
            for _, _, kind in spans:
                counts[sentence, row, numbers[kind]] += 1
    return types, counts


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
    kinds, counts = span_counts(labels, predictions)
    counts = counts.sum(0)
    scores: Metrics = {}
    for prefix, of_kind in (("", counts.sum(1)), *zip((f"{kind}/" for kind in kinds), counts.T, strict=True)):
        _, predicted, true = of_kind.tolist()
        of_kind = entity_shares(of_kind) | {"entities": float(true), "predicted_entities": float(predicted)}
        scores |= {f"{prefix}{name}": value for name, value in of_kind.items()}
    right, tags = tag_counts(labels, predictions).sum(0).tolist()
    return scores | {"accuracy": right / tags}


def entity_shares(counts: Array) -> Metrics:
    """Computes "precision", "recall" and "f1" from the numbers of correct, predicted and true entities, int [3]."""
    return dict(zip(("precision", "recall", "f1"), map(float, precision_recall_f1(*counts)), strict=True))


def klue_counts(labels: Sentences, predictions: Sentences) -> tuple[Array, Array]:
    """Counts entities and tags of characters per sentence, for `klue_scores`.

    Args:
        labels: the tags of each sentence: KLUE_LABELS, or others, which no prediction matches.
        predictions: the same shape, of KLUE_LABELS.

    Returns:
        (int64 [sentences, 3, types], [sentences, 3, labels]): as `span_counts` returns, and the same of tags.
    """
    check_names([tag for tags in predictions for tag in tags], KLUE_LABELS, "prediction")
    _, of_entities = span_counts(labels, predictions, _strict_entities)
    tags, of_characters = span_counts(labels, predictions, _characters, KLUE_LABELS)
    return of_entities, of_characters[:, :, [tags.index(tag) for tag in KLUE_LABELS]]


def klue_scores(of_entities: Array, of_characters: Array) -> Metrics:
    """Computes KLUE's two metrics of named entities (Park et al., 2021, section 3.4), equal to its authors' code.

    From klue_baseline/metrics/functional.py and models/named_entity_recognition.py. Tags are of characters, without
    white space. Unlike in conlleval.pl, an entity starts only at a B: an I after neither a B nor an I of its type is no
    entity. The labels of the character metric include O, and the tokens [CLS] and [SEP] of each sentence count as O.
    The authors' code truncates labels and predictions to 128 tokens; here all are counted.

    Args:
        of_entities, of_characters: from `klue_counts`.

    Returns:
        dict: "entity_macro_f1", the mean over the types that occur or are predicted; "character_macro_f1", the mean
        over the thirteen labels, where a label that neither occurs nor is predicted counts as 1.
    """
    entity_counts, character_counts = of_entities.sum(0), of_characters.sum(0)
    entity_f1, character_f1 = (precision_recall_f1(*counts)[2] for counts in (entity_counts, character_counts))
    occurring = entity_counts.any(0).sum()
    character_f1 = np.where(character_counts.any(0), character_f1, 1.0)
    return {
        "entity_macro_f1": float(entity_f1.sum() / max(occurring, 1)),
        "character_macro_f1": float(character_f1.mean()),
    }


@functools.cache
def _split(tag: str) -> tuple[str, str]:
    """(prefix, type) of a tag; a type may contain hyphens."""
    prefix, _, kind = tag.partition("-")
    if tag != "O" and not (prefix in ("B", "I", "E", "S") and kind):
        raise DataError(f"tag {tag!r}; expected O, or B, I, E or S with a hyphen and a type, as in B-PER")
    return prefix, kind


def _check_sentences(labels: Sentences, predictions: Sentences) -> None:
    check_lengths(labels=labels, predictions=predictions)
    for number, (true, predicted) in enumerate(zip(labels, predictions, strict=True), 1):
        if len(true) != len(predicted):
            raise DataError(
                f"sentence {number}: {len(predicted)} predictions for {len(true)} tags; expected one per token"
            )
    if not any(map(len, labels)):
        raise DataError("no sentence has a tag: nothing to measure; expected at least one")


def _strict_entities(tags: Sequence[str]) -> list[Span]:
    """(start, end, type) of each B with the I tags of its type that follow."""
    return [span for span in entities(tags) if tags[span[0]].startswith("B-")]


def _characters(tags: Sequence[str]) -> list[Span]:
    """(start, end, tag) of each character, [CLS] and [SEP]."""
    return [(index, index + 1, tag) for index, tag in enumerate(("O", *tags, "O"))]
