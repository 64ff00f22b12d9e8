"""Distillation of encoders: losses and gradients against float64 definitions in NumPy, and what is not trained."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax, softmax

from bert_tf import BertEncoder
from bert_tf.config import EncoderDistillation
from bert_tf.errors import ConfigError
from bert_tf.model.heads import BertPretrainer
from bert_tf.tasks.encoder_distillation import TEACHER, DistilledEncoder, SoftTargetObjective, check_teacher
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.numpy_bert import encode, masked_lm_logits
from tests.model.small import PIECES, randomize, seeded, small_config
from tests.tasks.test_pretraining_objectives import GELU, cross_entropy, renamed, spanbert_features

TOKENIZER = Tokenizer(PIECES)
NO_DROPOUT = {"pooler": False, "activation": GELU, "dropout": 0.0, "attention_dropout": 0.0}
STUDENT = small_config(**NO_DROPOUT)
LARGER = small_config(**NO_DROPOUT, num_layers=4, hidden_size=48)  # of the same number of heads
DEEPER = small_config(**NO_DROPOUT, num_layers=4)


class Computed:
    """What an encoder computes, in float64."""

    def __init__(self, weights, rows, config):
        self.tensors, self.config = renamed(weights, hidden=config.hidden_size), config
        shape = {"heads": config.num_heads, "activation": GELU}
        embedded, _, _ = encode(self.tensors, rows, layers=0, **shape)
        self.states, _, outputs = encode(self.tensors, rows, layers=config.num_layers, **shape)
        self.layers = [embedded, *outputs]

    def projected(self, layer, name):
        """Queries, keys or values of a layer, from 1: [batch, length, hidden]."""
        prefix = f"encoder.layer.{layer - 1}.attention.self.{name}"
        weight, bias = (self.tensors[f"{prefix}.{part}"].astype(np.float64) for part in ("weight", "bias"))
        return self.layers[layer - 1] @ weight.T + bias

    def scores(self, layer, relation, heads):
        """[heads, batch, length, length]."""
        names = {"q": "query", "k": "key", "v": "value"}
        first, second = (np.split(self.projected(layer, names[one]), heads, axis=-1) for one in relation)
        size = first[0].shape[-1]
        return np.array([a @ b.swapaxes(1, 2) / np.sqrt(size) for a, b in zip(first, second, strict=True)])


def numpy_minilm(student, teacher, rows, settings, _):
    mask, losses = rows["input_mask"] > 0, {}
    for relation in settings.relations:
        total = 0.0
        for row, length in enumerate(mask.sum(1)):  # each text by itself, without its padding
            wanted, found = (
                of.scores(layer, relation, settings.relation_heads)[:, row, :length, :length]
                for of, layer in ((teacher, settings.teacher_layer), (student, 2))
            )
            p, q = softmax(wanted, -1), softmax(found, -1)
            total += (p * np.log(p / q)).sum() / settings.relation_heads
        losses[f"{relation}_loss"] = (total, mask.sum())
    return losses


def numpy_distilbert(student, teacher, rows, settings, _):
    positions, labels, used = (rows[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))
    found, wanted = (masked_lm_logits(of.tensors, of.states, positions, activation=GELU) for of in (student, teacher))
    p, q = (log_softmax(logits / settings.temperature, -1) for logits in (wanted, found))
    soft = (np.exp(p) * (p - q)).sum(-1) * settings.temperature**2 * used
    norms = [np.linalg.norm(of.states, axis=-1) for of in (student, teacher)]
    cosine = (student.states * teacher.states).sum(-1) / norms[0] / norms[1]
    mask = rows["input_mask"]
    return {
        "soft_loss": (soft.sum(), used.sum()),
        "mlm_loss": ((cross_entropy(found, labels) * used).sum(), used.sum()),
        "cosine_loss": (((1 - cosine) * mask).sum(), mask.sum()),
    }


def numpy_tinybert(student, teacher, rows, settings, weights):
    mask, heads = rows["input_mask"] > 0, STUDENT.num_heads
    names = ["embedding_projection", *["hidden_projection"] * 2]
    totals = []
    for number, name in enumerate(names):
        errors = (student.layers[number] @ weights[f"{name}/kernel"] - teacher.layers[2 * number])[mask]
        totals.append((errors**2).mean(-1).sum())
    attention = 0.0
    for layer in (1, 2):
        errors = student.scores(layer, "qk", heads) - teacher.scores(2 * layer, "qk", heads)
        for row, length in enumerate(mask.sum(1)):
            attention += (errors[:, row, :length, :length] ** 2).mean((0, 2)).sum()
    count = mask.sum()
    losses = (totals[0], sum(totals[1:]), attention)
    return {name: (value, count) for name, value in zip(CASES["tinybert"][4], losses, strict=True)}


# Objective, settings, teacher, definition, names of the losses, their weights.
MINILM = EncoderDistillation(relations=("qk", "vv", "qq", "kk"), relation_heads=8, teacher_layer=3)
CASES = {
    "minilm": (MINILM, LARGER, numpy_minilm, None, ("qk_loss", "vv_loss", "qq_loss", "kk_loss"), (1, 1, 1, 1)),
    "distilbert": (
        EncoderDistillation(temperature=3.0),
        DEEPER,
        numpy_distilbert,
        None,
        ("soft_loss", "mlm_loss", "cosine_loss"),
        (5, 2, 1),
    ),
    "tinybert": (
        EncoderDistillation(weights=(1.0, 0.5, 2.0)),
        LARGER,
        numpy_tinybert,
        None,
        ("embedding_loss", "hidden_loss", "attention_loss"),
        (1, 0.5, 2),
    ),
}


def made(case, languages=()):
    """Task, model, teacher and features."""
    settings, larger, *_ = CASES[case]
    encoder = BertEncoder(larger, name="teacher")
    teacher = randomize(BertPretrainer(encoder, next_sentence=False) if case == "distilbert" else encoder, 1, 0.4)
    task = DistilledEncoder(
        TOKENIZER, 24, languages, objective=case, settings=settings, student=STUDENT, teacher=teacher
    )
    model = randomize(task.build(BertEncoder(STUDENT)), scale=0.4)
    return task, model, teacher, {name: tf.constant(value) for name, value in spanbert_features().items()}


def values_of(model):
    return {variable.path: variable.numpy().astype(np.float64) for variable in model.weights}


def defined(case, weights, teacher, rows):
    settings, larger, definition, *_ = CASES[case]
    return definition(Computed(weights, rows, STUDENT), Computed(teacher, rows, larger), rows, settings, weights)


def total(losses, factors):
    return sum(factor * value / weight for factor, (value, weight) in zip(factors, losses.values(), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_the_definitions(case):
    task, model, teacher, features = made(case, ("en", "ko"))
    rows = {name: value.numpy() for name, value in features.items()}
    want = defined(case, values_of(model), values_of(teacher), rows)
    features["language_ids"] = tf.repeat([[0], [1]], [1, 3], axis=0) * tf.ones([4, 24], tf.int32)
    outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs})
    got = task.objective.loss_and_metrics(features, outputs)
    assert got.keys() == {*task.objective.losses, *task.objective.metric_names}
    assert task.objective.losses == CASES[case][4] == tuple(want)
    divisors = task.objective.weights(features)
    for name, pair in want.items():
        np.testing.assert_allclose(got[name], pair, rtol=2e-5, err_msg=name)
        np.testing.assert_allclose(divisors[name], pair[1], atol=2e-5)
    english = defined(case, values_of(model), values_of(teacher), {name: value[:1] for name, value in rows.items()})
    for name, pair in english.items():
        np.testing.assert_allclose(got[f"en/{name}"], pair, rtol=2e-5, err_msg=name)
        np.testing.assert_allclose(got[f"ko/{name}"], np.subtract(want[name], pair), rtol=1e-4, err_msg=name)
    means = {name: float(value / weight) for name, (value, weight) in got.items() if name in want}
    assert task.objective.total(means) == pytest.approx(total(want, CASES[case][5]), rel=1e-5)
    padding, positions = got["padding_share"]
    assert (padding, positions) == ((rows["input_mask"] == 0).sum(), rows["input_mask"].size)


def test_predictions_agree_where_both_have_the_same_largest_logit():
    student, teacher = ([[1, 2, 0], [3, 0, 0], [0, 0, 1]], [[0, 9, 1], [1, 2, 0], [1, 0, 5]])
    outputs = {
        "mlm_logits": tf.constant(student, tf.float32),
        TEACHER: {"mlm_logits": tf.constant(teacher, tf.float32)},
    }
    objective = SoftTargetObjective(1.0)
    found = objective.predictions({"masked_lm_weights": tf.ones([1, 3])}, outputs)
    assert found.values["soft_agreement"].numpy().tolist() == [1, 0, 1]


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_the_derivative_of_the_definition_in_float64(case):
    task, model, teacher, features = made(case)
    with tf.GradientTape() as tape, seeded(tf.constant([1, 2])):
        outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=True)
        metrics, divisors = task.objective.loss_and_metrics(features, outputs), task.objective.weights(features)
        loss = task.objective.total({name: metrics[name][0] / divisors[name] for name in task.objective.losses})
    variables = model.trainable_variables
    found = tape.gradient(loss, [variable.value for variable in variables], unconnected_gradients="zero")
    gradients = {v.path: tf.convert_to_tensor(g).numpy() for v, g in zip(variables, found, strict=True)}
    start, taught = values_of(model), values_of(teacher)
    rows = {name: value.numpy() for name, value in features.items()}

    def loss_at(distance, path, direction):
        moved = start | {path: start[path] + distance * direction}
        return total(defined(case, moved, taught, rows), CASES[case][5])

    rng = np.random.default_rng(0)
    for path, gradient in gradients.items():  # one variable after the other, in a random direction
        direction = rng.normal(size=gradient.shape) / np.sqrt(gradient.size)
        slope = (loss_at(1e-4, path, direction) - loss_at(-1e-4, path, direction)) / 2e-4
        scale = float(np.linalg.norm(gradient))
        assert np.sum(gradient * direction) == pytest.approx(slope, abs=2e-5 * max(scale, 1)), path
        # MiniLM compares what the last layer attends with, so that nothing teaches the rest of this layer.
        own = case == "minilm" and path.startswith("layer_1/") and "qkv" not in path
        assert (scale == 0) == own, path


def test_nothing_flows_back_into_the_teacher_which_computes_without_dropout():
    larger = small_config(**(NO_DROPOUT | {"dropout": 0.5, "attention_dropout": 0.5}), num_layers=3)
    teacher = randomize(BertEncoder(larger))
    variables = teacher.trainable_variables
    settings = EncoderDistillation(relation_heads=4)
    task = DistilledEncoder(
        Tokenizer(PIECES), 24, objective="minilm", settings=settings, student=STUDENT, teacher=teacher
    )
    model = task.build(BertEncoder(STUDENT))
    features = {name: tf.constant(value) for name, value in spanbert_features().items()}
    losses = []
    for seed in (1, 2):
        with tf.GradientTape() as tape, seeded(tf.constant([seed, seed])):
            for variable in variables:
                tape.watch(variable.value)
            outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=True)
            losses.append(task.objective.loss_and_metrics(features, outputs)["qq_loss"][0])
        assert not any(g is not None for g in tape.gradient(losses[-1], [variable.value for variable in variables]))
    assert losses[0] == losses[1]
    assert not teacher.trainable_variables
    assert not {id(weight) for weight in model.weights} & {id(weight) for weight in teacher.weights}


def test_a_student_that_equals_its_teacher_has_nothing_to_learn():
    rows = {name: tf.constant(value) for name, value in spanbert_features().items()}
    encoder = randomize(BertEncoder(STUDENT))
    settings = EncoderDistillation(relation_heads=16)
    task = DistilledEncoder(
        Tokenizer(PIECES), 24, objective="minilm", settings=settings, student=STUDENT, teacher=encoder
    )
    outputs = task.build(encoder)({name: rows[name] for name in encoder.input})
    found = task.objective.loss_and_metrics(rows, outputs)
    for name in ("qq_loss", "kk_loss", "vv_loss"):
        assert float(found[name][0]) == pytest.approx(0, abs=1e-4)


def test_what_is_saved_is_the_encoder_and_of_distilbert_the_masked_language_model():
    for case in CASES:
        task, _, _, _ = made(case)
        (saved, config), *others = task.saved(STUDENT).values()
        assert not others and config is STUDENT
        assert type(saved) is MaskedLM if case == "distilbert" else saved is None


@pytest.mark.parametrize(
    "objective, settings, student, teacher, head, named",
    [
        ("minilm", {"relation_heads": 7}, {}, {}, None, ["is 7", "32 columns", "teacher 48", "1, 2, 4, 8, 16"]),
        ("minilm", {"relation_heads": 8, "teacher_layer": 5}, {}, {}, None, ["teacher_layer is 5", "1 to 4"]),
        ("minilm", {"relation_heads": 8, "teacher_layer": 0}, {}, {}, None, ["teacher_layer is 0", "-1 for the last"]),
        ("minilm", {"relation_heads": 8}, {}, {"attention": "causal"}, None, ["'causal'", "'bidirectional'"]),
        ("tinybert", {}, {"num_layers": 3}, {}, None, ["num_layers is 3", "4 layers"]),
        ("tinybert", {}, {}, {"heads_per_layer": (4, 4, 4, 3)}, None, ["4, 4 heads", "learn 4, 3"]),
        ("minilm", {"relation_heads": 16}, {"heads_per_layer": (4, 3)}, {}, None, ["24 columns", "teacher 48"]),
        ("tinybert", {}, {"num_heads": 2}, {}, None, ["2, 2 heads", "learn 4, 4", "model.num_heads", "minilm"]),
        ("distilbert", {}, {}, {"hidden_size": 32}, None, ["no head", "masked language model", "minilm"]),
        ("distilbert", {}, {}, {"hidden_size": 32}, "classification", ["the head classification"]),
        ("distilbert", {}, {}, {}, "masked_lm", ["hidden_size is 32, the teacher's 48", "weights=(5,2,0)"]),
    ],
)  # fmt: skip
def test_a_teacher_that_does_not_fit_is_refused_in_one_line(objective, settings, student, teacher, head, named):
    configs = small_config(**student), small_config(**({"num_layers": 4, "hidden_size": 48} | teacher))
    with raises(ConfigError, *named):
        check_teacher(objective, EncoderDistillation(**settings).check(objective), *configs, head)


def test_a_cosine_without_weight_is_left_out_and_needs_no_equal_sizes():
    settings = EncoderDistillation(weights=(5.0, 2.0, 0.0)).check("distilbert")
    check_teacher("distilbert", settings, STUDENT, LARGER, "pretraining")
    teacher = BertPretrainer(BertEncoder(LARGER), next_sentence=False)
    task = DistilledEncoder(
        Tokenizer(PIECES), 24, objective="distilbert", settings=settings, student=STUDENT, teacher=teacher
    )
    model = task.build(BertEncoder(STUDENT))
    features = {name: tf.constant(value) for name, value in spanbert_features().items()}
    found = task.objective.loss_and_metrics(
        features, model({tensor.name: features[tensor.name] for tensor in model.inputs})
    )
    assert task.objective.losses == ("soft_loss", "mlm_loss") and found["soft_loss"][0] > 0 < found["mlm_loss"][0]


@pytest.mark.parametrize(
    "objective, settings, named",
    [
        ("mlm", {"temperature": 3.0}, ["temperature is 3.0", "'mlm'", "only distilbert"]),
        ("tinybert", {"relation_heads": 12}, ["relation_heads is 12", "'tinybert'", "only minilm"]),
        ("mlm", {"copy_layers": True}, ["copy_layers", "minilm, distilbert, tinybert"]),
        ("minilm", {"weights": (1.0, 1.0)}, ["weights is (1.0, 1.0)", "3 numbers"]),
        ("distilbert", {"weights": (0.0, 0.0, 0.0)}, ["weights", "above 0"]),
        ("minilm", {"relations": ("qq", "qq")}, ["relations", "each once"]),
        ("minilm", {"relations": ()}, ["relations is ()", "one or more"]),
        ("minilm", {"relations": ("qz",)}, ["relations[0] is 'qz'", "qq, kk, vv, qk"]),
        ("distilbert", {"temperature": 0.0}, ["temperature is 0.0", "above 0"]),
    ],
)
def test_settings_of_another_objective_and_impossible_values_are_refused_by_name(objective, settings, named):
    with raises(ConfigError, *named):
        EncoderDistillation(**settings).check(objective)
