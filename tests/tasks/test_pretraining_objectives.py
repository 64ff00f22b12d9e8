"""The objectives of ELECTRA and SpanBERT: losses and gradients against float64 definitions in NumPy."""

import types

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, log_softmax

from bert_tf import BertEncoder
from bert_tf.errors import ConfigError
from bert_tf.inference.token_graph import TokenGraph
from bert_tf.model.replaced_tokens import generator_config
from bert_tf.tasks.replaced_tokens import Electra, ReplacedTokenDetection
from bert_tf.tasks.span_boundary import SpanBoundary
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model import test_replaced_tokens as electra
from tests.model.numpy_bert import ACTIVATIONS, encode, linear, masked_lm_logits, tensors_of
from tests.model.small import PIECES, features, randomize, seeded, small_config
from tests.model.test_span_boundary import bounds_one_by_one

GELU, SHAPE = "erf_gelu", {"layers": 2, "activation": "erf_gelu"}


def config():
    return small_config(pooler=False, activation=GELU, dropout=0.0, attention_dropout=0.0)


def cross_entropy(logits, labels):
    return -np.take_along_axis(log_softmax(logits, -1), labels[..., None], -1)[..., 0]


def renamed(weights, folder="", hidden=32):
    """Hugging Face's names of `weights`, by path: of the generator's model, or of the model in `folder` ""."""
    prefix = f"{folder}/" if folder else ""
    own = {
        path.removeprefix(prefix): value for path, value in weights.items() if path.startswith((prefix, "embeddings/"))
    }
    shown = [types.SimpleNamespace(path=path, numpy=lambda value=value: value) for path, value in own.items()]
    return tensors_of(types.SimpleNamespace(weights=shown), hidden)


def numpy_electra(weights, rows, outputs):
    """dict name -> (sum, weight) from the paper's definitions; the sampled tokens are those of the model."""
    generator = generator_config(config(), 0.5)
    tensors = renamed(weights, "generator", generator.hidden_size)
    states, _, _ = encode(tensors, rows, heads=generator.num_heads, **SHAPE)
    logits = masked_lm_logits(tensors, states, electra.POSITIONS, activation=GELU)
    used = electra.WEIGHTS
    mlm = cross_entropy(logits, electra.LABELS) * used
    replaced, mask = outputs["replaced"].numpy(), rows["input_mask"]

    tensors = renamed({path: value for path, value in weights.items() if not path.startswith("generator/")})
    states, _, _ = encode(tensors, rows | {"input_word_ids": outputs["corrupted"]}, heads=4, **SHAPE)
    hidden = ACTIVATIONS[GELU](linear(tensors, states, "discriminator_predictions.dense"))
    logits = linear(tensors, hidden, "discriminator_predictions.dense_prediction")[..., 0]
    rtd = -np.log(np.where(replaced == 1, expit(logits), expit(-logits))) * mask
    return {
        "mlm_loss": (mlm.sum(), used.sum()),
        "rtd_loss": (rtd.sum(), mask.sum()),
        "rtd_accuracy": ((((logits > 0) == replaced) * mask).sum(), mask.sum()),
        "replaced_share": (replaced.sum(), mask.sum()),
    }


def numpy_spanbert(weights, rows, outputs):
    """As `numpy_electra`."""
    tensors = renamed(weights)
    positions, labels, used = (rows[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))
    states, _, _ = encode(tensors, rows, heads=4, **SHAPE)
    mlm = cross_entropy(masked_lm_logits(tensors, states, positions, activation=GELU), labels) * used
    sbo = 0.0
    for row, count in enumerate(used.sum(1).astype(int)):
        for slot, (left, right, number) in enumerate(bounds_one_by_one(positions[row, :count])):
            x = np.concatenate(
                [states[row, left], states[row, right], weights["span_boundary/position_embeddings"][number]]
            )
            for name in ("span_boundary", "span_boundary_output"):
                x = ACTIVATIONS[GELU](x @ weights[f"{name}/transform/kernel"] + weights[f"{name}/transform/bias"])
                x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
                x = x * weights[f"{name}/norm/gamma"] + weights[f"{name}/norm/beta"]
            logits = x @ weights["embeddings/word_embeddings"].T + weights["span_boundary_output/bias"]
            sbo += cross_entropy(logits[None], labels[row, slot : slot + 1])[0]
    return {"mlm_loss": (mlm.sum(), used.sum()), "sbo_loss": (sbo, used.sum())}


def spanbert_features():
    positions = np.array([[1, 2, 3, 7, 20], [2, 4, 0, 0, 0], [0] * 5, [3, 4, 5, 6, 7]], np.int32)
    rows = features((24, 9, 6, 12)) | {"masked_lm_positions": positions, "masked_lm_weights": np.float32(positions > 0)}
    return rows | {"masked_lm_ids": np.where(positions > 0, 5 + positions, 0).astype(np.int32)}


CASES = {
    "electra": (
        lambda: Electra(Tokenizer(PIECES), 24, generator_size=0.5),
        electra.masked_features,
        numpy_electra,
        {"rtd_loss": 50},
    ),
    "span_boundary": (lambda: SpanBoundary(Tokenizer(PIECES), 24, longest=5), spanbert_features, numpy_spanbert, {}),
}


def made(case):
    """Task, model, features and outputs of a case."""
    make, rows_of, _, _ = CASES[case]
    task, rows = make(), rows_of()
    model = randomize(task.build(BertEncoder(config())), scale=0.1)
    outputs = dict(model({tensor.name: rows[tensor.name] for tensor in model.inputs}))
    if case == "electra":
        ids, _ = model.get_layer("corruption")(
            outputs["mlm_logits"],
            *(
                rows[name]
                for name in ("input_word_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "mask_seed")
            ),
        )
        outputs["corrupted"] = ids.numpy()
    return task, model, rows, outputs


def total(metrics, factors):
    losses = {name: value / weight for name, (value, weight) in metrics.items() if name.endswith("_loss")}
    return sum(factors.get(name, 1) * value for name, value in losses.items())


@pytest.mark.parametrize("case", CASES)
def test_losses_and_metrics_are_those_of_the_definitions(case):
    task, model, rows, outputs = made(case)
    weights = {variable.path: variable.numpy().astype(np.float64) for variable in model.weights}
    want = CASES[case][2](weights, rows, outputs)
    got = task.objective.loss_and_metrics({name: tf.constant(value) for name, value in rows.items()}, outputs)
    assert got.keys() == {*task.objective.losses, *task.objective.metric_names} > want.keys()
    for name, pair in want.items():
        np.testing.assert_allclose(got[name], pair, rtol=1e-5, err_msg=name)
    divisors = task.objective.weights(rows)
    assert divisors.keys() == {*task.objective.losses}
    for name, divisor in divisors.items():
        np.testing.assert_allclose(divisor, want[name][1], atol=2e-5)
    means = {name: float(value / weight) for name, (value, weight) in got.items() if name in task.objective.losses}
    assert task.objective.total(means) == pytest.approx(total(want, CASES[case][3]), rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_the_derivative_of_the_definition_in_float64(case):
    task, model, rows, outputs = made(case)
    features = {name: tf.constant(value) for name, value in rows.items()}
    with tf.GradientTape() as tape, seeded(tf.constant([1, 2])):
        made_in_training = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=True)
        metrics, divisors = (
            task.objective.loss_and_metrics(features, made_in_training),
            task.objective.weights(features),
        )
        loss = task.objective.total({name: metrics[name][0] / divisors[name] for name in task.objective.losses})
    variables = model.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    gradients = {v.path: tf.convert_to_tensor(g).numpy() for v, g in zip(variables, gradients, strict=True)}
    if case == "electra":
        np.testing.assert_array_equal(made_in_training["replaced"], outputs["replaced"])  # the same samples
    start = {path: variable.numpy().astype(np.float64) for path, variable in zip(gradients, variables, strict=True)}
    definition, factors = CASES[case][2:]

    def loss_at(distance, direction):
        moved = {path: value + distance * direction.get(path, 0.0) for path, value in start.items()}
        return total(definition(moved, rows, outputs), factors)

    rng = np.random.default_rng(0)
    for path in gradients:  # one variable after the other, in a random direction
        direction = rng.normal(size=start[path].shape) / np.sqrt(start[path].size)
        slope = (loss_at(1e-4, {path: direction}) - loss_at(-1e-4, {path: direction})) / 2e-4
        scale = float(np.linalg.norm(gradients[path]))
        assert np.sum(gradients[path] * direction) == pytest.approx(slope, abs=1e-5 * max(scale, 1)), path
        if not path.endswith("/qkv/bias"):
            assert scale > 1e-4, path


def test_the_detector_teaches_the_generator_nothing_but_the_shared_embeddings():
    task, model, rows, _ = made("electra")
    features = {name: tf.constant(value) for name, value in rows.items()}
    with tf.GradientTape() as tape:
        outputs = model(rows, training=True)
        loss, _ = task.objective.loss_and_metrics(features, outputs)["rtd_loss"]
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    reached = {v.path for v, g in zip(model.trainable_variables, gradients, strict=True) if g is not None}
    assert reached == {v.path for v in model.trainable_variables if not v.path.startswith("generator/")}


def test_a_discriminator_is_restored_and_answers_nothing():
    task = ReplacedTokenDetection(Tokenizer(PIECES), 24)
    again = ReplacedTokenDetection.from_settings(task.settings(), task.tokenizer)
    assert again.settings() == {"max_length": 24}
    model = again.build(BertEncoder(config()))
    assert model(features())["rtd_logits"].shape == (4, 24)
    for export in (again.signatures, lambda model: TokenGraph(again, model, tf.int64)):  # of ONNX and LiteRT
        with raises(ConfigError, "a discriminator", "load its generator (PATH/generator", "fine-tune it"):
            export(model)
