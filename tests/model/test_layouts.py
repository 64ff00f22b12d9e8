"""Inference without padding: the same outputs at tokens, with products of the tokens alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.model.compute import InferredDense
from bert_tf.model.mode import Tokens, infer
from tests.model.small import FAMILY, PRUNED, randomize, small_config


def batch(mask):
    """Random features with this mask."""
    mask = np.array(mask, np.int32)
    ids = np.random.default_rng(0).integers(5, 30, mask.shape).astype(np.int32)
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": ids % 2}


def rows(*lengths, width):
    return [[1] * length + [0] * (width - length) for length in lengths]


MASKS = {
    "different lengths": rows(9, 3, 1, 5, width=9),
    "a row of padding alone": rows(0, 7, 0, width=8),
    "padding alone": rows(0, 0, width=8),
    "padding between tokens": [[1, 0, 1, 1, 0, 0, 1, 0], [0, 1, 1, 0, 0, 0, 0, 0]],
    "no padding": rows(6, 6, width=6),
    "hardly any padding": rows(40, 39, width=40),
    "no rows": np.zeros([0, 5]),
}


@pytest.mark.parametrize(
    "mask, shape",
    [(mask, {"norm": norm}) for mask in MASKS for norm in ("post", "pre")]
    + [("different lengths", shape) for shape in (FAMILY["albert"], PRUNED)],
)
def test_tokens_have_the_outputs_that_they_have_with_padding(mask, shape):
    encoder = randomize(BertEncoder(small_config(**shape, max_position_embeddings=40)))
    features = batch(MASKS[mask])
    expected, found = encoder(features), infer(encoder, features)
    assert found.keys() == expected.keys()
    tokens = features["input_mask"] > 0
    states = ([*outputs["encoder_outputs"], outputs["sequence_output"]] for outputs in (found, expected))
    for one, other in zip(*states, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one[tokens], other[tokens], atol=1e-5)
    rows = tokens.any(1)
    np.testing.assert_allclose(found["pooled_output"][rows], expected["pooled_output"][rows], atol=1e-5)


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int64])
def test_inputs_of_other_types_are_cast(dtype):
    encoder, features = BertEncoder(small_config()), batch(MASKS["different lengths"])
    expected = infer(encoder, features)["sequence_output"]
    mask = features["input_mask"]
    found = infer(encoder, features | {"input_mask": mask.astype(dtype)})["sequence_output"]
    np.testing.assert_array_equal(found, expected)


def test_xla_compiles_inference_that_does_not_skip_padding():
    encoder, features = BertEncoder(small_config()), batch(MASKS["different lengths"])
    compiled = tf.function(functools.partial(infer, encoder, skip_padding=False), autograph=False, jit_compile=True)
    expected, found = encoder(features), compiled(features)
    np.testing.assert_allclose(found["sequence_output"], expected["sequence_output"], atol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "width", "expected"),
    [((9, 3, 1, 5), 9, 20), ((6, 6), 6, 12), ((40, 39), 40, 80), ((100, 2, 3), 100, 108), ((1,), 40, 4)],
)
def test_products_have_as_many_rows_as_tokens_rounded_up(lengths, width, expected, monkeypatch):
    encoder, seen, compute = BertEncoder(small_config(max_position_embeddings=100)), set(), InferredDense.__call__
    monkeypatch.setattr(InferredDense, "__call__", lambda form, x: seen.add(len(x)) or compute(form, x))
    infer(encoder, batch(rows(*lengths, width=width)))
    assert seen == {expected}


def test_few_numbers_of_rows_occur():
    # TensorFlow keeps 1,024 prepared kernels, of which each number of rows takes four or five.
    x = tf.zeros([2 * 4096, 1])
    counts = []
    for count in range(1, 4097, 13):
        mask = np.zeros([2, 4096], np.int32)
        mask[0, :count] = 1
        counts.append(Tokens(tf.constant(mask)).without_padding(x).shape[0])
        assert count <= counts[-1] <= count * 17 / 16 + 4
    assert len(set(counts)) < 130


def test_rows_of_several_sequences_and_causal_attention_keep_their_padding():
    assert BertEncoder(small_config()).can_skip_padding
    assert not BertEncoder(small_config(), packed=True).can_skip_padding
    assert not BertEncoder(small_config(attention="causal")).can_skip_padding
