"""The program: start, signals, and what it says about what is wrong."""

import concurrent.futures
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tests.server.saved_models import half_plus_two


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


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

    def predict(self, **inputs):
        """The answer by gRPC."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc}") as channel:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "half"
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            return prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)

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


def test_a_config_file_is_followed_and_sigterm_answers_what_runs(started, folder, tmp_path):
    file = tmp_path / "models.config"
    file.write_text(f'model_config_list {{ config {{ name: "half" base_path: "{folder}" }} }}')
    program = started(f"--model_config_file={file}", "--model_config_file_poll_wait_seconds=0.1", "--enable_profiler")
    assert program.get("/readyz")[0] == 200
    assert json.loads(program.get("/v1/models/half:predict", {"instances": [1.0, 4.0]})[1]) == {
        "predictions": [2.5, 4.0]
    }
    np.testing.assert_array_equal(tf.make_ndarray(program.predict(x=[1.0, 4.0]).outputs["y"]), [2.5, 4.0])

    file.write_text("model_config_list { config { name:")
    time.sleep(0.5)
    assert program.get("/v1/models/half")[0] == 200
    file.write_text(f'model_config_list {{ config {{ name: "other" base_path: "{folder}" }} }}')
    deadline = time.monotonic() + 30
    while '"AVAILABLE"' not in program.get("/v1/models/other")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert program.get("/v1/models/half:predict", {"instances": [1.0]})[0] == 404

    label = 'model_version_policy { all {} } version_labels { key: "next" value: 2 }'
    file.write_text(f'model_config_list {{ config {{ name: "other" base_path: "{folder}" {label} }} }}')
    time.sleep(0.5)
    assert program.get("/v1/models/other/labels/next:predict", {"instances": [1.0]})[0] == 400
    half_plus_two(folder, 2)
    while program.get("/v1/models/other/labels/next:predict", {"instances": [1.0]})[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    slow = {"signature_name": "slow", "instances": [600_000]}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(program.get, "/v1/models/other:predict", slow)
        time.sleep(0.3)
        assert not running.done() and not program.last_closes
        status, log = program.end()
        assert json.loads(running.result()[1]) == {"predictions": [600_000]} and program.last_closes
    assert status == 0
    assert "--enable_profiler has no effect" in log and "cannot be used: " in log and "stopping" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    "flags, status, message",
    [
        ([], 2, "give one of --export_dir, --model_base_path and --model_config_file; found none"),
        (["--export_dir=/no/such"], 2, "--export_dir=/no/such: no such folder"),
        (["--export_dir={folder}", "--host="], 2, "--host is empty; give an address, such as 127.0.0.1"),
        (["--export_dir={folder}", "--port=7000", "--rest_api_port=7000"], 2, "are both 7000; give two ports"),
        (
            ["--export_dir={folder}", "--rest_api_port={taken}"],
            2,
            "--rest_api_port={taken}: cannot listen on 127.0.0.1",
        ),
        (["--export_dir={folder}", "--port={taken}"], 2, "cannot listen on 127.0.0.1:{taken} for gRPC"),
        (["--export_dir={folder}", "--tls_key=k"], 2, "--tls_key and --tls_certificate go together"),
        (["--export_dir={folder}", "--token_file={short}"], 2, "expected one token of at least 8"),
        (["--model_base_path={broken}"], 1, "Some models did not become available: default: not a SavedModel"),
    ],
)
def test_what_cannot_be_served_ends_the_program_with_one_line(programs, folder, tmp_path, flags, status, message):
    (tmp_path / "short").write_text("abc\n")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "saved_model.pb").write_bytes(b"\xff")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {name: tmp_path / name for name in ("short", "broken")}
        names |= {"folder": folder, "taken": taken.getsockname()[1]}
        ports = [f"--port={free_port()}", f"--rest_api_port={free_port()}"]
        done = programs("serve", *ports, *(flag.format(**names) for flag in flags))
    assert done.status == status, done.errors
    lines = [line for line in done.errors.splitlines() if line.startswith("bert_tf: ")]
    assert len(lines) == 1 and message.format(**names) in lines[0]
    assert "Traceback" not in done.errors
