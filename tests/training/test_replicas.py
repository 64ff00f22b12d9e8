import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.training.strategy import create, is_chief
from tests.training.replicas import CASES, train
from tests.training.small import difference


def start(folder, name, cases, environment=None):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.training.replicas", name, str(folder), *cases],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"} | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes):
    try:
        for process in processes:
            output, _ = process.communicate(timeout=240)
            assert process.returncode == 0, output[-4000:]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory):
    """A folder with what two replicas in one process made of each case."""
    folder = tmp_path_factory.mktemp("mirrored")
    finish(start(folder, "mirrored", CASES))
    return folder


def assert_same(ones, others):
    # Adam makes a large step of a gradient near zero, with whatever rounding it carries.
    assert difference(ones, others) < 1e-4
    for name in ("evaluation", "curve/loss", "curve/mlm_accuracy", "curve/gradient_norm"):
        np.testing.assert_allclose(ones[name], others[name], rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_two_replicas_train_and_evaluate_as_one(tmp_path, mirrored, case):
    one = train(create("one_device"), tmp_path, case)
    assert_same(one, np.load(mirrored / f"{case}.npz"))


@pytest.mark.parametrize("name", ["one_device", "mirrored", "auto"])
def test_strategies_by_name_see_the_devices_there_are(name):
    strategy = create(name)
    gpus = len(tf.config.list_logical_devices("GPU"))
    assert strategy.num_replicas_in_sync == (1 if name == "one_device" else max(gpus, 1))
    assert is_chief(strategy)


def test_an_unknown_strategy_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"--strategy=mirorred is unknown; choose one of auto, one_device, mirrored"):
        create("mirorred")


@pytest.mark.slow
def test_two_worker_processes_train_and_evaluate_as_one(tmp_path):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    configs = [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}) for index in (0, 1)
    ]
    finish(*(start(tmp_path, "multi_worker", ["clipped"], {"TF_CONFIG": config}) for config in configs))
    one = train(create("one_device"), tmp_path / "one", "clipped")
    assert_same(one, np.load(tmp_path / "clipped.npz"))
