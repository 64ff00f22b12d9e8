"""Static models: against NumPy on the files, by the library `tokenizers`, and against model2vec."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import tokenizers
from sklearn.decomposition import PCA

import bert_tf
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference.check import check_ops
from bert_tf.inference.embedder import open_embedder
from bert_tf.inference.mining import Limits, mine
from bert_tf.model.static_vectors import piece_table
from tests.errors import raises
from tests.inference.test_retrieval import encoding_of, opened, search, write_beir
from tests.packages import minilm, package
from tests.zoo import LENGTH, VOCABULARY, pretrained

TEXTS = ["the good a", "", "오늘 영화는 b", "\u200b", "good good\tthe ж 中", "a " * 700]


@pytest.fixture(scope="module")
def encoder():
    return bert_tf.SentenceEncoder.from_pretrained(pretrained())


@pytest.fixture(scope="module")
def folder(encoder, tmp_path_factory):
    """A static model of the encoder, with all components, and weights that differ little."""
    path = tmp_path_factory.mktemp("static") / "model"
    encoder.static(size=encoder.encoder.config.hidden_size, coefficient=0.5).save(path)
    return path


def files_of(folder):
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    return library, tensors, json.loads((folder / "config.json").read_text())


def reference(folder, texts):
    """The mean of the rows of a text's first 512 pieces, without the unknown one, to length 1, from the files."""
    library, tensors, config = files_of(folder)
    table, model, vectors = tensors["embeddings"].astype(np.float64), json.loads(library.to_str())["model"], []
    unknown = model.get("unk_id", library.token_to_id(model.get("unk_token") or ""))
    for text in texts:
        ids = np.array(library.encode(text, add_special_tokens=False).ids[:512], int)
        ids = ids[ids != unknown]
        rows = table[tensors["mapping"][ids] if "mapping" in tensors else ids]
        rows = rows * tensors["weights"][ids][:, np.newaxis] if "weights" in tensors else rows
        vector = rows.mean(0) if len(ids) else np.zeros(table.shape[1])
        vectors.append(vector / (np.linalg.norm(vector) or 1.0) if config["normalize"] else vector)
    return np.stack(vectors)


def other(folder, target, tensors, **config):
    """A copy with other tensors and settings, written by the library of the format."""
    shutil.copytree(folder, target)
    safetensors.numpy.save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps({"normalize": True} | config))
    return target


def test_a_text_has_the_mean_of_the_rows_of_its_pieces(folder):
    expected = reference(folder, TEXTS)
    assert not expected[1].any()  # an empty text
    np.testing.assert_allclose(bert_tf.SentenceEncoder.from_pretrained(folder).encode(TEXTS), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unigram", "byte_bpe"])
def test_every_kind_of_tokenizer_is_written_and_read(kind, tmp_path):
    static = bert_tf.SentenceEncoder.from_pretrained(pretrained(kind)).static(size=6)
    static.save(tmp_path / "static")
    np.testing.assert_allclose(static.encode(TEXTS), reference(tmp_path / "static", TEXTS), atol=1e-6)
    read = bert_tf.SentenceEncoder.from_pretrained(tmp_path / "static")
    np.testing.assert_array_equal(read.encode(TEXTS), static.encode(TEXTS))
    read.save(tmp_path / "again")
    assert (tmp_path / "again/tokenizer.json").read_bytes() == (tmp_path / "static/tokenizer.json").read_bytes()


def test_shared_rows_with_weights_are_read_in_whole_numbers(folder, tmp_path):
    pieces = len(files_of(folder)[1]["embeddings"])
    draw = np.random.default_rng(0)
    tensors = {
        "embeddings": draw.integers(-127, 128, [7, 5]).astype(np.int8),
        "mapping": draw.integers(0, 7, pieces),
        "weights": draw.uniform(0.1, 1, pieces).astype(np.float32),
    }
    path = other(folder, tmp_path / "int8", tensors, normalize=False)
    static = bert_tf.SentenceEncoder.from_pretrained(path)
    np.testing.assert_allclose(static.encode(TEXTS), reference(path, TEXTS), rtol=1e-5, atol=1e-5)
    static.save(tmp_path / "saved")
    assert {name: value.dtype for name, value in files_of(tmp_path / "saved")[1].items()} == {
        name: value.dtype for name, value in tensors.items()
    }


def test_the_table_has_weighted_principal_components():
    vectors = np.random.default_rng(1).normal(size=[40, 9]) * np.arange(1, 10)
    probabilities = np.array([1 / (rank + 2) for rank in range(40)])
    weights = 1e-2 / (1e-2 + probabilities / probabilities.sum())
    expected = PCA(5, svd_solver="full").fit_transform(vectors) * weights[:, np.newaxis]
    table = piece_table(vectors, 5, 1e-2)
    np.testing.assert_allclose(np.abs(table), np.abs(expected), rtol=1e-4, atol=1e-5)
    unweighted = table / weights[:, np.newaxis]
    assert (unweighted[np.abs(unweighted).argmax(0), range(5)] > 0).all()


def test_rows_are_the_encoders_vectors_of_single_pieces(encoder, folder):
    words = ["the", "good", "a", "b", "오늘", "영화"]
    assert set(words) < set(VOCABULARY)
    inputs = encoder.tokenizer.encode(words)
    states, mask = encoder.encoder(inputs)["sequence_output"].numpy(), inputs["input_mask"].numpy()[:, :, np.newaxis]
    vectors = (states * mask).sum(1) / mask.sum(1)
    library, tensors, _ = files_of(folder)
    at, ranks = [library.token_to_id(word) for word in words], np.arange(len(tensors["embeddings"])) + 2
    weights = 0.5 / (0.5 + 1 / ranks / np.sum(1 / ranks))
    rows = (tensors["embeddings"].astype(np.float64) / weights[:, np.newaxis])[at]
    # A rotation, so distances stay.
    distances = [np.linalg.norm(one[:, np.newaxis] - one, axis=-1) for one in (rows, vectors)]
    np.testing.assert_allclose(*distances, atol=5e-3 * distances[1].max())
    lacking = {"[CLS]", "[SEP]", "[MASK]"}
    assert {library.id_to_token(at) for at in range(len(tensors["embeddings"]))} == {*VOCABULARY} - lacking


def test_exports_answer_in_the_form_that_is_asked_for(folder, tmp_path):
    exported = bert_tf.SentenceEncoder.from_pretrained(folder).export(
        tmp_path / "served", size=3, values="int8", check=False
    )
    check_ops(exported.path)
    answer = tf.saved_model.load(exported.path).signatures["serving_default"](text=tf.constant(TEXTS))["vector"]
    first = reference(folder, TEXTS)[:, :3]
    expected = 127 * first / np.maximum(np.abs(first).max(1, keepdims=True), 1e-30)
    assert answer.dtype == tf.int8
    np.testing.assert_allclose(answer, expected, atol=0.51)


def test_search_and_evaluation_take_static_models(folder, tmp_path):
    collection, _ = opened(write_beir(tmp_path))
    ranking = search(encoding_of(open_embedder(folder), 4), collection, depth=6)
    asked = reference(folder, list(collection.queries.values()))
    products = asked @ reference(folder, [text for _, text in collection.texts()]).T
    np.testing.assert_allclose(ranking.scores, -np.sort(-products, 1)[:, :6], atol=1e-5)
    scored = [("a b", "a"), ("the", "good"), ("b", "b a c")]
    cosines = [np.prod(reference(folder, pair), 0).sum() for pair in scored]
    evaluated = bert_tf.SentenceEncoder.from_pretrained(folder).evaluate(scored, [0.1, 0.5, 0.2])
    assert evaluated["pearson"] == pytest.approx(np.corrcoef(cosines, [0.1, 0.5, 0.2])[0, 1], abs=1e-5)


def test_negatives_are_mined_and_vectors_are_learned_from_static_models(folder, tmp_path):
    pairs = [("a b", "a"), ("the", "good"), ("b", "b a c"), ("c d", "the good")]
    texts = [text for _, text in pairs]
    limits = Limits(first=1, last=3, negatives=1)
    found = list(mine(open_embedder(folder), pairs, texts, str(tmp_path / "mined"), limits, 4))
    assert [one.query for one in found] == [query for query, _ in pairs]
    vectors = {text: reference(folder, [text])[0] for pair in pairs for text in pair}
    for one in found:
        others = {text: vectors[one.query] @ vectors[text] for _, text in pairs if text != one.positive}
        assert others[one.negatives[0]] == pytest.approx(max(others.values()), abs=1e-5)
    student = bert_tf.SentenceEncoder.from_pretrained(pretrained(), max_length=LENGTH)
    history = student.fit(texts, teacher=folder, steps=20, learning_rate=1e-3, log_every=1, verbose=False).history
    assert history["loss"][-1] < history["loss"][0]


def test_what_does_not_fit_is_refused_in_a_line(encoder, folder, tmp_path):
    table = files_of(folder)[1]["embeddings"]
    with raises(DataError, "model.safetensors", "embeddings", len(table) - 1, len(table)):
        bert_tf.SentenceEncoder.from_pretrained(
            other(folder, tmp_path / "few", {"embeddings": table[1:]}, model_type="model2vec")
        )
    tensors = {"embeddings": table[:3], "mapping": np.arange(len(table))}
    with raises(DataError, "mapping", "0 to 2"):
        bert_tf.SentenceEncoder.from_pretrained(other(folder, tmp_path / "rows", tensors))
    broken = np.where(table == table[5, 0], np.nan, table).astype(np.float16)
    with raises(DataError, "embeddings", "NaN"):
        bert_tf.SentenceEncoder.from_pretrained(other(folder, tmp_path / "nan", {"embeddings": broken}))
    with raises(DataError, "config.json", "max_length", '"x"'):
        path = other(folder, tmp_path / "long", {"embeddings": table}, max_length="x")
        bert_tf.SentenceEncoder.from_pretrained(path)
    with raises(DataError, "embeddings", "values"):
        bert_tf.SentenceEncoder.from_pretrained(other(folder, tmp_path / "empty", {"embeddings": table[:, :0]}))
    (tmp_path / "few/tokenizer.json").unlink()
    with raises(DataError, "tokenizer.json", "model2vec"):
        bert_tf.SentenceEncoder.from_pretrained(tmp_path / "few")
    with raises(DataError, "static model", "SentenceEncoder"):
        bert_tf.load(folder)
    static = bert_tf.SentenceEncoder.from_pretrained(folder)
    with raises(ConfigError, "fit"):
        static.fit([("a", "b"), ("the", "c")])
    with raises(ConfigError, "static"):
        static.static()
    with raises(ConfigError, "pool", "'cls'"):
        bert_tf.SentenceEncoder.from_pretrained(folder, pool="cls")
    with raises(ConfigError, "size", 99, table.shape[1]):
        static.export(tmp_path / "served", size=99)
    with raises(ConfigError, "optimize", "'int4'"):
        static.export(tmp_path / "served", optimize="int4")
    with raises(ConfigError, "format", "'onnx'"):
        static.export(tmp_path / "onnx", format="onnx")
    with raises(ConfigError, "size", 10_000):
        encoder.static(size=10_000)
    with raises(ConfigError, "coefficient", "1.0"):
        encoder.static(coefficient=1.0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with raises(ConfigError, "notes.txt"):
        static.save(tmp_path / "full")


# Without importing it here: a program that writes the vectors of the texts on standard input.
_MODEL2VEC = """
import json, sys
import numpy as np
from model2vec import StaticModel
path, output = sys.argv[1:]
np.save(output, StaticModel.from_pretrained(path, quantize_to="float32").encode(json.load(sys.stdin)))
"""


def model2vec(folder, texts, output):
    """The vectors that model2vec computes, in another process."""
    library = package("model2vec", "model2vec==0.10.0")
    if not importlib.util.find_spec("joblib"):
        pytest.skip("needs pip install joblib, for model2vec")
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(library.parent)])
    subprocess.run(
        [sys.executable, "-c", _MODEL2VEC, str(folder), str(output)],
        input=json.dumps(texts), text=True, check=True, env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return np.load(output)


ODD = [
    *("A film to remember.", "", " ", "It costs $3.14, e.g. at 5 p.m.", "오늘 본 영화는 재미있었다.", "..."),
    *("中文 日本語テスト", "😀 👩‍👩‍👧", "\x00 a\x07b\u00ad", "ﬁ ½ ² Ａ ㎏", "THE İstanbul", " a  b\t c\nd\u3000e"),
    *("hello " * 2000, "x" * 5000),
]  # fmt: skip


@pytest.mark.slow
def test_a_published_model_gives_the_vectors_of_model2vec(tmp_path):
    folder = package("static_model", "tokenlearn-static-model==0.1.1") / "model"
    vectors = bert_tf.SentenceEncoder.from_pretrained(folder).encode(ODD)
    np.testing.assert_allclose(vectors, model2vec(folder, ODD, tmp_path / "theirs.npy"), atol=1e-5)


@pytest.mark.slow
def test_model2vec_reads_what_is_written(tmp_path):
    static = bert_tf.SentenceEncoder.from_pretrained(minilm()).static(size=64)
    static.save(tmp_path / "static")
    np.testing.assert_allclose(
        static.encode(ODD), model2vec(tmp_path / "static", ODD, tmp_path / "theirs.npy"), atol=1e-5
    )
