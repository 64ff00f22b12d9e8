"""Exports to ONNX give the outputs of the model in ONNX Runtime, and Transformers opens what is beside them."""

import collections
import contextlib
import json
import os
import sys

import numpy as np
import pytest

from bert_tf import BertEncoder, Tokenizer
from bert_tf.config import ClassificationConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference import onnx_model
from bert_tf.inference.portable import summary
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.masked_lm import MaskedLM
from tests.errors import raises
from tests.inference import portable
from tests.inference.kinds import KINDS
from tests.inference.portable import QUICK, check_outputs, inputs_of, made, real_vectors
from tests.model.small import FAMILY, MODERNBERT, PRUNED, randomize, small_config
from tests.zoo import VOCABULARY

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")


def opened(path):
    """A session of ONNX Runtime alone."""
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(session, inputs):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


# Of two axes and three, from states, logits and positions, with and without token types.
FIRST = ("regression by cosine", "questions of byte pairs", "multiple choice", "pre-training on packed rows")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in FIRST)) for kind in QUICK])
def test_outputs_are_those_of_the_model_whatever_the_padding(kind, tmp_path):
    task, model, file = made(kind, tmp_path / "out", "onnx", check=False)
    session = opened(file.path)
    inputs = inputs_of(task, file.inputs)
    check_outputs(task, model, inputs, run(session, inputs), rtol=1e-5, atol=1e-5)
    # Optimum finds inputs and dimensions by these names.
    shapes = {value.name: value.shape for value in session.get_inputs()}
    assert list(shapes) == list(file.inputs)
    assert {(shape[0], shape[-1]) for shape in shapes.values()} == {("batch_size", "sequence_length")}
    domains = {node.domain for node in onnx.load(file.path).graph.node}
    assert domains == {""}, "an op that only some runtimes have"


@pytest.mark.parametrize(
    "shape, architecture",
    [
        (FAMILY["albert"], "AlbertForSequenceClassification"),
        (FAMILY["electra"], "ElectraForSequenceClassification"),
        (FAMILY["distilbert"], "DistilBertForSequenceClassification"),
        (MODERNBERT, "ModernBertForSequenceClassification"),
        (PRUNED, None),  # Transformers' models have layers of one size
    ],
)
@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_members_of_the_family_are_exported_as_their_classes(shape, architecture, runs, tmp_path, monkeypatch):
    if not runs:
        monkeypatch.setattr(onnx_model, "write", lambda graph, path: None)  # the config does not depend on it
    tokenizer = Tokenizer(VOCABULARY)
    task = Classification(tokenizer, ClassificationConfig(max_length=24), labels=("negative", "positive"), pair=False)
    encoder = BertEncoder(small_config(vocab_size=tokenizer.vocab_size, **shape))
    model = randomize(task.build(encoder), scale=0.5)
    file = portable.exported(task, model, tmp_path / "out", "onnx", check=False)
    if runs:
        inputs = inputs_of(task, file.inputs)
        check_outputs(task, model, inputs, run(opened(file.path), inputs), rtol=1e-5, atol=1e-5)
    assert ("token_type_ids" in file.inputs) == bool(encoder.config.type_vocab_size)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config.get("architectures") == ([architecture] if architecture else None)


@pytest.fixture(scope="module")
def classification(tmp_path_factory):
    """A task, its model, and the file of its checked export."""
    return made("classification", tmp_path_factory.mktemp("classification") / "out", "onnx")


def test_the_check_runs_padded_and_long_texts_and_names_the_difference(classification):
    path, checked = classification[2].path, classification[2].checked
    assert "40 rows of token ids" in checked and "ONNX Runtime" in checked
    beside = ["config.json", "model.onnx", "tokenizer_config.json", "vocab.txt"]
    assert sorted(os.listdir(os.path.dirname(path))) == beside


def test_labels_and_tokenizer_are_where_transformers_looks_for_them(classification):
    transformers = pytest.importorskip("transformers")
    task, model, file = classification
    config = transformers.AutoConfig.from_pretrained(os.path.dirname(file.path))
    assert config.architectures == ["BertForSequenceClassification"]
    assert config.id2label == {0: "negative", 1: "긍정"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.dirname(file.path))
    found = dict(tokenizer(["a b the Good c d", "a"], padding=True, return_tensors="np"))
    logits = run(opened(file.path), found)["logits"]
    features = task.codec.token_features({"text": np.array(["a b the Good c d", "a"], object)})
    features = {name: features[name] for name in model.input}
    np.testing.assert_allclose(logits, model(features, training=False)["logits"], rtol=1e-5, atol=1e-5)


def test_a_model_that_transformers_lacks_has_a_config_without_class_and_a_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    task, model, file = made("intent and slots", tmp_path / "out", "onnx", check=False)
    inputs = inputs_of(task, file.inputs)
    check_outputs(task, model, inputs, run(opened(file.path), inputs), rtol=1e-5, atol=1e-5)
    (warning,) = file.warnings
    assert "intent_and_slots" in warning and "no class" in warning
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["model_type"] == "bert" and "architectures" not in config
    assert config["id2label"]["0"] == "O"
    assert config["bert_tf"]["task"]["settings"]["intents"] == ["play", "예약"]
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(["a b the Good"], return_tensors="np")
    assert run(opened(file.path), dict(tokens)).keys() == {"intent_logits", "slot_logits"}


@pytest.mark.parametrize("apart, exported", [(5e-5, True), (5e-4, False)])
@pytest.mark.parametrize("size", [1.0, 20.0])
def test_the_bound_is_absolute_or_a_part_of_the_range_of_a_row(apart, exported, size, tmp_path, monkeypatch):
    """Of logits that span `size`: kernels differ by less, and other operations by more."""
    task, model = KINDS["classification"]()
    layer = model.get_layer("classifier")
    layer.kernel.assign(np.zeros(layer.kernel.shape))
    layer.bias.assign([0.0, size])
    logits = np.array([0.0, size + apart * size], "f4")
    monkeypatch.setattr(
        onnx_model, "runner", lambda path: lambda inputs: {"logits": np.tile(logits, [len(inputs["input_ids"]), 1])}
    )
    monkeypatch.setattr(onnx_model, "write", lambda graph, path: None)
    with contextlib.nullcontext() if exported else raises(DataError, "outputs as the model's to 5e-04", "--nocheck"):
        portable.exported(task, model, tmp_path / "out", "onnx")


@pytest.mark.parametrize("apart, warned", [(0.04, False), (0.06, True)])
def test_int8_that_differs_by_more_than_a_twentieth_has_a_warning_that_export_prints(
    apart, warned, tmp_path, monkeypatch
):
    task, model = KINDS["classification"]()
    layer = model.get_layer("classifier")
    layer.kernel.assign(np.zeros(layer.kernel.shape))
    layer.bias.assign([0.0, 20.0])
    logits = np.array([0.0, 20.0 * (1 + apart)], "f4")  # the root mean square of the differences, relative, is `apart`
    monkeypatch.setattr(
        onnx_model, "runner", lambda path: lambda inputs: {"logits": np.tile(logits, [len(inputs["input_ids"]), 1])}
    )
    monkeypatch.setattr(onnx_model, "write_int8", lambda graph, path: None)
    file = portable.exported(task, model, tmp_path / "out", "onnx", optimize="int8")
    said = [f"int8: the outputs differ by {apart:.1e} from float32", "compare its metrics on labelled data"]
    assert said[0] in file.checked and len(file.warnings) == warned
    *_, last = summary(file).splitlines()
    assert all(part in last for part in said) if warned else last == f"checked: {file.checked}"


@pytest.mark.parametrize(
    "kind, products, atol, names",
    [
        ("tagging", 4, 0.1, ["input_ids", "attention_mask", "token_type_ids"]),
        # Without biases, and with a gate.
        pytest.param("classification by ModernBERT", 8, 0.3, ["input_ids", "attention_mask"], marks=pytest.mark.slow),
    ],
)
def test_int8_is_near_and_has_the_same_inputs_and_outputs(tmp_path, kind, products, atol, names):
    task, model, file = made(kind, tmp_path / "out", "onnx", optimize="int8")
    assert "int8: the outputs differ by" in file.checked
    session = opened(file.path)
    inputs = inputs_of(task, file.inputs)
    found = run(session, inputs)
    check_outputs(task, model, inputs, found, rtol=0.1, atol=atol)
    graph = onnx.load(file.path).graph
    kinds = collections.Counter(node.op_type for node in graph.node)
    assert kinds["QuantizeLinear"] == products  # of its layers
    weights = [onnx.numpy_helper.to_array(one) for one in graph.initializer if one.name.endswith("/int8")]
    assert len(weights) == products and {one.dtype for one in weights} == {np.dtype("int8")}
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(file.path, settings, providers=["CPUExecutionProvider"])
    run_by = collections.Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert run_by["QGemm"] == products  # what it does not fuse, it computes in float32
    # With a fixed scale of its inputs, no row depends on the others.
    for row, length in enumerate(inputs["attention_mask"].sum(-1)):
        alone = run(session, {name: value[row : row + 1, :length] for name, value in inputs.items()})
        (logits,) = alone["logits"]
        np.testing.assert_allclose(logits, found["logits"][row, : len(logits)], rtol=1e-4, atol=1e-4)
    assert [value.name for value in session.get_inputs()] == names


@pytest.mark.slow
def test_a_vocabulary_of_usual_size_passes_its_own_check(tmp_path):
    """A million logits, with the spread of a trained model's, in units of which the bound is."""
    pieces = [*VOCABULARY, *(f"piece{number}" for number in range(30_522 - len(VOCABULARY)))]
    task = MaskedLM(Tokenizer(pieces), 32)
    encoder = BertEncoder(small_config(vocab_size=len(pieces), max_position_embeddings=32, num_layers=1, pooler=False))
    model = randomize(task.build(encoder), scale=0.65)
    file = portable.exported(task, model, tmp_path / "out", "onnx")
    inputs = inputs_of(task, file.inputs)
    logits = run(opened(file.path), inputs)["logits"]
    assert logits.shape[-1] == 30_522
    assert 2 < logits.std() < 4, logits.std()
    check_outputs(task, model, inputs, {"logits": logits}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimize", ["none", "int8"])
@pytest.mark.parametrize("answer", [0.0, np.nan])
def test_other_answers_are_refused_and_nothing_is_left(answer, optimize, tmp_path, monkeypatch):
    monkeypatch.setattr(
        onnx_model,
        "runner",
        lambda path: lambda inputs: {"logits": np.full([len(inputs["input_ids"]), 2], answer, "f4")},
    )
    for write in ("write", "write_int8"):
        monkeypatch.setattr(onnx_model, write, lambda graph, path: None)
    with raises(DataError, "ONNX Runtime", "--nocheck"):
        made("classification", tmp_path / "out", "onnx", optimize=optimize)
    assert not os.listdir(tmp_path)


def test_a_model_that_answers_nan_is_refused(tmp_path):
    task, model = KINDS["classification"]()
    model.weights[-1].assign(np.full(model.weights[-1].shape, np.nan))
    with raises(DataError, "NaN", "logits"):
        portable.exported(task, model, tmp_path / "out", "onnx")
    assert not os.listdir(tmp_path)


def test_mistakes_are_one_line_errors(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    with raises(ConfigError, "out", "already exists"):
        made("classification", tmp_path / "out", "onnx")
    with raises(ConfigError, "bfloat16", "int8", "ONNX"):
        made("classification", tmp_path / "new", "onnx", optimize="bfloat16")
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with raises(ConfigError, "tf2onnx", "pip install 'bert_tf[onnx]'"):
        made("classification", tmp_path / "new", "onnx")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow
def test_vectors_of_a_real_model_are_those_of_its_encoder(tmp_path):
    exported, inputs, expected = real_vectors("onnx", tmp_path / "out")
    found = run(opened(exported.path), {name: value.astype("int64") for name, value in inputs.items()})
    np.testing.assert_allclose(found["sentence_embedding"], expected, atol=1e-5)
