"""Exports to LiteRT give the outputs of the model in LiteRT's interpreter, in a process without TensorFlow."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bert_tf.errors import ConfigError, DataError
from bert_tf.inference import litert_model
from tests.errors import raises
from tests.inference.portable import QUICK, check_outputs, inputs_of, made, real_vectors

pytest.importorskip("ai_edge_litert")

# Runs a model on inputs of several shapes, one after the other, and writes the outputs.
_ALONE = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
model, source, target = sys.argv[1:]
run = Interpreter(model).get_signature_runner()
inputs = dict(np.load(source))
shorter = run(**{name: value[:1, ..., :2] for name, value in inputs.items()})
np.savez(target, **run(**inputs))
assert "tensorflow" not in sys.modules
"""


def run_alone(path, inputs, folder):
    """The outputs of a new process that has only LiteRT and NumPy."""
    np.savez(folder / "inputs.npz", **inputs)
    arguments = [path, folder / "inputs.npz", folder / "outputs.npz"]
    done = subprocess.run([sys.executable, "-P", "-c", _ALONE, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # an op of Flex, which has TensorFlow's ops, could not be loaded
    return dict(np.load(folder / "outputs.npz"))


# The graphs are those of ONNX, which test_onnx_model.py has of all kinds: here, those of other ranks and types.
FIRST = ("multiple choice", "pre-training on packed rows", "vectors of words")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in FIRST)) for kind in QUICK if "bilstm" not in kind],
)
def test_outputs_are_those_of_the_model_whatever_the_padding(kind, tmp_path):
    task, model, exported = made(kind, tmp_path / "out", "litert", check=False)
    inputs = inputs_of(task, exported.inputs, "int32")
    check_outputs(task, model, inputs, run_alone(exported.path, inputs, tmp_path), rtol=1e-5, atol=1e-5)


def test_the_check_runs_the_interpreter_and_labels_are_beside_the_model(tmp_path):
    _, _, exported = made("classification", tmp_path / "out", "litert")
    assert "40 rows of token ids" in exported.checked and "LiteRT" in exported.checked
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.tflite", "tokenizer_config.json", "vocab.txt"]
    assert json.loads((tmp_path / "out/config.json").read_text())["id2label"] == {"0": "negative", "1": "긍정"}


@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        "questions of byte pairs",
        *(pytest.param(f"masks by {name}", marks=pytest.mark.slow) for name in ("XLM-R", "CamemBERT")),
        *(pytest.param(f"masks by {name}", marks=pytest.mark.slow) for name in ("ModernBERT", "mmBERT")),
    ],
)
def test_transformers_opens_the_tokenizer_beside_the_model_and_makes_its_inputs(kind, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="needs pip install 'bert_tf[peers]'")
    monkeypatch.setattr(litert_model, "write", lambda graph, path: None)  # the other files do not depend on this one
    task, _, exported = made(kind, tmp_path / "out", "litert", check=False)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts, others = ["a b the Good c d", "a", "", "the 영화 good"], ["good", "한국어 a b", "the end", "c"]
    columns = (texts,) if kind == "classification" else (texts, others)
    found = theirs(*columns, padding=True, return_tensors="np")
    assert found.keys() == {*exported.inputs}
    features = {name: value.numpy() for name, value in task.tokenizer.encode(*columns).items()}
    mask = features["input_mask"]  # whatever the id of padding
    assert found["attention_mask"].tolist() == mask.tolist()
    assert (found["input_ids"] * mask).tolist() == (features["input_word_ids"] * mask).tolist()
    if "token_type_ids" in found:
        assert found["token_type_ids"].tolist() == features["input_type_ids"].tolist()


@pytest.mark.parametrize("kind", ["tagging", pytest.param("classification by ModernBERT", marks=pytest.mark.slow)])
def test_int8_is_near(tmp_path, kind):
    task, model, exported = made(kind, tmp_path / "int8", "litert", optimize="int8")
    assert "int8: the outputs differ by" in exported.checked
    inputs = inputs_of(task, exported.inputs, "int32")
    check_outputs(task, model, inputs, run_alone(exported.path, inputs, tmp_path), rtol=0.1, atol=0.1)


def test_mistakes_are_one_line_errors(tmp_path, monkeypatch):
    with raises(DataError, "LiteRT", "TensorListReserve", "--format=onnx"):
        made("classification on bilstm", tmp_path / "out", "litert")
    with raises(ConfigError, "bfloat16", "int8", "LiteRT"):
        made("classification", tmp_path / "out", "litert", optimize="bfloat16")
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with raises(ConfigError, "ai-edge-litert", "pip install 'bert_tf[litert]'"):
        made("classification", tmp_path / "out", "litert")
    assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_vectors_of_a_real_model_are_those_of_its_encoder(tmp_path):
    exported, inputs, expected = real_vectors("litert", tmp_path / "out")
    found = run_alone(exported.path, inputs, tmp_path)
    np.testing.assert_allclose(found["sentence_embedding"], expected, atol=1e-5)
