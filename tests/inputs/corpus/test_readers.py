import functools
import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.corpus import readers
from bert_tf.inputs.corpus.readers import check_text_files, find_files, read_source
from tests.errors import raises


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@functools.cache
def reader(layout):
    """`read_source`, traced once."""
    return tf.function(lambda path: read_source(path, layout), autograph=False)


def documents_of(files, layout="sentences", reader=reader):
    documents = [document for file in files for document, _, _ in reader(layout)(tf.constant(file))]
    return [[s.decode() for s in document.flat_values.numpy()] for document in documents if document.nrows()]


def test_patterns_are_expanded_and_sorted_without_duplicates(tmp_path):
    b, a = write(tmp_path / "b.txt", "b"), write(tmp_path / "a.txt", "a")
    (tmp_path / "folder.txt").mkdir()
    assert find_files(f"{tmp_path}/*.txt") == [a, b]
    assert find_files([b, f"{tmp_path}/*.txt"]) == [a, b]


@pytest.mark.parametrize("pattern", ["", " ", "nosuch-scheme://x/y.txt", "nosuch-scheme://x/*.txt"])
def test_what_is_no_file_here_is_one_line(tmp_path, pattern):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError) as raised:
        find_files([str(tmp_path / "a.txt"), pattern])
    assert (pattern.strip() or repr(pattern)) in str(raised.value) and "at least one text file" in str(raised.value)


def test_a_file_name_with_brackets_is_found(tmp_path):
    path = write(tmp_path / "part[1].txt", "text")
    assert find_files(path) == [path]


@pytest.mark.parametrize("pattern", ["*.nothing", "missing.txt", "."])
def test_a_pattern_without_files_is_named(tmp_path, pattern):
    with raises(DataError, "at least one text file") as error:
        find_files(f"{tmp_path}/{pattern}")
    assert pattern in str(error.value) and "\n" not in str(error.value)


def test_no_patterns_at_all_are_an_error():
    with raises(DataError, "no input files"):
        find_files([])


@pytest.mark.parametrize(
    "content",
    [
        "One.\nTwo.\n\nThree.\n",
        "One.\nTwo.\n\nThree.",
        "\n\n One. \nTwo.\t\n\n\n \t \n\u3000\nThree.\n\n\n",
        "One.\r\nTwo.\r\n\r\nThree.\r\n",
        "\ufeff\nOne.\nTwo.\n\u00a0\nThree.\n",
    ],
    ids=["plain", "no line end at the end", "many blank lines", "CRLF", "byte order mark"],
)
def test_blank_lines_separate_documents(tmp_path, content):
    assert documents_of([write(tmp_path / "a.txt", content)]) == [["One.", "Two."], ["Three."]]


@pytest.mark.parametrize("layout", readers.LAYOUTS)
def test_compressed_and_plain_files_give_the_same_documents(tmp_path, layout):
    files = [write(tmp_path / name, "하나. 둘!\n\n셋.\n") for name in ("a.txt.gz", "b.txt")]
    documents = [["하나. 둘!"] if layout == "sentences" else ["하나.", "둘!"], ["셋."]]
    assert documents_of(files, layout) == documents * 2


@pytest.mark.parametrize("content", ["", "\n", " \n\n\t\n"])
@pytest.mark.parametrize("layout", readers.LAYOUTS)
def test_files_without_text_have_no_documents(tmp_path, content, layout):
    assert documents_of([write(tmp_path / "a.txt", content)], layout) == []


def test_the_end_of_a_file_ends_its_document(tmp_path):
    files = [write(tmp_path / "a.txt", "One.\nTwo."), write(tmp_path / "b.txt", "Three.\n")]
    assert documents_of(files) == [["One.", "Two."], ["Three."]]


def test_long_documents_and_long_gaps_are_read_as_by_a_plain_reader(tmp_path):
    # Lengths around the block size of 256 lines, in the alignments given by 40 random documents.
    random = np.random.default_rng(0)
    documents, lines = [], []
    for number in range(40):
        documents.append([f"{number} {k}" for k in range(random.choice([1, 2, 30, 255, 256, 257, 700]))])
        lines += documents[-1] + [""] * random.choice([1, 2, 255, 256, 300])
    assert documents_of([write(tmp_path / "a.txt", "\n".join(lines))]) == documents


def test_a_text_without_blank_lines_is_split_so_that_memory_stays_flat(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_MAX_SENTENCES", 300)
    lines = [str(k) for k in range(2000)]
    path = write(tmp_path / "a.txt", "\n".join(lines))
    documents = documents_of([path], reader=reader.__wrapped__)  # with this limit
    assert [line for document in documents for line in document] == lines
    assert max(map(len, documents)) <= 300 + 256


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "We stayed!", "Did you?", "No…", "Well then."],
        ['He said "Stop."', "She did.", "(They went.)", "“Why?”", "Nobody knew."],
        ["Mr. Smith met Dr. J. K. Jones in the U.S. Senate.", "It was No. 5 of vol. 3, p. 12, e.g. this one."],
        ["The answer was no.", "He paid $3.50 for version 2.0 at example.com today.", "What?!", "Yes."],
        ["오늘은 비가 왔다.", "정말요?", "“그렇습니다.”", "3.1 운동은 1919년에 일어났다!", "끝."],
        ["今日は雨です。", "本当?", "「はい。」", "終わり！"],
    ],
)
def test_documents_are_split_into_sentences(tmp_path, sentences):
    path = write(tmp_path / "a.txt", "  ".join(sentences) + "\r\n\nNext.\n")
    assert documents_of([path], "documents") == [sentences, ["Next."]]


def test_chinese_and_japanese_full_stops_need_no_white_space(tmp_path):
    path = write(tmp_path / "a.txt", "今日は雨です。「はい！」本当？終わり。")
    assert documents_of([path], "documents") == [["今日は雨です。", "「はい！」", "本当？", "終わり。"]]


@pytest.mark.parametrize(
    "layout, sentences", [("sentences", 1), pytest.param("documents", 10 * 2**20 // 32, marks=pytest.mark.slow)]
)
def test_a_line_of_ten_megabytes_is_read(tmp_path, layout, sentences):
    line = "The same sentence once more, J.\n".replace("J.\n", "it. ") * (10 * 2**20 // 32)
    line = line[: 10 * 2**20]
    path = write(tmp_path / "a.txt", line + "\n\nNext.\n")
    first, second = documents_of([path], layout)
    assert abs(len(first) - sentences) <= sentences // 10
    assert sum(map(len, first)) > 9 * 2**20
    assert second == ["Next."]


@pytest.mark.parametrize("layout", readers.LAYOUTS)
def test_sentences_with_occasional_invalid_bytes_are_dropped_and_counted(tmp_path, layout):
    content = b"It cost 5\x80 at the caf\xe9.\nYes.\n\n" + "Plain text, the rule.\n\u200b\n".encode() * 300
    path = write(tmp_path / "a.txt", content)
    check_text_files([path])
    elements = list(reader(layout)(tf.constant(path)))
    texts = [text for document, _, _ in elements for text in document.flat_values.numpy()]
    assert texts == [b"Yes."] + [b"Plain text, the rule."] * 300
    assert sum(read for _, read, _ in elements) == 602
    assert sum(dropped for _, _, dropped in elements).numpy().tolist() == [1, 300]
    assert elements[-1][0].nrows() == 0


def test_counts_of_documents_without_sentences_go_to_the_next_document_or_the_end(tmp_path):
    path = write(tmp_path / "a.txt", b"One.\n\n\xff\n\xff\n\n\xe2\x80\x8b\n\nTwo.\n\xff\n\n\xff\n")
    elements = reader("sentences")(tf.constant(path))
    counts = [(int(document.nrows()), int(read), dropped.numpy().tolist()) for document, read, dropped in elements]
    assert counts == [(1, 1, [0, 0]), (1, 5, [3, 1]), (0, 1, [1, 0])]


@pytest.mark.parametrize(
    "content",
    ["plain\n", "한국어 문장입니다.\n" * 60000, "\ufeffwith a mark\n", "é" * 2**20],
    ids=["ascii", "more than a megabyte", "byte order mark", "cut within a character"],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_utf8_passes_the_check(tmp_path, name, content):
    check_text_files([write(tmp_path / name, content)])


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"", "the file is empty"),
        ("a.txt.gz", "", "the file is empty"),
        ("a.txt", "Some text.\n".encode("utf-16"), "byte 0: UTF-16 text.*iconv -f UTF-16 "),
        ("a.txt", ("Some text.\n" * 5).encode("utf-16-le"), "byte 1: UTF-16LE text.*iconv -f UTF-16LE"),
        ("a.txt.gz", ("Some text.\n" * 5).encode("utf-16-be"), "byte 0: UTF-16BE text.*iconv -f UTF-16BE"),
        ("a.txt", "Some text.\n".encode("utf-32"), "byte 0: UTF-32 text.*iconv -f UTF-32"),
        ("a.txt", gzip.compress(b"text", mtime=0), "byte 0: data compressed by gzip, expected UTF-8 text; unpack it"),
        ("a.txt", Path(sys.executable).read_bytes()[:5000], "byte [0-9]+: 0x00, so binary data, expected UTF-8 text"),
        ("a.txt", b"1\x01\x80\x02\n" * 50, ":1: byte 2: 0x80 is not UTF-8, and control characters show binary data"),
        (
            "a.txt",
            b"First.\nSecond.\n" + "한국어 문장.\n".encode("cp949"),
            ":3: byte 15: 0xc7 is not UTF-8.*iconv -f CP949",
        ),
        ("a.txt.gz", "Un été à la mer.\n".encode("latin-1") * 50, ":1: byte 3: 0xe9 is not UTF-8.*iconv"),
    ],
)
def test_the_error_for_text_that_is_not_utf8_gives_the_position_and_what_to_do(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as error:
        check_text_files([path])
    assert str(error.value).startswith(path) and "\n" not in str(error.value)


def test_a_file_that_only_claims_to_be_compressed_is_refused(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_text("plain")
    with raises(DataError, "gzip"):
        check_text_files([str(path)])


_WHOLE = gzip.compress(b"".join(b"line %d\n\n" % number for number in range(50_000)), mtime=0)


@pytest.mark.parametrize(
    "content, message",
    [
        (_WHOLE[: len(_WHOLE) * 6 // 10], "cut off"),
        (_WHOLE[:-1], f"byte {len(_WHOLE) - 1}"),
        (_WHOLE + _WHOLE[:-9], f"byte {2 * len(_WHOLE) - 9}"),
        (_WHOLE[:5], "byte 5"),
        (_WHOLE[:1000] + b"xx" + _WHOLE[1002:], "damaged gzip data"),
        (_WHOLE[:-8] + bytes(8), "incorrect data check"),
    ],
)
def test_a_compressed_file_that_is_cut_off_or_damaged_is_refused_before_it_is_used(tmp_path, content, message):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(content)
    with raises(DataError, path, message):
        check_text_files([str(path)])


def test_a_compressed_file_may_have_several_members(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"One.\n\n") + gzip.compress(b"Two.\n"))
    check_text_files([str(path)])
    assert documents_of([str(path)]) == [["One."], ["Two."]]


def test_a_pipe_is_refused_instead_of_waiting_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    with raises(DataError, "a.txt"):
        find_files(f"{tmp_path}/*")


def test_a_missing_file_is_refused(tmp_path):
    with raises(DataError, "cannot be read"):
        check_text_files([str(tmp_path / "missing.txt")])
