"""Tables: the three file types, and errors with the file and line of each invalid row."""

import csv
import json

import pytest

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.json_lines import read_text_lines
from bert_tf.inputs.datasets.tables import read_table, read_texts
from tests.errors import raises


def read_columns(path, columns):
    """`columns` of a table, or of JSON lines whose second column is the label."""
    if not path.endswith(".jsonl"):
        return read_table(path, columns)
    rows = list(read_text_lines(path, (columns[0],), columns[1]))
    return {columns[0]: [row.texts[0] for row in rows], columns[1]: [row.label for row in rows]}


def located(path, *columns):
    return [(int(row.location.removeprefix(f"{path}:")), *row.texts) for row in read_texts(path, columns)]


@pytest.fixture
def table(tmp_path):
    """Writes a file; returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_columns_are_found_by_name_in_any_order(table):
    path = table("a.tsv", "label\tid\tsentence\nyes\t1\tone two\nno\t2\tthree\n")
    rows = read_table(path, ["sentence", "label"])
    assert rows == {"sentence": ["one two", "three"], "label": ["yes", "no"]}


def test_quotes_are_text_in_tsv(table):
    rows = read_table(table("a.tsv", 'text\tlabel\n"open\tx\na "b" c\ty\n""\tz\n'), ["text", "label"])
    assert rows == {"text": ['"open', 'a "b" c', '""'], "label": ["x", "y", "z"]}


def test_csv_quotes_commas_quotes_and_line_ends(table, tmp_path):
    texts = ["a, b", 'say "yes"', "two\nlines", "", "plain"]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *([text, "x"] for text in texts)])
    rows = located(str(tmp_path / "a.csv"), "text", "label")
    assert [text for _, text, _ in rows] == texts
    assert [number for number, _, _ in rows] == [2, 3, 5, 6, 7]  # a row has the number of its last line


def test_jsonl_reads_the_named_fields(table):
    lines = [{"text": "a\tb\nc", "label": 1, "more": []}, {"label": "é", "text": "中"}]
    path = table("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert read_columns(path, ["text", "label"]) == {"text": ["a\tb\nc", "中"], "label": [1, "é"]}


CONTENTS = {
    "a.tsv": "text\tlabel\none\tx\ntwo\ty\n",
    "a.csv": "text,label\none,x\ntwo,y\n",
    "a.jsonl": '{"text": "one", "label": "x"}\n{"text": "two", "label": "y"}\n',
}
EXPECTED = {"text": ["one", "two"], "label": ["x", "y"]}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: "\ufeff" + text.replace("\n", "\r\n"),
        lambda text: text.removesuffix("\n"),
        lambda text: text + "\n\n",
        lambda text: text.replace("\n", "\n\n"),
    ],
    ids=["plain", "crlf", "bom", "bom_crlf", "no_last_newline", "empty_end", "empty_lines"],
)
def test_line_ends_byte_order_marks_and_empty_lines_are_ignored(table, name, change):
    assert read_columns(table(name, change(CONTENTS[name])), ["text", "label"]) == EXPECTED


def test_line_numbers_count_empty_lines(table):
    path = table("a.tsv", "text\tlabel\n\none\ta\n\n\ntwo\tb\n")
    assert located(path, "text") == [(3, "one"), (6, "two")]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_an_empty_line_of_a_single_column_is_a_row_unless_it_is_the_last(table, name):
    path = table(name, "text\n\none\n\n\ntwo\n\n\n")
    assert located(path, "text") == [(2, ""), (3, "one"), (4, ""), (5, ""), (6, "two")]
    with raises(DataError, "no rows"):
        located(table(name, "text\n\n\n"), "text")


def test_a_quoted_empty_cell_is_a_row_wherever_it_is(table):
    assert read_table(table("a.csv", 'text\none\n""\n'), ["text"]) == {"text": ["one", ""]}


def test_only_a_newline_ends_a_line(table):
    # str.splitlines would also split at these.
    texts = ["a\u2028b", "a\x0bb", "a\x85b", "a\rb"]
    assert read_table(table("a.tsv", "text\n" + "\n".join(texts) + "\n"), ["text"])["text"] == texts


def test_a_very_long_line_is_a_row(table):
    long = "word " * 2_000_000
    for name, content in (("a.tsv", f"text\n{long}x\n"), ("a.csv", f'text\n"{long}x"\n')):
        assert read_table(table(name, content), ["text"])["text"] == [long + "x"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.tsv", "text\tlabel\na\tb\nc\n", ":3: 1 columns; expected 2"),
        ("a.csv", 'text,label\n"a\nb",c\nd\n', ":4: 1 columns; expected 2"),
        ("a.tsv", "txt\tlabel\na\tb\n", ":1: no column 'text'; the columns are 'txt', 'label'"),
        ("a.tsv", "text\tlabel\ttext\na\tb\tc\n", ":1: the column 'text' occurs 2 times; rename all but one"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"label": "c"}\n', ":2: no field 'text'; the fields are 'label'"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n\n{"text": \n', ":3: not JSON"),
        ("a.jsonl", '{"text": null}\n', ":1: text is null; expected text or a number"),
        ("a.jsonl", '["text", "label"]\n', ":1: list; expected an object with the field 'text'"),
        ("a.jsonl", '"text label"\n', ":1: str; expected an object with the field 'text'"),
        ("a.tsv", b"text\tlabel\na\tb\nc\xb0\xa1\td\n", ":3: byte 16: 0xb0 is not UTF-8"),
        ("a.csv", b"text,label\n\xff,b\n", ":2: byte 11: 0xff is not UTF-8"),
        ("a.jsonl", b'{"text": "\xe9"}\n', ":1: byte 10: 0xe9 is not UTF-8"),
        ("a.csv", 'text,label\n"a"b,c\n', ":2: "),
        ("a.csv", 'text,label\na,"b\n', ":2: unexpected end of data"),
        ("a.tsv", "", ": the file is empty"),
        ("a.csv", "\n\n", ": no rows; expected at least one"),
        ("a.jsonl", "", ": the file is empty"),
        ("a.tsv", "text\tlabel\n", ": no rows"),
        ("a.csv", "text,label\n\n", ": no rows"),
        ("a.txt", "text\n", ":1: no column 'label'; the columns are 'text'"),
        ("a.txt", "text:label\n", ":1: no column 'text'; the columns are 'text:label'"),
        ("a.csv", "Text;label\na;b\n", ":1: no column 'text'; the columns are 'Text', 'label'"),
        ("a.csv", 'text;label\n"a"b;c\n', ":2: "),
        ("a.json", '\n[{"text": "a"}]\n', ":2: JSON, expected a table; JSON lines are read if the name ends in .jsonl"),
        ("a.xlsx", b"PK\3\4" + bytes(20), ": byte 4: 0x00, so binary data, expected UTF-8 text"),
        # A single half of a surrogate pair is valid JSON, but cannot be written as UTF-8.
        ("a.jsonl", '{"text": "ok", "label": "b"}\n{"text": "a\\ud800", "label": "b"}\n', ":2: "),
    ],
)
def test_errors_give_file_and_line(table, name, content, message):
    path = table(name, content)
    with pytest.raises(DataError) as raised:
        read_columns(path, ["text", "label"])
    assert str(raised.value).startswith(path + message), raised.value
    assert "\n" not in str(raised.value)


def test_every_row_is_an_example_and_has_no_label_without_a_label_column(table):
    path = table("a.csv", 'text,other,label\na,b,x\na," ",y\nc,d,\n')
    assert list(read_texts(path, ("text", "other"), "label")) == [
        TextExample("0", ("a", "b"), "x", f"{path}:2"),
        TextExample("1", ("a", " "), "y", f"{path}:3"),
        TextExample("2", ("c", "d"), "", f"{path}:4"),
    ]
    path = table("b.csv", 'text,other\na," "\n')
    assert list(read_texts(path, ("text", "other"), "label")) == [TextExample("0", ("a", " "), None, f"{path}:2")]


@pytest.mark.parametrize("name, content", [
    ("a.txt", "text\tlabel\n\"a\", b\tx\nc\ty\n"),
    ("a.txt", 'text,label\n"""a"", b",x\nc,y\n'),
    ("a", "label,text\nx,\"\"\"a\"\", b\"\ny,c\n"),
])  # fmt: skip
def test_the_first_line_shows_what_separates_columns_if_the_name_does_not(table, name, content):
    rows = [(example.texts, example.label) for example in read_texts(table(name, content), ("text",), "label")]
    assert rows == [(('"a", b',), "x"), (("c",), "y")]


SEPARATED = {
    "Excel in Germany": ("a.csv", 'text;label\n"a; b";x\n"say ""c"", d";y\n', ["a; b", 'say "c", d']),
    "tabs in .csv": ("a.csv", 'text\tlabel\n"a, b\tx\nc\ty\n', ['"a, b', "c"]),  # quotes are text, as in .tsv
    "quoted names": ("a.tsv", '"text"\t"label"\n"a ""b"""\t"x"\n"c"\t"y"\n', ['a "b"', "c"]),
    "commas in .tsv": ("a.tsv", 'text,label\n"a, b",x\nc,y\n', ["a, b", "c"]),
    "bars": ("a.txt", "label|text\nx|a, b\ny|c; d\n", ["a, b", "c; d"]),
}


@pytest.mark.parametrize("case", SEPARATED)
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_the_names_in_the_header_show_what_separates_columns(table, case, start):
    name, content, texts = SEPARATED[case]
    rows = list(read_texts(table(name, start + content), ("text",), "label", labelled=True))
    assert [(row.texts[0], row.label) for row in rows] == list(zip(texts, "xy", strict=True))


def test_semicolons_without_header_are_told_from_those_of_texts(table):
    rows = "x;a, b\ny;c\n", "x,a; b\ny,c; d\n"
    for content, texts in zip(rows, (["a, b", "c"], ["a; b", "c; d"]), strict=True):
        found = list(read_texts(table("a.csv", content), ("2",), "1"))
        assert [row.texts[0] for row in found] == texts and [row.label for row in found] == ["x", "y"]
    lines = ["Hello, you, there", "Bye"]  # sentences without labels
    assert [row.texts[0] for row in read_texts(table("a.txt", "\n".join(lines)), ("1",))] == lines


@pytest.mark.parametrize("name, content", [("a.csv", 'x,1,"a, b"\ny,2,c\n'), ("a.txt", "x\t1\ta, b\ny\t2\tc\n")])
def test_columns_of_a_table_without_header_have_numbers(table, name, content):
    path = table(name, content)
    assert list(read_texts(path, ("3",), "1")) == [
        TextExample("0", ("a, b",), "x", f"{path}:1"), TextExample("1", ("c",), "y", f"{path}:2")
    ]  # fmt: skip
    assert [(row.texts, row.label) for row in read_texts(path, ("3", "2"), "label")] == [
        (("a, b", "1"), None), (("c", "2"), None)
    ]  # fmt: skip
    with raises(DataError, f"{path}:1", "'4'", "'x'", "'1'", "'a, b'"):
        list(read_texts(path, ("4",)))
    # A header with these names is a header.
    assert [row.texts for row in read_texts(table("b.tsv", "2\t1\na\tb\n"), ("1",))] == [("b",)]


def test_a_label_in_json_may_be_a_list_but_a_text_may_not(table):
    rows = [{"text": "a", "label": ["x", 2]}, {"text": "b", "label": []}, {"text": "c", "label": 1.5}, {"text": "d"}]
    path = table("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [example.label for example in read_text_lines(path, ("text",), "label")] == [("x", 2), (), 1.5, None]
    path = table("b.jsonl", json.dumps({"text": ["a"]}) + "\n")
    with raises(DataError, "b.jsonl:1", '["a"]'):
        list(read_text_lines(path, ("text",), "label"))


@pytest.mark.parametrize(
    "row, message",
    [
        ({"text": True}, "text is true; expected text or a number"),
        ({"text": "a", "label": False}, "label is false; expected text or a number"),
        ({"text": "a", "label": [None, 1]}, "label[0] is null; expected text or a number"),
        ({"text": "a", "label": ["x", True]}, "label[1] is true; expected text or a number"),
        ({"text": "a", "label": {"x": 1}}, 'label is {"x": 1}; expected text or a number'),
        ({"text": "a", "label": ["\ud800"]}, 'label[0] has half of a surrogate pair, "\\ud800"; remove it'),
    ],
)
def test_labels_and_texts_in_json_must_be_text_or_numbers(table, row, message):
    path = table("a.jsonl", json.dumps({"text": 7, "label": 1}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError) as raised:
        list(read_text_lines(path, ("text",), "label"))
    assert str(raised.value) == f"{path}:2: {message}"


def test_a_missing_file_is_named(tmp_path):
    with raises(DataError, "none.tsv"):
        read_table(str(tmp_path / "none.tsv"), ["text"])
