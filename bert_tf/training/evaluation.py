"""Measures and predictions over a whole data set, every example once."""

import math

import numpy as np
import tensorflow as tf

from bert_tf.inputs.batching import microbatch
from bert_tf.progress import bar


def means(task, names, totals):
    """Means of a task's metrics.

    Args:
        task: Task.
        names: of the metrics, the task's losses among them.
        totals: a (sum, weight) for each.

    Returns:
        dict name -> float, nan where nothing was measured; "loss" is the sum of the task's losses.
    """
    pairs = zip(names, totals, strict=True)
    measured = {name: float(total / weight) if weight else math.nan for name, (total, weight) in pairs}
    return {"loss": sum(measured[name] for name in task.losses)} | measured


def evaluator(task, model, batches, strategy, prepare=lambda features: features):
    """A function that metrics the model as it is when called; it is traced once, however often it is called.

    Args:
        task: Task.
        model: what `task.build` made.
        batches: Dataset of feature dicts; the last batch may be partial.
        strategy: tf.distribute.Strategy; each batch is split over its replicas.
        prepare: function of the features of a replica's share to features, as in `phases.Input`.

    Returns:
        function without arguments to dict name -> float; "loss" is the sum of the task's losses.
    """
    names = (*task.losses, *task.metric_names)
    inputs = [tensor.name for tensor in model.inputs]

    def measure(features):
        features = prepare(features)
        outputs = model({name: features[name] for name in inputs}, training=False)
        return _loss_and_metrics(task, names, features, outputs)

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
        return means(task, names, totals)

    return evaluate


def answering(task, model, strategy, *, labelled):
    """A function that has the model answer examples; it is traced once, however often it is called.

    Each batch is cut over the replicas of this process; of several processes each answers everything, so that all come
    to the same figures without a word.

    Args:
        task: FineTuningTask.
        model: what `task.build` made.
        strategy: tf.distribute.Strategy.
        labelled: whether to measure, too.

    Returns:
        function of (columns, as `task.to_tensors` makes them; batch_size) to (answers, dict of arrays [examples, ...] as
        `task.aggregate_windows` gives; dict name -> float, the task's losses and metrics over all rows, empty unless `labelled`).
    """
    names = (*task.losses, *task.metric_names) if labelled else ()
    inputs = [tensor.name for tensor in model.inputs]
    replicas = len(strategy.extended.worker_devices)

    def on_replica(features):
        outputs = model({name: features[name] for name in inputs}, training=False)
        return task.postprocess(features, outputs), _loss_and_metrics(task, names, features, outputs)

    @tf.function(reduce_retracing=True)
    def answer(features):
        def share(context):
            return microbatch(features, context.replica_id_in_sync_group % replicas, replicas)

        decoded, metrics = strategy.run(on_replica, (strategy.experimental_distribute_values_from_function(share),))
        local = strategy.experimental_local_results
        return {name: tf.concat(local(value), 0) for name, value in decoded.items()}, tf.add_n(local(metrics))

    def answers(columns, batch_size):
        origins, found, totals = [], [], np.zeros([len(names), 2])
        with bar("evaluate" if labelled else "predict", None, "batch", leave=False) as line:
            for features in task.batches(columns, batch_size):
                decoded, metrics = answer(features)
                origins.append(np.stack([features["row"], features["window"]], 1))
                found.append({name: value.numpy() for name, value in decoded.items()})
                totals += metrics.numpy()
                line.update()
        origins = np.concatenate(origins)
        order = np.lexsort(origins.T[::-1])
        decoded = {name: _stacked([some[name] for some in found])[order] for name in found[0]}
        merged = task.aggregate_windows(columns, tf.constant(origins[order, 0]), decoded)
        return {name: value.numpy() for name, value in merged.items()}, means(task, names, totals) if labelled else {}

    return answers


def _loss_and_metrics(task, names, features, outputs):
    """float32 [names, 2]: the (sum, weight) of each."""
    metrics = task.loss_and_metrics(features, outputs) if names else {}
    return tf.reshape([metrics[name] for name in names], [len(names), 2])


def _stacked(arrays):
    """Arrays [rows, ...] as one; where other dimensions differ, they are filled up with 0."""
    shape = np.max([array.shape[1:] for array in arrays], 0).astype(int) if arrays[0].ndim > 1 else []
    whole = np.zeros([sum(map(len, arrays)), *shape], arrays[0].dtype)
    first = 0
    for array in arrays:
        whole[(slice(first, first + len(array)), *map(slice, array.shape[1:]))] = array
        first += len(array)
    return whole
