"""Vectors of texts, words and tokens: compared with each text computed alone, in every file format, and exported."""

import io
import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.checkpoints import directory
from bert_tf.config import EmbeddingConfig, FeatureConfig
from bert_tf.config.embeddings import POOLS
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference import ask
from bert_tf.inference.check import check_ops
from bert_tf.inference.embedder import Embedder
from bert_tf.inference.extraction import WRITERS, extract, read_texts
from bert_tf.inference.saved_model import export
from bert_tf.inputs.datasets.examples import TaggedExample, tagged
from bert_tf.inputs.datasets.tagged import word_columns
from bert_tf.model import chunks
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.inference.eager import EagerEmbedder, one_chunk
from tests.model.small import PIECES, small_config

VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz")]
TEXTS = ["the goods, a\u200b bé!", "", "a b c d e f g h i j k l m n o", "é", "good the bad"]


@pytest.fixture(scope="module")
def encoder():
    keras.utils.set_random_seed(0)
    # Large weights make texts differ; with larger ones, attention amplifies the rounding differences between batches.
    return BertEncoder(small_config(vocab_size=len(VOCABULARY), num_layers=1, initializer_range=0.3))


@pytest.fixture(scope="module")
def make(encoder):
    """Function that makes an embedder, without graphs if its class is not given."""
    return lambda kind=EagerEmbedder, **config: kind(encoder, Tokenizer(VOCABULARY), EmbeddingConfig(**config))


def states(encoder, text):
    """The last layer's output for one text with [CLS] and [SEP], float32 [tokens + 2, hidden], and byte offsets."""
    (ids,), (starts,), (ends,) = (v.to_list() for v in Tokenizer(VOCABULARY).tokenize_with_offsets([text]))
    ids = np.array([[2, *ids, 3]], np.int32)
    inputs = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": np.zeros_like(ids)}
    return encoder(inputs)["sequence_output"].numpy()[0], starts, ends


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool, pooled", [("mean", lambda s: s.mean(0)), ("max", lambda s: s.max(0)),
                                          ("cls", lambda s: s[0])])  # fmt: skip
def test_a_sentences_vector_is_pooled_over_its_own_tokens(encoder, make, pool, pooled):
    found = make(pool=pool)(tf.constant(TEXTS))["vector"]
    for vector, text in zip(found, TEXTS, strict=True):
        close(vector, pooled(states(encoder, text)[0]))


def test_tokens_have_their_vectors_and_their_offsets_in_the_text(encoder, make):
    found = {name: value.to_list() for name, value in make(per="token")(tf.constant(TEXTS)).items()}
    for row, text in enumerate(TEXTS):
        expected, starts, ends = states(encoder, text)
        if starts:
            close(found["vector"][row], expected[1:-1])
        in_bytes = text.encode()
        assert [part.decode() for part in found["text"][row]] == [
            in_bytes[start:end].decode() for start, end in zip(starts, ends, strict=True)
        ]
        offsets = zip(found["start"][row], found["end"][row], strict=True)
        assert [text[start:end].encode() for start, end in offsets] == found["text"][row]


@pytest.mark.parametrize("pool, pooled", [("first", lambda s: s[0]), ("mean", lambda s: s.mean(0)),
                                          ("max", lambda s: s.max(0))])  # fmt: skip
def test_a_words_vector_is_computed_from_its_wordpieces(encoder, make, pool, pooled):
    embedder = make(per="word", pool=pool)
    found = {name: value.to_list() for name, value in embedder(tf.constant(TEXTS[:1])).items()}
    assert [word.decode() for word in found["text"][0]] == ["the", "goods", ",", "a", "bé", "!"]
    pieces = [(1, 2), (2, 4), (4, 5), (5, 6), (6, 8), (8, 9)]  # the good ##s , a b ##e !
    expected, _, _ = states(encoder, TEXTS[0])
    close(found["vector"][0], [pooled(expected[first:last]) for first, last in pieces])


def test_given_words_are_kept_and_deleted_ones_have_zeros(encoder, make, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"words": ["goods,", "\u200b", "a"]}\n')
    ((example, found),) = extract(make(per="word", pool="mean"), read_texts(str(path)), 4)
    expected, _, _ = states(encoder, "goods, \u200b a")
    close(found["vector"], [expected[1:4].mean(0), 0 * expected[0], expected[4]])
    assert [word.decode() for word in found["text"]] == list(example.words)


def test_each_token_of_a_long_text_is_taken_from_the_window_of_most_context(encoder, make):
    text = "a b c d e f g h"
    found = make(per="token", max_length=6)(tf.constant([text]))["vector"].to_list()[0]
    windows = [states(encoder, part)[0] for part in ("a b c d", "c d e f", "e f g h")]
    # The two tokens in the middle of each window of four, and those at the ends of the text.
    expected = [windows[0][1:4], windows[1][2:4], windows[2][2:5]]
    close(found, np.concatenate(expected))


def test_batches_do_not_change_vectors_or_their_order(make, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    embedder = make(Embedder)
    alone, together = (list(extract(embedder, read_texts(str(path)), size)) for size in (1, 3))
    assert [example.text for example, _ in together] == TEXTS
    for (_, one), (_, other) in zip(alone, together, strict=True):
        close(one["vector"], other["vector"])


@pytest.mark.parametrize(
    "per, pool",
    [
        pytest.param(per, pool, marks=[] if per != "word" and pool in ("mean", None) else pytest.mark.slow)
        for per, pools in POOLS.items()
        for pool in pools
    ],
)
def test_running_the_model_on_few_windows_at_a_time_gives_the_same_vectors(make, monkeypatch, per, pool):
    texts, shapes = tf.constant([*TEXTS, "the good a b " * 9]), []
    whole = make(per=per, pool=pool, max_length=8)(texts)["vector"]
    embedder = make(Embedder, per=per, pool=pool, max_length=8)
    monkeypatch.setattr(chunks, "_TOKENS", 24)
    model = embedder.model

    class Watched:
        inputs, output_shape = model.inputs, model.output_shape

        def __call__(self, features, training):
            tf.py_function(lambda ids: shapes.append(ids.shape), [features["input_word_ids"]], [])
            return model(features, training=training)

    embedder.model = Watched()
    some = embedder(texts)["vector"]
    if per != "sentence":
        some, whole = some.values, whole.values
    close(some, whole)
    assert len(shapes) > 4 and all(rows <= 3 for rows, _ in shapes)


class Counting:
    """An embedder whose vectors contain the size of the batch."""

    tokenizer = Tokenizer(PIECES)

    def traced(self, text):
        return {"vector": tf.fill([tf.size(text), 1], tf.size(text))}


@pytest.mark.parametrize("characters, ahead, together", [(10, 32, 2), (4000, 4, 1)])
def test_few_texts_are_in_memory_at_once_and_fewer_long_ones(characters, ahead, together):
    read = []

    def examples():
        for number in range(200):
            read.append(number)
            yield TaggedExample(str(number), "x" * characters, None, None, None, None, "")

    for number, (example, found) in enumerate(extract(Counting(), examples(), 2)):
        assert example.id == str(number) and found["vector"] == together
        assert len(read) <= number + ahead + 1


def test_a_long_text_has_its_own_batch():
    lengths = [10, 10, 50_000, 10, 10]
    examples = [TaggedExample("", "x" * length, None, None, None, None, "") for length in lengths]
    assert [int(found["vector"][0]) for _, found in extract(Counting(), examples, 8)] == [4, 4, 1, 4, 4]


@pytest.mark.parametrize("per", ["sentence", "word"])
def test_all_file_formats_have_the_same_contents(make, tmp_path, per):
    source = tmp_path / "a.tsv"
    source.write_text("x\tsentence\n" + "".join(f"1\t{text}\n" for text in TEXTS), encoding="utf-8")
    embedded = list(extract(make(per=per), read_texts(str(source), "sentence"), 4))
    for ending, write in WRITERS.items():
        write(str(tmp_path / f"a{ending}"), iter(embedded))
    arrays = np.load(tmp_path / "a.npz")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    records = [tf.train.Example.FromString(record.numpy()).features.feature
               for record in tf.data.TFRecordDataset(str(tmp_path / "a.tfrecord"))]  # fmt: skip
    assert [line["text"] for line in lines] == TEXTS
    assert [record["text"].bytes_list.value[0].decode() for record in records] == TEXTS
    if per == "sentence":
        assert arrays["vector"].dtype == np.float32
        close(arrays["vector"], [line["vector"] for line in lines])
        close(arrays["vector"], [record["vector"].float_list.value for record in records])
        close(arrays["vector"], [values["vector"] for _, values in embedded])
        return
    assert arrays["splits"].tolist() == [0, *np.cumsum([len(line["units"]) for line in lines])]
    units = [unit for line in lines for unit in line["units"]]
    for name in ("start", "end"):
        assert arrays[name].tolist() == [unit[name] for unit in units]
        assert arrays[name].tolist() == [offset for record in records for offset in record[name].int64_list.value]
    close(arrays["vector"], [unit["vector"] for unit in units])
    flat = np.concatenate([record["vector"].float_list.value for record in records])
    close(arrays["vector"].ravel(), flat)
    assert [line["text"][unit["start"] : unit["end"]] for line in lines for unit in line["units"]] == [
        unit["text"] for unit in units
    ]


@pytest.mark.parametrize(
    "lines, message",
    [
        ('{"words": ["a"]}\n{"text": "a b"}\n', ("-:2", "-:1")),
        ('{"text": "a b"}\n{"text": "a"}\n{"words": ["a"]}\n', ("-:3", "-:1")),
    ],
)
def test_texts_with_and_without_words_cannot_be_mixed(monkeypatch, lines, message):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    with raises(DataError, *message):  # also if every text has its own batch
        list(extract(Counting(), read_texts("-"), 1))


@pytest.mark.parametrize(
    "config, message",
    [
        ({"per": "page"}, ("'page'",)),
        ({"per": "word", "pool": "cls"}, ("'cls'", "'word'")),
        ({"per": "token", "pool": "mean"}, ("leave it out",)),
        ({"max_length": 99}, ("max_length", "99", "3", "24")),
    ],
)
def test_inconsistent_settings_are_refused(make, config, message):
    with raises(ConfigError, *message):
        make(**config)


def test_signatures_give_padded_vectors_of_words(make):
    embedder = make(per="word", features=FeatureConfig((0, -1), "concat"))
    made = {name: one.python_function for name, one in embedder.task.signatures(embedder.model).items()}
    texts = tf.constant(TEXTS)
    with one_chunk():
        expected, found = embedder(texts), made["serving_default"](texts)
    assert found.pop("word_count").numpy().tolist() == expected["text"].row_lengths().numpy().tolist()
    assert found.keys() == expected.keys()
    close(found["vector"], expected["vector"].to_tensor())
    assert all(np.array_equal(found[name], expected[name].to_tensor()) for name in ("text", "start", "end"))
    words = ["a", "St.", "\u200b", "can't"]
    expected = embedder(tf.constant([" ".join(words)]), **word_columns([[tagged("", words, None, None, "")]]))
    with one_chunk():
        found = made["words"](tf.constant([words]))
    assert [word.decode() for word in found["text"][0].numpy()] == words
    close(found["vector"][0], expected["vector"][0])


@pytest.mark.slow  # the exports of other files have the same signatures
@pytest.mark.parametrize("per", ["word", "sentence"])
def test_an_exported_model_gives_the_same_vectors_as_extraction(make, tmp_path, per):
    embedder = make(Embedder, per=per, features=FeatureConfig((0, -1), "concat"))
    path = export(embedder.task, embedder.model, str(tmp_path / per), check=False).path
    check_ops(path)
    expected, exported = embedder(tf.constant(TEXTS)), ask.Model(path)
    for row, text in enumerate(TEXTS):
        answer = exported.ask({"text": text})
        assert answer.keys() - {"word_count"} == expected.keys()
        close(np.reshape(answer["vector"], [-1]), np.reshape(expected["vector"][row], [-1]))
        if per == "word":
            assert answer["text"] == [word.decode() for word in expected["text"][row].numpy()]
            assert answer["word_count"] == len(answer["text"])


def test_the_program_writes_vectors_and_refuses_wrong_flags(programs, encoder, tmp_path):
    task = Pretraining(Tokenizer(VOCABULARY), 24)
    model, source, output = str(tmp_path / "model"), tmp_path / "a.txt", tmp_path / "a.npz"
    directory.save(model, task.build(encoder), encoder, task)
    source.write_text("the good\na\n")
    done = programs.succeed("extract", f"--init={model}", f"--input={source}", f"--output={output}", "--layers=0,-1")
    assert done.output == f"{output}: vectors of 2 texts\n"
    assert np.load(output)["vector"].shape == (2, 32)
    done = programs("extract", f"--init={model}", f"--input={source}", f"--output={output}", "--layers=last")
    assert (done.status, done.error_line) == (
        2,
        "bert_tf: error: --layers=last: expected whole numbers separated by commas",
    )
    done = programs("extract", f"--init={model}", f"--input={source}")
    assert done.error_line == ("bert_tf: error: nothing to do: give --input and --output, --export_dir or --static_dir")
    done = programs("extract", f"--init={model}", f"--input={source}", f"--output={output}", "--optimize=bfloat16")
    expected = "bert_tf: error: --optimize=bfloat16 is for exports; give --export_dir, too, or leave it out"
    assert done.error_line == expected
