"""A corpus: text files or prepared shards, read as token ids; both give the same ids in the same order."""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.inputs.corpus.readers import check_text_files, find_files, read_source
from bert_tf.inputs.corpus.shards import Shards, are_shards, find_shards
from bert_tf.inputs.masking import mark_words
from bert_tf.text import Tokenizer

# Start of the error message if too much of the corpus turns out to be unreadable.
TOO_BAD = "the corpus is damaged:"

_FILES_IN_TURN = 8
# Before the end of the epoch, the share is computed from at least this many units: the first sentence may be a bad one.
_MIN_SEEN = 10_000


def find_corpus(patterns: str) -> list[str]:
    """Finds the text files or shards of a config's `input`.

    Args:
        patterns: paths or glob patterns separated by commas; a prepared directory stands for its shards.

    Returns:
        Sorted paths.
    """
    files = find_files(find_shards(patterns.split(",")))
    are_shards(files)
    return files


class Corpus(NamedTuple):
    """A corpus to pre-train on.

    Attributes:
        files: text files (UTF-8, compressed if the name ends in .gz) or shards prepared from such files, from
            `find_corpus`.
        tokenizer: must equal the tokenizer of the shards.
        data: how the text is read and made into sequences.
    """

    files: Sequence[str]
    tokenizer: Tokenizer
    data: PretrainingData

    def check(self) -> None:
        """Raises DataError if a file is not readable, empty, cut off, no UTF-8 text or not a shard of this tokenizer.

        Reads the first megabyte of each text file, and the whole of compressed ones.
        """
        if are_shards(self.files):
            Shards(self.files).check(self.tokenizer)
        else:
            check_text_files(self.files)

    def documents(self, seed: tf.Tensor | Sequence[int]) -> tf.data.Dataset:
        """Reads one epoch. The text files (of shards: their sources) come in random order, eight in turn.

        Unreadable parts (sentences that are not UTF-8, damaged records) are skipped; the first, the tenth, the
        hundredth and so on are reported on standard error.

        Args:
            seed: integer [2], determines the order of files.

        Returns:
            Dataset of RaggedTensors int32 [num_sentences, None] with at least one sentence; with data.words "spaces"
            the ids include word starts (`masking.mark_words`).

        Raises:
            tf.errors.InvalidArgumentError: while reading, if more than `data.max_bad_share` is unreadable.
        """
        if are_shards(self.files):
            shards = Shards(self.files)
            sources, problem = tf.range(shards.num_sources, dtype=tf.int64), "documents are damaged"

            def read(source: tf.Tensor) -> tf.data.Dataset:
                return shards.read_source(source, self.data.words)

            def convert(ids: tf.Tensor, sentence_lengths: tf.Tensor) -> tf.RaggedTensor:
                return tf.RaggedTensor.from_row_lengths(ids, sentence_lengths, validate=False)
        else:
            sources, problem = tf.constant(self.files), "sentences are not UTF-8"

            def read(source: tf.Tensor) -> tf.data.Dataset:
                sentences = read_source(source, self.data.layout)
                return sentences.map(lambda sentences, *counts: ((sentences,), *counts))

            convert = _tokenize(self.tokenizer, self.data.words)

        order = tf.random.experimental.stateless_shuffle(sources, seed)
        ordered = tf.data.Dataset.from_tensor_slices(order)
        elements = ordered.interleave(read, cycle_length=_FILES_IN_TURN, block_length=1)
        contents = _refuse_bad(elements, self.data.max_bad_share, problem)
        contents = contents.filter(lambda *content: tf.size(content[-1]) > 0)
        return contents.map(convert, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _tokenize(tokenizer: Tokenizer, words: str) -> Callable[..., tf.RaggedTensor]:
    """Function from strings to ids; with `words` "spaces" the ids include word starts."""
    if words != "spaces":
        return tokenizer.tokenize
    return lambda strings: mark_words(*tokenizer.tokenize_with_words(strings))


def _refuse_bad(elements: tf.data.Dataset, max_bad_share: float, problem: str) -> tf.data.Dataset:
    """Counts and reports skipped units; too many are an error.

    Args:
        elements: Dataset of (content, a tuple of vectors; units read; int64 [2], how many of them were bad and how many
            were dropped for other reasons).
        max_bad_share: of the units read.
        problem: the unit and what is wrong with it, for messages.

    Returns:
        Dataset of the contents.
    """
    end = tuple(tf.zeros([0], spec.dtype) for spec in elements.element_spec[0])
    elements = elements.map(lambda content, read, dropped: (content, read, dropped[0], False))
    elements = elements.concatenate(
        tf.data.Dataset.from_tensors((end, tf.constant(0, tf.int64), tf.constant(0, tf.int64), True))
    )

    def count(
        state: tuple[tf.Tensor, tf.Tensor, tf.Tensor], element: tuple[tuple[tf.Tensor, ...], tf.Tensor, tf.Tensor, bool]
    ) -> tuple[tuple[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]]:
        seen, bad, report_at = state
        content, read, more, is_end = element
        seen, bad = seen + read, bad + more
        report = bad >= report_at

        def check() -> tf.Operation:
            counted = tf.strings.format(f"{{}} of {{}} {problem}", (bad, seen))
            line = tf.strings.join(["bert_tf: skipped so far in this epoch: ", counted])
            reported = tf.cond(report, lambda: tf.print(line, output_stream=sys.stderr), tf.no_op)
            allowed = max_bad_share * tf.cast(tf.where(is_end, seen, tf.maximum(seen, _MIN_SEEN)), tf.float64)
            message = tf.strings.join(
                [f"{TOO_BAD} ", counted, f"; expected at most {max_bad_share:.3%} (data.max_bad_share)"]
            )
            return tf.group(reported, tf.debugging.Assert(tf.cast(bad, tf.float64) <= allowed, [message]))

        with tf.control_dependencies([tf.cond((more > 0) | is_end, check, tf.no_op)]):
            report_next = tf.where(report, 10 * report_at, report_at)
            return (seen, bad, report_next), tuple(tf.identity(vector) for vector in content)

    zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    return elements.scan((zero, zero, one), count)
