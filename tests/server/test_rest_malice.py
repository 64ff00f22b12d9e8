"""What hostile clients get: a clear error, while others are answered."""

import contextlib
import gzip
import http.client
import json
import logging
import re
import resource
import socket
import threading
import time
import zlib

import pytest

from bert_tf.server.options import Limits

MB = 2**20
LIMITS = Limits(request_bytes=8 * MB, rows=1000, text_bytes=1000, seconds=5)


@pytest.fixture(scope="module")
def server(start, half_plus_config):
    return start(half_plus_config, limits=LIMITS)


@pytest.fixture(autouse=True)
def _next_request_is_answered(server, caplog):
    yield
    begin = time.monotonic()
    assert server.post("half:predict", {"instances": [1]}) == (200, {"predictions": [3.5]})
    assert time.monotonic() - begin < 2
    ours = (record for record in caplog.records if record.name.startswith("bert_tf"))
    assert not [record.getMessage() for record in ours if record.levelno >= logging.ERROR]


def head(length, *more):
    lines = ["POST /v1/models/half:predict HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def status_of(client):
    """The status of the answer on a socket."""
    response = http.client.HTTPResponse(client)
    response.begin()
    response.read()
    return response.status


def answer_of(client):
    """Status and error of the answer on a socket."""
    response = http.client.HTTPResponse(client)
    response.begin()
    return response.status, json.loads(response.read())["error"]


def resident():
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Memory:
    """Most memory that this process had inside the block, in MB, above that at the start."""

    def __enter__(self):
        self._done = threading.Event()
        self._before = self._most = resident()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._done.wait(0.005):
            self._most = max(self._most, resident())

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()
        self.megabytes = (self._most - self._before) / MB


def gzip_of_zeros(megabytes):
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(bytes(MB)) for _ in range(megabytes)), packer.flush()])


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_of_100_mb_is_refused_before_it_is_in_memory(server, declared):
    block = b"x" * MB
    with Memory() as memory, contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        headers = {"Content-Length": str(100 * MB)} if declared else {"Transfer-Encoding": "chunked"}
        body = (block for _ in range(100))
        connection.request("POST", "/v1/models/half:predict", body, headers, encode_chunked=not declared)
        response = connection.getresponse()
        message = json.loads(response.read())["error"]
        assert response.status == 413
        found = "104857600" if declared else "more than 8388608"
        assert message == f"The body has {found} bytes; at most 8388608 are allowed (--max_request_megabytes)"
        # The rest of the body has been read, and the connection is as good as new.
        connection.request("POST", "/v1/models/half:predict", '{"instances": [1]}')
        assert connection.getresponse().read() == b'{"predictions": [3.5]}'
    assert memory.megabytes < 60


@pytest.mark.parametrize("megabytes", [9, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_gzip_bomb_does_not_go_off(server, megabytes):
    bomb = gzip_of_zeros(megabytes)
    with Memory() as memory:
        status, answer = server.post("half:predict", bomb, {"Content-Encoding": "gzip"})
    assert status == 413
    assert "more than 8388608 decompressed" in answer["error"]
    assert memory.megabytes < 60


# Not with the time, which would be in the tests' names.
_COMPRESSED = gzip.compress(b'{"instances": [1]}', mtime=0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "The body is not gzip, as Content-Encoding says"),
        (_COMPRESSED[:-9], "The body is incomplete: its gzip data has no end"),
        (_COMPRESSED[:-4] + b"xxxx", "The body is not gzip, as Content-Encoding says"),
    ],
)
def test_damaged_gzip(server, body, words):
    status, answer = server.post("half:predict", body, {"Content-Encoding": "gzip"})
    assert status == 400
    assert words in answer["error"]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"instances": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"instances": ' + b"[" * 4_000_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'{"instances": ' + b"[" * 900 + b"]" * 900 + b"}", "64 dimensions"),
        (b'{"instances": [1, NaN, "x"]}', 'instances[2] is "x"'),
        (b'{"instances": [1e999]}', "instances[0]"),
        (b'{"instances": [-1' + b"0" * 400 + b"]}", "instances[0]"),
        (b'{"instances": [1' + b"0" * 100_000 + b"]}", "digits"),
        (b'{"instances": ["\xff\xfe"]}', "position 16"),
        (b'{"instances": ["\\ud800"], "signature_name": "\\ud800"}', '"\\ud800"'),
        (b'{"inputs": {"ids": [[1]], "raw_bytes": [{"b64": "!"}]}, "signature_name": "several"}', "raw_bytes[0]"),
        (b"\x00" * 1000, "char 0"),
        (b'{"instances": [' + b"[]," * 100_000 + b"[]]}", "100001 rows"),
        (b'{"signature_name": "types", "inputs": {"bool": ' + b"[" * 60 + b"0" + b"]" * 60 + b"}}", "inputs has no"),
    ],
)
def test_json_of_an_enemy(server, body, found):
    status, answer = server.post("half:predict", body)
    assert status == 400
    assert found in answer["error"]
    assert len(answer["error"]) < 500


def test_nan_and_infinity_are_numbers(server):
    status, answer = server.post("half:predict", b'{"instances": [NaN, Infinity, -Infinity]}')
    assert status == 200
    assert str(answer["predictions"]) == "[nan, inf, -inf]"


def test_of_duplicate_keys_the_first_counts(server):
    assert server.post("half:predict", b'{"instances": [1], "instances": [2]}') == (200, {"predictions": [3.5]})


def test_headers_that_are_too_large(server):
    with server.connect() as client:
        client.sendall(head(2, "X: " + "x" * 300_000) + b"{}")
        try:
            found = status_of(client)
        except ConnectionResetError:  # closed before all was read, which may discard the answer
            found = None
    assert found in (400, None)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # of TLS
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA\x00: b\r\n\r\n",
        head("1, 2"),
        head("-5"),
        head("9" * 5000),
        head(5, "Transfer-Encoding: gzip"),
        head("").replace(b"Content-Length: ", b"Transfer-Encoding: chunked") + b"xyz\r\n",
    ],
)
def test_http_of_an_enemy(server, request_):
    with server.connect() as client:
        client.sendall(request_)
        assert status_of(client) == 400
        assert client.recv(1) == b""


def test_a_client_that_sends_its_body_slowly(start, half_plus_config):
    server = start(half_plus_config, limits=Limits(seconds=0.5))
    with server.connect() as client:
        client.sendall(head(100))
        for _ in range(3):
            client.sendall(b"{")
            time.sleep(0.1)
        assert answer_of(client) == (408, "Only 3 bytes of the body arrived within 0.5 seconds")
    assert server.post("half:predict", {"instances": [1]})[0] == 200


@pytest.mark.parametrize("answered", [0, 1])
@pytest.mark.parametrize("sent", [b"", b"POST /v1/mod", head(5)[:-2]], ids=["nothing", "part", "half"])
def test_a_client_that_never_sends_the_rest_of_a_head_is_left(start, half_plus_config, answered, sent):
    server = start(half_plus_config, limits=Limits(seconds=0.5))
    with server.connect() as client:
        for _ in range(answered):
            client.sendall(head(0))
            assert status_of(client) == 400
        client.sendall(sent)
        assert client.recv(1) == b""


def test_the_bytes_of_a_head_do_not_extend_its_time(start, half_plus_config):
    server = start(half_plus_config, limits=Limits(seconds=0.5))
    with server.connect() as client, pytest.raises(ConnectionError):
        client.sendall(head(5)[:-4] + b"\r\nX: ")
        for _ in range(300):
            time.sleep(0.1)
            client.sendall(b"x")


def test_a_connection_that_is_used_stays_open(start, half_plus_config):
    server = start(half_plus_config, limits=Limits(seconds=2))
    with server.connect() as client:
        for _ in range(5):
            client.sendall(head(0))
            assert status_of(client) == 400
            time.sleep(0.5)


@pytest.mark.parametrize("pace", [0, 0.1])
def test_a_client_that_does_not_read_its_answer_is_left(start, half_plus_config, pace):
    """Or reads it slowly: 1 kB in a tenth of a second."""
    server = start(half_plus_config, limits=Limits(seconds=0.5, rows=10**6))
    body = json.dumps({"instances": [0.123456] * 200_000}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head(len(body)) + body)
        read, slow_until = 0, time.monotonic() + 4
        with contextlib.suppress(ConnectionResetError):
            time.sleep(0 if pace else 4)
            while more := client.recv(1024):
                read += len(more)
                time.sleep(pace if time.monotonic() < slow_until else 0)
    assert 0 < read < 1_000_000  # of an answer of 1.8 MB


def test_a_request_whose_client_is_gone_is_not_waited_for(server, caplog):
    caplog.set_level(logging.INFO, "bert_tf.server.access")
    body = b'{"signature_name": "slow", "instances": [200000]}'
    with server.connect() as client:
        client.sendall(head(len(body)) + body)
        time.sleep(0.2)
    entries, deadline = [], time.monotonic() + 10
    while not entries and time.monotonic() < deadline:
        time.sleep(0.05)
        entries = [entry for entry in map(json.loads, caplog.messages) if entry["bytes_in"] == len(body)]
    assert [entry["status"] for entry in entries] == [499]


@pytest.mark.parametrize("sent", [b"", b"POST /v1/mod", head(100), head(100) + b"{"])
def test_a_request_that_is_broken_off_is_not_answered(server, sent):
    with server.connect() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


def test_pipelined_requests_are_answered_in_order(server):
    bodies = [json.dumps({"instances": [value]}).encode() for value in range(20)]
    with server.connect() as client, client.makefile("rb") as file:
        client.sendall(b"".join(head(len(body)) + body for body in bodies[:-1]))
        client.sendall(head(len(bodies[-1]), "Connection: close") + bodies[-1])
        answers = re.findall(rb'{"predictions": \[(.*?)\]}', file.read())
    assert [*map(float, answers)] == [value / 2 + 3 for value in range(20)]


def test_more_requests_than_allowed_are_refused_but_health_is_answered(start, half_plus_config):
    server = start(half_plus_config, limits=Limits(connections=3))
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(server.connect()).sendall(head(100))
        time.sleep(0.1)
        status, answer = server.post("half:predict", {"instances": [1]})
        assert status == 503 and "--max_connections" in answer["error"]
        assert server.request("GET", "/readyz")[0] == 200
    time.sleep(0.1)
    assert server.post("half:predict", {"instances": [1]})[0] == 200


def test_bodies_together_are_limited(start, half_plus_config):
    server = start(half_plus_config, limits=Limits(request_bytes=MB))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(5)]
        for client in clients:
            client.sendall(head(MB) + bytes(MB - 1))
        for client in clients:
            client.settimeout(0.2)
        answers = []
        for client in clients:
            with contextlib.suppress(TimeoutError):
                answers.append(answer_of(client))
        ((status, message),) = answers
        assert status == 503
        assert message.startswith("Other requests of 4")
    time.sleep(0.1)
    assert server.post("half:predict", {"instances": [1]})[0] == 200


def test_5000_connections(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8000:
        pytest.skip(f"this process may only have {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Memory() as memory, contextlib.ExitStack() as stack:
            for number in range(5000):
                client = stack.enter_context(server.connect())
                if number % 2:
                    with contextlib.suppress(OSError):
                        client.sendall(b"GET /healthz HTTP/1.1\r\n")
            assert server.post("half:predict", {"instances": [1]}) == (200, {"predictions": [3.5]})
        assert memory.megabytes < 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_length_beside_chunks_is_ignored_and_the_connection_closed(server):
    body, smuggled = b'{"instances": [1]}', b"GET /v1/models/half HTTP/1.1\r\nHost: localhost\r\n\r\n"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with server.connect() as client:
        client.sendall(head(100 * MB, "Transfer-Encoding: chunked") + chunks + smuggled)
        response = http.client.HTTPResponse(client)
        response.begin()
        assert (response.status, response.read()) == (200, b'{"predictions": [3.5]}')
        assert response.headers["Connection"] == "close"
        assert client.recv(1) == b""  # and no answer to what a proxy may have taken for a part of the body


def test_an_answer_that_is_too_large_is_refused_before_it_is_written(start, half_plus_config):
    """ "_bytes" as base64 take a third more, floats as text up to four times as much as in memory."""
    small = start(half_plus_config, limits=LIMITS._replace(answer_bytes=3000))
    rows = [{"ids": [1], "raw_bytes": "x" * 600}] * 3  # answered twice
    status, answer = small.post("half:predict", {"signature_name": "several", "instances": rows})
    assert status == 429
    assert answer["error"].startswith("the answer has 3606 bytes or more; at most 3000 are allowed (--max_answer_meg")
    status, answer = small.post("half:predict", {"signature_name": "several", "instances": rows[:2]})
    assert status == 429 and answer["error"].startswith("the answer has 32")
    assert small.post("half:predict", {"signature_name": "several", "instances": rows[:1]})[0] == 200
    assert small.post("half:predict", {"instances": [1 / 3] * 400})[0] == 429
    assert small.post("half:predict", {"instances": [1 / 3] * 200})[0] == 200
