"""The private API of TensorFlow Text behaves as `bert_tf.text.tf_text` describes; a failure means that a new version
has changed it."""

import pytest
import tensorflow as tf

tf_text = pytest.importorskip("bert_tf.text.tf_text", exc_type=ImportError)

PIECES = ["[UNK]", "un", "##believ", "##able", "good", "."]


def test_wordpiece_finds_the_longest_wordpieces_and_their_byte_offsets():
    model = tf.constant(list(tf_text.wordpiece_model(PIECES, 100, "[UNK]")), tf.uint8)
    ids, row_splits, starts, ends = tf_text.wordpiece(tf.constant(["unbelievable good.", "bad"]), model)
    assert [PIECES[piece] for piece in ids.numpy()] == ["un", "##believ", "##able", "good", ".", "[UNK]"]
    assert row_splits.numpy().tolist() == [0, 5, 6]
    assert starts.numpy().tolist() == [0, 2, 8, 13, 17, 0] and ends.numpy().tolist() == [2, 8, 12, 17, 18, 3]


def test_words_with_more_bytes_are_unknown():
    model = tf.constant(list(tf_text.wordpiece_model(PIECES, 11, "[UNK]")), tf.uint8)
    ids, *_ = tf_text.wordpiece(tf.constant(["unbelievable unbeliev"]), model)
    assert ids.numpy().tolist() == [0, 1, 2]


def test_normalization_reports_the_origin_of_each_byte():
    model = tf.constant(tf_text.normalizer_model({"Ä".encode(): "a", b"B": "b"}, deletes_nul=True))
    normalized, offsets, row_splits = tf_text.normalize(tf.constant(["ÄB", "c"]), model, with_offsets=True)
    assert normalized.numpy().tolist() == [b"ab", b"c"]
    assert offsets.numpy().tolist() == [0, 2, 3, 0, 1] and row_splits.numpy().tolist() == [0, 3, 5]
    _, nothing, _ = tf_text.normalize(tf.constant(["ÄB"]), model, with_offsets=False)
    assert nothing.shape == [0]
