"""Entities from tags; precision, recall and F1 as conlleval.pl and KLUE's authors count them."""

import collections
import functools
import itertools

import numpy as np

from bert_tf.errors import ConfigError, DataError
from bert_tf.metrics.checks import check_lengths, check_names
from bert_tf.metrics.counts import precision_recall_f1

# BIO marks the first token of every entity with B, IOB1 (the files of CoNLL-2003) only where it touches an entity of
# the same type, BIOES marks last tokens and single ones as well.
SCHEMES = ("BIO", "BIOES", "IOB1")

# klue_baseline/data/klue_ner.py of KLUE-benchmark/KLUE-baseline, in its order.
KLUE_LABELS = (*(f"{prefix}-{kind}" for kind in ("PS", "LC", "OG", "DT", "TI", "QT") for prefix in "BI"), "O")


def entities(tags):
    """The entities of one sentence, by the rules with which conlleval.pl reads correct and broken tags alike.

    An entity starts at B or S, after O, after E or S, and where the type changes; it goes on until the next start or O.
    So an I without a B is an entity, in every scheme. conlleval.pl itself knows no S, and misses a B right after an E:
    for BIOES this is what it finds once S, and what follows E or S, is written B, and E is written I.

    Args:
        tags: list of str: "O", or B, I, E or S, a hyphen and a type.

    Returns:
        list of (start, end, type), `end` exclusive, in order.

    Raises:
        DataError: a tag is none of these.
    """
    spans, start, last_prefix, last_kind = [], None, "O", ""
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


def encode(spans, length, scheme="BIO"):
    """The tags of one sentence.

    Args:
        spans: list of (start, end, type) in order, as `entities` returns.
        length: number of tokens.
        scheme: one of SCHEMES.

    Returns:
        list of str [length].

    Raises:
        ConfigError: unknown scheme.
        DataError: entities overlap, are empty or reach beyond the sentence.
    """
    _check_scheme(scheme)
    tags, last_end, last_kind = ["O"] * length, 0, ""
    for start, end, kind in spans:
        if not last_end <= start < end <= length:
            raise DataError(f"entity {kind} at {start} to {end}; expected it from {last_end} on and before {length}")
        tags[start:end] = [f"I-{kind}"] * (end - start)
        if scheme == "BIOES":
            tags[end - 1] = f"E-{kind}"
        if scheme == "BIOES" and end - start == 1:
            tags[start] = f"S-{kind}"
        elif scheme != "IOB1" or (start, kind) == (last_end, last_kind):
            tags[start] = f"B-{kind}"
        last_end, last_kind = end, kind
    return tags


def repair(tags, scheme="BIO"):
    """The same entities, written as the scheme writes them.

    Args:
        tags: list of str, as for `entities`; of any scheme.
        scheme: one of SCHEMES.

    Returns:
        list of str.

    Raises:
        ConfigError, DataError: as `encode` and `entities`.
    """
    return encode(entities(tags), len(tags), scheme)


def entity_counts(labels, predictions):
    """What entity precision, recall and F1 are made of, for each sentence.

    Args:
        labels: list of sentences, each a list of tags.
        predictions: the same shape.

    Returns:
        int64 [sentences, 3]: predicted entities that are right in start, end and type; predicted ones; true ones.

    Raises:
        DataError: no sentences, other lengths, or a tag that is none.
    """
    return np.array([[len(true & found), len(found), len(true)] for true, found in _pairs(labels, predictions)])


def entity_scores(labels, predictions):
    """Entity scores over all sentences, and of each type.

    Args:
        labels: list of sentences, each a list of tags.
        predictions: the same shape.

    Returns:
        dict name -> float: "precision", "recall", "f1" over all entities, "accuracy" of tags; "entities" and
        "predicted_entities"; and for each type "TYPE/precision", "TYPE/recall", "TYPE/f1", "TYPE/entities",
        "TYPE/predicted_entities".

    Raises:
        DataError: as `entity_counts`.
    """
    counts, total = _counts_by_type(labels, predictions)
    scores = _shares(*total) | {"accuracy": _accuracy(labels, predictions)}
    for kind in sorted(counts):
        scores |= {f"{kind}/{name}": value for name, value in _shares(*counts[kind]).items()}
    return scores


def klue_scores(labels, predictions):
    """KLUE's two measures of named entities (Park et al., 2021, section 3.4), as its authors' code counts them.

    From klue_baseline/metrics/functional.py and models/named_entity_recognition.py. Tags are of characters, without
    those of white space. Unlike conlleval.pl it takes an entity only from a B on: an I that follows neither a B nor an
    I of its type is none. Among the labels of the character measure is O, which the tokens [CLS] and [SEP] of each
    sentence count as. What their code cuts off at 128 tokens, labels and predictions alike, is counted here.

    Args:
        labels: list of sentences, each a list of tags: KLUE_LABELS, or others, which no prediction gets right.
        predictions: the same shape, of KLUE_LABELS.

    Returns:
        dict: "entity_macro_f1", the mean over the types that occur or are predicted; "character_macro_f1", the mean
        over the thirteen labels, of which those that neither occur nor are predicted count as 1.

    Raises:
        DataError: as `entity_counts`, and for a prediction that is not among KLUE_LABELS.
    """
    return {name: float(metric(terms.sum(0))) for name, (metric, terms) in klue_terms(labels, predictions).items()}


def klue_terms(labels, predictions):
    """What `klue_scores` are made of, for each sentence.

    Args:
        labels, predictions: as for `klue_scores`.

    Returns:
        dict name -> (function of sums of the terms, [..., terms], to float64 [...]; terms int64 [sentences, terms]).

    Raises:
        DataError: as `klue_scores`.
    """
    _check_sentences(labels, predictions)
    check_names((tag for tags in predictions for tag in tags), KLUE_LABELS, "prediction")
    types, of_entities, of_characters = {tag[2:] for tag in KLUE_LABELS if tag != "O"}, [], []
    for true, found in zip(labels, predictions, strict=True):
        spans = set(_strict_entities(true)), set(_strict_entities(found))
        of_entities.append([[kind for *_, kind in some] for some in (spans[0] & spans[1], *spans[::-1])])
        types.update(*of_entities[-1])
        right = [tag for tag, guess in zip(true, found, strict=True) if tag == guess]
        of_characters.append([("O", *tags, "O") for tags in (right, found, true)])
    return {
        "entity_macro_f1": (_mean_f1_of_marked, _counts_of(sorted(types), of_entities)),
        "character_macro_f1": (_mean_f1_of_all, _counts_of(KLUE_LABELS, of_characters)),
    }


@functools.cache
def _split(tag):
    """(prefix, type) of a tag; a type may hold hyphens."""
    prefix, _, kind = tag.partition("-")
    if tag != "O" and not (prefix in ("B", "I", "E", "S") and kind):
        raise DataError(f"tag {tag!r}; expected O, or B, I, E or S with a hyphen and a type, as in B-PER")
    return prefix, kind


def _check_scheme(scheme):
    if scheme not in SCHEMES:
        raise ConfigError(f"unknown tagging scheme {scheme!r}; expected one of {', '.join(SCHEMES)}")


def _check_sentences(labels, predictions):
    check_lengths(labels=labels, predictions=predictions)
    for number, (true, found) in enumerate(zip(labels, predictions, strict=True), 1):
        if len(true) != len(found):
            raise DataError(f"sentence {number}: {len(found)} predictions for {len(true)} tags; expected one a token")
    if not any(map(len, labels)):
        raise DataError("no sentence has a tag: nothing to measure; expected at least one")


def _pairs(labels, predictions):
    """(set of true entities, set of predicted ones) of each sentence."""
    _check_sentences(labels, predictions)
    return [(set(entities(true)), set(entities(found))) for true, found in zip(labels, predictions, strict=True)]


def _counts_by_type(labels, predictions):
    """dict type -> int [3]: right, predicted, true entities; and the sum over all types."""
    counts = collections.defaultdict(lambda: np.zeros(3, int))
    for true, found in _pairs(labels, predictions):
        for index, spans in enumerate((true & found, found, true)):
            for _, _, kind in spans:
                counts[kind][index] += 1
    return counts, sum(counts.values(), start=np.zeros(3, int))


def _accuracy(labels, predictions):
    """Share of tags that are right."""
    pairs = zip(itertools.chain.from_iterable(labels), itertools.chain.from_iterable(predictions), strict=True)
    return sum(true == found for true, found in pairs) / sum(map(len, labels))


def _counts_of(kinds, sentences):
    """int64 [sentences, 3 * kinds]: how often each kind is right, found, true, from lists of all that is."""
    return np.array([[count[kind] for count in map(collections.Counter, three) for kind in kinds]
                     for three in sentences])  # fmt: skip


def _f1_of_kinds(counts):
    """(F1, whether it is found or true at all): each [..., kinds], of sums of `_counts_of`."""
    right, found, true = np.split(counts, 3, -1)
    return precision_recall_f1(right, found, true)[2], found + true > 0


def _mean_f1_of_marked(counts):
    f1, marked = _f1_of_kinds(counts)
    return f1.sum(-1) / np.maximum(marked.sum(-1), 1)


def _mean_f1_of_all(counts):
    f1, marked = _f1_of_kinds(counts)
    return np.where(marked, f1, 1).mean(-1)


def _shares(correct, found, true):
    shares = map(float, precision_recall_f1(correct, found, true))
    counts = {"entities": float(true), "predicted_entities": float(found)}
    return dict(zip(("precision", "recall", "f1"), shares, strict=True)) | counts


def _strict_entities(tags):
    """(start, end, type) of each B and the I of its type that follow."""
    spans = []
    for index, tag in enumerate(tags):
        prefix, kind = _split(tag)
        if prefix == "B":
            spans.append((index, index + 1, kind))
        elif prefix == "I" and spans and spans[-1][1:] == (index, kind):
            spans[-1] = (spans[-1][0], index + 1, kind)
    return spans
