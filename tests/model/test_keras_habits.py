"""The encoder in the ways in which Keras users use a model: one test per habit."""

import copy
import pickle
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder, BertPretrainer
from bert_tf.errors import ConfigError, DataError
from bert_tf.model.head_table import build
from bert_tf.model.heads import classifier
from tests.errors import raises
from tests.model.numpy_bert import encode, linear, tensors_of
from tests.model.small import FAMILY, features, multiplies_bfloat16, randomize, small_config

WIDTH = 6
ROWS = features([WIDTH] * 48, WIDTH)
LABELS = ROWS["input_type_ids"][:, 0]
PADDED = features()
BFLOAT16 = pytest.param("bfloat16", marks=multiplies_bfloat16)


def new_encoder(dtype=None, *, packed=False, name="encoder", seed=0, **config):
    """One layer without dropout, so that training is reproducible."""
    config = {"num_layers": 1, "dropout": 0.0, "attention_dropout": 0.0} | config
    return randomize(BertEncoder(small_config(**config), dtype=dtype, packed=packed, name=name), seed, scale=0.1)


def symbolic(prefix="", width=None):
    return {name: keras.Input((width,), dtype="int32", name=prefix + name) for name in ROWS}


def with_head(encoder, **head):
    """A user's own classifier on the encoder."""
    keras.utils.set_random_seed(1)
    inputs = symbolic()
    return keras.Model(inputs, keras.layers.Dense(2, name="mine", **head)(encoder(inputs)["pooled_output"]))


def compiled(model, optimizer=None, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"], **options)
    return model


def cross_entropy(logits, labels):
    logits = np.float64(logits)
    return np.mean(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels])


def assert_same(got, want, atol=0.0):
    tf.nest.map_structure(
        lambda one, other: np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=0, atol=atol), got, want
    )


def values(variables):
    return [variable.numpy() for variable in variables]


@pytest.fixture(scope="module")
def encoder():
    return new_encoder(num_layers=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A user's classifier after `fit` with callbacks, its losses, and the callbacks' directory."""
    folder = tmp_path_factory.mktemp("callbacks")
    model = compiled(with_head(new_encoder()), keras.optimizers.Adam(1e-2), run_eagerly=True)
    callbacks = [
        keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="val_loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.EarlyStopping(patience=20, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=20),
        keras.callbacks.BackupAndRestore(folder / "backup"),
        keras.callbacks.TensorBoard(folder / "tensorboard", histogram_freq=1, write_graph=False),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.TerminateOnNaN(),
    ]
    arguments = {"validation_data": (ROWS, LABELS), "callbacks": callbacks, "batch_size": 16, "verbose": 0}
    return model, model.fit(ROWS, LABELS, epochs=3, **arguments).history, folder


def test_a_users_head_is_trained_evaluated_and_predicts(trained):
    model, history, _ = trained
    assert history["val_loss"][-1] < 0.9 * history["val_loss"][0]
    logits = model.predict(ROWS, verbose=0)
    loss, accuracy = model.evaluate(ROWS, LABELS, verbose=0)
    assert loss == pytest.approx(cross_entropy(logits, LABELS), abs=1e-5)
    assert accuracy == pytest.approx(np.mean(logits.argmax(-1) == LABELS))
    tensors = tensors_of(model, 32)
    _, pooled, _ = encode(tensors, ROWS, layers=1, heads=4, activation="tanh_gelu")
    expected = linear({"mine.weight": tensors["mine.weight"], "mine.bias": tensors["mine.bias"]}, pooled, "mine")
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_callbacks_leave_the_best_model_and_every_epochs_weights(trained):
    model, history, folder = trained
    best = keras.models.load_model(folder / "best.keras")
    logits = best.predict(ROWS, verbose=0)
    assert cross_entropy(logits, LABELS) == pytest.approx(min(history["val_loss"]), abs=1e-5)
    assert_same(model(ROWS), best(ROWS))  # restored by EarlyStopping
    other = with_head(new_encoder(seed=5))
    other.load_weights(folder / f"{1 + int(np.argmin(history['val_loss']))}.weights.h5")
    assert_same(other(ROWS), best(ROWS))
    assert len((folder / "log.csv").read_text().splitlines()) == 4
    assert list((folder / "tensorboard" / "validation").iterdir())


def test_a_compiled_model_is_restored_with_its_optimizer(trained, tmp_path):
    model, _, _ = trained
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_same(again(ROWS), model(ROWS))
    assert_same(values(again.optimizer.variables), values(model.optimizer.variables))
    assert [one.path for one in again.weights] == [one.path for one in model.weights]
    model.save(tmp_path / "model.h5")
    assert_same(keras.models.load_model(tmp_path / "model.h5")(ROWS), model(ROWS))


@pytest.mark.filterwarnings("ignore:Skipping variable loading")  # of an optimizer that is not built
def test_a_model_is_restored_from_json_pickle_and_copies(trained):
    model, _, _ = trained
    from_json = keras.models.model_from_json(model.to_json())
    clone = keras.models.clone_model(model)
    for empty in (from_json, clone):
        assert not {id(one) for one in empty.weights} & {id(one) for one in model.weights}
        empty.set_weights(model.get_weights())
    for again in (from_json, clone, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(again(ROWS), model(ROWS))


def test_an_export_works_in_tensorflow_and_as_a_keras_layer(encoder, tmp_path):
    encoder.export(tmp_path / "encoder", verbose=False)
    tensors, expected = {name: tf.constant(value) for name, value in ROWS.items()}, dict(encoder(ROWS))
    expected |= {f"encoder_outputs_{index}": value for index, value in enumerate(expected.pop("encoder_outputs"))}
    outputs = keras.layers.TFSMLayer(tmp_path / "encoder", call_endpoint="serve")(tensors)
    assert_same(dict(outputs), expected, atol=1e-5)
    served = tf.saved_model.load(tmp_path / "encoder")
    assert_same(served.serve(tensors)["pooled_output"], expected["pooled_output"], atol=1e-5)


@pytest.mark.slow  # as tests/training/test_jit_compile.py does with the loop
def test_xla_compiles_the_training_step():
    model = compiled(with_head(new_encoder()), keras.optimizers.SGD(0.1), jit_compile=True)
    losses = []
    for _ in range(2):
        losses.append(cross_entropy(model(ROWS), LABELS))
        assert model.train_on_batch(ROWS, LABELS, return_dict=True)["loss"] == pytest.approx(losses[-1], abs=1e-5)
    assert losses[1] < losses[0]


@pytest.mark.parametrize(
    "policy, variables, bound",
    [
        ("mixed_bfloat16", "float32", 0.03),
        pytest.param("mixed_float16", "float32", 0.004, marks=pytest.mark.slow),
        pytest.param("bfloat16", "bfloat16", 0.03, marks=pytest.mark.slow),
        pytest.param("float16", "float16", 0.004, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:Skipping variable loading")  # of an optimizer that is not built
@multiplies_bfloat16  # and float16, whose products crash there, too
def test_every_policy_computes_trains_and_is_saved(policy, variables, bound, tmp_path):
    keras.config.set_dtype_policy(policy)
    try:
        encoder = new_encoder()
        # Not Adam's defaults: in float16 squares of small gradients are 0, and epsilon (1e-7) would be the divisor; in
        # bfloat16 beta_2 (0.999) is 1, so that nothing is learned.
        optimizer = keras.optimizers.Adam(1e-2, epsilon=1e-4, beta_2=0.98)
        model = compiled(with_head(encoder), optimizer, run_eagerly=True)
        model.save(tmp_path / "model.keras")
    finally:
        keras.config.set_dtype_policy("float32")
    exact = new_encoder("float32")
    exact.set_weights([np.float32(value) for value in encoder.get_weights()])
    want, got = exact(PADDED), encoder(PADDED)
    for name in ("sequence_output", "pooled_output"):
        assert got[name].dtype == encoder.compute_dtype == re.sub("mixed_", "", policy)
        assert 0 < np.abs(np.float32(got[name]) - want[name]).max() < bound
    assert {variable.dtype for variable in encoder.weights} == {variables}
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_same(again(ROWS), model(ROWS))
    before = cross_entropy(model(ROWS), LABELS)
    model.fit(ROWS, LABELS, epochs=3, batch_size=16, verbose=0)
    logits = model.predict_on_batch(ROWS)
    assert np.isfinite(np.float32(logits)).all()
    assert cross_entropy(logits, LABELS) < before


@pytest.mark.parametrize(
    "policy", [BFLOAT16, pytest.param("float16", marks=[multiplies_bfloat16, pytest.mark.slow]), "float64"]
)
@pytest.mark.parametrize(
    "config",
    [
        {"norm": "pre", "activation": "erf_gelu"},
        {"attention": "causal"},
        {"type_vocab_size": 1, "pooler": False},
        FAMILY["electra"] | FAMILY["albert"] | {"num_layers": 2},
    ],
)
def test_every_kind_of_encoder_computes_in_a_pure_policy(policy, config):
    encoder, exact = new_encoder(policy, **config), new_encoder(**config)
    exact.set_weights([np.float32(value) for value in encoder.get_weights()])
    assert_same(encoder(PADDED), exact(PADDED), atol=0.05)


@multiplies_bfloat16
def test_the_pretrainer_trains_in_a_pure_policy():
    inputs = PADDED | {"masked_lm_positions": np.array([[1, 2]] * 4, np.int32)}
    exact, half = (randomize(BertPretrainer(new_encoder(dtype)), scale=0.1) for dtype in ("float32", "bfloat16"))
    assert_same(half(inputs), exact(inputs), atol=0.05)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(half(inputs, training=True)["mlm_logits"] ** 2)
    for gradient in tape.gradient(loss, [variable.value for variable in half.encoder.embeddings.trainable_variables]):
        assert np.isfinite(np.float32(tf.convert_to_tensor(gradient))).all()


@pytest.mark.parametrize("policy", [BFLOAT16, "float64"])
def test_a_bilstm_computes_in_a_pure_policy(policy):
    model = build(new_encoder(policy), "tagging_bilstm", 3)
    kernels = [weight for weight in model.weights if weight.path.endswith("recurrent_kernel")]
    assert {kernel.dtype for kernel in kernels} == {policy}
    columns = np.float32(kernels[0].value)
    np.testing.assert_allclose(columns @ columns.T, np.eye(len(columns)), atol=0.02)  # orthogonal
    assert np.isfinite(model(PADDED)["logits"]).all()


@pytest.mark.parametrize("policy", ["int32", "bool", "complex64"])
def test_a_dtype_that_is_not_floating_point_is_refused(policy):
    with raises(ConfigError, f"'{policy}'", "float32", "bfloat16"):
        new_encoder(policy)


def test_the_error_for_a_missing_pooled_output_says_how_to_get_one(tmp_path):
    encoder = new_encoder(pooler=False)
    encoder.save(tmp_path / "encoder.keras")
    for one in (encoder, keras.models.load_model(tmp_path / "encoder.keras")):
        for outputs in (one(PADDED), one.output, one(symbolic())):
            assert set(outputs) == {"embedding_output", "sequence_output", "encoder_outputs"}
            assert "pooled_output" not in outputs
            with pytest.raises(KeyError, match=r"the encoder has no pooler.*bert_tf\.load\(PATH, pooler=True\)"):
                outputs["pooled_output"]


@multiplies_bfloat16
def test_a_policy_may_be_a_map_of_policies(tmp_path):
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="mixed_bfloat16")
    encoder = new_encoder(policies)
    encoder.save(tmp_path / "encoder.keras")
    assert keras.models.load_model(tmp_path / "encoder.keras")(ROWS)["pooled_output"].dtype == tf.bfloat16


def test_loss_scaling_is_on_in_mixed_float16():
    encoder = new_encoder("mixed_float16")
    for model in (encoder, BertPretrainer(encoder), classifier(encoder, 2)):
        model.compile("adam", "mse")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def test_weights_and_configs_make_the_same_encoder(encoder, tmp_path):
    encoder.save_weights(tmp_path / "encoder.weights.h5")
    other = BertEncoder.from_config(encoder.get_config())
    assert other.get_config() == encoder.get_config() and other.config == encoder.config
    other.load_weights(tmp_path / "encoder.weights.h5")
    assert_same(other(PADDED), encoder(PADDED))
    randomize(other, 7)
    other.set_weights(encoder.get_weights())
    assert_same(other(PADDED), encoder(PADDED))


@pytest.mark.parametrize(
    "options",
    [{}, {"attention": "causal", "norm": "pre"}, {"packed": True}, FAMILY["albert"] | {"num_layers": 2}],
)
@multiplies_bfloat16
def test_an_encoder_is_cloned_layer_by_layer(options):
    encoder = new_encoder("mixed_bfloat16", **options)
    clone = keras.models.clone_model(encoder, clone_function=lambda layer: type(layer).from_config(layer.get_config()))
    assert not {id(one) for one in clone.weights} & {id(one) for one in encoder.weights}
    clone.set_weights(encoder.get_weights())
    inputs = PADDED | ({"first_token_positions": np.zeros((4, 1), np.int32)} if encoder.packed else {})
    assert_same(clone(inputs), encoder(inputs))


def test_a_model_can_end_at_an_inner_layer(encoder, tmp_path):
    lower = keras.Model(encoder.input, encoder.get_layer("layer_0").output)
    assert_same(lower(PADDED), encoder(PADDED)["encoder_outputs"][0])
    assert_same(keras.Model(encoder.input, encoder.output["encoder_outputs"][0])(PADDED), lower(PADDED))
    lower.save(tmp_path / "lower.keras")
    assert_same(keras.models.load_model(tmp_path / "lower.keras")(PADDED), lower(PADDED))


def test_frozen_layers_do_not_change_and_stay_frozen_when_saved(tmp_path):
    encoder = new_encoder()
    encoder.embeddings.trainable = False
    encoder.get_layer("pooler").trainable = False
    model = compiled(with_head(encoder), "sgd", run_eagerly=True)
    before = {variable.path: variable.numpy() for variable in model.weights}
    model.train_on_batch(ROWS, LABELS)
    for variable in model.weights:
        frozen = variable.path.startswith(("embeddings", "pooler"))
        assert np.array_equal(before[variable.path], variable.numpy()) == frozen, variable.path
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [one.path for one in again.trainable_variables] == [one.path for one in model.trainable_variables]
    assert_same(values(again.optimizer.variables), values(model.optimizer.variables))


def test_a_frozen_encoder_leaves_the_head_to_train(tmp_path):
    model = with_head(BertEncoder(small_config(num_layers=1), trainable=False))
    model.save(tmp_path / "model.keras")
    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        assert [one.path for one in each.trainable_variables] == ["mine/kernel", "mine/bias"]
    model.get_layer("encoder").trainable = True
    assert len(model.trainable_variables) == len(model.weights)


def test_lora_trains_its_own_weights_and_is_merged_when_saved(tmp_path):
    encoder = new_encoder()
    model = with_head(encoder)
    plain = model(ROWS)
    attention = encoder.get_layer("layer_0").attention
    for layer in (attention.qkv, attention.output_projection, encoder.get_layer("pooler")):
        layer.enable_lora(2)
    assert_same(model(ROWS), plain)  # one of the factors starts as zeros
    kernel = attention.qkv.kernel.numpy()
    [base] = [one for one in attention.qkv.non_trainable_variables if one.name == "kernel"]
    compiled(model, run_eagerly=True).fit(ROWS, LABELS, batch_size=16, verbose=0)
    np.testing.assert_array_equal(base, kernel)
    assert np.abs(attention.qkv.kernel - kernel).max() > 1e-4
    model.save_weights(tmp_path / "model.weights.h5")
    merged = with_head(new_encoder(seed=3))
    merged.load_weights(tmp_path / "model.weights.h5")
    assert_same(merged(ROWS), model(ROWS), atol=1e-5)
    model.save(tmp_path / "model.keras")
    assert_same(keras.models.load_model(tmp_path / "model.keras", compile=False)(ROWS), model(ROWS), atol=1e-5)


@pytest.mark.filterwarnings("ignore:Layer")  # that has no `quantize`
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_quantization_of_the_encoder_is_refused_and_changes_nothing(encoder, mode):
    model = with_head(encoder)
    before = model(ROWS)
    for each in (model, encoder):
        with raises(ConfigError, "encoder", repr(mode), "optimize='int8'"):
            each.quantize(mode)
    with raises(ConfigError, "encoder", "'int8'"):
        encoder.quantize(config=keras.quantizers.Int8QuantizationConfig())
    assert_same(model(ROWS), before)
    with raises(ConfigError, "'int8_from_float32'"):
        new_encoder("int8_from_float32")


def test_the_users_own_layers_can_be_quantized(encoder, tmp_path):
    model = with_head(encoder)
    before = model(ROWS)
    model.quantize("int8", filters="mine")
    assert np.abs(model(ROWS) - before).max() > 0
    assert_same(model(ROWS), before, atol=0.05)
    model.save(tmp_path / "model.keras")
    assert_same(keras.models.load_model(tmp_path / "model.keras")(ROWS), model(ROWS))


def test_a_dict_may_contain_arrays_of_any_integer_type_and_more_entries(encoder):
    want = encoder(PADDED)
    assert_same(encoder({name: value.astype(np.int64) for name, value in PADDED.items()}), want)
    assert_same(encoder(PADDED | {"input_mask": PADDED["input_mask"].astype(bool)}), want)
    assert_same(encoder(PADDED | {"a_label": np.arange(4)}), want)


def test_a_list_and_an_incomplete_dict_of_inputs_are_refused_by_name(encoder):
    with pytest.raises(DataError, match="input_mask"):  # Keras would take them in the order of their names
        encoder([ROWS["input_word_ids"], ROWS["input_mask"], ROWS["input_type_ids"]])
    with pytest.raises(DataError, match="input_type_ids"):
        encoder({name: ROWS[name] for name in ("input_word_ids", "input_mask")})


def test_a_functional_model_of_a_list_takes_a_list(encoder):
    model = keras.Model(encoder.inputs, encoder.output["pooled_output"])
    names = [tensor.name for tensor in encoder.inputs]
    assert_same(model([PADDED[name] for name in names]), encoder(PADDED)["pooled_output"])


@pytest.mark.parametrize("shape", [(None, None), (None, WIDTH), (48, WIDTH)])
def test_symbolic_shapes_are_those_of_the_inputs(encoder, shape):
    outputs = encoder({name: keras.Input(batch_shape=shape, dtype="int32", name=name) for name in ROWS})
    assert outputs["sequence_output"].shape == outputs["encoder_outputs"][0].shape == (*shape, 32)
    assert outputs["pooled_output"].shape == (shape[0], 32)
    assert encoder.compute_output_shape({name: (4, 8) for name in ROWS})["sequence_output"] == (4, 8, 32)


def test_an_optimizer_and_a_tape_make_gradient_descent():
    model = with_head(new_encoder())
    before = values(model.trainable_variables)
    with tf.GradientTape() as tape:
        logits = model(ROWS, training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits))
    gradients = [tf.convert_to_tensor(one) for one in tape.gradient(loss, model.trainable_variables)]
    keras.optimizers.SGD(0.1).apply(gradients, model.trainable_variables)
    stepped = [value - 0.1 * gradient for value, gradient in zip(before, gradients, strict=True)]
    assert_same(values(model.trainable_variables), stepped, atol=1e-6)
    # A strategy makes the same step from a dataset with sample weights.
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        scoped = compiled(with_head(new_encoder()), keras.optimizers.SGD(0.1))
    weighted = tf.data.Dataset.from_tensors((ROWS, LABELS, np.ones(48, np.float32)))
    scoped.fit(weighted, shuffle=False, verbose=0)
    assert_same(values(scoped.trainable_variables), stepped, atol=1e-5)


def test_class_weights_sample_weights_and_steps_per_execution_are_supported():
    model = compiled(with_head(new_encoder()), keras.optimizers.SGD(0.0), steps_per_execution=2)
    logits, weights = model(ROWS).numpy(), {0: 1.0, 1: 3.0}
    per_row = np.array([weights[label] for label in LABELS])
    losses = np.array([cross_entropy(logits[[row]], LABELS[[row]]) for row in range(len(LABELS))])
    by_class = model.fit(ROWS, LABELS, class_weight=weights, batch_size=12, verbose=0).history["loss"][0]
    assert by_class == pytest.approx((per_row * losses).mean(), abs=1e-5)
    batches = tf.data.Dataset.from_tensor_slices((ROWS, LABELS, per_row)).batch(12)
    assert model.fit(batches, shuffle=False, verbose=0).history["loss"][0] == pytest.approx(by_class, abs=1e-5)


def test_a_custom_train_step_is_run():
    class Doubled(keras.Model):
        def train_step(self, data):
            inputs, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
            with tf.GradientTape() as tape:
                loss = 2 * self.compute_loss(inputs, labels, self(inputs, training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"doubled": loss}

    base = with_head(new_encoder())
    model = compiled(Doubled(base.input, base.output), run_eagerly=True)
    expected = 2 * cross_entropy(model(ROWS), LABELS)
    assert model.train_on_batch(ROWS, LABELS, return_dict=True)["doubled"] == pytest.approx(expected, abs=1e-5)
    assert cross_entropy(model(ROWS), LABELS) < expected / 2


def test_an_encoder_is_a_layer_of_a_subclassed_and_of_a_sequential_model(encoder, tmp_path):
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = new_encoder(), keras.layers.Dense(2)

        def call(self, inputs, training=False):
            return self.head(self.encoder(inputs, training=training)["pooled_output"])

    first, second = Subclassed(), Subclassed()
    first(ROWS), second(ROWS)
    first.save_weights(tmp_path / "model.weights.h5")
    second.load_weights(tmp_path / "model.weights.h5")
    assert_same(second(ROWS), first(ROWS))
    pooled = keras.Sequential([encoder, keras.layers.Lambda(lambda outputs: outputs["pooled_output"])])
    assert_same(pooled(ROWS), encoder(ROWS)["pooled_output"])


def test_one_model_may_contain_two_encoders(tmp_path):
    one, other = new_encoder(name="one"), new_encoder(name="other", seed=1, norm="pre")
    inputs = symbolic()
    vectors = [each(inputs)["pooled_output"] for each in (one, other)]
    model = keras.Model(inputs, keras.ops.concatenate(vectors, -1))
    expected = np.concatenate([one(ROWS)["pooled_output"], other(ROWS)["pooled_output"]], -1)
    assert_same(model(ROWS), expected)
    model.save(tmp_path / "model.keras")
    assert_same(keras.models.load_model(tmp_path / "model.keras")(ROWS), expected)


def test_one_encoder_may_be_shared_by_questions_and_answers(encoder, tmp_path):
    inputs = [symbolic("question_"), symbolic("answer_")]
    vectors = [encoder(each)["pooled_output"] for each in inputs]
    model = keras.Model(inputs, keras.layers.Dot(1, normalize=True)(vectors))
    assert len(model.weights) == len(encoder.weights)
    turned = {name: value[::-1] for name, value in ROWS.items()}
    vectors = encoder(ROWS)["pooled_output"].numpy()
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    expected = (vectors * vectors[::-1]).sum(-1, keepdims=True)
    model.save(tmp_path / "model.keras")
    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        np.testing.assert_allclose(each([ROWS, turned]), expected, atol=1e-5)


def test_a_mask_is_passed_to_layers_that_take_one(encoder):
    inputs = symbolic()
    is_token = keras.ops.cast(inputs["input_mask"], "bool")
    mean = keras.layers.GlobalAveragePooling1D()(encoder(inputs)["sequence_output"], mask=is_token)
    states, mask = encoder(PADDED)["sequence_output"].numpy(), PADDED["input_mask"][..., np.newaxis]
    expected = (states * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(keras.Model(inputs, mean)(PADDED), expected, atol=1e-5)


def test_seeds_and_the_training_flag_govern_dropout():
    def run(training):
        keras.utils.set_random_seed(3)
        encoder = BertEncoder(small_config(num_layers=1, dropout=0.3))
        return encoder(ROWS, training=training)["pooled_output"].numpy(), encoder(ROWS)["pooled_output"].numpy()

    (noisy, still), (again, _), (off, _) = run(True), run(True), run(False)
    np.testing.assert_array_equal(noisy, again)
    np.testing.assert_array_equal(off, still)
    assert np.abs(noisy - still).max() > 0.01


def test_graphs_and_stateless_calls_give_the_eager_answers(encoder):
    inputs = {name: tf.constant(value) for name, value in PADDED.items()}
    assert_same(tf.function(encoder)(inputs), encoder(inputs), atol=1e-5)
    trainable, others = (
        [variable.value for variable in each] for each in (encoder.trainable_variables, encoder.non_trainable_variables)
    )
    assert_same(encoder.stateless_call(trainable, others, inputs)[0], encoder(inputs), atol=1e-5)


def test_weights_have_unique_paths_and_are_counted(encoder):
    paths = [variable.path for variable in with_head(encoder).weights]
    assert len(set(paths)) == len(paths)
    assert encoder.count_params() == sum(np.prod(variable.shape) for variable in encoder.weights)


def test_the_summary_shows_every_layer(encoder):
    lines = []
    with_head(encoder).summary(expand_nested=True, show_trainable=True, print_fn=lambda text, **_: lines.append(text))
    text = "\n".join(lines)
    for layer in ("embeddings", "layer_0", "layer_1", "pooler", "mine"):
        assert layer in text
    assert f"{encoder.count_params() + 66:,}" in text


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="dropuot"):
        BertEncoder(small_config(), dropuot=0.1)
