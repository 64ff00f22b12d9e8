"""Refuses files that are no UTF-8 text, with one line that names the position, what was found and what to do."""

import re

from bert_tf.errors import DataError

SAMPLE_BYTES = 1 << 20  # enough to tell text from other files
_MARKS = {  # UTF-32 first: the mark of UTF-16 is its beginning
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\t\n\v\f\r\x1b"))  # hardly any in text, whatever its encoding
_MAX_CONTROLS, _MAX_ZEROS = 0.01, 3  # their share; a stray zero in a short text
_ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, in Python's "surrogateescape"
# One wrong byte in a thousand is an odd quotation mark of a web page; more is another encoding.
_MAX_BAD_SHARE = 1e-3


def decode(data: bytes, path: str, line: int = 1, offset: int = 0) -> str:
    """Decodes a file, or a line of it, strictly and without its byte order mark.

    Args:
        data: bytes of the file.
        path: of the file, for errors.
        line, offset: number of the first line in `data`, from 1, and bytes of the file before it.
    """
    if not offset:
        _check_kind(data[:SAMPLE_BYTES], path)
    try:
        return data.decode("utf-8" if offset else "utf-8-sig")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise _not_utf8(data, error.start, path, line, offset) from None


def check_sample(sample: bytes, path: str) -> None:
    """Checks the beginning of a file whose bytes that are not UTF-8 will be ignored, unless they are most of the text.

    Args:
        sample: up to `SAMPLE_BYTES`; it may end within a character.
        path: of the file, for errors.
    """
    _check_kind(sample, path)
    text = sample.decode("utf-8", errors="surrogateescape")
    wrong = [index for index, character in enumerate(text) if "\udc80" <= character <= "\udcff"]
    while wrong and wrong[-1] >= len(text) - 3:  # the end may be within a character
        wrong.pop()
    # ASCII is not counted: it is the same in every encoding of interest.
    right = sum(character > "\x7f" for character in text) - len(wrong) if wrong else 0
    if len(wrong) > right and len(wrong) > _MAX_BAD_SHARE * len(sample):
        at = len(text[: wrong[0]].encode())
        raise _not_utf8(sample, at, path, sample.count(b"\n", 0, at) + 1)


def _check_kind(sample: bytes, path: str) -> None:
    """Raises DataError for the beginning of UTF-16 or UTF-32 text, of gzip data and of other files with many zeros."""
    expected = "expected UTF-8 text"
    if sample.startswith(b"\x1f\x8b"):
        raise DataError(f"{path}: byte 0: data compressed by gzip, {expected}; unpack it: gunzip")
    encoding = next((name for mark, name in _MARKS.items() if sample.startswith(mark)), "")
    zeros = sample.count(0)
    if not encoding and zeros > max(_MAX_ZEROS, _MAX_CONTROLS * len(sample)):
        low = sample[::2].count(0)  # zeros at even offsets: the high bytes of ASCII in big-endian order
        encoding = "UTF-16BE" if low > 0.95 * zeros else "UTF-16LE" if low < 0.05 * zeros else ""
        if not encoding:
            raise DataError(f"{path}: byte {sample.index(0)}: 0x00, so binary data, {expected}; name only text files")
    if encoding:
        at = 0 if sample.startswith(tuple(_MARKS)) else sample.index(0)
        raise DataError(f"{path}: byte {at}: {encoding} text, {expected}; convert it: iconv -f {encoding} -t UTF-8")


def _not_utf8(data: bytes, at: int, path: str, line: int, offset: int = 0) -> DataError:
    found = f"{path}:{line}: byte {offset + at}: 0x{data[at]:02x} is not UTF-8"
    sample = data[:SAMPLE_BYTES]
    if len(sample) - len(sample.translate(None, _CONTROLS)) > _MAX_CONTROLS * len(sample):
        return DataError(f"{found}, and control characters show binary data, expected UTF-8 text; name only text files")
    text = sample.decode("utf-8", errors="surrogateescape")
    wrong = len(_ESCAPED.findall(text))
    if len(text) - wrong > len(text.encode("ascii", "ignore")) + wrong:  # iconv would garble all that is right
        return DataError(
            f"{found}, but most of the text is; correct this place, or remove such bytes: iconv -c -f UTF-8"
        )
    return DataError(
        f"{found}; if all of the file has another encoding, convert it: iconv -f CP949 -t UTF-8 (Korean) or iconv -f "
        "CP1252 -t UTF-8 (Western); if only this place is wrong, correct it"
    )
