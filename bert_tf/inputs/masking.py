"""Dynamic masking for masked-language-model pre-training (BERT, section 3.1, task 1): tokens, whole words or spans.

Everything here is integer arithmetic on [batch, length], so it runs on the host or inside the training step, compiled
by XLA or not, with the same result. What is drawn for a row depends on the row's own seed alone, so it does not matter
how a batch is cut into replicas and micro-batches.
"""

from typing import NamedTuple

import tensorflow as tf

SEED, WORD_STARTS = "mask_seed", "word_starts"  # features that a `Masker` takes away
MASKED_FROM = ("input_word_ids", "input_mask", SEED, WORD_STARTS)  # all that it looks at

# SpanBERT (Joshi et al., 2020, section 3.1): lengths in words are geometric with p = 0.2, cut off at 10, mean 3.8.
SPAN_P, LONGEST_SPAN = 0.2, 10

_LARGEST_INT32 = 2**31 - 1
_JOINED = 1 << 30  # no vocabulary has so many pieces, so an id has this bit to spare
# Which of a position's random numbers: they are independent of each other.
_ORDER, _KIND, _PIECE, _LENGTH = range(4)


class Masked(NamedTuple):
    """What `mask_tokens` returns: the model's input and what it has to predict."""

    input_ids: tf.Tensor
    positions: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


class Masker:
    """Makes masked features of packed ones, the same way on the host and on the device.

    Args:
        data: bert_tf.config.PretrainingData: masking, masking_rate, max_predictions.
        tokenizer: bert_tf.Tokenizer.
    """

    def __init__(self, data, tokenizer):
        self._masking, self._rate, self._most = data.masking, data.masking_rate, data.max_predictions
        self._specials = (tokenizer.cls_id, tokenizer.sep_id)
        self._mask_id, self._vocab_size = tokenizer.mask_id, tokenizer.vocab_size

    def __call__(self, features):
        """Hides tokens.

        Args:
            features: dict with input_word_ids, input_mask (not 0 at tokens) int32 [batch, length], mask_seed int32
                [batch, 2] and, unless single tokens are masked, word_starts bool [batch, length].

        Returns:
            dict: the same without mask_seed and word_starts, with masked input_word_ids and with masked_lm_positions
            and masked_lm_ids int32, masked_lm_weights float32, each [batch, max_predictions].
        """
        features = dict(features)
        if self._masking == "causal_lm":
            del features[SEED]
            return features | next_tokens(features["input_word_ids"], features["input_mask"], self._most)
        ids, tokens = features["input_word_ids"], features["input_mask"] > 0
        masked = mask_tokens(
            ids,
            tokens & (ids != self._specials[0]) & (ids != self._specials[1]),
            features.pop(SEED),
            lengths=tf.reduce_sum(tf.cast(tokens, tf.int32), axis=1),
            mask_id=self._mask_id,
            vocab_size=self._vocab_size,
            masking=self._masking,
            word_starts=features.pop(WORD_STARTS, None),
            rate=self._rate,
            max_predictions=self._most,
        )
        return features | {
            "input_word_ids": masked.input_ids,
            "masked_lm_positions": masked.positions,
            "masked_lm_ids": masked.labels,
            "masked_lm_weights": masked.weights,
        }

    def in_step(self):
        """The same as a part of the training step, for features that a pipeline with data.mask_on "device" made.

        Returns:
            function of a dict of features to a dict of features.
        """
        # Compiled, because on a GPU TensorFlow's own kernels for int32 run on the host.
        mask = tf.function(self, jit_compile=True)

        def prepare(features):
            masked = mask({name: features[name] for name in MASKED_FROM if name in features})
            return {name: value for name, value in features.items() if name not in MASKED_FROM} | masked

        return prepare


def mask_tokens(
    token_ids,
    maskable,
    seeds,
    *,
    lengths,
    mask_id,
    vocab_size,
    masking="token",
    word_starts=None,
    rate=0.15,
    max_predictions=20,
):
    """Hides tokens for the model to predict; a new choice for every seed.

    A row of n tokens has a budget of min(max_predictions, max(1, round(rate * n))) predictions.

    * "token": so many tokens, or all that may be hidden, each choice equally likely.
    * "whole_word": words in random order until the budget is used; a word with more pieces than are left is passed
      over. So a row may stay below its budget, and a word with more pieces than the budget is never hidden.
    * "span": the same, but each word drawn brings the words behind it along, up to a length in words drawn from the
      truncated geometric distribution. A span ends before a word that would pass the budget, before one that is hidden
      already and before [SEP]. (SpanBERT's code draws first words in proportion to their pieces, cuts the last span
      within a word, lets spans overlap and counts those that touch as one.)

    80% of the predictions become [MASK], 10% stay and 10% become a random id. Of a span, all tokens share the draw, and
    each has its own random id; otherwise, also within a word, each token draws for itself. Budget, passing over and the
    draw for each piece of a word are those of google-research/bert (create_pretraining_data.py, do_whole_word_mask).
    There, pieces that a cut of the second segment's front has left without their beginning count to the last word of
    the first segment; here they are a word.

    Args:
        token_ids: int32 [batch, length].
        maskable: bool [batch, length], False at [CLS], [SEP] and padding.
        seeds: int32 [batch, 2], one seed a row, of which every bit counts: the same seed always hides the same tokens.
        lengths: int32 [batch], tokens in each row, [CLS] and [SEP] counted, padding not.
        mask_id: id of [MASK].
        vocab_size: random replacements are drawn from all of [0, vocab_size), as the reference does.
        masking: "token", "whole_word" or "span".
        word_starts: bool [batch, length], True at the first token of a word; needed unless `masking` is "token".
            Also the first maskable token of a row and one after a token that is not maskable begins a word.
        rate: share of each sequence, specials counted, that is hidden.
        max_predictions: hidden tokens a sequence, at most.

    Returns:
        Masked: input_ids int32 [batch, length]; positions (ascending), labels int32 and weights float32, each
        [batch, max_predictions]. Weight 1.0 marks a prediction; unused slots hold position 0, label 0, weight 0.0.
    """
    batch, length = tf.unstack(tf.shape(token_ids))
    budgets = prediction_budgets(lengths, rate, max_predictions)
    everywhere = tf.range(length)[tf.newaxis]
    if masking == "token":
        (order,) = draw(seeds, [_ORDER], everywhere)  # [batch, length]
        positions = _first_tokens(tf.where(maskable, order, -1), budgets, max_predictions)
        drawn_at = positions
    else:
        order, words = draw(seeds, [_ORDER, _LENGTH], everywhere)
        words = tf.ones_like(order) if masking == "whole_word" else span_lengths(words)
        firsts = _first_words(maskable, word_starts, order, words, budgets, max_predictions)
        positions = tf.sort(tf.where(firsts >= 0, everywhere, _LARGEST_INT32), axis=-1)
        positions = _widen(positions, max_predictions, _LARGEST_INT32)[:, :max_predictions]
        drawn_at = positions if masking == "whole_word" else tf.gather(firsts, positions % length, batch_dims=1)

    chosen = positions < _LARGEST_INT32  # [batch, max_predictions]
    positions = tf.where(chosen, positions, 0)
    labels = tf.where(chosen, tf.gather(token_ids, positions, batch_dims=1), 0)
    kind_draw, id_draw = draw(seeds, [_KIND, _PIECE], tf.stack([drawn_at, positions]))
    kind = kind_draw % 10  # 0 to 7: [MASK], 8: unchanged, 9: random
    replacements = tf.where(kind < 8, mask_id, tf.where(kind == 8, labels, id_draw % vocab_size))
    # Added as differences, so that the unused slots, which all point to position 0, change nothing there.
    differences = tf.where(chosen, replacements - labels, 0)
    rows = tf.broadcast_to(tf.range(batch)[:, tf.newaxis], tf.shape(positions))
    input_ids = tf.tensor_scatter_nd_add(token_ids, tf.stack([rows, positions], axis=-1), differences)

    prediction_shape = [token_ids.shape[0], max_predictions]
    return Masked(
        input_ids=tf.ensure_shape(input_ids, token_ids.shape),
        positions=tf.ensure_shape(positions, prediction_shape),
        labels=tf.ensure_shape(labels, prediction_shape),
        weights=tf.ensure_shape(tf.cast(chosen, tf.float32), prediction_shape),
    )


def next_tokens(token_ids, mask, max_predictions):
    """What a language model from left to right predicts: at each position the next token; nothing is hidden.

    Args:
        token_ids, mask: int32 [batch, length]; mask 0 at padding.
        max_predictions: at least length - 1.

    Returns:
        dict: masked_lm_positions, masked_lm_ids int32 and masked_lm_weights float32, each [batch, max_predictions].
    """
    shape = [token_ids.shape[0], max_predictions]
    following = tf.cast(mask[:, 1:] > 0, tf.int32)
    positions = _widen(tf.range(tf.shape(token_ids)[1] - 1)[tf.newaxis] * following, max_predictions, 0)
    labels = _widen(token_ids[:, 1:] * following, max_predictions, 0)
    weights = tf.cast(_widen(following, max_predictions, 0), tf.float32)
    made = {"masked_lm_positions": positions, "masked_lm_ids": labels, "masked_lm_weights": weights}
    return {name: tf.ensure_shape(value, shape) for name, value in made.items()}


def prediction_budgets(lengths, rate, max_predictions):
    """int32 [n], how many tokens sequences of these lengths (int32 [n]) may have hidden: see `mask_tokens`."""
    # Python itself says from which length on there is one more, so the counts are those of the reference's round() for
    # every length, and no float64, which TPUs lack, is computed with.
    steps = tf.constant(_lengths_with_more(rate, max_predictions), tf.int32)  # [up to max_predictions - 1]
    return 1 + tf.reduce_sum(tf.cast(lengths[:, tf.newaxis] >= steps, tf.int32), axis=1)


def _lengths_with_more(rate, max_predictions):
    """list of int, ascending: the shortest lengths with 2, 3, ... max_predictions predictions, if there are any."""
    steps = []
    for count in range(2, max_predictions + 1):
        length = int((count - 0.5) / rate) - 1 if rate else _LARGEST_INT32
        if length > _LARGEST_INT32 - 3:
            break
        while round(rate * length) < count:
            length += 1
        steps.append(length)
    return steps


def draw(seeds, streams, positions):
    """Random numbers that belong to a row and a position, whatever else is in the batch.

    A counter-based generator: the position, spread by the golden ratio, goes twice through a mixing function of which
    every output bit depends on every input bit, each time with another half of the seed. TensorFlow's own
    generators take one key for a whole tensor. Not for cryptography.

    Args:
        seeds: int32 [batch, 2].
        streams: list of int; the numbers of one stream are independent of another's.
        positions: int32, [1 or batch, n], or [streams, 1 or batch, n] for other positions in each stream.

    Returns:
        list of int32 [batch, n], one a stream, uniform in [0, 2**31).
    """
    low, high = tf.unstack(tf.bitcast(seeds, tf.uint32)[:, :, tf.newaxis], axis=1)  # [batch, 1]
    counters = tf.cast(positions, tf.uint32) * tf.constant(0x9E3779B9, tf.uint32)
    streams = [[[stream * 0x85EBCA6B % 2**32]] for stream in streams]  # [streams, 1, 1]
    bits = _mix(_mix(counters + low) ^ (high + tf.constant(streams, tf.uint32)))  # [streams, batch, n]
    return tf.unstack(tf.cast(_shift(bits, 1), tf.int32))


def _mix(bits):
    """uint32 to uint32, one to one: C. Wellons' triple32, found by search for the least bias.

    With two multiplications (his lowbias32), rows whose seeds are consecutive numbers had correlated bits.
    """
    bits = (bits ^ _shift(bits, 17)) * tf.constant(0xED5AD4BB, tf.uint32)
    bits = (bits ^ _shift(bits, 11)) * tf.constant(0xAC4C1B51, tf.uint32)
    bits = (bits ^ _shift(bits, 15)) * tf.constant(0x31848BAB, tf.uint32)
    return bits ^ _shift(bits, 14)


def _shift(bits, by):
    return tf.bitwise.right_shift(bits, tf.constant(by, tf.uint32))


def span_lengths(draws):
    """Lengths of spans, in words, from int32 uniform in [0, 2**31): P(length) ~ (1 - p)^(length - 1), up to 10."""
    whole = 1 - (1 - SPAN_P) ** LONGEST_SPAN
    bounds = [round(2**31 * (1 - (1 - SPAN_P) ** length) / whole) for length in range(1, LONGEST_SPAN)]
    return 1 + sum(tf.cast(draws >= bound, tf.int32) for bound in bounds)


def mark_words(ids, word_starts):
    """Ids that carry with them, through pairing and packing, where words begin.

    Args:
        ids: RaggedTensor int32 [batch, None].
        word_starts: RaggedTensor bool [batch, None], as `Tokenizer.tokenize_with_words` gives.

    Returns:
        RaggedTensor int32 [batch, None] for `unmark_words`; no other use.
    """
    return ids.with_values(tf.where(word_starts.values, ids.values, ids.values | _JOINED))


def unmark_words(marked):
    """ids int32 and word_starts bool, of the shape of `marked`: int32 that `mark_words` made, padded with anything."""
    return marked & (_JOINED - 1), marked < _JOINED


def _first_tokens(order, budgets, most):
    """int32 [batch, most], ascending: as many positions as the budget allows, by falling order, -1 for none."""
    # The highest numbers are a uniform draw without replacement: one top_k instead of a shuffle per row.
    order, positions = tf.math.top_k(_widen(order, most, -1), k=most)
    chosen = (tf.range(most) < budgets[:, tf.newaxis]) & (order >= 0)
    return tf.sort(tf.where(chosen, positions, _LARGEST_INT32), axis=-1)


def _first_words(maskable, word_starts, order, words, budgets, most):
    """Chooses whole words or spans of them, one of each row at a time: as many turns as the richest row takes.

    Args:
        maskable, word_starts, order [batch, length], budgets [batch]: as in `mask_tokens`.
        words: int32 [batch, length], words that a span has if it begins here.
        most: budgets are not above this.

    Returns:
        int32 [batch, length]: where the span of this token begins, -1 if the token is not hidden.
    """
    length = tf.shape(order)[1]
    positions = tf.range(length)[tf.newaxis]
    # What can not be hidden is a word of its own: no span reaches over it.
    before = tf.pad(maskable, [[0, 0], [1, 0]])[:, :-1]
    begins = word_starts | ~maskable | ~before
    word = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1  # [batch, length], from 0
    bounds = _pad_right(tf.sort(tf.where(begins, positions, length), axis=1), length)  # [batch, length + 1]
    ends = tf.gather(bounds, word + 1, batch_dims=1)  # where the word of this token ends
    order = tf.where(maskable & begins, order, -1)

    def turn(_, firsts, left):
        free = maskable & (firsts < 0)
        candidates = tf.where(free & (ends - positions <= left), order, -1)
        first = tf.argmax(candidates, axis=1, output_type=tf.int32)[:, tf.newaxis]  # [batch, 1]
        found = tf.gather(candidates, first, batch_dims=1) >= 0
        past = tf.gather(word + words, first, batch_dims=1)  # the first word behind the span
        stop = tf.reduce_min(tf.where(~free & (positions > first), positions, length), axis=1, keepdims=True)
        taken = found & (positions >= first) & (positions < stop) & (word < past) & (ends - first <= left)
        left -= tf.reduce_sum(tf.cast(taken, tf.int32), axis=1, keepdims=True)
        return tf.reduce_any(found), tf.where(taken, first, firsts), left

    _, firsts, _ = tf.while_loop(
        lambda found, firsts, left: found,
        turn,
        (tf.constant(True), tf.fill(tf.shape(order), -1), budgets[:, tf.newaxis]),
        maximum_iterations=most,  # each turn but the last hides a token at least
    )
    return firsts


def _widen(rows, width, value):
    """Rows narrower than `width` are made as wide, because top_k and slices take no more than there is."""
    return tf.pad(rows, [[0, 0], [0, tf.maximum(width - tf.shape(rows)[1], 0)]], constant_values=value)


def _pad_right(rows, value):
    return tf.concat([rows, tf.fill([tf.shape(rows)[0], 1], value)], axis=1)
