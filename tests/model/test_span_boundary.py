"""SpanBERT's objective: the bounds of spans against a loop over tokens, and its logits against NumPy."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.model.span_boundary import SpanBoundaryLayer, span_boundary, span_bounds
from tests.model.numpy_bert import ACTIVATIONS, encode, masked_lm_logits, tensors_of
from tests.model.small import features, randomize, small_config


def bounds_one_by_one(positions):
    """(position before, position after, number in the span) of each masked position of a row."""
    spans = itertools.groupby(enumerate(positions), lambda pair: pair[1] - pair[0])
    for _, run in spans:
        span = [position for _, position in run]
        yield from ((span[0] - 1, span[-1] + 1, number) for number in range(len(span)))


def test_the_bounds_are_the_tokens_around_each_run_of_masked_tokens():
    rng = np.random.default_rng(0)
    rows = [np.sort(1 + rng.permutation(38)[:count]).tolist() for count in rng.integers(0, 21, 200)]
    positions = np.array([row + [0] * (20 - len(row)) for row in rows], np.int32)
    used = np.arange(20) < np.array([len(row) for row in rows])[:, np.newaxis]
    for jit_compile in (False, True):
        found = tf.function(span_bounds, jit_compile=jit_compile)(tf.constant(positions), tf.constant(used))
        bounds = np.stack(found, -1)
        for row, (masked, got) in enumerate(zip(rows, bounds, strict=True)):
            assert [tuple(one) for one in got[used[row]].tolist()] == list(bounds_one_by_one(masked))
            assert not got[~used[row]].any()
            assert not {*got[used[row], :2].ravel().tolist()} & {*masked}  # the bounds are visible


def test_the_logits_equal_numpys():
    config = small_config(pooler=False, activation="erf_gelu", embedding_size=24)
    model = randomize(span_boundary(BertEncoder(config), 5))
    positions = np.array([[1, 2, 3, 7, 20], [2, 4, 0, 0, 0], [0] * 5, [3, 4, 5, 6, 7]], np.int32)
    weights = np.float32(positions > 0)
    rows = features((24, 9, 6, 12)) | {"masked_lm_positions": positions, "masked_lm_weights": weights}
    outputs = model(rows)
    tensors, own = tensors_of(model, 32), {variable.path: variable.numpy() for variable in model.weights}
    states, _, _ = encode(tensors, rows, layers=2, heads=4, activation="erf_gelu")
    want = masked_lm_logits(tensors, states, positions, activation="erf_gelu")
    np.testing.assert_allclose(outputs["mlm_logits"], want, atol=2e-5)

    def layer(x, name):
        x = ACTIVATIONS["erf_gelu"](x @ own[f"{name}/transform/kernel"] + own[f"{name}/transform/bias"])
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config.layer_norm_epsilon)
        return x * own[f"{name}/norm/gamma"] + own[f"{name}/norm/beta"]

    for row, count in enumerate(weights.sum(1).astype(int)):
        for slot, (left, right, number) in enumerate(bounds_one_by_one(positions[row, :count])):
            ends = [states[row, left], states[row, right], own["span_boundary/position_embeddings"][number]]
            hidden = layer(layer(np.concatenate(ends).astype(np.float64), "span_boundary"), "span_boundary_output")
            want = hidden @ own["embeddings/word_embeddings"].T + own["span_boundary_output/bias"]
            np.testing.assert_allclose(outputs["sbo_logits"][row, slot], want, atol=2e-5)


def test_a_layer_is_made_again_of_its_config():
    layer = SpanBoundaryLayer(small_config(), 5, name="bounds")
    again = SpanBoundaryLayer.from_config(layer.get_config())
    inputs = keras.Input((None, 32)), keras.Input((4,), dtype="int32"), keras.Input((4,))
    for one in (layer, again):
        one(*inputs)
    assert again.get_config() == layer.get_config()
    assert [(w.path, w.shape) for w in again.weights] == [(w.path, w.shape) for w in layer.weights]
