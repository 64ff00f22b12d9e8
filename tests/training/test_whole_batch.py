"""Losses about whole batches: the same gradients in parts, in micro-batches and on replicas as at once."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.inputs.batching import microbatch
from bert_tf.model.mode import Mode, Seeds
from bert_tf.training.strategy import create
from bert_tf.training.whole_batch import WholeBatch
from tests.training.embeddings import EXAMPLES, features_of, model_of, task_of, train
from tests.training.processes import finish, start
from tests.training.small import difference


def mode(seed):
    return Mode(seeds=Seeds(seed))


def gradients(model, task, features, count, parts):
    """The gradients of a batch in `count` micro-batches, and the mean loss."""
    batches = [microbatch(features, number, count) for number in range(count)]
    seeds = [tf.constant([1, number]) for number in range(count)]
    rows = tf.constant(float(len(EXAMPLES)))
    found, metrics = tf.function(WholeBatch(task.objective, model, parts).gradients)(
        batches, seeds, mode, rows, tf.constant(1.0)
    )
    return [one.numpy() for one in found], float(metrics[0, 0] / metrics[0, 1])


@pytest.fixture(scope="module")
def task():
    return task_of(both_directions=True)


@pytest.fixture(scope="module")
def features(task):
    return features_of(task)


def test_gradients_in_parts_and_micro_batches_are_those_of_the_whole_batch(task, features):
    model = model_of(task)
    with tf.GradientTape() as tape:
        outputs = [model(piece, training=True) for piece in task.objective.pieces(features)]
        vectors = task.objective.joined(outputs, features)
        loss, _ = task.objective.joint_loss(vectors, task.objective.known(features))["loss"]
        loss /= len(EXAMPLES)
    variables = [variable.value for variable in model.trainable_variables]
    expected = tape.gradient(loss, variables, unconnected_gradients="zero")
    for count, parts in ((1, 1), (1, 2), (3, 2)):
        found, own_loss = gradients(model, task, features, count, parts)
        assert own_loss == pytest.approx(float(loss), rel=1e-5)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, tf.convert_to_tensor(other), rtol=1e-3, atol=1e-6)


def test_a_micro_batch_is_computed_again_with_the_same_dropout_masks(task, features):
    model = model_of(task, dropout=0.3)
    whole_batch = WholeBatch(task.objective, model, 1)
    batches = [microbatch(features, number, 2) for number in range(2)]
    seeds = [tf.constant([1, number]) for number in range(2)]
    with tf.GradientTape() as tape:  # over both at once
        outputs = [whole_batch._outputs(*one, mode) for one in zip(batches, seeds, strict=True)]
        vectors = {"vectors": tf.concat([one["vectors"] for one in outputs], 0)}
        loss, _ = task.objective.joint_loss(vectors, task.objective.known(features))["loss"]
        loss /= len(EXAMPLES)
    variables = [variable.value for variable in model.trainable_variables]
    expected = tape.gradient(loss, variables, unconnected_gradients="zero")
    found, _ = gradients(model, task, features, 2, 1)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, tf.convert_to_tensor(other), rtol=1e-3, atol=1e-6)


def test_a_batch_of_a_single_pair_changes_nothing_but_is_no_error(task):
    model = model_of(task)
    found, loss = gradients(model, task, features_of(task, EXAMPLES[:1]), 1, 2)
    assert loss == 0.0 and not any(one.any() for one in found)


@pytest.mark.slow
def test_two_replicas_find_the_negatives_of_both(tmp_path):
    finish(start("tests.training.embeddings", tmp_path))
    one, two = train(create("one_device"), tmp_path / "one"), np.load(tmp_path / "two.npz")
    assert difference(one, two) < 1e-4
    np.testing.assert_allclose(one["loss"], two["loss"], rtol=1e-5)
    again = train(create("one_device"), tmp_path / "cached", accumulation=2)
    assert difference(one, again) < 1e-4
