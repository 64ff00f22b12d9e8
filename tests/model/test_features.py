"""Layers of the encoder as features."""

import numpy as np
import pytest

from bert_tf import BertEncoder
from bert_tf.errors import ConfigError
from bert_tf.model.features import feature_model
from tests.model.small import features, randomize, small_config


@pytest.fixture(scope="module", params=["post", "pre"])
def encoder(request):
    return randomize(BertEncoder(small_config(num_layers=3, norm=request.param)))


def states(encoder):
    """Embeddings and the three layers, arrays."""
    inputs, outputs = features(), encoder(features())
    embedded = encoder.get_layer("embeddings")(inputs["input_word_ids"], inputs["input_type_ids"])
    return [value.numpy() for value in (embedded, *outputs["encoder_outputs"][:2], outputs["sequence_output"])]


def test_layers_are_chosen_summed_and_put_side_by_side(encoder):
    embedded, first, second, last = states(encoder)

    def check(expected, *arguments):
        np.testing.assert_allclose(feature_model(encoder, *arguments)(features()), expected, rtol=1e-5, atol=1e-5)

    check(last)
    check(embedded, (0,))
    check(second, (-2,))
    check(second, (2,))
    check(first + last, (1, -1))
    check(0.5 * first - 2.0 * embedded, (1, 0), "sum", (0.5, -2.0))
    check(np.concatenate([last, first, second], -1), (3, 1, -2), "concat")


def test_half_precision_gives_float32():
    encoder = BertEncoder(small_config(), dtype="mixed_bfloat16")
    assert feature_model(encoder, (0, 1, 2))(features()).dtype == "float32"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (((4,),), "layer 4: the model has -3 to 3, 0 for the embeddings"),
        (((-4,),), "layer -4: the model has -3 to 3"),
        (((),), "no layers; name some of -3 to 3"),
        (((1, 2), "mean"), "combine 'mean' is unknown; choose one of sum, concat"),
        (((1, 2), "sum", (1.0,)), "1 weights for 2 layers combined by sum"),
        (((1, 2), "concat", (1.0, 1.0)), "2 weights for 2 layers combined by concat; a sum has one a layer"),
    ],
)
def test_what_no_features_are_is_refused(encoder, arguments, message):
    with pytest.raises(ConfigError, match=message):
        feature_model(encoder, *arguments)
