"""Byte offsets of given words in their texts, for tagging."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.types import Array


def document_of(example: TaggedExample) -> int | str:
    """Returns a key shared by consecutive sentences of one document."""
    return example.location if example.document is None else example.document


def adjoin(example: TaggedExample) -> bool:
    """Whether any two words have no space between them: the words are characters."""
    words = itertools.pairwise(_words_with_starts(example))
    return any(start + len(word) == after for (start, word), (after, _) in words)


def joined(group: Iterable[TaggedExample]) -> str:
    """Joins the texts of sentences with spaces."""
    return " ".join(example.text for example in group)


def word_columns(groups: Sequence[Sequence[TaggedExample]]) -> dict[str, tf.RaggedTensor]:
    """Computes byte offsets of words.

    Args:
        groups: each group's sentences are joined with spaces into one text.

    Returns:
        word_starts, word_ends: int32 [groups, None].
    """
    starts, ends, counts = [], [], []
    for group in groups:
        group_starts: list[int] = []
        group_ends: list[int] = []
        offset = 0
        for example in group:
            words = _words_with_starts(example)
            group_starts += [offset + start for start, _ in words]
            group_ends += [offset + start + len(word) for start, word in words]
            offset += len(example.text) + 1
        in_bytes = _byte_offsets(joined(group))
        starts.append(in_bytes[np.array(group_starts, int)])
        ends.append(in_bytes[np.array(group_ends, int)])
        counts.append(len(group_starts))
    return {
        name: tf.RaggedTensor.from_row_lengths(np.concatenate(values), counts)
        for name, values in (("word_starts", starts), ("word_ends", ends))
    }


def _words_with_starts(example: TaggedExample) -> list[tuple[int, str]]:
    assert example.starts is not None and example.words is not None  # the task has split the text before
    return list(zip(example.starts, example.words, strict=True))


def _byte_offsets(text: str) -> Array:
    """int32 [characters + 1]: offset of each character in UTF-8, and the length."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def with_words(example: TaggedExample, starts: Sequence[int], ends: Sequence[int]) -> TaggedExample:
    """Sets the words of an example to the parts of its text between `starts` and `ends`, in characters."""
    words = tuple(example.text[start:end] for start, end in zip(starts, ends, strict=True))
    return example._replace(words=words, starts=tuple(starts))
