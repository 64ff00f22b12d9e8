"""Sentences of given words as texts, and where in the bytes of a text its words are."""

import itertools

import numpy as np
import tensorflow as tf


def document_of(example):
    """What the sentences of a document share, and no other sentence has that is next to them."""
    return example.location if example.document is None else example.document


def adjoin(example):
    """Whether two words have nothing between them: these are characters."""
    words = zip(example.starts, example.words, strict=True)
    return any(start + len(word) == after for (start, word), (after, _) in itertools.pairwise(words))


def joined(group):
    return " ".join(example.text for example in group)


def word_columns(groups):
    """Where words are, in bytes.

    Args:
        groups: list of lists of TaggedExample; the text of a group is those of its examples with a space in between.

    Returns:
        dict of word_starts, word_ends: RaggedTensors int32 [groups, None].
    """
    starts, ends, counts = [], [], []
    for group in groups:
        firsts, lasts, offset = [], [], 0
        for example in group:
            firsts += [offset + start for start in example.starts]
            lasts += [offset + start + len(word) for start, word in zip(example.starts, example.words, strict=True)]
            offset += len(example.text) + 1
        in_bytes = _byte_offsets(joined(group))
        starts.append(in_bytes[np.array(firsts, int)])
        ends.append(in_bytes[np.array(lasts, int)])
        counts.append(len(firsts))
    return {
        name: tf.RaggedTensor.from_row_lengths(np.concatenate(values), counts)
        for name, values in (("word_starts", starts), ("word_ends", ends))
    }


def _byte_offsets(text):
    """int32 [characters + 1]: where in UTF-8 each character begins, and the end."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def with_words(example, starts, ends):
    """A text with the words between these characters."""
    words = tuple(example.text[start:end] for start, end in zip(starts, ends, strict=True))
    return example._replace(words=words, starts=tuple(starts))
