"""Raw text files -> documents, each a tensor of sentences, read as a stream."""

import zlib

import tensorflow as tf

from bert_tf.errors import ConfigError, DataError

LAYOUTS = ("sentences", "documents")

_SAMPLE_BYTES = 1 << 20
# One wrong byte in a thousand is a web page's odd quotation mark; more is another encoding.
_BAD_SHARE = 1e-3
_LINES_A_BLOCK = 256
# A text without blank lines would be one document as large as the file; it is cut here, so that memory stays flat.
_MOST_SENTENCES = 1 << 16

# Valid UTF-8: RE2's own "any character" would let encoded surrogates pass.
_VALID = r"[\x00-\x{D7FF}\x{E000}-\x{10FFFF}]*"
# What the tokenizer deletes or splits at: a sentence of nothing else has no tokens.
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


def find_files(patterns):
    """The files that one or more glob patterns name.

    Args:
        patterns: a str or a list of str: paths or glob patterns, local or of any file system TensorFlow knows.

    Returns:
        list of str, sorted, each file once.

    Raises:
        DataError: a pattern matches no file.
    """
    found = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # A path that exists is taken as it is, so that names with [ or * can be given.
        matches = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
        matches = [path for path in matches if not tf.io.gfile.isdir(path)]
        if not matches:
            hint = f"; it is a directory, name its files: {pattern.rstrip('/')}/*" if tf.io.gfile.isdir(pattern) else ""
            raise DataError(f"{pattern}: no such file, expected at least one text file{hint or '; check the path'}")
        found.update(matches)
    if not found:
        raise DataError("no input files named, expected at least one text file; name one or more files or patterns")
    return sorted(found)


def check_text_file(path):
    """Refuses, at the price of reading one megabyte, a file that cannot be meant: an early and clear error.

    A few bytes that are not UTF-8 are no error: the tokenizer drops them, as BERT's does.

    Args:
        path: str, a text file, compressed if its name ends in .gz.

    Raises:
        DataError: the file cannot be read, is empty, is UTF-16 or is mostly not UTF-8.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            sample = file.read(_SAMPLE_BYTES)
        if sample and path.endswith(".gz"):
            sample = zlib.decompressobj(wbits=31).decompress(sample, _SAMPLE_BYTES)  # 31: a gzip header is expected
    except zlib.error:
        raise DataError(f"{path}: not a gzip file, though its name ends in .gz; rename or compress it") from None
    except tf.errors.OpError as error:
        raise DataError(f"{path}: cannot be read ({error.message}); check the path and its permissions") from None
    if not sample:
        raise DataError(f"{path}: the file is empty, expected text; remove it from the input or fill it")
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")) or sample.count(0) > len(sample) / 10:
        raise DataError(
            f"{path}: line 1: UTF-16 or binary data, expected UTF-8 text; convert it: iconv -f UTF-16 -t UTF-8"
        )
    first_bad, bad, good = _count_bad_sequences(sample)
    if bad > good and bad > _BAD_SHARE * len(sample):
        line = sample.count(b"\n", 0, first_bad) + 1
        raise DataError(
            f"{path}: line {line}: byte 0x{sample[first_bad]:02x} is not UTF-8, nor is most of what follows; convert"
            " the file, naming its encoding: iconv -f CP949 -t UTF-8 (Korean) or iconv -f CP1252 -t UTF-8 (Western)"
        )


def read_documents(files, layout="sentences", interleave=1):
    """Reads documents as a stream; memory does not grow with the files.

    Files are UTF-8, with Unix or DOS line ends, compressed if the name ends in .gz. Where a file ends, so does its last
    document. Two layouts:

    * "sentences": one sentence a line, blank lines between documents, as google-research/bert reads it. A document
      of more than 65,536 sentences is cut there.
    * "documents": one document a line, split into sentences after `. ? ! …` and closing quotes or brackets where white
      space follows, and after `。！？` in any case; not after a single letter ("J.", "U.S."), a common English
      abbreviation ("Mr.", "etc."), or "No." and its like with a number behind.

    Args:
        files: list of str or string tensor [num_files].
        layout: "sentences" or "documents".
        interleave: how many files are read in turn, a document from each; 1 reads one file after the other.

    Returns:
        tf.data.Dataset of string tensors [num_sentences], never empty, without surrounding white space.

    Raises:
        ConfigError: unknown layout.
    """
    _check_layout(layout)
    files = tf.data.Dataset.from_tensor_slices(tf.convert_to_tensor(files))
    return files.interleave(lambda file: _read_file(file, layout), cycle_length=interleave, block_length=1)


def read_source(file, layout):
    """Reads the documents of one file as `read_documents` does, and cleans them.

    A sentence that is not UTF-8 is left out, and so is one without a visible character; a document without sentences
    disappears.

    Args:
        file: str or string tensor [].
        layout: "sentences" or "documents".

    Returns:
        tf.data.Dataset of tuples, one a document and one, without sentences, at the end of the file: string
        [num_sentences]; int64 [], sentences read since the tuple before; int64 [2], how many of them were not UTF-8 and
        how many had nothing to see.

    Raises:
        ConfigError: unknown layout.
    """
    _check_layout(layout)

    def clean(state, element):
        read, left_out = state
        sentences, is_end = element
        valid = tf.strings.regex_full_match(sentences, _VALID)
        visible = ~tf.strings.regex_full_match(sentences, _INVISIBLE)
        read += tf.size(sentences, tf.int64)
        left_out += tf.stack([tf.math.count_nonzero(~valid), tf.math.count_nonzero(valid & ~visible)])
        kept = sentences[valid & visible]
        is_element = is_end | (tf.size(kept) > 0)
        carried = tf.cond(is_element, lambda: nothing, lambda: (read, left_out))
        return carried, (kept, read, left_out, is_element)

    nothing = tf.constant(0, tf.int64), tf.zeros([2], tf.int64)
    documents = _read_file(file, layout).map(lambda sentences: (sentences, False))
    end = tf.data.Dataset.from_tensors((tf.zeros([0], tf.string), True))
    cleaned = documents.concatenate(end).scan(nothing, clean).filter(lambda *element: element[-1])
    return cleaned.map(lambda sentences, read, left_out, _: (sentences, read, left_out))


def _check_layout(layout):
    if layout not in LAYOUTS:
        raise ConfigError(f'unknown layout "{layout}", expected one of {", ".join(LAYOUTS)}; set data.layout')


def _read_file(file, layout):
    """Dataset of string tensors [num_sentences], of one file."""
    compression = tf.where(tf.strings.regex_full_match(file, r".*\.gz"), "GZIP", "")
    split = _split_at_blank_lines if layout == "sentences" else _split_lines_into_sentences
    return split(tf.data.TextLineDataset(file, compression_type=compression))


def _count_bad_sequences(sample):
    """Returns the offset of the first byte that is not UTF-8 (or None), how many wrong and how many right sequences.

    Counted are only bytes above 0x7f: ASCII is the same in every encoding of interest.
    """
    text = sample.decode("utf-8", errors="surrogateescape")
    wrong = [index for index, character in enumerate(text) if "\udc80" <= character <= "\udcff"]
    # The sample may end within a character.
    while wrong and wrong[-1] >= len(text) - 3:
        wrong.pop()
    if not wrong:
        return None, 0, 0
    right = sum(character > "\x7f" for character in text) - len(wrong)
    return len(text[: wrong[0]].encode()), len(wrong), right


def _split_at_blank_lines(lines):
    """Dataset of lines of one file -> Dataset of string tensors [num_sentences].

    Works on blocks of lines: the sentences of the document still open are carried from block to block.
    """

    def close_documents(open_sentences, block):
        blank = tf.strings.regex_full_match(block, _BLANK)
        sentences = tf.concat([open_sentences, tf.strings.strip(block)], axis=0)
        blank = tf.concat([tf.zeros_like(open_sentences, tf.bool), blank], axis=0)
        document = tf.cumsum(tf.cast(blank, tf.int64))  # of each line, counted from the start of the block
        # What follows the last blank line stays open.
        still_open = ~blank & (document == document[-1]) & (tf.size(sentences) < _MOST_SENTENCES)
        closed = ~blank & ~still_open
        starts = tf.unique(document[closed], out_idx=tf.int64)
        documents = tf.RaggedTensor.from_value_rowids(sentences[closed], starts.idx, tf.size(starts.y, tf.int64))
        return sentences[still_open], documents

    # The blank line at the end closes the file's last document.
    blocks = lines.concatenate(tf.data.Dataset.from_tensors("")).batch(_LINES_A_BLOCK)
    nothing = tf.zeros([0], tf.string)
    return blocks.scan(nothing, close_documents).unbatch()


def _split_lines_into_sentences(lines):
    """Dataset of lines, each a document -> Dataset of string tensors [num_sentences]."""

    def split(line):
        text = tf.strings.regex_replace(line, _ABBREVIATION, rf"\1.{_KEPT_SPACE}")
        text = tf.strings.regex_replace(text, _NUMBERED, rf"\1.{_KEPT_SPACE}\2")
        # A line holds no line feed: one marks the boundary.
        text = tf.strings.regex_replace(text, _SENTENCE_END, "\\1\\2\n")
        sentences = tf.strings.split(text, "\n")
        sentences = tf.strings.strip(tf.strings.regex_replace(sentences, _KEPT_SPACE, " "))
        return sentences[~tf.strings.regex_full_match(sentences, _BLANK)]

    return lines.map(split).filter(lambda sentences: tf.size(sentences) > 0)
