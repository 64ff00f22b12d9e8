import threading

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax, softmax

from bert_tf.training.evaluation import DistributedPredictor, evaluator, means
from tests.model.small import PIECES
from tests.training import answers, processes
from tests.training.small import epochs, trainer

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")


@pytest.fixture(scope="module")
def trained():
    return trainer()


@pytest.mark.parametrize("batch_size", [8, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 21, 64))])
def test_every_example_counts_once_for_any_batch_size(trained, batch_size):
    # By hand, over all 21 at once.
    (rows,) = epochs(21, examples=21)(0).as_numpy_iterator()
    inputs = {tensor.name: rows[tensor.name] for tensor in trained.model.inputs}
    outputs = trained.model(inputs, training=False)
    masks = rows["masked_lm_weights"]
    logits = outputs["mlm_logits"].numpy().astype("float64")
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    right = logits.argmax(-1) == rows["masked_lm_ids"]
    picked = np.take_along_axis(logits, rows["masked_lm_ids"][..., None], -1)[..., 0]

    measured = evaluator(trained.task.objective, trained.model, epochs(batch_size, examples=21)(0), STRATEGY)()

    assert measured["mlm_loss"] == pytest.approx(-(picked * masks).sum() / masks.sum(), rel=1e-5)
    assert measured["mlm_accuracy"] == pytest.approx((right * masks).sum() / masks.sum(), abs=1e-6)
    nsp = outputs["nsp_logits"].numpy().argmax(-1) == rows["next_sentence_labels"]
    assert measured["nsp_accuracy"] == pytest.approx(nsp.mean(), abs=1e-6)
    assert measured["loss"] == pytest.approx(measured["mlm_loss"] + measured["nsp_loss"])


def test_metrics_without_targets_are_left_out(trained):
    names = (*trained.task.objective.losses, "nsp_accuracy")
    assert names == ("mlm_loss", "nsp_loss", "nsp_accuracy")
    assert means(trained.task.objective, names, np.array([[6.0, 2.0], [0, 0], [0, 0]])) == {
        "loss": 3.0,
        "mlm_loss": 3.0,
    }
    assert means(trained.task.objective, names, np.zeros([3, 2])) == {}
    diverged = means(trained.task.objective, names, np.array([[np.nan, 2.0], [0, 0], [0, 0]]))
    assert diverged.keys() == {"loss", "mlm_loss"} and np.isnan([*diverged.values()]).all()


def test_evaluation_uses_no_dropout():
    noisy = trainer(dropout=0.5)
    first, second = (evaluator(noisy.task.objective, noisy.model, epochs()(0), STRATEGY)() for _ in range(2))
    assert first == second


@pytest.fixture(scope="module")
def by_hand():
    """Probabilities of each example, loss and accuracy over all windows; the model is called for each separately."""
    _, model = answers.model_on(STRATEGY)
    probabilities, losses, right = [], [], []
    for example in answers.examples():
        letters, label = example.texts[0].split(), answers.LABELS.index(example.label)
        starts = range(0, max(len(letters), 1), answers.WINDOW)
        logits = []
        for start in starts:
            ids = [2, *(PIECES.index(letter) for letter in letters[start : start + answers.WINDOW]), 3]
            row = {"input_word_ids": [ids], "input_mask": [[1] * len(ids)], "input_type_ids": [[0] * len(ids)]}
            row = {name: tf.constant(value) for name, value in row.items()}
            logits.append(model(row, training=False)["logits"].numpy()[0].astype("float64"))
            losses.append(-log_softmax(logits[-1])[label])
            right.append(logits[-1].argmax() == label)
        probabilities.append(softmax(np.mean(logits, 0)))
    return np.array(probabilities), [np.mean(losses), np.mean(right)]


def assert_same(found, by_hand):
    probabilities, measured = by_hand
    for size in answers.BATCH_SIZES:
        np.testing.assert_allclose(found[f"{size}/probabilities"], probabilities, atol=1e-5, err_msg=size)
        np.testing.assert_allclose(found[f"{size}/measured"], measured, rtol=1e-5, err_msg=size)


def test_every_example_is_predicted_once_and_in_order_for_any_batch_size(by_hand):
    assert_same(answers.answers(STRATEGY), by_hand)


def test_a_model_that_was_traced_in_a_thread_is_not_traced_again_for_batches_of_any_shape(monkeypatch):
    task, model = answers.model_on(STRATEGY)
    traces, postprocess = [], task.codec.postprocess
    monkeypatch.setattr(task.codec, "postprocess", lambda *arguments: traces.append(0) or postprocess(*arguments))
    answer = DistributedPredictor(task, model, STRATEGY, labelled=True)
    columns = task.codec.to_tensors(answers.examples(), labelled=True)
    thread = threading.Thread(target=answer.trace, args=[task.codec.rows.batches(columns, 4)])
    thread.start()
    thread.join()
    assert len(traces) == 1
    for size in answers.BATCH_SIZES:
        answer(columns, task.codec.rows.batches(columns, size))
    assert len(traces) == 1


@pytest.mark.slow
def test_three_replicas_give_the_answers_of_one_even_if_one_has_no_rows(by_hand, tmp_path):
    processes.finish(processes.start("tests.training.answers", 3, tmp_path / "answers.npz"))
    assert_same(np.load(tmp_path / "answers.npz"), by_hand)
