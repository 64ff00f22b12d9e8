"""Encoders with smoothed products compute what they did, from inputs between -1 and 1."""

import numpy as np
import pytest

from bert_tf import BertEncoder, Tokenizer
from bert_tf.model.compute import converted
from bert_tf.model.mode import infer
from bert_tf.model.precision import int8, smoothed
from tests.model.small import MODERNBERT, PIECES, randomize, small_config


@pytest.mark.parametrize("parts", [{}, pytest.param(MODERNBERT, marks=pytest.mark.slow)], ids=["BERT", "ModernBERT"])
def test_the_function_is_the_same_and_inputs_fit_one_scale(monkeypatch, parts):
    encoder = randomize(BertEncoder(small_config(**parts)), scale=0.5)
    features = Tokenizer(PIECES).encode(["the good, a b!", "a b c d e f g h", "good"])
    expected = infer(encoder, features)["sequence_output"].numpy()
    ranges = int8.calibrate(encoder, [features])
    forms = list(smoothed.smoothed_forms(encoder, ranges, clipped=True))
    assert forms[0][0] is encoder.embeddings  # the words, which are rounded
    inputs, compute = [], smoothed._Smoothed.__call__
    monkeypatch.setattr(
        smoothed._Smoothed, "__call__", lambda form, rows: inputs.append(rows * form._factors) or compute(form, rows)
    )
    with converted(forms[1:]):
        found = infer(encoder, features)["sequence_output"].numpy()
    tokens = features["input_mask"].numpy() > 0
    np.testing.assert_allclose(found[tokens], expected[tokens], rtol=1e-4, atol=1e-5)
    assert len(inputs) == 8
    for rows in inputs:
        rows = rows.numpy()
        largest = np.abs(rows[tokens.ravel()] if len(rows) == tokens.size else rows).max()
        assert 0.5 < largest <= 1.0
