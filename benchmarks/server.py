"""Load test of the server: python benchmarks/server.py --export_dir=served/reviews --output=serving.json.

Starts `python -m bert_tf.serve` with and without batching and sends it requests of mixed lengths, by REST and gRPC, on
1, 8 and 32 connections. Every answer is compared with that of a session that is asked each text alone. Prints rows per
second, the percentiles of latency, the processor time of the server per row and, as the ceiling, that of a bare session
on the batches that the server made of the requests on 32 connections: one at a time with all cores, as a program asks
that loops over them, and as many at a time as in the server. The model takes one text (input `text`) and returns
`label` and `probabilities`. Server and clients share the machine, so the clients take part of the rows per second; the
processor time is the server's own.
"""

import argparse
import concurrent.futures
import http.client
import itertools
import json
import logging
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

_REVIEWS = pathlib.Path(__file__).parents[1] / "data" / "reviews" / "train.tsv"
_MODEL = "model"


def texts_of(count, longest):
    """Texts of mixed lengths: three of four are a sentence, the others more, up to `longest`."""
    with open(_REVIEWS, encoding="utf-8") as file:
        sentences = [line.split("\t")[0] for line in file][1:]
    draw = random.Random(1)
    sizes = (min(int(draw.paretovariate(2)), longest) for _ in range(count))
    return [" ".join([f"{number}.", *draw.choices(sentences, k=size)]) for number, size in enumerate(sizes)]


def by_rest(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(text):
        connection.request("POST", f"/v1/models/{_MODEL}:predict", json.dumps({"inputs": {"text": [text]}}))
        response = connection.getresponse()
        body = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {body}")
        return body["outputs"]["label"][0], body["outputs"]["probabilities"][0]

    return ask


def by_grpc(port):
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    # Without an option of its own, channels of one process share a connection.
    own = [("grpc.use_local_subchannel_pool", 1)]
    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{port}", own))

    def ask(text):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = _MODEL
        request.inputs["text"].dtype = tf.string.as_datatype_enum
        request.inputs["text"].tensor_shape.dim.add(size=1)
        request.inputs["text"].string_val.append(text.encode())
        outputs = stub.Predict(request, timeout=120).outputs
        return outputs["label"].string_val[0].decode(), list(outputs["probabilities"].float_val)

    return ask


def clients(protocol, port, connections, texts):
    """Sends one request for each text; returns the seconds of all, the latency of each, and the answers."""
    connect = {"REST": by_rest, "gRPC": by_grpc}[protocol]
    answers, latencies = [None] * len(texts), [0.0] * len(texts)
    numbers, lock = iter(range(len(texts))), threading.Lock()

    def client(ask):
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            start = time.perf_counter()
            answers[number] = ask(texts[number])
            latencies[number] = time.perf_counter() - start

    asks = [connect(port) for _ in range(connections)]
    for ask in asks:
        ask(texts[0])  # opens the connection
    with concurrent.futures.ThreadPoolExecutor(connections) as pool:
        start = time.perf_counter()
        list(pool.map(client, asks))
        return time.perf_counter() - start, latencies, answers


def alone(export_dir, texts):
    """The answers of a session that is asked one text at a time."""
    run = _session(export_dir)
    return [_answers(run([text]))[0] for text in texts]


def ceiling(export_dir, batches, several):
    """Rows per second and processor time per row of a bare session on these batches.

    Args:
        several: whether as many batches run at a time as in the server, each with one thread; else one at a time with a
            thread per core. The first session of a process decides on the threads of all.
    """
    from bert_tf.server.request_batching import BatchingOptions

    run, rows = _session(export_dir, intra_op_parallelism_threads=int(several)), sum(map(len, batches))
    with concurrent.futures.ThreadPoolExecutor(BatchingOptions().threads if several else 1) as pool:
        for _ in range(2):  # the first time prepares the kernels for all shapes
            start, processor = time.perf_counter(), time.process_time()
            list(pool.map(run, batches))
            took, processor = time.perf_counter() - start, time.process_time() - processor
    return {"rows_per_second": rows / took, "processor_ms": processor * 1000 / rows}


def serve(record, flags):
    """`python -m bert_tf.serve`, and adds the texts of each run to the file `record`, a line of JSON."""
    from bert_tf import app, serve
    from bert_tf.server.servable import Servable

    run = Servable.run
    with open(record, "w", buffering=1) as file:

        def recorded(servable, signature, inputs, *arguments):
            if signature == "serving_default":
                file.write(json.dumps([text.decode() for text in inputs["text"].tolist()]) + "\n")
            return run(servable, signature, inputs, *arguments)

        Servable.run = recorded
        sys.argv[1:] = flags
        app.run(serve.main)


def _session(export_dir, **threads):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(**threads))
    newest = max(pathlib.Path(export_dir).iterdir(), key=lambda path: int(path.name))
    with session.graph.as_default():
        signature = tf.compat.v1.saved_model.load(session, ["serve"], str(newest)).signature_def["serving_default"]
    fetches = {name: signature.outputs[name].name for name in ("label", "probabilities")}
    return lambda texts: session.run(fetches, {signature.inputs["text"].name: _strings(texts)})


def _strings(texts):
    array = np.empty(len(texts), object)
    array[:] = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return array


def _answers(outputs):
    return [
        (label.decode(), row.tolist()) for label, row in zip(outputs["label"], outputs["probabilities"], strict=True)
    ]


class Server:
    """`serve` in another process."""

    def __init__(self, export_dir, record, *flags):
        self._record = record
        self.ports = {"REST": _free_port(), "gRPC": _free_port()}
        self._process = subprocess.Popen([
            sys.executable, __file__, "--serve", record, f"--model_base_path={pathlib.Path(export_dir).resolve()}",
            f"--model_name={_MODEL}", f"--rest_api_port={self.ports['REST']}", f"--port={self.ports['gRPC']}",
            "--noaccess_log", *flags,
        ], stderr=subprocess.PIPE, text=True)  # fmt: skip
        for line in self._process.stderr:
            if " ready: " in line:
                break
        else:
            raise RuntimeError(f"the server ended with {self._process.wait()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        self._process.stderr.read()
        self._process.wait(60)

    def batches(self):
        """The texts of each run so far."""
        with open(self._record) as file:
            return [json.loads(line) for line in file]

    def processor_seconds(self):
        """Processor time of all threads so far."""
        with open(f"/proc/{self._process.pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def megabytes(self):
        """Resident memory."""
        with open(f"/proc/{self._process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _in_process(function, **arguments):
    """Runs a function of this file in another process."""
    command = [sys.executable, __file__, "--call", function]
    done = subprocess.run(command, input=json.dumps(arguments), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(server, protocol, connections, texts, expected, tolerance):
    """One row of the table; raises if an answer is lost or another's."""
    before = server.processor_seconds()
    took, latencies, answers = _in_process(
        "clients", protocol=protocol, port=server.ports[protocol], connections=connections, texts=texts
    )
    processor = server.processor_seconds() - before
    wrong = [
        text
        for text, (label, shares), (expected_label, expected_shares) in zip(texts, answers, expected, strict=True)
        if not np.allclose(shares, expected_shares, atol=tolerance)
        or (label != expected_label and abs(expected_shares[0] - expected_shares[1]) > tolerance)
    ]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {len(texts)} answers are wrong, first that to {wrong[0]!r}")
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99]) * 1000
    return {
        "protocol": protocol, "connections": connections, "requests": len(texts), "rows_per_second": len(texts) / took,
        "p50_ms": p50, "p95_ms": p95, "p99_ms": p99,
        # The clients also ask once to open each connection.
        "processor_ms": processor * 1000 / (len(texts) + connections), "server_megabytes": server.megabytes(),
    }  # fmt: skip


def _line(row):
    """A row of the table."""
    percentiles = ", ".join(f"{row[name]:.0f}" for name in ("p50_ms", "p95_ms", "p99_ms"))
    bare = " | "
    if "bare_rows_per_second" in row:
        rates = ", ".join(f"{row[name]:.0f}" for name in ("loop_rows_per_second", "bare_rows_per_second"))
        bare = f"{rates} | {row['bare_processor_ms'] / row['processor_ms']:.0%}"
    batching = f"{row['rows_per_batch']:.1f} rows" if "rows_per_batch" in row else "yes" if row["batching"] else "no"
    return (
        f"| {row['protocol']}, {row['connections']} | {batching} | {row['rows_per_second']:.0f} | {percentiles} "
        f"| {row['processor_ms']:.1f} | {row['server_megabytes']:.0f} | {bare} |"
    )


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export_dir", help="folder of the model, with its versions inside")
    parser.add_argument("--requests", type=int, default=10_000, help="requests on 32 connections, with batching")
    parser.add_argument("--longest", type=int, default=1, help="most sentences of a text")
    # Batches of other sizes are summed in another order.
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        help="largest difference of a probability from that of the text alone; 0.03 for --optimize",
    )
    parser.add_argument("--output", default="", help="JSON file for the results")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        from bert_tf import quiet

        quiet.import_tensorflow()
        logging.getLogger("tensorflow").setLevel(logging.ERROR)  # the v1 loader is the server's
        print(json.dumps(globals()[arguments.call](**json.load(sys.stdin))))
        return
    texts = texts_of(arguments.requests, arguments.longest)
    expected = _in_process("alone", export_dir=arguments.export_dir, texts=texts)
    rows = []
    names = ("protocol, connections", "batching", "rows/s", "p50, p95, p99 in ms", "processor ms per row", "MB",
             "a bare session, one batch or two at a time: rows/s", "its processor time, of the server's")  # fmt: skip
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)
    for batching in (True, False):
        flags = [] if batching else ["--noenable_batching"]
        with tempfile.NamedTemporaryFile() as record, Server(arguments.export_dir, record.name, *flags) as server:
            for protocol, connections in itertools.product(("REST", "gRPC"), (1, 8, 32)):
                # Enough for the figures; all of them where most can go wrong.
                most = batching and connections == 32
                count = len(texts) if most else max(len(texts) // 10, connections)
                before = len(server.batches())
                row = measured(server, protocol, connections, texts[:count], expected[:count], arguments.tolerance)
                if most:
                    batches = server.batches()[before:]
                    row |= {"rows_per_batch": sum(map(len, batches)) / len(batches)}
                    for name, several in (("loop", False), ("bare", True)):
                        found = _in_process(
                            "ceiling", export_dir=arguments.export_dir, batches=batches, several=several
                        )
                        row |= {f"{name}_{key}": value for key, value in found.items()}
                rows.append({"batching": batching} | row)
                print(_line(rows[-1]), flush=True)
    if arguments.output:
        with open(arguments.output, "w") as file:
            json.dump({"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
