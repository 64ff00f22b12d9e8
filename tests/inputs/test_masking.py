import collections
import types

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert_tf.config import PretrainingData
from bert_tf.inputs.masking import (
    SEED,
    WORD_STARTS,
    Masker,
    draw,
    mark_words,
    next_tokens,
    prediction_budgets,
    span_lengths,
    unmark_words,
)

PAD, CLS, SEP, MASK, VOCAB = 0, 2, 3, 4, 1000
TOKENIZER = types.SimpleNamespace(cls_id=CLS, sep_id=SEP, mask_id=MASK, vocab_size=VOCAB)
MASKING = ("token", "whole_word", "ngram", "span")
Masked = collections.namedtuple("Masked", "input_ids positions labels weights")
ORDER, LENGTH = 0, 3  # random streams of the order of words and of the lengths of spans


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


def starts_of(ids, seed=0, share=0.6):
    """Random word starts: words have 1 / share wordpieces on average; special tokens and padding have noise."""
    return np.random.default_rng(seed).random(ids.shape) < share


def seeds_of(rows, seed=1):
    """int32 [rows, 2], with every bit random."""
    return np.random.default_rng(seed).integers(-(2**31), 2**31, [rows, 2]).astype(np.int32)


def masker_of(rate=0.15, **options):
    return Masker(PretrainingData(max_length=512, masking_rate=rate, **options), TOKENIZER)


def mask(ids, lengths, seeds=1, starts=None, xla=False, **options):
    features = {
        "input_word_ids": ids,
        "input_mask": np.int32(np.arange(ids.shape[1]) < lengths[:, None]),
        SEED: seeds_of(len(ids), seeds) if isinstance(seeds, int) else seeds,
        WORD_STARTS: starts_of(ids) if starts is None else starts,
    }
    masker = masker_of(**options)
    masked = (masker.in_step() if xla else masker)({name: tf.constant(value) for name, value in features.items()})
    names = ("input_word_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    return Masked(*(masked[name].numpy() for name in names))


def words_of(maskable, starts):
    """The words of one row in plain Python, lists of positions; special tokens and padding end a word."""
    words = []
    for i in np.flatnonzero(maskable):
        if starts[i] or i == 0 or not maskable[i - 1]:
            words.append([])
        words[-1].append(int(i))
    return words


def hidden_one_by_one(words, order, budget, longest):
    """Whole-word and span masking as a loop over words; `longest` [length] in words, by first position.

    Returns dict from masked position to the first one of its span, and how often a word exceeded the budget left.
    """
    hidden, spans, too_long = set(), {}, 0
    for word in sorted(words, key=lambda word: -order[word[0]]):
        if hidden & set(word):
            continue
        at = words.index(word)
        span = []
        for k, following in enumerate(words[at : at + longest[word[0]]]):
            if k and following[0] != words[at + k - 1][-1] + 1:  # a special token is in between
                break
            if set(following) & hidden:
                break
            if len(hidden) + len(span) + len(following) > budget:
                too_long += len(hidden) + len(span) < budget
                break
            span += following
        hidden |= set(span)
        spans |= {position: word[0] for position in span}
    return spans, too_long


def budget_of(length, rate, most):
    return min(most, max(1, round(int(length) * rate)))


@pytest.mark.parametrize("rate", [0.0, 1e-9, 0.01, 0.1, 0.15, 0.3, 1 / 3, 0.5, 1.0])
def test_the_budget_equals_the_original_generators_for_every_length_and_is_at_least_one(rate):
    lengths, options = np.arange(2000, dtype=np.int32), {"max_length": 2000, "masking_rate": rate}
    for most in (1, 20, 76):
        budgets = prediction_budgets(tf.constant(lengths), PretrainingData(**options, max_predictions=most)).numpy()
        assert budgets.tolist() == [budget_of(length, rate, most) for length in lengths]


@pytest.mark.parametrize("rate, most", [(0.15, 20), (0.15, 76), (0.3, 40), (0.15, 3), (0.0, 20), (1.0, 128)])
def test_each_row_masks_the_same_share_as_the_reference(rate, most):
    lengths = np.arange(5, 129)
    ids, maskable, lengths = batch_of(lengths, 128)
    masked = mask(ids, lengths, rate=rate, max_predictions=most)
    # Rows of five tokens have two maskable ones, fewer than the budget.
    expected = [min(budget_of(n, rate, most), m) for n, m in zip(lengths, maskable.sum(1), strict=True)]
    assert masked.weights.sum(1).tolist() == expected
    assert masked.positions.shape == masked.labels.shape == masked.weights.shape == (124, most)


@pytest.mark.parametrize("masking", MASKING)
def test_only_maskable_tokens_are_masked_and_the_labels_are_the_original_ids(masking):
    ids, maskable, lengths = batch_of(np.arange(5, 129), 128)
    masked = mask(ids, lengths, masking=masking)
    for row in range(len(ids)):
        count = int(masked.weights[row].sum())
        assert count <= budget_of(lengths[row], 0.15, 20)
        positions = masked.positions[row, :count]
        assert (np.diff(positions) > 0).all()
        assert maskable[row, positions].all()
        assert (masked.labels[row, :count] == ids[row, positions]).all()
        assert not masked.weights[row, count:].any()
        assert not masked.positions[row, count:].any() and not masked.labels[row, count:].any()
        untouched = np.delete(np.arange(128), positions)
        assert (masked.input_ids[row, untouched] == ids[row, untouched]).all()


def test_special_tokens_are_masked_like_others_where_the_data_says_so():
    ids, _, lengths = batch_of([64] * 500, 72)
    masked = mask(ids, lengths, rate=0.25, max_predictions=16, mask_special=True)
    share = np.bincount(masked.positions.ravel(), minlength=72) / len(ids)
    # 16 of 64 positions, those of [CLS] and [SEP] (0, 32 and 63) among them: five standard deviations of 500 draws.
    assert np.abs(share[:64] - 0.25).max() < 5 * (0.25 * 0.75 / 500) ** 0.5 and not share[64:].any()
    assert {int(masked.labels[masked.positions == place][0]) for place in (0, 32, 63)} == {CLS, SEP}


def check_shares(kinds):
    """kinds: counts of [MASK], unchanged and random ids."""
    # A random id is [MASK] or the old id with probability 1 / VOCAB each.
    expected = np.array([0.8 + 1e-4, 0.1 + 1e-4, 0.1 - 2e-4]) * sum(kinds)
    assert stats.chisquare(kinds, expected).pvalue > 0.01


def kinds_of(shown, labels):
    is_mask, is_kept = shown == MASK, shown == labels
    return is_mask, is_kept, ~is_mask & ~is_kept


@pytest.mark.parametrize("masking", ["token", "whole_word", "ngram"])
def test_selected_tokens_are_eighty_percent_mask_ten_unchanged_ten_uniformly_random(masking):
    ids, _, lengths = batch_of([128] * 2000, 128)
    masked = mask(ids, lengths, masking=masking)
    hidden = masked.weights > 0
    shown = np.take_along_axis(masked.input_ids, masked.positions, 1)[hidden]
    kinds = kinds_of(shown, masked.labels[hidden])
    check_shares([kind.sum() for kind in kinds])
    replacements = np.histogram(shown[kinds[2]], bins=20, range=(0, VOCAB))[0]
    assert stats.chisquare(replacements).pvalue > 0.01
    assert shown[kinds[2]].min() < 5, "the whole vocabulary is drawn from, specials too"


@pytest.mark.parametrize("masking", MASKING)
def test_electra_selects_berts_tokens_hides_85_percent_of_them_shows_the_rest_and_keeps_the_seeds(masking):
    ids, _, lengths = batch_of([128] * 400, 128)
    bert = mask(ids, lengths, masking=masking)
    electra = mask(ids, lengths, masking=masking, objective="electra", pairs="none")
    for name in ("positions", "labels", "weights"):
        np.testing.assert_array_equal(getattr(electra, name), getattr(bert, name))
    used = electra.weights > 0
    shown, labels = np.take_along_axis(electra.input_ids, electra.positions, 1)[used], electra.labels[used]
    assert ((shown == MASK) | (shown == labels)).all()
    # All tokens of a span share their draw.
    assert masking == "span" or stats.binomtest(int((shown == MASK).sum()), used.sum(), 0.85).pvalue > 0.001
    features = {"input_word_ids": ids, "input_mask": ids > 0, SEED: seeds_of(400), WORD_STARTS: starts_of(ids)}
    features = {name: tf.constant(value) for name, value in features.items()}
    features["input_mask"] = tf.cast(features["input_mask"], tf.int32)
    masked = masker_of(masking=masking, objective="electra", pairs="none")(features)
    np.testing.assert_array_equal(masked[SEED], features[SEED])
    assert SEED not in masker_of(masking=masking)(features)


def test_the_wordpieces_of_a_whole_word_are_replaced_independently():
    ids, _, lengths = batch_of([20] * 8000, 24)
    starts = np.broadcast_to(np.arange(24) % 2 == 1, ids.shape)  # words of two wordpieces from position 1 on
    masked = mask(ids, lengths, starts=starts, masking="whole_word", max_predictions=2)
    pairs = masked.weights.sum(1) == 2
    shown = np.take_along_axis(masked.input_ids, masked.positions, 1)[pairs] == MASK
    both, one = shown.all(1).sum(), (shown.sum(1) == 1).sum()
    expected = np.array([0.8**2, 2 * 0.8 * 0.2, 0.2**2]) * pairs.sum()
    assert pairs.sum() > 5000
    assert stats.chisquare([both, one, pairs.sum() - both - one], expected).pvalue > 0.01


def test_a_span_is_masked_unchanged_or_random_as_a_whole_and_its_random_ids_differ():
    ids, maskable, lengths = batch_of([128] * 3000, 128)
    seeds, starts = seeds_of(3000), starts_of(ids)
    masked = mask(ids, lengths, starts=starts, masking="span")
    order, longest = rows_of_draws(seeds, 128)
    kinds, replaced = [0, 0, 0], []
    for row in range(0, 3000, 3):
        words = words_of(maskable[row], starts[row])
        spans, _ = hidden_one_by_one(words, order[row], budget_of(128, 0.15, 20), longest[row])
        for first in set(spans.values()):
            positions = [position for position, span in spans.items() if span == first]
            shown = masked.input_ids[row, positions]
            of_kind = [kind.all() for kind in kinds_of(shown, ids[row, positions])]
            if not any(of_kind):  # random, although by chance one of the ids is the old one or [MASK]
                of_kind = [False, False, True]
            kinds = [count + bool(kind) for count, kind in zip(kinds, of_kind, strict=True)]
            if of_kind[2] and len(positions) > 1:
                replaced.append(len(set(shown.tolist())) / len(positions))
    check_shares(kinds)
    assert np.mean(replaced) > 0.99


@pytest.mark.parametrize("masking", MASKING)
def test_every_maskable_position_is_equally_likely(masking):
    ids, maskable, lengths = batch_of([20] * 8000, 24)
    # Words of a single wordpiece; one prediction: spans start anywhere with equal probability, but end further right.
    most = 1 if masking in ("ngram", "span") else 5
    starts = np.ones_like(maskable)
    masked = mask(ids, lengths, starts=starts, masking=masking, max_predictions=most)
    counts = np.bincount(masked.positions[masked.weights > 0], minlength=24)
    assert stats.chisquare(counts[maskable[0]]).pvalue > 0.01


def rows_of_draws(seeds, width, masking="span"):
    """Order [rows, width] and span lengths [rows, width] drawn by a `Masker` with these seeds."""
    positions = tf.range(width)[tf.newaxis]
    order, lengths = draw(tf.constant(seeds), [ORDER, LENGTH], positions)
    words = np.ones([len(seeds), width], int) if masking == "whole_word" else span_lengths(lengths, masking).numpy()
    return order.numpy(), words


@pytest.mark.parametrize("masking", ["whole_word", "ngram", "span"])
@pytest.mark.parametrize("rate, most, share", [(0.15, 20, 0.6), (0.15, 10, 0.3), (0.5, 64, 0.8), (0.3, 40, 0.05)])
def test_words_and_spans_equal_those_of_a_loop_over_words(masking, rate, most, share):
    ids, maskable, lengths = batch_of(np.random.default_rng(3).integers(5, 129, 400), 128)
    starts, seeds = starts_of(ids, share=share), seeds_of(400)
    masked = mask(ids, lengths, seeds=seeds, starts=starts, masking=masking, rate=rate, max_predictions=most)
    order, longest = rows_of_draws(seeds, 128, masking)
    passed_over = 0
    for row in range(400):
        words = words_of(maskable[row], starts[row])
        budget = budget_of(lengths[row], rate, most)
        spans, too_long = hidden_one_by_one(words, order[row], budget, longest[row])
        count = int(masked.weights[row].sum())
        assert masked.positions[row, :count].tolist() == sorted(spans)
        passed_over += too_long
    assert passed_over > 50  # the rule for words that exceed the budget was applied


def test_whole_words_are_never_split():
    ids, maskable, lengths = batch_of([128] * 300, 128)
    starts = starts_of(ids)
    for masking in ("whole_word", "ngram", "span"):
        masked = mask(ids, lengths, starts=starts, masking=masking)
        for row in range(300):
            hidden = set(masked.positions[row, masked.weights[row] > 0].tolist())
            assert all(
                hidden.isdisjoint(word) or hidden.issuperset(word) for word in words_of(maskable[row], starts[row])
            )


def test_a_word_longer_than_the_budget_is_never_masked_and_words_end_at_special_tokens():
    ids, maskable, lengths = batch_of([40] * 50, 40)
    starts = np.zeros_like(maskable)  # one word before [SEP] and one after it, each of 18 or 19 wordpieces
    for masking in ("whole_word", "ngram", "span"):
        assert not mask(ids, lengths, starts=starts, masking=masking).weights.any()
        masked = mask(ids, lengths, starts=starts, masking=masking, rate=0.5)
        assert set(masked.weights.sum(1).tolist()) <= {18.0, 19.0}


@pytest.mark.parametrize(
    "masking, shares, mean",
    [
        ("span", 0.8 ** np.arange(10), 3.8),  # SpanBERT, section 3.1: geometric, up to 10
        ("ngram", 1 / np.arange(1, 4), 18 / 11),  # ALBERT, section 4.1: 1 / n, up to 3
    ],
)
def test_the_lengths_of_spans_follow_the_distribution_of_the_paper(masking, shares, mean):
    (draws,) = draw(tf.constant(seeds_of(2000)), [LENGTH], tf.range(100)[tf.newaxis])
    lengths = span_lengths(draws, masking).numpy().ravel()
    counts = np.bincount(lengths)[1:]
    assert stats.chisquare(counts, shares / shares.sum() * lengths.size).pvalue > 0.01
    assert abs(lengths.mean() - mean) < 0.02


@pytest.mark.parametrize("masking", ["ngram", "span"])
def test_the_first_span_has_the_length_drawn(masking):
    # One span only, far from the row's end: a budget of ten words, of which the first span takes the length drawn.
    ids, maskable, lengths = batch_of([510] * 600, 512)
    starts, seeds = np.ones_like(maskable), seeds_of(600)
    masked = mask(ids, lengths, seeds=seeds, starts=starts, masking=masking, max_predictions=10)
    order, longest = rows_of_draws(seeds, 512, masking)
    first = np.where(maskable, order, -1).argmax(1)
    far = (np.abs(first - 255) > 12) & (first < 498)
    for row in np.flatnonzero(far):
        hidden = set(masked.positions[row].tolist())
        assert hidden.issuperset(range(first[row], first[row] + longest[row, first[row]]))
        assert masked.weights[row].sum() == 10


def test_the_same_seed_masks_the_same_tokens_and_another_seed_others():
    for masking in MASKING:
        ids, _, lengths = batch_of([128] * 8, 128)
        first, again, other = (mask(ids, lengths, seeds=seeds, masking=masking) for seeds in (1, 1, 2))
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
        assert (first.positions != other.positions).any(axis=1).all()


@pytest.mark.parametrize("masking", MASKING)
def test_the_masks_of_a_row_depend_neither_on_the_batch_nor_on_the_padding(masking):
    ids, _, lengths = batch_of([20, 40, 30, 64, 10, 5], 64)
    starts, seeds = starts_of(ids), seeds_of(6)
    whole = mask(ids, lengths, seeds=seeds, starts=starts, masking=masking)
    for row in range(6):
        some, width = slice(row, row + 1), lengths[row]
        alone = mask(ids[some, :width], lengths[some], seeds[some], starts[some, :width], masking=masking)
        assert (alone.input_ids[0] == whole.input_ids[row, :width]).all()
        assert (alone.positions[0] == whole.positions[row]).all()


@pytest.mark.parametrize(
    "masking", ["token", *(pytest.param(name, marks=pytest.mark.slow) for name in ("whole_word", "ngram")), "span"]
)
def test_xla_gives_the_same_masks(masking):
    ids, _, lengths = batch_of(np.arange(5, 69), 128)
    for compiled, plain in zip(
        mask(ids, lengths, masking=masking, xla=True), mask(ids, lengths, masking=masking), strict=True
    ):
        np.testing.assert_array_equal(compiled, plain)


@pytest.mark.parametrize("masking", MASKING)
def test_rows_narrower_than_the_predictions_and_rows_without_maskable_tokens(masking):
    ids, maskable, lengths = batch_of([8, 5], 8)
    ids[1, :5] = SEP
    masked = mask(ids, lengths, starts=np.ones_like(maskable), max_predictions=20, masking=masking)
    assert masked.positions.shape == (2, 20)
    assert masked.weights.sum(1).tolist() == [1, 0]
    assert (masked.input_ids[1] == ids[1]).all()


@pytest.mark.parametrize("masking", MASKING)
def test_static_shapes_survive_and_unknown_ones_are_allowed(masking):
    def shapes(batch, length):
        matrix, flags = (tf.TensorSpec([batch, length], dtype) for dtype in (tf.int32, tf.bool))
        features = {"input_word_ids": matrix, "input_mask": matrix, WORD_STARTS: flags}
        features[SEED] = tf.TensorSpec([batch, 2], tf.int32)
        outputs = tf.function(masker_of(masking=masking)).get_concrete_function(features).structured_outputs
        return [outputs[name].shape.as_list() for name in sorted(outputs.keys() - {"input_mask"})]

    assert shapes(4, 16) == [[4, 16], [4, 20], [4, 20], [4, 20]]
    assert shapes(None, None) == [[None, None], [None, 20], [None, 20], [None, 20]]


@pytest.mark.parametrize("seeds", ["random", "counted"])
def test_draws_are_uniform_and_independent_of_position_row_stream_and_seed(seeds):
    # Consecutive seeds (0, 0), (0, 1), ... are the hard case for a mixing function: they differ in a few bits.
    rows = seeds_of(1024) if seeds == "random" else np.stack([np.arange(1024) // 32, np.arange(1024) % 32], 1)
    draws = np.stack(draw(tf.constant(rows, tf.int32), range(4), tf.range(256)[tf.newaxis]))
    assert draws.min() >= 0
    p_values = []
    for modulus in (10, 255, 1000):  # the low bits, which `%` uses
        p_values.append(stats.chisquare(np.bincount(draws.ravel() % modulus)).pvalue)
    p_values.append(stats.chisquare(np.histogram(draws, bins=256, range=(0, 2**31))[0]).pvalue)  # the high bits
    ones = [((draws >> bit) & 1).sum() for bit in range(31)]
    p_values += [stats.binomtest(int(count), draws.size, 0.5).pvalue for count in ones]
    # Neighbours in every direction: all 16 x 16 cells of high, middle and low bits are equally frequent.
    for axis in range(3):
        for shift in (27, 12, 0):
            one, other = (np.take(draws, range(at, draws.shape[axis], 2), axis).ravel() >> shift & 15 for at in (0, 1))
            p_values.append(stats.chisquare(np.bincount(one * 16 + other, minlength=256)).pvalue)
    assert min(p_values) > 0.01 / len(p_values)


def test_draws_are_those_of_the_formula():
    """In NumPy; other numbers would give other masks, and end resumed runs otherwise."""

    def mixed(bits):
        for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
            bits = (bits ^ bits >> np.uint32(shift)) * np.uint32(factor)
        return bits ^ bits >> np.uint32(14)

    seeds, positions = seeds_of(3), np.arange(5, dtype=np.uint32)
    low, high = seeds.view(np.uint32).T[..., np.newaxis]
    for stream, found in zip((0, 3), draw(tf.constant(seeds), (0, 3), tf.range(5)[tf.newaxis]), strict=True):
        offset = np.uint32(stream * 0x85EBCA6B % 2**32)
        expected = mixed(mixed(positions * np.uint32(0x9E3779B9) + low) ^ (high + offset)) >> np.uint32(1)
        np.testing.assert_array_equal(found, expected)


def test_every_bit_of_the_seed_changes_about_half_of_the_random_bits():
    seeds = seeds_of(64)
    (before,) = np.stack(draw(tf.constant(seeds), [ORDER], tf.range(64)[tf.newaxis]))
    for word in range(2):
        for bit in range(32):
            changed = seeds.copy().view(np.uint32)
            changed[:, word] ^= np.uint32(1 << bit)
            (after,) = np.stack(draw(tf.constant(changed.view(np.int32)), [ORDER], tf.range(64)[tf.newaxis]))
            flipped = [(((before ^ after) >> k) & 1).mean() for k in range(31)]
            assert np.abs(np.array(flipped) - 0.5).max() < 0.05  # 4096 samples: six standard deviations are 0.047


def test_word_starts_are_encoded_in_the_ids():
    ids = tf.ragged.constant([[7, 0, 30521], [], [5]], dtype=tf.int32)
    starts = tf.ragged.constant([[True, False, False], [], [True]], dtype=tf.bool)
    back, begins = unmark_words(mark_words(ids, starts).to_tensor())
    assert back.numpy().tolist() == ids.to_tensor().numpy().tolist()
    assert begins.numpy()[0].tolist() == [True, False, False] and begins.numpy()[2, 0]


def test_a_causal_lm_predicts_each_next_token_and_masks_nothing():
    ids = tf.constant([[2, 7, 8, 3, 0], [2, 9, 3, 0, 0]])
    made = next_tokens(ids, ids > 0, 6)
    assert made["masked_lm_positions"].numpy().tolist() == [[0, 1, 2, 0, 0, 0], [0, 1, 0, 0, 0, 0]]
    assert made["masked_lm_ids"].numpy().tolist() == [[7, 8, 3, 0, 0, 0], [9, 3, 0, 0, 0, 0]]
    assert made["masked_lm_weights"].numpy().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]
