"""Documents cut into sequences: pairs of segments (BERT, section 3.1, task 2) or full sentences (RoBERTa)."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.types import Tensors

# As `BaseTokenizer.pack`.
Pack: TypeAlias = Callable[..., tuple[tf.RaggedTensor, tf.RaggedTensor]]

_LARGEST_INT32 = 2**31 - 1
# Documents and tokens that are read to see what a corpus is like: a second at most.
_SAMPLED_DOCUMENTS, _SAMPLED_TOKENS = 1000, 100_000
# Shares of the sample from which on a line says so.
_MOST_SINGLE, _MOST_CUT = 0.5, 0.1


def first_documents(documents: tf.data.Dataset) -> list[tf.RaggedTensor]:
    """A sample: the first blocks of documents, which show what a corpus is like; at least two documents, if it has two.

    Args:
        documents: Dataset of blocks of documents, RaggedTensors [num_documents, None, None].
    """
    blocks, count, tokens = list[tf.RaggedTensor](), 0, 0
    for block in documents:
        blocks.append(block)
        count, tokens = count + int(block.nrows()), tokens + int(tf.size(block.flat_values))
        if count >= _SAMPLED_DOCUMENTS or (count > 1 and tokens >= _SAMPLED_TOKENS):
            break
    return blocks


def check_documents(blocks: Iterable[tf.RaggedTensor], pairs: str = "nsp") -> None:
    """Raises a DataError if the corpus has too few documents.

    Args:
        blocks: as `first_documents` returns them.
        pairs: "nsp" needs two documents, "sop" and "none" need one.
    """
    count = sum(int(block.nrows()) for block in blocks)
    if not count:
        raise DataError("the corpus has no text, expected documents separated by blank lines; add text")
    if count < 2 and pairs == "nsp":
        raise DataError(
            "the corpus has only one document, but next-sentence prediction needs at least two documents; add text,"
            ' separate documents by blank lines, set the layout to "documents" if each line is a document, or set'
            " data.pairs=sop or none"
        )


def unfit_for_pairs(blocks: Iterable[tf.RaggedTensor], max_tokens: int) -> str:
    """Says in a few words why the pairs of a corpus will be bad; "" if they will not.

    A document of one sentence has no second segment, so it always gets one of another document, and a model that always
    answers so is right. Sentences that are longer than a pair lose the rest.

    Args:
        blocks: as `first_documents` returns them.
        max_tokens: as for `sentence_pairs`.
    """
    count = single = tokens = lost = 0
    for block in blocks:
        lengths = block.values.row_lengths().numpy()
        sentences = tf.math.segment_sum(tf.cast(lengths > 0, tf.int32), block.value_rowids())
        count += int(tf.math.count_nonzero(sentences))
        single += int(tf.math.count_nonzero(sentences == 1))
        tokens += int(lengths.sum())
        lost += int(np.maximum(lengths - max_tokens, 0).sum())
    problems = []
    if single > _MOST_SINGLE * count:
        problems.append(f"{single / count:.0%} have a single sentence, so that their pairs always have label 1")
    if lost > _MOST_CUT * tokens:
        problems.append(f"{lost / tokens:.0%} of the tokens are beyond the {max_tokens} of a pair and cut off")
    return f"of the first {count:,} documents, {' and '.join(problems)}" if problems else ""


def sentence_pairs(
    documents: tf.data.Dataset,
    seed: tf.Tensor,
    *,
    max_tokens: int,
    short_sequence_rate: float = 0.1,
    group_size: int = 1000,
    swap: bool = False,
) -> tf.data.Dataset:
    """Cuts documents into pairs of segments by all rules of google-research/bert's create_pretraining_data.py.

    A document has a target length for its pairs: `max_tokens` or, with probability `short_sequence_rate`, a length
    drawn from [2, max_tokens]. Sentences are collected up to that length, and the chunk is split at a random sentence.
    The second segment is either the rest of the chunk (label 0) or, with probability 0.5 and always if the chunk is a
    single sentence, text from a random position in another document (label 1); the rest of the chunk is then used
    again for the next pair. Pairs that are still too long lose tokens of the longer segment, at its front or back at
    random. Documents are processed in groups: a group's pairs come in random order, and random second segments come
    from the same group. If the last group is a single document, all its pairs have label 0.

    With `swap`, the label is ALBERT's sentence order (Lan et al., 2020, section 3.1) by the rules of its
    create_pretraining_data.py: with probability 0.5 the two segments are swapped (label 1), and only a chunk of a
    single sentence, which has no order, still gets a random second segment (also label 1).

    Args:
        documents: Dataset of blocks of documents, RaggedTensors int32 [num_documents, None, None], token ids; empty
            sentences are skipped.
        seed: integer [2], stateless: the same seed gives the same pairs in the same order.
        max_tokens: maximum number of tokens in both segments together: the model's length minus the special tokens.
        short_sequence_rate: fraction of documents with a shorter target length.
        group_size: maximum number of documents per group. Memory holds the tokens of two or three groups.
        swap: label 1 is a pair in the wrong order instead of a random second segment.

    Returns:
        Dataset of groups for `in_batches`, with labels int32 [pairs].
    """

    def pair(group: tf.Tensor, documents: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        tokens, bounds, limits = _flatten(documents)
        group_seed = tf.random.fold_in(seed, group)
        plan_seed, cut_seed, order_seed = tf.unstack(tf.random.split(group_seed, 3))
        ranges, labels = _plan_pairs(bounds, limits, plan_seed, max_tokens, short_sequence_rate, swap)
        ranges = _cut_to(max_tokens, ranges, cut_seed)
        order = _random_order(tf.size(labels), order_seed)
        return tokens, tf.gather(ranges, order), tf.gather(labels, order)

    return documents.unbatch().batch(group_size).enumerate().map(pair)


def full_sentences(
    documents: tf.data.Dataset,
    seed: tf.Tensor,
    *,
    max_tokens: int,
    sep_id: int,
    group_size: int = 1000,
    cut: bool = False,
) -> tf.data.Dataset:
    """Fills sequences with consecutive full sentences, across documents: RoBERTa's FULL-SENTENCES.

    Liu et al., 2019 (arXiv:1907.11692), section 4.2: sentences are added one after the other while they fit, with an
    extra separator between documents. A sentence of more than `max_tokens` tokens is cut into parts of that length.
    Documents are shuffled within their group before they are joined, and a group's sequences come in random order. The
    last sequence of a group continues with the next group's text, so only the very last sequence can be short for lack
    of text. Inside of long documents most sequences are the same in every epoch, because sequences that begin at
    different sentences soon end at the same one; with `cut` they are not.

    With `cut`, every sequence but the last one has `max_tokens` tokens: a sentence that does not fit is cut where the
    sequence ends and continues in another one, as with `--sample-break-mode none` of RoBERTa's own program (fairseq).

    Args:
        documents: Dataset of blocks of documents, RaggedTensors int32 [num_documents, None, None], token ids; empty
            sentences are skipped.
        seed: integer [2], stateless: the same seed gives the same sequences in the same order.
        max_tokens: maximum number of tokens in a sequence: the model's length minus the special tokens around it.
        sep_id: id of the separator between documents.
        group_size: maximum number of documents per group. Memory holds the tokens of two or three groups.
        cut: sequences end when they are full instead of at the end of a sentence.

    Returns:
        Dataset of groups for `in_batches`.
    """

    def fill(
        rest: tf.Tensor, number: tf.Tensor, group: tf.RaggedTensor, is_last: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        document_seed, order_seed = tf.unstack(tf.random.split(tf.random.fold_in(seed, number), 2))
        documents = tf.gather(group, _random_order(group.nrows(), document_seed))
        # The rest of the previous group starts the first sequence, like a document of one sentence.
        rest = tf.RaggedTensor.from_nested_row_lengths(rest, [[1], [tf.size(rest, tf.int64)]], validate=False)
        tokens, bounds, limits = _flatten(tf.concat([rest, documents], axis=0))
        joined = _join_documents(tokens, bounds, limits, sep_id)
        ranges = _equal_ranges(tf.size(joined), max_tokens) if cut else _sentence_ranges(bounds, limits, max_tokens)
        count = tf.shape(ranges)[0]
        whole = tf.where(is_last, count, tf.maximum(count - 1, 0))
        unfinished = tf.concat([ranges[whole:], [[0, 0]]], axis=0)[0]
        ranges = tf.gather(ranges, _random_order(whole, order_seed))
        return joined[unfinished[0] : unfinished[1]], (joined, ranges)

    # The empty group at the end closes the last sequence.
    empty = tf.RaggedTensor.from_nested_row_lengths(tf.zeros([0], tf.int32), [tf.zeros([0], tf.int64)] * 2)
    groups = documents.unbatch().batch(group_size).enumerate().map(lambda number, group: (number, group, False))
    end = tf.data.Dataset.from_tensors((tf.constant(0, tf.int64), empty, True))
    # Of unknown length, so that `fill` is not traced again.
    nothing = tf.compat.v1.placeholder_with_default(tf.zeros([0], tf.int32), [None])
    return groups.concatenate(end).scan(nothing, lambda rest, element: fill(rest, *element))


def in_batches(groups: tf.data.Dataset, batch_size: int | tf.Tensor, pack: Pack) -> tf.data.Dataset:
    """Makes batches of sequences with special tokens, across groups.

    Args:
        groups: Dataset of tuples: tokens int32 [num_tokens]; ranges int32 [sequences, 2 for each segment], [start, end)
            of each segment in the tokens; for pairs also labels int32 [sequences].
        batch_size: sequences per batch; only the last batch has fewer.
        pack: adds the special tokens to the segments, as `BaseTokenizer.pack`.

    Returns:
        Dataset of batches, dicts: "ids" and "types" RaggedTensors int32 [batch, None], as packed; for pairs also
        "labels" int32 [batch].
    """
    spec = groups.element_spec
    empty = tuple(tf.zeros([0, *part.shape[1:]], part.dtype) for part in spec)
    size = tf.cast(batch_size, tf.int64)
    segments_per_row = spec[1].shape[1] // 2

    def complete(rest: tuple[tf.Tensor, ...], group: tuple[tf.Tensor, ...]) -> tuple[Any, Any]:
        """Adds the sequences that remained of the previous group, and keeps those that do not fill a batch."""
        *parts, is_last = group
        tokens, ranges = tf.concat([rest[0], parts[0]], 0), tf.concat([rest[1], parts[1] + tf.size(rest[0])], 0)
        labels = [tf.concat(both, 0) for both in zip(rest[2:], parts[2:], strict=True)]
        count = tf.shape(ranges)[0]
        used = tf.where(is_last, count, count - count % tf.cast(size, tf.int32))
        left = tf.reshape(ranges[used:], [-1, 2])
        positions = tf.ragged.range(left[:, 0], left[:, 1])
        left = tf.stack([positions.row_starts(), positions.row_limits()], axis=1)
        rest = tf.gather(tokens, positions.values), tf.reshape(tf.cast(left, tf.int32), [-1, 2 * segments_per_row])
        return (*rest, *(of[used:] for of in labels)), (tokens, ranges[:used], *(of[:used] for of in labels))

    def cut(tokens: tf.Tensor, ranges: tf.Tensor, *labels: tf.Tensor) -> tf.data.Dataset:
        def batch(start: tf.Tensor) -> Tensors:
            bounds = tf.split(ranges[start : start + size], segments_per_row, axis=1)
            positions = [tf.ragged.range(*tf.unstack(segment, axis=1)) for segment in bounds]
            ids, types = pack(*(at.with_values(tf.gather(tokens, at.values)) for at in positions))
            return {"ids": ids, "types": types} | ({"labels": labels[0][start : start + size]} if labels else {})

        return tf.data.Dataset.range(0, tf.shape(ranges, tf.int64)[0], size).map(batch)

    end = tf.data.Dataset.from_tensors((*empty, True))
    groups = groups.map(lambda *group: (*group, False)).concatenate(end).scan(empty, complete)
    # The next group is prepared while the current one is used.
    return groups.prefetch(1).flat_map(cut)


def _join_documents(tokens: tf.Tensor, bounds: tf.Tensor, limits: tf.Tensor, sep_id: int) -> tf.Tensor:
    """Tokens of all documents with a separator between them; `tokens`, `bounds`, `limits` are those of `_flatten`."""
    documents = tf.RaggedTensor.from_row_splits(tokens, tf.gather(bounds, limits), validate=False)
    separators = tf.fill([documents.nrows(tf.int32), 1], sep_id)
    return tf.concat([documents, separators], axis=1).values[:-1]


def _equal_ranges(count: tf.Tensor, length: int) -> tf.Tensor:
    """Ranges of `length` tokens, [start, end), that cover `count`: int32 [num_rows, 2]; the last may be shorter."""
    starts = tf.range(0, count, length)
    return tf.stack([starts, tf.minimum(starts + length, count)], axis=1)


def _sentence_ranges(bounds: tf.Tensor, limits: tf.Tensor, max_tokens: int) -> tf.Tensor:
    """Computes where each sequence of `full_sentences` begins and ends.

    Args:
        bounds, limits: as `_flatten` returns them.

    Returns:
        int32 [num_rows, 2], ranges [start, end) in the tokens of the joined documents.
    """
    lengths = bounds[1:] - bounds[:-1]
    document = tf.searchsorted(limits, tf.range(tf.size(lengths)), side="right") - 1  # of each sentence
    counts = -(-lengths // max_tokens)  # parts of each sentence; more than one only if it is too long
    part = tf.range(tf.reduce_sum(counts)) - tf.repeat(tf.cumsum(counts, exclusive=True), counts)
    # A document's number is also the number of separators before it.
    starts = tf.repeat(bounds[:-1] + document, counts) + part * max_tokens
    ends = tf.minimum(starts + max_tokens, tf.repeat(bounds[1:] + document, counts))
    following = tf.searchsorted(ends, starts + max_tokens, side="right")  # the first part that no longer fits

    # The rows are a walk along `following`. Doubling the step doubles the number of rows per iteration.
    count = tf.size(starts)
    rows, _ = tf.while_loop(
        lambda rows, steps: rows[-1] < count,
        lambda rows, steps: (tf.concat([rows, tf.gather(steps, rows)], axis=0), tf.gather(steps, steps)),
        (tf.constant([0]), tf.concat([following, [count]], axis=0)),
        shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None])),
    )
    rows = rows[rows < count]
    return tf.stack([tf.gather(starts, rows), tf.gather(ends, tf.gather(following, rows) - 1)], axis=1)


def _random_order(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return tf.argsort(tf.random.stateless_uniform([count], seed))


def _flatten(documents: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Flattens a group of documents to vectors, without empty sentences and documents.

    Args:
        documents: RaggedTensor int32 [num_documents, None, None].

    Returns:
        tokens: int32 [num_tokens].
        bounds: int32 [num_sentences + 1]; sentence s is tokens[bounds[s]:bounds[s + 1]].
        limits: int32 [num_documents + 1]; document d is the sentences from limits[d] to limits[d + 1] - 1.
    """
    sentences = documents.values
    lengths = tf.cast(sentences.row_lengths(), tf.int32)
    used = lengths > 0
    # [documents up to the last with sentences]
    counts = tf.math.segment_sum(tf.cast(used, tf.int32), documents.value_rowids())
    bounds = tf.cumsum(lengths[used])
    limits = tf.cumsum(counts[counts > 0])
    return sentences.values, tf.concat([[0], bounds], axis=0), tf.concat([[0], limits], axis=0)


def _plan_pairs(
    bounds: tf.Tensor,
    limits: tf.Tensor,
    seed: tf.Tensor,
    max_tokens: int,
    short_sequence_rate: float,
    swap: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Chooses the segments of each pair.

    Every iteration of the loop makes one pair from each document that is not used up. So the document with the most
    pairs decides the number of iterations. No single sentence costs work of its own, because chunks are found by
    bisection in the cumulative lengths.

    Args:
        bounds, limits: as `_flatten` returns them.

    Returns:
        ranges: int32 [num_pairs, 4]; the segments are the tokens [r0, r1) and [r2, r3).
        labels: int32 [num_pairs].
    """
    num_documents = tf.size(limits) - 1
    target_seed, loop_seed = tf.unstack(tf.random.split(seed, 2))
    draws = _draw([2, num_documents], target_seed)
    # One target per document, as in the reference.
    short = tf.cast(draws[0], tf.float64) < short_sequence_rate * 2.0**31
    targets = tf.where(short, 2 + draws[1] % (max_tokens - 1), max_tokens)

    def reach(start: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """The first sentence boundary at least `length` tokens after the boundary `start`; may be past the end."""
        return tf.searchsorted(bounds, tf.gather(bounds, start) + length)

    def make_pairs(
        step: tf.Tensor, document: tf.Tensor, start: tf.Tensor, pairs: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.TensorArray]:
        draws = _draw([4, tf.size(document)], tf.random.fold_in(loop_seed, step))
        target = tf.gather(targets, document)
        end = tf.minimum(reach(start, target), tf.gather(limits, document + 1))
        size = end - start
        middle = start + tf.where(size == 1, 1, 1 + draws[0] % tf.maximum(size - 1, 1))
        coin = draws[1] % 2 == 0
        random_next = (num_documents > 1) & ((size == 1) | (coin & (not swap)))
        swapped = (size > 1) & coin & swap

        other = draws[2] % tf.maximum(num_documents - 1, 1)
        other += tf.cast((other >= document) & (num_documents > 1), tf.int32)
        other_start, other_limit = tf.gather(limits, other), tf.gather(limits, other + 1)
        random_start = other_start + draws[3] % (other_limit - other_start)
        # At least one sentence, even if the first segment alone reaches the target.
        missing = target - (tf.gather(bounds, middle) - tf.gather(bounds, start))
        random_end = tf.minimum(tf.maximum(reach(random_start, missing), random_start + 1), other_limit)

        second_start = tf.where(random_next, random_start, middle)
        second_end = tf.where(random_next, random_end, end)
        first, second = tf.stack([start, middle], axis=1), tf.stack([second_start, second_end], axis=1)
        segments = tf.where(swapped[:, tf.newaxis], tf.concat([second, first], 1), tf.concat([first, second], 1))
        label = tf.cast(random_next | swapped, tf.int32)[:, tf.newaxis]
        pairs = pairs.write(step, tf.concat([tf.gather(bounds, segments), label], axis=1))
        # The sentences that a random segment replaced are used again.
        start = tf.where(random_next, middle, end)
        left = start < tf.gather(limits, document + 1)
        return step + 1, document[left], start[left], pairs

    _, _, _, pairs = tf.while_loop(
        lambda step, document, start, pairs: tf.size(document) > 0,
        make_pairs,
        (
            0,
            tf.range(num_documents),
            limits[:-1],
            tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[None, 5], infer_shape=False),
        ),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None]), None),
        parallel_iterations=1,
    )
    pairs = pairs.concat()
    # A lone document has no partner for a chunk of a single sentence.
    pairs = pairs[pairs[:, 3] > pairs[:, 2]]
    return pairs[:, :4], pairs[:, 4]


def _cut_to(max_tokens: int, ranges: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Shortens pairs to `max_tokens`: the reference's loop over single tokens in closed form.

    The reference removes a token from the longer segment, on a tie from the second, and from that segment's front or
    back with equal probability.

    Args:
        ranges: int32 [num_pairs, 4].

    Returns:
        int32 [num_pairs, 4].
    """
    first, second = ranges[:, 1] - ranges[:, 0], ranges[:, 3] - ranges[:, 2]
    excess = tf.maximum(first + second - max_tokens, 0)
    from_longer = tf.minimum(excess, tf.abs(first - second))
    rest = excess - from_longer  # removed from equally long segments in turn, from the second one first
    off_first = rest // 2 + tf.where(first > second, from_longer, 0)
    off_second = excess - off_first
    off = tf.stack([off_first, off_second], axis=1)
    front = tf.random.stateless_binomial(tf.shape(off), seed, tf.cast(off, tf.float32), 0.5, output_dtype=tf.int32)
    back = off - front
    return ranges + tf.stack([front[:, 0], -back[:, 0], front[:, 1], -back[:, 1]], axis=1)


def _draw(shape: list[int | tf.Tensor], seed: tf.Tensor) -> tf.Tensor:
    """Uniform int32 in [0, 2**31), the same on every machine."""
    bits = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox")
    return tf.bitwise.bitwise_and(bits, _LARGEST_INT32)
