"""Parts of a block that the config names, each and together, against the same in NumPy and Transformers' ModernBERT."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf

from bert_tf import BertConfig, BertEncoder
from bert_tf.checkpoints.formats import google, huggingface
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import from_dict, to_dict
from bert_tf.errors import ConfigError, DataError, UnsuitedError
from bert_tf.inference.samples import SENTENCES, calibration_texts
from bert_tf.inference.saved_model import export
from bert_tf.model.encoder import attention_probabilities
from bert_tf.model.mode import Mode, computing, infer
from bert_tf.model.precision.int8 import calibrate
from bert_tf.model.precision.optimize import optimized
from bert_tf.model.pruning import Kept, layer_weights, part_weights, pruned_config, pruned_weights
from bert_tf.model.variables import encoder_shapes
from bert_tf.training.speed import row_flops
from tests.errors import raises
from tests.inference.exports import LENGTH, VOCABULARY, classifier
from tests.model.numpy_bert import ACTIVATIONS
from tests.model.small import GTE, NOMIC_BERT, features, randomize, seeded, small_config

ROTARY = {"positions": "rotary", "rotary_base": 160.0, "local_rotary_base": 10.0}
LOCAL = {"local_layers": (1,), "local_distance": 3}
# ModernBERT's.
ALL = {
    **ROTARY, **LOCAL, "feed_forward": "gated", "activation": "erf_gelu", "norm": "pre", "biases": False,
    "norm_offset": False, "first_norm": False, "type_vocab_size": 0, "pooler": False, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
CASES = {
    "rotary": ROTARY,
    "local": LOCAL,
    "a window wider than the input": {"local_layers": (1,), "local_distance": 1000},
    "rotary and local": ROTARY | LOCAL,
    "gated": {"feed_forward": "gated", "activation": "erf_gelu"},
    "no biases": {"biases": False},
    "no biases here": {"unbiased_layers": ("intermediate", "attention/output")},
    "nomic_bert": NOMIC_BERT,
    "gte": GTE,
    "no offsets": {"norm_offset": False},
    "no first norm": {"norm": "pre", "first_norm": False},
    "all": ALL,
}


@pytest.mark.parametrize("by_depth", [False, True])
def test_each_kernel_of_a_new_encoder_is_drawn_alone_with_its_range(by_depth):
    config = small_config(hidden_size=128, intermediate_size=128, initializer_by_depth=by_depth)
    kernels = {
        variable.path: variable.numpy() for variable in BertEncoder(config).weights if variable.path.endswith("kernel")
    }
    # Correlations of as many numbers as two kernels have in common: equal ones in another shape would give 1.
    flat = [kernel.ravel()[: 128 * 128] for kernel in kernels.values()]
    assert np.abs(np.corrcoef(flat) - np.eye(len(flat))).max() < 0.05
    for path, kernel in kernels.items():
        added = path.endswith(("attention/output/kernel", "layer_0/output/kernel", "layer_1/output/kernel"))
        # Keras cuts the normal distribution at two standard deviations, which leaves 0.88 of one.
        expected = 0.88 * 0.02 / (2 if by_depth and added else 1)  # two layers with two sublayers each
        assert kernel.std() == pytest.approx(expected, rel=0.03)


def test_the_output_of_attention_may_have_a_rate_of_its_own():
    inputs = features()
    encoder = encoder_of(**{**ALL, "num_layers": 1, "local_layers": (), "attention_output_dropout": 0.5})
    # Without the feed-forward network, what the block adds to its input is the output of its attention.
    (block,) = encoder.blocks()
    block.output_projection.kernel.assign(tf.zeros_like(block.output_projection.kernel))
    states = tf.constant(np.random.default_rng(0).normal(size=[*inputs["input_mask"].shape, 32]), tf.float32)
    at = tf.expand_dims(tf.range(states.shape[1]), 0)

    def added(training):
        with seeded([1, 2]):
            return (block(states, tf.zeros([1, 1, 1, 1]), at, training=training) - states).numpy()

    ratio = added(True) / added(False)
    dropped = np.abs(ratio) < 1e-3
    assert abs(dropped.mean() - 0.5) < 0.05
    np.testing.assert_allclose(ratio[~dropped], 2.0, rtol=1e-3)


def test_a_mode_may_have_another_rotary_base_for_layers_that_attend_to_the_whole_row():
    ours, other = encoder_of(**ALL), encoder_of(**ALL | {"rotary_base": 77.0})
    other.set_weights(ours.get_weights())
    with computing(Mode(rotary_base=77.0)):
        found = infer(ours, features())
    expected, before = infer(other, features()), infer(ours, features())
    np.testing.assert_array_equal(found["sequence_output"], expected["sequence_output"])
    assert np.abs(found["sequence_output"] - before["sequence_output"]).max() > 1e-3


def encoder_of(seed=0, **config):
    return randomize(BertEncoder(small_config(dropout=0.0, attention_dropout=0.0, **config)), seed)


def encoded(encoder, inputs):
    """The outputs of all layers in NumPy, float64, from the names and shapes of the encoder's variables."""
    config = encoder.config
    net = {variable.path: np.float64(variable) for variable in encoder.weights}
    ids, mask, types = (inputs[f"input_{name}"] for name in ("word_ids", "mask", "type_ids"))
    batch, length = ids.shape
    size, apart = config.hidden_size // config.num_heads, np.abs(np.arange(length)[:, None] - np.arange(length))

    def dense(x, name):
        return x @ net[f"{name}/kernel"] + net.get(f"{name}/bias", 0)

    def normalized(x, name):
        if f"{name}/gamma" not in net:
            return x
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config.layer_norm_epsilon)
        return scaled * net[f"{name}/gamma"] + net.get(f"{name}/beta", 0)

    def activated(x):
        return ACTIVATIONS[config.activation](x)

    def turned(x, base):  # as complex numbers
        half = size // 2
        turns = np.exp(1j * np.arange(length)[:, None] * base ** (-2 * np.arange(half) / size))[:, None]
        points = (x[..., :half] + 1j * x[..., half:]) * turns
        return np.concatenate([points.real, points.imag], -1)

    def attention(x, name, is_local):
        heads = dense(x, f"{name}/qkv").reshape(batch, length, 3, config.num_heads, size)
        query, key, value = np.moveaxis(heads, 2, 0)
        if config.positions == "rotary":
            base = config.local_rotary_base if is_local else config.rotary_base
            query, key = turned(query, base), turned(key, base)
        scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(size)
        visible = (mask[:, None, None] == 1) & (apart <= (config.local_distance if is_local else length))
        weights = np.exp(scores - scores.max(-1, keepdims=True)) * visible
        weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
        context = np.einsum("bhqk,bkhd->bqhd", weights, value)
        return dense(context.reshape(batch, length, -1), f"{name}/output")

    def feed_forward(x, name):
        inner = dense(x, f"{name}/intermediate")
        if config.feed_forward == "plain":
            return dense(activated(inner), f"{name}/output")
        first, gate = np.split(inner, 2, -1)
        return dense(activated(first) * gate, f"{name}/output")

    x = net["embeddings/word_embeddings"][ids]
    if config.positions == "table":
        x = x + net["embeddings/position_embeddings"][:length]
    if config.type_vocab_size:
        x = x + net["embeddings/type_embeddings"][types if config.type_vocab_size > 1 else 0 * types]
    x, outputs = normalized(x, "embeddings/norm"), []
    for index in range(config.num_layers):
        name, is_local = f"layer_{index}", index in config.local_layers
        if config.norm == "pre":
            x = x + attention(normalized(x, f"{name}/attention_norm"), f"{name}/attention", is_local)
            x = x + feed_forward(normalized(x, f"{name}/output_norm"), name)
        else:
            x = normalized(x + attention(x, f"{name}/attention", is_local), f"{name}/attention_norm")
            x = normalized(x + feed_forward(x, name), f"{name}/output_norm")
        outputs.append(x)
    return [*outputs, normalized(x, "final_norm") if config.norm == "pre" else x]


def all_outputs(outputs):
    return [np.asarray(one) for one in (*outputs["encoder_outputs"], outputs["sequence_output"])]


@pytest.mark.parametrize("case", CASES)
def test_an_encoder_of_these_parts_computes_what_numpy_does(case):
    encoder = encoder_of(**CASES[case])
    assert {one.path: tuple(one.shape) for one in encoder.weights} == encoder_shapes(encoder.config)
    for inputs in (features(), features([2, 1], 2)):
        expected, tokens = encoded(encoder, inputs), inputs["input_mask"] == 1
        padded = all_outputs(infer(encoder, inputs, skip_padding=False))
        for outputs in (all_outputs(encoder(inputs)), padded, all_outputs(infer(encoder, inputs))):
            for found, exact in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(found[tokens], exact[tokens], atol=2e-5)


def test_a_pooler_with_a_norm_reads_the_mean_of_tokens():
    head = {"pooler": True, "pooling": "mean", "head_transform": True, "pooler_activation": "erf_gelu"}
    encoder, inputs = encoder_of(**ALL | head), features()
    kernel, gamma = (np.float64(one) for one in encoder.weights if one.path.startswith("pooler/"))
    for outputs in (encoder(inputs), infer(encoder, inputs)):
        is_token = inputs["input_mask"][..., None] == 1
        states = np.where(is_token, np.float64(outputs["sequence_output"]), 0)
        x = states.sum(1) / is_token.sum(1) @ kernel
        x = x * (1 + erf(x / np.sqrt(2))) / 2
        expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma
        np.testing.assert_allclose(outputs["pooled_output"], expected, atol=1e-5)


@pytest.mark.parametrize("fusion", [pytest.param("none", marks=pytest.mark.slow), "static"])
def test_recomputed_blocks_of_all_parts_have_the_same_gradients(fusion):
    encoder, inputs = encoder_of(**ALL), {name: tf.constant(value) for name, value in features().items()}

    def gradients(**mode):
        @tf.function(autograph=False)
        def run():
            with seeded(tf.constant([1, 2]), **mode), tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(encoder(inputs, training=True)["sequence_output"]))
            return tape.gradient(loss, [variable.value for variable in encoder.trainable_variables])

        return run()

    expected = gradients()
    assert all(one is not None and np.any(one) for one in expected)
    for found, exact in zip(gradients(fusion=fusion, recompute=True), expected, strict=True):
        found, exact = map(tf.convert_to_tensor, (found, exact))
        np.testing.assert_allclose(found, exact, atol=1e-4 * np.abs(exact).max())


def test_sequences_of_a_packed_row_are_encoded_as_alone():
    encoder = encoder_of(**ALL)
    packed = BertEncoder(encoder.config, packed=True)
    packed.set_weights(encoder.get_weights())
    ids = features([9, 6], 9)["input_word_ids"]
    row = np.concatenate([ids[:1], ids[1:, :6], np.zeros([1, 2], np.int32)], 1)
    numbers = np.array([[1] * 9 + [2] * 6 + [0] * 2], np.int32)
    inputs = {"input_word_ids": row, "input_mask": numbers, "input_type_ids": 0 * row}
    found = packed(inputs | {"first_token_positions": np.array([[0, 9]])})["sequence_output"].numpy()[0]
    for start, length, number in ((0, 9, 0), (9, 6, 1)):
        ones = np.ones([1, length], np.int32)
        alone = {"input_word_ids": ids[number : number + 1, :length], "input_mask": ones, "input_type_ids": 0 * ones}
        expected = encoder(alone)["sequence_output"].numpy()[0]
        np.testing.assert_allclose(found[start : start + length], expected, atol=2e-5)


def test_attention_is_shown_where_it_is():
    found = attention_probabilities(encoder_of(**ALL), features([24], 24)).numpy()[0]
    far = np.abs(np.arange(24)[:, None] - np.arange(24)) > 3
    assert (found[0][:, far] > 0).any() and not found[1][:, far].any()
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)


def test_files_name_a_part_only_where_it_is_not_berts():
    config = small_config(**ALL)
    assert not config.parts.keys() - {"attention", "norm"} & to_dict(BertConfig()).keys()
    assert from_dict(BertConfig, json.loads(json.dumps(to_dict(config)))) == config
    encoder = BertEncoder(config)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(encoder))
    assert again.config == config and [one.path for one in again.weights] == [one.path for one in encoder.weights]


WRONG = {
    "model.rotary_base is 0.0": {"positions": "rotary", "rotary_base": 0.0},
    "model.positions": {"positions": "rotary", "hidden_size": 12, "num_heads": 4},
    "model.local_layers is (2,)": {"local_layers": (2,)},
    "model.local_layers is (1, 0)": {"local_layers": (1, 0)},
    "shared_layers": {"local_layers": (0,), "shared_layers": True},
    "model.first_norm": {"first_norm": False},
    "model.unbiased_layers[0] is 'pooler'": {"unbiased_layers": ("pooler",)},
    "model.unbiased_layers is set": {"unbiased_layers": ("output",), "biases": False},
}


@pytest.mark.parametrize("message", WRONG)
def test_parts_that_do_not_fit_are_named(message):
    with raises(ConfigError, message):
        small_config(**WRONG[message]).check()


def test_more_tokens_than_positions_are_refused_although_rotation_would_go_on():
    with raises(DataError, "25 tokens, 24 positions", "max_length=24"):
        encoder_of(**ROTARY)(features([25], 25))


@pytest.mark.parametrize("format", [google, huggingface])
@pytest.mark.parametrize("case", ["rotary", "gated", "no biases", "no biases here", "no offsets"])
def test_a_format_without_the_part_refuses_it_by_name(tmp_path, format, case):
    config = small_config(**CASES[case] | {"activation": "tanh_gelu"})
    with raises(ConfigError, f"model.{next(iter(CASES[case]))}", "--format=bert_tf"):
        format.write(Checkpoint(config, {}), str(tmp_path))


def test_googles_format_refuses_an_activation_that_it_lacks(tmp_path):
    with raises(ConfigError, "model.activation is 'silu'", "--format=bert_tf"):
        google.write(Checkpoint(small_config(activation="silu"), {}), str(tmp_path))


def test_a_pruned_model_computes_what_the_whole_one_does_without_the_parts():
    encoder = encoder_of(**ALL | {"num_layers": 3, "local_layers": (1, 2)})
    heads, columns = (0, 2), tuple(range(0, 64, 2))
    kept = [Kept(1, heads, columns), Kept(2, heads, columns)]
    config = pruned_config(encoder.config, kept)
    assert (config.local_layers, config.first_norm) == ((0, 1), True)
    weights = {variable.path: variable.numpy() for variable in encoder.weights}
    small = BertEncoder(config)
    made = pruned_weights(encoder.config, weights, kept)
    for variable in small.weights:
        variable.assign(made[variable.path])
    # The rows of the removed heads and columns become 0; the first layer, which computes nothing then, is like absent.
    for index in range(3):
        dropped = index == 0
        attended = weights[f"layer_{index}/attention/output/kernel"].reshape(4, 8, 32)
        attended[[head for head in range(4) if dropped or head not in heads]] = 0
        weights[f"layer_{index}/output/kernel"][[one for one in range(64) if dropped or one not in columns]] = 0
    for variable in encoder.weights:
        variable.assign(weights[variable.path])
    found, expected = (one(features())["sequence_output"] for one in (small, encoder))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    head, column = part_weights(config)
    fewer = pruned_config(encoder.config, [Kept(1, (0,), columns), Kept(2, heads, columns[1:])])
    assert layer_weights(config) - layer_weights(fewer) == head + column


def test_the_operations_of_a_gated_network_are_counted():
    plain, gated = (small_config(feed_forward=kind) for kind in ("plain", "gated"))
    assert row_flops(10, gated) - row_flops(10, plain) == 3 * 10 * 2 * 2 * 32 * 64  # a third matrix in two layers


def test_the_operations_of_local_attention_are_those_of_its_bands():
    config = small_config(**LOCAL)
    for length, keys in ((12, 12), (24, 12), (600, 12)):
        whole, local = row_flops(length, small_config()), row_flops(length, config)
        assert whole - local == 3 * 2 * 2 * 32 * length * (length - keys)  # of one layer


def exported_encoder(**config):
    """One whose vocabulary and positions are those of the exports."""
    sizes = {"vocab_size": len(VOCABULARY), "max_position_embeddings": LENGTH}
    return randomize(BertEncoder(small_config(**config | sizes)), scale=0.2)


@pytest.mark.parametrize(
    "case, mode, tolerance", [("all", "bfloat16", 0.03), ("all", "int4", 0.3), ("nomic_bert", "bfloat16", 0.03)]
)
def test_exports_of_all_parts_are_near_float32(case, mode, tolerance):
    encoder = exported_encoder(**CASES[case])
    with optimized(encoder, mode, classifier().tokenizer, SENTENCES, tolerance) as made:
        assert "differs by" in made.approximation


def test_int8_refuses_a_part_by_name():
    encoder = BertEncoder(small_config(activation="silu"))
    with raises(UnsuitedError, "model.activation is 'silu'", "use bfloat16, int4 or none"):
        calibrate(encoder, [])


def test_int8_takes_the_other_parts():
    encoder = exported_encoder(**ALL | {"feed_forward": "plain"})
    with optimized(encoder, "int8", classifier().tokenizer, SENTENCES, 0.1, calibration_texts()) as made:
        assert "differs by" in made.approximation


@pytest.mark.slow
@pytest.mark.parametrize("optimize", ["none", "bfloat16"])
def test_an_export_of_all_parts_answers_in_a_session_as_in_memory(tmp_path, optimize):
    task, sizes = classifier(), {"vocab_size": len(VOCABULARY), "max_position_embeddings": LENGTH}
    model = randomize(task.build(BertEncoder(small_config(**ALL | sizes | {"pooler": True}))), scale=0.2)
    exported = export(task, model, str(tmp_path / "model"), attention=True, optimize=optimize)
    assert "all in TF Serving since 2.12.1" in exported.checked


@pytest.mark.slow
@pytest.mark.parametrize("biases", [False, True])
def test_all_parts_together_are_modernbert(biases):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.ModernBertModel(
        transformers.ModernBertConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
            max_position_embeddings=64, local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            cls_token_id=1, sep_token_id=2, norm_bias=biases, attention_bias=biases, mlp_bias=biases,
            attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    published = {"rotary_base": 160_000.0, "local_rotary_base": 10_000.0, "local_layers": (1, 2), "local_distance": 4}
    sizes = {"vocab_size": 64, "num_layers": 4, "intermediate_size": 48, "max_position_embeddings": 64}
    encoder = BertEncoder(small_config(**ALL | published | sizes | {"biases": biases, "norm_offset": biases}))
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    names = {
        "embeddings/word_embeddings": "embeddings.tok_embeddings", "embeddings/norm": "embeddings.norm",
        "attention/qkv": "attn.Wqkv", "attention/output": "attn.Wo", "attention_norm": "attn_norm",
        "intermediate": "mlp.Wi", "output": "mlp.Wo", "output_norm": "mlp_norm",
    }  # fmt: skip
    for variable in encoder.weights:
        layer, _, rest = variable.path.partition("/") if variable.path.startswith("layer_") else ("", "", variable.path)
        part, _, kind = rest.rpartition("/")
        name = names.get(rest) or names.get(part) or part
        where = f"layers.{layer.removeprefix('layer_')}.{name}" if layer else name
        value = state.pop(f"{where}.{'bias' if kind in ('bias', 'beta') else 'weight'}")
        variable.assign(value.T if kind == "kernel" else value)
    assert not state
    inputs = features([24, 17, 3])
    mask = torch.tensor(inputs["input_mask"])
    with torch.no_grad():
        expected = theirs(torch.tensor(inputs["input_word_ids"]), mask, output_hidden_states=True)
    found, tokens = encoder(inputs), inputs["input_mask"] == 1
    pairs = [(found["sequence_output"], expected.last_hidden_state)]
    pairs += zip([found["embedding_output"], *found["encoder_outputs"][:-1]], expected.hidden_states, strict=False)
    for ours, reference in pairs:
        np.testing.assert_allclose(ours.numpy()[tokens], reference.numpy()[tokens], atol=1e-5, rtol=1e-5)
