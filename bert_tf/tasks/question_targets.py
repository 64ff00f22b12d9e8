"""Training targets of question answering: the position of the answer in the context and in each window."""

import tensorflow as tf

from bert_tf.inputs.datasets.examples import QuestionExample

_MISSING = -1  # start and end of an answer that is not in the context


def is_learned(example: QuestionExample) -> bool:
    """Whether the answer's position is known, or that there is none."""
    return not example.answers or example.placed is not None


def byte_span(example: QuestionExample) -> tuple[int, int]:
    """Start and end of the target answer in its context, in bytes."""
    answer = example.placed
    if answer is None or answer.start is None:
        return _MISSING, _MISSING
    end = answer.start + len(answer.text) if answer.end is None else answer.end
    return len(example.context[: answer.start].encode()), len(example.context[:end].encode())


def answer_positions(
    answers: tf.Tensor,
    starts: tf.RaggedTensor,
    ends: tf.RaggedTensor,
    spans: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
    before: tf.Tensor,
) -> tf.Tensor:
    """Positions of the answer's first and last token in each row; 0, [CLS], unless the window has all of the answer.

    Args:
        answers: int32 [examples, 2], start and end in bytes.
        starts, ends: RaggedTensors int32 [examples, None], of the context's wordpieces.
        spans: the windows, as `windows` returns them.
        before: int64 [rows], the number of tokens before the context.

    Returns:
        int32 [rows, 2].
    """
    inside = (ends > answers[:, :1]) & (starts < answers[:, 1:])
    example = tf.boolean_mask(starts.value_rowids(), inside.values)
    piece = tf.boolean_mask(tf.ragged.range(starts.row_lengths()).values, inside.values)
    examples = starts.nrows()
    first = tf.math.unsorted_segment_min(piece, example, examples)  # int64's largest value if there is none
    last = tf.math.unsorted_segment_max(piece, example, examples)
    rows, begin, end = spans
    first, last = tf.gather(first, rows), tf.gather(last, rows)
    whole = (first >= begin) & (last < end) & (first <= last)
    indices = tf.stack([first, last], 1) + (before - begin)[:, tf.newaxis]
    return tf.cast(tf.where(whole[:, tf.newaxis], indices, 0), tf.int32)
