import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.training.optimizers import BertAdam, warmup_linear


def rate(step, **settings):
    return float(warmup_linear(step, **({"peak": 1.0, "warmup_steps": 4, "total_steps": 12} | settings)))


def test_the_rate_rises_in_equal_steps_to_the_peak():
    assert [rate(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_after_warm_up_the_rate_falls_in_a_straight_line_to_zero():
    assert [rate(step) for step in range(4, 13)] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]


def test_the_rate_stays_zero_after_the_end():
    assert rate(13) == rate(1000) == 0.0


def test_without_warm_up_the_first_rate_is_the_peak():
    assert rate(0, warmup_steps=0) == 1.0


def test_warm_up_may_take_the_whole_run():
    assert [rate(step, warmup_steps=4, total_steps=4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 0.0]


@pytest.mark.parametrize("step", [0, 3, 7])
def test_the_peak_scales_the_rate(step):
    assert rate(step, peak=3e-4) == pytest.approx(3e-4 * rate(step), rel=1e-6)


def adam_weight_decay(weights, gradients, rates, decayed):
    """google-research/bert's AdamWeightDecayOptimizer.apply_gradients, in NumPy and float64."""
    weights = {name: value.astype("float64") for name, value in weights.items()}
    m = {name: np.zeros_like(value) for name, value in weights.items()}
    v = {name: np.zeros_like(value) for name, value in weights.items()}
    for step, learning_rate in enumerate(rates):
        for name in weights:
            gradient = gradients[name][step]
            m[name] = 0.9 * m[name] + (1.0 - 0.9) * gradient
            v[name] = 0.999 * v[name] + (1.0 - 0.999) * np.square(gradient)
            update = m[name] / (np.sqrt(v[name]) + 1e-6)
            if name in decayed:
                update += 0.1 * weights[name]
            weights[name] = weights[name] - learning_rate * update
    return weights


class Layer(keras.layers.Layer):
    def build(self, _):
        for name in ("kernel", "embeddings", "bias", "gamma", "beta"):
            setattr(self, name, self.add_weight(shape=(4, 3), initializer="glorot_normal", name=name))

    def call(self, inputs):
        return inputs


def test_twenty_steps_of_adam_are_those_of_google_research_bert():
    layer = Layer(name="layer")
    layer.build(None)
    variables = layer.trainable_variables
    random = np.random.default_rng(0)
    # From 1e-7 to 1: the epsilon outside the root matters for the small ones, the missing bias correction for all.
    gradients = {
        variable.path: (random.normal(size=[20, 4, 3]) * 10.0 ** random.integers(-7, 1, [4, 3])).astype("float32")
        for variable in variables
    }
    rates = np.linspace(0.1, 0.005, 20)
    start = {variable.path: variable.numpy() for variable in variables}
    optimizer = BertAdam(variables, weight_decay=0.1)

    for step in range(20):
        optimizer.apply([tf.constant(gradients[variable.path][step]) for variable in variables], rates[step])

    expected = adam_weight_decay(start, gradients, rates, decayed={"layer/kernel", "layer/embeddings"})
    for variable in variables:
        np.testing.assert_allclose(variable.numpy(), expected[variable.path], rtol=2e-5, atol=2e-6)


def test_only_biases_and_layer_norm_are_not_decayed():
    layer = Layer(name="layer")
    layer.build(None)
    before = {variable.path: variable.numpy() for variable in layer.trainable_variables}
    optimizer = BertAdam(layer.trainable_variables, weight_decay=0.5)

    # Without a gradient only the decay moves a weight.
    optimizer.apply([tf.zeros([4, 3])] * 5, tf.constant(0.1))

    for variable in layer.trainable_variables:
        kept = 0.95 if variable.path in ("layer/kernel", "layer/embeddings") else 1.0
        np.testing.assert_allclose(variable.numpy(), kept * before[variable.path], rtol=1e-6)


def test_each_layer_norm_and_bias_of_the_whole_model_is_excluded():
    from tests.training.small import trainer

    optimizer = trainer(weight_decay=0.01).optimizer
    paths = [name.removesuffix("/m") for name in optimizer.slots if name.endswith("/m")]
    undecayed = {path for path, decay in zip(paths, optimizer._decay, strict=True) if not decay}

    # By shape, not by name: biases and LayerNorm are the model's only vectors, or a head's few rows of them.
    assert undecayed == {path for path in paths if path.endswith(("bias", "gamma", "beta"))}
    matrices = [path for path in paths if path not in undecayed]
    assert matrices and all("kernel" in path or "embedding" in path for path in matrices)
