"""Trains on several replicas, in its own process: python -m tests.training.replicas STRATEGY FOLDER CASE..."""

import contextlib
import os
import sys
import unittest.mock

import numpy as np

from bert_tf.model.compute import converted
from bert_tf.model.encoder import encoder_of, ranges_of
from bert_tf.model.precision.int8 import rounded_forms
from bert_tf.model.ranges import Ranges
from bert_tf.training import evaluation, optimizers
from bert_tf.training.phases import Input
from bert_tf.training.strategy import create, is_chief
from tests.training import several_fits
from tests.training.processes import virtual_devices
from tests.training.small import epochs, loop_of, trainer, weights_of, with_nan

CASES = {
    # Batches of 8 and 3 alternate, in four microbatches: one of those of the second is empty. The limit is so low that
    # clipping the part of each replica, or clipping before the sum, would change the direction. The third batch, the
    # first of the second epoch, is NaN in its last row: on the second replica only.
    "uneven": {
        "examples": 11, "accumulation": 2, "optimizer": "lamb", "clip_norm": 0.05, "bert": False, "bad_steps": [12],
    },
    "uneven BERT": {"examples": 11, "accumulation": 2, "optimizer": "lamb", "clip_norm": 0.05},
    "clipped": {"clip_norm": 0.05, "optimizer": "radam", "remat": True},
    "compiled": {"clip_norm": 0.05, "jit_compile": "on", "accumulation": 2},
    "int8": {"quantization": "int8"},
    # The mean of each replica, clipped separately, then summed.
    "google": {"recipe": "google", "clip_norm": 0.05, "warmup_steps": 2},
    # The third batch overflows in its last row.
    "half": {"dtype": "mixed_float16", "loss_scale_growth": 2, "bad_steps": [2]},
}  # fmt: skip


def train(strategy, folder, case, **changes):
    """dict name -> array: weights, slots, loss scale and metrics after a few updates with `strategy`."""
    settings = CASES[case] | changes
    batches = epochs(examples=settings.pop("examples", 96))
    batches = with_nan(batches, settings.pop("bad_steps", [-1]), first_row=7)
    trained = trainer(strategy, total_steps=5, log_every=1, **settings)
    scope, calibration = contextlib.nullcontext(), ()
    if trained.config.quantization == "int8":
        encoder = encoder_of(trained.model)
        with strategy.scope():
            encoder.ranges = Ranges(encoder.blocks())
        scope, calibration = converted(rounded_forms(encoder)), batches(0).take(1)
    # So small that matrices are updated by the compiled program and biases by TensorFlow's kernel, as in large models.
    with unittest.mock.patch.object(optimizers, "_COMPILED", 256), scope:
        history = loop_of(
            trained, [Input(batches)], os.path.join(folder, case), case, calibration=lambda: calibration
        ).run()
        measured = evaluation.evaluator(trained.task.objective, trained.model, epochs(examples=21)(0), strategy)()
    found = weights_of(trained) | {"loss_scale": trained.loss_scale.variable.numpy()}
    variables = {weight.path: weight for weight in trained.model.weights}
    if settings.get("bert", True):
        variables |= ranges_of(trained.model).by_path
    for path, variable in {path: one.value for path, one in variables.items()}.items():
        first, *others = (copy.numpy() for copy in strategy.experimental_local_results(variable))
        assert all(np.array_equal(first, other) for other in others), f"the replicas differ in {path}"
    for name in {"loss", "mlm_accuracy", "gradient_norm"} & history.points[0].keys():
        found[f"curve/{name}"] = np.array([point[name] for point in history.points])
    found["evaluation"] = np.array([measured[name] for name in sorted(measured)])
    return found


def main(name, folder, *cases):
    if name == "mirrored":
        virtual_devices(2)
    strategy = create(name)
    assert strategy.num_replicas_in_sync == 2
    for case in cases:
        if case == "fits":
            several_fits.main(folder)
            continue
        found = train(strategy, folder, case)
        if is_chief(strategy):
            np.savez(os.path.join(folder, f"{case}.npz"), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
