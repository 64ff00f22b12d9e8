"""Exports in low precision of models whose layers share their weights and whose embeddings are projected."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder, processor_flags
from bert_tf.errors import DataError
from bert_tf.inference import ask
from bert_tf.inference.samples import SENTENCES, calibration_texts
from bert_tf.inference.saved_model import export
from bert_tf.inference.session import TOLERANCES
from bert_tf.model.precision.dispatch import VARIANTS, CpuDispatch
from bert_tf.model.precision.optimize import optimized
from bert_tf.tasks.signatures import attention_signature
from tests.errors import raises
from tests.inference.exports import LENGTH, VOCABULARY, classifier
from tests.model.precision.test_int8 import exports_int8
from tests.model.small import FAMILY, PRUNED, multiplies_bfloat16, randomize, small_config


@pytest.fixture(scope="module")
def albert():
    """A task, its encoder of two layers that share their weights, and the model."""
    task = classifier()
    config = small_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, num_layers=2, **FAMILY["albert"])
    encoder = BertEncoder(config)
    return task, encoder, randomize(task.build(encoder), scale=0.4)


def pruned():
    """Likewise, of layers of different sizes."""
    task = classifier()
    encoder = BertEncoder(small_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, **PRUNED))
    return task, encoder, randomize(task.build(encoder), scale=0.4)


TEXTS = ["A film to remember.", "the good " * 40, ""]


def probabilities(task, model):
    features = task.codec.token_features({"text": tf.constant(TEXTS)})
    return tf.nn.softmax(model({name: features[name] for name in model.input})["logits"]).numpy()


@pytest.mark.parametrize(
    "mode, dtype, count",
    [
        # The word embeddings; kernel and bias of the projection, and of the four dense layers of the only block.
        pytest.param("bfloat16", tf.bfloat16, 1 + 2 + 2 * 4, marks=multiplies_bfloat16),
        pytest.param("int8", tf.int8, 1 + 4, marks=exports_int8),
    ],
)
def test_an_export_has_one_set_of_weights_for_all_layers(albert, mode, dtype, count):
    task, encoder, model = albert
    with optimized(encoder, mode, task.tokenizer, SENTENCES, TOLERANCES[mode], calibration_texts()) as made:
        served = task.signatures(model)["serving_default"].get_concrete_function()
        assert [variable.dtype for variable in served.variables].count(dtype) == count
        found = served(tf.constant(TEXTS))["probabilities"]
    assert made.approximation.startswith(f"{mode}: the last layer differs by ")
    np.testing.assert_allclose(found, probabilities(task, model), atol=0.1)


@multiplies_bfloat16
def test_layers_of_different_sizes_are_computed_in_low_precision():
    task, encoder, model = pruned()
    expected = probabilities(task, model)
    with optimized(encoder, "bfloat16", task.tokenizer, SENTENCES, TOLERANCES["bfloat16"]):
        found = task.signatures(model)["serving_default"](tf.constant(TEXTS))["probabilities"]
        shapes = attention_signature(task.codec, model)(tf.constant(TEXTS[:1]))["attention_shape"]
    np.testing.assert_allclose(found, expected, atol=0.1)
    assert shapes[:, :2].numpy().tolist() == [[2, 3]]  # zeros for heads that a layer lacks


@pytest.mark.slow
@pytest.mark.parametrize("made", ["albert", "pruned"])
@pytest.mark.parametrize(
    "mode", [pytest.param("bfloat16", marks=multiplies_bfloat16), pytest.param("int8", marks=exports_int8), "none"]
)
def test_such_layers_are_exported(albert, tmp_path, made, mode):
    task, _, model = albert if made == "albert" else pruned()
    exported = export(task, model, str(tmp_path), optimize=mode, attention=True)  # compared with the model in a session
    found = ask.Model(exported.path).run({"text": TEXTS})["probabilities"]
    np.testing.assert_allclose(found, probabilities(task, model), atol=1e-5 if mode == "none" else 0.1)


@pytest.mark.parametrize(
    "flags, computes",
    [
        ("avx512_vnni avx512_bf16", "by kernels for int8 and bfloat16"),
        ("avx2 avx_vnni", "by kernels for int8"),
        ("avx2 avx512_bf16", "by TensorFlow's usual operations, in float32"),
    ],
)
def test_a_variant_is_chosen_by_the_flags_of_the_processor(flags, computes, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags} smap\n")
    monkeypatch.setattr(processor_flags, "CPUINFO", str(tmp_path / "cpuinfo"))
    assert CpuDispatch("int8", VARIANTS["int8"]).chosen().computes == computes


@exports_int8
def test_a_shared_layer_is_not_kept_in_float32(albert):
    task, encoder, _ = albert
    with (
        raises(DataError, "int8", "nothing was exported"),
        optimized(encoder, "int8", task.tokenizer, SENTENCES, 1e-7, calibration_texts()),
    ):
        pass
