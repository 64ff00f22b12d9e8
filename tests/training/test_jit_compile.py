"""train.jit_compile: XLA compiles what a replica computes, inside the loop of a call.

tests/training/test_xla.py compiles the whole step into one program, as on a TPU.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import ClassificationConfig, FinetuneConfig, TrainConfig
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks import TASKS
from bert_tf.text import Tokenizer
from bert_tf.training.phases import Input
from bert_tf.training.runs.run import Place, Run
from bert_tf.training.state.run_manifest import AnotherRunError, RunManifest
from bert_tf.training.strategy import create
from bert_tf.training.trainer import Trainer
from tests.errors import raises
from tests.model.small import PIECES, small_config
from tests.training.small import curve, difference, epochs, loop_of, trainer, weights_of, with_nan
from tests.training.state.test_input_state import FINE_TUNED, examples_of


def train(folder, batches=None, **settings):
    """Six updates with dropout, in calls of several: the Trainer and its History."""
    settings = {"dropout": 0.1, "total_steps": 6, "log_every": 2, "steps_per_call": 3} | settings
    trained = trainer(**settings)
    return trained, loop_of(trained, [Input(batches or epochs())], str(folder)).run()


@pytest.mark.parametrize(
    "settings, rounding",
    [
        ({"bert": False}, 1e-5),
        pytest.param({}, 1e-5, marks=pytest.mark.slow),
        pytest.param({"accumulation": 2, "recipe": "google", "remat": True}, 1e-5, marks=pytest.mark.slow),
        pytest.param({"dtype": "mixed_float16"}, 1e-3, marks=pytest.mark.slow),
        pytest.param({"dtype": "mixed_bfloat16"}, 3e-2, marks=pytest.mark.slow),
    ],
)
def test_a_compiled_run_draws_the_same_masks_and_trains_like_an_uncompiled_one(tmp_path, settings, rounding):
    # With this epsilon, Adam makes no full steps for gradients that are only rounding.
    settings = {"epsilon": 1e-3} | settings
    plain, plain_history = train(tmp_path / "plain", **settings)
    compiled, history = train(tmp_path / "compiled", jit_compile="on", **settings)
    assert difference(weights_of(plain), weights_of(compiled)) < rounding
    for one, other in zip(curve(plain_history.points), curve(history.points), strict=True):
        assert one == pytest.approx(other, rel=rounding)


@pytest.mark.slow
def test_a_compiled_run_skips_a_batch_that_is_not_finite(tmp_path):
    trained, _ = train(tmp_path, with_nan(epochs(), [1, 4]), jit_compile="on")
    assert (trained.step, trained.skipped) == (6, 2)
    assert all(np.isfinite(value).all() for value in weights_of(trained).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE_TUNED)
def test_every_fine_tuning_task_compiles_for_batches_of_few_lengths(tmp_path, name):
    tokenizer = Tokenizer(PIECES)
    task = TASKS[name].from_settings({"max_length": 20} | FINE_TUNED[name], tokenizer)
    columns = task.codec.to_tensors(list(examples_of(name)), labelled=True)

    def batches(epoch, few_lengths=True):
        return task.codec.rows.batches(
            columns, 8, seed=tf.stack([tf.constant(0, tf.int64), epoch]), few_lengths=few_lengths
        )

    rows, many = (list(batches(tf.constant(0, tf.int64), few)) for few in (True, False))
    assert {batch["input_word_ids"].shape[-1] for batch in rows} <= {16, 20}
    for one, other in zip(rows, many, strict=True):  # otherwise the same
        length = other["input_word_ids"].shape[-1]
        np.testing.assert_array_equal(one["input_word_ids"][..., :length], other["input_word_ids"])
        assert not np.any(one["input_mask"][..., length:])

    def losses(compiled):
        keras.utils.set_random_seed(0)
        strategy = create("one_device")
        model = task.build(BertEncoder(small_config(num_layers=1, dropout=0.0), dtype="float32"))
        # A partial batch and a new epoch.
        config = TrainConfig(batch_size=8, steps=14, learning_rate=1e-4, log_every=1, steps_per_call=7)
        trained = Trainer(task, model, config, strategy, config.steps, jit_compile=compiled)
        source = Input(lambda epoch: batches(epoch, compiled))
        points = loop_of(trained, [source], str(tmp_path / str(compiled)), name).run().points
        return [point["loss"] for point in points]

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-4)


def test_the_choice_is_recorded_and_a_resumed_run_keeps_it(tmp_path):
    class Nothing(Run):
        program = "finetune"

        def build_encoder(self): ...

        def evaluations(self, model): ...

    def runner(choice):
        config = FinetuneConfig(ClassificationConfig(), train=TrainConfig(jit_compile=choice))
        return Nothing(config, Place(str(tmp_path), create("one_device")), {}, {})

    assert not runner("auto").jit_compile  # on a CPU
    on = runner("on")
    assert on.record["jit_compile"]
    RunManifest(str(tmp_path), on.record).write(0)
    (tmp_path / "checkpoints").mkdir()  # what failed before its first one would choose anew
    assert runner("auto").jit_compile
    with raises(AnotherRunError, "jit_compile", "True", "False"):
        RunManifest(str(tmp_path), runner("off").record)
