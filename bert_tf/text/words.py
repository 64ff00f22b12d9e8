"""Words and characters by the offsets of pieces, in graph code."""

import tensorflow as tf

from bert_tf.text.codepoints import CJK_RANGES, accent_codes, punctuation_codes, space_codes

_BYTES = [bytes([value]) for value in range(256)]


def pieces_with_accents(tokenizer, text):
    """Pieces, to which the accents (Latin ones, vowel signs, points) belong that the tokenizer deletes behind them.

    So what is cut from the text at their ends has its letters whole.

    Args:
        tokenizer: Tokenizer.
        text: string [batch].

    Returns:
        ids, starts, ends: RaggedTensors int32 [batch, None], but for those ends as its `tokenize_with_offsets` gives.
    """
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    if not tokenizer.strip_accents:
        return ids, starts, ends

    def moved():
        codes, offsets = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
        others = tf.ragged.boolean_mask(offsets, codes.with_values(~_is_among(codes.values, accent_codes())))
        others = tf.concat([tf.cast(others, tf.int32), tf.strings.length(text)[:, tf.newaxis]], 1)
        return tf.gather(others.values, word_of(ends - 1, others, text) + 1)

    # At the end of a text this is the next one's first character: it costs time, and moves nothing.
    some = tf.reduce_any(_is_among(_code_points(text, ends), accent_codes()))
    return ids, starts, ends.with_values(tf.cond(some, moved, lambda: ends.values))


def word_numbers(tokenizer, text, ids, starts, ends):
    """Which word of its text each piece belongs to.

    A word is what stands between white space; the punctuation that opens or closes it, mark by mark, and each CJK
    ideograph that the tokenizer sets apart are words of their own: ( U.S., don't ) is six words, and "don't" one.

    Args:
        tokenizer: Tokenizer.
        text: string [batch].
        ids, starts, ends: RaggedTensors int32 [batch, None], as `pieces_with_accents` gives for `text`.

    Returns:
        RaggedTensor int64 [batch, None], from 0 in each text.
    """
    continues = tf.gather(tokenizer.continues, ids.values)
    # By the text and not by the piece: marks that the vocabulary lacks are [UNK].
    opening = _code_points(text, starts)
    mark = _is_among(opening, punctuation_codes())
    first = _first_of_row(ids)
    before = tf.where(first, 0, _shifted(ends.values, 0))  # where the piece before ends
    # Before a "##" piece something was deleted. So it may have been elsewhere, beside a mark.
    gap = ~first & (before < starts.values) & ~continues
    first_of_chunk = first | gap & _holds_space(text, starts.with_values(before), starts, gap)
    chunk = tf.cumsum(tf.cast(first_of_chunk, tf.int64)) - 1  # [pieces]
    none = tf.size(chunk, tf.int64)
    position = tf.range(none)
    chunks = tf.reduce_max(tf.concat([chunk, [-1]], 0)) + 1
    inner_first = tf.math.unsorted_segment_min(tf.where(mark, none, position), chunk, chunks)
    inner_last = tf.math.unsorted_segment_max(tf.where(mark, tf.constant(-1, tf.int64), position), chunk, chunks)
    alone = (position < tf.gather(inner_first, chunk)) | (position > tf.gather(inner_last, chunk))
    if tokenizer.split_cjk:
        alone |= _is_ideograph(opening)
    begins = first_of_chunk | (alone | _shifted(alone, False)) & ~continues
    return _numbered(ids, begins)


def character_groups(starts, ends):
    """Which pieces share a character with the one before, as parts of one decomposed syllable do.

    Args:
        starts, ends: RaggedTensors int32 [batch, None], in bytes.

    Returns:
        RaggedTensor int64 [batch, None], numbers of the groups, from 0 in each text.
    """
    first = _first_of_row(starts)
    return _numbered(starts, first | (starts.values >= _shifted(ends.values, 0)))


def extents(numbers, starts, ends):
    """Where words, or groups, begin and end.

    Args:
        numbers: RaggedTensor int64 [batch, None], of the word that each piece is in, from 0 without gaps.
        starts, ends: RaggedTensors int32 [batch, None], of the pieces.

    Returns:
        starts, ends: RaggedTensors int32 [batch, None], of the words.
    """
    counts = tf.reduce_max(tf.concat([numbers, tf.fill([numbers.nrows(), 1], tf.constant(-1, tf.int64))], 1), 1) + 1
    number = numbers.values + tf.gather(tf.cumsum(counts, exclusive=True), numbers.value_rowids())
    words = tf.reduce_sum(counts)
    first = tf.math.unsorted_segment_min(starts.values, number, words)
    last = tf.math.unsorted_segment_max(ends.values, number, words)
    return tuple(tf.RaggedTensor.from_row_lengths(values, counts, validate=False) for values in (first, last))


def word_of(starts, word_starts, text):
    """Which of some given words each piece is in: the last that does not begin after it.

    Args:
        starts: RaggedTensor int32 [batch, None], where pieces begin, in bytes.
        word_starts: the same of the words, ascending; the first begins no later than the first piece.
        text: string [batch].

    Returns:
        int64 [pieces]: the place in `word_starts.values`.
    """
    begins = tf.cumsum(tf.strings.length(text) + 1, exclusive=True)  # of each text, were they one
    pieces, words = (offsets.values + tf.gather(begins, offsets.value_rowids()) for offsets in (starts, word_starts))
    return tf.searchsorted(words, pieces, side="right", out_type=tf.int64) - 1


def characters(text, rows, offsets):
    """Byte offsets as numbers of characters.

    Args:
        text: string [batch], UTF-8.
        rows: int64 [n], the text that each offset is in.
        offsets: int32 [n], where characters begin, or the end of the text.

    Returns:
        int32 [n].
    """
    begins = tf.gather(tf.cumsum(tf.strings.length(text), exclusive=True), rows)
    data = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
    opens = tf.bitwise.bitwise_and(data, 0xC0) != 0x80  # others go on with a character
    before = tf.cumsum(tf.cast(tf.pad(opens, [[0, 1]]), tf.int32), exclusive=True)  # the texts may be large
    return tf.gather(before, begins + offsets) - tf.gather(before, begins)


def _holds_space(text, firsts, lasts, of):
    """bool [pieces]: whether there is white space from one byte to another, where `of`; else anything.

    Args:
        text: string [batch].
        firsts, lasts: RaggedTensors int32 [batch, None].
        of: bool [pieces].
    """
    at_once = _is_among(_code_points(text, firsts), space_codes())

    def searched():
        codes, offsets = tf.strings.unicode_decode_with_offsets(text, "UTF-8")
        spaces = tf.ragged.boolean_mask(offsets, codes.with_values(_is_among(codes.values, space_codes())))
        begins = tf.cumsum(tf.strings.length(text) + 1, exclusive=True)  # of each text, were they one
        spaces = tf.cast(spaces.values, tf.int32) + tf.gather(begins, spaces.value_rowids())
        first, last = (ends.values + tf.gather(begins, ends.value_rowids()) for ends in (firsts, lasts))
        return tf.searchsorted(spaces, first) < tf.searchsorted(spaces, last)

    return tf.cond(tf.reduce_all(at_once | ~of), lambda: at_once, searched)


def _code_points(text, offsets):
    """int32 [pieces]: the character that begins at each of these bytes, RaggedTensor [batch, None]; 0 behind all."""
    begins = tf.cumsum(tf.strings.length(text), exclusive=True)
    data = tf.io.decode_raw(tf.strings.reduce_join(text) + "\0\0\0\0", tf.uint8)
    at = offsets.values + tf.gather(begins, offsets.value_rowids())
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


def _is_among(codes, some):
    """bool like int32 `codes`; `some` is ascending."""
    some = tf.constant(some)
    nearest = tf.minimum(tf.searchsorted(some, codes), some.shape[0] - 1)
    return tf.gather(some, nearest) == codes


def _is_ideograph(codes):
    return tf.reduce_any([(codes >= first) & (codes <= last) for first, last in CJK_RANGES], 0)


def spans(text, rows, starts, ends):
    """Parts of texts, from bytes.

    Args:
        text: string [batch], UTF-8.
        rows: int64 [n], the text that each part is of.
        starts, ends: int32 [n].

    Returns:
        dict of text, string, and start and end, int32, in characters; each [n].
    """
    # Not tf.strings.substr: it would copy the whole text for every part. Nor bytes_split: a string is 24 bytes.
    begins = tf.gather(tf.cumsum(tf.strings.length(text), exclusive=True), rows)
    offsets = tf.ragged.range(begins + starts, begins + ends)
    data = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
    letters = tf.gather(tf.constant(_BYTES), tf.cast(tf.gather(data, offsets.values), tf.int32))
    start, end = tf.split(characters(text, tf.tile(rows, [2]), tf.concat([starts, ends], 0)), 2)
    found = tf.strings.unsorted_segment_join(letters, offsets.value_rowids(), tf.size(rows))
    return {"text": found, "start": start, "end": end}


def _first_of_row(ragged):
    """bool [values]: the first of each row."""
    rows = ragged.value_rowids()
    return rows != _shifted(rows, -1)


def _shifted(values, first):
    """Each value's forerunner; `first` for the one that has none."""
    return tf.concat([tf.fill([1], tf.cast(first, values.dtype)), values], 0)[:-1]


def _numbered(ragged, begins):
    """RaggedTensor int64 like `ragged`: how many have begun in the row so far, less one; its first value must begin."""
    number = tf.cumsum(tf.cast(begins, tf.int64))
    of_first = tf.gather(number, tf.gather(ragged.row_starts(), ragged.value_rowids()))
    return ragged.with_values(number - of_first)
