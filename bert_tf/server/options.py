"""Settings of a server; the flags of `python -m bert_tf.serve` set them."""

import hmac
from typing import NamedTuple

MOST_THREADS = 1024  # of a pool; TensorFlow's begin all at once, and with a million the process ends
DEFAULT_PROMETHEUS_PATH = "/monitoring/prometheus/metrics"  # TF Serving's


class Limits(NamedTuple):
    """Limits of requests and answers; a request that exceeds them gets an error.

    Attributes:
        request_bytes: maximum size of a body, also after decompression, or of a gRPC message.
        answer_bytes: the same for answers.
        rows: maximum rows per request.
        text_bytes: maximum size of one string.
        seconds: time limit for the head of a request, and from there to its answer; clients may set a shorter one.
        connections: maximum number of open connections in gRPC, and of requests that are being answered in REST.
    """

    request_bytes: int = 16 * 2**20
    answer_bytes: int = 128 * 2**20
    rows: int = 10_000
    text_bytes: int = 2**20
    seconds: float = 30.0
    connections: int = 1000


class Tls(NamedTuple):
    """A server's certificate, in PEM.

    Attributes:
        key, certificate: the server's.
        client_ca: CA that signed the clients' certificates; b"" for none.
        client_required: whether clients must present a certificate.
    """

    key: bytes
    certificate: bytes
    client_ca: bytes = b""
    client_required: bool = False


class EndpointOptions(NamedTuple):
    """Settings of the two protocols.

    Attributes:
        host: address to listen on.
        grpc_port, rest_port: 0 for no such port.
        grpc_socket: path of a Unix socket for gRPC; "" for none.
        limits: of requests.
        token: bearer token that clients must send; "" for none.
        cors: whether web pages of other hosts may use the REST API.
        prometheus_path: of the metrics page; "" for none.
        tls: of both ports; None for plain text.
        channel_arguments: of the gRPC server.
        tensor_content: whether tensors in gRPC answers are bytes instead of typed lists.
        health: whether gRPC has grpc.health.v1.
        access_log: whether each request is logged as a line of JSON.
    """

    host: str = "127.0.0.1"
    grpc_port: int = 8500
    rest_port: int = 8501
    grpc_socket: str = ""
    limits: Limits = Limits()
    token: str = ""
    cors: bool = False
    prometheus_path: str = DEFAULT_PROMETHEUS_PATH
    tls: Tls | None = None
    channel_arguments: tuple[tuple[str, int | str], ...] = ()
    tensor_content: bool = False
    health: bool = True
    access_log: bool = True

    def allow(self, authorization: str) -> bool:
        """Whether a request with this header `authorization` may be answered."""
        if not self.token:
            return True
        scheme, _, token = authorization.partition(" ")
        right = hmac.compare_digest(token.strip().encode("latin-1", "replace"), self.token.encode())
        return right and scheme.lower() == "bearer"
