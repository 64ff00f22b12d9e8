"""The documents of a corpus as token ids, from text or from prepared shards: the same ids in the same order."""

import sys

import tensorflow as tf

from bert_tf.inputs.corpus.readers import find_files, read_source
from bert_tf.inputs.corpus.shards import Shards, are_shards, find_shards
from bert_tf.inputs.masking import mark_words

# How the message of an error begins that only reading the corpus can find.
TOO_BAD = "the corpus is damaged:"

_FILES_IN_TURN = 8
# A share is told from fewer only at the end: a single bad sentence may be the first.
_FEW = 10_000


def find_corpus(patterns):
    """The text files or shards that a config's `input` names.

    Args:
        patterns: str, paths or glob patterns separated by commas; a prepared directory stands for its shards.

    Returns:
        list of str, sorted.

    Raises:
        BertTfError: nothing is found, a directory is not finished, or text and shards are mixed.
    """
    files = find_files(find_shards(patterns.split(",")))
    are_shards(files)
    return files


def token_documents(files, tokenizer, data, seed):
    """One epoch of a corpus: text files, or those that shards were prepared from, in random order, eight in turn.

    What can not be read (a sentence that is not UTF-8, a damaged record) is passed over; standard error gets a line
    about the first, the tenth, the hundredth and so on.

    Args:
        files: list of str as `find_corpus` gives.
        tokenizer: bert_tf.Tokenizer; shards must have been made with the same.
        data: bert_tf.config.PretrainingData.
        seed: integer [2], decides the order of files.

    Returns:
        tf.data.Dataset of RaggedTensors int32 [num_sentences, None], never without sentences; with data.words "spaces"
        ids carry where words begin (`masking.mark_words`).

    Raises:
        tf.errors.InvalidArgumentError: on reading, if more than `data.max_bad_share` is bad.
    """
    if are_shards(files):
        shards = Shards(files)
        sources, what = tf.range(shards.num_sources, dtype=tf.int64), "documents are damaged"

        def read(number):
            return shards.read_source(number, data.words)

        def convert(ids, sentence_lengths):
            return tf.RaggedTensor.from_row_lengths(ids, sentence_lengths, validate=False)
    else:
        sources, what = tf.constant(files), "sentences are not UTF-8"

        def read(file):
            sentences = read_source(file, data.layout)
            return sentences.map(lambda sentences, *counts: ((sentences,), *counts))

        convert = _tokenize(tokenizer, data.words)

    order = tf.random.experimental.stateless_shuffle(sources, seed)
    elements = tf.data.Dataset.from_tensor_slices(order).interleave(read, cycle_length=_FILES_IN_TURN, block_length=1)
    contents = _refuse_bad(elements, data.max_bad_share, what).filter(lambda *content: tf.size(content[-1]) > 0)
    return contents.map(convert, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _tokenize(tokenizer, words):
    """The function from strings to ids that, for "spaces", carry where words begin."""
    if words != "spaces":
        return tokenizer.tokenize
    return lambda strings: mark_words(*tokenizer.tokenize_with_words(strings))


def _refuse_bad(elements, share, what):
    """Counts what was passed over, tells of it, and makes too much of it an error.

    Args:
        elements: Dataset of (content, units read, int64 [2]: those that were bad, and others left out); content is a
            tuple of vectors.
        share: of what was read, that may be bad.
        what: of which things, and why they are bad.

    Returns:
        Dataset of the contents.
    """
    end = tuple(tf.zeros([0], spec.dtype) for spec in elements.element_spec[0])
    elements = elements.map(lambda content, read, left_out: (content, read, left_out[0], False))
    elements = elements.concatenate(
        tf.data.Dataset.from_tensors((end, tf.constant(0, tf.int64), tf.constant(0, tf.int64), True))
    )

    def count(state, element):
        seen, bad, tell_at = state
        content, read, more, is_end = element
        seen, bad = seen + read, bad + more
        tell = bad >= tell_at

        def judge():
            counted = tf.strings.format(f"{{}} of {{}} {what}", (bad, seen))
            line = tf.strings.join(["bert_tf: passed over so far in this epoch: ", counted])
            told = tf.cond(tell, lambda: tf.print(line, output_stream=sys.stderr), tf.no_op)
            allowed = share * tf.cast(tf.where(is_end, seen, tf.maximum(seen, _FEW)), tf.float64)
            message = tf.strings.join([f"{TOO_BAD} ", counted, f"; expected at most {share:.3%} (data.max_bad_share)"])
            return tf.group(told, tf.debugging.Assert(tf.cast(bad, tf.float64) <= allowed, [message]))

        with tf.control_dependencies([tf.cond((more > 0) | is_end, judge, tf.no_op)]):
            return (seen, bad, tf.where(tell, 10 * tell_at, tell_at)), tuple(tf.identity(part) for part in content)

    none, first = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
    return elements.scan((none, none, first), count)
