"""The encoder and the pre-training model against NumPy: shapes, precisions, saving, XLA and padding."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertConfig, BertEncoder, BertPretrainer
from bert_tf.errors import ConfigError, DataError
from bert_tf.model.encoder import attention_probabilities
from bert_tf.model.head_table import variable_shapes
from bert_tf.model.heads import classifier
from tests.errors import raises
from tests.model.numpy_bert import ACTIVATIONS, encode, pretraining_logits, tensors_of
from tests.model.small import (
    FAMILY,
    MIXED_BFLOAT16,
    MIXED_FLOAT16,
    PIECES,
    PRUNED,
    features,
    multiplies_bfloat16,
    multiplies_float16,
    randomize,
    seeded,
    small_config,
)

# Of the encoder alone with a vocabulary of 30,522, as published with the checkpoints of these sizes.
PUBLISHED = {
    "tiny": 4_385_920,
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
}


@pytest.fixture(scope="module")
def encoder():
    return randomize(BertEncoder(small_config()))


@pytest.fixture(scope="module")
def pretrainer(encoder):
    model = BertPretrainer(encoder)
    for variable in model.trainable_variables[-8:]:
        variable.assign(np.random.default_rng(1).normal(0, 0.3, variable.shape))
    return model


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_published_size_has_the_published_number_of_parameters(name):
    """By the list of variables, which is that of built models (test_build.py): base and large need gigabytes."""
    config = BertConfig.from_name(name)
    assert sum(map(math.prod, variable_shapes(config).values())) == PUBLISHED[name]
    if name == "tiny":
        assert BertEncoder(config).count_params() == PUBLISHED[name]
    if name == "large":
        assert 335e6 < sum(map(math.prod, variable_shapes(config, "pretraining").values())) < 340e6


def test_outputs_have_the_names_and_shapes_of_the_hub_models(encoder):
    outputs = encoder(features())
    assert set(outputs) == {"embedding_output", "sequence_output", "pooled_output", "encoder_outputs"}
    assert outputs["sequence_output"].shape == (4, 24, 32)
    assert outputs["pooled_output"].shape == (4, 32)
    assert [output.shape for output in outputs["encoder_outputs"]] == [(4, 24, 32)] * 2
    np.testing.assert_array_equal(outputs["encoder_outputs"][-1], outputs["sequence_output"])


def test_without_a_pooler_there_is_no_pooled_output(tmp_path, encoder):
    bare = BertEncoder(small_config(pooler=False))
    for variable, value in zip(bare.weights, encoder.weights[:-2], strict=True):  # all but the pooler's two variables
        variable.assign(value)
    want = encoder(features())
    del want["pooled_output"]
    bare.save(tmp_path / "bare.keras")
    for model in (bare, keras.saving.load_model(tmp_path / "bare.keras")):
        tf.nest.map_structure(np.testing.assert_array_equal, model(features()), want)


def assert_equals_a_numpy_bert(config):
    model = randomize(BertPretrainer(BertEncoder(config)), seed=3)
    inputs = features()
    positions = np.array([[3, 23, 3], [0, 6, 2], [0, 0, 0], [12, 1, 0]], np.int32)
    tensors = tensors_of(model, config.hidden_size)
    pooler = ACTIVATIONS[config.pooler_activation]
    same = {name: getattr(config, name) for name in ("activation", "norm")}
    sequence, pooled, layers = encode(tensors, inputs, layers=config.num_layers, heads=4, pooler=pooler, **same)
    masked, following = pretraining_logits(tensors, sequence, pooled, positions, activation=config.activation)

    tokens = inputs["input_mask"] == 1  # outputs at padding are meaningless
    got = model.encoder(inputs)
    np.testing.assert_allclose(got["sequence_output"].numpy()[tokens], sequence[tokens], atol=1e-5)
    np.testing.assert_allclose(got["pooled_output"], pooled, atol=1e-5)
    for ours, theirs in zip(got["encoder_outputs"], layers, strict=True):
        np.testing.assert_allclose(ours.numpy()[tokens], theirs[tokens], atol=1e-5)
    logits = model(inputs | {"masked_lm_positions": positions})
    np.testing.assert_allclose(logits["mlm_logits"], masked, atol=1e-5)
    np.testing.assert_allclose(logits["nsp_logits"], following, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["tanh_gelu", "erf_gelu", "relu"])
def test_encoder_and_pretrainer_equal_a_numpy_bert(norm, activation):
    assert_equals_a_numpy_bert(small_config(norm=norm, activation=activation, num_layers=3))


@pytest.mark.parametrize("member", FAMILY)
def test_members_of_the_family_equal_a_numpy_bert(member):
    assert_equals_a_numpy_bert(small_config(**FAMILY[member], num_layers=3))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_layers_with_fewer_heads_and_columns_equal_whole_ones_that_ignore_the_others(norm):
    """Heads and columns that the output projections multiply by zero are the same as none."""
    whole = randomize(BertEncoder(small_config(norm=norm)), seed=1)
    small = BertEncoder(small_config(norm=norm, **PRUNED))
    heads, columns = [[0, 2, 3], [1]], [np.arange(3, 51), np.arange(48, 64)]
    own = {variable.path: variable for variable in small.weights}
    for variable in whole.weights:
        if variable.path.startswith("layer_"):
            index = int(variable.path[6])
            inner, attended = columns[index], np.arange(32).reshape(4, 8)[heads[index]].reshape(-1)
            values, zeroed = variable.numpy(), np.zeros(variable.shape)
            match variable.path.split("/")[1:]:
                case ["attention", "qkv", _]:
                    values = values[..., np.concatenate([part * 32 + attended for part in range(3)])]
                case ["attention", "output", "kernel"]:
                    zeroed[attended] = values[attended]
                    variable.assign(zeroed)
                    values = values[attended]
                case ["intermediate", _]:
                    values = values[..., inner]
                case ["output", "kernel"]:
                    zeroed[inner] = values[inner]
                    variable.assign(zeroed)
                    values = values[inner]
            own[variable.path].assign(values)
        else:
            own[variable.path].assign(variable)
    inputs = features()
    want, got = whole(inputs), small(inputs)
    tf.nest.map_structure(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), want, got)
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    want, got = attention_probabilities(whole, inputs).numpy(), attention_probabilities(small, inputs).numpy()
    assert got.shape[2] == 3
    for index, kept in enumerate(heads):
        np.testing.assert_allclose(got[:, index, : len(kept)], want[:, index, kept], atol=1e-6)
        assert not got[:, index, len(kept) :].any()


def test_new_weights_are_truncated_normal_with_zero_biases_and_unit_scales():
    keras.utils.set_random_seed(0)
    for variable in BertEncoder(small_config(hidden_size=128, intermediate_size=512)).weights:
        value = variable.numpy()
        if variable.path.endswith(("bias", "beta")):
            assert not value.any()
        elif variable.path.endswith("gamma"):
            assert (value == 1).all()
        elif value.size > 10_000:
            # Truncated at two standard deviations; Keras' truncated normal has 0.88 of its nominal deviation.
            assert np.abs(value).max() <= 0.04
            assert 0.0170 < value.std() < 0.0182


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_padding_changes_nothing_at_the_tokens(norm):
    encoder = randomize(BertEncoder(small_config(norm=norm)))
    short = features(lengths=(7, 5), width=7)
    longer = {name: np.pad(value, [(0, 0), (0, 12)]) for name, value in short.items()}
    # Nor do the ids matter where the mask is 0.
    longer["input_word_ids"][longer["input_mask"] == 0] = 11
    longer["input_type_ids"][longer["input_mask"] == 0] = 1
    tokens = short["input_mask"] == 1
    a, b = encoder(short), encoder(longer)
    np.testing.assert_allclose(
        a["sequence_output"].numpy()[tokens], b["sequence_output"].numpy()[:, :7][tokens], atol=2e-6
    )
    np.testing.assert_allclose(a["pooled_output"], b["pooled_output"], atol=2e-6)


@pytest.mark.parametrize("policy", ["float32", MIXED_BFLOAT16, MIXED_FLOAT16])
def test_a_row_that_is_all_padding_gives_finite_outputs(policy):
    outputs = BertEncoder(small_config(), dtype=policy)(features(lengths=(0, 3)))
    assert np.isfinite(tf.cast(outputs["sequence_output"], tf.float32)).all()


def test_tokens_attend_in_both_directions(encoder):
    inputs = features(lengths=(10,), width=10)
    before = encoder(inputs)["sequence_output"].numpy()
    for changed in (0, 9):
        other = inputs | {"input_word_ids": inputs["input_word_ids"].copy()}
        other["input_word_ids"][0, changed] = 6 + (inputs["input_word_ids"][0, changed] == 6)
        difference = np.abs(encoder(other)["sequence_output"].numpy() - before).max(-1)[0]
        assert (difference > 1e-4).all()


@pytest.mark.parametrize(
    "policy, dtype, bound",
    [
        pytest.param("mixed_bfloat16", "bfloat16", 0.1, marks=multiplies_bfloat16),
        pytest.param("mixed_float16", "float16", 0.02, marks=multiplies_float16),
    ],
)
def test_mixed_precision_is_close_to_float32(policy, dtype, bound):
    config = small_config()
    exact, mixed = BertEncoder(config), BertEncoder(config, dtype=policy)
    mixed.set_weights(randomize(exact, scale=0.1).get_weights())
    assert {variable.dtype for variable in mixed.weights} == {"float32"}
    inputs = features()
    want, got = exact(inputs), mixed(inputs)
    assert got["sequence_output"].dtype == dtype
    assert got["pooled_output"].dtype == dtype
    difference = np.abs(np.float32(got["sequence_output"]) - want["sequence_output"].numpy())
    assert 0 < difference.max() < bound


@pytest.mark.parametrize("policy", [MIXED_BFLOAT16, MIXED_FLOAT16])
def test_logits_are_float32_in_mixed_precision(policy):
    encoder = BertEncoder(small_config(), dtype=policy)
    inputs = features()
    outputs = BertPretrainer(encoder)(inputs | {"masked_lm_positions": np.zeros((4, 2), np.int32)})
    assert outputs["mlm_logits"].dtype == outputs["nsp_logits"].dtype == tf.float32
    assert classifier(encoder, 3)(inputs)["logits"].dtype == tf.float32


@multiplies_bfloat16
def test_the_global_policy_is_the_default():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        encoder = BertEncoder(small_config())
    finally:
        keras.config.set_dtype_policy("float32")
    assert encoder(features())["sequence_output"].dtype == tf.bfloat16


@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("encoder", "float32"),
        ("classifier", "float32"),
        ("albert", "float32"),
        pytest.param("pretrainer", "mixed_bfloat16", marks=multiplies_bfloat16),
        pytest.param("pruned", "mixed_bfloat16", marks=multiplies_bfloat16),
    ],
)
def test_the_model_is_restored_from_a_keras_file(tmp_path, kind, dtype):
    shape = (FAMILY | {"pruned": PRUNED}).get(kind, {})
    encoder = BertEncoder(small_config(norm="pre", activation="relu", **shape), dtype=dtype)
    inputs = features()
    if kind in ("pretrainer", "albert", "pruned"):
        inputs["masked_lm_positions"] = np.array([[1, 2], [3, 0], [0, 0], [5, 1]], np.int32)
    model = {"encoder": lambda: encoder, "classifier": lambda: classifier(encoder, 3)}.get(
        kind, lambda: BertPretrainer(encoder)
    )()
    randomize(model).save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in again.weights] == [v.path for v in model.weights]
    tf.nest.map_structure(np.testing.assert_array_equal, model(inputs), again(inputs))
    if kind == "encoder":
        assert again.config == encoder.config


def test_a_config_of_an_earlier_version_is_that_of_bert():
    later = ("embedding_size", "shared_layers", "pooler_activation", "heads_per_layer", "intermediate_sizes")
    saved = BertEncoder(small_config()).get_config()
    saved["config"] = {name: value for name, value in saved["config"].items() if name not in later}
    assert BertEncoder.from_config(saved).config == small_config()


def test_the_masked_lm_head_is_tied_to_the_word_embedding(pretrainer, encoder):
    shape = (encoder.config.vocab_size, encoder.config.hidden_size)
    assert sum(tuple(variable.shape) == shape for variable in pretrainer.weights) == 1
    table = encoder.embeddings.word_embeddings
    inputs = features() | {"masked_lm_positions": np.zeros((4, 1), np.int32)}
    absent = 4  # [MASK]: the random inputs start at id 5
    assert absent not in inputs["input_word_ids"]
    before, kept = pretrainer(inputs)["mlm_logits"].numpy(), table.numpy()
    changed = kept.copy()
    changed[absent] = 0
    table.assign(changed)
    after = pretrainer(inputs)["mlm_logits"].numpy()
    table.assign(kept)
    others = np.arange(shape[0]) != absent
    np.testing.assert_array_equal(after[..., others], before[..., others])
    np.testing.assert_allclose(after[..., absent], pretrainer.get_layer("masked_lm").bias.numpy()[absent], atol=1e-6)
    assert not np.allclose(after[..., absent], before[..., absent])


@pytest.mark.slow  # as in tests/training/test_jit_compile.py
def test_a_model_compiled_by_xla_gives_the_same_outputs_and_gradients():
    model = randomize(classifier(BertEncoder(small_config(num_layers=1)), 3), scale=0.1)
    inputs = {name: tf.constant(value) for name, value in features().items()}

    def run(seed):
        with tf.GradientTape() as tape, seeded(seed):
            logits = model(inputs, training=True)["logits"]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1, 2, 0], logits))
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return logits, [tf.convert_to_tensor(gradient) for gradient in gradients]

    seed = tf.constant([1, 2])
    plain, compiled = tf.function(run)(seed), tf.function(run, jit_compile=True)(seed)
    np.testing.assert_allclose(plain[0], compiled[0], atol=1e-5)
    for one, other in zip(plain[1], compiled[1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow  # test_keras_habits.py trains a user's head, tests/training/test_jit_compile.py with XLA
@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_of_keras_learns_a_simple_rule(jit_compile):
    keras.utils.set_random_seed(0)
    inputs = features(lengths=[8] * 512, width=8)
    labels = (inputs["input_word_ids"][:, 3] > 20).astype(np.int32)
    model = classifier(BertEncoder(small_config()), 2)
    model.compile(
        keras.optimizers.Adam(3e-3),
        {"logits": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        jit_compile=jit_compile,
    )
    losses = model.fit(inputs, {"logits": labels}, batch_size=32, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    assert model.evaluate(inputs, {"logits": labels}, verbose=0) < 0.5 * losses[0]


def test_an_encoder_can_be_a_layer_of_a_users_model(encoder):
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in features()}
    mean = keras.layers.GlobalAveragePooling1D()(encoder(inputs)["sequence_output"])
    model = keras.Model(inputs, keras.layers.Dense(1)(mean))
    assert model.predict(features(), verbose=0).shape == (4, 1)


def test_a_single_token_type_is_used_for_every_token_whatever_the_input():
    model, inputs = randomize(BertEncoder(small_config(type_vocab_size=1))), features()
    other = inputs | {"input_type_ids": 1 - inputs["input_type_ids"]}
    tf.nest.map_structure(np.testing.assert_array_equal, model(inputs), model(other))


def test_an_invalid_config_is_refused():
    with raises(ConfigError, "hidden_size", "30", "num_heads", "4"):
        BertEncoder(small_config(hidden_size=30))


def test_causal_attention_ignores_later_tokens_and_pools_the_last_token():
    encoder = randomize(BertEncoder(small_config(attention="causal")), scale=0.3)
    long = features(lengths=(9, 9), width=9)
    short = {name: value[:, :5] for name, value in long.items()}
    padded = {name: np.concatenate([value, 0 * value[:, :4]], 1) for name, value in short.items()}
    whole, prefix, rest = (encoder(inputs, training=False) for inputs in (long, short, padded))
    for name in range(2):
        np.testing.assert_allclose(whole["encoder_outputs"][name][:, :5], prefix["encoder_outputs"][name], atol=1e-5)
    np.testing.assert_allclose(rest["pooled_output"], prefix["pooled_output"], atol=1e-5)
    pooler = encoder.get_layer("pooler")
    expected = np.tanh(prefix["sequence_output"][:, 4] @ pooler.kernel + pooler.bias)
    np.testing.assert_allclose(prefix["pooled_output"], expected, atol=1e-5)
    both = randomize(BertEncoder(small_config()), scale=0.3)
    both.set_weights(encoder.get_weights())
    assert (
        np.abs(both(short)["sequence_output"] - prefix["sequence_output"])[:, 0].max() > 0.01
    )  # the last token matters


IDS = {"input_word_ids": [[1, 4]], "input_mask": [[1, 1]], "input_type_ids": [[0, 0]]}


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (1.5, ["1.5", "a dict of input_word_ids, input_mask, input_type_ids"]),
        ([[1, 4]], ["[[1, 4]]", "a dict of input_word_ids"]),
        ({"input_word_ids": [[1, 4]]}, ["lack input_mask, input_type_ids"]),
        (IDS | {"input_word_ids": 1.5}, ["input_word_ids", "1.5", "whole numbers"]),
        (IDS | {"input_word_ids": [[1, 4.5]]}, ["input_word_ids", "4.5", "whole numbers"]),
        (IDS | {"input_word_ids": [1, 4], "input_mask": [[1]]}, ["input_word_ids", "(2,)", "[batch, length]"]),
        (IDS | {"input_mask": [[1]]}, ["input_mask", "(1, 1)", "input_word_ids, (1, 2)"]),
        (IDS | {"input_mask": [[1, 1], [1, 1]]}, ["input_mask", "(2, 2)", "input_word_ids, (1, 2)"]),
        (IDS | {"input_type_ids": [[[0, 0]]]}, ["input_type_ids", "(1, 1, 2)", "[batch, length]"]),
    ],
)
def test_inputs_of_another_type_or_shape_are_one_line(inputs, named, encoder):
    with raises(DataError, *named):
        encoder(inputs)


def test_shapes_are_checked_in_graphs(encoder):
    """By Keras, a mask of one column would be broadcast."""
    inputs = {name: tf.constant(value) for name, value in IDS.items()}
    assert tf.function(encoder)(inputs)["sequence_output"].shape[:2] == (1, 2)
    with raises(DataError, "input_mask", "(1, 1)", "input_word_ids, (1, 2)"):
        tf.function(encoder)(inputs | {"input_mask": tf.constant([[1]])})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"input_word_ids: 28 tokens, 24 positions; cut the texts, with tokenizer.encode\(texts, max_length=24\)"),
        ({"input_word_ids": len(PIECES)}, f"input_word_ids: {len(PIECES)}; expected 0 to {len(PIECES) - 1}, as the "),
        ({"input_word_ids": -1}, r"input_word_ids: -1; expected 0 to "),
        ({"input_type_ids": 2}, r"input_type_ids: 2; expected 0 to 1, as the tokenizer of "),
        ({"input_mask": 5}, r"input_mask: 5; expected 0 to 1, as the tokenizer of "),
        ({"input_mask": -3}, r"input_mask: -3; expected 0 to 1, as the tokenizer of "),
    ],
)
@pytest.mark.parametrize("model", ["encoder", "classifier", "pretrainer"])
def test_inputs_without_embeddings_are_one_line(model, changes, message, request):
    encoder = request.getfixturevalue("encoder")
    called = {"encoder": encoder, "classifier": classifier(encoder, 2), "pretrainer": BertPretrainer(encoder)}[model]
    inputs = {name: np.repeat(value[:1], 2, 0) for name, value in features().items()}
    inputs |= {"masked_lm_positions": np.array([[1]] * 2, np.int32)}
    if not changes:  # as many as in a row of two texts
        inputs = {name: np.pad(value, [(0, 0), (0, 4 * (value.shape[1] > 1))]) for name, value in inputs.items()}
    for name, value in changes.items():
        inputs[name] = np.array(inputs[name])
        inputs[name][1, 3] = value
    inputs = {name: inputs[name] for name in called.input}
    for given in (inputs, {name: tf.constant(value) for name, value in inputs.items()}):
        with pytest.raises(DataError, match=message) as caught:
            called(given)
        # Keras adds the arguments of its own models to whatever a layer raises.
        assert model == "classifier" or "\n" not in str(caught.value)
