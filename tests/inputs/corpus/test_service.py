"""The data service runs in real processes: a dispatcher and two workers on this machine."""

import contextlib
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.errors import DataError
from bert_tf.inputs.batching import stream
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import pretraining_dataset, reading
from bert_tf.inputs.corpus.service import through_service
from bert_tf.text import Tokenizer
from tests.errors import raises

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def free_ports(count):
    with contextlib.ExitStack() as sockets:
        opened = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in opened:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in opened]


@contextlib.contextmanager
def service(workers, started):
    """Runs a dispatcher with `workers` workers, of which `started` are running.

    Yields its address, the processes, and a function that restarts one of them by its number.
    """
    port, *ports = free_ports(1 + workers)
    addresses = [f"localhost:{one}" for one in ports]
    commands = [[f"--port={port}", f"--workers={','.join(addresses)}"]]
    for address, one in list(zip(addresses, ports, strict=True))[:started]:
        commands.append([f"--port={one}", f"--dispatcher=localhost:{port}", f"--address={address}"])
    processes = [None] * len(commands)

    def start(number):
        process = subprocess.Popen(
            [sys.executable, "-m", "bert_tf.data_service", *commands[number]],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        processes[number] = process
        assert process.stdout.readline()  # printed once it listens

    try:
        for number in range(len(commands)):
            start(number)
        yield f"grpc://localhost:{port}", processes, start
    finally:
        for process in filter(None, processes):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def epoch_batches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    words = [f"w{k}" for k in range(200)]
    random = np.random.default_rng(0)
    files = []
    for number in range(2):
        documents = ["\n".join(" ".join(random.choice(words, 6)) for _ in range(8)) for _ in range(12)]
        files.append(folder / f"{number}.txt")
        files[-1].write_text("\n\n".join(documents))
    tokenizer = Tokenizer([*SPECIALS, *words])
    # Of several lengths, so that batches of different shapes are sent.
    data = PretrainingData(max_length=32, max_predictions=5, length_multiple=4).check()

    def batches(epoch, shard=None):
        return pretraining_dataset(
            Corpus(list(map(str, files)), tokenizer, data), seed=3, epoch=epoch, batch_size=4, shard=shard
        )

    return batches


def first(batches, count, start=(0, 0)):
    elements = stream(batches, start).take(count).as_numpy_iterator()
    return [features | {"position": position} for features, position in elements]


@pytest.mark.slow
def test_two_workers_give_each_batch_once_and_in_order_across_epochs_and_a_resume(epoch_batches):
    an_epoch = len(list(epoch_batches(0)))
    expected = first(epoch_batches, 2 * an_epoch + 3)
    assert len({batch["position"].tolist()[0] for batch in expected}) == 3
    with service(workers=2, started=2) as (address, _, _):
        made = first(through_service(epoch_batches, address, 2), len(expected))
        resumed = first(through_service(epoch_batches, address, 2), 5, start=(1, 2))
    for one, other in ((expected, made), (expected[an_epoch + 2 : an_epoch + 7], resumed)):
        assert len(one) == len(other)
        for batch, twin in zip(one, other, strict=True):
            assert batch.keys() == twin.keys()
            assert all(np.array_equal(batch[name], twin[name]) for name in batch)


@pytest.mark.slow
def test_a_missing_worker_is_an_error_after_a_wait(epoch_batches):
    with (
        service(workers=2, started=1) as (address, _, _),
        raises(DataError, "1 of 2"),
    ):
        through_service(epoch_batches, address, 2, patience=3)


def test_a_missing_dispatcher_is_reported_and_an_error_after_a_wait(epoch_batches, capsys):
    address = f"grpc://localhost:{free_ports(1)[0]}"
    with raises(DataError, "bert_tf.data_service"):
        through_service(epoch_batches, address, 2, patience=1)
    assert capsys.readouterr().err == f"bert_tf: {address}: no input service found yet; waiting up to 1 seconds\n"


@pytest.mark.parametrize("value", ["x", "host:", "host:port", "http://host:5000", "host:5001,x"])
def test_an_address_without_host_or_port_is_refused(programs, value):
    done = programs("data_service", "--port=0", f"--workers={value}")
    wrong = value.rpartition(",")[2]
    assert done.error_line == f"bert_tf: error: --workers={wrong}: expected HOST:PORT, such as host1:5001"
    assert done.status == 2


@pytest.mark.slow
def test_a_restarted_worker_is_an_error_instead_of_another_order():
    def numbers(epoch, shard):
        # Large enough that not all of them are prefetched.
        return tf.data.Dataset.range(100_000).map(lambda number: {"number": tf.fill([1000], number)}).shard(*shard)

    with service(workers=2, started=2) as (address, processes, start):
        batches = stream(through_service(numbers, address, 2)).as_numpy_iterator()
        for _ in range(10):  # so that both have started
            next(batches)
        processes[2].kill()
        processes[2].wait()
        start(2)
        with raises(DataError, "restarted"), reading("corpus"):
            for expected in range(10, 100_000):
                assert next(batches)[0]["number"][0] == expected
