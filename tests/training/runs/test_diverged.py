"""A run that ends with a model whose answers mean nothing is an error, and does not write that model."""

import dataclasses
import functools
import json
import math
import types

import keras
import pytest
import tensorflow as tf

from bert_tf.checkpoints import directory
from bert_tf.config import ClassificationConfig, FinetuneConfig, RegressionConfig, TrainConfig
from bert_tf.errors import DataError
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training import phases
from bert_tf.training.runs import finetuning, run, sweep
from tests.errors import raises
from tests.model.small import PIECES, small_config

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
TRAIN = TrainConfig(batch_size=4, steps=2, dtype="float32", log_every=2, steps_per_call=2)
CLASSES = FinetuneConfig(task=ClassificationConfig(max_length=8), train=TRAIN)


@pytest.fixture
def pretrained(tmp_path):
    """A function that writes a model with this number in the first row of each table of positions."""

    def write(value):
        encoder = BertEncoder(small_config(num_layers=1), dtype="float32")
        task = Pretraining(Tokenizer(PIECES), 8)
        model = task.build(encoder)
        table = encoder.embeddings.position_embeddings
        table.assign(tf.tensor_scatter_nd_update(table, [[0]], tf.fill([1, table.shape[1]], value)))
        directory.save(str(tmp_path / "pretrained"), model, encoder, task)
        return str(tmp_path / "pretrained")

    return write


def write_tables(folder, labels, validation=("x", "y")):
    for name, chosen in (("train", labels), ("dev", validation)):
        rows = "".join(f"the {letter}\t{label}\n" for letter, label in zip("abcdefgh", chosen, strict=False))
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + rows)
    return str(folder)


def assert_diverges(model, *arguments):
    with raises(run.DivergedError, "no model") as caught:
        finetuning.finetune(*arguments, str(model), STRATEGY)
    assert caught.value.exit_status == 1
    assert not {"config.json", "model.safetensors", "results.json"} & {path.name for path in model.iterdir()}
    return str(caught.value)


def test_weights_that_are_nan_are_an_error_and_no_model(tmp_path, pretrained, monkeypatch):
    monkeypatch.setattr(phases, "learning_rate", lambda _: lambda step: tf.constant(math.nan))
    arguments = CLASSES, write_tables(tmp_path, "xyxy"), pretrained(0.0)
    message = assert_diverges(tmp_path / "model", *arguments)
    assert "the training has diverged: 2" in message and "variables have NaN or infinite values, such as" in message
    # The same command finds the checkpoint of the last update.
    assert assert_diverges(tmp_path / "model", *arguments) == message


@pytest.mark.parametrize(
    "skipped, final, named",
    [
        (2, {}, "all of the 2 updates were skipped"),
        (1, {}, None),
        (1, {"kind": "evaluation", "loss": math.nan}, "the loss on the validation set is nan"),
        (1, {"kind": "evaluation", "loss": 0.5}, None),
        (1, {"kind": "evaluation"}, None),
        (1, {"kind": "train", "loss": math.nan}, None),
    ],
)
def test_a_run_without_updates_or_with_a_loss_that_is_not_finite_has_diverged(skipped, final, named):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    found = run._divergence(types.SimpleNamespace(model=model, step=2, skipped=skipped), final)
    assert named in found if named else found == ""


@pytest.mark.slow
def test_a_run_that_skipped_each_update_is_an_error(tmp_path, pretrained):
    config = FinetuneConfig(task=RegressionConfig(max_length=8), train=TRAIN)
    labels = [f"{sign}1e15" for sign in ("-", "") * 2]  # a gradient with a square that float32 cannot hold
    arguments = config, write_tables(tmp_path, labels, labels), pretrained(0.0)
    message = assert_diverges(tmp_path / "model", *arguments)
    assert "all of the 2 updates were skipped, because their loss or gradient was NaN or infinite" in message


@pytest.mark.slow
def test_a_search_goes_on_after_a_run_whose_updates_were_not_finite(tmp_path, pretrained, monkeypatch, capsys):
    rates = iter([math.inf, 1e-4, 1e-4])  # with weights that are infinite after the first update
    monkeypatch.setattr(phases, "learning_rate", lambda _: functools.partial(lambda rate, _: rate, next(rates)))
    config = dataclasses.replace(CLASSES, train=dataclasses.replace(TRAIN, steps=9, seeds=2, max_nonfinite_steps=3))
    where, model = write_tables(tmp_path, "xyxy"), str(tmp_path / "model")
    results = sweep.finetune_best(config, where, pretrained(0.0), model, STRATEGY)
    assert results["best"] == "seed_1" and [row["steps"] for row in results["trials"]] == [4, 9]
    assert results["groups"][0]["failed"][0] == "seed_0"
    assert "seed_0: 3 steps in a row up to step 4 had a non-finite loss" in capsys.readouterr().err


@pytest.mark.slow
def test_a_loss_on_the_validation_set_that_is_nan_is_an_error(tmp_path, pretrained):
    # Near the largest number of float32: the mean in LayerNorm is infinite.
    arguments = CLASSES, write_tables(tmp_path, "xyxy"), pretrained(3e38)
    assert "the loss on the validation set is nan" in assert_diverges(tmp_path / "model", *arguments)


def test_a_number_whose_square_float32_cannot_hold_is_refused_before_the_run(tmp_path, pretrained):
    config = FinetuneConfig(task=RegressionConfig(max_length=8), train=TRAIN)
    for label in ("1e308", "-1e19"):
        where = write_tables(tmp_path, ["1", label, "2", "3"], ["1", "2"])
        with raises(DataError, "train.tsv:3", "-1e+18", "1e+18"):
            finetuning.finetune(config, where, pretrained(0.0), str(tmp_path / "model"), STRATEGY)


def test_a_search_goes_on_after_a_run_that_diverged_and_fails_if_all_did(tmp_path, pretrained, monkeypatch, capsys):
    def results_of(models, config, data_dir, place, like):
        results = {"final": {"accuracy": 0.9}, "baseline": {"accuracy": 0.5}, "steps": 2, "seconds": 1.0, "inputs": {}}
        results |= {"task": "classification", "measure": ["accuracy", "max"]}
        if config.train.seed in lost:  # whose classes are all the first one, which is right most of the time
            raise run.DivergedError("made up", results)
        results["final"] = {"accuracy": 0.6}
        return results

    monkeypatch.setattr(sweep._Models, "results", results_of)
    config = FinetuneConfig(task=CLASSES.task, train=TrainConfig(seeds=3))
    lost, where, init = {0, 2}, write_tables(tmp_path, "xyxy"), pretrained(0.0)
    results = sweep.finetune_best(config, where, init, str(tmp_path / "model"), STRATEGY)
    assert results["best"] == "seed_1" and results["final"] == {"accuracy": 0.6}
    assert [row["learned"] for row in results["trials"]] == [False, True, False]
    assert "seed_0: made up; the other runs go on" in capsys.readouterr().err
    assert json.loads((tmp_path / "model/results.json").read_text())["best"] == "seed_1"
    lost = {0, 1, 2}
    with pytest.raises(run.DivergedError):
        sweep.finetune_best(config, where, init, str(tmp_path / "none"), STRATEGY)
    assert not (tmp_path / "none/results.json").exists()
