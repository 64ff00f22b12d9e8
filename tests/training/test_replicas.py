import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.errors import ConfigError
from bert_tf.training import evaluation, step
from bert_tf.training.strategy import cores, create, is_chief, parallel_parts
from tests.errors import raises
from tests.training.processes import cluster, finish, start
from tests.training.replicas import CASES, train
from tests.training.small import difference

# Relative difference of the numbers of masks that losses are divided by. Each microbatch adds 1e-5, and two replicas
# have twice as many as one: two more for a batch that may have only 3 masks, and one more for one of
# at least 8.
DIVISORS = {"uneven": 2e-5 / 3, "uneven BERT": 2e-5 / 3, "clipped": 1e-5 / 8}


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory):
    """A folder with the results of two replicas for the quick case."""
    folder = tmp_path_factory.mktemp("mirrored")
    mirror(folder, "uneven")
    return folder


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A folder with the results of two replicas for the slow cases."""
    folder = tmp_path_factory.mktemp("others")
    mirror(folder, *(case for case in CASES if case != "uneven"))
    return folder


@pytest.fixture(scope="module")
def clipped(tmp_path_factory):
    """The results of one replica for the case "clipped"."""
    return train(create("one_device"), tmp_path_factory.mktemp("clipped"), "clipped")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The results of one replica for the uneven case."""
    return train(create("one_device"), tmp_path_factory.mktemp("one"), "uneven")


def mirror(folder, *cases):
    finish(start("tests.training.replicas", "mirrored", folder, *cases))


def assert_same(ones, others, divisors=0.0):
    """`divisors`: see DIVISORS."""
    # Adam makes a large step for a gradient near zero, including its rounding error.
    assert difference(ones, others) < 1e-4
    assert ones.keys() >= {"evaluation", "curve/loss", "curve/gradient_norm"}
    for name in (name for name in ones if name.startswith(("evaluation", "curve/"))):
        # Twice: for a gradient and, from the second update on, for the weights at which it is computed.
        np.testing.assert_allclose(ones[name], others[name], rtol=1e-5 + 2 * divisors)


def test_two_replicas_train_and_evaluate_like_one_and_both_skip_an_update_if_one_must(mirrored, one):
    assert_same(one, np.load(mirrored / "uneven.npz"), DIVISORS["uneven"])
    assert one["updates"] == 4  # of five
    assert np.isnan(one["curve/loss"]).tolist() == [False, False, True, False, False]


@pytest.mark.slow
def test_models_of_other_shapes_and_tasks_follow_one_another_on_two_replicas(tmp_path):
    """Collective operations of one strategy after another would meet each other's shapes."""
    mirror(tmp_path, "fits")


@pytest.fixture
def three_parts(monkeypatch):
    for module in (step, evaluation):
        monkeypatch.setattr(module, "parallel_parts", lambda strategy: 3)


def test_a_replica_trains_and_evaluates_in_parts_as_in_one(tmp_path, one, three_parts):
    # Micro-batches of 4, 2, 1 and no rows.
    assert_same(train(create("one_device"), tmp_path, "uneven"), one)


@pytest.mark.slow
def test_a_replica_clips_and_recomputes_in_parts_as_in_one(tmp_path, clipped, three_parts):
    assert_same(train(create("one_device"), tmp_path, "clipped"), clipped)


in_parts = pytest.mark.skipif(cores() not in (2, 3, 4), reason="batches are computed in parts on two to four cores")


@in_parts
def test_operations_get_one_thread_each_where_each_core_computes_a_part_of_a_batch(monkeypatch):
    assert parallel_parts(create("one_device")) == 1  # this process shares each operation between the cores
    threads = [0]
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", threads.append)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: threads[-1])
    assert parallel_parts(create("one_device", train=TrainConfig(batch_size=32, accumulation=8))) == cores()
    assert threads == [0, 1]


@pytest.mark.slow
@in_parts
def test_programs_compute_a_part_of_a_batch_on_each_core():
    program = """if True:
        from bert_tf.config import TrainConfig
        from bert_tf.training.strategy import create, parallel_parts
        print(parallel_parts(create(train=TrainConfig(batch_size=32, accumulation=8))))
    """
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    assert subprocess.check_output([sys.executable, "-c", program], env=environment, text=True) == f"{cores()}\n"


@pytest.mark.slow
def test_two_replicas_train_bert_like_one(others, clipped, tmp_path):
    uneven = train(create("one_device"), tmp_path, "uneven BERT")
    for case, one in (("uneven BERT", uneven), ("clipped", clipped)):
        assert_same(one, np.load(others / f"{case}.npz"), DIVISORS[case])


@pytest.mark.slow
def test_two_replicas_fine_tune_for_int8_like_one(others, tmp_path):
    # An input close to the middle between two whole numbers is rounded up on one and down on the other.
    found, expected = np.load(others / "int8.npz"), train(create("one_device"), tmp_path, "int8")
    assert difference(expected, found) < 0.02
    for name in ("evaluation", "curve/loss"):
        np.testing.assert_allclose(expected[name], found[name], rtol=1e-3)


@pytest.mark.slow
def test_two_compiled_replicas_train_like_one_that_is_not_compiled(others, tmp_path):
    one = train(create("one_device"), tmp_path, "compiled", jit_compile="off")
    assert_same(one, np.load(others / "compiled.npz"), 1e-5 / 8)


@pytest.mark.slow
def test_if_replicas_are_normalized_separately_two_equal_two_micro_batches_of_one(others, tmp_path):
    two = np.load(others / "google.npz")
    assert_same(train(create("one_device"), tmp_path / "parts", "google", accumulation=2), two)
    whole = train(create("one_device"), tmp_path / "whole", "google")
    assert difference(whole, two) > 1e-2


@pytest.mark.slow
def test_an_overflow_on_one_replica_skips_the_update_on_all_and_the_scale_grows_again(others, tmp_path):
    two, one = np.load(others / "half.npz"), train(create("one_device"), tmp_path, "half")
    for found in (one, two):
        assert found["updates"] == 4  # of five
        # Two good updates, the overflow, two good ones: doubled, halved, doubled.
        assert found["loss_scale"].tolist() == [2.0**16, 0.0]
        assert np.isfinite([found[name].sum() for name in found if not name.startswith("curve/")]).all()
    # The third point is that of the skipped update: NaN in both.
    np.testing.assert_allclose(one["curve/loss"], two["curve/loss"], rtol=1e-2)


@pytest.mark.parametrize("name", ["one_device", "mirrored", "auto"])
def test_strategies_by_name_use_the_available_devices(name):
    strategy = create(name)
    gpus = len(tf.config.list_logical_devices("GPU"))
    assert strategy.num_replicas_in_sync == (1 if name == "one_device" else max(gpus, 1))
    assert is_chief(strategy) and create(name) is strategy


TASKS = ('{"type": "worker", "index": 5}', '{"type": "boss", "index": 0}', '{"type": "worker", "index": "x"}', "3")
CLUSTERS = [f'{{"cluster": {{"worker": ["localhost:1"]}}, "task": {task}}}' for task in TASKS]


@pytest.mark.parametrize("value", ["", "x", '{"cluster": 1}', '{"cluster": {"worker": ["localhost:1"]}}', *CLUSTERS])
def test_a_wrong_list_of_workers_is_one_line(monkeypatch, value):
    monkeypatch.setenv("TF_CONFIG", value)
    with raises(ConfigError, "TF_CONFIG") as caught:
        create("multi_worker")
    assert value[:20] in str(caught.value)


def test_the_error_for_an_unknown_strategy_lists_the_known_ones():
    with raises(ConfigError, "--strategy=mirorred", "one_device"):
        create("mirorred")


@pytest.mark.slow
def test_two_worker_processes_train_and_evaluate_like_one(tmp_path, clipped):
    arguments = ("tests.training.replicas", "multi_worker", tmp_path, "clipped")
    finish(*(start(*arguments, environment=environment) for environment in cluster(2)))
    assert_same(clipped, np.load(tmp_path / "clipped.npz"), DIVISORS["clipped"])
