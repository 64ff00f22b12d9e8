"""The gRPC server: limits, token, health, reflection and the log around TF Serving's services (`services.py`)."""

import asyncio
import importlib
import logging
import math
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

from bert_tf.errors import ConfigError
from bert_tf.server import addresses
from bert_tf.server.calls import Call, Runner, check_answer
from bert_tf.server.models import Models
from bert_tf.server.monitoring import Metrics
from bert_tf.server.options import EndpointOptions
from bert_tf.server.services import ModelService, PredictionService
from bert_tf.server.status import Code, ServingError, invalid, one_line

_log = logging.getLogger("bert_tf.server")

SERVICES = ("tensorflow.serving.ModelService", "tensorflow.serving.PredictionService")
# The first is the server as a whole, the next two are TF Serving's.
HEALTH_NAMES = ("", "ModelService", "PredictionService", *SERVICES)
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
_LONGEST_MESSAGE = 2000  # bytes of an error; gRPC allows 8 kB, and escapes other characters than ASCII


async def start(models: Models, metrics: Metrics, options: EndpointOptions) -> "Server":
    """Starts to answer gRPC requests.

    Args:
        models: to serve.
        metrics: counts the requests.
        options: addresses, limits, token and certificate; a port of 0 without a socket is chosen by the system.

    Raises:
        ConfigError: an address cannot be listened on, or the certificate is not valid.
    """
    limits = options.limits
    guard = _Guard(options)
    arguments: dict[str, int | str] = {
        "grpc.max_receive_message_length": limits.request_bytes,
        "grpc.max_send_message_length": -1,
        "grpc.max_allowed_incoming_connections": limits.connections,
        "grpc.server_handshake_timeout_ms": math.ceil(limits.seconds * 1000),
        "grpc.so_reuseport": 0,  # or a second server would take a part of the requests to this port
        # Finds connections whose client is gone, and lets clients do the same.
        "grpc.keepalive_time_ms": 60_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    }
    arguments.update(options.channel_arguments)
    server = grpc.aio.server(
        interceptors=[guard], maximum_concurrent_rpcs=limits.connections, options=list(arguments.items())
    )
    prediction = PredictionService(models, Runner(models, metrics, limits, "GRPC"), options)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(prediction, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(models), server)
    names = [*SERVICES]
    checked, following = None, None
    if options.health:
        checked = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checked, server)
        names.append(health.SERVICE_NAME)
    if _have_descriptors():
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
    unix = addresses.UnixSocket(options.grpc_socket) if options.grpc_socket else None
    port = _listen(server, options, unix)
    if checked:
        following = asyncio.create_task(_follow(models, checked))
    await server.start()
    if unix:
        unix.move()
    return Server(server, port, guard, checked, following, unix)


class Server(NamedTuple):
    """A running gRPC server.

    Args:
        server: running.
        port: it listens on; 0 for only the socket.
        guard: sees its calls.
        checked: its health service, if it has one.
        following: keeps `checked` up to date.
        unix: the socket, if it has one.
    """

    server: grpc.aio.Server
    port: int
    guard: "_Guard"
    checked: health.aio.HealthServicer | None
    following: asyncio.Task[None] | None
    unix: addresses.UnixSocket | None

    async def stop(self, grace: float) -> None:
        """Takes no more calls, and waits for the answers to the others.

        Args:
            grace: seconds, after which calls are cancelled.
        """
        if self.unix:
            self.unix.remove()
        if self.following and self.checked:
            self.following.cancel()
            await self.checked.enter_graceful_shutdown()
        stopping = asyncio.create_task(self.server.stop(grace))
        await asyncio.sleep(0.01)  # for calls that have come and are not counted yet
        while self.guard.active and not stopping.done():
            await asyncio.sleep(0.01)
        await self.server.stop(None)  # what is left are clients that watch the health
        await stopping


def _listen(server: grpc.aio.Server, options: EndpointOptions, unix: addresses.UnixSocket | None) -> int:
    credentials, tls = None, options.tls
    if tls:
        pair, ca = (tls.key, tls.certificate), tls.client_ca or None
        credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=tls.client_required)

    def add(address: str) -> int:
        try:
            return server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        except RuntimeError:
            raise ConfigError(
                f"cannot listen on {address} for gRPC: it is in use or not of this machine, or the TLS certificate is "
                "not valid; choose another --port or --host"
            ) from None

    host = f"[{options.host}]" if ":" in options.host else options.host
    port = 0
    if options.grpc_port or not unix:
        port = add(f"{host}:{options.grpc_port}")
    if unix:
        add(f"unix:{urllib.parse.quote(unix.made)}")
    return port


def _have_descriptors() -> bool:
    """Whether the services can be described to clients, which tensorflow-serving-api 2.20 cannot under protobuf 6."""
    try:
        for name in ("model_service_pb2", "prediction_service_pb2"):
            importlib.import_module(f"tensorflow_serving.apis.{name}")
    except Exception as error:  # of many types
        _log.warning("no gRPC reflection, because of this version of tensorflow-serving-api: %s", one_line(error))
        return False
    return True


# Health


async def _follow(models: Models, checked: health.aio.HealthServicer) -> None:
    """Tells the health service whether the models are ready."""
    kinds, told = health_pb2.HealthCheckResponse, None
    while True:
        if models.ready() != told:
            told = models.ready()
            for name in HEALTH_NAMES:
                await checked.set(name, kinds.SERVING if told else kinds.NOT_SERVING)
        await asyncio.sleep(0.2)


# Calls


class _Guard(grpc.aio.ServerInterceptor):
    """Around each call to the models: token, time limit, errors and log.

    Methods of services get the request and a `Call`, and may raise ServingErrors.

    Attributes:
        active: number of calls that are being answered.
    """

    def __init__(self, options: EndpointOptions) -> None:
        self._options = options
        self.active = 0

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[grpc.RpcMethodHandler | None]], details: Any
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(details)
        if handler is None:
            return None
        if details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return _parsing(handler)
        allowed = self._options.allow(dict(details.invocation_metadata).get("authorization", ""))
        if allowed and handler.request_streaming:  # reflection
            return _parsing(handler)

        async def call(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
            return await self._answer(details.method, handler, context, allowed)

        # As a stream, because then the request can be waited for with a limit, and is not read at all if not allowed.
        return grpc.stream_unary_rpc_method_handler(call)

    async def _answer(
        self, method: str, handler: grpc.RpcMethodHandler, context: grpc.aio.ServicerContext, allowed: bool
    ) -> bytes:
        limits = [] if method == _RELOAD else [self._options.limits.seconds]
        remaining = context.time_remaining()
        if remaining is not None:
            limits.append(remaining)
        call = Call(asyncio.get_running_loop().time() + min(limits) if limits else None)
        code, message, answer = Code.OK, "", b""
        self.active += 1
        context.add_done_callback(self._ended)  # its answer is sent after this method
        try:
            if not allowed:
                raise ServingError(Code.UNAUTHENTICATED, "expected metadata 'authorization: Bearer TOKEN'")
            raw = await _read(context, call)
            call.bytes_in = call.size = len(raw)
            answer = handler.response_serializer(await handler.unary_unary(_parsed(handler, raw), call))
            check_answer(len(answer), self._options.limits)
            call.bytes_out = len(answer)
        except ServingError as error:
            code, message = error.code, error.message
        except (asyncio.CancelledError, grpc.aio.BaseError):  # the client is gone
            code = Code.CANCELLED
            raise
        except Exception:
            code, message = Code.INTERNAL, "Internal error; the server's log says more"
            _log.exception("%s failed", method)
        finally:
            if self._options.access_log:
                call.log(_host(context.peer()), method=method, status=code.name)
        if code is not Code.OK:
            await context.abort(grpc.StatusCode[code.name], _shortened(message))
        return answer

    def _ended(self, _: object) -> None:
        self.active -= 1


async def _read(context: grpc.aio.ServicerContext, call: Call) -> bytes:
    try:
        async with asyncio.timeout(call.seconds_left()):
            raw = await context.read()
    except TimeoutError:
        raise ServingError(Code.DEADLINE_EXCEEDED, "Deadline exceeded while reading the request") from None
    if raw is grpc.aio.EOF:
        raise invalid("the request has no message")
    return raw


def _parsed(handler: grpc.RpcMethodHandler, raw: bytes) -> Any:
    try:
        return handler.request_deserializer(raw)
    except DecodeError as error:
        raise invalid(f"the request cannot be parsed: {one_line(error)}") from None


def _parsing(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """A handler of health or reflection that refuses bytes that are no request; gRPC would log a stack trace."""

    async def parsed(raw: bytes, context: grpc.aio.ServicerContext) -> Any:
        try:
            return _parsed(handler, raw)
        except ServingError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _shortened(error.message))

    async def check(raw: bytes, context: grpc.aio.ServicerContext) -> Any:
        return await handler.unary_unary(await parsed(raw, context), context)

    async def watch(raw: bytes, context: grpc.aio.ServicerContext) -> None:
        await handler.unary_stream(await parsed(raw, context), context)  # writes its answers itself

    async def reflect(raws: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async for answer in handler.stream_stream((await parsed(raw, context) async for raw in raws), context):
            yield answer

    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(reflect, None, handler.response_serializer)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(watch, None, handler.response_serializer)
    return grpc.unary_unary_rpc_method_handler(check, None, handler.response_serializer)


def _host(peer: str) -> str:
    """The address in "ipv4:127.0.0.1:12345" or "ipv6:%5B::1%5D:12345"."""
    kind, _, address = urllib.parse.unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer


def _shortened(message: str) -> str:
    encoded = message.encode("utf-8", "backslashreplace")
    return encoded[:_LONGEST_MESSAGE].decode(errors="ignore") + ("..." if len(encoded) > _LONGEST_MESSAGE else "")
