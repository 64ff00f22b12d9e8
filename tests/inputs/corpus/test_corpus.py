import os
import shutil

import pytest

from bert_tf.inputs.corpus.corpus import corpus_identity


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in (("a.txt", "one .\n"), ("b.txt", "two , three .\n")):
        (folder / name).write_text(text)
    return folder


def files_of(folder):
    return sorted(str(path) for path in folder.iterdir())


def test_a_moved_corpus_has_the_same_identity(corpus, tmp_path, monkeypatch):
    before = corpus_identity(files_of(corpus))
    assert before["files"] == 2 and before["bytes"] == 20
    monkeypatch.chdir(corpus)
    assert corpus_identity(["a.txt", "b.txt"]) == before
    shutil.move(corpus, tmp_path / "elsewhere")
    assert corpus_identity(files_of(tmp_path / "elsewhere")) == before


CHANGES = {
    "longer": lambda folder: (folder / "a.txt").write_text("one more .\n"),
    "renamed": lambda folder: os.rename(folder / "a.txt", folder / "c.txt"),
    "one more": lambda folder: (folder / "c.txt").write_text(""),
    "one less": lambda folder: os.remove(folder / "a.txt"),
    "sizes exchanged": lambda folder: [(folder / "a.txt").write_text("x" * 14), (folder / "b.txt").write_text("y" * 6)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_corpus_has_another_identity(corpus, change):
    before = corpus_identity(files_of(corpus))
    CHANGES[change](corpus)
    assert corpus_identity(files_of(corpus)) != before


def test_shards_of_equal_sizes_are_distinguished_by_their_description(tmp_path):
    for name, text in (("00000-of-00001.tfrecord", "x"), ("corpus.json", '{"plan": 1}')):
        (tmp_path / name).write_text(text)
    shard = [str(tmp_path / "00000-of-00001.tfrecord")]
    before = corpus_identity(shard)
    (tmp_path / "corpus.json").write_text('{"plan": 2}')
    after = corpus_identity(shard)
    assert {name for name in after if after[name] != before[name]} == {"prepared"}
