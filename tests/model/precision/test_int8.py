"""Products in int8: their arithmetic, by each variant, against NumPy; continued channels; and exports."""

import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference import ask
from bert_tf.inference.samples import SENTENCES, calibration_texts
from bert_tf.inference.saved_model import export
from bert_tf.model import fused
from bert_tf.model.encoder import encoder_of
from bert_tf.model.mode import Mode, computing
from bert_tf.model.precision import int8
from bert_tf.model.precision.continued import Continued, continued
from bert_tf.model.precision.dispatch import VARIANTS
from bert_tf.model.precision.optimize import optimized
from bert_tf.processor_flags import processor_flags as usable_flags
from tests.errors import raises
from tests.inference.exports import LENGTH, VOCABULARY, classifier
from tests.inference.test_export import make
from tests.model.numpy_bert import ACTIVATIONS
from tests.model.small import MODERNBERT, randomize, small_config

TEXTS = calibration_texts()


def has_int8_products():
    try:
        int8.require_kernels()
    except DataError:
        return False
    return True


exports_int8 = pytest.mark.skipif(
    not has_int8_products() or "ONEDNN_MAX_CPU_ISA" in os.environ,
    reason="TensorFlow has no int8 products here, or the exports that use them are refused",
)


@pytest.fixture(params=VARIANTS["int8"], ids=lambda variant: variant.computes)
def variant(request):
    """Each variant of int8 that this processor has."""
    if not all(set(group) & usable_flags() for group in request.param.instructions) or (
        request.param.kernels and not has_int8_products()
    ):
        pytest.skip(f"no {request.param.computes.removeprefix('by ')} on this processor")
    with computing(Mode(kernels=request.param.kernels)):
        yield request.param


def in_graph(compute, *inputs):
    return tf.function(compute, autograph=False)(*map(tf.constant, inputs)).numpy()


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def layer(rng):
    """A kernel [64, 48] whose columns differ by a factor of a hundred, and a bias."""
    return (rng.normal(size=(64, 48)) * np.geomspace(0.1, 10, 48)).astype("f"), rng.normal(size=48).astype("f")


def rounded(kernel):
    """Each column rounded to 127 steps of its largest weight."""
    step = np.abs(kernel).max(0) / 127
    return np.round(kernel / step) * step


@pytest.mark.parametrize("rows", [1, 7, 130])
def test_a_product_equals_that_of_the_rounded_numbers(rows, variant, layer, rng):
    kernel, bias = layer
    inputs = rng.uniform(-1.2, 1.2, [rows, 64]).astype("f")
    product = int8.Product(kernel, bias, limit=1.0)
    found = in_graph(lambda x: product.multiply(int8.quantize(x)), inputs)
    expected = np.round(np.clip(inputs, -1, 1) * 127) / 127 @ rounded(kernel) + bias
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    added = rng.normal(size=found.shape).astype("f")
    found = in_graph(lambda x, added: product.multiply(int8.quantize(x), added), inputs, added)
    np.testing.assert_allclose(found, added + expected, rtol=1e-5, atol=1e-4)
    product = int8.Product(kernel, bias, limit=1.0, shorter=True)
    found = in_graph(lambda x: product.multiply(int8.quantize(x)), inputs)
    assert (found.dtype == np.float32) == ("bfloat16" not in variant.kernels)
    np.testing.assert_allclose(found.astype("f"), expected, rtol=2**-8, atol=1e-4)


@exports_int8
@pytest.mark.skipif("not {'avx512_vnni', 'amx_int8', 'avx_vnni'} & usable_flags()", reason="no int8 products")
def test_a_product_at_the_address_of_one_that_is_gone_has_its_own_scales(layer, rng):
    kernel, bias = layer
    inputs = rng.uniform(-1, 1, [3, 64]).astype("f")
    steps = np.round(inputs * 127) / 127
    with computing(Mode(kernels=frozenset({"int8"}))):
        for factor in (1.0, 2.0, 0.5, 1.0001, 2.0):  # all with the same weights in int8
            scaled = (kernel * factor).astype("f")
            product = int8.Product(scaled, bias, limit=1.0)
            found = in_graph(lambda x, product=product: product.multiply(int8.quantize(x)), inputs)
            np.testing.assert_allclose(found, steps @ rounded(scaled) + bias, rtol=1e-5, atol=1e-4 * factor)
            del product


@exports_int8
@pytest.mark.skipif("not {'avx512_vnni', 'amx_int8', 'avx_vnni'} & usable_flags()", reason="no int8 products")
@pytest.mark.parametrize("name, bounds", [("", None), ("tanh_gelu", (-0.1701, 30.0))])
def test_the_kernel_reads_scales_again_that_changed_at_their_address(name, bounds, rng):
    """It keeps primitives by addresses: if this fails, it keeps the scales, too, and models get each other's."""
    rows, kernel = (tf.constant(rng.integers(-127, 128, shape), tf.int8) for shape in ([3, 64], [64, 48]))
    memory = np.zeros(2 * 48 + 16, "f")
    memory = memory[-memory.ctypes.data % 64 // 4 :][: 2 * 48].reshape(2, 48)  # tensors begin at multiples of 64 bytes
    memory[:] = np.outer([-1, 1], rng.uniform(0.01, 0.02, 48))
    shared = tf.experimental.dlpack.from_dlpack(memory.__dlpack__())

    @tf.function(autograph=False)
    def multiply(ranges):
        options = {
            "rows_range": (-1.0, 1.0),
            "name": name,
            "bounds": bounds,
            "dtype": tf.quint8 if bounds else tf.float32,
        }
        outputs = fused.int8_product.fused(tf.bitcast(rows, tf.qint8), kernel, tf.zeros(48), ranges, **options)
        return tf.bitcast(outputs, tf.uint8) if bounds else outputs

    *_, before = (multiply(shared).numpy() for _ in range(20))  # by every thread
    memory *= 2
    assert np.array_equal(shared, memory)
    expected = multiply(tf.constant(memory.copy())).numpy()
    assert np.abs(expected - before).max() > 0
    for _ in range(20):
        np.testing.assert_array_equal(multiply(shared), expected)


def test_gelu_is_rounded_to_steps_between_its_bounds_and_read_with_them(variant, layer, rng):
    kernel, bias = layer
    kernel, inputs = kernel / 10, np.round(rng.uniform(-1, 1, [9, 64]) * 127).astype("f") / 127
    first = int8.Product(kernel, bias, limit=1.0, activation="tanh_gelu", bounds=(-0.1701, 3.0))
    second = int8.Product(kernel.T, np.ones(64, "f"), limit=3.1701, offset=-0.1701)
    steps = in_graph(lambda x: tf.bitcast(first.multiply(int8.quantize(x)), tf.uint8), inputs)
    activations = gelu(inputs @ rounded(kernel) + bias)
    values = steps.astype("f") * (3.1701 / 255) - 0.1701
    np.testing.assert_allclose(values, np.minimum(activations, 3), atol=0.51 * 3.1701 / 255)
    assert (activations > 3).any() and (activations < 0).any()
    found = in_graph(lambda x: second.multiply(first.multiply(int8.quantize(x))), inputs)
    np.testing.assert_allclose(found, values @ rounded(kernel.T) + 1, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["erf_gelu", "silu"])  # the kernel's, and one that follows it
def test_a_gate_multiplies_products_of_the_same_rounded_inputs(variant, layer, rng, name):
    kernel, bias = layer
    inputs, divisors = rng.uniform(-1.2, 1.2, [9, 64]).astype("f"), np.geomspace(0.5, 2, 64).astype("f")
    gated = int8._Gated(kernel / divisors[:, None], bias, divisors, name, trained=False)
    found = in_graph(gated, inputs * divisors)
    products = np.round(np.clip(inputs, -1, 1) * 127) / 127 @ rounded(kernel) + bias
    expected = ACTIVATIONS[name](products[:, :24]) * products[:, 24:]
    each = 2**-8 if "bfloat16" in variant.kernels else 3e-5
    np.testing.assert_allclose(found, expected, rtol=3 * each, atol=each)


def test_clipped_channels_are_continued_by_others(rng):
    kernel, bias = rng.normal(size=(8, 96)).astype("f"), rng.normal(size=96).astype("f")
    kernel[:, :4] *= np.array([10, 7, 5, 3])
    output_kernel = rng.normal(size=(96, 8)).astype("f")
    inputs = rng.normal(size=(2000, 8)).astype("f")
    activations = gelu(inputs @ kernel + bias)
    wider = Continued(*(x.numpy() for x in continued(kernel, bias, output_kernel, activations.max(0))))
    assert wider.kernel.shape == (8, 112) and wider.limit < 0.5 * activations.max()
    clipped = np.minimum(gelu(inputs @ wider.kernel + wider.bias), wider.limit)
    found, expected = (clipped + wider.offsets) @ wider.output_kernel, activations @ output_kernel
    # GELU is 0.05 less than x at 2, where the last term of a channel may end.
    assert np.abs(found - expected).max() < 0.05 * np.abs(output_kernel).max()
    assert np.abs(np.minimum(activations, wider.limit) @ output_kernel - expected).max() > 10


def test_a_channel_of_any_size_takes_no_negative_number_of_others(rng):
    kernel, bias, output = (rng.normal(size=shape).astype("f") for shape in ((3, 96), (96,), (96, 2)))
    for size in (1e20, 1e30):
        largest = rng.uniform(1, 3, 96) * size
        wider = continued(kernel, bias, output, largest)
        assert wider.limit >= largest.max() / 3 and wider.kernel.shape == (3, 96 + 16)


@exports_int8
def test_a_model_that_computes_infinity_is_named_before_its_export(tmp_path):
    task, model = make()
    kernel = encoder_of(model).blocks()[0].attention.qkv.kernel
    kernel.assign(kernel * 1e30)
    with raises(DataError, "int8", "NaN"):
        export(task, model, str(tmp_path / "model"), check=False, optimize="int8")


def test_smoothing_makes_channels_alike_and_at_most_1(rng):
    largest = np.array([0.1, 1, 30, 0], "f")
    kernel = rng.normal(size=(4, 5)).astype("f")
    scaled = largest / int8.smoothing(largest, kernel).numpy()
    assert scaled.max() == pytest.approx(1 / 1.1)
    assert largest[2] / largest[0] > 50 * scaled[2] / scaled[0]


def test_the_words_are_rounded_by_row():
    _, model = make()
    layer = model.get_layer("encoder").embeddings
    table, ids = layer.word_embeddings.numpy(), np.array([[3, 0], [7, 5]])
    found = in_graph(int8.Lookup(layer), ids)
    np.testing.assert_allclose(found, rounded(table.T).T[ids], rtol=1e-6)
    assert np.abs(found - table[ids]).max() > 0


@exports_int8
@pytest.mark.parametrize(
    "parts, gelu",
    [
        ({}, b"GeluApproximate"),
        pytest.param({"scale": 0.3, "num_layers": 2} | MODERNBERT, b"GeluExact", marks=pytest.mark.slow),
    ],
    ids=["BERT", "ModernBERT"],
)
def test_an_export_in_int8_is_smaller_and_answers_nearly_the_same(tmp_path, parts, gelu):
    task, model = make(**parts)
    exported = export(task, model, str(tmp_path), optimize="int8")
    texts = ["A film to remember.", "the good " * 40, ""]
    loaded, features = ask.Model(exported.path), task.codec.token_features({"text": tf.constant(texts)})
    found = loaded.run({"text": texts})["probabilities"]
    expected = tf.nn.softmax(model({name: features[name] for name in model.input})["logits"]).numpy()
    np.testing.assert_allclose(found, expected, atol=0.1)
    assert np.abs(found - expected).max() > 1e-5
    assert "all in TF Serving since 2.17.0; int8: the last layer differs by" in exported.checked
    graph = pathlib.Path(exported.path, "saved_model.pb").read_bytes()
    assert b"_QuantizedMatMul" in graph and gelu in graph
    variables = os.path.getsize(f"{exported.path}/variables/variables.data-00000-of-00001")
    assert variables < 0.6 * 4 * model.count_params()
    card = json.loads(pathlib.Path(exported.path, "assets.extra/model_card.json").read_text())
    assert card["approximation"].startswith("int8: the last layer differs by ")
    assert card["tf_serving"] == "2.17.0"
    page = pathlib.Path(exported.path, "assets.extra/README.md").read_text()
    assert "It runs on TF Serving 2.17.0 or newer." in page
    assert "| (avx512_vnni or amx_int8) and (avx512_bf16 or amx_bf16) | by kernels for int8 and bfloat16 |" in page
    assert "| any | by TensorFlow's usual operations, in float32 |" in page
    alone = loaded.run({"text": texts[:1]})["probabilities"]
    np.testing.assert_allclose(alone, found[:1], atol=1e-5)  # whatever else is in the request


@exports_int8
def test_layers_stay_in_float32_until_the_answers_are_near_enough(tmp_path):
    task = classifier()
    encoder = BertEncoder(small_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH))
    model = randomize(task.build(encoder), scale=0.5)
    with optimized(encoder, "int8", task.tokenizer, SENTENCES, 0.1, TEXTS) as made:
        difference = float(made.approximation.split("differs by ")[1].split()[0])
    with optimized(encoder, "int8", task.tokenizer, SENTENCES, 0.9 * difference, TEXTS) as made:
        assert "in float32" in made.approximation.split("relative)")[1]
    assert not any(layer.converted for block in encoder.blocks() for layer in int8.products(block).values())
    with raises(DataError, "int8"), optimized(encoder, "int8", task.tokenizer, SENTENCES, 1e-7, TEXTS):
        pass
    with raises(ConfigError, "'int2'", "bfloat16", "int8", "int4"):
        export(task, model, str(tmp_path), optimize="int2")
