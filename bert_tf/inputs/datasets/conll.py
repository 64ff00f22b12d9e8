"""Readers of tagged sentences: CoNLL's columns, a sentence per line, CoNLL-U, KLUE's characters, and SNIPS' files.

CoNLL-2003 (Tjong Kim Sang and De Meulder, 2003), WNUT-16 and similar files have one word per line, in columns, and an
empty line after each sentence. CoNLL-U is universaldependencies.org/format.html. KLUE's named entities (Park et al.,
2021) have one character per line, spaces included. Naver's Korean named entities are common as one sentence per line
(github.com/monologg/KoBERT-NER).

The readers do not interpret tags. Broken BIO sequences are handled where spans are read from them.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TaggedExample, tagged
from bert_tf.inputs.datasets.text_files import Seen, identity, read_lines

# Lines of a file that show whether its first column is a number.
_PEEKED = 1000
# Lines of these beginnings before a sentence give it as text, in files with tabs (github.com/kmounlp/NER).
_COMMENTS = ("##", ";", "$")
# Lines that give a sentence's id in SemEval's MultiCoNER, whatever separates its columns.
_ID = re.compile(r"# id\s+(\S+)")
_NUMBER = re.compile(r"\d+(?:[-.]\d+)?")  # of a word, also in CoNLL-U
# Words that repeat the one before, from which on it is no coincidence if all of them do.
_REPEATS = 3
_CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
_DOCUMENT = object()  # a line that starts a document
# A line's word and tag, its sentence's id, _DOCUMENT, or None for any other line without a word.
_Line: TypeAlias = tuple[str, str] | str | object | None


def read_conll(path: str, column: str = "-1") -> Iterator[TaggedExample]:
    """Reads sentences with one word per line: the word, then columns, separated by tabs or else by spaces.

    A column before the word that only numbers the words of each sentence is skipped, and so are, in files with tabs,
    lines without a tab before a sentence that begin with one of `_COMMENTS`.

    Args:
        path: the file. A line -DOCSTART- ends a sentence and starts a document; it is not a sentence itself.
        column: number of the tag column, counted from 1 (the column after the word) or, if negative, from the end. In
            CoNLL-2003, "1" is parts of speech, "2" chunks, and "-1" named entities.

    Raises:
        DataError: what should be words are numbers, or a name that each line of a sentence repeats; or the file is
            CoNLL-U, and the tags would be its last column.

    Yields:
        TaggedExample; `text` has spaces between the words.
    """
    if not re.fullmatch(r"-?[1-9]\d{0,5}", column):
        raise ConfigError(
            f"data.column is {column!r}; expected the number of the tag column, counted from 1, the column after the "
            "word, or from the end, such as -1"
        )
    index, width = int(column), 0
    has_tabs, numbered = _layout(path, is_last=column == "-1")

    def parse(text: str, position: int, location: str) -> _Line:
        nonlocal width
        if text.split()[:1] == ["-DOCSTART-"]:
            return _DOCUMENT
        if not position and (of_sentence := _ID.match(text)):
            return of_sentence[1]
        if has_tabs and not position and "\t" not in text and text.startswith(_COMMENTS):
            return None
        fields = _fields(text)[numbered:]
        width = width or len(fields)
        if len(fields) != width:
            raise DataError(
                f"{location}: {len(fields)} columns; expected {width} as in the lines before{_advice(text)}"
            )
        if not -width < index < width:
            raise DataError(f"{location}: {width} columns; expected a word and tags in column {column}")
        # There may be spaces after a tab; with them it would be another tag.
        word, tag = fields[0], fields[index].strip()
        if not word.strip() or not tag:
            raise DataError(f"{location}: {text!r}; expected a word and, in column {column}, a tag")
        if len(word.split()) == len(tag.split()) > 1:
            raise DataError(
                f"{location}: {len(word.split())} words and as many tags; expected one word per line: for a sentence "
                "per line, set data.format to tagged_lines"
            )
        return word, tag

    return _read(path, parse)


def read_sentences(path: str) -> Iterator[TaggedExample]:
    """Reads a sentence per line: its words separated by spaces and, if known, a tab and as many tags.

    Yields:
        TaggedExample; `text` has single spaces between the words.
    """
    count = 0
    for number, text in read_lines(path):
        if not text.strip():
            continue
        location = f"{path}:{number}"
        sentence, tab, labels = text.partition("\t")
        words, tags = ([part for part in column.split(" ") if part] for column in (sentence, labels))
        if not words or (tab and len(words) != len(tags)) or "\t" in labels:
            raise DataError(
                f"{location}: {len(words)} words and {len(tags)} tags; expected words, a tab and one tag per word, "
                f"separated by spaces{_advice(text)}"
            )
        yield tagged(str(count), words, tags if tab else None, None, location)
        count += 1
    if not count:
        raise DataError(f"{path}: no sentences; expected at least one")


def read_conllu(path: str, column: str = "upos") -> Iterator[TaggedExample]:
    """Reads the syntactic words of a CoNLL-U file, with their parts of speech.

    A multiword token ("2-3 don't") is skipped in favour of its words, which have the tags; an empty node ("8.1"), a
    word that is not in the text, is skipped too. Since the words of a multiword token need not be substrings of it,
    `text` has spaces between words and is not the original sentence.

    Args:
        path: the file; comments "# newdoc" start documents, "# sent_id = ..." gives a sentence's id.
        column: "upos", the universal tags, or "xpos", the treebank's own.
    """
    if column not in _CONLLU_COLUMNS:
        raise ConfigError(f'unknown column "{column}" of CoNLL-U; expected one of {", ".join(_CONLLU_COLUMNS)}')

    def parse(text: str, position: int, location: str) -> _Line:
        if text.startswith("#"):
            key, _, value = text[1:].partition("=")
            if key.split()[:1] == ["newdoc"]:
                return _DOCUMENT
            return value.strip() if key.strip() == "sent_id" else None
        fields = text.split("\t")
        if len(fields) != 10:
            raise DataError(f"{location}: {len(fields)} columns; expected the 10 of CoNLL-U, separated by tabs")
        if re.fullmatch(r"\d+[-.]\d+", fields[0]):
            return None
        if fields[0] != str(position + 1):
            raise DataError(f"{location}: the word's id is {fields[0]!r}; expected {position + 1}")
        word, tag = fields[1], fields[_CONLLU_COLUMNS[column]].strip()
        if tag in ("", "_"):
            others = ", ".join(name for name in _CONLLU_COLUMNS if name != column)
            raise DataError(f"{location}: the word {word!r} has no {column}; tag it or use {others}")
        if not word.strip():
            raise DataError(f"{location}: a tag without a word; CoNLL-U writes an unknown word as _")
        return word, tag

    return _read(path, parse)


def read_klue_ner(path: str) -> Iterator[TaggedExample]:
    """Reads KLUE's named entities, `klue-ner-v1.1_*.tsv`: character, tab, tag.

    A line "## id<TAB>sentence" precedes each sentence; "##" lines with comments precede the first.

    Yields:
        TaggedExample; its words are the characters of `text`, spaces included, so `starts` counts from 0.
    """

    def parse(text: str, position: int, location: str) -> _Line:
        if text.startswith("##"):
            head, tab, _ = text[2:].partition("\t")
            return head.strip() if tab else None
        # The character may itself be a tab.
        character, _, tag = text.rpartition("\t")
        if len(character) != 1 or not tag.strip():
            raise DataError(f"{location}: {text[:40]!r}; expected one character, a tab and a tag{_advice(text)}")
        return character, tag.strip()

    # Only an empty line separates sentences: one with a space is a character that lost its tag.
    return _read(path, parse, ends=lambda text: not text, joiner="")


def _advice(text: str) -> str:
    """The end of an error for a line that the reader cannot use, if it shows what other format the file has."""
    fields, columns = text.split("\t"), text.split()
    is_word = len(fields) == 10 and _NUMBER.fullmatch(fields[0])
    if text.startswith("#begin document") or (len(columns) > 11 and columns[1].isdecimal() and columns[2].isdecimal()):
        return "; of CoNLL-2012, write only words and tags, its columns 4 and, for names, 11"
    return "; for CoNLL-U, set data.format to conllu" if is_word or re.match(r"# \w+ = ", text) else ""


def _fields(text: str) -> list[str]:
    """The columns of a line."""
    return text.split("\t") if "\t" in text else [part for part in text.split(" ") if part]


def _layout(path: str, *, is_last: bool) -> tuple[bool, bool]:
    """Whether a file has tabs, and whether the first of its columns counts the words.

    Args:
        path: the file.
        is_last: whether the tags are in the last column.

    Raises:
        DataError: as `read_conll`.
    """
    lines = [text for _, text in itertools.islice(read_lines(path), _PEEKED) if not _ID.match(text)]
    has_tabs = any("\t" in text for text in lines)
    fields = [[] if has_tabs and "\t" not in text else _fields(text) for text in lines]
    numbered = _is_numbered(fields)
    words = [one[numbered] if len(one) > 1 + numbered else None for one in fields]  # None between sentences
    pairs = [(word, following) for word, following in itertools.pairwise(words) if word and following]
    given = list(filter(None, words))
    advice = next(filter(None, map(_advice, lines)), "; write the words into the first column")
    if len(given) > 1 and all(map(_NUMBER.fullmatch, given)):
        raise DataError(f"{path}: all lines begin with numbers, such as {given[0]!r}; expected words{advice}")
    if len(pairs) >= _REPEATS and all(word == following for word, following in pairs):
        raise DataError(f"{path}: all lines of a sentence begin with {given[0]!r}; expected words{advice}")
    if is_last and numbered and "conllu" in advice:
        raise DataError(f"{path}: words of CoNLL-U, whose last column has no tags{advice}")
    return has_tabs, numbered


def _is_numbered(lines: Sequence[Sequence[str]]) -> bool:
    """Whether the first of at least three columns counts the words.

    Within a sentence it rises by one or, for the parts of a word, stays the same.
    """
    last, rises = None, False
    for fields in lines:
        if len(fields) < 3:  # between sentences
            last = None
            continue
        number = int(fields[0]) if re.fullmatch(r"[0-9]{1,9}", fields[0]) else None
        if number is None or (last is not None and number - last not in (0, 1)):
            return False
        rises |= last is not None and number > last
        last = number
    return rises


def _read(
    path: str,
    parse: Callable[[str, int, str], _Line],
    ends: Callable[[str], bool] = lambda text: not text.strip(),
    joiner: str = " ",
) -> Iterator[TaggedExample]:
    """Reads sentences between lines for which `ends` is true.

    Args:
        path: the file.
        parse: maps (line, number of words before it in the sentence, location) to what the line is.
        ends: whether a line ends a sentence.
        joiner: between the words of a text.
    """
    document: int | None = None
    seen, count = Seen(), 0
    words: list[tuple[str, str]] = []
    name, first = "", ""
    for number, text in itertools.chain(read_lines(path), [(0, "")]):
        location = f"{path}:{number}"
        line = None if ends(text) else parse(text, len(words), location)
        if words and (line is _DOCUMENT or ends(text)):
            own, tags = zip(*words, strict=True)
            yield tagged(identity(name or None, count, seen, first), own, tags, document, first, joiner=joiner)
            count += 1
            words = []
        if line is _DOCUMENT:
            document = 0 if document is None else document + 1
        if ends(text):
            words, name = [], ""
        elif isinstance(line, str):
            name = line
        elif isinstance(line, tuple):
            first = first if words else location
            words.append(line)
    if not count:
        raise DataError(f"{path}: no sentences; expected at least one")


def read_intents(path: str) -> Iterator[TaggedExample]:
    """Reads intents and slots in three files that belong together (SNIPS, ATIS), a text a line: its words in seq.in,
    as many tags in seq.out, and its intent in label.

    Args:
        path: the file seq.in; the others are beside it, and may both be missing for prediction.
    """
    others = [os.path.join(os.path.dirname(path), name) for name in ("seq.out", "label")]
    present = [read_lines(file) for file in others if os.path.exists(file)]
    if len(present) == 1:
        missing = next(file for file in others if not os.path.exists(file))
        raise DataError(f"{missing}: not there; expected the tags in seq.out and the intents in label, beside {path}")
    rows = itertools.zip_longest(read_lines(path), *present)
    for number, row in enumerate(rows):
        location = f"{path}:{number + 1}"
        if None in row:
            raise DataError(f"{location}: {' and '.join(others)} have another number of lines; expected one per text")
        words, *rest = (line.split() for _, line in row)
        if not words and not any(rest):
            continue
        tags, label = rest or (None, [None])
        if not words or (tags is not None and len(tags) != len(words)):
            raise DataError(
                f"{location}: {len(words)} words and {len(tags or ())} tags in {others[0]}; expected one per word"
            )
        if len(label) != 1:
            raise DataError(
                f"{location}: {' '.join(map(str, label))!r} in {others[1]}; expected the name of one intent"
            )
        yield tagged(str(number), words, tags, None, location)._replace(label=label[0])
