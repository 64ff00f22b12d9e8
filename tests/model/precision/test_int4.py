"""Weights in 4 bits: their rounding against NumPy, and exports that decode them when they are loaded."""

import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inference.samples import SENTENCES
from bert_tf.inference.saved_model import export
from bert_tf.model.compute import converted
from bert_tf.model.encoder import encoder_of
from bert_tf.model.mode import infer
from bert_tf.model.precision import int4
from bert_tf.model.precision.optimize import optimized
from bert_tf.model.ranges import products
from tests.errors import raises
from tests.inference.test_export import make
from tests.model.small import MODERNBERT


def unpacked(numbers, scales, size):
    """The matrix that the numbers stand for, by hand."""
    half = numbers.shape[1]
    rows = np.zeros([len(numbers), 2 * half])
    for column in range(half):
        for place, value in ((column, numbers[:, column] & 15), (column + half, numbers[:, column] >> 4)):
            rows[:, place] = (value.astype(int) - 8) * scales[:, place // 32].astype(float)
    return rows[:, :size]


@pytest.mark.parametrize("size", [384, 300, 32, 5])
def test_matrices_of_any_width_are_packed_and_decoded(size):
    matrix = np.random.default_rng(0).normal(0, 0.04, [50, size]).astype("f")
    matrix[3] = 0
    numbers, scales = int4.packed(matrix)
    groups = -(-size // 32)
    assert (numbers.dtype, numbers.shape) == (np.uint8, (50, groups * 16))
    assert (scales.dtype, scales.shape) == (np.float16, (50, groups))
    found = int4.decoded(tf.constant(numbers), tf.constant(scales), size).numpy()
    np.testing.assert_allclose(found, unpacked(numbers, scales, size), rtol=1e-6)
    # Never worse than the scale that maps the largest weight to -8, whose steps are an eighth of it.
    padded = np.pad(matrix, [(0, 0), (0, groups * 32 - size)]).reshape(50, groups, 32)
    extremes = np.take_along_axis(padded, np.abs(padded).argmax(-1, keepdims=True), -1)
    step = (extremes / -8).astype(np.float16).astype("f")
    step[step == 0] = 1
    plain = (np.clip(np.rint(padded / step), -8, 7) * step).reshape(50, -1)[:, :size]
    assert np.linalg.norm(found - matrix) <= np.linalg.norm(plain - matrix) < 0.1 * np.linalg.norm(matrix)
    assert not found[3].any()


@pytest.mark.parametrize(
    "parts",
    [{}, pytest.param({"scale": 0.2, "num_layers": 2} | MODERNBERT, marks=pytest.mark.slow)],
    ids=["BERT", "ModernBERT"],
)
def test_an_export_in_int4_computes_with_the_rounded_weights_and_is_smaller(tmp_path, parts):
    task, model = make(**parts)
    encoder = encoder_of(model)
    exported = export(task, model, str(tmp_path), optimize="int4", check=False)
    card = json.loads(pathlib.Path(exported.path, "assets.extra/model_card.json").read_text())
    assert card["tf_serving"] == "2.12.1" and card["approximation"].startswith("int4: the last layer differs by ")
    variables = os.path.getsize(f"{exported.path}/variables/variables.data-00000-of-00001")
    assert variables < 0.5 * 4 * model.count_params()
    texts = tf.constant(["A film to remember.", "the good " * 40, ""])
    features = task.codec.token_features({"text": texts})

    def probabilities():
        return tf.nn.softmax(model({name: features[name] for name in model.input})["logits"]).numpy()

    before = probabilities()
    for layer in (layer for block in encoder.blocks() for layer in products(block).values()):
        kernel = layer.kernel.numpy()
        layer.kernel.assign(unpacked(*int4.packed(kernel.T), len(kernel)).T)
    table = encoder.embeddings.word_embeddings
    table.assign(unpacked(*int4.packed(table.numpy()), table.shape[1]))
    found = tf.saved_model.load(exported.path).signatures["serving_default"](text=texts)["probabilities"]
    np.testing.assert_allclose(found, probabilities(), atol=1e-5)
    assert np.abs(found - before).max() > 1e-4


def test_the_model_is_as_before_after_an_export_and_a_bad_one_is_refused():
    task, model = make()
    encoder = encoder_of(model)
    length = encoder.config.max_position_embeddings
    features = task.tokenizer.encode(SENTENCES, max_length=length)
    before = infer(encoder, features)["sequence_output"].numpy()
    with optimized(encoder, "int4", task.tokenizer, SENTENCES, 0.9) as made:
        assert np.abs(infer(encoder, features)["sequence_output"].numpy() - before).max() > 1e-3
        assert made.approximation.startswith("int4: the last layer differs by ")
    np.testing.assert_array_equal(infer(encoder, features)["sequence_output"].numpy(), before)
    with raises(DataError, "int4", "nothing was exported"), optimized(encoder, "int4", task.tokenizer, SENTENCES, 1e-5):
        pass
    with converted(int4.converted_layers(encoder, int4.kernels_of(encoder))):
        alone = infer(encoder, task.tokenizer.encode(SENTENCES[:1], max_length=length))["sequence_output"].numpy()
    assert np.isfinite(alone).all()
