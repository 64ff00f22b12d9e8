"""Attention of long rows without a matrix [length, length]: `local` cuts them into bands, and `of_all` computes the
scores of some queries at a time.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model.compute import AttentionForm
from bert_tf.model.dropout import Dropout
from bert_tf.model.mode import Seeds, computing, current, fold_in
from bert_tf.model.positions import MASKED_SCORE

# Rows up to this length are not cut: what the parts save is less than what they cost.
UNCUT = 512
# Scores that `of_all` computes at a time: these stay in a processor's cache.
_SCORES = 2**21
_FEWEST = 16  # queries


class Bands:
    """Rows of one length, cut into bands of twice as many tokens as each of them reaches to either side.

    Every band is a row of its own, whose keys are its tokens and those that these reach before and after it.

    Args:
        length: int32 [], of the rows.
        distance: how far a token reaches.
    """

    WHOLE = 4  # distances that a band's keys have

    def __init__(self, length: tf.Tensor, distance: int) -> None:
        # Rows that are no longer than the keys of a band would be, are one band.
        is_whole = length <= self.WHOLE * distance
        self._length = length
        self._size = tf.where(is_whole, length, 2 * distance)
        self._margin = tf.where(is_whole, 0, distance)
        self._count = _parts(length, self._size)

    def of_queries(self, states: tf.Tensor) -> tf.Tensor:
        """[batch, length, size] -> [batch * bands, tokens of a band, size]."""
        return tf.reshape(self._padded(states), tf.stack([-1, self._size, states.shape[-1]]))

    def of_keys(self, states: tf.Tensor) -> tf.Tensor:
        """[batch, length, size] -> [batch * bands, keys of a band, size]; zeros before and after the row."""
        shape = [tf.shape(states)[0], self._count, self._size, states.shape[-1]]
        bands = tf.reshape(self._padded(states), tf.stack(shape))
        last, first = bands[:, :-1, self._size - self._margin :], bands[:, 1:, : self._margin]
        before = tf.pad(last, [[0, 0], [1, 0], [0, 0], [0, 0]])
        after = tf.pad(first, [[0, 0], [0, 1], [0, 0], [0, 0]])
        keys = self._size + 2 * self._margin
        return tf.reshape(tf.concat([before, bands, after], 2), tf.stack([-1, keys, states.shape[-1]]))

    def back(self, states: tf.Tensor) -> tf.Tensor:
        """The inverse of `of_queries`, from all rows [rows, size]."""
        rows = tf.reshape(states, tf.stack([-1, self._count * self._size, states.shape[-1]]))
        return rows[:, : self._length]

    @property
    def positions(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Those of the queries and of the keys of a band, from its first key: int32 [1, tokens], [1, keys]."""
        keys = tf.range(self._size + 2 * self._margin)
        return tf.expand_dims(keys[self._margin : self._margin + self._size], 0), tf.expand_dims(keys, 0)

    def _padded(self, states: tf.Tensor) -> tf.Tensor:
        """[batch, length, size] -> [batch, bands * tokens of a band, size]."""
        return tf.pad(states, [[0, 0], [0, self._count * self._size - self._length], [0, 0]])


def is_long(config: BertConfig) -> bool:
    """Whether the encoder's rows can be so long that they are cut."""
    return config.max_position_embeddings > UNCUT


def num_keys(length: float, config: BertConfig, layer: int) -> float:
    """With how many positions of a row this layer compares each one."""
    return min(length, Bands.WHOLE * config.local_distance) if layer in config.local_layers else length


def _parts(length: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """How many parts of this size a row has. Not by negative numbers, which ONNX divides in another way."""
    return (length + size - 1) // size


def score_bias(
    queries: tuple[tf.Tensor, tf.Tensor], keys: tuple[tf.Tensor, tf.Tensor], distance: int | None, causal: bool
) -> tf.Tensor:
    """What is added to the scores of some queries and keys: float32 [batch, 1, queries, keys], 0 where a query may
    attend to a key, a large negative number elsewhere.

    Args:
        queries, keys: each (number of the sequence, 0 at padding, [batch, n]; position [1, n]).
        distance: how far a token reaches; None for the whole row.
        causal: whether tokens attend to none that follows.
    """
    (query_sequence, query_position), (key_sequence, key_position) = queries, keys
    seen = tf.expand_dims(query_sequence, 2) == tf.expand_dims(key_sequence, 1)
    after = tf.expand_dims(query_position, 2) - tf.expand_dims(key_position, 1)
    if distance is not None:
        seen &= tf.abs(after) <= distance
    if causal:
        seen &= after >= 0
    return tf.expand_dims(tf.where(seen, 0.0, MASKED_SCORE), 1)


def local(
    attention: AttentionForm,
    heads: Callable[[tf.Tensor, tf.Tensor], list[tf.Tensor]],
    qkv: tf.Tensor,
    mask: tf.Tensor,
    distance: int,
    causal: bool,
    dropout: Dropout | None,
) -> tf.Tensor:
    """Attention to the tokens near each token.

    Args:
        attention: how it is computed.
        heads: from columns of `qkv`, [rows, length, columns], and positions [1, length] to query, key and value, or
            some of them, each [rows, heads, length, head_size].
        qkv: query, key and value: [batch, length, 3 * heads * head_size].
        mask: int32 [batch, length], the number of each token's sequence, 0 at padding.
        distance: how far a token reaches.
        causal: whether tokens attend to none that follows.
        dropout: of the probabilities, in training.

    Returns:
        [batch, length, heads * head_size].
    """
    bands, width = Bands(tf.shape(qkv)[1], distance), qkv.shape[-1] // 3
    query, others = qkv[:, :, :width], qkv[:, :, width:]
    at_query, at_key = bands.positions
    (query,) = heads(bands.of_queries(query), at_query)
    key, value = heads(bands.of_keys(others), at_key)
    numbers = tf.expand_dims(mask, 2)
    of_query, of_key = (tf.squeeze(part(numbers), 2) for part in (bands.of_queries, bands.of_keys))
    bias = score_bias((of_query, at_query), (of_key, at_key), distance, causal)
    return bands.back(side_by_side(attention(query, key, value, bias, dropout)))


def side_by_side(heads: tf.Tensor) -> tf.Tensor:
    """[batch, heads, length, head_size] -> [batch * length, heads * head_size]."""
    return tf.reshape(tf.transpose(heads, [0, 2, 1, 3]), [-1, heads.shape[1] * heads.shape[3]])


def of_all(
    attention: AttentionForm,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    seen: tf.Tensor,
    dropout: Dropout | None,
    *,
    causal: bool,
) -> tf.Tensor:
    """Attention to whole rows: where these are long, for some queries at a time, whose scores the backward pass
    computes again.

    Args:
        attention: how it is computed.
        query, key, value: [batch, heads, length, head_size].
        seen: what is added to the scores, [batch, 1, 1, length]; or, where that depends on the query, the number of
            each token's sequence, 0 at padding, int32 [batch, length].
        dropout: of the probabilities, in training.
        causal: whether tokens attend to none that follows.
    """

    def whole() -> tf.Tensor:
        return attention(query, key, value, _bias(seen, seen, tf.constant(0), causal), dropout)

    def cut() -> tf.Tensor:
        return _InParts(attention, dropout, causal)(query, key, value, seen)

    if current().whole_rows:
        return whole()
    if query.shape[2] is None and current().inference:
        return tf.cond(tf.shape(query)[2] <= UNCUT, whole, cut)
    # Not by a condition where there may be gradients: TensorFlow mixes up the tensors of hand-written ones in branches.
    return whole() if query.shape[2] is not None and query.shape[2] <= UNCUT else cut()


def _bias(seen: tf.Tensor, of_queries: tf.Tensor, first: tf.Tensor, causal: bool) -> tf.Tensor:
    """What is added to the scores of some queries, [batch, 1, 1 or queries, length].

    Args:
        seen: as for `of_all`.
        of_queries: the same for these, if `seen` are numbers of sequences.
        first: position of the first one.
    """
    if seen.shape.rank == 4:
        return seen
    at_query, at_key = (tf.expand_dims(tf.range(tf.shape(numbers)[1]), 0) for numbers in (of_queries, seen))
    return score_bias((of_queries, first + at_query), (seen, at_key), None, causal)


class _Cut:
    """Rows of queries, cut into parts of equal size.

    Args:
        query: [batch, heads, length, head_size].

    Attributes:
        size: queries of a part.
    """

    def __init__(self, query: tf.Tensor) -> None:
        self._query = query
        batch, heads, self._length, _ = tf.unstack(tf.shape(query))
        self.size = tf.minimum(tf.maximum(_SCORES // (batch * heads * self._length), _FEWEST), self._length)
        self._count = _parts(self._length, self.size)

    def padded(self, states: tf.Tensor, axis: int) -> tf.Tensor:
        """Whole parts, from [..., length, ...]: of further queries nothing is used, and their gradient is 0."""
        more = [[0, 0] for _ in states.shape]
        more[axis][1] = self._count * self.size - self._length
        return tf.pad(states, more)

    def part(self, padded: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        """One part of `padded` queries."""
        return padded[:, :, index * self.size : (index + 1) * self.size]

    def array(self) -> tf.TensorArray:
        """For a tensor like the queries of each part."""
        shape = self._query.shape
        return tf.TensorArray(self._query.dtype, self._count, element_shape=[*shape[:2], None, shape[3]])

    def joined(self, parts: tf.TensorArray) -> tf.Tensor:
        """[batch, heads, length, head_size]."""
        shape = tf.shape(self._query)
        rows = tf.transpose(parts.stack(), [1, 2, 0, 3, 4])
        rows = tf.reshape(rows, tf.stack([shape[0], shape[1], self._count * self.size, self._query.shape[3]]))
        return tf.ensure_shape(rows[:, :, : self._length], self._query.shape)

    def loop(self, step: Callable[..., tuple[Any, ...]], *state: Any) -> tuple[Any, ...]:
        """`step(index, *state)` for each part; what the last one returns, without the index."""
        _, *found = tf.while_loop(
            lambda index, *_: index < self._count, step, (tf.constant(0), *state), parallel_iterations=1
        )
        return tuple(found)


class _InParts:
    """Attention for some queries of each row at a time.

    Its methods get all tensors as arguments, and none from where they were made: the backward pass is in another graph.

    Args:
        attention, dropout, causal: as for `of_all`.
    """

    def __init__(self, attention: AttentionForm, dropout: Dropout | None, causal: bool) -> None:
        self._attention, self._dropout, self._causal, self._mode = attention, dropout, causal, current()

    def __call__(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
        seed = tf.zeros([2], tf.int32)
        if self._dropout and self._dropout.rate:  # the backward pass draws the masks again
            seed = self._dropout.next_seed()

        @tf.custom_gradient
        def mixed(*inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor | None, ...]]]:
            return self._forward(*inputs), lambda upstream: (*self._backward(upstream, *inputs), None, None)

        inputs = (query, key, value, seen, seed)
        return self._forward(*inputs) if self._mode.inference else mixed(*inputs)

    def _forward(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, seen: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        cut = _Cut(query)
        queries, of_queries = cut.padded(query, 2), self._of_queries(cut, seen)

        def step(index: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            bias = self._bias(cut, index, seen, of_queries)
            return index + 1, found.write(index, self._part(index, seed, bias, cut.part(queries, index), key, value))

        return cut.joined(*cut.loop(step, cut.array()))

    def _backward(
        self,
        upstream: tf.Tensor,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        seen: tf.Tensor,
        seed: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        cut = _Cut(query)
        queries, upstream, of_queries = cut.padded(query, 2), cut.padded(upstream, 2), self._of_queries(cut, seen)

        def step(index: tf.Tensor, found: tf.TensorArray, of_key: tf.Tensor, of_value: tf.Tensor) -> tuple[Any, ...]:
            inputs, bias = [cut.part(queries, index), key, value], self._bias(cut, index, seen, of_queries)
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = self._part(index, seed, bias, *inputs)
            of_query, *others = tape.gradient(outputs, inputs, cut.part(upstream, index))
            sums = (total + tf.cast(one, tf.float32) for total, one in zip((of_key, of_value), others, strict=True))
            return index + 1, found.write(index, of_query), *sums

        found, of_key, of_value = cut.loop(step, cut.array(), tf.zeros(tf.shape(key)), tf.zeros(tf.shape(value)))
        return cut.joined(found), tf.cast(of_key, key.dtype), tf.cast(of_value, value.dtype)

    def _part(
        self,
        index: tf.Tensor,
        seed: tf.Tensor,
        bias: tf.Tensor,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
    ) -> tf.Tensor:
        """Attention of the queries of part `index`."""
        mode = self._mode
        if self._dropout and self._dropout.rate:
            mode = dataclasses.replace(mode, seeds=Seeds(fold_in(seed, index)))
        with computing(mode):
            return self._attention(query, key, value, bias, self._dropout)

    def _of_queries(self, cut: _Cut, seen: tf.Tensor) -> tf.Tensor:
        return cut.padded(seen, 1) if seen.shape.rank == 2 else seen

    def _bias(self, cut: _Cut, index: tf.Tensor, seen: tf.Tensor, of_queries: tf.Tensor) -> tf.Tensor:
        first = index * cut.size
        if seen.shape.rank == 2:
            of_queries = of_queries[:, first : first + cut.size]
        return _bias(seen, of_queries, first, self._causal)
