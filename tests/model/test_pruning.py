"""Encoders without some of their parts equal whole ones in which these parts contribute nothing."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.model.heads import classifier
from bert_tf.model.pruning import Kept, all_parts, layer_weights, pruned_config, pruned_weights
from tests.model.small import PRUNED, features, randomize, small_config

KEPT = [Kept(0, (0, 2), tuple(range(5, 21))), Kept(1, (1,), (0, 3))]


def weights_of(model):
    return {variable.path: variable.numpy() for variable in model.weights}


def pruned(model, config, kept):
    small = classifier(BertEncoder(pruned_config(config, kept)), 3)
    values = pruned_weights(config, weights_of(model), kept)
    assert values.keys() == weights_of(small).keys()
    for variable in small.weights:
        variable.assign(values[variable.path])
    return small


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("sizes", [{}, {"heads_per_layer": (3, 4)}, {"intermediate_sizes": (32, 9)}])
def test_removed_heads_and_columns_are_those_that_the_output_projections_multiply_by_zero(norm, sizes):
    config = small_config(norm=norm, **sizes)
    whole = randomize(classifier(BertEncoder(config), 3))
    small = pruned(whole, config, KEPT)
    for variable in whole.weights:
        layer, _, name = variable.path.partition("/")
        if name in ("attention/output/kernel", "output/kernel") and layer.startswith("layer_"):
            one = KEPT[int(layer[-1])]
            size = 8 if name.startswith("attention") else 1
            kept = [part // size in (one.heads if size == 8 else one.columns) for part in range(len(variable.numpy()))]
            variable.assign(variable.numpy() * np.array(kept)[:, None])
    np.testing.assert_allclose(small(features())["logits"], whole(features())["logits"], atol=1e-6)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_removed_layer_is_one_that_is_not_called(norm):
    config = small_config(norm=norm, num_layers=3)
    encoder = BertEncoder(config)
    whole = randomize(classifier(encoder, 3))
    parts = all_parts(config)
    small = pruned(whole, config, [parts[0], parts[2]])
    inputs = {name: tf.constant(value) for name, value in features().items()}
    bias = encoder.get_layer("attention_bias")(inputs["input_mask"])
    states = encoder.get_layer("layer_2")(encoder(inputs)["encoder_outputs"][0], bias)
    outputs = small.layers[[layer.name for layer in small.layers].index("encoder")](inputs)["encoder_outputs"]
    np.testing.assert_allclose(outputs[1], states, atol=1e-6)


def test_nothing_is_removed_from_all_parts():
    config = small_config(**PRUNED)
    assert pruned_config(config, all_parts(config)) == config
    values = {name: np.ones(shape) for name, shape in {"layer_0/output/bias": 3, "pooler/bias": 2}.items()}
    assert pruned_weights(config, values, all_parts(config)).keys() == values.keys()


def test_layers_of_one_size_are_described_without_sizes_per_layer():
    config = small_config(num_layers=3)
    parts = all_parts(config)
    assert pruned_config(config, parts[1:]) == small_config(num_layers=2)
    narrow = [one._replace(columns=one.columns[:16]) for one in parts]
    assert pruned_config(config, narrow) == small_config(num_layers=3, intermediate_size=16)
    few = [one._replace(heads=one.heads[:2]) for one in parts]
    assert pruned_config(config, few).heads_per_layer == (2, 2, 2)  # whose heads are not those of 2 in num_heads


def test_the_weights_of_layers_are_those_of_their_variables():
    config = small_config(**PRUNED)
    blocks = BertEncoder(config).blocks()
    assert layer_weights(config) == sum(math.prod(one.shape) for block in blocks for one in block.weights)
