"""Tags of sentences as a model learns and answers them: schemes, the set of labels, characters."""

import itertools

from bert_tf.errors import DataError
from bert_tf.metrics import tagging as metrics


def are_entities(tags):
    """Whether these are tags of entities: some begin or continue one, and there is O, or all do.

    Parts of speech may look like it, such as the "S----3MS2-" of the Prague Arabic treebank. Beside O and tags of
    entities there may be others here, which are mistakes; who reads the sentences says so, with the location.
    """
    tags = set(tags)
    prefixed = {tag for tag in tags if len(tag) > 2 and tag[:2] in ("B-", "I-", "E-", "S-")}
    return bool(prefixed) and ("O" in tags or prefixed == tags)


def scheme_of(sentences):
    """The scheme that tags of entities are written in, broken sequences or not.

    Args:
        sentences: iterable of lists of tags.

    Returns:
        "BIOES" if there is an E or S; "IOB1" if there is no B but between two entities of a type; else "BIO".
    """
    found = "IOB1"
    for tags in sentences:
        if any(tag[:2] in ("E-", "S-") for tag in tags):
            return "BIOES"
        if any(tag.startswith("B-") and last[2:] != tag[2:] for last, tag in itertools.pairwise(("O", *tags))):
            found = "BIO"
    return found


def closed(counts, scheme):
    """Labels by how often they are, the commonest first; behind them what the scheme has and the counts have not."""
    labels = sorted(counts, key=lambda tag: (-counts[tag], tag))
    kinds = dict.fromkeys(tag[2:] for tag in labels if tag != "O") if scheme else ()
    prefixes = "BIES" if scheme == "BIOES" else "BI"
    missing = (f"{prefix}-{kind}" for kind in kinds for prefix in prefixes if f"{prefix}-{kind}" not in counts)
    return (*labels, *missing)


def learned(example, scheme):
    """A sentence's tags as the model writes them, a list: sequences of entities mended and in its scheme."""
    if not scheme:
        return list(example.tags)
    try:
        return metrics.repair(example.tags, scheme)
    except DataError as error:
        raise DataError(f"{example.location}: {error}") from None


def scored(example, tags, unit):
    """The tags of a sentence that are measured: of characters not those of white space."""
    return [tag for word, tag in zip(example.words, tags, strict=True) if unit == "words" or word.strip()]


def onto_characters(units, length):
    """Tags of characters from those of pieces, as KLUE's authors do it.

    The first character of a piece has its tag, the others are inside of what it is in; so is white space between two
    pieces of one entity.

    Args:
        units: list of (start, end, tag, score).
        length: characters of the text.

    Returns:
        list of str [length].
    """
    tags, last, reached = ["O"] * length, "O", 0
    for start, end, tag, _ in units:
        inside = f"I-{tag[2:]}" if tag.startswith("B-") else tag
        if tag.startswith("I-") and last[2:] == tag[2:]:
            tags[reached:start] = [tag] * (start - reached)
        tags[start:end] = [tag, *[inside] * (end - start - 1)]
        last, reached = tag, end
    return tags


def write_columns(path, predicted, scheme):
    """A line a word: the word, its own tag if it has one, the predicted one; what conlleval.pl reads.

    Args:
        path: of the file.
        predicted: iterable of (TaggedExample, prediction).
        scheme: of the tags.
    """
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
