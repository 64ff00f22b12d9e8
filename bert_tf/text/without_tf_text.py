"""The operations of tokenizers without TensorFlow Text: the classes of `tf_text`, with the same results.

Tables and WordPiece are made of TensorFlow's own ops, so an exported graph contains them. SentencePiece, which
byte-level BPE uses, too, is the library of this name, called by the graph.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.progress import log
from bert_tf.text.base import rows_of
from bert_tf.text.codepoints import ASCII_PUNCTUATION, IDEOGRAPHS, character_class, quoted
from bert_tf.text.normalization_table import Table
from bert_tf.text.segments import WALL, replace_matches, split_around, within_texts
from bert_tf.types import Array, WordPieces

_HASHES = 1 << 62  # numbers of hashes
_FIRST, _CONTINUING = 0, 1  # roots of the trie: of pieces that begin a word, and of those after "##"
_BYTES = 256


@functools.cache
def _report() -> None:
    log(
        "TensorFlow Text cannot be imported; everything works without it, with the same tokens made more slowly, but "
        "exports with byte-level BPE and SentencePiece (pip install 'bert_tf[text]' with Python 3.13 or older)"
    )


@functools.cache
def _sorted_by_hash(table: Table) -> tuple[str, Array, list[str]]:
    """A regular expression of what a table replaces; the hashes of these texts, ascending, and their replacements."""
    replaced = table.replacements
    pattern = "|".join(map(quoted, (text for text in replaced if len(text) > 1)))
    single = f"[{character_class(text for text in replaced if len(text) == 1)}]"
    with tf.init_scope():
        hashes = tf.strings.to_hash_bucket_fast([*replaced], _HASHES).numpy()
    order = np.argsort(hashes)
    texts = [*replaced.values()]
    return f"{pattern}|{single}" if pattern else single, hashes[order], [texts[at] for at in order]


class Replacer:
    """Replaces the characters of a table."""

    def __init__(self, table: Table) -> None:
        self._pattern, hashes, texts = _sorted_by_hash(table)
        with tf.init_scope():  # constants, even if they are created inside a graph
            self._hashes, self._texts = tf.constant(hashes), tf.constant(texts)

    def replace(self, texts: tf.Tensor, *, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replaces in texts, string [batch], valid UTF-8.

        Returns:
            normalized string [batch], offsets int64 [total], row_splits int64 [batch + 1]: see `Normalizer.normalize`.
        """
        return replace_matches(texts, self._pattern, self._replaced, with_offsets=with_offsets)

    def _replaced(self, found: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
        hashes = tf.strings.to_hash_bucket_fast(found, _HASHES)  # of texts of the table: all of them are there
        texts = tf.gather(self._texts, tf.searchsorted(self._hashes, hashes))
        lengths = tf.cast(tf.strings.length(texts), tf.int64)
        return texts, tf.RaggedTensor.from_row_lengths(tf.zeros([tf.reduce_sum(lengths)], tf.int64), lengths)


@functools.lru_cache(maxsize=4)
def _trie(pieces: tuple[str, ...]) -> tuple[Array, Array, Array]:
    """A trie over the bytes of pieces.

    Returns:
        edges: int64 [edges], 256 * node + byte, ascending.
        targets: int32 [edges], the node that each leads to.
        ids: int32 [nodes], the piece that ends at each node, or -1.
    """
    edges, ids = dict[int, int](), dict[int, int]()
    for number, piece in enumerate(pieces):
        rest = piece.removeprefix("##")
        node = _FIRST if rest == piece else _CONTINUING
        for byte in rest.encode():
            node = edges.setdefault(_BYTES * node + byte, len(edges) + 2)
        ids[node] = number
    numbers = np.full(len(edges) + 2, -1, np.int32)
    numbers[[*ids]] = [*ids.values()]
    numbers[:2] = -1  # of "##" alone
    keys = np.array(sorted(edges), np.int64)
    return keys, np.array([edges[key] for key in keys.tolist()], np.int32), numbers


class WordPiece:
    """Splits normalized texts into words, and these into pieces: the longest that matches from each place on.

    Args:
        pieces: the vocabulary by id; pieces inside of words begin with "##".
        unknown: the piece of words in which no piece matches somewhere, and of those that are too long.
        limit: most characters of a word.
    """

    def __init__(self, pieces: Sequence[str], unknown: str, limit: int) -> None:
        _report()
        edges, targets, ids = _trie(tuple(pieces))
        self._limit, self._unknown = limit, pieces.index(unknown)
        with tf.init_scope():  # constants, even if they are created inside a graph
            self._edges, self._targets, self._ids = map(tf.constant, (edges, targets, ids))

    def tokenize(self, texts: tf.Tensor) -> WordPieces:
        """Splits texts, string [batch], as `Normalizer.normalize` returns them."""
        parts, _ = split_around(texts, f"[ {ASCII_PUNCTUATION}{IDEOGRAPHS}]")
        is_word = (parts.values != "") & (parts.values != " ")
        words = tf.ragged.boolean_mask(parts, parts.with_values(is_word))
        begins = tf.boolean_mask(within_texts(parts, texts), is_word)
        different, index = tf.unique(words.values)
        ids, splits, starts, ends = self._pieces_of(different)
        # The pieces of each word of the texts, of which many repeat.
        found = tf.gather(tf.RaggedTensor.from_row_splits(tf.range(splits[-1]), splits, validate=False), index)
        begin = tf.gather(begins, rows_of(found.row_splits))
        starts, ends = (tf.gather(at, found.values) + begin for at in (starts, ends))
        row_splits = tf.gather(found.row_splits, words.row_splits)
        return tf.gather(ids, found.values), row_splits, starts, ends

    def _pieces_of(self, words: tf.Tensor) -> WordPieces:
        """As `tokenize`, of texts that are one word each."""
        data = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(words + WALL), tf.uint8), tf.int64)
        lengths = tf.cast(tf.strings.length(words), tf.int64)
        begins = tf.cumsum(lengths + len(WALL), exclusive=True)
        opens = (tf.bitwise.bitwise_and(data, 0xC0) != 0x80) & (data != WALL[0])  # all others continue a character
        places = tf.where(opens)[:, 0]  # [characters]
        word = tf.gather(tf.cumsum(tf.cast(data == WALL[0], tf.int64)), places)
        is_first = places == tf.gather(begins, word)
        ids, ends = self._longest(data, places, is_first)
        # The place where the piece after each one would begin; the number of characters at the end of a word.
        count = tf.size(places, tf.int64)
        number = tf.gather(tf.cumsum(tf.cast(opens, tf.int64), exclusive=True), ends)
        after = tf.where((ids < 0) | (tf.gather(data, ends) == WALL[0]), count, number)
        begun = _reached(is_first, after)
        failed = tf.math.unsorted_segment_max(tf.cast(begun & (ids < 0), tf.int32), word, tf.size(words)) > 0
        failed |= tf.strings.length(words, "UTF8_CHAR") > self._limit
        fails = tf.gather(failed, word)
        ids = tf.where(fails, self._unknown, ids)
        starts = places - tf.gather(begins, word)
        ends = tf.where(fails, tf.gather(lengths, word), ends - tf.gather(begins, word))
        kept = tf.where(fails, is_first, begun)
        counts = tf.math.unsorted_segment_sum(tf.cast(kept, tf.int64), word, tf.size(words))
        splits = tf.concat([[0], tf.cumsum(counts)], 0)
        ids, starts, ends = (tf.boolean_mask(values, kept) for values in (ids, starts, ends))
        return ids, splits, starts, ends

    def _longest(self, data: tf.Tensor, places: tf.Tensor, is_first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The longest piece from each place on.

        Args:
            data: int64 [bytes].
            places: int64 [characters], in `data`.
            is_first: bool [characters], whether each one begins a word.

        Returns:
            ids int32 [characters], -1 where no piece matches; ends int64 [characters], in `data`.
        """
        places_left = tf.range(tf.size(places, tf.int64))
        nodes = tf.where(is_first, tf.constant(_FIRST, tf.int64), _CONTINUING)

        def step(left: tf.Tensor, at: tf.Tensor, nodes: tf.Tensor, ids: tf.Tensor, ends: tf.Tensor) -> list[tf.Tensor]:
            edges = _BYTES * nodes + tf.gather(data, at)
            found = tf.minimum(tf.searchsorted(self._edges, edges), tf.size(self._edges) - 1)
            follows = tf.gather(self._edges, found) == edges
            left, at = tf.boolean_mask(left, follows), tf.boolean_mask(at, follows) + 1
            nodes = tf.gather(self._targets, tf.boolean_mask(found, follows))
            pieces = tf.gather(self._ids, nodes)
            is_piece = pieces >= 0
            longer = tf.boolean_mask(left, is_piece)[:, tf.newaxis]
            ids = tf.tensor_scatter_nd_update(ids, longer, tf.boolean_mask(pieces, is_piece))
            ends = tf.tensor_scatter_nd_update(ends, longer, tf.boolean_mask(at, is_piece))
            return [left, at, tf.cast(nodes, tf.int64), ids, ends]

        state = [places_left, places, nodes, tf.fill(tf.shape(places), -1), places]
        shapes = [tf.TensorShape([None])] * len(state)
        *_, ids, ends = tf.while_loop(lambda left, *_: tf.size(left) > 0, step, state, shape_invariants=shapes)
        return ids, ends


def _reached(first: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Which places one comes to from the first ones.

    Args:
        first: bool [places].
        after: int64 [places], the place after each one, or the number of places for none.

    Returns:
        bool [places].
    """
    count = tf.size(after, tf.int64)
    reached = tf.concat([tf.cast(first, tf.int32), [0]], 0)

    def step(reached: tf.Tensor, after: tf.Tensor) -> list[tf.Tensor]:
        # One step, then two at once, then four: a word of 200 pieces takes eight.
        further = tf.math.unsorted_segment_max(reached, after, count + 1)
        return [tf.maximum(reached, further), tf.gather(after, after)]

    state = [reached, tf.concat([after, [count]], 0)]
    shapes = [tf.TensorShape([None])] * len(state)
    reached, _ = tf.while_loop(lambda _, after: tf.reduce_any(after < count), step, state, shape_invariants=shapes)
    return reached[:-1] > 0


class SentencePiece:
    """Tokenizes texts by a SentencePiece model: by the library, which the graph calls in this process.

    Args:
        model: a serialized ModelProto.

    Attributes:
        IN_GRAPH: whether a saved graph can do without this process.
    """

    IN_GRAPH: ClassVar[bool] = False

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        _report()
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts string [batch], valid UTF-8, to ids int32 [batch, None]."""
        return self._called(self._ids, texts, [])[0]

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """As `tokenize`, and starts and ends int64 [pieces] in bytes of the text."""
        ids, starts, ends = self._called(self._ids_and_offsets, texts, [tf.int64, tf.int64])
        return ids, starts, ends

    def _called(self, function: Callable[[Array], Any], texts: tf.Tensor, types: Sequence[tf.DType]) -> list[Any]:
        """Ids int32 [batch, None], and what else the function returns for each piece."""
        lengths, *values = tf.numpy_function(function, [texts], [tf.int64, tf.int32, *types], stateful=False)
        ids, *others = (tf.ensure_shape(value, [None]) for value in values)
        return [tf.RaggedTensor.from_row_lengths(ids, tf.ensure_shape(lengths, texts.shape), validate=False), *others]

    def _ids(self, texts: Array) -> tuple[Array, Array]:
        ids = self._processor.encode(texts.tolist())
        flat = itertools.chain.from_iterable(ids)
        return np.array([len(row) for row in ids], np.int64), np.fromiter(flat, np.int32)

    def _ids_and_offsets(self, texts: Array) -> tuple[Array, ...]:
        protos = [self._processor.encode(text, return_type="proto") for text in texts.tolist()]
        pieces = [(piece.id, piece.begin, piece.end) for proto in protos for piece in proto.pieces]
        ids, starts, ends = np.array(pieces, np.int64).reshape(-1, 3).T
        return np.array([len(proto.pieces) for proto in protos], np.int64), ids.astype(np.int32), starts, ends
