"""Readers of published data sets: errors for broken files, and the contents of a ReadReport."""

import codecs
import gzip
import tracemalloc

import pytest

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.text_files import Seen, field, read_csv, read_json, read_json_lines, read_lines
from bert_tf.text.encoding import decode
from tests.errors import raises
from tests.inputs.datasets.reading import read

# Each with a small valid file.
READERS = {
    "glue/rte": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n",
    "sst": "a b\t1\nc\t0\n",
    "nsmc": "id\tdocument\tlabel\n1\t좋다\t1\n",
    "klue/ynat": '[{"guid": "1", "title": "아", "label": "경제"}]\n',
    "clinc150": '{"train": [["hi", "greet"]], "oos_train": []}\n',
    "conll": "a O\nb B-X\n\n",
    "conllu": "1\ta\ta\tNOUN\t_\t_\t0\troot\t_\t_\n\n",
    "klue/ner": "## x-1\ta b\na\tO\n \tO\nb\tB-PS\n\n",
    "squad": '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "c", "answers": '
    '[{"text": "b", "answer_start": 2}]}]}]}]}\n',
    "swag": ",sent1,sent2,ending0,ending1,ending2,ending3,label\n0,a.,She,b,c,d,e,3\n",
    "choices": '{"context": "a", "choices": ["b", "c"], "label": 1}\n',
}


@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_and_dos_line_ends_change_nothing(write, name):
    content = READERS[name].encode()
    plain = read(name, write("file", content))
    assert plain
    assert read(name, write("file", codecs.BOM_UTF8 + content.replace(b"\n", b"\r\n"))) == plain


@pytest.mark.parametrize("name", READERS)
def test_text_that_is_not_utf8_is_reported_with_its_line(write, name):
    content = READERS[name].encode()
    lines = content.count(b"\n")
    path = write("file", content + "보다".encode("cp949"))
    with raises(DataError, f"{path}:{lines + 1}", len(content), "0xba", "UTF-8"):
        read(name, path)


def test_a_wrong_byte_in_utf8_text_is_to_be_corrected_and_not_the_encoding_of_the_file():
    with raises(DataError, "a:2", "byte 17", "0xff", "UTF-8") as refused:
        decode("한국어 문장\n".encode() + b"\xff\n", "a")
    assert "CP949" not in str(refused.value)  # would garble all the rest


@pytest.mark.parametrize("content, message", [
    ("é".encode() + b"\xe9", "byte 2: 0xe9 is not UTF-8; if all of the file has another encoding, convert it"),
    (2 * "é".encode() + b"\xe9", "byte 4: 0xe9 is not UTF-8, but most of the text is"),
    ("a\tb\n".encode("utf-16"), "byte 0: UTF-16 text, expected UTF-8 text; convert it: iconv -f UTF-16 -t UTF-8"),
    ("a\tb\n".encode("utf-16-be"), "byte 0: UTF-16BE text, expected UTF-8 text; convert it: iconv -f UTF-16BE"),
    (gzip.compress(b"a\tb\n", mtime=0), "byte 0: data compressed by gzip, expected UTF-8 text; unpack it"),
    (b"PK\3\4\5" + bytes(9), "byte 5: 0x00, so binary data, expected UTF-8 text"),
])  # fmt: skip
def test_files_that_are_no_text_are_named_in_the_error(write, content, message):
    path = write("a.tsv", content)
    with raises(DataError, path, message):
        list(read_lines(path))


def test_ids_of_any_length_take_at_most_two_hundred_bytes_and_duplicates_are_found():
    seen = Seen()
    tracemalloc.start()
    for number in range(20_000):
        name = f"보기-{number}" + 300 * (number > 7) * "x"
        assert seen.add(name, f"file:{number}") == name
    assert tracemalloc.get_traced_memory()[0] < 200 * 20_000
    tracemalloc.stop()
    assert len(seen) == 20_000
    with pytest.raises(DataError) as raised:
        seen.add("보기-7", "file:20000")
    assert str(raised.value) == "file:20000: the id '보기-7' was used before; make ids unique"


@pytest.mark.parametrize("name", [*READERS, "copa"])
def test_an_empty_or_missing_file_is_named(write, tmp_path, name):
    for path, message in (
        (write("empty", ""), "the file is empty"),
        (str(tmp_path / "none"), "no such file"),
        (str(tmp_path), "a directory"),
    ):
        with pytest.raises(DataError) as raised:
            read(name, path)
        assert str(raised.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("name", READERS)
def test_a_file_without_examples_is_an_error(write, name):
    nothing = {
        "klue/ynat": "[]", "clinc150": '{"train": [], "oos_train": []}', "squad": '{"data": []}',
        "glue/rte": "index\tsentence1\tsentence2\tlabel\n", "nsmc": "id\tdocument\tlabel\n",
        "swag": ",sent1,sent2,ending0,ending1,ending2,ending3,label\n",
    }  # fmt: skip
    with raises(DataError, "expected at least one"):
        read(name, write("file", nothing.get(name, "\n\n")))


@pytest.mark.parametrize("name", [name for name in READERS if name in ("klue/ynat", "clinc150", "squad", "choices")])
def test_invalid_json_is_reported_with_line_and_column(write, name):
    path = write("file", READERS[name].replace("}", "", 1))
    with raises(DataError, path, "JSON"):
        read(name, path)


@pytest.mark.parametrize("value", ["[" * 200_000, "[" * 200_000 + "]" * 200_000, "7" * 5000], ids=len)
def test_json_values_that_python_cannot_represent_are_reported_with_their_line(write, value):
    message = "JSON with lists or objects nested too deeply, or a number with thousands of digits; correct it"
    path = write("a.jsonl", "1\n\n" + value)
    with pytest.raises(DataError) as raised:
        list(read_json_lines(path))
    assert str(raised.value) == f"{path}:3: {message}"
    path = write("a.json", value)
    with pytest.raises(DataError) as raised:
        read_json(path)
    assert str(raised.value) == f"{path}:1: {message}"


def test_only_a_line_feed_ends_a_line(write):
    texts = ["a\u2028b", "a\x0bb", "a\x85b", "a\rb", ""]
    assert list(read_lines(write("file", "\n".join(texts) + "\n"))) == list(enumerate(texts, 1))


def test_lines_are_streamed(write):
    path = write("file", b"a\n" * 3 + b"\xff\n")
    lines = read_lines(path)
    assert [next(lines) for _ in range(3)] == [(1, "a"), (2, "a"), (3, "a")]
    with raises(DataError, ":4", "byte 6", "0xff"):
        next(lines)


def test_csv_rows_have_the_number_of_their_last_line(write):
    assert list(read_csv(write("file", 'a,b\n"c\nd","e"\n\nf,g\n'))) == [
        (1, ["a", "b"]),
        (3, ["c\nd", "e"]),
        (4, []),
        (5, ["f", "g"]),
    ]


@pytest.mark.parametrize(
    "record, kind, message",
    [
        ({"a": 1}, str, "file: a is 1; expected text"),
        ({"a": True}, int, "file: a is true; expected a whole number"),
        ({"a": 1.5}, int, "file: a is 1.5; expected a whole number"),
        ({"a": None}, list, "file: a is null; expected a list"),
        ({"a": float("nan")}, str | float, "file: a is NaN; expected text or a number"),
        ({"a": float("-inf")}, float, "file: a is -Infinity; expected a number"),
        ({"b": 1, "c": 2}, int, "file: no field 'a'; the fields are 'b', 'c'"),
        (["a"], str, "file: list; expected an object with the field 'a'"),
        ({"a": "x\ud800"}, str, 'file: a has half of a surrogate pair, "x\\ud800"; remove it'),
    ],
)
def test_a_field_of_the_wrong_type_is_named(record, kind, message):
    with pytest.raises(DataError) as raised:
        field(record, "a", kind, "file")
    assert str(raised.value) == message


def test_an_integer_is_accepted_as_a_float():
    assert field({"a": 3}, "a", float, "file") == 3


def test_skipped_examples_are_counted_listed_and_reported_by_frequency():
    read_report = ReadReport()
    read_report.add("rare", "a:1")
    for line in range(1000):
        read_report.add("often", f"b:{line}")
    assert read_report.counts == {"rare": 1, "often": 1000}
    assert read_report.locations == {"rare": ["a:1"], "often": [f"b:{line}" for line in range(100)]}
    assert read_report.lines() == ["often: 1,000 (b:0, b:1, b:2, b:3, b:4, ...)", "rare: 1 (a:1)"]
