"""Tagged sentences: CoNLL's columns, CoNLL-U, KLUE's characters and anybody's own JSON lines.

CoNLL-2003 (Tjong Kim Sang and De Meulder, 2003), WNUT-16 and their like have a word a line, columns, and an empty line
behind each sentence. CoNLL-U is universaldependencies.org/format.html. KLUE's named entities (Park et al., 2021) have a
character a line, spaces included.

What the tags say is not looked at here: whether a sequence of BIO tags is whole is for those who read spans from it.
"""

import re

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TaggedExample, tagged
from bert_tf.inputs.datasets.text_files import Seen, checked, field, identity, read_json_lines, read_lines

_CONLLU_COLUMNS = {"upos": 3, "xpos": 4}


def read_conll(path, column="-1"):
    """Sentences of a file with a word a line: the word, then columns, divided by tabs or else by spaces.

    Args:
        path: the file. A line -DOCSTART- ends a sentence and opens a document; no sentence comes of it.
        column: which one holds the tags, a number from 1, the one behind the word's, or from the end. Of CoNLL-2003,
            "1" is parts of speech, "2" chunks, and "-1" named entities.

    Yields:
        TaggedExample; `text` has spaces between the words.

    Raises:
        ConfigError: `column` is no such number.
        DataError: as `read_lines`; a line has another number of columns than the first, or no word or tag, or there is
            no such column, or no sentence; with the line.
    """
    if not re.fullmatch(r"-?[1-9]\d{0,5}", column):
        raise ConfigError(
            f"data.column is {column!r}; expected the number of a column of tags, from 1, the one behind the "
            "word, or from the end, such as -1"
        )
    column = int(column)
    width = document = None
    count = 0
    for lines in _blocks(path, lambda text: not text.strip(), _opens_document):
        words, tags = [], []
        for number, text in lines:
            if _opens_document(text):
                document = 0 if document is None else document + 1
                continue
            fields = text.split("\t") if "\t" in text else [part for part in text.split(" ") if part]
            location = f"{path}:{number}"
            width = width or len(fields)
            if len(fields) != width:
                raise DataError(f"{location}: {len(fields)} columns; expected {width} as in the lines before")
            if not -width <= column < width or column == -width:
                raise DataError(f"{location}: {width} columns; expected a word and tags in column {column}")
            if not fields[0].strip() or not fields[column].strip():
                raise DataError(f"{location}: {text!r}; expected a word and, in column {column}, a tag")
            if not words:
                first = location
            words.append(fields[0])
            # Behind a tab there may be spaces, and they would make another tag.
            tags.append(fields[column].strip())
        if words:
            yield tagged(str(count), words, tags, document, first)
            count += 1
    _check_count(path, count)


def read_conllu(path, column="upos"):
    """Sentences of a CoNLL-U file: its syntactic words, with their parts of speech.

    A multiword token ("2-3 don't") is left out in favour of its words, which have the tags; so is an empty node
    ("8.1"), a word that is not in the text. As the words of a multiword token need not be parts of it, `text` has
    spaces between words, and is not the sentence as it was written.

    Args:
        path: the file; comments "# newdoc" open documents, "# sent_id = ..." names sentences.
        column: "upos", the universal tags, or "xpos", the treebank's own.

    Yields:
        TaggedExample.

    Raises:
        ConfigError: another column.
        DataError: as `read_lines`; a line has not ten columns, no tag there, or an id out of order, a sentence the id
            of another, or there is no sentence; with the line.
    """
    if column not in _CONLLU_COLUMNS:
        raise ConfigError(f'unknown column "{column}" of CoNLL-U; expected one of {", ".join(_CONLLU_COLUMNS)}')
    document = None
    seen, count = Seen(), 0
    for lines in _blocks(path, lambda text: not text.strip()):
        words, tags, name = [], [], None
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
                raise DataError(f"{location}: {len(fields)} columns; expected the 10 of CoNLL-U, divided by tabs")
            if re.fullmatch(r"\d+[-.]\d+", fields[0]):
                continue
            if fields[0] != str(len(words) + 1):
                raise DataError(f"{location}: the word's id is {fields[0]!r}; expected {len(words) + 1}")
            tag = fields[_CONLLU_COLUMNS[column]].strip()
            if tag in ("", "_"):
                others = ", ".join(name for name in _CONLLU_COLUMNS if name != column)
                raise DataError(f"{location}: the word {fields[1]!r} has no {column}; tag it or take {others}")
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


def read_klue_ner(path):
    """Sentences of KLUE's named entities, `klue-ner-v1.1_*.tsv`: character, tab, tag.

    A line of "## id<TAB>sentence" precedes each sentence, and lines "##" of remarks the first.

    Args:
        path: the file.

    Yields:
        TaggedExample whose words are the characters of `text`, spaces included: `starts` counts from 0.

    Raises:
        DataError: as `read_lines`; a line is not a character and a tag, a sentence has the id of another, or there is
            no sentence; with the line.
    """
    seen, count = Seen(), 0
    # Only an empty line divides: one with a space is a character that lost its tag.
    for lines in _blocks(path, lambda text: not text):
        characters, tags, name = [], [], None
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


def read_tagged_lines(path, text="text"):
    """Anybody's own sentences, a JSON object a line: {"words": [...], "tags": [...]} or {"text": "..."}.

    Without "tags" a sentence is there to be answered; a "text" is cut into words by the task. "id" names it,
    text or a whole number.

    Args:
        path: the file; "-" for standard input.
        text: what the field is called that has a text.

    Yields:
        TaggedExample.

    Raises:
        DataError: as `read_json_lines` and `identity`; a field is missing or of another type, a word or tag is empty,
            or there is not one tag a word, or no sentence.
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


def _words_and_tags(record, location):
    words = [_filled(word, f"{location}: words") for word in field(record, "words", list, location)]
    if record.get("tags") is None:
        return words, None
    tags = [_filled(tag, f"{location}: tags").strip() for tag in field(record, "tags", list, location)]
    if len(words) != len(tags):
        raise DataError(f"{location}: {len(words)} words and {len(tags)} tags; expected one a word")
    return words, tags


def _filled(value, location):
    if not checked(value, str, location).strip():
        raise DataError(f"{location}: {value!r}; expected text")
    return value


def _blocks(path, divides, opens=lambda text: False):
    """Lists of (line number, text) between lines that `divides` is true for; where `opens` is true, one begins."""
    block = []
    for number, text in read_lines(path):
        if block and (divides(text) or opens(text)):
            yield block
            block = []
        if not divides(text):
            block.append((number, text))
    if block:
        yield block


def _opens_document(text):
    return text.split()[:1] == ["-DOCSTART-"]


def _check_count(path, count):
    if not count:
        raise DataError(f"{path}: no sentences; expected at least one")
