"""Every head: against NumPy, saved, in mixed precision, its gradients, and with padding."""

import functools

import keras
import numpy as np
import pytest
import scipy.spatial
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.model.dropout import Dropout
from bert_tf.model.head_table import HEADS, build
from tests.model.numpy_bert import ACTIVATIONS, encode, linear, masked_lm_logits, tensors_of
from tests.model.small import inputs_for, multiplies_bfloat16, randomize, small_config

LABELS = 3
CONFIGS = {
    "bert": {"max_position_embeddings": 40},
    "one type, positions from 2": {"type_vocab_size": 1, "position_offset": 2, "activation": "erf_gelu"},
    "no types, no pooler": {"type_vocab_size": 0, "pooler": False, "norm": "pre"},
}
# Heads that do not need the pooler.
ON_TOKENS = tuple(name for name, head in HEADS.items() if not head.pooled)
A_TOKEN = ("tagging", "question_answering", "tagging_bilstm")  # heads with logits for each token
# Heads with layers or formulas that depend on the encoder's config. For the others, test_encoder.py has the encoders.
BY_CONFIG = ("pretraining", "masked_lm", "replaced_token_detection", "cosine")
CASES = [
    pytest.param(case, head, marks=[pytest.mark.slow] * (case != "bert" and head not in BY_CONFIG))
    for case in CONFIGS
    for head in HEADS
    if CONFIGS[case].get("pooler", True) or head in ON_TOKENS
]
# The two BiLSTM heads take seconds and differ in the states that are read, which the NumPy BERT covers.
ONE_BILSTM = [pytest.param(head, marks=[pytest.mark.slow] * (head == "tagging_bilstm")) for head in HEADS]


def _of_tokens(head, output):
    """Whether an output has logits for each token."""
    return head in A_TOKEN or output in ("slot_logits", "rtd_logits")


def make(head, *, dtype=None, scale=0.3, **config):
    encoder = BertEncoder(small_config(**config), dtype=dtype)
    labels = (2, LABELS) if head == "intent_and_slots" else LABELS if HEADS[head].labels else None
    return randomize(build(encoder, head, labels), scale=scale)


@pytest.fixture(scope="module")
def bert():
    """Function from a head to its model on BERT, which is built once for all tests that do not change it."""
    return functools.cache(functools.partial(make, **CONFIGS["bert"]))


def numpy_logits(head, model, config, inputs):
    """Logits of the head, from the paper's formulas and Hugging Face's names of the weights."""
    tensors, mask = tensors_of(model, config.hidden_size), inputs["input_mask"]
    rows = {name: value.reshape(-1, mask.shape[-1]) for name, value in inputs.items() if name.startswith("input_")}
    sequence, pooled, _ = encode(
        tensors, rows, layers=config.num_layers, heads=config.num_heads, activation=config.activation,
        norm=config.norm, position_offset=config.position_offset,
    )  # fmt: skip
    if head in ("pretraining", "masked_lm"):
        positions = inputs["masked_lm_positions"]
        logits = {"mlm_logits": masked_lm_logits(tensors, sequence, positions, activation=config.activation)}
        return logits | (numpy_following(tensors, pooled) if head == "pretraining" else {})
    if head == "next_sentence":
        return numpy_following(tensors, pooled)
    if head == "replaced_token_detection":
        hidden = linear(tensors, sequence, "discriminator_predictions.dense")
        logits = linear(tensors, ACTIVATIONS[config.activation](hidden), "discriminator_predictions.dense_prediction")
        return {"rtd_logits": logits[..., 0]}
    if head == "question_answering":
        logits = linear(tensors, sequence, "qa_outputs")
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    if head == "intent_and_slots":
        intents, slots = linear(tensors, pooled, "intent"), linear(tensors, sequence, "slots")
        return {"intent_logits": intents, "slot_logits": slots}
    if head == "multiple_choice":
        return {"logits": linear(tensors, pooled, "classifier").reshape(mask.shape[:2])}
    if head == "cosine":
        texts = [states[there == 1].mean(0) for states, there in zip(sequence, rows["input_mask"], strict=True)]
        distances = [scipy.spatial.distance.cosine(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
        return {"logits": 1 - np.array(distances)[:, np.newaxis]}
    if head == "classification_vector":
        vectors = np.stack([states[there == 1].mean(0) for states, there in zip(sequence, mask, strict=True)])
        return {"logits": linear(tensors, vectors, "classifier"), "vector": vectors}
    if head.endswith("_bilstm"):
        states = numpy_bilstm(model, sequence, mask, sequences=head == "tagging_bilstm")
        return {"logits": linear(tensors, states, "classifier")}
    return {"logits": linear(tensors, sequence if head == "tagging" else pooled, "classifier")}


def numpy_bilstm(model, states, mask, *, sequences):
    """Hochreiter and Schmidhuber's cell with forget gates, one row and direction at a time; 0 at padding."""
    weights = {variable.path: variable.numpy().astype(np.float64) for variable in model.weights}
    for layer in range(2):
        size = weights[f"bilstm_{layer}_forward/lstm_cell/recurrent_kernel"].shape[0]
        every, last = np.zeros([*mask.shape, 2 * size]), np.zeros([len(mask), 2 * size])
        for row, length in enumerate(mask.sum(-1)):
            for way, half in (("forward", slice(0, size)), ("backward", slice(size, None))):
                cell = f"bilstm_{layer}_{way}/lstm_cell"
                hidden, memory = np.zeros(size), np.zeros(size)
                for place in range(length) if way == "forward" else reversed(range(length)):
                    gates = (
                        states[row, place] @ weights[f"{cell}/kernel"] + hidden @ weights[f"{cell}/recurrent_kernel"]
                    )
                    take, forget, new, give = np.split(gates + weights[f"{cell}/bias"], 4)
                    memory = sigmoid(forget) * memory + sigmoid(take) * np.tanh(new)
                    hidden = sigmoid(give) * np.tanh(memory)
                    every[row, place, half] = hidden
                last[row, half] = hidden
        states = every
    return states if sequences else last


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_following(tensors, pooled):
    return {"nsp_logits": linear(tensors, pooled, "cls.seq_relationship")}


def assert_close_at_tokens(head, got, want, mask, atol):
    """Outputs of a head at padding are meaningless."""
    assert got.keys() == want.keys()
    for name, value in got.items():
        tokens = mask == 1 if _of_tokens(head, name) else ...
        np.testing.assert_allclose(value.numpy()[tokens], want[name][tokens], atol=atol)


@pytest.mark.parametrize("case, head", CASES)
def test_logits_equal_a_numpy_bert(case, head, bert):
    model, inputs = bert(head) if case == "bert" else make(head, **CONFIGS[case]), inputs_for(head)
    want = numpy_logits(head, model, small_config(**CONFIGS[case]), inputs)
    assert_close_at_tokens(head, model(inputs), want, inputs["input_mask"], atol=1e-5)


@pytest.mark.parametrize(
    "head",
    [
        # Those whose layers are in no other head of the list.
        pytest.param(
            head, marks=[pytest.mark.slow] * (head in ("masked_lm", "next_sentence") or head.endswith("_bilstm"))
        )
        for head in HEADS
    ],
)
def test_the_model_is_restored_from_a_keras_file(tmp_path, head, bert):
    model, inputs = bert(head), inputs_for(head)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [variable.path for variable in again.weights] == [variable.path for variable in model.weights]
    tf.nest.map_structure(np.testing.assert_array_equal, model(inputs), again(inputs))


@multiplies_bfloat16
@pytest.mark.parametrize(
    "head", [pytest.param(head, marks=[pytest.mark.slow] * head.endswith("_bilstm")) for head in HEADS]
)
def test_logits_are_float32_and_close_to_those_of_float32_in_mixed_precision(head):
    exact, mixed = make(head, scale=0.1), make(head, scale=0.1, dtype="mixed_bfloat16")
    inputs = inputs_for(head)
    want, got = exact(inputs), mixed(inputs)
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert value.dtype == tf.float32
        assert 0 < np.abs(value - want[name]).max() < 0.05 * np.abs(want[name]).max() + 0.02


def gradients_of(model, inputs):
    """dict path -> gradient of a random combination of all outputs, None if no output depends on the variable."""
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True).values()
        rng = np.random.default_rng(0)
        loss = tf.add_n([tf.reduce_sum(value * rng.normal(size=value.shape)) for value in outputs])
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    return {
        variable.path: None if gradient is None else tf.convert_to_tensor(gradient).numpy()
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True)
    }


@pytest.mark.parametrize("head", ONE_BILSTM)
def test_the_gradient_flows_into_every_variable(head, bert):
    gradients = gradients_of(bert(head), inputs_for(head))
    still = {path for path, gradient in gradients.items() if gradient is None or not gradient.any()}
    assert still == ({"pooler/kernel", "pooler/bias"} if head in ON_TOKENS else set())


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("head", ["classification", "tagging", "multiple_choice"])
def test_a_classifier_applies_dropout_to_its_input_in_training(head, rate):
    model, inputs = make(head, dropout=rate, attention_dropout=0.0), inputs_for(head)
    for layer in model._flatten_layers():
        if isinstance(layer, Dropout) and layer is not model.get_layer("dropout"):
            layer.rate = 0.0  # no dropout in the encoder: the difference comes from the head
    still, noisy = model(inputs)["logits"].numpy(), model(inputs, training=True)["logits"].numpy()
    assert (np.abs(noisy - still).max() > 0.01) == (rate > 0)


def test_a_single_token_type_and_the_used_positions_get_gradients():
    inputs = {name: value[:, :20] for name, value in inputs_for("tagging").items()}
    gradients = gradients_of(make("tagging", type_vocab_size=1, position_offset=2), inputs)
    positions, types = gradients["embeddings/position_embeddings"], gradients["embeddings/type_embeddings"]
    in_use = positions.any(-1)
    np.testing.assert_array_equal(in_use, (np.arange(26) >= 2) & (np.arange(26) < 22))
    # Each token adds the same gradient to its position and to its type.
    np.testing.assert_allclose(types, positions.sum(0, keepdims=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", ONE_BILSTM)
def test_padding_changes_no_answer(head, bert):
    model, inputs = bert(head), inputs_for(head)
    width = inputs["input_mask"].shape[-1]
    if "masked_lm_positions" in inputs:
        last = inputs["input_mask"].sum(-1) - 1
        inputs["masked_lm_positions"] = np.stack([last // 2, last], -1)  # at tokens
    longer = {
        name: np.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, 9)]) if name.startswith("input_") else value
        for name, value in inputs.items()
    }
    longer["input_word_ids"][longer["input_mask"] == 0] = 11  # nor does it matter which ids are there
    got = model(longer)
    got = {name: value[:, :width] if _of_tokens(head, name) else value for name, value in got.items()}
    want = {name: value.numpy() for name, value in model(inputs).items()}
    assert_close_at_tokens(head, got, want, inputs["input_mask"], atol=5e-6)


def test_each_choice_is_scored_independently(bert):
    model, inputs = bert("multiple_choice"), inputs_for("multiple_choice")  # [2, 2, length]
    together = model(inputs)["logits"].numpy()
    for choice in range(2):
        alone = model({name: value[:, choice : choice + 1] for name, value in inputs.items()})["logits"]
        np.testing.assert_allclose(alone, together[:, choice : choice + 1], atol=1e-5)
