"""Streaming readers of raw text files: Datasets of documents, each a RaggedTensor of sentences."""

import concurrent.futures
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.files import cause, check_file, here_or_bundled
from bert_tf.progress import bar
from bert_tf.text.encoding import SAMPLE_BYTES, check_sample

LAYOUTS = ("sentences", "documents")

_BLOCK_BYTES = 1 << 17  # read at a time: zeros are a thousand times as many when unpacked
_LINES_PER_BLOCK = 256
_BLOCKS_IN_PARALLEL = 2  # of each of the files that are read in turn
# A text without blank lines would be one document as large as the file; it is cut here to limit memory.
_MAX_SENTENCES = 1 << 16

# Valid UTF-8: RE2's own "any character" would let encoded surrogates pass.
_VALID = r"[\x00-\x{D7FF}\x{E000}-\x{10FFFF}]*"
# Characters that the tokenizer deletes or splits at: a sentence of only these has no tokens.
_INVISIBLE = r"[\s\p{Z}\p{Cc}\p{Cf}\x{FFFD}]*"
_SPACE = r"[\s\p{Z}]"
_BLANK = r"[\s\p{Z}\x{FEFF}]*"
_CLOSERS = r"""["'”’»)\]）」』〉》]*"""
_SENTENCE_END = rf"([.?!…]+{_CLOSERS}){_SPACE}+|([。！？]+{_CLOSERS}){_SPACE}*"
_ABBREVIATIONS = (
    "[a-z]|mr|mrs|ms|messrs|dr|prof|rev|hon|st|mt|jr|sr|gen|col|maj|lt|capt|sgt|gov|sen|rep|pres|vs|cf|etc|e\\.g|i\\.e"
    "|inc|ltd|corp|co|jan|feb|aug|sept|oct|nov|dec"
)
_ABBREVIATION = rf"(?i)\b({_ABBREVIATIONS})\.{_SPACE}+"
_NUMBERED = rf"(?i)\b(no|nos|vol|fig|sec|art|ch|p|pp)\.{_SPACE}+(\d)"
_KEPT_SPACE = "\x1f"  # stands for the space after an abbreviation: RE2 has no look-behind


def find_files(patterns: str | Iterable[str]) -> list[str]:
    """Finds the files that match any of the patterns; every pattern must match at least one.

    Args:
        patterns: paths or glob patterns, local or on any file system that TensorFlow supports.

    Returns:
        Sorted paths without duplicates.
    """
    files: set[str] = set()
    for pattern in map(here_or_bundled, [patterns] if isinstance(patterns, str) else patterns):
        if not pattern.strip():
            raise DataError(
                f"{pattern!r} is no file, expected at least one text file; name one before and after a comma"
            )
        try:
            # An existing path is used as it is, so that names with [ or * work.
            matches = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
            matches = [path for path in matches if not tf.io.gfile.isdir(path)]
        except tf.errors.OpError as error:  # of a file system that is not there, or not allowed
            raise DataError(
                f"{pattern}: {' '.join(error.message.split())[:200]}; expected at least one text file here; copy it to "
                "this machine"
            ) from None
        if not matches:
            hint = f"; it is a directory, name its files: {pattern.rstrip('/')}/*" if tf.io.gfile.isdir(pattern) else ""
            raise DataError(f"{pattern}: no such file, expected at least one text file{hint or '; check the path'}")
        for path in matches:  # a pipe could be read only once, and waits for its writer
            check_file(path, "; write the text to a file first")
        files.update(matches)
    if not files:
        raise DataError("no input files given, expected at least one text file; give one or more files or patterns")
    return sorted(files)


def check_text_files(paths: Sequence[str]) -> list[int]:
    """Checks the first megabyte of each text file, and the whole of compressed ones, several files at a time.

    TensorFlow reads a gzip file that was cut off as if it ended there. Its checksum is known only at its end, so it is
    unpacked once: 250 MB of text per second and thread, a fraction of the time that tokenizing it takes.

    Raises a DataError if a file cannot be read, is empty, cut off or damaged, is UTF-16 or binary, or is mostly not
    UTF-8. A few bytes that are not UTF-8 are allowed: the sentences with them are dropped.

    Args:
        paths: text files, compressed if their names end in .gz.

    Returns:
        Bytes of the text of each file, uncompressed.
    """
    sizes = []
    with concurrent.futures.ThreadPoolExecutor() as pool, bar("check", len(paths), "file", leave=False) as line:
        for size in pool.map(check_text_file, paths):
            sizes.append(size)
            line.update()
    return sizes


def check_text_file(path: str) -> int:
    """As `check_text_files`, for one file; returns the bytes of its text, uncompressed."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            blocks = iter(lambda: file.read(_BLOCK_BYTES), b"")
            if path.endswith(".gz"):
                blocks = _unpacked(blocks, path)
            sample = bytearray()
            for block in blocks:
                sample += block
                if len(sample) >= SAMPLE_BYTES:
                    break
            if not sample:
                raise DataError(f"{path}: the file is empty, expected text; remove it from the input or add text")
            check_sample(bytes(sample), path)
            if path.endswith(".gz"):
                return len(sample) + sum(map(len, blocks))
            return file.size()
    except tf.errors.OpError as error:
        raise DataError(f"{path}: cannot be read ({cause(error)}); check the path and its permissions") from None


def _unpacked(blocks: Iterable[bytes], path: str) -> Iterator[bytes]:
    """The contents of a gzip file, which may have several members; a DataError if one is not complete."""
    member, read = None, 0
    for block in blocks:
        read += len(block)
        while block:
            if member is None or member.eof:
                member = zlib.decompressobj(wbits=31)  # 31: a gzip header is expected
            try:
                yield member.decompress(block)
            except zlib.error as error:
                if block.startswith(b"\x1f\x8b") or read > len(block):
                    near = f"damaged gzip data before byte {read} ({error}); fetch it again"
                    raise DataError(f"{path}: {near}") from None
                remedy = "rename or compress it"
                raise DataError(f"{path}: not a gzip file, although its name ends in .gz; {remedy}") from None
            block = member.unused_data
    if member is not None and not member.eof:
        raise DataError(f"{path}: the gzip data are cut off at byte {read}, before their end; fetch the file again")


@tf.autograph.experimental.do_not_convert
def read_source(
    file: str | tf.Tensor, layout: str, tokenize: Callable[[tf.Tensor], tf.RaggedTensor] | None = None
) -> tf.data.Dataset:
    """Reads the documents of one UTF-8 file as a stream; memory use does not grow with the file.

    The file may have Unix or DOS line endings, and is compressed if its name ends in .gz. There are two layouts:

    * "sentences": one sentence per line, blank lines between documents, as in google-research/bert. A document is cut
      after 65,536 sentences.
    * "documents": one document per line, split into sentences after `. ? ! …` and closing quotes or brackets if white
      space follows, and after `。！？` in any case; but not after a single letter ("J.", "U.S."), a common English
      abbreviation ("Mr.", "etc."), or "No." and similar ones before a number.

    Sentences that are not UTF-8 or have no visible character are dropped, then documents without sentences.

    Args:
        file: path, or string tensor [].
        layout: one of `LAYOUTS`.
        tokenize: function from sentences, string [n], to their tokens [n, None]; None keeps the strings.

    Returns:
        Dataset of tuples, one per document and a final one without sentences: the sentences, RaggedTensor
        [num_sentences, None] of tokens, or of one string each without surrounding white space; the number of sentences
        read since the previous tuple, int64 []; and how many of these were not UTF-8 and how many invisible, int64 [2].
    """
    split = _lines if layout == "sentences" else _sentences_of_lines

    def convert(block: tf.Tensor, is_end: tf.Tensor) -> tuple[tf.Tensor, ...]:
        sentences, documents, count = split(block)
        valid = tf.strings.regex_full_match(sentences, _VALID)
        visible = ~tf.strings.regex_full_match(sentences, _INVISIBLE)
        kept = tf.boolean_mask(sentences, valid & visible)
        tokens = tokenize(kept) if tokenize else tf.RaggedTensor.from_uniform_row_length(kept, 1)
        kinds = tf.stack([tf.ones_like(valid), ~valid, valid & ~visible, valid & visible], axis=1)  # [sentences, 4]
        counts = tf.math.unsorted_segment_sum(tf.cast(kinds, tf.int64), documents, count)
        return tokens.values, tokens.row_lengths(), counts, tf.size(block), is_end

    compression = tf.where(tf.strings.regex_full_match(file, r".*\.gz"), "GZIP", "")
    lines = tf.data.TextLineDataset(file, compression_type=compression)
    blocks = lines.batch(_LINES_PER_BLOCK).map(lambda block: (block, False))
    # The blank line at the end closes the file's last document.
    blocks = blocks.concatenate(tf.data.Dataset.from_tensors(([""], True)))
    converted = blocks.map(convert, num_parallel_calls=_BLOCKS_IN_PARALLEL)
    empty = tf.zeros([0], converted.element_spec[0].dtype), tf.zeros([0], tf.int64)
    state = *empty, tf.zeros([4], tf.int64), tf.constant(0)
    # Blocks, because a function called for each document would cost more than most documents.
    return converted.scan(state, _closing(continued=layout == "sentences")).unbatch()


def _closing(continued: bool) -> Callable[..., Any]:
    """Function for `Dataset.scan` that makes blocks of sentences into blocks of documents.

    Its state are the tokens and lengths of the kept sentences of the open document; the counts of sentences (read, not
    UTF-8, invisible, kept) since the last document that was returned; and the number of lines of the open document.

    Args:
        continued: whether the last document of a block continues in the next block.
    """

    def close(state: tuple[tf.Tensor, ...], block: tuple[tf.Tensor, ...]) -> tuple[Any, Any]:
        open_tokens, open_lengths, pending, open_lines = state
        tokens, lengths, counts, lines, is_end = block
        tokens, lengths = tf.concat([open_tokens, tokens], 0), tf.concat([open_lengths, lengths], 0)
        read_here = tf.cast(counts[:, 0], tf.int32)  # [documents]
        counts = tf.concat([counts[:1] + pending, counts[1:]], 0)
        documents = tf.shape(counts)[0]
        stays_open = continued & ~is_end & (open_lines + lines < _MAX_SENTENCES)
        closed = documents - tf.cast(stays_open, tf.int32)
        kept = counts[:closed, 3]
        # Documents without sentences are left out, except for the one at the end of the file.
        returned = tf.where((kept > 0) | (is_end & (tf.range(closed) == documents - 1)))[:, 0]
        totals = tf.concat([tf.zeros([1, 3], tf.int64), tf.gather(tf.cumsum(counts[:, :3]), returned)], 0)
        since = totals[1:] - totals[:-1]  # [returned, 3]
        sentences = tf.reduce_sum(kept)
        end = tf.reduce_sum(lengths[:sentences])
        made = tf.RaggedTensor.from_nested_row_lengths(
            tokens[:end], [tf.gather(kept, returned), lengths[:sentences]], validate=False
        )
        pending = tf.concat([tf.reduce_sum(counts[:, :3], 0) - totals[-1], [tf.reduce_sum(counts[closed:, 3])]], 0)
        open_lines = tf.reduce_sum(read_here[closed:]) + tf.where(stays_open & (documents == 1), open_lines, 0)
        return (tokens[end:], lengths[sentences:], pending, open_lines), (made, since[:, 0], since[:, 1:])

    return close


def _lines(block: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Block of lines -> sentences, string [n]; int64 [n], the document of each, from 0; the number of documents.

    Document 0 continues the last one of the previous block.
    """
    is_text = ~tf.strings.regex_full_match(block, _BLANK)
    documents = tf.cumsum(tf.cast(~is_text, tf.int64))
    sentences = tf.strings.strip(tf.boolean_mask(block, is_text))
    return sentences, tf.boolean_mask(documents, is_text), documents[-1] + 1


def _sentences_of_lines(block: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Block of lines, each a document -> as `_lines` returns."""
    text = tf.strings.regex_replace(block, _ABBREVIATION, rf"\1.{_KEPT_SPACE}")
    text = tf.strings.regex_replace(text, _NUMBERED, rf"\1.{_KEPT_SPACE}\2")
    # A line contains no line feed, so it can mark the boundary.
    text = tf.strings.regex_replace(text, _SENTENCE_END, "\\1\\2\n")
    split = tf.strings.split(text, "\n")
    sentences = tf.strings.strip(tf.strings.regex_replace(split.values, _KEPT_SPACE, " "))
    is_text = ~tf.strings.regex_full_match(sentences, _BLANK)
    documents = tf.boolean_mask(split.value_rowids(), is_text)
    return tf.boolean_mask(sentences, is_text), documents, tf.size(block, tf.int64)
