"""Servers for tests: the real one in a thread of this process, and one that sends what a test says."""

import asyncio
import contextlib
import datetime
import http.client
import http.server
import json
import socket
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bert_tf.server import model_list, rpc
from bert_tf.server.models import Models, PollingOptions
from bert_tf.server.monitoring import Metrics
from bert_tf.server.options import EndpointOptions
from bert_tf.server.servable import RunOptions, Runtime
from bert_tf.server.status import ServingError
from bert_tf.server.web import Web


class Running:
    """A REST server that runs in a thread, and gRPC servers of the same models.

    Args:
        config: ModelServerConfig.
        endpoints: EndpointOptions.

    Attributes:
        port: of REST.
        models, web: of the server; to be used by `call`.
        metrics: of both protocols.
    """

    def __init__(self, config, endpoints):
        self.config, self.metrics, self._endpoints = config, Metrics(), endpoints
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(120)

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runtime = Runtime(RunOptions(), self.metrics)
        self.models = Models(runtime, PollingOptions())
        web = Web(self.models, self.metrics, self._endpoints._replace(rest_port=0))
        self.port, self.web = web.port, web.server
        self.web.config.timeout_graceful_shutdown = 1  # for requests that tests do not end
        await web.start()
        try:
            with contextlib.suppress(ServingError):  # some tests have models that cannot be loaded
                await self.models.reload(self.config)
            self._ready.set()
            await self._stop.wait()
        finally:
            self._ready.set()
            await web.stop()
            await self.models.close()
            runtime.close()

    def call(self, coroutine):
        """Runs a coroutine in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    @contextlib.contextmanager
    def grpc(self, endpoints):
        """Context manager: a gRPC server."""
        server = self.call(rpc.start(self.models, self.metrics, endpoints))
        try:
            yield server
        finally:
            self.call(server.stop(1.0))

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def request(self, method, path, body=None, headers=None):
        """Sends a request on a connection of its own; returns the status, the answer from JSON if it is, headers."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            data = response.read()
            if response.headers.get_content_type() == "application/json" and data:
                data = json.loads(data)
            return response.status, data, response.headers

    def post(self, path, document, headers=None):
        """Posts a document to /v1/models/PATH; returns the status and the answer."""
        body = document if isinstance(document, str | bytes) else json.dumps(document)
        return self.request("POST", f"/v1/models/{path}", body, headers)[:2]

    def connect(self):
        """A socket."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextlib.contextmanager
def serving(export_dir, **endpoints):
    """Context manager: the address, http://127.0.0.1:PORT, of the server of the models in a folder.

    Args:
        export_dir: as --export_dir.
        endpoints: fields of EndpointOptions.
    """
    with contextlib.closing(Running(model_list.models_in(str(export_dir)), EndpointOptions(**endpoints))) as running:
        yield f"http://127.0.0.1:{running.port}"


def certificate(name, password=None):
    """(Key, certificate) in PEM, signed by itself; the key is encrypted if there is a password."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder(
        subject, subject, key.public_key(), 1, now - datetime.timedelta(days=1), now + datetime.timedelta(days=1)
    )
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    encoding = serialization.Encoding.PEM
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return (
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, encryption),
        built.sign(key, hashes.SHA256()).public_bytes(encoding),
    )


@contextlib.contextmanager
def sending(answers):
    """Context manager: the address of a server that sends fixed answers.

    Args:
        answers: dict path -> (HTTP status, bytes), or a function of the request's headers that returns them; None hangs
            up without an answer, and so do missing paths.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path)
            status, content = (answer(self.headers) if callable(answer) else answer) or (None, b"")
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if status is not None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
