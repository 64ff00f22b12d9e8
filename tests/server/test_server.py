"""The program: start, signals, and what it says about what is wrong."""

import concurrent.futures
import contextlib
import copy
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2, prediction_service_pb2_grpc

from bert_tf.server import model_list
from bert_tf.server.models import PollingOptions
from bert_tf.server.options import EndpointOptions
from bert_tf.server.servable import RunOptions
from bert_tf.server.server import ServerOptions, serve
from tests.server.saved_models import half_plus_two


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def predicting(model, signature="", **inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


class Program:
    """`python -m bert_tf.serve` with the models of a config file, ready to be asked."""

    def __init__(self, *flags):
        self.rest, self.grpc = free_port(), free_port()
        command = [sys.executable, "-m", "bert_tf.serve", f"--rest_api_port={self.rest}", f"--port={self.grpc}", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if " ready: " in line:
                break

    def get(self, path, body=None):
        """Status and answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.rest, timeout=60)) as connection:
            connection.request("POST" if body else "GET", path, body and json.dumps(body))
            response = connection.getresponse()
            self.last_closes = response.will_close
            return response.status, response.read().decode()

    def predict(self, model, signature="", **inputs):
        """The answer by gRPC."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc}") as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            return stub.Predict(predicting(model, signature, **inputs), timeout=60)

    def megabytes(self):
        """Resident memory."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20

    def end(self, number=signal.SIGTERM):
        """Exit status, and the rest of the log."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        rest = self.process.stderr.read()
        return self.process.wait(60), "".join(self.log) + rest


@pytest.fixture
def started():
    with contextlib.ExitStack() as stack:

        def start(*flags):
            program = Program(*flags)
            stack.callback(program.end, signal.SIGKILL)
            return program

        yield start


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "half"
    half_plus_two(folder)
    return folder


def test_a_config_file_is_followed_a_full_queue_refuses_and_sigterm_answers_what_waits(started, folder, tmp_path):
    file = tmp_path / "models.config"

    def write(name, more=""):
        fields = f'name: "{name}" base_path: "{folder}" model_platform: "tensorflow" {more}'
        file.write_text(f"model_config_list {{ config {{ {fields} }} }}")

    write("half")
    batching = tmp_path / "batching.config"
    batching.write_text("max_batch_size { value: 1 } max_enqueued_batches { value: 2 } num_batch_threads { value: 1 }")
    program = started(
        f"--model_config_file={file}", "--model_config_file_poll_wait_seconds=0.1",
        "--enable_batching", f"--batching_parameters_file={batching}",
    )  # fmt: skip
    assert program.get("/readyz")[0] == 200
    assert json.loads(program.get("/v1/models/half:predict", {"instances": [1.0, 4.0]})[1]) == {
        "predictions": [2.5, 4.0]
    }
    np.testing.assert_array_equal(tf.make_ndarray(program.predict("half", x=[1.0, 4.0]).outputs["y"]), [2.5, 4.0])

    for being_written in ("model_config_list { config { name:", "", "# models\n"):
        file.write_text(being_written)
        time.sleep(0.5)
        assert program.get("/v1/models/half:predict", {"instances": [1.0]})[0] == 200
    write("other")
    deadline = time.monotonic() + 30
    while '"AVAILABLE"' not in program.get("/v1/models/other")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert program.get("/v1/models/half:predict", {"instances": [1.0]})[0] == 404

    label = 'model_version_policy { all {} } version_labels { key: "next" value: 2 }'
    write("other", label)
    time.sleep(0.5)
    assert program.get("/v1/models/other/labels/next:predict", {"instances": [1.0]})[0] == 400
    half_plus_two(folder, 2)
    while program.get("/v1/models/other/labels/next:predict", {"instances": [1.0]})[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    slow, quick = ({"signature_name": "slow", "instances": [steps]} for steps in (1_000_000, 2))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        running = pool.submit(program.get, "/v1/models/other:predict", slow)
        time.sleep(0.3)
        waiting = pool.submit(program.get, "/v1/models/other:predict", quick)
        also_waiting = pool.submit(program.predict, "other", "slow", steps=np.array([3], np.int32))
        time.sleep(0.3)
        full = "the queue is full: 2 rows wait; try again later"
        assert program.get("/v1/models/other:predict", quick) == (503, json.dumps({"error": full}))
        with pytest.raises(grpc.RpcError) as refused:
            program.predict("other", "slow", steps=np.array([1], np.int32))
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, full)
        assert not running.done() and not program.last_closes
        status, log = program.end()
        assert json.loads(running.result()[1]) == {"predictions": [1_000_000]}
        assert json.loads(waiting.result()[1]) == {"predictions": [2]}
        assert also_waiting.result().outputs["count"].int_val == [3] and program.last_closes
    assert status == 0
    assert "cannot be used: " in log and "stopping" in log
    assert log.count("the configuration cannot be used: the configuration is empty") == 1
    assert "Traceback" not in log


@pytest.mark.slow
def test_twenty_new_versions_lose_no_request_and_keep_no_memory(started, tmp_path):
    """Clients of both protocols ask without a pause; version N adds 2 if N is even, and 3 if it is odd."""
    sources = [half_plus_two(tmp_path / "sources", number, b=2.0 + number % 2) for number in (2, 3)]
    folder = tmp_path / "half"
    shutil.copytree(sources[1], folder / "1")
    program = started(f"--export_dir={folder}", "--file_system_poll_wait_seconds=0.1", "--noaccess_log")
    ended, counts = threading.Event(), []

    def by_rest(connection):
        connection.request("POST", "/v1/models/half:predict", '{"instances": [0.0]}')
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert answer in ({"predictions": [2.0]}, {"predictions": [3.0]})

    def by_grpc(stub):
        answer = stub.Predict(predicting("half", x=[0.0]), timeout=60)
        assert answer.outputs["y"].float_val == [2.0 + answer.model_spec.version.value % 2]

    def client(ask, connection):
        count = 0
        while not ended.is_set():
            ask(connection)
            count += 1
        counts.append(count)

    sizes = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool, contextlib.ExitStack() as stack:
        clients = []
        for _ in range(2):
            rest = stack.enter_context(
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", program.rest, timeout=60))
            )
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{program.grpc}"))
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            clients += [pool.submit(client, by_rest, rest), pool.submit(client, by_grpc, stub)]
        stack.callback(ended.set)
        for number in range(2, 22):
            shutil.copytree(sources[number % 2], tmp_path / "copied")
            (tmp_path / "copied").rename(folder / str(number))
            deadline = time.monotonic() + 60
            while True:
                versions = json.loads(program.get("/v1/models/half")[1])["model_version_status"]
                states = {one["version"]: one["state"] for one in versions}
                if states.get(str(number)) == "AVAILABLE" and states[str(number - 1)] == "END":
                    break
                assert time.monotonic() < deadline and not any(one.done() for one in clients), states
                time.sleep(0.02)
            shutil.rmtree(folder / str(number - 1))
            sizes.append(program.megabytes())
        ended.set()
        for one in clients:
            one.result()  # raises what a client has met
    assert min(counts) > 100
    assert sizes[-1] - sizes[4] < 40, sizes
    assert program.end()[0] == 0


def test_the_first_process_of_a_container_ends_at_sigterm_while_it_imports_tensorflow(folder):
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if not shutil.which(alone[0]) or subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no process ID namespaces here")
    flags = [f"--export_dir={folder}", f"--port={free_port()}", f"--rest_api_port={free_port()}"]
    with subprocess.Popen([*alone, sys.executable, "-m", "bert_tf.serve", *flags]) as outside:
        try:
            deadline, maps = time.monotonic() + 60, ""
            while "libtensorflow" not in maps:
                assert outside.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
                children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
                with contextlib.suppress(IndexError, OSError):
                    maps = Path(f"/proc/{children[0]}/maps").read_text()
            os.kill(int(children[0]), signal.SIGTERM)
            assert outside.wait(60) == 0
        finally:
            outside.kill()


@pytest.mark.parametrize(
    "flags, status, message",
    [
        ([], 2, "give one of --export_dir, --model_base_path and --model_config_file; found none"),
        (["--export_dir=/no/such"], 2, "--export_dir=/no/such: no such folder"),
        (["--export_dir={folder}", "--noenable_profiler"], 2, "'noenable_profiler'"),  # of TF Serving's
        (["--export_dir={folder}", "--host="], 2, "--host is empty; give an address, such as 127.0.0.1"),
        (["--export_dir={folder}", "--port=7000", "--rest_api_port=7000"], 2, "are both 7000; give two ports"),
        (
            ["--export_dir={folder}", "--rest_api_port={taken}"],
            2,
            "--rest_api_port={taken}: cannot listen on 127.0.0.1",
        ),
        (["--export_dir={folder}", "--port={taken}"], 2, "--port={taken}: cannot listen on 127.0.0.1: Address already"),
        (["--export_dir={folder}", "--grpc_socket_path={long}"], 2, "bytes; expected at most 107; choose another path"),
        (["--export_dir={folder}", "--grpc_socket_path={short}"], 2, "{short}: this file is no socket; choose another"),
        (["--export_dir={folder}", "--grpc_socket_path=/no/such/x"], 2, "the folder /no/such does not exist, or may"),
        (
            ["--model_config_file={pipe}", "--model_config_file_poll_wait_seconds=1"],
            2,
            "{pipe}: a pipe, socket or device, which cannot be read repeatedly; pass a file, or",
        ),
        (["--export_dir={folder}", "--file_system_poll_wait_seconds=nan"], 2, "=nan: expected a finite number"),
        (["--export_dir={folder}", "--tls_key=k"], 2, "--tls_key and --tls_certificate go together"),
        (
            ["--export_dir={folder}", "--tls_key=k", "--tls_certificate=c", "--ssl_config_file=s"],
            2,
            "--tls_key and --ssl_config_file: both have a key; give one of them",
        ),
        (
            ["--export_dir={folder}", "--tls_key={short}", "--tls_certificate={short}"],
            2,
            "--tls_key={short}: not in PEM format",
        ),
        (["--export_dir={folder}", "--model_name=m"], 2, "--model_name goes with --model_base_path"),
        (
            ["--export_dir={folder}", "--noenable_batching", "--batching_parameters_file={short}"],
            2,
            "--noenable_batching with --batching_parameters_file, which would have no effect",
        ),
        (
            ["--export_dir={folder}", "--rest_api_port=0", "--monitoring_config_file={short}"],
            2,
            "--monitoring_config_file with --rest_api_port=0: the metrics are on that port",
        ),
        (["--export_dir={folder}", "--token_file={short}"], 2, "expected one token of at least 8"),
        (["--export_dir={folder}", "--batching_parameters_file=/no/such"], 2, " /no/such: no such file"),
        (["--model_base_path={broken}"], 1, "default: not a SavedModel"),
    ],
)
def test_what_cannot_be_served_ends_the_program_with_one_line(programs, folder, tmp_path, flags, status, message):
    (tmp_path / "short").write_text("abc\n")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "saved_model.pb").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {name: tmp_path / name for name in ("short", "broken", "pipe")}
        names |= {"folder": folder, "taken": taken.getsockname()[1], "long": tmp_path / ("x" * 100)}
        ports = [f"--port={free_port()}", f"--rest_api_port={free_port()}"]
        done = programs("serve", *ports, *(flag.format(**names) for flag in flags))
    assert done.status == status, done.errors
    lines = [line for line in done.errors.splitlines() if line.startswith("bert_tf: ")]
    assert len(lines) == 1 and message.format(**names) in lines[0]
    assert "Traceback" not in done.errors


@pytest.mark.parametrize("value", ["-1", "inf", "1e400", "99999999999999999999", "", "x"])
def test_every_flag_for_a_number_has_bounds(value):
    """TensorFlow aborts at -3 threads and crashes at a million."""
    from bert_tf import serve

    numbers = [
        flag
        for flag in flags.FLAGS.flags_by_module_dict()[serve.__name__]
        if isinstance(flag.parser, flags.IntegerParser | flags.FloatParser)
    ]
    assert len(numbers) == 15
    for flag in numbers:
        found = flags.FlagValues()
        found[flag.name] = copy.deepcopy(flag)
        with pytest.raises(flags.Error):
            found(["serve", f"--{flag.name}={value}"])


def test_a_config_file_that_cannot_be_read_for_a_while_holds_up_neither_requests_nor_sigterm(folder):
    """As on a network drive whose server is away."""
    reads, back, port, answers = [], threading.Event(), free_port(), []

    def read_config():
        reads.append(None)
        if len(reads) > 1:
            back.wait(60)
        return model_list.one_model("half", str(folder))

    def client():
        while len(reads) < 2:
            time.sleep(0.01)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            try:
                connection.request("GET", "/healthz")
                answers.append(connection.getresponse().status)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=client)
    asking.start()
    endpoints = EndpointOptions(grpc_port=0, rest_port=port)
    try:
        serve(read_config, ServerOptions(endpoints, RunOptions(), PollingOptions(), config_poll_seconds=0.01))
        assert answers == [200] and len(reads) == 2 and not back.is_set()
    finally:
        back.set()
        asking.join()


def warm_up_for_ever(version):
    """Adds a warm-up request that counts to two thousand million."""
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(predicting("", "slow", steps=np.array([2_000_000_000], np.int32)))
    (version / "assets.extra").mkdir()
    with tf.io.TFRecordWriter(str(version / "assets.extra" / "tf_serving_warmup_requests")) as writer:
        writer.write(log.SerializeToString())


@pytest.mark.slow
def test_ports_are_closed_and_sigterm_ends_the_server_while_it_loads(folder, tmp_path):
    shutil.copytree(folder / "1", tmp_path / "half" / "1")
    warm_up_for_ever(tmp_path / "half" / "1")
    rest, port = free_port(), free_port()
    flags = [f"--export_dir={tmp_path / 'half'}", f"--rest_api_port={rest}", f"--port={port}"]
    command = [sys.executable, "-m", "bert_tf.serve", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if " loading version 1 " in line:
                    break
            time.sleep(1)
            for closed in (rest, port):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", closed))
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
            assert "stopped while a version was being loaded" in process.stderr.read()
        finally:
            process.kill()


@pytest.mark.slow
def test_sigterm_answers_what_runs_while_a_new_version_is_loaded(started, folder, tmp_path):
    shutil.copytree(folder / "1", tmp_path / "half" / "1")
    program = started(f"--export_dir={tmp_path / 'half'}", "--file_system_poll_wait_seconds=0.1")
    shutil.copytree(folder / "1", tmp_path / "2")
    warm_up_for_ever(tmp_path / "2")
    (tmp_path / "2").rename(tmp_path / "half" / "2")
    for line in program.process.stderr:
        if " loading version 2 " in line:
            break
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = {"signature_name": "slow", "instances": [100_000]}
        running = pool.submit(program.get, "/v1/models/half:predict", slow)
        time.sleep(0.5)
        status, log = program.end()
        assert json.loads(running.result()[1]) == {"predictions": [100_000]}
    assert status == 0 and "Traceback" not in log
