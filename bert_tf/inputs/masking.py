"""Dynamic masking for masked-language-model pre-training (BERT, section 3.1, task 1): tokens, words or spans.

Everything here is integer arithmetic on [batch, length], so it runs on the host or inside the training step, compiled
by XLA or not, with the same result. The random numbers of a row depend only on the row's own seed, so the masks do not
depend on how a batch is split into replicas and micro-batches.
"""

import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Tensors

SEED, WORD_STARTS = "mask_seed", "word_starts"  # features that a `Masker` reads

# Relative frequencies of spans of one word, two words, ...
_SPANS = {
    # SpanBERT (Joshi et al., 2020, section 3.1): geometric with p = 0.2, truncated at 10, mean 3.8.
    "span": [0.8**words for words in range(10)],
    # ALBERT (Lan et al., 2019, section 4.1): in proportion to 1 / n, up to 3.
    "ngram": [1 / words for words in (1, 2, 3)],
}
_LARGEST_INT32 = 2**31 - 1
_JOINED = 1 << 30  # a bit that no id uses: no vocabulary is that large
# The streams of random numbers at each position; they are independent of each other.
_ORDER, _KIND, _PIECE, _LENGTH, *SAMPLES = range(6)


class Masker:
    """Turns packed features into masked features, on the host and on the device alike.

    Every seed gives a new selection of tokens for the model to predict. A row of n tokens has a budget of
    min(max_predictions, max(1, round(masking_rate * n))) predictions.

    * "token": as many tokens as the budget allows, drawn uniformly from all but the special tokens of `pack`; with
      mask_special, from these, too.
    * "whole_word": words in random order until the budget is used up; a word with more pieces than the remaining budget
      is skipped. So a row may stay below its budget, and a word with more pieces than the budget is never hidden.
    * "span": as "whole_word", but each drawn word is extended by the words that follow it, to a length in words drawn
      from the truncated geometric distribution. A span ends before a word that would exceed the budget, before a word
      that is already hidden and before a separator. (SpanBERT's code draws first words in proportion to their pieces,
      cuts the last span within a word, lets spans overlap and counts adjacent spans as one.)
    * "ngram": as "span", with ALBERT's distribution of lengths.
    * "causal_lm": nothing is hidden; see `next_tokens`.
    * "none": nothing is hidden or predicted.

    80% of the predictions become the mask token, 10% keep their token and 10% become a random id, drawn from the whole
    vocabulary as in the reference. All tokens of a "span" share this draw, but each random id is drawn separately;
    otherwise each token has its own draw. With the objective "electra" 85% become the mask token and 15% keep their
    token, as in google-research/electra (pretrain_helpers.py). The budget, the skipping and the draw for each piece of
    a word are those of google-research/bert (create_pretraining_data.py, do_whole_word_mask). If the second segment
    lost tokens at its front and now begins within a word, the reference counts these pieces to the last word of the
    first segment; here they are a word.

    Args:
        data: objective, masking, masking_rate, mask_special, max_predictions and max_length are used.
        tokenizer: for the ids of special tokens and the size of the vocabulary.
    """

    def __init__(self, data: PretrainingData, tokenizer: BaseTokenizer) -> None:
        self._data, self._tokenizer = data, tokenizer

    def __call__(self, features: Tensors) -> Tensors:
        """Masks a batch.

        Args:
            features: with input_word_ids, input_mask (0 only at padding) int32 [batch, length]; mask_seed int32
                [batch, 2], of which all 64 bits are used: the same seed always hides the same tokens; and, unless
                single tokens are masked, word_starts bool [batch, length], True at the first token of a word. The first
                token of a row, or after a special token, always begins a word.

        Returns:
            The features without mask_seed and word_starts, with masked input_word_ids, and with masked_lm_positions
            (ascending) and masked_lm_ids int32 and masked_lm_weights float32, each [batch, max_predictions]. Weight 1.0
            marks a prediction; unused slots hold position 0, id 0, weight 0.0. With the objective "electra" mask_seed
            stays, for the samples of the generator.
        """
        data, tokenizer, features = self._data, self._tokenizer, dict(features)
        ids, tokens, seeds = features["input_word_ids"], features["input_mask"] > 0, features.pop(SEED)
        electra = data.objective == "electra"
        word_starts = features.pop(WORD_STARTS, None)
        if data.masking == "causal_lm":
            return features | next_tokens(ids, tokens, data.max_predictions)
        special = (ids == tokenizer.cls_id) | (ids == tokenizer.sep_id)
        maskable = tokens if data.mask_special else tokens & ~special
        length = tf.shape(ids)[1]
        budgets = prediction_budgets(tf.reduce_sum(tf.cast(tokens, tf.int32), axis=1), data)
        all_positions = tf.range(length)[tf.newaxis]
        if data.masking in ("token", "none"):
            (order,) = draw(seeds, [_ORDER], all_positions)  # [batch, length]
            positions = _first_tokens(tf.where(maskable, order, -1), budgets, data.max_predictions)
            drawn_at = positions
        else:
            order, length_draws = draw(seeds, [_ORDER, _LENGTH], all_positions)
            words = span_lengths(length_draws, data.masking) if data.masking in _SPANS else tf.ones_like(order)
            firsts = _first_words(maskable, word_starts, order, words, budgets, data.max_predictions)
            positions = tf.sort(tf.where(firsts >= 0, all_positions, _LARGEST_INT32), axis=-1)
            positions = _widen(positions, data.max_predictions, _LARGEST_INT32)[:, : data.max_predictions]
            drawn_at = tf.gather(firsts, positions % length, batch_dims=1) if data.masking == "span" else positions

        chosen = positions < _LARGEST_INT32  # [batch, max_predictions]
        positions = tf.where(chosen, positions, 0)
        labels = tf.where(chosen, tf.gather(ids, positions, batch_dims=1), 0)
        kind_draw, id_draw = draw(seeds, [_KIND, _PIECE], tf.stack([drawn_at, positions]))
        if electra:
            replacements = tf.where(kind_draw % 20 < 17, tokenizer.mask_id, labels)
        else:
            kind = kind_draw % 10  # 0 to 7: mask token, 8: unchanged, 9: random
            drawn_ids = id_draw % tokenizer.vocab_size
            replacements = tf.where(kind < 8, tokenizer.mask_id, tf.where(kind == 8, labels, drawn_ids))
        masked = added_at(ids, positions, tf.where(chosen, replacements - labels, 0))
        predictions = _predictions(positions, labels, chosen, [ids.shape[0], data.max_predictions])
        features |= {SEED: seeds} if electra else {}
        return features | {"input_word_ids": tf.ensure_shape(masked, ids.shape)} | predictions

    def in_step(self) -> Callable[[Tensors], Tensors]:
        """The same function for use in the training step, on features of a pipeline with data.mask_on "device"."""
        # Compiled by XLA, because TensorFlow's own int32 kernels run on the host even if there is a GPU.
        return tf.function(self, autograph=False, jit_compile=True)


def added_at(rows: tf.Tensor, positions: tf.Tensor, differences: tf.Tensor) -> tf.Tensor:
    """Changes values at positions by differences, so that unused slots, which all point to position 0, change nothing.

    Args:
        rows: integer [batch, length].
        positions: int32 [batch, n], different ones where the difference is not 0.
        differences: as `rows` [batch, n].

    Returns:
        As `rows`.
    """
    numbers = tf.broadcast_to(tf.range(tf.shape(rows)[0])[:, tf.newaxis], tf.shape(positions))
    return tf.tensor_scatter_nd_add(rows, tf.stack([numbers, positions], axis=-1), differences)


def next_tokens(token_ids: tf.Tensor, tokens: tf.Tensor, max_predictions: int) -> Tensors:
    """Predictions of a causal language model: at each position the next token; nothing is hidden.

    Args:
        token_ids: int32 [batch, length].
        tokens: bool [batch, length], False at padding.
        max_predictions: at least length - 1.

    Returns:
        masked_lm_positions and masked_lm_ids int32 and masked_lm_weights float32, each [batch, max_predictions].
    """
    following = tf.cast(tokens[:, 1:], tf.int32)
    positions = tf.range(tf.shape(token_ids)[1] - 1)[tf.newaxis] * following
    columns = (positions, token_ids[:, 1:] * following, following)
    positions, labels, used = (_widen(column, max_predictions, 0) for column in columns)
    return _predictions(positions, labels, used, [token_ids.shape[0], max_predictions])


def _predictions(positions: tf.Tensor, ids: tf.Tensor, used: tf.Tensor, shape: list[int | None]) -> Tensors:
    """Features of the predictions; `used` is true in used slots."""
    features = {
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": tf.cast(used, tf.float32),
    }
    return {name: tf.ensure_shape(value, shape) for name, value in features.items()}


def prediction_budgets(lengths: tf.Tensor, data: PretrainingData) -> tf.Tensor:
    """Maximum number of hidden tokens, int32 [n], in sequences of these lengths, int32 [n]; see `Masker`."""
    if data.masking == "none":
        return tf.zeros_like(lengths)
    # A table made in Python, so that the budgets equal the reference's round() without computing in float64, which
    # TPUs lack.
    most, rate = data.max_predictions, data.masking_rate
    return tf.gather([min(most, max(1, round(rate * length))) for length in range(data.max_length + 1)], lengths)


def draw(seeds: tf.Tensor, streams: Sequence[int], positions: tf.Tensor) -> list[tf.Tensor]:
    """Draws random numbers that depend only on the row's seed and the position, not on the rest of the batch.

    A counter-based generator: the position, spread by the golden ratio, passes twice through a mixing function, each
    time with the other half of the seed; every output bit of the function depends on every input bit. TensorFlow's own
    generators take one key for a whole tensor. Not for cryptography.

    Args:
        seeds: int32 [batch, 2].
        streams: numbers of the streams; different streams are independent of each other.
        positions: int32, [1 or batch, n], or [streams, 1 or batch, n] for different positions in each stream.

    Returns:
        One int32 [batch, n] per stream, uniform in [0, 2**31).
    """
    low, high = tf.unstack(tf.bitcast(seeds, tf.uint32)[:, :, tf.newaxis], axis=1)  # [batch, 1]
    counters = tf.cast(positions, tf.uint32) * tf.constant(0x9E3779B9, tf.uint32)
    offsets = [[[stream * 0x85EBCA6B % 2**32]] for stream in streams]  # [streams, 1, 1]
    bits = _mix(_mix(counters + low) ^ (high + tf.constant(offsets, tf.uint32)))  # [streams, batch, n]
    return tf.unstack(tf.cast(_shift(bits, 1), tf.int32))


def _mix(bits: tf.Tensor) -> tf.Tensor:
    """C. Wellons' triple32, a bijection of uint32 that was found by a search for the least bias.

    With two multiplications (his lowbias32), rows whose seeds are consecutive numbers had correlated bits.
    """
    bits = (bits ^ _shift(bits, 17)) * tf.constant(0xED5AD4BB, tf.uint32)
    bits = (bits ^ _shift(bits, 11)) * tf.constant(0xAC4C1B51, tf.uint32)
    bits = (bits ^ _shift(bits, 15)) * tf.constant(0x31848BAB, tf.uint32)
    return bits ^ _shift(bits, 14)


def _shift(bits: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.right_shift(bits, tf.constant(by, tf.uint32))


def span_lengths(draws: tf.Tensor, masking: str) -> tf.Tensor:
    """Lengths of spans in words, from int32 uniform in [0, 2**31), for the masking "span" or "ngram"."""
    *bounds, whole = itertools.accumulate(_SPANS[masking])
    bounds = [round(2**31 * bound / whole) for bound in bounds]
    return 1 + sum(tf.cast(draws >= bound, tf.int32) for bound in bounds)


def mark_words(ids: tf.RaggedTensor, word_starts: tf.RaggedTensor) -> tf.RaggedTensor:
    """Stores word starts in a spare bit of the ids, so that pairing and packing keep both together.

    Args:
        ids: RaggedTensor int32 [batch, None].
        word_starts: RaggedTensor bool [batch, None], as `tokenize_with_words` of tokenizers returns it.

    Returns:
        RaggedTensor int32 [batch, None]; only `unmark_words` can read it.
    """
    return ids.with_values(tf.where(word_starts.values, ids.values, ids.values | _JOINED))


def unmark_words(marked: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Undoes `mark_words`: ids int32 and word_starts bool, in the shape of `marked`, which may have any padding."""
    return marked & (_JOINED - 1), marked < _JOINED


def _first_tokens(order: tf.Tensor, budgets: tf.Tensor, max_predictions: int) -> tf.Tensor:
    """The positions with the highest `order`, up to the budget; negative ones never.

    Returns:
        int32 [batch, max_predictions], ascending; unused slots hold the largest int32.
    """
    # The highest numbers are a uniform draw without replacement: one top_k instead of a shuffle per row.
    order, positions = tf.math.top_k(_widen(order, max_predictions, -1), k=max_predictions)
    chosen = (tf.range(max_predictions) < budgets[:, tf.newaxis]) & (order >= 0)
    return tf.sort(tf.where(chosen, positions, _LARGEST_INT32), axis=-1)


def _first_words(
    maskable: tf.Tensor,
    word_starts: tf.Tensor | None,
    order: tf.Tensor,
    words: tf.Tensor,
    budgets: tf.Tensor,
    max_predictions: int,
) -> tf.Tensor:
    """Chooses whole words or spans; each iteration chooses one in every row that still has budget.

    Args:
        maskable: bool [batch, length], False at special tokens and padding.
        word_starts: bool [batch, length], as for `Masker`.
        order: int32 [batch, length], words with higher numbers come first.
        words: int32 [batch, length], length in words of a span that begins here.
        budgets: int32 [batch], none above `max_predictions`.

    Returns:
        int32 [batch, length]: the position where the span of this token begins, -1 if the token is not hidden.
    """
    length = tf.shape(order)[1]
    positions = tf.range(length)[tf.newaxis]
    # A token that is not maskable is a word of its own, so no span crosses it.
    before = tf.pad(maskable, [[0, 0], [1, 0]])[:, :-1]
    begins = word_starts | ~maskable | ~before
    word = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1  # [batch, length], from 0
    bounds = _pad_right(tf.sort(tf.where(begins, positions, length), axis=1), length)  # [batch, length + 1]
    ends = tf.gather(bounds, word + 1, batch_dims=1)  # where the word of this token ends
    order = tf.where(maskable & begins, order, -1)

    def choose(_: tf.Tensor, firsts: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        free = maskable & (firsts < 0)
        candidates = tf.where(free & (ends - positions <= left), order, -1)
        first = tf.argmax(candidates, axis=1, output_type=tf.int32)[:, tf.newaxis]  # [batch, 1]
        found = tf.gather(candidates, first, batch_dims=1) >= 0
        past = tf.gather(word + words, first, batch_dims=1)  # the first word after the span
        stop = tf.reduce_min(tf.where(~free & (positions > first), positions, length), axis=1, keepdims=True)
        taken = found & (positions >= first) & (positions < stop) & (word < past) & (ends - first <= left)
        left -= tf.reduce_sum(tf.cast(taken, tf.int32), axis=1, keepdims=True)
        return tf.reduce_any(found), tf.where(taken, first, firsts), left

    _, firsts, _ = tf.while_loop(
        lambda found, firsts, left: found,
        choose,
        (tf.constant(True), tf.fill(tf.shape(order), -1), budgets[:, tf.newaxis]),
        maximum_iterations=max_predictions,  # every iteration but the last hides at least one token
    )
    return firsts


def _widen(rows: tf.Tensor, width: int, value: int) -> tf.Tensor:
    """Pads rows to at least `width`, because top_k and slices cannot return more than a row has."""
    return tf.pad(rows, [[0, 0], [0, tf.maximum(width - tf.shape(rows)[1], 0)]], constant_values=value)


def _pad_right(rows: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.concat([rows, tf.fill([tf.shape(rows)[0], 1], value)], axis=1)
