"""Documents -> pairs of segments for next-sentence prediction (BERT, section 3.1, task 2)."""

import tensorflow as tf

from bert_tf.errors import DataError

_LARGEST_INT32 = 2**31 - 1


def check_documents(documents):
    """Refuses a corpus in which no second part from another document can be found; reads two documents.

    Args:
        documents: Dataset of string tensors [num_sentences], as `readers.read_documents` gives.

    Raises:
        DataError: fewer than two documents.
    """
    count = len(list(documents.take(2)))
    if count < 2:
        found = "one document only" if count else "no text at all"
        raise DataError(
            f"the corpus holds {found}, but next-sentence prediction needs at least two documents; add text, separate"
            ' documents by blank lines, or set the layout to "documents" where each line is a document'
        )


def sentence_pairs(documents, seed, *, max_tokens, short_sequence_rate=0.1, group_size=1000):
    """Cuts documents into pairs of segments by all rules of google-research/bert's create_training_data.py.

    A document aims at pairs of `max_tokens` tokens or, at `short_sequence_rate`, at a length drawn from
    [2, max_tokens]. Sentences are collected up to that length; the chunk is cut at a random sentence. The second part
    either is what follows (label 0) or, at even odds and always where the chunk is a single sentence, comes from a
    random place of another document (label 1), and the sentences that followed are used again for the next pair. Pairs
    that are still too long lose tokens of the longer part, at its front or back at random. Documents are taken in
    groups; a group's pairs come in random order, and its random second parts come from the same group. Where the last
    group is one document, all its pairs are label 0.

    Args:
        documents: Dataset of RaggedTensors int32 [num_sentences, None], token ids; empty sentences are passed over.
        seed: integer [2], stateless: the same seed gives the same pairs in the same order.
        max_tokens: tokens of both segments together, at most: the model's length less [CLS] and two [SEP].
        short_sequence_rate: share of documents that aim at shorter pairs.
        group_size: documents a group, at most. Memory holds the tokens of two or three groups.

    Returns:
        tf.data.Dataset of dicts: "first" int32 [n], "second" int32 [m], "next_sentence_label" int32 [].
    """

    def pair(group, documents):
        tokens, bounds, limits = _flatten(documents)
        group_seed = tf.random.fold_in(seed, group)
        plan_seed, cut_seed, order_seed = tf.unstack(tf.random.split(group_seed, 3))
        ranges, labels = _plan_pairs(bounds, limits, plan_seed, max_tokens, short_sequence_rate)
        ranges = _cut_to(max_tokens, ranges, cut_seed)
        order = tf.argsort(tf.random.stateless_uniform(tf.shape(labels), order_seed))
        return tokens, tf.gather(ranges, order), tf.gather(labels, order)

    def look_up(tokens, ranges, labels):
        def examples(bounds, label):
            first = tokens[bounds[0] : bounds[1]]
            second = tokens[bounds[2] : bounds[3]]
            return {"first": first, "second": second, "next_sentence_label": label}

        return tf.data.Dataset.from_tensor_slices((ranges, labels)).map(examples)

    # The next group is prepared while one is used.
    groups = documents.ragged_batch(group_size).enumerate().map(pair).prefetch(1)
    return groups.flat_map(look_up)


def _flatten(documents):
    """A group of documents as flat vectors, without empty sentences and documents.

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
    counts = tf.math.segment_sum(tf.cast(used, tf.int32), documents.value_rowids())  # [documents up to the last full]
    bounds = tf.cumsum(lengths[used])
    limits = tf.cumsum(counts[counts > 0])
    return sentences.values, tf.concat([[0], bounds], axis=0), tf.concat([[0], limits], axis=0)


def _plan_pairs(bounds, limits, seed, max_tokens, short_sequence_rate):
    """Decides what goes into each pair.

    Every turn of the loop makes one pair of each document that is not used up: as many turns as the longest document
    has pairs, and no work for each single sentence, because chunks are found by bisection in the sums of lengths.

    Args:
        bounds, limits: as `_flatten` gives.

    Returns:
        ranges: int32 [num_pairs, 4]: first and second part are the tokens [r0, r1) and [r2, r3).
        labels: int32 [num_pairs].
    """
    num_documents = tf.size(limits) - 1
    target_seed, loop_seed = tf.unstack(tf.random.split(seed, 2))
    draws = _draw([2, num_documents], target_seed)
    # As the reference does: one target a document.
    short = tf.cast(draws[0], tf.float64) < short_sequence_rate * 2.0**31
    targets = tf.where(short, 2 + draws[1] % (max_tokens - 1), max_tokens)

    def reach(start, length):
        """The first sentence boundary at least `length` tokens after the boundary `start`, perhaps past the end."""
        return tf.searchsorted(bounds, tf.gather(bounds, start) + length)

    def turn(step, document, start, pairs):
        draws = _draw([4, tf.size(document)], tf.random.fold_in(loop_seed, step))
        target = tf.gather(targets, document)
        end = tf.minimum(reach(start, target), tf.gather(limits, document + 1))
        size = end - start
        middle = start + tf.where(size == 1, 1, 1 + draws[0] % tf.maximum(size - 1, 1))
        random_next = (num_documents > 1) & ((size == 1) | (draws[1] % 2 == 0))

        other = draws[2] % tf.maximum(num_documents - 1, 1)
        other += tf.cast((other >= document) & (num_documents > 1), tf.int32)
        other_start, other_limit = tf.gather(limits, other), tf.gather(limits, other + 1)
        random_start = other_start + draws[3] % (other_limit - other_start)
        # At least one sentence, also where the first part alone reaches the target.
        missing = target - (tf.gather(bounds, middle) - tf.gather(bounds, start))
        random_end = tf.minimum(tf.maximum(reach(random_start, missing), random_start + 1), other_limit)

        second_start = tf.where(random_next, random_start, middle)
        second_end = tf.where(random_next, random_end, end)
        made = tf.concat(
            [
                tf.gather(bounds, tf.stack([start, middle, second_start, second_end], axis=1)),
                tf.cast(random_next, tf.int32)[:, tf.newaxis],
            ],
            axis=1,
        )
        pairs = pairs.write(step, made)
        # The sentences that a random part displaced are used again.
        start = tf.where(random_next, middle, end)
        left = start < tf.gather(limits, document + 1)
        return step + 1, document[left], start[left], pairs

    _, _, _, pairs = tf.while_loop(
        lambda step, document, start, pairs: tf.size(document) > 0,
        turn,
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


def _cut_to(max_tokens, ranges, seed):
    """Shortens pairs to `max_tokens`: the reference's loop over single tokens in closed form.

    The reference takes a token from the longer part, on a tie from the second, and from that part's front or back at
    even odds.

    Args:
        ranges: int32 [num_pairs, 4].

    Returns:
        int32 [num_pairs, 4].
    """
    first, second = ranges[:, 1] - ranges[:, 0], ranges[:, 3] - ranges[:, 2]
    excess = tf.maximum(first + second - max_tokens, 0)
    from_longer = tf.minimum(excess, tf.abs(first - second))
    rest = excess - from_longer  # taken from equal parts in turn, the second part first
    off_first = rest // 2 + tf.where(first > second, from_longer, 0)
    off_second = excess - off_first
    off = tf.stack([off_first, off_second], axis=1)
    front = tf.random.stateless_binomial(tf.shape(off), seed, tf.cast(off, tf.float32), 0.5, output_dtype=tf.int32)
    back = off - front
    return ranges + tf.stack([front[:, 0], -back[:, 0], front[:, 1], -back[:, 1]], axis=1)


def _draw(shape, seed):
    """Uniform int32 in [0, 2**31), the same on every machine."""
    bits = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox")
    return tf.bitwise.bitwise_and(bits, _LARGEST_INT32)
