import numpy as np
import pytest
import tensorflow as tf

from bert_tf.training.evaluation import evaluator
from tests.training.small import epochs, trainer

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")


@pytest.fixture(scope="module")
def trained():
    return trainer()


@pytest.mark.parametrize("batch_size", [1, 8, 21, 64])
def test_every_example_counts_once_whatever_the_batches(trained, batch_size):
    # By hand, over all 21 at once.
    (rows,) = epochs(21, examples=21)(0).as_numpy_iterator()
    inputs = {tensor.name: rows[tensor.name] for tensor in trained.model.inputs}
    outputs = trained.model(inputs, training=False)
    masks = rows["masked_lm_weights"]
    logits = outputs["mlm_logits"].numpy().astype("float64")
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    right = logits.argmax(-1) == rows["masked_lm_ids"]
    picked = np.take_along_axis(logits, rows["masked_lm_ids"][..., None], -1)[..., 0]

    measured = evaluator(trained.task, trained.model, epochs(batch_size, examples=21)(0), STRATEGY)()

    assert measured["mlm_loss"] == pytest.approx(-(picked * masks).sum() / masks.sum(), rel=1e-5)
    assert measured["mlm_accuracy"] == pytest.approx((right * masks).sum() / masks.sum(), abs=1e-6)
    nsp = outputs["nsp_logits"].numpy().argmax(-1) == rows["next_sentence_labels"]
    assert measured["nsp_accuracy"] == pytest.approx(nsp.mean(), abs=1e-6)
    assert measured["loss"] == pytest.approx(measured["mlm_loss"] + measured["nsp_loss"])


def test_evaluation_uses_no_dropout():
    noisy = trainer(dropout=0.5)
    first, second = (evaluator(noisy.task, noisy.model, epochs()(0), STRATEGY)() for _ in range(2))
    assert first == second
