"""Streaming readers of raw text files: Datasets of documents, each a tensor of sentences."""

import collections
import concurrent.futures
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.files import cause
from bert_tf.progress import bar
from bert_tf.text.encoding import SAMPLE_BYTES, check_sample

LAYOUTS = ("sentences", "documents")

_BLOCK_BYTES = 1 << 17  # read at a time: zeros are a thousand times as many when unpacked
_LINES_PER_BLOCK = 256
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
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # An existing path is used as it is, so that names with [ or * work.
        matches = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
        matches = [path for path in matches if not tf.io.gfile.isdir(path)]
        if not matches:
            hint = f"; it is a directory, name its files: {pattern.rstrip('/')}/*" if tf.io.gfile.isdir(pattern) else ""
            raise DataError(f"{pattern}: no such file, expected at least one text file{hint or '; check the path'}")
        for path in matches:  # a pipe could be read only once, and waits for its writer
            if os.path.exists(path) and not os.path.isfile(path):
                raise DataError(f"{path}: a pipe or device, expected a file; write the text to a file first")
        files.update(matches)
    if not files:
        raise DataError("no input files given, expected at least one text file; give one or more files or patterns")
    return sorted(files)


def check_text_files(paths: Sequence[str]) -> None:
    """Checks the first megabyte of each text file, and the whole of compressed ones, several files at a time.

    TensorFlow reads a gzip file that was cut off as if it ended there. Its checksum is known only at its end, so it is
    unpacked once: 250 MB of text per second and thread, a fraction of the time that tokenizing it takes.

    Raises a DataError if a file cannot be read, is empty, cut off or damaged, is UTF-16 or binary, or is mostly not
    UTF-8. A few bytes that are not UTF-8 are allowed: the tokenizer drops them, as BERT's does.

    Args:
        paths: text files, compressed if their names end in .gz.
    """
    with concurrent.futures.ThreadPoolExecutor() as pool, bar("check", len(paths), "file", leave=False) as line:
        for _ in pool.map(_check_text_file, paths):
            line.update()


def _check_text_file(path: str) -> None:
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
                collections.deque(blocks, maxlen=0)
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


def read_documents(files: Sequence[str] | tf.Tensor, layout: str = "sentences", interleave: int = 1) -> tf.data.Dataset:
    """Reads documents as a stream; memory use does not grow with the files.

    Files are UTF-8, with Unix or DOS line endings, compressed if the name ends in .gz. A document never continues in
    another file. There are two layouts:

    * "sentences": one sentence per line, blank lines between documents, as in google-research/bert. A document is cut
      after 65,536 sentences.
    * "documents": one document per line, split into sentences after `. ? ! …` and closing quotes or brackets if white
      space follows, and after `。！？` in any case; but not after a single letter ("J.", "U.S."), a common English
      abbreviation ("Mr.", "etc."), or "No." and similar ones before a number.

    Args:
        files: paths, or a string tensor [num_files].
        layout: "sentences" or "documents".
        interleave: number of files that are read in turn, one document from each; 1 reads one file after the other.

    Returns:
        Dataset of string tensors [num_sentences], never empty; sentences have no surrounding white space.
    """
    _check_layout(layout)
    files = tf.data.Dataset.from_tensor_slices(tf.convert_to_tensor(files))
    return files.interleave(lambda file: _read_file(file, layout), cycle_length=interleave, block_length=1)


def read_source(file: str | tf.Tensor, layout: str) -> tf.data.Dataset:
    """Reads the documents of one file as `read_documents` does, without invalid and invisible sentences.

    Sentences that are not UTF-8 or have no visible character are dropped, then documents without sentences.

    Args:
        file: path, or string tensor [].
        layout: "sentences" or "documents".

    Returns:
        Dataset of tuples, one per document and a final one without sentences: the sentences, string [num_sentences];
        the number of sentences read since the previous tuple, int64 []; and how many of these were not UTF-8 and how
        many invisible, int64 [2].
    """
    _check_layout(layout)

    def clean(
        state: tuple[tf.Tensor, tf.Tensor], element: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]]:
        read, dropped = state
        sentences, is_end = element
        valid = tf.strings.regex_full_match(sentences, _VALID)
        visible = ~tf.strings.regex_full_match(sentences, _INVISIBLE)
        read += tf.size(sentences, tf.int64)
        dropped += tf.stack([tf.math.count_nonzero(~valid), tf.math.count_nonzero(valid & ~visible)])
        kept = sentences[valid & visible]
        is_element = is_end | (tf.size(kept) > 0)
        carried = tf.cond(is_element, lambda: zeros, lambda: (read, dropped))
        return carried, (kept, read, dropped, is_element)

    zeros = tf.constant(0, tf.int64), tf.zeros([2], tf.int64)
    documents = _read_file(file, layout).map(lambda sentences: (sentences, False))
    end = tf.data.Dataset.from_tensors((tf.zeros([0], tf.string), True))
    cleaned = documents.concatenate(end).scan(zeros, clean).filter(lambda *element: element[-1])
    return cleaned.map(lambda sentences, read, dropped, _: (sentences, read, dropped))


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise ConfigError(f'unknown layout "{layout}", expected one of {", ".join(LAYOUTS)}; set data.layout')


def _read_file(file: str | tf.Tensor, layout: str) -> tf.data.Dataset:
    """Dataset of one file's documents, string tensors [num_sentences]."""
    compression = tf.where(tf.strings.regex_full_match(file, r".*\.gz"), "GZIP", "")
    split = _split_at_blank_lines if layout == "sentences" else _split_lines_into_sentences
    return split(tf.data.TextLineDataset(file, compression_type=compression))


def _split_at_blank_lines(lines: tf.data.Dataset) -> tf.data.Dataset:
    """Dataset of lines of one file -> Dataset of documents, string tensors [num_sentences].

    Works on blocks of lines; the sentences of an unfinished document are carried over to the next block.
    """

    def close_documents(open_sentences: tf.Tensor, block: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
        blank = tf.strings.regex_full_match(block, _BLANK)
        sentences = tf.concat([open_sentences, tf.strings.strip(block)], axis=0)
        blank = tf.concat([tf.zeros_like(open_sentences, tf.bool), blank], axis=0)
        document = tf.cumsum(tf.cast(blank, tf.int64))  # of each line, counted from the start of the block
        # The lines after the last blank line stay open.
        still_open = ~blank & (document == document[-1]) & (tf.size(sentences) < _MAX_SENTENCES)
        closed = ~blank & ~still_open
        starts = tf.unique(document[closed], out_idx=tf.int64)
        documents = tf.RaggedTensor.from_value_rowids(sentences[closed], starts.idx, tf.size(starts.y, tf.int64))
        return sentences[still_open], documents

    # The blank line at the end closes the file's last document.
    blocks = lines.concatenate(tf.data.Dataset.from_tensors("")).batch(_LINES_PER_BLOCK)
    return blocks.scan(tf.zeros([0], tf.string), close_documents).unbatch()


def _split_lines_into_sentences(lines: tf.data.Dataset) -> tf.data.Dataset:
    """Dataset of lines, each a document -> Dataset of documents, string tensors [num_sentences]."""

    def split(line: tf.Tensor) -> tf.Tensor:
        text = tf.strings.regex_replace(line, _ABBREVIATION, rf"\1.{_KEPT_SPACE}")
        text = tf.strings.regex_replace(text, _NUMBERED, rf"\1.{_KEPT_SPACE}\2")
        # A line contains no line feed, so it can mark the boundary.
        text = tf.strings.regex_replace(text, _SENTENCE_END, "\\1\\2\n")
        sentences = tf.strings.split(text, "\n")
        sentences = tf.strings.strip(tf.strings.regex_replace(sentences, _KEPT_SPACE, " "))
        return sentences[~tf.strings.regex_full_match(sentences, _BLANK)]

    return lines.map(split).filter(lambda sentences: tf.size(sentences) > 0)
