"""Measures and predictions over a whole data set, every example once."""

import numpy as np
import tensorflow as tf

from bert_tf.progress import bar


def evaluator(task, model, batches, strategy, prepare=lambda features: features):
    """A function that measures the model as it is when called; it is traced once, however often it is called.

    Args:
        task: Task.
        model: what `task.build` made.
        batches: Dataset of feature dicts; the last batch may be partial.
        strategy: tf.distribute.Strategy; each batch is split over its replicas.
        prepare: function of the features of a replica's share to features, as in `phases.Input`.

    Returns:
        function without arguments to dict name -> float; "loss" is the sum of the task's losses.
    """
    names = (*task.losses, *task.metrics)
    inputs = [tensor.name for tensor in model.inputs]

    def measure(features):
        features = prepare(features)
        measures = task.measures(features, model({name: features[name] for name in inputs}, training=False))
        return tf.stack([tf.stack(measures[name]) for name in names])

    @tf.function(reduce_retracing=True)
    def measure_all(features):
        return strategy.reduce("SUM", strategy.run(measure, [features]), axis=None)

    # By data, not by file: an evaluation set is often one file.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    distributed = strategy.experimental_distribute_dataset(batches.with_options(options))

    def evaluate():
        totals = np.zeros([len(names), 2])
        with bar("evaluate", None, "batch", leave=False) as line:
            for features in distributed:
                totals += measure_all(features).numpy()
                line.update()
        measured = {name: float(total / weight) for name, (total, weight) in zip(names, totals, strict=True)}
        return {"loss": sum(measured[name] for name in task.losses)} | measured

    return evaluate


def predict(model, batches):
    """The model's outputs for every example.

    Args:
        model: keras.Model to a dict of outputs.
        batches: Dataset of feature dicts with `row`, int64 [batch].

    Yields:
        (row, dict of outputs, arrays without the batch dimension), in the order of the batches.
    """
    inputs = [tensor.name for tensor in model.inputs]
    call = tf.function(lambda features: model(features, training=False), reduce_retracing=True)
    for features in batches:
        outputs = {name: value.numpy() for name, value in call({name: features[name] for name in inputs}).items()}
        for index, row in enumerate(features["row"].numpy()):
            yield int(row), {name: value[index] for name, value in outputs.items()}
