"""train.flash_attention: the choice, its line and its place in run.json, on a machine that seems to have a GPU."""

import json

import pytest
import tensorflow as tf

from bert_tf.config import PretrainConfig, TrainConfig
from bert_tf.training import step
from bert_tf.training.runs import run
from bert_tf.training.runs.run import Place, Run
from bert_tf.training.state.run_manifest import AnotherRunError, RunManifest
from bert_tf.training.strategy import create
from tests.errors import raises
from tests.training.small import epochs, trainer

USED = {"setting": "auto", "used": True, "reason": "it suits the model and this GPU"}


class Nothing(Run):
    program = "pretrain"

    def build_encoder(self): ...

    def evaluations(self, model): ...


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts or resumes a run where `unsuited` is the reason against cuDNN."""
    monkeypatch.setattr(run, "accelerator", lambda strategy: "GPU")

    def started(unsuited="", progress=True, **settings):
        config = PretrainConfig(train=TrainConfig(steps=1, dtype="bfloat16", **{"jit_compile": "on"} | settings))
        found = Nothing(config, Place(str(tmp_path), create("one_device")), {}, {}, unsuited=lambda dtype: unsuited)
        RunManifest(str(tmp_path), found.record).write(0)
        if progress:
            (tmp_path / "checkpoints").mkdir(exist_ok=True)
        return found.record.get("flash_attention")

    return started


def test_the_choice_is_recorded_with_its_reason_and_said_in_a_line(start, capsys):
    assert start() == USED
    assert "cuDNN's fused kernel computes the attention; train.flash_attention=off" in capsys.readouterr().err
    assert start() == USED  # resumed


def test_what_does_not_suit_is_computed_in_the_plain_way(start, capsys):
    plain = {"setting": "auto", "used": False, "reason": "rows are packed"}
    assert start("rows are packed") == plain
    assert capsys.readouterr().err.count("attention is computed in the plain way: rows are packed\n") == 1
    assert start() == plain  # a resumed run rounds as it did


def test_a_run_resumes_on_a_machine_without_cudnn_only_if_told_to(start):
    start()
    with raises(AnotherRunError, "flash_attention.used: True there, False now", "--accept_config_change"):
        start("there is no GPU")


def test_the_setting_turns_it_off(start):
    expected = {"setting": "off", "used": False, "reason": "train.flash_attention is off"}
    assert start(flash_attention="off") == expected


def test_several_workers_compute_in_the_plain_way(start, monkeypatch):
    monkeypatch.setattr(run, "in_multi_worker_mode", lambda strategy: True)
    assert start()["used"] is False


def test_a_run_without_xla_or_from_before_has_no_choice(start, tmp_path):
    assert start(jit_compile="off", progress=False) is None
    assert start(progress=True) == USED
    record = json.loads((tmp_path / "run.json").read_text())
    del record["flash_attention"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert start() is None


def test_a_reason_that_is_gone_before_the_first_checkpoint_is_forgotten(start):
    assert not start("model.attention_dropout is 0.1, not 0", progress=False)["used"]
    assert start() == USED


def test_a_run_that_began_in_the_plain_way_resumes_on_a_cpu(start, monkeypatch, capsys):
    plain = start("rows are packed")
    monkeypatch.setattr(run, "accelerator", lambda strategy: None)
    capsys.readouterr()
    assert start() == plain
    assert "in the plain way, as since the start of this run: rows are packed\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "device, compiled, expected", [("GPU", "on", True), ("GPU", "off", False), (None, "on", False)]
)
def test_only_a_step_that_xla_compiles_for_a_gpu_is_computed_as_its_program(monkeypatch, device, compiled, expected):
    monkeypatch.setattr(step, "accelerator", lambda strategy: device)
    mode = trainer(bert=False, jit_compile=compiled, flash_attention=True).train_step._mode(tf.constant([0, 0]))
    assert (mode.gpu_program, mode.flash_attention) == (expected, expected)


def test_a_step_calls_cudnn_for_the_attention_and_for_its_gradient(monkeypatch):
    monkeypatch.setattr(step, "accelerator", lambda strategy: "GPU")
    shape = {"attention_dropout": 0.0}
    assert _calls_of_cudnn(trainer(jit_compile="on", dtype="bfloat16", shape=shape, flash_attention=True)) == 2


def _calls_of_cudnn(trained):
    """How many calls of cudnn are in the gradients' function of a step."""
    features = {name: value[:8] for name, value in next(iter(epochs()(tf.constant(0, tf.int64)))).items()}
    specs = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), features)
    objective, number = trained.task.objective, tf.TensorSpec([], tf.int64)
    divisors = dict.fromkeys(objective.losses, tf.TensorSpec([]))

    def gradients(features, divisors, step, scale):
        return trained.train_step._shard_gradients([features], [divisors], [0], step, scale, None)

    traced = tf.function(gradients, autograph=False).get_concrete_function(specs, divisors, number, tf.TensorSpec([]))
    definition = traced.graph.as_graph_def()
    nodes = [node for function in definition.library.function for node in function.node_def]
    return sum(node.op == "XlaCallModule" for node in [*nodes, *definition.node])
