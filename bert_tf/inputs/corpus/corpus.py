"""A corpus: text files or prepared shards, read as token ids; both give the same ids in the same order."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.errors import DataError
from bert_tf.inputs.corpus.languages import Language
from bert_tf.inputs.corpus.readers import check_text_files, find_files, read_source
from bert_tf.inputs.corpus.shards import DESCRIPTION, Shards, are_shards, find_shards
from bert_tf.inputs.identity import digest, file_identity
from bert_tf.inputs.masking import mark_words
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Json

# Start of the error message if too much of the corpus turns out to be unreadable.
TOO_BAD = "the corpus is damaged:"

_FILES_IN_TURN = 8
_DOCUMENTS_PER_BLOCK = 128
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
        languages: of the files, if their text is mixed by shares; () reads the files as they are.
    """

    files: Sequence[str]
    tokenizer: BaseTokenizer
    data: PretrainingData
    languages: tuple[Language, ...] = ()

    def parts(self) -> list["Corpus"]:
        """The corpus of each language; the corpus itself if it has no languages."""
        return [self._replace(files=one.files, languages=(one,)) for one in self.languages] or [self]

    def check(self) -> int | None:
        """Raises DataError if a file is not readable, empty, cut off, no UTF-8 text or not a shard of this tokenizer.

        Reads the first megabyte of each text file, and the whole of compressed ones.

        Returns:
            Bytes of the text, uncompressed; None for shards of earlier versions, which do not know it.
        """
        if not are_shards(self.files):
            return sum(check_text_files(self.files))
        shards = Shards(self.files)
        shards.check(self.tokenizer)
        return shards.text_bytes

    @tf.autograph.experimental.do_not_convert
    def documents(self, seed: tf.Tensor | Sequence[int], per_block: int = _DOCUMENTS_PER_BLOCK) -> tf.data.Dataset:
        """Reads one epoch. The text files (of shards: their sources) come in random order, eight in turn.

        Unreadable parts (sentences that are not UTF-8, damaged records) are skipped; the first, the tenth, the
        hundredth and so on are reported on standard error.

        Args:
            seed: integer [2], determines the order of files.
            per_block: maximum number of documents per element.

        Returns:
            Dataset of blocks of documents, RaggedTensors int32 [num_documents, None, None] with at least one sentence
            per document; a block may have no documents. If words are masked, the ids include word starts
            (`masking.mark_words`).

        Raises:
            tf.errors.InvalidArgumentError: while reading, if more than `data.max_bad_share` is unreadable.
        """
        if are_shards(self.files):
            shards = Shards(self.files)
            sources, problem = tf.range(shards.num_sources, dtype=tf.int64), "documents are damaged"

            def read(source: tf.Tensor) -> tf.data.Dataset:
                return shards.read_source(source, self.data.words)
        else:
            sources, problem = tf.constant(self.files), "sentences are not UTF-8"
            tokenize = _tokenize(self.tokenizer, self.data.words)

            def read(source: tf.Tensor) -> tf.data.Dataset:
                return read_source(source, self.data.layout, tokenize)

        order = tf.random.experimental.stateless_shuffle(sources, seed)
        ordered = tf.data.Dataset.from_tensor_slices(order)
        elements = ordered.interleave(read, cycle_length=_FILES_IN_TURN, block_length=1)
        documents = _refuse_bad(elements.batch(per_block), self.data.max_bad_share, problem)
        if not self.data.masks_words or self.data.words == "spaces":
            return documents
        return documents.map(lambda block: block.with_values(self._marked(block.values)))

    def _marked(self, sentences: tf.RaggedTensor) -> tf.RaggedTensor:
        """Ids [sentences, None] with word starts, of data.words "pieces"."""
        rows = sentences.value_rowids()
        # Byte-level BPE has no piece that begins a word at the beginning of a sentence: there is no space before it.
        first = tf.concat([rows[:1] >= 0, rows[1:] != rows[:-1]], 0)
        begins = first | ~tf.gather(self.tokenizer.continues, sentences.values)
        return mark_words(sentences, sentences.with_values(begins))


def _tokenize(tokenizer: BaseTokenizer, words: str) -> Callable[..., tf.RaggedTensor]:
    """Function from strings to ids; with `words` "spaces" the ids include word starts."""
    if words != "spaces":
        return tokenizer.tokenize
    return lambda strings: mark_words(*tokenizer.tokenize_with_words(strings))


def _refuse_bad(blocks: tf.data.Dataset, max_bad_share: float, problem: str) -> tf.data.Dataset:
    """Drops elements without sentences; counts and reports skipped units; too many are an error.

    Args:
        blocks: Dataset of batches of documents, RaggedTensor [n, None, None]; units read, int64 [n]; how many of them
            were bad and how many were dropped for other reasons, int64 [n, 2].
        max_bad_share: of the units read.
        problem: the unit and what is wrong with it, for messages.

    Returns:
        Dataset of the documents.
    """
    spec = blocks.element_spec[0]
    nothing = tf.RaggedTensor.from_nested_row_lengths(tf.zeros([0], spec.dtype), [tf.zeros([0], tf.int64)] * 2)
    end = nothing, tf.zeros([1], tf.int64), tf.zeros([1, 2], tf.int64), True
    blocks = blocks.map(lambda *block: (*block, False)).concatenate(tf.data.Dataset.from_tensors(end))

    def count(
        state: tuple[tf.Tensor, tf.Tensor], block: tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor, tf.Tensor]
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.RaggedTensor]:
        documents, read, dropped, is_end = block
        seen, bad = state[0] + tf.cumsum(read), state[1] + tf.cumsum(dropped[:, 0])  # [n]

        def check() -> tf.Tensor:
            shares = tf.strings.join([tf.strings.as_string(bad), " of ", tf.strings.as_string(seen), f" {problem}"])
            # A number with more digits than the one before it is the first, the tenth, the hundredth or so.
            numbers = tf.concat([[state[1]], bad], 0)
            digits = tf.where(numbers > 0, tf.strings.length(tf.strings.as_string(numbers)), 0)
            lines = "bert_tf: skipped so far in this epoch: " + shares[digits[1:] > digits[:-1]]
            allowed = max_bad_share * tf.cast(tf.where(is_end, seen, tf.maximum(seen, _MIN_SEEN)), tf.float64)
            too_many = tf.cast(bad, tf.float64) > allowed
            limit = f"; expected at most {max_bad_share:.3%} (data.max_bad_share)"
            error = tf.strings.join([f"{TOO_BAD} ", shares[tf.argmax(too_many)], limit])
            with tf.control_dependencies([_print(lines), tf.debugging.Assert(~tf.reduce_any(too_many), [error])]):
                return tf.constant(True)

        checked = tf.cond(is_end | (bad[-1] > state[1]), check, lambda: False)
        with tf.control_dependencies([checked]):
            lengths = documents.row_lengths()
            documents = tf.RaggedTensor.from_row_lengths(documents.values, lengths[lengths > 0], validate=False)
        return (seen[-1], bad[-1]), documents

    return blocks.scan((tf.constant(0, tf.int64), tf.constant(0, tf.int64)), count)


def _print(lines: tf.Tensor) -> tf.Operation:
    """Prints strings [n] on standard error."""
    text = tf.strings.reduce_join(lines, separator="\n")
    return tf.cond(text != "", lambda: tf.print(text, output_stream=sys.stderr), tf.no_op)


def corpus_identity(files: Sequence[str]) -> Json:
    """Identifies a corpus by the names and sizes of its files, which are not read themselves.

    A text file that changed without changing its size is not noticed.

    Args:
        files: text files or shards, in the order in which training numbers them.

    Returns:
        dict, JSON-ready: files, their number; bytes, the sum of their sizes; names_and_sizes, a digest of each file's
        name (without folders) and size, in this order; for shards also prepared, a digest of their corpus.json files.
    """
    sizes = [tf.io.gfile.stat(file).length for file in files]
    names = [[os.path.basename(file), size] for file, size in zip(files, sizes, strict=True)]
    identity = {"files": len(files), "bytes": sum(sizes), "names_and_sizes": digest(names)}
    if are_shards(files):
        folders = dict.fromkeys(os.path.dirname(file) for file in files)
        identity["prepared"] = digest([file_identity(os.path.join(folder, DESCRIPTION)) for folder in folders])
    return identity


def check_unchanged(files: Sequence[str], before: Json) -> None:
    """Raises a DataError if files that are being read no longer have this `corpus_identity`: see there."""
    try:
        now = corpus_identity(files)
    except tf.errors.OpError:  # a file system that does not answer now; reading from it reports that it never does
        return
    if now != before:
        raise DataError(
            f"{', '.join(files[:3])}{', ...' * (len(files) > 3)}: changed while the run read them, from "
            f"{before['bytes']} to {now['bytes']} bytes; restore them and run the same command again to resume"
        )
