import os
import shutil

import pytest
import tensorflow as tf

from bert_tf.inputs.identity import corpus_identity, tensors_identity, weights_identity


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


def test_weights_that_differ_in_one_value_or_their_order_have_another_identity():
    ones, twos = tf.Variable(tf.ones([3, 2])), tf.Variable(2 * tf.ones([3, 2]))
    before = weights_identity([ones, twos])
    assert weights_identity([ones, twos]) == before != weights_identity([twos, ones])
    ones[1, 0].assign(1.0000001)
    assert weights_identity([ones, twos]) != before


def test_tensors_are_the_same_if_names_values_and_rows_are():
    def identity(texts=("a", "bc"), numbers=(1, 2, 3), lengths=(1, 2)):
        ragged = tf.RaggedTensor.from_row_lengths(list(numbers), list(lengths))
        return tensors_identity({"text": tf.constant(texts), "targets": ragged})

    others = [identity(("ab", "c")), identity(("a", "bc\0")), identity(numbers=(1, 3, 2)), identity(lengths=(2, 1))]
    assert len({identity(), *others}) == 5 and identity() == identity()
