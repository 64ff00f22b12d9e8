"""Entities from the tags of words, in graph code, as `metrics.tagging.entities` reads them outside of it."""

import tensorflow as tf

from bert_tf.text.words import spans


def entity_spans(texts, row, words, labels):
    """The entities of texts.

    Args:
        texts: string [texts].
        row: int [words], rising: the text of each word.
        words: dict of start, end int32 [words], bytes of the text; label int32 [words], a number of `labels`; score
            float32 [words].
        labels: str, such as B-PER and O.

    Returns:
        (dict of entity, label string [entities]; start, end int32, characters of the text; score float32, the mean of
        the words'; row [entities]: the text of each).
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
    found = spans(texts, row, start, end)
    found |= {
        "entity": found.pop("text"),
        "label": tf.gather(tf.constant(kinds), tf.boolean_mask(kind, begins)),
        "score": tf.math.unsorted_segment_mean(tf.boolean_mask(words["score"], inside), entity, count),
    }
    return found, row


def _among(values, *some):
    return tf.reduce_any(values[:, tf.newaxis] == tf.constant(some), 1)
