"""Words and characters from the offsets of pieces, in the TensorFlow graph."""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.text.base import BaseTokenizer, is_among
from bert_tf.text.codepoints import CJK_RANGES, accent_codes, punctuation_codes, white_space_codes
from bert_tf.text.normalization_table import space_codes
from bert_tf.types import Array

_BYTES = [bytes([value]) for value in range(256)]


def quotable_pieces(
    tokenizer: BaseTokenizer, text: tf.Tensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Like `tokenize_with_offsets`, but made for quoting: spans from one piece to another are whole words of the text.

    * Pieces include the accents after them that the tokenizer deletes (Latin accents, vowel signs, points), so that no
      span loses those of its last letter.
    * A piece of white space is the empty span at the beginning of the piece after it, whose word it begins, or at the
      end of the last piece. A text of nothing but white space has no pieces.

    Args:
        tokenizer: its `strip_accents` and `keeps_spaces` decide whether there is anything to change.
        text: string [batch].

    Returns:
        ids, starts, ends: int32 [batch, None].
    """
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    if tokenizer.strip_accents:
        ends = _with_accents(text, ends)
    return _without_spaces(text, ids, starts, ends) if tokenizer.keeps_spaces else (ids, starts, ends)


def _with_accents(text: tf.Tensor, ends: tf.RaggedTensor) -> tf.RaggedTensor:
    """`ends` int32 [batch, None], moved behind the accents that follow."""

    def extended() -> tf.Tensor:
        codes, offsets = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
        others = tf.ragged.boolean_mask(offsets, codes.with_values(~is_among(codes.values, accent_codes())))
        others = tf.concat([tf.cast(others, tf.int32), tf.strings.length(text)[:, tf.newaxis]], 1)
        return tf.gather(others.values, word_of(ends - 1, others, text) + 1)

    # At the end of a text this looks at the first character of the next one, which costs time but changes nothing.
    any_accents = tf.reduce_any(is_among(_code_points(text, ends), accent_codes()))
    return ends.with_values(tf.cond(any_accents, extended, lambda: ends.values))


def _without_spaces(
    text: tf.Tensor, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Pieces whose spans have no white space at their ends, as `quotable_pieces` returns them."""
    # Spans have white space in front only if they have nothing else.
    visible = ~is_among(_code_points(text, starts), white_space_codes())  # [pieces]
    any_visible = tf.math.unsorted_segment_max(tf.cast(visible, tf.int32), starts.value_rowids(), starts.nrows()) > 0
    kept = tf.gather(any_visible, starts.value_rowids())  # not those of texts of white space
    ids, starts, ends = (
        tf.RaggedTensor.from_value_rowids(
            tf.boolean_mask(ragged.values, kept), tf.boolean_mask(ragged.value_rowids(), kept), ragged.nrows()
        )
        for ragged in (ids, starts, ends)
    )
    visible, rows = tf.boolean_mask(visible, kept), ids.value_rowids()
    number = tf.cumsum(tf.cast(visible, tf.int32), exclusive=True)
    places = tf.pad(tf.where(visible)[:, 0], [[1, 1]])
    before, after = tf.gather(places, number), tf.gather(places, number + 1)  # visible pieces
    in_row = (number + 2 < tf.size(places)) & (tf.gather(rows, after) == rows)
    place = tf.where(in_row, tf.gather(starts.values, after), tf.gather(ends.values, before))
    starts, ends = (ragged.with_values(tf.where(visible, ragged.values, place)) for ragged in (starts, ends))
    return ids, starts, ends


def given_words(words: tf.Tensor) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """Texts of given words, with spaces between them.

    Args:
        words: string [batch, n]; "" at the end of a row is padding.

    Returns:
        text: string [batch].
        word_starts, word_ends: int32 [batch, None], in bytes.
    """
    indices = tf.range(1, tf.shape(words)[1] + 1) * tf.cast(words != "", tf.int32)
    counts = tf.reduce_max(tf.pad(indices, [[0, 0], [0, 1]]), 1)
    given = tf.RaggedTensor.from_tensor(words, counts)
    rows, lengths = given.value_rowids(), tf.strings.length(given.values)
    ends = tf.cumsum(lengths + 1)  # of each word and its space, in the concatenation of all
    ends -= tf.gather(tf.concat([[0], ends], 0), tf.gather(given.row_starts(), rows)) + 1
    return {
        "text": tf.strings.unsorted_segment_join(given.values, rows, given.nrows(), " "),
        "word_starts": given.with_values(ends - lengths),
        "word_ends": given.with_values(ends),
    }


def word_numbers(
    tokenizer: BaseTokenizer, text: tf.Tensor, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tf.RaggedTensor:
    """The number of the word that each piece belongs to.

    Words are separated by white space. Each leading or trailing punctuation mark, and each CJK ideograph that the
    tokenizer splits, is a separate word: ( U.S., don't ) is six words, and "don't" one. A piece is not split: several
    marks, or a mark and letters, are one word if they are one piece.

    Args:
        tokenizer: that made the pieces.
        text: string [batch].
        ids, starts, ends: int32 [batch, None], as returned by `quotable_pieces` for `text`.

    Returns:
        int64 [batch, None], from 0 in each text.
    """
    # Looks at the text, not the piece: marks that the vocabulary lacks are [UNK].
    opening = _code_points(text, starts)
    mark = is_among(opening, punctuation_codes())
    if tokenizer.keeps_spaces:  # else a mark is one piece
        mark &= ~_any_between(text, starts, ends, lambda codes: ~is_among(codes, punctuation_codes()))
    mark |= starts.values == ends.values
    first = _first_of_row(ids)
    before = tf.where(first, 0, _shifted(ends.values, 0))  # end of the previous piece
    gap = ~first & (before < starts.values)  # white space, or deleted text
    if not tokenizer.keeps_spaces:
        gap &= ~tf.gather(
            tokenizer.continues, ids.values
        )  # before a "##" piece it is deleted text, also next to a mark
    spaces = white_space_codes() if tokenizer.keeps_spaces else space_codes()
    first_of_chunk = first | gap & _has_space(text, starts.with_values(before), starts, gap, spaces)
    chunk = tf.cumsum(tf.cast(first_of_chunk, tf.int64)) - 1  # [pieces]
    count = tf.size(chunk, tf.int64)
    position = tf.range(count)
    chunks = tf.reduce_max(tf.concat([chunk, [-1]], 0)) + 1
    inner_first = tf.math.unsorted_segment_min(tf.where(mark, count, position), chunk, chunks)
    inner_last = tf.math.unsorted_segment_max(tf.where(mark, tf.constant(-1, tf.int64), position), chunk, chunks)
    alone = (position < tf.gather(inner_first, chunk)) | (position > tf.gather(inner_last, chunk))
    if tokenizer.split_cjk:
        alone |= _is_ideograph(opening)
    begins = first_of_chunk | (alone | _shifted(alone, False)) & ~_attached(starts, ends)
    return _numbered(ids, begins)


def character_groups(starts: tf.RaggedTensor, ends: tf.RaggedTensor) -> tf.RaggedTensor:
    """Groups pieces that share a character, such as the parts of one decomposed syllable.

    Args:
        starts, ends: int32 [batch, None], as returned by `quotable_pieces`.

    Returns:
        int64 [batch, None], the number of each piece's group, from 0 in each text.
    """
    return _numbered(starts, _first_of_row(starts) | ~_attached(starts, ends))


def extents(
    numbers: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Starts and ends of words or groups.

    Args:
        numbers: int64 [batch, None], the number of each piece's word or group, from 0 without gaps.
        starts, ends: int32 [batch, None], of the pieces.

    Returns:
        starts, ends: int32 [batch, None], of the words or groups.
    """
    counts = tf.reduce_max(tf.concat([numbers, tf.fill([numbers.nrows(), 1], tf.constant(-1, tf.int64))], 1), 1) + 1
    number = numbers.values + tf.gather(tf.cumsum(counts, exclusive=True), numbers.value_rowids())
    words = tf.reduce_sum(counts)
    first = tf.math.unsorted_segment_min(starts.values, number, words)
    last = tf.math.unsorted_segment_max(ends.values, number, words)
    return tuple(tf.RaggedTensor.from_row_lengths(values, counts, validate=False) for values in (first, last))


def word_of(starts: tf.RaggedTensor, word_starts: tf.RaggedTensor, text: tf.Tensor) -> tf.Tensor:
    """The given word that each piece is in: the last one that does not begin after it.

    Args:
        starts: int32 [batch, None], starts of the pieces in bytes.
        word_starts: int32 [batch, None], starts of the words, ascending; the first at or before the first piece.
        text: string [batch].

    Returns:
        int64 [pieces], indices into `word_starts.values`.
    """
    pieces, words = (_in_all(text, offsets, gap=1) for offsets in (starts, word_starts))
    return tf.searchsorted(words, pieces, side="right", out_type=tf.int64) - 1


def characters(text: tf.Tensor, rows: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """Converts byte offsets to character offsets.

    Args:
        text: string [batch], UTF-8.
        rows: int64 [n], the index of each offset's text.
        offsets: int32 [n], starts of characters, or the end of the text.

    Returns:
        int32 [n].
    """
    begins = tf.gather(tf.cumsum(tf.strings.length(text), exclusive=True), rows)
    data = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
    is_first = tf.bitwise.bitwise_and(data, 0xC0) != 0x80  # all others continue a character
    before = tf.cumsum(tf.cast(tf.pad(is_first, [[0, 1]]), tf.int32), exclusive=True)  # int32: the texts may be large
    return tf.gather(before, begins + offsets) - tf.gather(before, begins)


def _attached(starts: tf.RaggedTensor, ends: tf.RaggedTensor) -> tf.Tensor:
    """bool [pieces]: whether a piece shares a character with the one before it in the row, or one of both is empty."""
    empty, before = starts.values == ends.values, _shifted(ends.values, 0)
    return (starts.values < before) | (empty & (starts.values == before)) | _shifted(empty, False)


def _has_space(
    text: tf.Tensor, firsts: tf.RaggedTensor, lasts: tf.RaggedTensor, needed: tf.Tensor, candidates: Array
) -> tf.Tensor:
    """bool [pieces]: whether one of the candidates is from byte `firsts` to `lasts`; undefined unless `needed`."""
    at_once = is_among(_code_points(text, firsts), candidates)

    def searched() -> tf.Tensor:
        return _any_between(text, firsts, lasts, lambda codes: is_among(codes, candidates))

    return tf.cond(tf.reduce_all(at_once | ~needed), lambda: at_once, searched)


def _any_between(
    text: tf.Tensor, firsts: tf.RaggedTensor, lasts: tf.RaggedTensor, condition: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """bool [pieces]: whether a code point from byte `firsts` to `lasts` (exclusive) fulfils the condition."""
    codes, offsets = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
    found = tf.ragged.boolean_mask(offsets, codes.with_values(condition(codes.values)))
    found, first, last = (_in_all(text, tf.cast(one, tf.int32), gap=1) for one in (found, firsts, lasts))
    return tf.searchsorted(found, first) < tf.searchsorted(found, last)


def _in_all(text: tf.Tensor, offsets: tf.RaggedTensor, gap: int = 0) -> tf.Tensor:
    """int32 [values]: `offsets` [batch, None] in the concatenation of all texts, with `gap` bytes after each."""
    begins = tf.cumsum(tf.strings.length(text) + gap, exclusive=True)
    return offsets.values + tf.gather(begins, offsets.value_rowids())


def _code_points(text: tf.Tensor, offsets: tf.RaggedTensor) -> tf.Tensor:
    """int32 [pieces]: the code points that begin at byte `offsets` [batch, None]; 0 after the last text."""
    data = tf.io.decode_raw(tf.strings.reduce_join(text) + "\0\0\0\0", tf.uint8)
    at = _in_all(text, offsets)
    first, *rest = (tf.cast(tf.gather(data, at + position), tf.int32) for position in range(4))
    one, two, three = (byte % 64 for byte in rest)
    return tf.where(
        first < 0xC0,
        first,
        tf.where(
            first < 0xE0,
            first % 32 * 64 + one,
            tf.where(
                first < 0xF0, (first % 16 * 64 + one) * 64 + two, ((first % 8 * 64 + one) * 64 + two) * 64 + three
            ),
        ),
    )


def _is_ideograph(codes: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any([(codes >= first) & (codes <= last) for first, last in CJK_RANGES], 0)


def spans(text: tf.Tensor, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> dict[str, tf.Tensor]:
    """Extracts spans of texts.

    Args:
        text: string [batch], UTF-8.
        rows: int64 [n], the index of each span's text.
        starts, ends: int32 [n], in bytes.

    Returns:
        text: string [n].
        start, end: int32 [n], in characters.
    """
    # Not tf.strings.substr: it would copy the whole text for every span. Nor bytes_split: a string takes 24 bytes.
    begins = tf.gather(tf.cumsum(tf.strings.length(text), exclusive=True), rows)
    offsets = tf.ragged.range(begins + starts, begins + ends)
    data = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
    letters = tf.gather(tf.constant(_BYTES), tf.cast(tf.gather(data, offsets.values), tf.int32))
    start, end = tf.split(characters(text, tf.tile(rows, [2]), tf.concat([starts, ends], 0)), 2)
    parts = tf.strings.unsorted_segment_join(letters, offsets.value_rowids(), tf.size(rows))
    return {"text": parts, "start": start, "end": end}


def _first_of_row(ragged: tf.RaggedTensor) -> tf.Tensor:
    """bool [values]: whether a value is the first of its row."""
    rows = ragged.value_rowids()
    return rows != _shifted(rows, -1)


def _shifted(values: tf.Tensor, first: int | bool) -> tf.Tensor:
    """The previous value of each value; `first` for the first."""
    return tf.concat([tf.fill([1], tf.cast(first, values.dtype)), values], 0)[:-1]


def _numbered(ragged: tf.RaggedTensor, begins: tf.Tensor) -> tf.RaggedTensor:
    """int64, in the shape of `ragged`: group numbers, from 0 in each row, whose first value must begin a group."""
    number = tf.cumsum(tf.cast(begins, tf.int64))
    of_first = tf.gather(number, tf.gather(ragged.row_starts(), ragged.value_rowids()))
    return ragged.with_values(number - of_first)
