"""Each optimizer against an independent implementation in float64: google-research/bert's, LAMB's and StableAdamW's
written here in NumPy, AdamW and RAdam from PyTorch; Muon against the singular vectors that it keeps, and PyTorch's."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.training import optimizers

STEPS, DECAY = 20, 0.1
# As represented in float32: rounding changes 1 - 0.999 by 1.3e-5, which the fused kernel cannot avoid.
BETA_1, BETA_2 = (float(np.float32(beta)) for beta in (0.9, 0.999))
RATES = np.linspace(0.02, 0.001, STEPS)
DECAYED = {"layer/kernel", "layer/embeddings", "layer/qkv/kernel"}


class Layer(keras.layers.Layer):
    def build(self, _):
        self.qkv = keras.layers.Dense(6, name="qkv")
        self.qkv.build((None, 4))
        for name in ("kernel", "embeddings", "bias", "gamma", "beta"):
            setattr(self, name, self.add_weight(shape=(4, 6), initializer="glorot_normal", name=name))


def variables():
    keras.utils.set_random_seed(5)
    layer = Layer(name="layer")
    layer.build(None)
    return layer.trainable_variables


def gradients(of):
    """dict path -> float32 [STEPS, ...], from 1e-7 to 1: epsilon matters for the small ones."""
    random = np.random.default_rng(0)

    def draw(shape):
        return (random.normal(size=[STEPS, *shape]) * 10.0 ** random.integers(-7, 1, shape)).astype("float32")

    return {variable.path: draw(variable.shape) for variable in of}


def train(optimizer, trained, by_path):
    """dict path -> float32 array: the variables after the updates."""
    apply = tf.function(optimizer.apply)
    for step in range(STEPS):
        given = [tf.constant(by_path[variable.path][step]) for variable in trained]
        apply(given, tf.constant(RATES[step], tf.float32))
    return {variable.path: variable.numpy() for variable in trained}


def create(trained, **settings):
    config = TrainConfig(**({"weight_decay": DECAY} | settings)).resolved()
    return optimizers.create(trained, config)


def compare(update, tolerance=1e-6, **settings):
    """Trains with `settings` and by `update`: function(path, weight, m, v, gradient, rate, number) -> new w, m, v."""
    trained = variables()
    weights = {variable.path: variable.numpy().astype("float64") for variable in trained}
    moments = {path: (np.zeros_like(value), np.zeros_like(value)) for path, value in weights.items()}
    by_path = gradients(trained)
    found = train(create(trained, **settings), trained, by_path)
    for step, rate in enumerate(RATES):
        for path in weights:
            weights[path], *moments[path] = update(
                path, weights[path], *moments[path], by_path[path][step].astype("float64"), rate, step + 1
            )
    assert_near(found, weights, tolerance)


def assert_near(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    for path, value in found.items():
        np.testing.assert_allclose(
            value, expected[path], rtol=tolerance, atol=tolerance * np.abs(value).max(), err_msg=path
        )


def adam_weight_decay(beta_1=BETA_1, beta_2=BETA_2, epsilon=1e-6):
    """google-research/bert's AdamWeightDecayOptimizer.apply_gradients."""

    def update(path, weight, m, v, gradient, rate, _):
        m = beta_1 * m + (1.0 - beta_1) * gradient
        v = beta_2 * v + (1.0 - beta_2) * np.square(gradient)
        step = m / (np.sqrt(v) + epsilon)
        if path in DECAYED:
            step += DECAY * weight
        return weight - rate * step, m, v

    return update


@pytest.fixture(params=["TensorFlow's kernel", "compiled"])
def way(request, monkeypatch):
    """How variables of this size are updated."""
    monkeypatch.setattr(optimizers, "_COMPILED", 0 if request.param == "compiled" else 10**6)


@pytest.mark.usefixtures("way")
def test_the_recipe_google_updates_like_google_research_bert():
    compare(adam_weight_decay(), recipe="google")


def test_with_the_unrounded_betas_of_googles_program_updates_agree_to_five_digits():
    compare(adam_weight_decay(0.9, 0.999), tolerance=2e-5, recipe="google")


def test_betas_and_epsilon_are_those_of_the_config():
    beta = float(np.float32(0.98))
    compare(adam_weight_decay(beta_2=beta, epsilon=1e-3), recipe="google", beta_2=0.98, epsilon=1e-3)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_gradients_are_multiplied_by_their_factor_first(optimizer):
    results = []
    for factor in (1.0, 0.25):
        trained = variables()
        given = [tf.fill(variable.shape, 0.5 / factor) for variable in trained]
        create(trained, optimizer=optimizer).apply(given, tf.constant(0.1), tf.constant(factor))
        results.append({variable.path: variable.numpy() for variable in trained})
    assert_near(*results)


def test_the_compiled_program_multiplies_gradients_by_their_factor_too(monkeypatch):
    monkeypatch.setattr(optimizers, "_COMPILED", 0)
    test_gradients_are_multiplied_by_their_factor_first("adamw")


SLOW = pytest.mark.slow


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "optimizer, epsilon",
    [
        ("AdamW", 1e-6),
        pytest.param("AdamW", 1e-3, marks=SLOW),
        ("RAdam", 1e-3),
        pytest.param("RAdam", 1e-6, marks=SLOW),
    ],
)
def test_twenty_steps_equal_those_of_pytorch(optimizer, epsilon):
    torch = pytest.importorskip("torch")
    trained = variables()
    parameters = {
        variable.path: torch.nn.Parameter(torch.tensor(variable.numpy(), dtype=torch.float64)) for variable in trained
    }
    by_path = gradients(trained)
    found = train(create(trained, optimizer=optimizer.lower(), epsilon=epsilon), trained, by_path)

    groups = [
        {"params": [value for path, value in parameters.items() if (path in DECAYED) == decayed], "weight_decay": decay}
        for decayed, decay in ((True, DECAY), (False, 0.0))
    ]
    more = {"decoupled_weight_decay": True} if optimizer == "RAdam" else {}
    theirs = getattr(torch.optim, optimizer)(groups, lr=1.0, betas=(BETA_1, BETA_2), eps=epsilon, **more)
    for step, rate in enumerate(RATES):
        for group in theirs.param_groups:
            group["lr"] = rate
        for path, value in parameters.items():
            value.grad = torch.tensor(by_path[path][step], dtype=torch.float64)
        theirs.step()
    assert_near(found, {path: value.detach().numpy() for path, value in parameters.items()})


def lamb(correct):
    """You et al. (2020), algorithm 2, one column block of query, key or value at a time."""

    def update(path, weight, m, v, gradient, rate, number):
        m = BETA_1 * m + (1.0 - BETA_1) * gradient
        v = BETA_2 * v + (1.0 - BETA_2) * gradient**2
        m_hat, v_hat = (m / (1 - BETA_1**number), v / (1 - BETA_2**number)) if correct else (m, v)
        ratio = m_hat / (np.sqrt(v_hat) + 1e-6)
        if path not in DECAYED:
            return weight - rate * ratio, m, v
        changed = []
        for x, r in zip(
            *(np.split(value, 3 if "qkv" in path else 1, axis=1) for value in (weight, ratio)), strict=True
        ):
            r = r + DECAY * x
            changed.append(x - rate * np.linalg.norm(x) / np.linalg.norm(r) * r)
        return np.concatenate(changed, axis=1), m, v

    return update


@pytest.mark.parametrize("correct", [True, False])
def test_lamb_follows_its_paper(correct):
    compare(lamb(correct), optimizer="lamb", bias_correction=correct)


def test_the_trust_ratio_of_lamb_is_one_if_a_norm_is_zero():
    (kernel,) = (variable for variable in variables() if variable.path == "layer/kernel")
    optimizer = create([kernel], optimizer="lamb", weight_decay=0.0)

    kernel.assign(np.zeros(kernel.shape))
    optimizer.apply([tf.ones(kernel.shape)], tf.constant(0.1))
    np.testing.assert_allclose(kernel.numpy(), -0.1, rtol=1e-5)  # Adam's first step with bias correction is the sign

    kernel.assign(np.ones(kernel.shape))
    optimizer = create([kernel], optimizer="lamb", weight_decay=0.0)
    optimizer.apply([tf.zeros(kernel.shape)], tf.constant(0.1))
    assert (kernel.numpy() == 1.0).all()


def stable(epsilon):
    """Wortsman et al. (2023), algorithm 2, with the decay outside of the moments."""

    def update(path, weight, m, v, gradient, rate, number):
        m = BETA_1 * m + (1.0 - BETA_1) * gradient
        v = BETA_2 * v + (1.0 - BETA_2) * gradient**2
        m_hat, v_hat = m / (1 - BETA_1**number), v / (1 - BETA_2**number)
        excess = np.sqrt(np.mean(gradient**2 / np.maximum(v_hat, epsilon**2)))
        rate = rate / max(1.0, excess)
        decay = DECAY if path in DECAYED else 0.0
        return weight - rate * (decay * weight + m_hat / (np.sqrt(v_hat) + epsilon)), m, v

    return update


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("epsilon", [1e-6, pytest.param(1e-3, marks=SLOW)])
def test_stable_adamw_follows_its_paper(epsilon):
    compare(stable(epsilon), optimizer="stable_adamw", epsilon=epsilon)


def matrix_of_block(rows, columns, path):
    value = np.random.default_rng(rows).normal(size=[rows, columns])
    variable = keras.Variable(value, name="kernel", dtype="float32")
    variable._path = path
    return variable


@pytest.mark.parametrize("rows, columns", [(8, 24), (24, 8), (16, 16)])
def test_orthogonalized_matrices_keep_singular_vectors_and_have_singular_values_near_one(rows, columns):
    matrix = np.random.default_rng(rows).normal(size=[2, rows, columns]).astype("float32") * [[[1e-4]], [[100.0]]]
    found = optimizers.orthogonalized(tf.constant(matrix, tf.float32)).numpy()

    for before, after in zip(matrix, found, strict=True):
        left, _, right = np.linalg.svd(before, full_matrices=False)
        values = left.T @ after @ right.T
        assert np.abs(values - np.diag(np.diag(values))).max() < 1e-4
        # Values far below the largest one would need further steps; those of a random matrix are not.
        assert np.diag(values).max() < 1.25 and np.median(np.diag(values)) > 0.65


def test_muon_moves_matrices_of_blocks_by_orthogonal_steps_of_adams_size_and_the_rest_like_adamw():
    qkv = matrix_of_block(8, 24, "layer_0/attention/qkv/kernel")
    others = [matrix_of_block(8, 24, path) for path in ("embeddings/word_embeddings", "classification/kernel")]
    before = [variable.numpy() for variable in (qkv, *others)]
    optimizer = create([qkv, *others], optimizer="muon")
    assert [name for name in optimizer.slots if "layer_0" in name] == ["layer_0/attention/qkv/kernel/m"]
    gradient = np.random.default_rng(0).normal(size=[8, 24]).astype("float32")
    optimizer.apply([tf.constant(gradient)] * 3, tf.constant(0.01))

    for old, part, own in zip(*(np.split(x, 3, axis=1) for x in (before[0], qkv.numpy(), gradient)), strict=True):
        step = (old * (1 - 0.01 * DECAY) - part) / 0.01
        left, _, right = np.linalg.svd(own)  # after one update, momentum is in proportion to the gradient
        values = np.diag(left.T @ step @ right.T) / (0.2 * np.sqrt(8))
        assert values.max() < 1.25 and np.median(values) > 0.65
    adam = create(others, optimizer="adamw")
    moved = [variable.numpy() for variable in others]
    for variable, value in zip(others, before[1:], strict=True):
        variable.assign(value)
    adam.apply([tf.constant(gradient)] * 2, tf.constant(0.01))
    for variable, value in zip(others, moved, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.slow
@pytest.mark.parametrize("rows, columns", [(16, 64), (64, 16)])
def test_twenty_steps_of_muon_are_near_those_of_pytorch(rows, columns):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    kernel = matrix_of_block(rows, columns, "layer_0/output/kernel")
    parameter = torch.nn.Parameter(torch.tensor(kernel.numpy()))
    before, optimizer = kernel.numpy(), create([kernel], optimizer="muon")
    theirs = torch.optim.Muon([parameter], lr=0.01, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for gradient in np.random.default_rng(0).normal(size=[STEPS, rows, columns]).astype("float32"):
        optimizer.apply([tf.constant(gradient)], tf.constant(0.01))
        parameter.grad = torch.tensor(gradient)
        theirs.step()
    # PyTorch computes the iteration in bfloat16.
    moved = np.linalg.norm(parameter.detach().numpy() - before)
    assert np.linalg.norm(kernel.numpy() - parameter.detach().numpy()) < 0.02 * moved


@pytest.mark.parametrize("name", ["adamw", "radam", "stable_adamw"])
def test_only_biases_and_layer_norm_are_not_decayed(name):
    trained = variables()
    before = {variable.path: variable.numpy() for variable in trained}
    optimizer = create(trained, optimizer=name, weight_decay=0.5)

    # Without a gradient only the decay changes a weight.
    optimizer.apply([tf.zeros(variable.shape) for variable in trained], tf.constant(0.1))

    for variable in trained:
        kept = 0.95 if variable.path in DECAYED else 1.0
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


# ELECTRA's model/optimization.py: decay ** (layers + 2 - depth), depth 0 for embeddings, i + 1 for layer i, layers + 2
# for the task's own layers.
DEPTHS = {
    "embeddings/word_embeddings": 0,
    "embeddings/norm/gamma": 0,
    "layer_0/attention/qkv/kernel": 1,
    "layer_1/output/bias": 2,
    "layer_10/output/bias": 11,
    "layer_11/output_norm/beta": 12,
    "final_norm/gamma": 13,
    "pooler/kernel": 13,
    "masked_lm/transform/kernel": 14,
    "classification/kernel": 14,
}


def test_layer_decay_equals_electras():
    expected = [0.8 ** (14 - depth) for depth in DEPTHS.values()]
    assert optimizers.layer_rates(list(DEPTHS), 0.8) == pytest.approx(expected)
    assert optimizers.layer_rates(list(DEPTHS), 1.0) == [1.0] * len(DEPTHS)


@pytest.mark.parametrize("name", ["adamw", "lamb", "radam", "stable_adamw"])
def test_layer_decay_scales_the_whole_update_with_its_decay(name):
    def moved(layer_decay, of):
        variable = keras.Variable(np.linspace(-1, 1, 24).reshape(4, 6), name="kernel", dtype="float32")
        variable._path = of
        others = [keras.Variable(np.ones([2]), name="kernel", dtype="float32") for _ in range(2)]
        others[0]._path, others[1]._path = "layer_1/output/kernel", "head/kernel"
        before = variable.numpy()
        optimizer = create([variable, *others], optimizer=name, layer_decay=layer_decay)
        gradient = np.cos(np.arange(24)).reshape(4, 6)
        optimizer.apply([tf.constant(gradient, tf.float32), tf.ones([2]), tf.ones([2])], tf.constant(1e-2))
        return variable.numpy() - before

    whole = moved(1.0, "layer_0/output/kernel")
    # In float32, weights up to 1 are rounded to 2**-25, and each of the two changes was rounded twice.
    rounding = 4 * 2**-25
    # Two layers: four steps from the embeddings to the heads.
    for path, share in {"embeddings/words": 0.5**4, "layer_0/output/kernel": 0.5**3, "head/output/kernel": 1.0}.items():
        np.testing.assert_allclose(moved(0.5, path), share * whole, rtol=1e-4, atol=2 * rounding)


# tests/training/test_xla.py has RAdam in a compiled step.
@pytest.mark.parametrize("name", ["lamb", *(pytest.param(name, marks=SLOW) for name in ("adamw", "radam", "muon"))])
def test_an_update_can_be_compiled_by_xla_with_the_same_result(name):
    found = {}
    for compiled in (False, True):
        trained = variables()
        optimizer = create(trained, optimizer=name)
        apply = tf.function(optimizer.apply, jit_compile=compiled)
        for step in range(7):  # in the first five steps RAdam is momentum alone
            apply([tf.constant(values[step]) for values in gradients(trained).values()], tf.constant(0.01))
        found[compiled] = {variable.path: variable.numpy() for variable in trained}
    assert_near(found[True], found[False])


def test_a_slot_counts_the_updates_that_were_made():
    trained = variables()
    optimizer = create(trained)
    for _ in range(3):
        optimizer.apply([tf.ones(variable.shape) for variable in trained], tf.constant(0.1))
    assert int(optimizer.slots["updates"]) == 3


def test_the_recipes_differ_in_the_documented_settings():
    google, modern = (dataclasses.asdict(TrainConfig(recipe=recipe).resolved()) for recipe in ("google", "modern"))
    assert {name: (google[name], modern[name]) for name in google if google[name] != modern[name]} == {
        "recipe": ("google", "modern"),
        "bias_correction": (False, True),
        "warmup_from_zero": (True, False),
        "decay_from_start": (True, False),
        "normalization": ("replica_sum", "global"),
        "clip_on": ("replica", "global"),
    }
