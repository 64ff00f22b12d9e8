"""What the quick start relies on in the bundled data."""

import gzip
import pathlib

import pytest

DATA = pathlib.Path(__file__).parents[2] / "data"


def documents(part):
    text = gzip.decompress((DATA / "sotu" / f"{part}.txt.gz").read_bytes()).decode("utf-8")
    return [document.rstrip("\n").split("\n") for document in text.split("\n\n")]


def reviews(part):
    header, *rows, end = (DATA / "reviews" / f"{part}.tsv").read_bytes().decode("utf-8").split("\n")
    assert header == "sentence\tlabel" and end == ""
    return [tuple(row.split("\t")) for row in rows]


@pytest.mark.parametrize(("part", "addresses", "sentences"), [("train", 115, 34336), ("heldout", 8, 3953)])
def test_corpus_has_a_sentence_a_line_and_a_blank_line_between_documents(part, addresses, sentences):
    found = documents(part)
    assert len(found) == addresses
    assert sum(map(len, found)) == sentences
    assert all(line == line.strip() != "" for document in found for line in document)


@pytest.mark.parametrize("part", ["train", "heldout"])
def test_sentences_are_neither_shards_nor_run_ons(part):
    lengths = sorted(len(line.split()) for document in documents(part) for line in document)
    assert lengths[-1] < 250
    assert sum(length == 1 for length in lengths) < 0.005 * len(lengths)
    assert 15 <= lengths[len(lengths) // 2] <= 25


def test_no_address_is_in_both_parts():
    train = {line for document in documents("train") for line in document}
    for document in documents("heldout"):  # presidents do repeat single sentences
        assert sum(line in train for line in document) < 0.05 * len(document)


@pytest.mark.parametrize("part", ["train", "heldout"])
def test_corpus_carries_no_time_stamp(part):
    header = (DATA / "sotu" / f"{part}.txt.gz").read_bytes()[:10]
    assert header[:2] == b"\x1f\x8b" and header[4:8] == b"\0\0\0\0"


def test_reviews_have_two_columns_and_two_balanced_labels():
    train, heldout = reviews("train"), reviews("heldout")
    assert (len(train), len(heldout)) == (9068, 1500)
    for rows in (train, heldout):
        assert all(len(row) == 2 and row[0] == row[0].strip() != "" for row in rows)
        assert {label for _, label in rows} == {"negative", "positive"}
        assert 0.48 < sum(label == "positive" for _, label in rows) / len(rows) < 0.52


def test_no_review_sentence_is_in_both_parts():
    assert not {sentence for sentence, _ in reviews("train")} & {sentence for sentence, _ in reviews("heldout")}


@pytest.mark.parametrize("folder", ["sotu", "reviews"])
def test_every_data_set_states_its_licence(folder):
    licence = (DATA / folder / "LICENSE").read_text(encoding="utf-8")
    assert ("CC0" if folder == "sotu" else "MIT License") in licence
