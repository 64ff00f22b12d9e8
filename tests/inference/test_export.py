"""Exported models give the answers of the Python model and use only ops that TF Serving has."""

import concurrent.futures
import json
import os
import pathlib
import time
import zlib
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_tf.inference.session
from bert_tf import BertEncoder
from bert_tf.checkpoints.directory import save
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import bundled
from bert_tf.inference import ask, saved_model
from bert_tf.inference.check import check_ops, compare
from bert_tf.inference.samples import Request
from bert_tf.inference.saved_model import export, export_run
from bert_tf.inference.session import NotServable, Session
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.task import FineTuningTask
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.numpy_bert import encode, softmax, tensors_of
from tests.model.small import PIECES, multiplies_bfloat16, randomize, small_config

LENGTH = 32
VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz")]


def make(scale=0.5, **parts):  # with small weights all texts get nearly the same answer
    config = ClassificationConfig(max_length=LENGTH)
    task = Classification(Tokenizer(VOCABULARY), config, labels=("negative", "positive"), pair=False)
    shape = {"vocab_size": len(VOCABULARY), "max_position_embeddings": LENGTH, "num_layers": 1}
    return task, randomize(task.build(BertEncoder(small_config(**shape | parts))), scale=scale)


class Served(NamedTuple):
    """A task, its model, the directory of its exported version, and a session on that."""

    task: FineTuningTask
    model: keras.Model
    path: str
    session: ask.Model

    def answers(self, **inputs):
        return self.session.run(inputs)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A classifier of single texts."""
    task, model = make()
    signatures = task.signatures(model)
    task.signatures = lambda model: dict(signatures)  # traced once for all exports of the model
    path = export(task, model, str(tmp_path_factory.mktemp("single") / "served"), check=False).path
    return Served(task, model, path, ask.Model(path))


def numpy_probabilities(task, model, texts):
    """Probabilities computed with NumPy, one text at a time and without padding."""
    tensors, head = tensors_of(model.get_layer("encoder"), 32), model.get_layer("classifier")
    answers = []
    for ids in task.tokenizer.tokenize(texts).to_list():
        ids = np.array([[2, *ids[: LENGTH - 2], 3]])
        inputs = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": np.zeros_like(ids)}
        _, pooled, _ = encode(tensors, inputs, layers=1, heads=4, activation="tanh_gelu")
        answers.append(softmax(pooled @ head.kernel.numpy() + head.bias.numpy())[0])
    return np.array(answers)


def test_answers_match_the_python_model_on_real_sentences(single):
    texts = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:60]
    texts += ["", " ", "\u200b", "[MASK] [SEP]", "가나다 ÉÀ"]
    answer = single.answers(text=texts)
    expected = numpy_probabilities(single.task, single.model, texts)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
    assert np.ptp(expected, 0).min() > 0.01  # the answers differ between texts
    labels = np.array([b"negative", b"positive"], object)
    np.testing.assert_array_equal(answer["label"], labels[answer["probabilities"].argmax(-1)])
    np.testing.assert_array_equal(answer["labels"], np.tile(labels, (len(texts), 1)))


def test_bytes_that_are_not_utf8_are_answered(single):
    assert np.isfinite(single.answers(text=[b"\xff\xfe a", b"\xed\xa0\x80"])["probabilities"]).all()


@pytest.fixture
def saving(monkeypatch):
    """Replaces the function that writes a graph: only the directories matter here."""
    monkeypatch.setattr(tf.saved_model, "save", lambda _, path, **options: pathlib.Path(path, "saved_model.pb").touch())


def test_versions_count_up_from_the_largest(single, tmp_path, saving):
    paths = [export(single.task, single.model, str(tmp_path), check=False).path for _ in range(2)]
    assert paths == [str(tmp_path / "1"), str(tmp_path / "2")]
    (tmp_path / "2").rename(tmp_path / "010")  # TF Serving reads it as 10
    (tmp_path / "notes").mkdir()
    (tmp_path / "٣").mkdir()  # a digit in Unicode, but not for TF Serving
    assert export(single.task, single.model, str(tmp_path), check=False).path == str(tmp_path / "11")
    assert sorted(os.listdir(tmp_path)) == ["010", "1", "11", "notes", "٣"]


REFUSED = {
    "another program's version": ("shop", "3/saved_model.pb", r"shop/3 was not written by this program"),
    "a number that is no version": ("shop", "3", r"shop/3 was not written by this program"),
    "a SavedModel": (
        "shop",
        "saved_model.pb",
        "shop is a SavedModel itself; expected a folder with one folder per version",
    ),
    "a version's folder": ("shop/1", "", "shop/1 ends in a number, as versions do; give the model's folder"),
    "the last number": ("shop", f"{2**63 - 1}/assets.extra/model_card.json", "the last that TF Serving reads"),
    "a colon": ("shop:1", "", "the last part is the model's name, which ends at ':' in TF Serving's URLs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_tf_serving_cannot_serve_is_refused(single, tmp_path, case):
    folder, file, message = REFUSED[case]
    if file:
        (tmp_path / folder / file).parent.mkdir(parents=True)
        (tmp_path / folder / file).write_bytes(b"another model")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        export(single.task, single.model, str(tmp_path / folder))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_graph_is_noticed_before_it_is_loaded(single, tmp_path):
    path = export(single.task, single.model, str(tmp_path), check=False).path
    file = pathlib.Path(path, "saved_model.pb")
    content = bytearray(file.read_bytes())
    card = json.loads(pathlib.Path(path, "assets.extra/model_card.json").read_text())
    assert card["crc32"]["saved_model.pb"] == f"{zlib.crc32(content):08x}"
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"saved_model\.pb is damaged"):
        ask.Model(path)


def test_a_failed_export_leaves_no_version(single, tmp_path, monkeypatch):
    def full(_, path, **options):
        pathlib.Path(path, "saved_model.pb").write_bytes(b"half")
        raise tf.errors.ResourceExhaustedError(None, None, f"{{{{node}}}} {path}/variables; No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(OSError, match="No space left") as caught:
        export(single.task, single.model, str(tmp_path))
    assert (caught.value.filename, os.listdir(tmp_path)) == (str(tmp_path / "1"), [])


def test_an_export_is_checked_before_it_gets_its_final_name(single, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model, "Session", Session)  # with a start of Python of its own
    exported = export(single.task, single.model, str(tmp_path / "good"), attention=True)
    assert exported.signatures == ("serving_default", "tokens", "classify", "attention")
    assert exported.checked.startswith("24 requests to 4 signatures, answered by a session in a new process as by the")
    assert "checked" in json.loads(pathlib.Path(exported.path, "assets.extra/model_card.json").read_text())


@multiplies_bfloat16
def test_an_export_that_differs_too_much_from_float32_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(bert_tf.inference.session.TOLERANCES, "bfloat16", 1e-6)
    task, model = make()
    with raises(DataError, "bfloat16"):
        export(task, model, str(tmp_path), optimize="bfloat16")
    with raises(ConfigError, "'int7'", "bfloat16", "int8"):
        export(task, model, str(tmp_path), optimize="int7")
    assert os.listdir(tmp_path) == []


def test_a_model_that_a_session_does_not_restore_is_not_exported(single, tmp_path, monkeypatch):
    # As in early exports: tf.Module tracks the Keras model, so its variables are saved twice.
    def save(module, path, **options):
        module.model = single.model
        del module.variables_of_model
        written(module, path, **options)

    written = tf.saved_model.save
    monkeypatch.setattr(tf.saved_model, "save", save)
    restored = r"^signature 'serving_default', request 'short': the variable \S+ is not restored by a session"
    with pytest.raises(NotServable, match=restored):
        export(single.task, single.model, str(tmp_path / "twice"))
    assert os.listdir(tmp_path) == []


def test_a_model_whose_export_answers_differently_is_not_exported(single, tmp_path, monkeypatch):
    def changed(self, path, requests):
        session = ask.Model(path)
        answers = [session.predict(request) for request in requests]
        answers[0]["outputs"]["probabilities"][0][0] += 1e-4
        return answers

    monkeypatch.setattr(saved_model.Session, "ask", changed)
    with raises(NotServable, "'probabilities'", "1.0e-04"):
        export(single.task, single.model, str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_model_that_answers_nan_is_not_exported():
    expected = [{"probabilities": np.array([[np.nan, 0.5]], np.float32)}]
    request = Request("serving_default", "short", {"text": np.array([b"a"], object)})
    with raises(NotServable, "NaN", "'probabilities'"):
        compare([request], expected, [{"outputs": [[float("nan"), 0.5]]}])


def test_a_path_that_is_not_local_or_not_utf8_is_refused(single, tmp_path):
    for folder, message in (("gs://bucket/shop", "only local files are written"), (f"{tmp_path}/\udce9", "not UTF-8")):
        with pytest.raises(ConfigError, match=message):
            export(single.task, single.model, folder)
    assert not os.listdir(tmp_path)


def test_an_op_that_tf_serving_may_lack_is_not_exported(tmp_path):
    module = tf.Module()
    module.serve = tf.function(lambda x: tf.linalg.expm(x), input_signature=[tf.TensorSpec([2, 2])])
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    with raises(NotServable, "MatrixSolve"):
        check_ops(str(tmp_path))


def test_a_model_trained_in_half_precision_is_exported_in_float32(single, tmp_path):
    task, model = single.task, single.model
    encoder = BertEncoder(model.get_layer("encoder").config, dtype="mixed_bfloat16")
    half = task.build(encoder)
    half.set_weights(model.get_weights())
    with raises(ConfigError, "mixed_bfloat16", "float32"):
        export(task, half, str(tmp_path / "served"))
    assert not os.path.exists(tmp_path / "served")
    save(str(tmp_path / "run"), half, encoder, task)
    texts = ["the good", "a b c"]
    exported = export_run(str(tmp_path / "run"), str(tmp_path / "served"), check=False)
    probabilities = ask.Model(exported.path).run({"text": texts})["probabilities"]
    np.testing.assert_allclose(probabilities, numpy_probabilities(task, model, texts), atol=1e-5)


def test_a_session_ends_while_a_thread_waits_for_its_answers():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with Session("import time; time.sleep(600)") as session:
            asked = pool.submit(session.ask, "x", [])
            time.sleep(0.5)  # it has written, and reads
        assert isinstance(asked.exception(timeout=60), NotServable)
