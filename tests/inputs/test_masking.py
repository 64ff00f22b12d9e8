import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert_tf.inputs.masking import mask_tokens

PAD, CLS, SEP, MASK, VOCAB = 0, 2, 3, 4, 1000


def batch_of(lengths, width, seed=0):
    """Rows [CLS] a a a [SEP] b b [SEP] and padding; returns ids, maskable, lengths."""
    ids = np.random.default_rng(seed).integers(5, VOCAB, [len(lengths), width]).astype(np.int32)
    columns = np.arange(width)
    lengths = np.array(lengths, np.int32)
    ids[:, 0] = CLS
    ids[columns == lengths[:, None] // 2] = SEP
    ids[columns == lengths[:, None] - 1] = SEP
    ids[columns >= lengths[:, None]] = PAD
    return ids, ids >= 5, lengths


def mask(ids, maskable, lengths, seed=(1, 2), **options):
    options = {"mask_id": MASK, "vocab_size": VOCAB} | options
    masked = mask_tokens(tf.constant(ids), tf.constant(maskable), tf.constant(seed), lengths=lengths, **options)
    return type(masked)(*(t.numpy() for t in masked))


@pytest.mark.parametrize("rate, most", [(0.15, 20), (0.15, 76), (0.3, 40), (0.15, 3)])
def test_each_row_hides_the_share_that_the_reference_hides(rate, most):
    lengths = np.arange(5, 129)
    ids, maskable, lengths = batch_of(lengths, 128)
    masked = mask(ids, maskable, lengths, rate=rate, max_predictions=most)
    # Rows of five tokens have two that can be hidden: fewer than asked for is right then.
    expected = [min(most, max(1, round(int(n) * rate)), m) for n, m in zip(lengths, maskable.sum(1), strict=True)]
    assert masked.weights.sum(1).tolist() == expected
    assert masked.positions.shape == masked.labels.shape == masked.weights.shape == (124, most)


def test_only_maskable_tokens_are_hidden_and_the_labels_are_what_was_there():
    ids, maskable, lengths = batch_of(np.arange(5, 129), 128)
    masked = mask(ids, maskable, lengths)
    for row in range(len(ids)):
        count = int(masked.weights[row].sum())
        positions = masked.positions[row, :count]
        assert (np.diff(positions) > 0).all()
        assert maskable[row, positions].all()
        assert (masked.labels[row, :count] == ids[row, positions]).all()
        assert not masked.positions[row, count:].any() and not masked.labels[row, count:].any()
        untouched = np.delete(np.arange(128), positions)
        assert (masked.input_ids[row, untouched] == ids[row, untouched]).all()


def test_of_the_hidden_tokens_eighty_percent_are_masked_ten_kept_ten_random_and_uniform():
    ids, maskable, lengths = batch_of([128] * 2000, 128)
    masked = mask(ids, maskable, lengths)
    hidden = masked.weights > 0
    shown = np.take_along_axis(masked.input_ids, masked.positions, 1)[hidden]
    labels = masked.labels[hidden]
    is_mask, is_kept = shown == MASK, shown == labels
    is_random = ~is_mask & ~is_kept
    # A random id is [MASK] or the old one with probability 1 / VOCAB each.
    expected = np.array([0.8 + 1e-4, 0.1 + 1e-4, 0.1 - 2e-4]) * hidden.sum()
    assert stats.chisquare([is_mask.sum(), is_kept.sum(), is_random.sum()], expected).pvalue > 0.01
    replacements = np.histogram(shown[is_random], bins=20, range=(0, VOCAB))[0]
    assert stats.chisquare(replacements).pvalue > 0.01
    assert shown[is_random].min() < 5, "the whole vocabulary is drawn from, specials too"


def test_every_maskable_position_is_equally_likely():
    ids, maskable, lengths = batch_of([20] * 6000, 24)
    masked = mask(ids, maskable, lengths, max_predictions=5)
    counts = np.bincount(masked.positions[masked.weights > 0], minlength=24)
    assert stats.chisquare(counts[maskable[0]]).pvalue > 0.01


def test_the_same_seed_hides_the_same_and_another_seed_something_else():
    arguments = batch_of([128] * 8, 128)
    first, again, other = mask(*arguments), mask(*arguments), mask(*arguments, seed=(1, 3))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert (first.positions != other.positions).any(axis=1).all()


def test_compiled_by_xla_it_hides_the_same():
    ids, maskable, lengths = batch_of(np.arange(5, 69), 128)
    compiled = tf.function(mask_tokens, jit_compile=True)
    options = {"mask_id": MASK, "vocab_size": VOCAB}
    masked = compiled(tf.constant(ids), tf.constant(maskable), tf.constant((1, 2)), lengths=lengths, **options)
    for compiled_result, plain in zip(masked, mask(ids, maskable, lengths), strict=True):
        np.testing.assert_array_equal(compiled_result, plain)


def test_rows_narrower_than_the_predictions_and_rows_without_maskable_tokens():
    ids, maskable, lengths = batch_of([8, 5], 8)
    maskable[1] = False
    masked = mask(ids, maskable, lengths, max_predictions=20)
    assert masked.positions.shape == (2, 20)
    assert masked.weights.sum(1).tolist() == [1, 0]
    assert (masked.input_ids[1] == ids[1]).all()


def test_static_shapes_survive_and_unknown_ones_are_allowed():
    def shapes(batch, length):
        matrix = tf.TensorSpec([batch, length], tf.int32)
        maskable, row = tf.TensorSpec([batch, length], tf.bool), tf.TensorSpec([batch], tf.int32)

        @tf.function
        def graph(ids, maskable, lengths):
            return mask_tokens(ids, maskable, (1, 2), lengths=lengths, mask_id=MASK, vocab_size=VOCAB)

        return [t.shape.as_list() for t in graph.get_concrete_function(matrix, maskable, row).structured_outputs]

    assert shapes(4, 16) == [[4, 16], [4, 20], [4, 20], [4, 20]]
    assert shapes(None, None) == [[None, None], [None, 20], [None, 20], [None, 20]]
