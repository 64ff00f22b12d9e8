"""Tags of sentences as a model learns and predicts them: spellings, schemes, the label set, characters, entities."""

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.metrics import entities as metrics
from bert_tf.text.words import spans
from bert_tf.types import Json, Tensors

# A predicted word or wordpiece: start and end in characters of the text, tag, score.
Unit: TypeAlias = tuple[int, int, str, float]

# Prefixes by their names: L and U are BILOU's E and S; M and W are BMEWO's I and S.
_PREFIXES = dict(zip("BIESLUMW", "BIESESIS", strict=True))
_SPELLINGS = (
    re.compile(r"(?P<prefix>[BIESLUMW])[-_](?P<kind>.+)", re.IGNORECASE),  # B-PER, b-per, B_PS
    re.compile(r"(?P<kind>.+)[-_](?P<prefix>[BIESLUMW])", re.IGNORECASE),  # PER-B, PER_B
)
# CoNLL-2012: "(PER*" begins an entity, "*" continues it or is outside, "*)" ends it, and "(PER)" is a whole one.
_BRACKET = re.compile(r"\((?P<kind>[^()*]+)(?:\*\)?|\))")
_CLOSED = frozenset(("*", "*)"))
_OUTSIDE = frozenset(("O", "o", "-", "_"))
_UNTYPED = frozenset("Ii")  # continues the entity before it
_USUAL = ("B-", "I-", "E-", "S-")
_EXCHANGED = str.maketrans("BIbi", "IBib")


def tags_of(example: TaggedExample) -> tuple[str, ...]:
    """The tags of a labelled sentence."""
    assert example.tags is not None
    return example.tags


def words_of(example: TaggedExample) -> tuple[str, ...]:
    """The words of a sentence that has been split."""
    assert example.words is not None
    return example.words


def starts_of(example: TaggedExample) -> tuple[int, ...]:
    """The start of each word of a sentence that has been split, in characters."""
    assert example.starts is not None
    return example.starts


@functools.cache
def _respelt(tag: str) -> str:
    """The tag in the spelling B-PER, or O; anything else is returned unchanged."""
    if tag in _OUTSIDE:
        return "O"
    match = next(filter(None, (spelling.fullmatch(tag) for spelling in _SPELLINGS)), None)
    return f"{_PREFIXES[match['prefix'].upper()]}-{match['kind']}" if match else tag


def respelt(tags: Iterable[str], *, bare: bool = False) -> list[str]:
    """Entity tags of a sentence in the spelling of B-PER, I-PER and O, which models learn and answer in.

    Others are PER-B, B_PER, b-per, and "-" or "_" for O; L, U, M and W of BILOU and BMEWO; I without a type, which
    continues the entity before it; and the brackets of CoNLL-2012. A tag in no known spelling is returned unchanged.

    Args:
        tags: of one sentence.
        bare: whether tags are types without a prefix (the scheme IO): PER is read as I-PER.
    """
    found, kind, in_brackets = [], "", ""
    for written in tags:
        if bracket := _BRACKET.fullmatch(written):
            tag = f"B-{bracket['kind']}"
            in_brackets = bracket["kind"] if written.endswith("*") else ""
        elif written in _CLOSED and (in_brackets or written == "*"):
            tag = f"I-{in_brackets}" if in_brackets else "O"
            in_brackets = in_brackets if written == "*" else ""
        else:
            tag = _respelt(written)
        if tag in _UNTYPED and kind:
            tag = f"I-{kind}"
        if bare and tag != "O" and not tag.startswith(_USUAL):
            tag = f"I-{tag}"
        kind = tag.partition("-")[2]
        found.append(tag)
    return found


def are_entities(tags: Iterable[str]) -> bool:
    """Whether these are entity tags in a known spelling: some have a prefix such as B-, and the others are O.

    Tags of parts of speech may have such a prefix too, e.g. "S----3MS2-" in the Prague Arabic treebank. Besides O and
    entity tags of the usual spelling there may be invalid ones here; `learned` reports them with their location.
    """
    tags = set(tags)
    if any(map(_BRACKET.fullmatch, tags)) and all(tag in _CLOSED or _BRACKET.fullmatch(tag) for tag in tags):
        return True
    prefixed = {tag for tag in tags if _respelt(tag).startswith(_USUAL)}
    if tags - prefixed - _OUTSIDE - _UNTYPED:
        return "O" in tags and any(tag.startswith(_USUAL) for tag in prefixed)
    return bool(prefixed)


def are_bare(tags: Iterable[str]) -> bool:
    """Whether tags could be types of entities without a prefix, with O outside of them (the scheme IO).

    Tags of parts of speech in which O is one of them, as Twitter's, are single letters.
    """
    tags = set(tags)
    types = tags - {"O"}
    are_types = bool(types) and all(len(tag) > 1 and not tag.isdecimal() for tag in types)
    return "O" in tags and are_types and not look_like_entities(tags)


def are_numbers(tags: Iterable[str]) -> bool:
    """Whether all tags are numbers, as Hugging Face's data sets have them instead of names."""
    return all(map(str.isdecimal, tags))


def look_like_entities(tags: Iterable[str]) -> bool:
    """Whether a type has tags for B and I, at least half of the tags have a partner with I for B at either end, or a
    tag has brackets and stars."""
    tags = set(tags)
    known = set(map(_respelt, tags))

    def is_paired(tag: str) -> bool:
        others = tag[:1].translate(_EXCHANGED) + tag[1:], tag[:-1] + tag[-1:].translate(_EXCHANGED)
        return any(other != tag and other in tags for other in others)

    if any(tag.startswith("B-") and f"I-{tag[2:]}" in known for tag in known):
        return True
    if any(re.fullmatch(r"\(.*\*|\*.*\)", tag) for tag in tags):  # entities in others
        return True
    return 2 * sum(map(is_paired, tags)) >= len(tags)


def scheme_of(sentences: Iterable[Sequence[str]], *, bare: bool = False) -> str:
    """The scheme of entity tags, even if sequences are broken.

    Args:
        sentences: the tags of each sentence, in any spelling.
        bare: as for `respelt`.

    Returns:
        "BIOES" if there is an E or S; "IOB1" if every B is between two entities of one type; else "BIO".
    """
    scheme = "IOB1"
    for tags in (respelt(written, bare=bare) for written in sentences):
        if any(tag[:2] in ("E-", "S-") for tag in tags):
            return "BIOES"
        if any(tag.startswith("B-") and last[2:] != tag[2:] for last, tag in itertools.pairwise(("O", *tags))):
            scheme = "BIO"
    return scheme


def closed(counts: Mapping[str, int], scheme: str) -> tuple[str, ...]:
    """The labels, the most frequent first, followed by those of the scheme that do not occur."""
    labels = sorted(counts, key=lambda tag: (-counts[tag], tag))
    kinds = dict.fromkeys(tag[2:] for tag in labels if tag != "O") if scheme else ()
    prefixes = {"BIOES": "BIES", "IO": "I"}.get(scheme, "BI")
    missing = (f"{prefix}-{kind}" for kind in kinds for prefix in prefixes if f"{prefix}-{kind}" not in counts)
    return (*labels, *missing)


def learned(example: TaggedExample, scheme: str, *, bare: bool = False) -> list[str]:
    """A sentence's tags as the model learns them: with broken entity sequences repaired, in the given scheme.

    Args:
        example: the sentence.
        scheme: of the tags that are returned; "" if they are no entities.
        bare: as for `respelt`; so are all tags that a model of the scheme IO learns from.
    """
    if not scheme:
        return list(tags_of(example))
    # An I without type or entity before it is as if it were not there.
    tags = ["O" if tag in _UNTYPED else tag for tag in respelt(tags_of(example), bare=bare or scheme == "IO")]
    try:
        return metrics.repair(tags, scheme)
    except DataError as error:
        raise DataError(f"{example.location}: {error}") from None


def scored(example: TaggedExample, tags: Sequence[str], unit: str) -> list[str]:
    """The tags that count in the metrics: all words, or all characters but white space."""
    return [tag for word, tag in zip(words_of(example), tags, strict=True) if unit == "words" or word.strip()]


def tagged_characters(
    texts: tf.Tensor, row: tf.Tensor, pieces: Tensors, labels: Sequence[str], outside: str
) -> tuple[Tensors, tf.Tensor]:
    """Tags and scores of characters from those of wordpieces, in graph code, as KLUE's authors map them.

    The first character of a piece gets its tag, the others the I- tag of its entity, as does white space between two
    pieces of one entity. All other characters are `outside`. Characters without a piece have a score of 0.

    Args:
        texts: string [texts].
        row: int64 [pieces], the text of each wordpiece, ascending.
        pieces: start, end int32 [pieces], byte offsets in the text; label int32 [pieces], index into `labels`; score
            float32 [pieces].
        labels: such as B-PER and O.
        outside: tag of characters that no piece covers.

    Returns:
        (start, end int32 [characters], byte offsets; tag string [characters]; score float32 [characters]), and row
        int64 [characters], the text of each character.
    """
    lengths = tf.strings.length(texts)
    begins = tf.cumsum(lengths, exclusive=True)
    _, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
    rows = offsets.value_rowids()
    start = tf.cast(offsets.values, tf.int32)
    at = start + tf.gather(begins, rows)  # in all texts, one after the other
    end = tf.concat([at, [tf.reduce_sum(lengths)]], 0)[1:] - tf.gather(begins, rows)

    def padded(values: tf.Tensor, value: int) -> tf.Tensor:
        """With a piece of no text before the first one and another after the last."""
        return tf.pad(values, [[1, 1]], constant_values=tf.constant(value, values.dtype))

    of_text = tf.gather(begins, row)
    first, past = (padded(of_text + pieces[name], -1) for name in ("start", "end"))
    # The last piece that begins at or before the character, and the one after it.
    last = tf.searchsorted(first[:-1], at, side="right") - 1
    following = last + 1
    covered = at < tf.gather(past, last)
    text_of, label = padded(row, -1), padded(pieces["label"], 0)
    kinds = sorted({tag[2:] for tag in labels})
    kind = tf.gather(tf.constant([kinds.index(tag[2:]) for tag in labels]), label)
    continues = tf.gather(tf.constant([tag.startswith("I-") for tag in labels]), label)
    same = (tf.gather(kind, last) == tf.gather(kind, following)) & tf.gather(continues, following)
    between = same & (tf.gather(text_of, last) == tf.gather(text_of, following))
    own = tf.gather(tf.constant(labels), label)
    inside = tf.gather(tf.constant([f"I-{tag[2:]}" if tag.startswith("B-") else tag for tag in labels]), label)
    of_piece = tf.where(at == tf.gather(first, last), tf.gather(own, last), tf.gather(inside, last))
    tags = tf.where(covered, of_piece, tf.where(between, tf.gather(own, following), outside))
    score = tf.where(covered, tf.gather(padded(pieces["score"], 0), last), 0.0)
    return {"start": start, "end": end, "tag": tags, "score": score}, rows


def entity_spans(texts: tf.Tensor, row: tf.Tensor, words: Tensors, labels: Sequence[str]) -> tuple[Tensors, tf.Tensor]:
    """The entities of texts, in graph code; outside of graphs, `metrics.entities.entities` does the same.

    Args:
        texts: string [texts].
        row: int [words], the text of each word, ascending.
        words: start, end int32 [words], byte offsets in the text; label int32 [words], index into `labels`; score
            float32 [words].
        labels: such as B-PER and O.

    Returns:
        (entity, label string [entities]; start, end int32 [entities], character offsets in the text; score float32
        [entities], the mean of the words' scores), and row [entities], the text of each entity.
    """
    parts = [label.partition("-") for label in labels]
    kinds = sorted({kind for _, _, kind in parts})
    prefix = tf.gather(tf.constant([prefix for prefix, _, _ in parts]), words["label"])
    kind = tf.gather(tf.constant([kinds.index(kind) for _, _, kind in parts]), words["label"])
    first = tf.concat([row[:1] >= 0, row[1:] != row[:-1]], 0)
    last_prefix = tf.where(first, "O", tf.concat([["O"], prefix], 0)[:-1])
    last_kind = tf.concat([[0], kind], 0)[:-1]
    inside = prefix != "O"
    begins = inside & (_among(prefix, "B", "S") | _among(last_prefix, "O", "E", "S") | (kind != last_kind) | first)
    entity = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, inside)
    count = tf.reduce_sum(tf.cast(begins, tf.int32))
    row = tf.boolean_mask(row, begins)
    start = tf.boolean_mask(words["start"], begins)
    end = tf.math.unsorted_segment_max(tf.boolean_mask(words["end"], inside), entity, count)
    entities = spans(texts, row, start, end)
    entities |= {
        "entity": entities.pop("text"),
        "label": tf.gather(tf.constant(kinds), tf.boolean_mask(kind, begins)),
        "score": tf.math.unsorted_segment_mean(tf.boolean_mask(words["score"], inside), entity, count),
    }
    return entities, row


def _among(values: tf.Tensor, *choices: str) -> tf.Tensor:
    """bool [n]: whether each of string [n] is one of the choices."""
    return tf.reduce_any(values[:, tf.newaxis] == tf.constant(choices), 1)


def write_columns(path: str, predicted: Iterable[tuple[TaggedExample, Json]], scheme: str) -> None:
    """Writes one line per word for conlleval.pl: the word, its true tag if known, the predicted tag."""
    with open(path, "w", encoding="utf-8") as file:
        for example, prediction in predicted:
            columns = [prediction["words"], prediction["tags"]]
            if example.tags is not None:
                columns.insert(1, learned(example, scheme))
            if scheme == "BIOES":  # which conlleval.pl does not know
                columns[1:] = [metrics.repair(tags) for tags in columns[1:]]
            for word, *tags in zip(*columns, strict=True):
                if word.strip():
                    file.write(" ".join(["_".join(word.split()), *tags]) + "\n")
            file.write("\n")
