"""TF Serving's REST API, health, metrics and the page, over HTTP.

The rules and the words of the errors are those of TF Serving (model_servers/http_rest_api_handler.cc). HTTP itself is
h11's and uvicorn's; `protocol` adds the limits that they lack: for clients that send or read slowly, for connections
without requests, and for their number.
"""

import asyncio
import asyncio.constants
import asyncio.sslproto
import concurrent.futures
import contextlib
import ipaddress
import json
import logging
import os
import re
import socket
import sys
import time
import urllib.parse
import zlib
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import h11
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from bert_tf.server import examples, json_codec
from bert_tf.server.errors import Code, ServingError, invalid
from bert_tf.server.models import AVAILABLE, Models
from bert_tf.server.monitoring import Metrics, log_access
from bert_tf.server.options import EndpointOptions, Limits
from bert_tf.server.servable import Servable, serialized
from bert_tf.server.tensors import check_limits
from bert_tf.types import Json

_T = TypeVar("_T")
_log = logging.getLogger("bert_tf.server")

_PAGE = os.path.join(os.path.dirname(__file__), "page")
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_HEALTH = ("/healthz", "/readyz")
_FREE = re.compile(r"/healthz|/readyz|/|/page/(?!models\.json).*")  # paths that need no token
_API = re.compile(r"(?i)/v1/.*", re.DOTALL)
_OF_MODEL = r"(?i:/v1/models(?:/(?P<name>[^/:]+))?(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_PREDICTION = re.compile(_OF_MODEL + r"):(?P<method>classify|regress|predict)")
_INFORMATION = re.compile(_OF_MODEL + r"(?:/(?P<resource>metadata))?)")
_METHODS = {"classify": examples.CLASSIFY, "regress": examples.REGRESS}

_LARGE = 2**14  # bytes or values that are converted in a thread, so that others are answered meanwhile
_DECODERS = 2  # threads; more would only wait for Python's lock
_BODIES = 4  # bodies of the largest size that may be in memory at the same time
_HEAD_SECONDS = 10.0  # to send the first lines of a request
_LINGER_SECONDS = 2.0  # to read the answer after an error, before the connection is closed


class _HttpError(Exception):
    """An error that gRPC has no code for.

    Args:
        status: of HTTP.
        message: for the client.
        headers: of the answer.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def _answer(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, "application/json")


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _answer(json_codec.encode_error(message), status, headers)


class Application:
    """The REST API and the page, for ASGI.

    Args:
        models: to serve.
        metrics: counts the requests.
        endpoints: limits, token and others.
    """

    def __init__(self, models: Models, metrics: Metrics, endpoints: EndpointOptions) -> None:
        self._api, self._endpoints = _Api(models, metrics, endpoints), endpoints
        self._site = _site(models, metrics, endpoints.prometheus_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        entry: Json = {"status": 499, "bytes_in": 0, "bytes_out": 0, "model": None, "version": None, "rows": None}

        async def send_logged(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry["status"] = message["status"]
            entry["bytes_out"] += len(message.get("body", b""))
            await send(message)

        request = Request(scope, receive)
        try:
            try:
                self._check(request)
                if _API.fullmatch(scope["path"]):
                    answer: ASGIApp = await self._api.answer(request, entry)
                else:
                    answer = self._site
            except ServingError as error:
                answer = _error(error.code.http_status, error.message)
            except _HttpError as error:
                answer = _error(error.status, error.message, error.headers)
            except ClientDisconnect:
                return
            except Exception:
                _log.exception("%s %s failed", request.method, _target(request))
                answer = _error(500, "Internal error; the server's log says more")
            if isinstance(answer, Response) and self._endpoints.cors:
                answer.headers["Access-Control-Allow-Origin"] = "*"
                answer.headers["Access-Control-Allow-Methods"] = "POST, GET"
                allowed = "Content-Type, Authorization" if self._endpoints.token else "Content-Type"
                answer.headers["Access-Control-Allow-Headers"] = allowed
            await answer(scope, receive, send_logged)
        finally:
            if self._endpoints.access_log and scope["path"] not in _HEALTH:  # which is asked for every second
                log_access(
                    method=request.method,
                    path=_target(request),
                    status=entry.pop("status"),
                    milliseconds=round((time.perf_counter() - start) * 1000, 1),
                    **entry,
                    client=request.client.host if request.client else None,
                )

    def _check(self, request: Request) -> None:
        """Raises _HttpError if the request is not allowed."""
        if request.method == "OPTIONS":  # browsers ask without token whether they may ask
            return
        origin = request.headers.get("origin")
        if origin and not self._endpoints.cors:
            # Browsers let any web page send requests; TF Serving would answer those of type text/plain.
            scheme, _, host = origin.lower().partition("://")
            if host != request.headers.get("host", "").lower():
                raise _HttpError(
                    403,
                    f"Requests from web pages of {origin} are not allowed; start the server with "
                    "--rest_api_enable_cors_support to allow those of all web pages",
                )
            # A page's own name may lead here, too (DNS rebinding), but not by https, nor does the page know the token.
            here, name = request.scope["server"][0], re.sub(r":\d*$", "", host).strip("[]")
            if scheme == "http" and not self._endpoints.token and _is_loopback(here) and not self._is_local(name):
                raise _HttpError(
                    403,
                    f"Requests from web pages of {origin} to this machine itself are not allowed; open the page at "
                    "http://localhost, or start the server with --token_file",
                )
        free = _FREE.fullmatch(request.scope["path"])
        if not free and not self._endpoints.allow(request.headers.get("authorization", "")):
            raise _HttpError(401, "Expected the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    def _is_local(self, name: str) -> bool:
        """Whether a page of another host cannot have this name."""
        return name in ("localhost", socket.gethostname().lower(), self._endpoints.host.lower()) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _target(request: Request) -> str:
    """Path and query as the client sent them."""
    query = request.scope["query_string"]
    return (request.scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")


# The page, health and metrics


def _site(models: Models, metrics: Metrics, prometheus_path: str) -> Starlette:
    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        return PlainTextResponse("ready\n") if models.ready() else PlainTextResponse("models are loading\n", 503)

    async def page(_: Request) -> Response:
        return FileResponse(os.path.join(_PAGE, "index.html"), headers=_PAGE_HEADERS)

    async def listed(_: Request) -> Response:
        return _answer(json.dumps({"models": [_described(models, name) for name in models.names()]}).encode())

    async def measured(_: Request) -> Response:
        return Response(metrics.page(), media_type="text/plain")

    async def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = "Not found" if error.status_code == 404 else error.detail
        return _error(error.status_code, f"{words}: {request.method} {_target(request)}", dict(error.headers or {}))

    routes: list[Any] = [
        Route("/healthz", healthy),
        Route("/readyz", ready),
        Route("/", page),
        Route("/page/models.json", listed),
        Mount("/page", _PageFiles(directory=_PAGE, check_dir=False)),
    ]
    if prometheus_path:
        routes.insert(0, Route(prometheus_path, measured))
    return Starlette(routes=routes, exception_handlers={HTTPException: failed})


class _PageFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_PAGE_HEADERS)
        return response


def _described(models: Models, name: str) -> Json:
    """A model as the page shows it."""
    try:
        versions = models.status(name)
    except ServingError:  # not loaded yet
        versions = []
    card, signatures = None, []
    if any(one.state == AVAILABLE for one in versions):
        with models.acquire(name) as servable:
            card, signatures = servable.card, sorted(servable.signatures)
    return {
        "name": name,
        "versions": [{"version": one.version, "state": one.state} for one in versions],
        "labels": models.labels(name),
        "card": card,
        "signatures": signatures,
    }


# TF Serving's API


class _Call(NamedTuple):
    """A request to a model.

    Attributes:
        document: its body.
        method: predict, classify or regress.
        size: of the body in bytes.
        deadline: in the time of the event loop.
        entry: of the log.
    """

    document: Json
    method: str
    size: int
    deadline: float
    entry: Json

    def seconds_left(self) -> float:
        return max(self.deadline - asyncio.get_running_loop().time(), 0.001)


class _Api:
    def __init__(self, models: Models, metrics: Metrics, endpoints: EndpointOptions) -> None:
        self._models, self._metrics, self._limits = models, metrics, endpoints.limits
        self._threads = concurrent.futures.ThreadPoolExecutor(_DECODERS, "json")
        self._buffered = 0  # bytes of all bodies

    async def answer(self, request: Request, entry: Json) -> Response:
        """Answers a request below /v1/.

        Args:
            request: of any method.
            entry: of the log, to which this adds.
        """
        deadline = asyncio.get_running_loop().time() + self._limits.seconds
        if request.method == "OPTIONS":
            if not re.match("https?://", request.headers.get("origin", "")):
                raise ServingError(Code.FAILED_PRECONDITION, "Origin header is missing in CORS preflight")
            return _answer(b"")
        pattern = {"POST": _PREDICTION, "GET": _INFORMATION}.get(request.method)
        found = pattern.fullmatch(_target(request)) if pattern else None
        if found is None or (request.method == "POST" and not found["name"]):
            raise invalid(f"Malformed request: {request.method} {_target(request)}")
        name = urllib.parse.unquote(found["name"] or "")
        label = urllib.parse.unquote(found["label"]) if found["label"] else None
        version = int(found["version"]) if found["version"] and len(found["version"]) < 20 else None
        if found["version"] and (version is None or version >= 2**63):
            raise invalid(f"Failed to convert version: {found['version']} to numeric.")
        if not name:
            raise invalid("Missing model name in request.")
        if request.method == "GET":
            return _answer(self._information(name, version, label, found["resource"]))
        try:
            body = await self._read(request, entry, deadline)
            # Names of unknown models are not counted, because there is any number of them.
            known = name in self._models.names()
            with self._metrics.request(name, found["method"], "REST") if known else contextlib.nullcontext():
                try:
                    async with asyncio.timeout_at(deadline):
                        document = await self._in_thread(len(body), json_codec.parse, body)
                        with self._models.acquire(name, version, label) as servable:
                            entry |= {"model": name, "version": servable.version}
                            call = _Call(document, found["method"], len(body), deadline, entry)
                            run = self._predict if call.method == "predict" else self._infer
                            return _answer(await _while_connected(request, run(servable, call)))
                except TimeoutError:
                    raise ServingError(Code.DEADLINE_EXCEEDED, "Deadline exceeded") from None
        finally:
            self._buffered -= entry["bytes_in"]

    def _information(self, name: str, version: int | None, label: str | None, resource: str | None) -> bytes:
        if resource is None:
            found = self._models.status(name, version)
            return json_codec.encode_status((one.version, one.state, one.code.name, one.message) for one in found)
        with self._models.acquire(name, version, label) as servable:
            return json_codec.encode_metadata(name, servable.version, servable.signatures)

    async def _read(self, request: Request, entry: Json, deadline: float) -> bytes | bytearray:
        """The body of a request, decompressed."""
        most = self._limits.request_bytes
        if int(request.headers.get("content-length", 0)) > most:
            raise _too_large(request.headers["content-length"], most)
        body = bytearray()
        try:
            async with asyncio.timeout_at(deadline):
                async for chunk in request.stream():
                    body += chunk
                    entry["bytes_in"] += len(chunk)
                    self._buffered += len(chunk)
                    if len(body) > most:
                        raise _too_large(f"more than {most}", most)
                    if self._buffered > _BODIES * most:
                        raise ServingError(
                            Code.UNAVAILABLE,
                            f"Other requests of {self._buffered} bytes are being read; try again later",
                        )
        except TimeoutError:
            raise _HttpError(
                408, f"Only {len(body)} bytes of the body arrived within {self._limits.seconds:g} seconds"
            ) from None
        if "gzip" in request.headers.get("content-encoding", "").lower():
            return await self._in_thread(_LARGE, _inflated, body, most)
        return body

    async def _predict(self, servable: Servable, call: _Call) -> bytes:
        decode, encode = json_codec.decode_predict, json_codec.encode_predict
        request = await self._in_thread(call.size, decode, call.document, servable.signatures)
        call.entry["rows"] = await self._in_thread(call.size, check_limits, request.inputs, self._limits)
        outputs = await servable.predict(request.signature_name, request.inputs, timeout=call.seconds_left())
        size = sum(sum(map(len, value.flat)) if value.dtype == object else value.size for value in outputs.values())
        return await self._in_thread(size, encode, outputs, request.by_row)

    async def _infer(self, servable: Servable, call: _Call) -> bytes:
        """Classifies or regresses."""
        message = await self._in_thread(call.size, json_codec.decode_examples, call.document, call.method)
        name = json_codec.signature_name(call.document)
        chosen = examples.outputs_of(servable.signatures, name, _METHODS[call.method])
        inputs = {"inputs": await self._in_thread(call.size, serialized, message)}
        call.entry["rows"] = rows = await self._in_thread(call.size, check_limits, inputs, self._limits)
        outputs = await servable.predict(name, inputs, chosen, timeout=call.seconds_left())
        if call.method == "classify":
            return json_codec.encode_classification(examples.classification(outputs, rows))
        return json_codec.encode_regression(examples.regression(outputs, rows))

    async def _in_thread(self, size: int, function: Callable[..., _T], *args: Any) -> _T:
        """Calls a function, in a thread if it has much to do.

        Args:
            size: of what it converts, in bytes or values.
            function, args: to call.
        """
        if size < _LARGE:
            return function(*args)
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


async def _while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Waits for work whose client may give up: the model is to answer the others, also when many do so.

    Raises:
        ClientDisconnect: the client is gone, and the work is cancelled.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    running, gone = asyncio.create_task(work), asyncio.create_task(disconnected())
    try:
        await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientDisconnect
        return running.result()
    finally:
        running.cancel()
        gone.cancel()


def _too_large(found: str, most: int) -> _HttpError:
    return _HttpError(413, f"The body has {found} bytes; at most {most} are allowed (--max_request_megabytes)")


def _inflated(body: bytes | bytearray, most: int) -> bytes:
    """Decompresses gzip, without using more memory than is allowed."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        data = inflater.decompress(body, most + 1)
    except zlib.error as error:
        raise invalid(f"The body is not gzip, as Content-Encoding says: {error}") from None
    if len(data) > most:
        raise _too_large(f"more than {most} decompressed", most)
    if not inflater.eof:
        raise invalid("The body is incomplete: its gzip data has no end")
    return data


# Connections


def protocol(endpoints: EndpointOptions) -> type[asyncio.Protocol]:
    """The class of connections, for uvicorn's option `http`.

    Args:
        endpoints: limits.
    """

    if endpoints.tls:
        # Connections are counted after the TLS handshake, for which asyncio waits a minute with a buffer of 256 kB.
        asyncio.sslproto.SSLProtocol.max_size = 2**15
        asyncio.constants.SSL_HANDSHAKE_TIMEOUT = min(_HEAD_SECONDS, endpoints.limits.seconds)

    class Connection(_Connection):
        limits, idle = endpoints.limits, {}

    return Connection


class _Connection(H11Protocol):
    """A connection, with limits on its time and the number of all.

    A client has some seconds to send the head of a request; the application limits the time of body and answer. If
    there are too many connections, the one that has waited longest for a request makes place for a new one.

    Attributes:
        limits: of requests.
        idle: connections without a request, in the order in which they became so.
    """

    limits: Limits
    idle: "dict[_Connection, None]"
    _waiting: asyncio.TimerHandle | None = None  # for the head of a request
    _writing: asyncio.TimerHandle | None = None  # for the client to read
    _read_all = False  # the client sends no more, and may wait for answers
    _ended = False  # what else the client sends is not looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does so only for sockets that name TCP. Otherwise the body waits 40 ms for the ACK of the headers.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self.limits.connections:
            if not self.idle:
                self._end(503, f"The server has {self.limits.connections} other connections; try again later")
                return
            oldest = next(iter(self.idle))
            oldest._forget()
            oldest.transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self._writing:
            self._writing.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._ended:
            super().data_received(data)
            self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answers clients that end their sending side after the request, such as `printf ... | nc`.

        Clients that are gone look the same, so the answer has to come soon.
        """
        if self._is_busy() and not self.cycle.more_body:
            self._read_all = True
            self.loop.call_later(_LINGER_SECONDS, self._leave)
            return self.transport.can_write_eof()  # TLS has only one end
        if not self._ended and (self._is_busy() or self.conn.trailing_data[0]):
            self.conn.receive_data(b"")  # the end: h11's error says what is missing
            self.handle_events()
        return False

    def _leave(self) -> None:
        if self._is_busy():
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._read_all and not self._is_busy():
            self.transport.close()
        self._watch()

    def shutdown(self) -> None:
        if self._is_busy():  # uvicorn repeats this in the answer, so that the client does not ask again
            self.cycle.scope["headers"] = [*self.cycle.scope["headers"], (b"connection", b"close")]
        super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing:
            self._writing.cancel()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():  # the client does not read
            self.loop.call_later(self.limits.seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]  # uvicorn calls this where it has caught it
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        words = "the headers are too large" if status == 431 else f"{error}"
        if self._is_busy():  # in the body
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._end(status, f"Invalid HTTP request: {words}")

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        """Limits the time without a request."""
        if self._is_busy():
            self._forget()
        elif self._waiting is None and not self._ended and not self.transport.is_closing():
            seconds = min(_HEAD_SECONDS, self.limits.seconds)
            self._waiting = self.loop.call_later(seconds, self._give_up, seconds)
            self.idle[self] = None

    def _forget(self) -> None:
        self.idle.pop(self, None)
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self, seconds: float) -> None:
        if self.conn.trailing_data[0] and not self._is_busy():
            self._end(408, f"The head of the request did not arrive within {seconds:g} seconds")
        else:
            self.transport.abort()

    def _end(self, status: int, message: str) -> None:
        """Sends an error, and closes the connection when the client can have read it."""
        self._forget()
        self._ended = True
        body = json_codec.encode_error(message)
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        response = h11.Response(status_code=status, headers=[*headers.items()], reason=STATUS_PHRASES[status])
        with contextlib.suppress(h11.LocalProtocolError):  # an answer has been begun
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        # To close the connection before all data is read would discard the answer, too.
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
