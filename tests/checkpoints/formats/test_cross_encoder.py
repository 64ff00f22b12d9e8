"""Scores of pairs as sentence-transformers' CrossEncoder gives them: by the activation that a directory names.

`tests/inference/test_optimum.py` asks the library itself.
"""

import dataclasses
import json
import logging
import math

import numpy as np
import pytest

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.checkpoints.conversion import convert
from bert_tf.checkpoints.formats import huggingface
from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.errors import BertTfError
from bert_tf.inference.portable import ExportedFile
from tests.checkpoints.small import small_checkpoint
from tests.errors import raises

IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
# How releases name it: before 4, from 4 on, and in the newest also beside config.json.
LAYOUTS = {
    "before 4": lambda name: {"config.json": {"sbert_ce_default_activation_function": name}},
    "since 4": lambda name: {"config.json": {"sentence_transformers": {"activation_fn": name, "version": "5.1.0"}}},
    "newest": lambda name: {
        "config_sentence_transformers.json": {"model_type": "CrossEncoder", "activation_fn": name, "prompts": {}},
        "sentence_bert_config.json": {"transformer_task": "sequence-classification", "module_output_name": "scores"},
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.Transformer"}],
    },
}


def published(path, layout="since 4", name=SIGMOID, labels=("LABEL_0",)):
    """A directory of a classifier whose logits are 3.0, with an activation; its path as str."""
    path.mkdir()
    checkpoint = small_checkpoint("classification", labels=labels)
    head = {"kernel": np.zeros([32, len(labels)], np.float32), "bias": np.full([len(labels)], 3.0, np.float32)}
    checkpoint.tensors.update({f"classifier/{path}": tensor_of(value, path) for path, value in head.items()})
    huggingface.write(checkpoint, str(path))
    files = {"config.json": {"bert_tf": None, "problem_type": None}}  # which are not there
    for file, content in [*files.items(), *(LAYOUTS[layout](name).items() if name else ())]:
        old = json.loads((path / file).read_text()) if (path / file).exists() else {}
        (path / file).write_text(json.dumps(old | content if isinstance(content, dict) else content))
    return str(path)


def settings_of(path):
    return huggingface.read(str(path)).task["settings"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_activation_is_found_where_each_release_writes_it(layout, tmp_path):
    checkpoint = huggingface.read(published(tmp_path / "theirs", layout))
    assert checkpoint.task["name"] == "regression"
    assert checkpoint.task["settings"]["activation"] == "sigmoid"
    assert not checkpoint.report.warnings  # nor is anything said of vectors, which it has none of


def test_the_score_is_kept_by_everything_that_is_written(tmp_path):
    path = published(tmp_path / "theirs")
    expected = 1 / (1 + math.exp(-3.0))
    model = bert_tf.TextRegressor.from_pretrained(path)
    model.save(tmp_path / "saved")
    for format in ("bert_tf", "huggingface"):
        convert(path, format, str(tmp_path / format))
    convert(str(tmp_path / "saved"), "huggingface", str(tmp_path / "again"))
    for opened in (model, bert_tf.TextRegressor.from_pretrained(tmp_path / "again")):
        [found] = opened.predict([("a", "b")])
        np.testing.assert_allclose(found["value"], expected, rtol=1e-6)
    assert directory.read(str(tmp_path / "bert_tf")).task["settings"]["activation"] == "sigmoid"
    for source in ("huggingface", "again"):
        config = json.loads((tmp_path / source / "config.json").read_text())
        # Transformers' pipelines take the sigmoid of a single output if no problem_type is there.
        assert config.get("problem_type") is None
        assert config["sentence_transformers"]["activation_fn"] == SIGMOID
        assert config["sbert_ce_default_activation_function"] == SIGMOID


def test_an_export_for_onnx_has_the_logit_and_names_the_activation(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    model = bert_tf.TextRegressor.from_pretrained(published(tmp_path / "theirs"))
    file = model.export(tmp_path / "onnx", format="onnx", check=False)
    assert isinstance(file, ExportedFile)
    ids = np.array([[2, 5, 3]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    np.testing.assert_allclose(onnxruntime.InferenceSession(file.path).run(["logits"], inputs)[0], 3.0, rtol=1e-6)
    config = json.loads((tmp_path / "onnx/config.json").read_text())
    assert config["sentence_transformers"]["activation_fn"] == SIGMOID


@pytest.mark.parametrize("name", ["torch.nn.modules.activation.Mish", "mine.Sigmoid"])
def test_other_activations_are_refused_by_name_and_the_encoder_opens(name, tmp_path):
    path = published(tmp_path / "theirs", name=name)
    with raises(BertTfError, name, SIGMOID, "remove it"):
        bert_tf.TextRegressor.from_pretrained(path).predict([("a", "b")])
    assert bert_tf.load(path)[0].config.hidden_size == 32


@pytest.mark.parametrize("name, said", [(IDENTITY, False), (SIGMOID, True)])
def test_what_several_outputs_are_given_to_is_said(name, said, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    bert_tf.load(published(tmp_path / "theirs", name=name, labels=("no", "yes", "maybe")))
    assert (f"the activation {name} in config.json is not applied" in caplog.text) == said


def test_without_an_activation_the_number_is_the_output(tmp_path):
    path = published(tmp_path / "theirs", name=None)
    assert "activation" not in settings_of(path)
    checkpoint = huggingface.read(path)
    for target in ("theirs", "ours"):  # CrossEncoder takes the sigmoid of a single output unless another one is named
        if target == "ours":
            checkpoint = dataclasses.replace(checkpoint, source_metadata={})
        (tmp_path / target).mkdir(exist_ok=True)
        huggingface.write(checkpoint, str(tmp_path / target))
        named = json.loads((tmp_path / target / "config.json").read_text()).get("sentence_transformers")
        assert named == ({"activation_fn": IDENTITY} if target == "ours" else None)
