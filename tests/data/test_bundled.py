"""The properties of the bundled data that the quick start relies on."""

import gzip
import pathlib

import pytest

DATA = pathlib.Path(__file__).parents[2] / "data"


CORPORA = {  # documents and sentences
    "sotu/train": (115, 34336),
    "sotu/heldout": (8, 3953),
    "korean/gnome_train": (273, 3193),
    "korean/gnome_heldout": (18, 261),
    "korean/libreoffice_train": (1127, 14471),
    "korean/libreoffice_heldout": (75, 822),
}


def documents(name):
    text = gzip.decompress((DATA / f"{name}.txt.gz").read_bytes()).decode("utf-8")
    return [document.rstrip("\n").split("\n") for document in text.split("\n\n")]


def reviews(part):
    header, *rows, end = (DATA / "reviews" / f"{part}.tsv").read_bytes().decode("utf-8").split("\n")
    assert header == "sentence\tlabel" and end == ""
    return [tuple(row.split("\t")) for row in rows]


@pytest.mark.parametrize(("name", "counts"), CORPORA.items())
def test_corpus_has_one_sentence_per_line_and_blank_lines_between_documents(name, counts):
    found = documents(name)
    assert (len(found), sum(map(len, found))) == counts
    assert all(line == line.strip() != "" for document in found for line in document)


@pytest.mark.parametrize("name", CORPORA)
def test_sentences_are_neither_fragments_nor_run_ons(name):
    lengths = sorted(len(line.split()) for document in documents(name) for line in document)
    assert lengths[-1] < 250
    assert sum(length == 1 for length in lengths) < 0.005 * len(lengths)
    # A Korean word includes its particles: it corresponds to two or three English ones.
    least, most = (15, 25) if name.startswith("sotu") else (7, 12)
    assert least <= lengths[len(lengths) // 2] <= most


@pytest.mark.parametrize("corpus", ["sotu/", "korean/gnome_", "korean/libreoffice_"])
def test_no_document_is_in_both_splits(corpus):
    train = {line for document in documents(f"{corpus}train") for line in document}
    shares = [sum(line in train for line in document) / len(document) for document in documents(f"{corpus}heldout")]
    assert max(shares) < (0.05 if corpus == "sotu/" else 0.5)  # formulas are repeated; help pages are short
    assert sum(shares) / len(shares) < 0.05


@pytest.mark.parametrize("name", [name for name in CORPORA if name.startswith("korean")])
def test_korean_is_prose_in_korean(name):
    lines = [line for document in documents(name) for line in document]
    letters = [char for line in lines for char in line if char.isalpha()]
    assert sum("가" <= char <= "힣" for char in letters) > 0.9 * len(letters)
    assert all(line.isprintable() and "  " not in line for line in lines)
    # In this style, almost every Korean sentence ends in one of these syllables.
    ends = [line.rstrip("”’」\"')").rstrip(".?!")[-1] for line in lines]
    assert sum(end in "다요오까시" for end in ends) > 0.95 * len(ends)


@pytest.mark.parametrize("name", CORPORA)
def test_corpus_files_have_no_time_stamp(name):
    header = (DATA / f"{name}.txt.gz").read_bytes()[:10]
    assert header[:2] == b"\x1f\x8b" and header[4:8] == b"\0\0\0\0"


def test_reviews_have_two_columns_and_two_balanced_labels():
    train, heldout = reviews("train"), reviews("heldout")
    assert (len(train), len(heldout)) == (9068, 1500)
    for rows in (train, heldout):
        assert all(len(row) == 2 and row[0] == row[0].strip() != "" for row in rows)
        assert {label for _, label in rows} == {"negative", "positive"}
        assert 0.48 < sum(label == "positive" for _, label in rows) / len(rows) < 0.52


def test_no_review_sentence_is_in_both_splits():
    assert not {sentence for sentence, _ in reviews("train")} & {sentence for sentence, _ in reviews("heldout")}


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("sotu", ["CC0"]),
        ("reviews", ["MIT License"]),
        ("korean", ["CC BY-SA 3.0", "Mozilla Public License, v. 2.0", "gnome_authors.txt"]),
    ],
)
def test_every_data_set_states_its_licence(folder, names):
    licence = (DATA / folder / "LICENSE").read_text(encoding="utf-8")
    assert all(name in licence for name in names)


def test_the_authors_required_by_the_licence_are_named():
    authors = (DATA / "korean" / "gnome_authors.txt").read_text(encoding="utf-8").splitlines()
    assert {"Shaun McCance", "조성호"} <= set(authors) and len(authors) == len(set(authors)) > 40
