"""Evaluates a model on several replicas, in its own process: python -m tests.training.answers REPLICAS FILE."""

import sys

import numpy as np

from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import DistributedPredictor
from bert_tf.training.strategy import create
from tests.model.small import PIECES, randomize, small_config
from tests.training.processes import virtual_devices

LABELS, WINDOW = ("x", "y", "z"), 6
# The last batch has 1, 5, 2 or all rows; with 2, one of three replicas gets none.
BATCH_SIZES = (1, 6, 9, 64)


def examples(count=29, seed=0):
    """Texts of zero letters to three windows; their 47 rows are not sorted like the examples."""
    rng = np.random.default_rng(seed)
    letters = (rng.choice(list("abcdefgh"), rng.integers(0, 3 * WINDOW)) for _ in range(count))
    return [TextExample(str(n), (" ".join(some),), LABELS[n % 3], f"file:{n}") for n, some in enumerate(letters)]


def model_on(strategy):
    """A task whose long texts are split into windows, and its model, the same on any strategy."""
    config = ClassificationConfig(max_length=WINDOW + 2, long_texts="window")
    task = Classification(Tokenizer(PIECES), config, labels=LABELS, pair=False)
    with strategy.scope():
        model = task.build(BertEncoder(small_config(num_layers=1), dtype="float32"))
    return task, randomize(model)


def answers(strategy):
    """dict name -> array: the probabilities for each batch size, and loss and accuracy over the rows."""
    task, model = model_on(strategy)
    answer, found = DistributedPredictor(task, model, strategy, labelled=True), {}
    for size in BATCH_SIZES:
        columns = task.codec.to_tensors(examples(), labelled=True)
        given, measured = answer(columns, task.codec.rows.batches(columns, size))
        found[f"{size}/probabilities"] = given["probabilities"]
        found[f"{size}/measured"] = np.array([measured["loss"], measured["accuracy"]])
    return found


def main(replicas, file):
    virtual_devices(int(replicas))
    strategy = create("mirrored")
    assert strategy.num_replicas_in_sync == int(replicas)
    np.savez(file, **answers(strategy))


if __name__ == "__main__":
    main(*sys.argv[1:])
