"""Hugging Face's layout: real weights and random ones against NumPy, and a clear line for all that does not fit."""

import json
import logging
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bert_tf
from bert_tf.errors import DataError
from tests import packages
from tests.model.numpy_bert import encode, random_tensors
from tests.model.small import PIECES, features

SENTENCES = [
    "The food was not good at all.",
    "Ein schöner, kleiner Film - 2 Stunden lang!",
    "It",
    "",
    "one of the most inventive films of the year, and, in its own odd way, one of the most moving; "
    "nobody who sees it will soon forget the long last scene at the station",
]


@pytest.fixture(scope="module")
def minilm():
    return str(packages.minilm())


def test_real_weights_give_what_numpy_makes_of_the_same_file(minilm):
    encoder, tokenizer = bert_tf.load(minilm)
    assert encoder.config.activation == "erf_gelu"
    rows = [[tokenizer.cls_id, *ids, tokenizer.sep_id] for ids in tokenizer.tokenize(SENTENCES).to_list()]
    width = max(map(len, rows)) + 3
    inputs = {name: np.zeros((len(rows), width), np.int32) for name in features()}
    for index, row in enumerate(rows):
        inputs["input_word_ids"][index, : len(row)] = row
        inputs["input_mask"][index, : len(row)] = 1
        inputs["input_type_ids"][index, len(row) // 2 : len(row)] = 1  # as if each were a pair
    with open(os.path.join(minilm, "config.json")) as file:
        settings = json.load(file)
    sequence, pooled, layers = encode(
        load_file(os.path.join(minilm, "model.safetensors")),
        inputs,
        layers=settings["num_hidden_layers"],
        heads=settings["num_attention_heads"],
        activation="erf_gelu",
        epsilon=settings["layer_norm_eps"],
    )
    outputs, tokens = encoder(inputs), inputs["input_mask"] == 1
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=1e-5)
    np.testing.assert_allclose(outputs["sequence_output"].numpy()[tokens], sequence[tokens], atol=1e-5)
    for ours, theirs in zip(outputs["encoder_outputs"], layers, strict=True):
        np.testing.assert_allclose(ours.numpy()[tokens], theirs[tokens], atol=1e-5)


CONFIG = {
    "model_type": "bert",
    "vocab_size": len(PIECES),
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
}


@pytest.fixture
def tensors():
    shape = {"layers": 2, "hidden": 32, "inner": 48, "vocab": len(PIECES), "positions": 24}
    return random_tensors(np.random.default_rng(0), **shape)


def write(path, tensors, config=None, pieces=PIECES, **overrides):
    """A Hugging Face directory; returns its path as str."""
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps((CONFIG if config is None else config) | overrides))
    (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return str(path)


def assert_holds(encoder, tensors, activation="erf_gelu"):
    inputs = features()
    sequence, pooled, _ = encode(tensors, inputs, layers=2, heads=4, activation=activation, epsilon=1e-5)
    outputs, tokens = encoder(inputs), inputs["input_mask"] == 1
    np.testing.assert_allclose(outputs["sequence_output"].numpy()[tokens], sequence[tokens], atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=1e-5)


def gamma_beta(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize(
    "rename",
    [lambda name: name, lambda name: f"bert.{name}", gamma_beta, lambda name: f"bert.{gamma_beta(name)}"],
    ids=["plain", "prefix", "gamma", "prefix_gamma"],
)
def test_tensors_are_found_under_each_of_their_names(tmp_path, tensors, rename):
    encoder, _ = bert_tf.load(write(tmp_path, {rename(name): value for name, value in tensors.items()}))
    assert_holds(encoder, tensors)


@pytest.mark.parametrize(
    "theirs, ours",
    [("gelu", "erf_gelu"), ("gelu_new", "tanh_gelu"), ("gelu_pytorch_tanh", "tanh_gelu"), ("relu", "relu")],
)
def test_activations_go_by_their_hugging_face_names(tmp_path, tensors, theirs, ours):
    encoder, _ = bert_tf.load(write(tmp_path, tensors, hidden_act=theirs))
    assert_holds(encoder, tensors, ours)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_tensors_of_another_float_type_are_converted(tmp_path, tensors, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    stored = {name: value.astype(dtype) for name, value in tensors.items()}
    encoder, _ = bert_tf.load(write(tmp_path, stored))
    assert_holds(encoder, {name: value.astype(np.float32) for name, value in stored.items()})


def test_the_tokenizer_follows_tokenizer_config(tmp_path, tensors):
    path = write(tmp_path, tensors)
    _, tokenizer = bert_tf.load(path)
    assert (tokenizer.lower_case, tokenizer.strip_accents, tokenizer.split_cjk) == (True, True, True)
    settings = {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    _, tokenizer = bert_tf.load(path)
    assert (tokenizer.lower_case, tokenizer.strip_accents, tokenizer.split_cjk) == (False, False, False)


def test_heads_are_left_out_with_a_warning_that_lists_them(tmp_path, tensors, caplog):
    extra = {"cls.predictions.bias": np.zeros(3), "classifier.weight": np.zeros(3), "qa_outputs.bias": np.zeros(2)}
    buffer = {"bert.embeddings.position_ids": np.arange(24)[None]}
    prefixed = {f"bert.{name}": value for name, value in tensors.items()}
    with caplog.at_level(logging.WARNING, logger="absl"):
        encoder, _ = bert_tf.load(write(tmp_path, prefixed | extra | buffer))
    assert_holds(encoder, tensors)
    (record,) = [record for record in caplog.records if "left out" in record.getMessage()]
    assert all(name in record.getMessage() for name in extra)
    assert "position_ids" not in record.getMessage()


def test_a_bare_encoder_loads_without_a_warning(tmp_path, tensors, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        bert_tf.load(write(tmp_path, tensors))
    assert not caplog.records


QUERY = "encoder.layer.1.attention.self.query"


def changed(tensors, **changes):
    """`tensors` with some replaced, or removed where the value is None; "__" in a name stands for a dot."""
    result = tensors | {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in result.items() if value is not None}


@pytest.mark.parametrize(
    "changes, culprits",
    [
        ({"pooler.dense.bias": None, f"{QUERY}.weight": None}, ["missing", "pooler.dense.bias", f"{QUERY}.weight"]),
        ({"encoder.layer.2.output.dense.bias": np.zeros(32)}, ["unknown", "encoder.layer.2.output.dense.bias"]),
        ({"embeddings.LayerNorm.weight": np.zeros(31)}, ["embeddings.LayerNorm.weight is [31], not [32]"]),
        (
            {"encoder.layer.0.output.dense.weight": np.zeros((48, 32))},
            ["encoder.layer.0.output.dense.weight is [48, 32], not [32, 48]"],
        ),
        ({f"{QUERY}.weight": np.zeros((31, 32))}, [f"{QUERY}.weight is [31, 32]"]),
        ({f"{QUERY}.weight": np.zeros((32, 31))}, [f"{QUERY}.weight is [32, 31]"]),
        ({"embeddings.word_embeddings.weight": np.zeros((7, 32))}, ["word_embeddings", f"[{len(PIECES)}, 32]"]),
        ({"embeddings.word_embeddings.weight": np.zeros(7)}, ["word_embeddings", "[7]"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, tensors, changes, culprits):
    path = write(tmp_path, changed(tensors, **changes))
    with pytest.raises(DataError) as raised:
        bert_tf.load(path)
    message = str(raised.value)
    assert message.startswith(os.path.join(path, "model.safetensors"))
    assert all(culprit in message for culprit in culprits), message
    assert "\n" not in message


def test_parts_of_qkv_that_differ_but_add_up_are_not_taken(tmp_path, tensors):
    sizes = {"query": 31, "key": 33}
    wrong = {f"encoder.layer.1.attention.self.{part}.weight": np.zeros((n, 32)) for part, n in sizes.items()}
    with pytest.raises(DataError, match=r"layer\.1\.attention\.self\.query\.weight is \[31, 32\]"):
        bert_tf.load(write(tmp_path, tensors | wrong))


@pytest.mark.parametrize(
    "overrides, culprits",
    [
        ({"model_type": "roberta"}, ["model_type 'roberta'", "expected 'bert'"]),
        ({"hidden_act": "silu"}, ["hidden_act 'silu'", "gelu"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type 'relative_key'", "absolute"]),
        ({"num_attention_heads": 5}, ["not a multiple of num_heads 5"]),
        ({"vocab_size": len(PIECES) + 1}, [f"{len(PIECES)} pieces", f"{len(PIECES) + 1}"]),
    ],
)
def test_a_config_that_can_not_be_read_right_is_refused(tmp_path, tensors, overrides, culprits):
    path = write(tmp_path, tensors, **overrides)
    with pytest.raises(bert_tf.errors.BertTfError) as raised:
        bert_tf.load(path)
    assert all(culprit in str(raised.value) for culprit in culprits), raised.value


def test_a_config_without_a_size_names_what_it_lacks(tmp_path, tensors):
    config = {name: value for name, value in CONFIG.items() if name != "num_hidden_layers"}
    with pytest.raises(DataError, match=r"config\.json: no 'num_hidden_layers'"):
        bert_tf.load(write(tmp_path, tensors, config))


@pytest.mark.parametrize("keep", [0, 5, 1000, -10])
def test_a_truncated_file_is_said_to_be_unreadable(tmp_path, tensors, keep):
    path = write(tmp_path, tensors)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"model\.safetensors can not be read: "):
        bert_tf.load(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_a_file_that_is_not_there_is_named(tmp_path, tensors, name):
    path = write(tmp_path, tensors)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=name):
        bert_tf.load(path)


def test_a_config_that_is_not_an_object_is_refused(tmp_path, tensors):
    path = write(tmp_path, tensors)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(DataError, match=r"config\.json"):
        bert_tf.load(path)


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere: no such directory"):
        bert_tf.load(str(tmp_path / "nowhere"))
