"""Rematerialized layers: the same gradients, including dropout, from a graph that computes each layer twice."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.encoder import BertEncoder
from bert_tf.model.mode import Mode
from tests.model.small import (
    FAMILY,
    PRUNED,
    features,
    multiplies_bfloat16,
    multiplies_float16,
    randomize,
    seeded,
    small_config,
)
from tests.model.test_packed import packed, sequences

LAYERS = 2


def step(remat, rows=False, dtype="float32", fused=False, **config):
    """A tf.function from a seed to the outputs and gradients of a training step; `rows`: on packed rows."""
    encoder = randomize(BertEncoder(small_config(num_layers=LAYERS, **config), dtype=dtype, packed=rows))
    given = packed(*sequences()) if rows else features()
    inputs = {name: tf.constant(given[name]) for name in encoder.input}

    @tf.function
    def run(seed):
        fusion = "static" if fused else "none"
        with tf.GradientTape() as tape, seeded(seed, fusion=fusion, recompute=remat):
            outputs = encoder(inputs, training=True)
            outputs = {name: tf.cast(outputs[name], tf.float32) for name in ("sequence_output", "pooled_output")}
            loss = tf.reduce_sum(outputs["sequence_output"][..., 0] ** 2) + tf.reduce_sum(outputs["pooled_output"])
        variables = {variable.path: variable.value for variable in encoder.trainable_variables}
        gradients = {path: tf.convert_to_tensor(one) for path, one in tape.gradient(loss, variables).items()}
        return outputs["sequence_output"], gradients

    return run


def softmaxes(run):
    graph = run.get_concrete_function(tf.TensorSpec([2], tf.int64)).graph
    return sum(operation.type == "Softmax" for operation in graph.get_operations())


@pytest.mark.parametrize(
    "shape, rows",
    [
        ({}, True),
        (FAMILY["albert"], False),
        pytest.param({}, False, marks=pytest.mark.slow),
        pytest.param({"norm": "pre"}, False, marks=pytest.mark.slow),
        pytest.param(PRUNED, False, marks=pytest.mark.slow),
    ],
)
def test_each_layer_is_computed_twice_with_the_same_gradients_and_dropout(shape, rows):
    config = shape | {"dropout": 0.2, "attention_dropout": 0.2}
    keeping, computing = step(False, rows, **config), step(True, rows, **config)
    assert (softmaxes(keeping), softmaxes(computing)) == (LAYERS, 2 * LAYERS)
    seed = tf.constant([3, 4], tf.int64)
    kept, recomputed = keeping(seed), computing(seed)

    # Not bit for bit: the graph optimizer fuses different operations if some have a second consumer.
    np.testing.assert_allclose(kept[0], recomputed[0], atol=2e-6)
    assert np.abs(kept[0] - keeping(seed + 1)[0]).max() > 0.1  # so dropout is on
    for path, gradient in kept[1].items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(recomputed[1][path], gradient, rtol=1e-5, atol=1e-5 * scale + 1e-6, err_msg=path)


@pytest.mark.parametrize(
    "dtype, fused",
    [
        pytest.param("mixed_bfloat16", True, marks=multiplies_bfloat16),
        pytest.param("float32", False, marks=pytest.mark.slow),
        pytest.param("mixed_bfloat16", False, marks=[multiplies_bfloat16, pytest.mark.slow]),
        pytest.param("mixed_float16", True, marks=[multiplies_float16, pytest.mark.slow]),
        pytest.param("mixed_float16", False, marks=[multiplies_float16, pytest.mark.slow]),
        pytest.param("float32", True, marks=pytest.mark.slow),
    ],
)
def test_layers_are_recomputed_in_the_dtype_of_the_model(dtype, fused):
    config = {"dtype": dtype, "fused": fused, "dropout": 0.2, "attention_dropout": 0.2}
    keeping, computing = step(False, **config), step(True, **config)
    graph = computing.get_concrete_function(tf.TensorSpec([2], tf.int64)).graph
    assert not [one.name for one in graph.get_operations() if one.type == "SparseMatMul"]  # of two dtypes
    seed = tf.constant([3, 4], tf.int64)
    kept, recomputed = keeping(seed), computing(seed)
    bound = 1e-4 if dtype == "float32" else 0.05
    for path, gradient in kept[1].items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(recomputed[1][path], gradient, rtol=0, atol=bound * scale + 1e-4, err_msg=path)


def test_without_seeds_it_is_refused():
    with pytest.raises(ValueError, match="without seeds"):
        Mode(recompute=True)
