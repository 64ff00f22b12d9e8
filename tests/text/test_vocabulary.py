"""Vocabulary files: reading, writing, and the errors for invalid ones."""

import os

import pytest

from bert_tf.errors import DataError
from bert_tf.text import Tokenizer, read_vocabulary, write_vocabulary
from bert_tf.text.vocabulary import check_size, check_vocabulary
from tests.errors import raises

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_a_written_vocabulary_is_read_back(tmp_path):
    pieces = [*SPECIALS, "the", "##s", "각", "\u2028", "\u00a0", "a b", "\u0300"]
    write_vocabulary(tmp_path / "new" / "vocab.txt", pieces)
    assert (tmp_path / "new" / "vocab.txt").read_bytes() == "".join(f"{piece}\n" for piece in pieces).encode()
    assert read_vocabulary(tmp_path / "new" / "vocab.txt") == pieces


def test_windows_line_ends_a_byte_order_mark_and_blank_last_lines_are_ignored(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(f"{piece}\r\n" for piece in [*SPECIALS, "", "a"]).encode() + b"\r\n\n")
    assert read_vocabulary(path) == [*SPECIALS, "", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ("is empty",)),
        (b"\n\n", ("is empty",)),
        ("\n".join([*SPECIALS, "a", "b", "a"]).encode(), ("line 8", "'a'", "line 6")),
        ("\n".join(SPECIALS[:4]).encode(), ("[MASK]", "4 pieces")),
        (b"a\nb", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")),
        (b"[PAD]\n\xff\xfe\n", ("vocab.txt:2", "byte 6", "0xff", "UTF-8")),
        ("\n".join([*SPECIALS, "a" * 257]).encode(), ("line 6", "256 bytes")),
        ("\n".join([*SPECIALS, "a\0"]).encode(), ("line 6", "NUL")),
    ],
)
def test_an_invalid_file_is_refused_in_one_line_that_names_it(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with raises(DataError, *message) as caught:
        read_vocabulary(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path):
        with raises(DataError, path):
            read_vocabulary(path)


def test_a_refused_vocabulary_does_not_overwrite_the_old_file(tmp_path):
    path = tmp_path / "vocab.txt"
    write_vocabulary(path, SPECIALS)
    for pieces in ([], [*SPECIALS, "a\nb"], [*SPECIALS, "[PAD]"]):
        with pytest.raises(DataError, match=str(path)):
            write_vocabulary(path, pieces)
    assert read_vocabulary(path) == SPECIALS and os.listdir(tmp_path) == ["vocab.txt"]


def test_a_vocabulary_of_another_size_than_the_checkpoint_is_refused():
    check_vocabulary(SPECIALS)
    check_size(SPECIALS, 5, "vocab.txt")
    with raises(DataError, "a.txt", "5 pieces", "30522"):
        check_size(SPECIALS, 30522, "a.txt")
    with raises(DataError, "ids"):
        check_size(SPECIALS, 4, "vocab.txt")


def load_vocab(path):
    """google-research/bert's reader (tokenization.py): piece -> id."""
    with open(path, encoding="utf-8") as file:
        return {line.strip(): number for number, line in enumerate(file)}


def test_the_advice_for_a_duplicate_keeps_every_id_of_the_original_reader(tmp_path):
    path, lines = tmp_path / "vocab.txt", [*SPECIALS, "a", "b", "a", "", "c", "", "d"]
    path.write_text("\n".join(lines))
    with raises(DataError, "line 8", "'a'", "line 6"):
        read_vocabulary(path)
    expected = load_vocab(path)
    lines[5] = ""
    path.write_text("\n".join(lines))
    pieces, tokenizer = read_vocabulary(path), Tokenizer(str(path))  # with several blank lines
    assert {piece: number for number, piece in enumerate(pieces) if piece} == {p: n for p, n in expected.items() if p}
    assert tokenizer.tokenize(["a b c d"]).to_list() == [[expected[piece] for piece in "abcd"]]
    assert Tokenizer(pieces).vocab == pieces


def test_a_file_that_is_no_vocabulary_is_refused_for_that_and_not_for_one_of_its_lines(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# A page\n|---|\ntext\n|---|\n")
    with raises(DataError, "README.md", "no [PAD], [UNK], [CLS], [SEP], [MASK] among its 4 pieces"):
        read_vocabulary(path)


@pytest.mark.parametrize(
    ("size", "file", "padded"),
    [
        (30522, "vocab.txt", False),
        (30528, "vocab.txt", True),
        # The lines of other files are not the ids.
        (30528, "tokenizer.json", False),
        (30528, "vocab.json and merges.txt", False),
    ],
)
def test_lines_are_only_appended_to_a_table_that_may_be_padded(size, file, padded):
    with pytest.raises(DataError) as refused:
        check_size([f"a{number}" for number in range(size - 1)], size, file)
    assert ("append 1 lines" in str(refused.value)) == padded


def test_the_advice_for_a_padded_table_makes_the_vocabulary_match(tmp_path):
    with raises(DataError, "3 lines", "vocab.txt", "[padding0]", "[padding2]"):
        check_size(SPECIALS, 8, "vocab.txt")
    write_vocabulary(tmp_path / "vocab.txt", [*SPECIALS, *(f"[padding{number}]" for number in range(3))])
    check_size(read_vocabulary(tmp_path / "vocab.txt"), 8, "vocab.txt")
