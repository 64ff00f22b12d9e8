"""Packed rows of several sequences against the same sequences in separate rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.inputs.corpus.packed_rows import fill_rows, join_rows
from bert_tf.model.positions import PackedPositions
from bert_tf.tasks import MaskedLM, Pretraining
from bert_tf.text import Tokenizer
from tests.model.small import FAMILY, PIECES, PRUNED, randomize, small_config

LENGTH, PREDICTIONS, SEQUENCES = 24, 4, 30


def sequences(seed=0):
    """Masked sequences, each padded to its own row: features and lengths."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, LENGTH + 1, SEQUENCES)
    masks = np.arange(PREDICTIONS) < np.maximum(1, np.round(0.15 * lengths))[:, None]
    inside = np.arange(LENGTH) < lengths[:, None]
    places = np.stack([np.sort(random.permutation(5)[:PREDICTIONS]) for _ in lengths])
    features = {
        "input_word_ids": np.where(inside, random.integers(5, len(PIECES), inside.shape), 0),
        "input_mask": inside,
        "input_type_ids": np.where(inside, random.integers(0, 2, inside.shape), 0),
        "masked_lm_positions": np.where(masks, places, 0),
        "masked_lm_ids": np.where(masks, random.integers(5, len(PIECES), masks.shape), 0),
        "next_sentence_labels": random.integers(0, 2, SEQUENCES),
    }
    features = {name: tf.constant(value, tf.int32) for name, value in features.items()}
    return features | {"masked_lm_weights": tf.constant(masks, tf.float32)}, tf.constant(lengths, tf.int32)


def packed(features, lengths, labels=True):
    """The same sequences, several per row."""
    predictions = tf.cast(tf.reduce_sum(features["masked_lm_weights"], 1), tf.int32)
    limits = {"max_length": LENGTH, "max_predictions": PREDICTIONS}
    order, counts = fill_rows(lengths, predictions, [3, 4], **limits)
    chosen = {name: tf.gather(value, order) for name, value in features.items() if labels or "sentence" not in name}
    return join_rows(chosen, tf.gather(lengths, order), counts, max_pairs=LENGTH // 5, **limits)


def learn(task, model, features):
    """Sum of the normalized losses, and the gradients by variable path."""
    with tf.GradientTape() as tape:
        outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=True)
        metrics, weights = task.objective.loss_and_metrics(features, outputs), task.objective.weights(features)
        loss = sum(metrics[name][0] / weights[name] for name in task.objective.losses)
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    paths = [variable.path for variable in model.trainable_variables]
    dense = {path: tf.convert_to_tensor(gradient).numpy() for path, gradient in zip(paths, gradients, strict=True)}
    return metrics, float(loss), dense


@pytest.mark.parametrize(
    "kind, shape",
    [
        (Pretraining, {"norm": "pre", "position_offset": 2}),
        (Pretraining, FAMILY["albert"]),
        (Pretraining, PRUNED),
        (MaskedLM, {}),
    ],
)
def test_packed_rows_have_the_loss_the_metrics_and_the_gradients_of_their_sequences(kind, shape):
    task = kind(Tokenizer(PIECES), LENGTH)
    pooler = kind is Pretraining
    config = small_config(dropout=0.0, attention_dropout=0.0, pooler=pooler, **shape)
    alone, together = (task.build(BertEncoder(config, packed=packed)) for packed in (False, True))
    randomize(alone, scale=0.2)
    assert [variable.path for variable in together.weights] == [variable.path for variable in alone.weights]
    together.set_weights(alone.get_weights())
    features, lengths = sequences()
    rows = packed(features, lengths, labels=pooler)
    assert len(rows["input_mask"]) < 0.8 * SEQUENCES and np.max(rows["input_mask"]) >= 2
    expected, expected_loss, expected_gradients = learn(task, alone, features)
    metrics, loss, gradients = learn(task, together, rows)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert float(metrics.pop("padding_share")[0]) < float(expected.pop("padding_share")[0]) / 2
    for name in expected:
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-5, err_msg=name)
    for path, gradient in expected_gradients.items():
        assert np.abs(gradients[path] - gradient).max() <= 1e-5 * np.abs(gradient).max(), path


def small_rows():
    return packed(*sequences())


def test_a_sequence_does_not_attend_to_its_neighbours_nor_they_to_it():
    encoder = randomize(BertEncoder(small_config(), packed=True))
    rows = {tensor.name: small_rows()[tensor.name] for tensor in encoder.inputs}
    second = rows["input_mask"] == 2
    changed = rows | {"input_word_ids": tf.where(second, 5, rows["input_word_ids"])}
    before, after = (encoder(features)["sequence_output"].numpy() for features in (rows, changed))
    same = np.all(before == after, -1)
    assert same[~second].all() and not same[second].all()


def test_a_row_of_one_sequence_gives_the_outputs_of_the_unpacked_encoder():
    config = small_config()
    alone, together = randomize(BertEncoder(config)), BertEncoder(config, packed=True)
    together.set_weights(alone.get_weights())
    features, lengths = sequences()
    features = {tensor.name: features[tensor.name] for tensor in alone.inputs}
    first = {"first_token_positions": tf.zeros([SEQUENCES, 1], tf.int32)}
    ones, others = alone(features), together(features | first)
    np.testing.assert_allclose(others["pooled_output"][:, 0], ones["pooled_output"], atol=1e-5)
    inside = tf.sequence_mask(lengths)
    for one, other in zip(ones["encoder_outputs"], others["encoder_outputs"], strict=True):
        np.testing.assert_allclose(other[inside], one[inside], atol=1e-5)


def test_positions_restart_with_each_sequence():
    mask = tf.constant([[1, 1, 1, 2, 3, 3, 0], [1, 0, 0, 0, 0, 0, 0], [1, 1, 2, 2, 2, 2, 2]])
    positions = PackedPositions()(mask).numpy()
    assert positions[np.asarray(mask) > 0].tolist() == [0, 1, 2, 0, 0, 1, 0, 0, 1, 0, 1, 2, 3, 4]
    assert positions.max() < 7  # positions of padding are rows of the table too


@pytest.mark.slow  # as in tests/training/test_xla.py
def test_a_packed_model_gives_the_same_outputs_with_xla():
    model = randomize(Pretraining(Tokenizer(PIECES), LENGTH).build(BertEncoder(small_config(), packed=True)))
    rows = {tensor.name: small_rows()[tensor.name] for tensor in model.inputs}
    compiled = tf.function(model, jit_compile=True)(rows)
    for name, value in model(rows).items():
        np.testing.assert_allclose(compiled[name], value, rtol=1e-4, atol=1e-4)


def test_a_packed_encoder_is_restored_as_packed_by_keras(tmp_path):
    encoder = BertEncoder(small_config(), packed=True)
    encoder.save(tmp_path / "encoder.keras")
    again = keras.saving.load_model(tmp_path / "encoder.keras")
    rows = {tensor.name: small_rows()[tensor.name] for tensor in encoder.inputs}
    np.testing.assert_array_equal(again(rows)["pooled_output"], encoder(rows)["pooled_output"])
