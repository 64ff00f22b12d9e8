"""Entities from the tags of words, in graph code; outside of graphs, `metrics.tagging.entities` does the same."""

from collections.abc import Sequence

import tensorflow as tf

from bert_tf.text.words import spans
from bert_tf.types import Tensors


def entity_spans(texts: tf.Tensor, row: tf.Tensor, words: Tensors, labels: Sequence[str]) -> tuple[Tensors, tf.Tensor]:
    """The entities of texts.

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
