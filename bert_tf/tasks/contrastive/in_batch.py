"""In-batch negatives: a text is found by its partner among all texts of the batch (Henderson et al., 2017)."""

import tensorflow as tf

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive.groups import Groups

_NEVER = -1e9  # added to the score of what is no candidate


def loss(groups: Groups, config: EmbeddingsConfig) -> tf.Tensor:
    """Mean cross-entropy of the second text of each row, among the second and further texts of all rows.

    Texts are no candidates where they may be right answers, too: equal to the first or second text of the row, or the
    partner of an equal first text.
    """
    rows = tf.shape(groups.vectors)[0]
    ids, found = groups.text_ids, groups.compared
    firsts, seconds = ids[:, 0, tf.newaxis], ids[:, 1, tf.newaxis]  # [rows, 1]
    # By place, then by row: the partner of row i is candidate i.
    others = tf.reshape(tf.transpose(found[:, 1:], [1, 0, 2]), [-1, found.shape[-1]])
    other_ids = tf.reshape(tf.transpose(ids[:, 1:]), [1, -1])
    present = tf.reshape(tf.transpose(groups.present[:, 1:]), [1, -1])
    scores = config.scale * tf.matmul(found[:, 0], others, transpose_b=True)  # [rows, candidates]
    too_right = (other_ids == firsts) | (other_ids == seconds)
    of_same_first = tf.pad(firsts == tf.transpose(firsts), [[0, 0], [0, tf.shape(scores)[1] - rows]])
    found_loss = _cross_entropy(scores, ~present | too_right | of_same_first)
    if not config.both_directions:
        return found_loss
    backwards = tf.transpose(scores[:, :rows])
    equal = (seconds == tf.transpose(seconds)) | (tf.transpose(firsts) == seconds) | (firsts == tf.transpose(firsts))
    return 0.5 * (found_loss + _cross_entropy(backwards, equal))


def _cross_entropy(scores: tf.Tensor, left_out: tf.Tensor) -> tf.Tensor:
    """Mean over rows, where candidate i is right in row i, and is never left out."""
    rows = tf.shape(scores)[0]
    is_right = tf.eye(rows, tf.shape(scores)[1]) > 0
    scores += _NEVER * tf.cast(left_out & ~is_right, tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(rows), scores))
