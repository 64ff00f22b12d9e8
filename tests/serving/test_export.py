"""Exported models: the Python model's answers, from ops that TF Serving has."""

import functools
import os
import pathlib
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.files import bundled
from bert_tf.inputs.tables import read_table
from bert_tf.serving.export import export
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.downstream import Downstream
from bert_tf.tasks.pretraining import Pretraining
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from bert_tf.text import Tokenizer
from tests.model.numpy_bert import encode, softmax, tensors_of
from tests.model.small import PIECES, randomize, small_config
from tests.serving.graphs import check_ops

LENGTH = 32
KINDS = ("single", "pair", "fill", "tags")
VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz")]


def classification(tokenizer, labels, *, pair=False):
    return Classification(tokenizer, ClassificationConfig(max_length=LENGTH), labels=labels, pair=pair)


def make(kind):
    tokenizer = Tokenizer(VOCABULARY)
    encoder = BertEncoder(small_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH))
    task = {
        "fill": lambda: Pretraining(tokenizer, LENGTH),
        "single": lambda: classification(tokenizer, ("negative", "positive")),
        "pair": lambda: classification(tokenizer, ("a", "b", "c"), pair=True),
        "tags": lambda: Tagging(tokenizer, TaggingConfig(max_length=LENGTH), labels=("O", "B-X", "I-X")),
    }[kind]()
    return task, randomize(task.build(encoder), scale=0.5)  # small weights would tell no texts apart


class Exported(NamedTuple):
    """A task, its model, the folder of the first version, and what was loaded from there."""

    task: Downstream | Pretraining
    model: keras.Model
    path: str
    loaded: object

    @property
    def serve(self):
        return self.loaded.signatures["serving_default"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Function of a kind to its Exported, each made once."""

    @functools.cache
    def of(kind):
        task, model = make(kind)
        path = export(task, model, str(tmp_path_factory.mktemp(kind) / "served"))
        return Exported(task, model, path, tf.saved_model.load(path))

    return of


@pytest.fixture
def single(exported):
    return exported("single")


def numpy_probabilities(task, model, texts):
    """Probabilities by NumPy, each text on its own and without padding."""
    tensors, head = tensors_of(model.get_layer("encoder"), 32), model.get_layer("classifier")
    answers = []
    for ids in task.tokenizer.tokenize(texts).to_list():
        ids = np.array([[2, *ids[: LENGTH - 2], 3]])
        inputs = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": np.zeros_like(ids)}
        _, pooled, _ = encode(tensors, inputs, layers=2, heads=4, activation="tanh_gelu")
        answers.append(softmax(pooled @ head.kernel.numpy() + head.bias.numpy())[0])
    return np.array(answers)


def test_answers_are_those_of_the_python_model_on_real_sentences(single):
    texts = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:300]
    texts += ["", " ", "\u200b", "[MASK] [SEP]", "가나다 ÉÀ"]
    answer = {name: value.numpy() for name, value in single.serve(text=tf.constant(texts)).items()}
    expected = numpy_probabilities(single.task, single.model, texts)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
    assert np.ptp(expected, 0).min() > 0.01  # the model does tell texts apart
    labels = np.array([b"negative", b"positive"], object)
    np.testing.assert_array_equal(answer["label"], labels[answer["probabilities"].argmax(-1)])
    np.testing.assert_array_equal(answer["labels"], np.tile(labels, (len(texts), 1)))


def test_an_answer_does_not_depend_on_the_rest_of_the_batch(single):
    serve = single.serve
    texts = ["a b", "the good " * 40, ""]
    together = serve(text=tf.constant(texts))["probabilities"].numpy()
    for text, probabilities in zip(texts, together, strict=True):
        np.testing.assert_allclose(serve(text=tf.constant([text]))["probabilities"][0], probabilities, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_texts_and_empty_texts_are_answered(exported, kind, texts):
    serve = exported(kind).serve
    names = [spec.name for spec in serve.structured_input_signature[1].values()]
    answer = serve(**{name: tf.constant(texts, tf.string) for name in names})
    assert {int(value.shape[0]) for value in answer.values()} == {len(texts)}
    assert all(np.isfinite(value).all() for value in answer.values() if value.dtype.is_floating)


def test_bytes_that_are_not_utf8_are_answered(single):
    assert np.isfinite(single.serve(text=tf.constant([b"\xff\xfe a", b"\xed\xa0\x80"]))["probabilities"]).all()


def test_a_pair_is_asked_by_two_texts(exported):
    serve = exported("pair").serve
    first, second = tf.constant(["a b", "the"]), tf.constant(["c", "good good"])
    straight = serve(text=first, second_text=second)["probabilities"].numpy()
    assert straight.shape == (2, 3)
    assert np.abs(straight - serve(text=second, second_text=first)["probabilities"].numpy()).max() > 1e-3


def test_versions_count_up_from_the_largest(single, tmp_path, monkeypatch):
    monkeypatch.setattr(tf.saved_model, "save", lambda *_, **options: None)  # only the folders matter here
    paths = [export(single.task, single.model, str(tmp_path)) for _ in range(2)]
    assert paths == [str(tmp_path / "1"), str(tmp_path / "2")]
    (tmp_path / "10").mkdir()
    (tmp_path / "notes").mkdir()
    assert export(single.task, single.model, str(tmp_path)) == str(tmp_path / "11")
    assert sorted(os.listdir(tmp_path)) == ["1", "10", "11", "2", "notes"]


def test_an_export_that_fails_leaves_no_version(single, tmp_path, monkeypatch):
    def full(_, path, **options):
        pathlib.Path(path, "saved_model.pb").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(OSError, match="No space left"):
        export(single.task, single.model, str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_holds_only_ops_that_tf_serving_has(exported, kind):
    check_ops(exported(kind).path)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)])
def test_a_model_trained_in_half_precision_is_exported_too(single, tmp_path, policy):
    task, model = single.task, single.model
    half = task.build(BertEncoder(model.get_layer("encoder").config, dtype=policy))
    half.set_weights(model.get_weights())
    serve = tf.saved_model.load(export(task, half, str(tmp_path))).signatures["serving_default"]
    texts = ["the good", "a b c"]
    probabilities = serve(text=tf.constant(texts))["probabilities"]
    assert probabilities.dtype == tf.float32
    np.testing.assert_allclose(probabilities, numpy_probabilities(task, model, texts), atol=0.03)
