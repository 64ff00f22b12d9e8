import gzip
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.corpus.corpus import Corpus, find_corpus
from bert_tf.inputs.corpus.dataset import check_corpus, pretraining_dataset, reading
from bert_tf.inputs.corpus.readers import find_files
from bert_tf.inputs.corpus.shards import Shards
from bert_tf.inputs.identity import tokenizer_identity
from bert_tf.text import Tokenizer
from tests.errors import raises

pytest.importorskip("apache_beam", reason="needs pip install 'bert_tf[beam]'")
from bert_tf.inputs.corpus.preparation import normalized, plan, prepare

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*(f"w{k}" for k in range(100)), "##x", ","]


def tokenizer(pieces=(*SPECIALS, *WORDS), **choices):
    return Tokenizer(list(pieces), **choices)


def write(folder, documents_of_files):
    folder.mkdir(exist_ok=True)
    for number, documents in enumerate(documents_of_files):
        text = "\n\n".join("\n".join(document) for document in documents)
        (folder / f"{number}.txt").write_text(text, encoding="utf-8", errors="surrogateescape")
    return sorted(str(path) for path in folder.glob("*.txt"))


def random_files(files=5, seed=0):
    """Files of 3 to 40 documents that are all different; some sentences are equal."""
    random = np.random.default_rng(seed)
    words = ["w1,", "w2x", *WORDS[:100]]

    def document():
        return [" ".join(random.choice(words, random.integers(1, 9))) for _ in range(random.integers(1, 9))]

    return [[document() for _ in range(random.integers(3, 40))] for _ in range(files)]


def prepared(files, output, shards=2, max_bad_share=0.01, **choices):
    chosen = tokenizer(**choices)
    return prepare(plan(files, "sentences", chosen, shards), chosen, str(output), max_bad_share=max_bad_share)


def ids_of(files, **data):
    """Ids of all documents, in the order of one epoch."""
    documents = Corpus(files, tokenizer(), PretrainingData(**data)).documents([0, 0])
    return [document for block in documents for document in block.to_list()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    files = write(folder / "text", random_files())
    description = prepared(files, folder / "shards", shards=3)
    return files, folder / "shards", description


WORDS_AND_LENGTHS = {"masking": "whole_word", "words": "spaces", "length_multiple": 8}


@pytest.mark.slow
@pytest.mark.parametrize("choices", [{}, WORDS_AND_LENGTHS])
def test_shards_give_the_same_batches_as_their_text(corpus, choices):
    files, output, _ = corpus
    data = PretrainingData(max_length=32, max_predictions=5, group_size=20, **choices).check()
    both = [
        tf.function(
            lambda epoch, some=some: pretraining_dataset(
                Corpus(some, tokenizer(), data), seed=5, epoch=epoch, batch_size=8
            ),
            autograph=False,
        )
        for some in (files, find_corpus(str(output)))
    ]
    for epoch in tf.range(2, dtype=tf.int64):
        text, records = (list(batches(epoch).as_numpy_iterator()) for batches in both)
        assert len(text) == len(records) > 10
        for batch, twin in zip(text, records, strict=True):
            assert batch.keys() == twin.keys() and all(np.array_equal(batch[name], twin[name]) for name in batch)


def test_shards_give_the_same_documents_in_the_same_order_as_their_text(corpus):
    files, output, _ = corpus
    data = PretrainingData(**WORDS_AND_LENGTHS)  # ids with marks of words
    shards = find_corpus(str(output))
    assert len(shards) == 3
    size = sum(os.path.getsize(file) for file in files)
    assert [Corpus(some, tokenizer(), data).check() for some in (files, shards)] == [size, size]  # of the text
    text, records = (Corpus(some, tokenizer(), data).documents([0, 1]) for some in (files, shards))
    assert [block.to_list() for block in text] == [block.to_list() for block in records]


def test_counts_equal_those_of_a_plain_loop(corpus):
    files, output, description = corpus
    text = [open(file).read() for file in files]  # noqa: SIM115
    sentences = [line for one in text for line in one.splitlines() if line.strip()]
    counts = description["counts"]
    assert counts["documents"] == sum(len(one.split("\n\n")) for one in text)
    assert counts["sentences"] == counts["sentences_read"] == len(sentences)
    assert counts["tokens"] == sum(len(row) for row in tokenizer().tokenize(sentences).to_list())
    assert counts["tokens"] == Shards(find_corpus(str(output))).num_tokens
    assert counts.get("duplicates", 0) == counts["not_utf8"] == counts["empty"] == 0


@pytest.mark.slow
def test_the_first_of_equal_documents_is_kept_across_files_and_spacing(tmp_path):
    files = write(
        tmp_path / "text",
        [
            [["w1 w2", "w3"], ["w4 w5"], ["w1  w2 w3"]],
            [["w6"], ["w1 w2", "\u200bw3"], ["w4 w5"], ["W4 w5"]],
        ],
    )
    description = prepared(files, tmp_path / "shards")
    assert description["counts"]["duplicates"] == 3
    kept = write(tmp_path / "kept", [[["w1 w2", "w3"], ["w4 w5"]], [["w6"], ["W4 w5"]]])
    assert ids_of(find_corpus(str(tmp_path / "shards"))) == ids_of(kept)


def test_documents_are_compared_without_invisible_differences():
    assert normalized(["e\u0301 \u00a0 b".encode(), b"c\x07"]) == "\u00e9 b c"
    assert normalized([b"A b."]) != normalized([b"a b."])


@pytest.mark.slow
def test_sentences_that_are_not_utf8_are_skipped_and_counted_in_text_and_shards(tmp_path, capfd):
    bad = "w2 \udcff w3"
    empty = 3 * "\u200b"  # more characters than bad bytes: otherwise the file is refused as one of another encoding
    files = write(tmp_path / "text", [[["w1", bad, "w4"], [bad], ["w5"], [empty]], [["w6"], ["w7"]]])
    text = ids_of(files, max_bad_share=0.5)
    assert "skipped so far in this epoch: 1 of" in capfd.readouterr().err
    words = sorted(id for document in text for sentence in document for id in sentence)
    assert [WORDS[id - len(SPECIALS)] for id in words] == ["w1", "w4", "w5", "w6", "w7"]
    description = prepared(files, tmp_path / "shards", max_bad_share=0.5)
    assert (description["counts"]["not_utf8"], description["counts"]["empty"]) == (2, 1)
    assert ids_of(find_corpus(str(tmp_path / "shards"))) == text
    with raises(DataError, "2 of 8", "UTF-8", "10"):
        prepared(files, tmp_path / "refused", max_bad_share=0.1)
    assert not (tmp_path / "refused/corpus.json").exists()
    with raises(DataError, "2 of 8", "UTF-8", "10"), reading("text"):
        ids_of(files, max_bad_share=0.1)


@pytest.mark.slow
def test_a_damaged_record_loses_only_its_documents_up_to_the_allowed_share(tmp_path, corpus):
    files, _, _ = corpus
    prepared(files, tmp_path / "shards", shards=1)
    whole = ids_of(find_corpus(str(tmp_path / "shards")))
    index = json.loads((tmp_path / "shards/00000-of-00001.json").read_text())
    offset, size, lost = index["sources"][2]["records"][0]
    path = tmp_path / "shards/00000-of-00001.tfrecord"
    damaged = bytearray(path.read_bytes())
    damaged[offset + size // 2] ^= 0xFF
    path.write_bytes(damaged)
    left = ids_of([str(path)], max_bad_share=1.0)
    assert len(left) == len(whole) - lost and all(document in whole for document in left)
    with raises(DataError, lost, len(whole)), reading("shards"):
        ids_of([str(path)], max_bad_share=lost / len(whole) - 0.01)


def test_a_damaged_length_costs_no_document_in_the_shard_and_is_an_error_in_the_index(tmp_path, corpus):
    shutil.copytree(corpus[1], tmp_path / "shards")
    path, index = (tmp_path / f"shards/00000-of-00003.{ending}" for ending in ("tfrecord", "json"))
    whole, written = path.read_bytes(), index.read_text()
    path.write_bytes(b"\xff" * 8 + whole[8:])  # the first record's length
    assert ids_of([str(path)]) == ids_of([str(corpus[1] / path.name)])
    path.write_bytes(gzip.compress(whole))
    with raises(DataError, "00000-of-00003.tfrecord"):
        Shards([str(path)])
    path.write_bytes(whole)
    for position, change in ((0, 1), (1, -1), (1, 1 << 40)):
        damaged = json.loads(written)
        damaged["sources"][0]["records"][0][position] += change
        index.write_text(json.dumps(damaged))
        with raises(DataError, "index"):
            Shards([str(path)])


def test_shards_are_readable_by_tf_data(corpus):
    _, output, description = corpus
    found = 0
    for record in tf.data.TFRecordDataset(find_corpus(str(output))):
        example = tf.train.Example.FromString(tf.io.decode_compressed(record, "ZLIB").numpy())
        found += len(example.features.feature["ids"].int64_list.value)
    assert found == description["counts"]["tokens"]


@pytest.mark.parametrize(
    "differing, other",
    [
        ("vocabulary", {"pieces": (*SPECIALS, *reversed(WORDS))}),
        ("vocab_size", {"pieces": (*SPECIALS, *WORDS, "more")}),
        ("strip_accents", {"strip_accents": False}),
    ],
)
def test_another_tokenizer_is_refused_with_both_fingerprints(corpus, differing, other):
    _, output, description = corpus
    with raises(ConfigError, differing) as error:
        check_corpus(Corpus(find_corpus(str(output)), tokenizer(**other), PretrainingData()))
    for fingerprint in (description["tokenizer"], tokenizer_identity(tokenizer(**other))):
        assert fingerprint["fingerprint"] in str(error.value)


def test_text_and_shards_are_not_mixed(corpus):
    files, output, _ = corpus
    with raises(ConfigError, "all of the text"):
        find_corpus(f"{output},{files[0]}")


@pytest.mark.slow
def test_a_second_call_keeps_complete_shards_and_writes_the_others_again(tmp_path, corpus):
    files, _, _ = corpus
    output = tmp_path / "shards"
    before = prepared(files, output)
    content = {path.name: path.read_bytes() for path in output.iterdir()}
    # As after a kill: one shard and the description are missing, and half a shard is left.
    kept = (output / "00000-of-00002.tfrecord").stat().st_mtime_ns
    for name in ("00001-of-00002.tfrecord", "corpus.json"):
        (output / name).unlink()
    (output / ".00001-of-00002.tfrecord.k1lled_1.partial").mkdir()
    (output / ".00001-of-00002.tfrecord.k1lled_1.partial/half").touch()
    (output / "download.partial").write_bytes(b"of somebody else")
    (output / "00001-of-00007.tfrecord").write_bytes(b"of an earlier attempt")
    with raises(DataError, "never finished"):
        find_corpus(str(output))
    assert prepared(files, output) == before
    content["download.partial"] = b"of somebody else"
    assert {path.name: path.read_bytes() for path in output.iterdir()} == content
    assert (output / "00000-of-00002.tfrecord").stat().st_mtime_ns == kept
    with raises(ConfigError, "other files or settings"):
        prepared(files, output, lower_case=False)


def test_a_full_disk_is_one_line_that_names_the_shard(tmp_path, monkeypatch, caplog):
    def full(self, record):
        raise tf.errors.ResourceExhaustedError(None, None, f"{tmp_path}/shards/x.part; No space left on device")

    monkeypatch.setattr(tf.io.TFRecordWriter, "write", full)
    files = write(tmp_path / "text", random_files(files=1))
    shard = tmp_path / "shards" / "00000-of-00001.tfrecord"
    with raises(DataError, shard, "No space left on device"):
        prepared(files, tmp_path / "shards")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert os.listdir(tmp_path / "shards") == []


def test_a_disk_that_is_too_full_is_refused_before_the_text_is_read(tmp_path, monkeypatch):
    files = write(tmp_path / "text", random_files(files=1))
    monkeypatch.setattr("bert_tf.inputs.corpus.preparation.read_source", None)
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(1000, 990, 10))
    with raises(DataError, "10"):
        prepared(files, tmp_path / "shards")


@pytest.mark.slow
def test_a_killed_program_leaves_no_partial_shard_and_can_be_run_again(tmp_path):
    write(tmp_path / "text", random_files(files=20, seed=1))
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS]) + "\n")
    command = [
        sys.executable, "-m", "bert_tf.prepare", f"--input={tmp_path}/text/*", f"--vocab={tmp_path}/vocab.txt",
        f"--output={tmp_path}/shards", "--shards=20", "--", "--direct_num_workers=1",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(tmp_path.glob("shards/*.tfrecord")):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "shards/corpus.json").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "shards from 20 files" in done.stdout, done.stderr
    shards = json.loads((tmp_path / "shards/corpus.json").read_text())["shards"]
    indexes = [shard.replace(".tfrecord", ".json") for shard in shards]
    assert sorted(os.listdir(tmp_path / "shards")) == sorted([*shards, *indexes, "corpus.json"])
    assert ids_of(find_corpus(f"{tmp_path}/shards")) == ids_of(find_files(f"{tmp_path}/text/*"))
