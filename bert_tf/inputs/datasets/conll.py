"""Readers of tagged sentences: CoNLL's columns, CoNLL-U, KLUE's characters and users' own JSON lines.

CoNLL-2003 (Tjong Kim Sang and De Meulder, 2003), WNUT-16 and similar files have one word per line, in columns, and an
empty line after each sentence. CoNLL-U is universaldependencies.org/format.html. KLUE's named entities (Park et al.,
2021) have one character per line, spaces included.

The readers do not interpret tags. Broken BIO sequences are handled where spans are read from them.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TaggedExample, tagged
from bert_tf.inputs.datasets.text_files import Seen, checked, field, identity, read_json_lines, read_lines

_CONLLU_COLUMNS = {"upos": 3, "xpos": 4}


def read_conll(path: str, column: str = "-1") -> Iterator[TaggedExample]:
    """Reads sentences with one word per line: the word, then columns, separated by tabs or else by spaces.

    Args:
        path: the file. A line -DOCSTART- ends a sentence and starts a document; it is not a sentence itself.
        column: number of the tag column, counted from 1 (the column after the word) or, if negative, from the end. In
            CoNLL-2003, "1" is parts of speech, "2" chunks, and "-1" named entities.

    Yields:
        TaggedExample; `text` has spaces between the words.
    """
    if not re.fullmatch(r"-?[1-9]\d{0,5}", column):
        raise ConfigError(
            f"data.column is {column!r}; expected the number of the tag column, counted from 1, the column after the "
            "word, or from the end, such as -1"
        )
    index = int(column)
    width: int | None = None
    document: int | None = None
    count = 0
    for lines in _blocks(path, lambda text: not text.strip(), _starts_document):
        words: list[str] = []
        tags: list[str] = []
        for number, text in lines:
            if _starts_document(text):
                document = 0 if document is None else document + 1
                continue
            fields = text.split("\t") if "\t" in text else [part for part in text.split(" ") if part]
            location = f"{path}:{number}"
            width = width or len(fields)
            if len(fields) != width:
                raise DataError(f"{location}: {len(fields)} columns; expected {width} as in the lines before")
            if not -width <= index < width or index == -width:
                raise DataError(f"{location}: {width} columns; expected a word and tags in column {column}")
            if not fields[0].strip() or not fields[index].strip():
                raise DataError(f"{location}: {text!r}; expected a word and, in column {column}, a tag")
            if not words:
                first = location
            words.append(fields[0])
            # There may be spaces after a tab; with them it would be another tag.
            tags.append(fields[index].strip())
        if words:
            yield tagged(str(count), words, tags, document, first)
            count += 1
    _check_count(path, count)


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
    document: int | None = None
    seen, count = Seen(), 0
    for lines in _blocks(path, lambda text: not text.strip()):
        words: list[str] = []
        tags: list[str] = []
        name: str | None = None
        for number, text in lines:
            location = f"{path}:{number}"
            if text.startswith("#"):
                key, _, value = text[1:].partition("=")
                if key.split()[:1] == ["newdoc"]:
                    document = 0 if document is None else document + 1
                elif key.strip() == "sent_id":
                    name = value.strip() or None
                continue
            fields = text.split("\t")
            if len(fields) != 10:
                raise DataError(f"{location}: {len(fields)} columns; expected the 10 of CoNLL-U, separated by tabs")
            if re.fullmatch(r"\d+[-.]\d+", fields[0]):
                continue
            if fields[0] != str(len(words) + 1):
                raise DataError(f"{location}: the word's id is {fields[0]!r}; expected {len(words) + 1}")
            tag = fields[_CONLLU_COLUMNS[column]].strip()
            if tag in ("", "_"):
                others = ", ".join(name for name in _CONLLU_COLUMNS if name != column)
                raise DataError(f"{location}: the word {fields[1]!r} has no {column}; tag it or use {others}")
            if not fields[1].strip():
                raise DataError(f"{location}: a tag without a word; CoNLL-U writes an unknown word as _")
            if not words:
                first = location
            words.append(fields[1])
            tags.append(tag)
        if words:
            yield tagged(identity(name, count, seen, first), words, tags, document, first)
            count += 1
    _check_count(path, count)


def read_klue_ner(path: str) -> Iterator[TaggedExample]:
    """Reads KLUE's named entities, `klue-ner-v1.1_*.tsv`: character, tab, tag.

    A line "## id<TAB>sentence" precedes each sentence; "##" lines with comments precede the first.

    Yields:
        TaggedExample; its words are the characters of `text`, spaces included, so `starts` counts from 0.
    """
    seen, count = Seen(), 0
    # Only an empty line separates sentences: one with a space is a character that lost its tag.
    for lines in _blocks(path, lambda text: not text):
        characters: list[str] = []
        tags: list[str] = []
        name: str | None = None
        for number, text in lines:
            location = f"{path}:{number}"
            if text.startswith("##"):
                head, tab, _ = text[2:].partition("\t")
                name = (head.strip() or None) if tab else name
                continue
            # The character may itself be a tab.
            character, tab, tag = text.rpartition("\t")
            if len(character) != 1 or not tag.strip():
                raise DataError(f"{location}: {text[:40]!r}; expected one character, a tab and a tag")
            if not characters:
                first = location
            characters.append(character)
            tags.append(tag.strip())
        if characters:
            yield tagged(identity(name, count, seen, first), characters, tags, None, first, joiner="")
            count += 1
    _check_count(path, count)


def read_tagged_lines(path: str, text: str = "text") -> Iterator[TaggedExample]:
    """Reads users' own sentences, one JSON object per line: {"words": [...], "tags": [...]} or {"text": "..."}.

    "tags" may be missing for prediction; the task splits a "text" into words. The optional "id" is text or a whole
    number.

    Args:
        path: the file; "-" for standard input.
        text: name of the text field.
    """
    seen, count = Seen(), 0
    for number, record in read_json_lines(path):
        location = f"{path}:{number}"
        if isinstance(record, dict) and "words" not in record and text in record:
            example = TaggedExample("", field(record, text, str, location), None, None, None, None, location)
        else:
            example = tagged("", *_words_and_tags(record, location), None, location)
        yield example._replace(id=identity(record.get("id"), count, seen, location))
        count += 1
    _check_count(path, count)


def _words_and_tags(record: Any, location: str) -> tuple[list[str], list[str] | None]:
    words = [_filled(word, f"{location}: words") for word in field(record, "words", list, location)]
    if record.get("tags") is None:
        return words, None
    tags = [_filled(tag, f"{location}: tags").strip() for tag in field(record, "tags", list, location)]
    if len(words) != len(tags):
        raise DataError(f"{location}: {len(words)} words and {len(tags)} tags; expected one per word")
    return words, tags


def _filled(value: Any, location: str) -> str:
    if not checked(value, str, location).strip():
        raise DataError(f"{location}: {value!r}; expected text")
    return value


def _blocks(
    path: str, separates: Callable[[str], bool], starts: Callable[[str], bool] = lambda text: False
) -> Iterator[list[tuple[int, str]]]:
    """Blocks of (line number, text) between lines for which `separates` is true; lines with `starts` begin a block."""
    block: list[tuple[int, str]] = []
    for number, text in read_lines(path):
        if block and (separates(text) or starts(text)):
            yield block
            block = []
        if not separates(text):
            block.append((number, text))
    if block:
        yield block


def _starts_document(text: str) -> bool:
    return text.split()[:1] == ["-DOCSTART-"]


def _check_count(path: str, count: int) -> None:
    if not count:
        raise DataError(f"{path}: no sentences; expected at least one")
