"""TF Serving's REST API, health, metrics and the page, over HTTP.

Addresses, statuses and the form of answers are those of TF Serving (model_servers/http_rest_api_handler.cc).
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import re
import socket
import urllib.parse
import zlib
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_tf.server import json_answers, json_requests, tf_examples
from bert_tf.server.calls import Call, Runner, check_answer, in_thread
from bert_tf.server.models import AVAILABLE, Models, status_response
from bert_tf.server.monitoring import Metrics
from bert_tf.server.options import EndpointOptions
from bert_tf.server.servable import Servable
from bert_tf.server.status import Code, ServingError, invalid
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
_METHODS = {"classify": tf_examples.CLASSIFY, "regress": tf_examples.REGRESS}

_BODIES = 4  # bodies of the largest size that may be in memory at the same time
_PART = 2**18  # bytes of an answer that are sent at a time


def _answer(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, "application/json")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return _answer(json_answers.encode_error(message), status, headers)


class Application:
    """The REST API and the page, for ASGI.

    Args:
        models: to serve.
        metrics: counts the requests.
        endpoints: limits, token and others.

    Attributes:
        requests: number of those that are being answered.
        stopping: whether clients are told to close their connections.
    """

    def __init__(self, models: Models, metrics: Metrics, endpoints: EndpointOptions) -> None:
        self._models, self._endpoints, self._limits = models, endpoints, endpoints.limits
        self._runner = Runner(models, metrics, endpoints.limits, "REST")
        self.requests = 0
        self._buffered = 0  # bytes of all bodies
        self.stopping = False
        self._site = _site(models, metrics, endpoints.prometheus_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(asyncio.get_running_loop().time() + self._limits.seconds)
        status = 499  # if there is no answer, because the client is gone
        request = Request(scope, receive)
        # A proxy may take what follows for another request than uvicorn, which ignores the length (RFC 9112, 6.3).
        ambiguous = "content-length" in request.headers and "transfer-encoding" in request.headers

        async def send_logged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if ambiguous or self.stopping or status == 408:
                    message["headers"].append((b"connection", b"close"))
            call.bytes_out += len(message.get("body", b""))
            await self._send(send, message)

        self.requests += 1
        try:
            try:
                self._check(request)
                if _API.fullmatch(scope["path"]):
                    answer: ASGIApp = await self._call_api(request, call)
                else:
                    answer = self._site
            except ServingError as error:
                answer = _error(error.code.http_status, error.message)
            except HTTPException as error:
                answer = _error(error.status_code, error.detail, error.headers)
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
            with contextlib.suppress(TimeoutError):  # of a client that does not read; uvicorn closes the connection
                await answer(scope, receive, send_logged)
        finally:
            self.requests -= 1
            if self._endpoints.access_log and scope["path"] not in _HEALTH:  # which is asked for every second
                client = request.client.host if request.client else None
                call.log(client, method=request.method, path=_target(request), status=status)

    async def _send(self, send: Send, message: Message) -> None:
        """Sends a message in parts: before each, uvicorn waits until the client has read most of those before.

        Raises:
            TimeoutError: it does not read.
        """
        body, more = message.get("body", b""), message.get("more_body", False)
        for start in range(0, max(len(body), 1), _PART):
            if len(body) > _PART:
                end = start + _PART
                message = {**message, "body": body[start:end], "more_body": more or end < len(body)}
            async with asyncio.timeout(self._limits.seconds):
                await send(message)

    def _check(self, request: Request) -> None:
        """Raises HTTPException if the request is not allowed."""
        if request.method == "OPTIONS":  # browsers ask without token whether they may ask
            return
        origin = request.headers.get("origin")
        if origin and not self._endpoints.cors:
            # Browsers let any web page send requests; TF Serving would answer those of type text/plain.
            scheme, _, host = origin.lower().partition("://")
            if host != request.headers.get("host", "").lower():
                raise HTTPException(
                    403,
                    f"Requests from web pages of {origin} are not allowed; start the server with "
                    "--rest_api_enable_cors_support to allow those of all web pages",
                )
            # A page's own name may lead here, too (DNS rebinding), but not by https, nor does the page know the token.
            here, name = request.scope["server"][0], re.sub(r":\d*$", "", host).strip("[]")
            to_itself = ipaddress.ip_address(here).is_loopback
            if scheme == "http" and not self._endpoints.token and to_itself and not self._is_local(name):
                raise HTTPException(
                    403,
                    f"Requests from web pages of {origin} to this machine itself are not allowed; open the page at "
                    "http://localhost, or start the server with --token_file",
                )
        free = _FREE.fullmatch(request.scope["path"])
        if not free and not self._endpoints.allow(request.headers.get("authorization", "")):
            raise HTTPException(401, "Expected the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})

    def _is_local(self, name: str) -> bool:
        """Whether a page of another host cannot have this name."""
        return name in ("localhost", socket.gethostname().lower(), self._endpoints.host.lower()) or _is_address(name)

    async def _call_api(self, request: Request, call: Call) -> Response:
        """Answers a request below /v1/.

        Args:
            request: of any method.
            call: what is known of it.
        """
        if self.requests > self._limits.connections:  # health is still answered
            raise ServingError(
                Code.UNAVAILABLE,
                f"{self._limits.connections} other requests are being answered (--max_connections); try again later",
            )
        if request.method == "OPTIONS":
            if not re.match("https?://", request.headers.get("origin", "")):
                raise ServingError(Code.FAILED_PRECONDITION, "the header Origin is missing, or no address of the web")
            return _answer(b"")
        pattern = {"POST": _PREDICTION, "GET": _INFORMATION}.get(request.method)
        found = pattern.fullmatch(_target(request)) if pattern else None
        if found is None or (request.method == "POST" and not found["name"]):
            raise invalid(f"unknown request: {request.method} {_target(request)}")
        name = urllib.parse.unquote(found["name"] or "")
        label = urllib.parse.unquote(found["label"]) if found["label"] else None
        version = int(found["version"]) if found["version"] and len(found["version"]) < 20 else None
        if found["version"] and (version is None or version >= 2**63):
            raise invalid(f"no version has the number {found['version']}")
        if not name:
            raise invalid("the request names no model")
        if request.method == "GET":
            return _answer(self._information(name, version, label, found["resource"]))
        method = found["method"]
        try:
            body = await self._read(request, call)
            call.size = len(body)
            with self._runner.counted(call, name, method.capitalize()):
                document = await in_thread(call.size, json_requests.parse, body)
                with self._runner.acquired(call, name, version, label) as servable:
                    if method == "predict":
                        work = self._predict(call, servable, document)
                    else:
                        work = self._infer(call, servable, document, method)
                    answer = await _while_connected(request, work)
                    check_answer(len(answer), self._limits)
                    return _answer(answer)
        finally:
            self._buffered -= call.bytes_in

    def _information(self, name: str, version: int | None, label: str | None, resource: str | None) -> bytes:
        if resource is None:
            return json_answers.encode_status(status_response(self._models.status(name, version)))
        with self._models.acquire(name, version, label) as servable:
            return json_answers.encode_metadata(name, servable.version, servable.signatures)

    async def _read(self, request: Request, call: Call) -> bytes | bytearray:
        """The body of a request, decompressed."""
        most = self._limits.request_bytes
        length = request.headers.get("content-length", "0")
        if int(length) > most and "transfer-encoding" not in request.headers:
            raise _too_large(length, most)
        body = bytearray()
        try:
            async with asyncio.timeout_at(call.deadline):
                async for chunk in request.stream():
                    body += chunk
                    call.bytes_in += len(chunk)
                    self._buffered += len(chunk)
                    if len(body) > most:
                        raise _too_large(f"more than {most}", most)
                    if self._buffered > _BODIES * most:
                        raise ServingError(
                            Code.UNAVAILABLE,
                            f"Other requests of {self._buffered} bytes are being read; try again later",
                        )
        except TimeoutError:
            raise HTTPException(
                408, f"Only {len(body)} bytes of the body arrived within {self._limits.seconds:g} seconds"
            ) from None
        if "gzip" in request.headers.get("content-encoding", "").lower():
            return await in_thread(most, _inflated, body, most)
        return body

    async def _predict(self, call: Call, servable: Servable, document: Json) -> bytes:
        request = await in_thread(call.size, json_requests.decode_predict, document, servable.signatures)
        outputs = await self._runner.predict(call, servable, request.signature_name, request.inputs)
        size = sum(sum(map(len, value.flat)) if value.dtype == object else value.size for value in outputs.values())
        return await in_thread(size, json_answers.encode_predict, outputs, request.by_row)

    async def _infer(self, call: Call, servable: Servable, document: Json, name: str) -> bytes:
        """Classifies or regresses."""
        asked = await in_thread(call.size, json_requests.decode_examples, document)
        signature, method = json_requests.signature_name(document), _METHODS[name]
        outputs = tf_examples.outputs_of(servable.signatures, signature, method)
        result = await self._runner.infer(call, servable, signature, method, outputs, asked)
        encode = json_answers.encode_classification if name == "classify" else json_answers.encode_regression
        return encode(result)


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _target(request: Request) -> str:
    """Path and query as the client sent them."""
    query = request.scope["query_string"]
    return (request.scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")


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


def _too_large(found: str, most: int) -> HTTPException:
    return HTTPException(413, f"The body has {found} bytes; at most {most} are allowed (--max_request_megabytes)")


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
        return _error(error.status_code, f"{words}: {request.method} {_target(request)}", error.headers)

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
    versions, card, signatures = models.known(name), None, []
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
