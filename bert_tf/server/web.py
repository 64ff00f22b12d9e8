"""The HTTP server of the REST API and the page: uvicorn, with a time limit for the head of a request."""

import asyncio
import contextvars
import math
import socket

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bert_tf.server import addresses
from bert_tf.server.models import Models
from bert_tf.server.monitoring import Metrics
from bert_tf.server.options import EndpointOptions
from bert_tf.server.rest import Application

# Clients have this time to receive the rest of an answer when the server ends; those that are idle in TLS and do not
# close their side would hold it up for half a minute.
_CLOSING_SECONDS = 5.0
# That of the request whose task runs: tasks get the context of the connection's method that begins them.
_connection: contextvars.ContextVar["_Connection"] = contextvars.ContextVar("connection")


class Web:
    """The REST API and the page, over HTTP.

    Args:
        models: to serve.
        metrics: counts the requests.
        endpoints: address, limits, token and certificate; a port of 0 is chosen by the system.

    Raises:
        ConfigError: the address cannot be listened on, or the certificate cannot be used.

    Attributes:
        port: it listens on once it is started.
        server: uvicorn's.
    """

    def __init__(self, models: Models, metrics: Metrics, endpoints: EndpointOptions) -> None:
        self._host = endpoints.host
        self._socket = addresses.bound("--rest_api_port", endpoints.host, endpoints.rest_port)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux closes connections of clients that stop reading
            milliseconds = math.ceil(endpoints.limits.seconds * 1000)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self.port: int = self._socket.getsockname()[1]
        context = addresses.ssl_context(endpoints.tls) if endpoints.tls else None
        self._application = Application(models, metrics, endpoints)
        protocol = type("_LimitedConnection", (_Connection,), {"seconds": endpoints.limits.seconds})
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=math.ceil(endpoints.limits.seconds),
            ssl_context_factory=(lambda *_: context) if context else None,
        )
        self.server = uvicorn.Server(config)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = _connection.get()
        connection.begin()
        try:
            await self._application(scope, receive, send)
        finally:
            connection.end()

    async def start(self) -> None:
        """Takes requests. In the main thread uvicorn sets handlers of SIGINT and SIGTERM, which then end it, too.

        Raises:
            ConfigError: another server listens by now.
        """
        try:
            self._socket.listen(2048)
        except OSError as error:
            raise addresses.refused("--rest_api_port", self._host, self.port, error) from None
        self._running = asyncio.create_task(self.server.serve([self._socket]))
        while not self.server.started and not self._running.done():
            await asyncio.sleep(0.01)
        if self._running.done():
            self._running.result()  # raises why

    async def stop(self) -> None:
        """Takes no more requests, and waits for the answers to the others."""
        self._application.stopping = True
        self.server.should_exit = True
        while not self._running.done():
            await asyncio.wait([self._running], timeout=_CLOSING_SECONDS)
            if not self._application.requests:
                self._running.cancel()


class _Connection(H11Protocol):
    """A connection that is closed if the head of a request does not come within a time limit.

    It adds to methods that asyncio calls, and relies on nothing else of uvicorn's protocol.

    Attributes:
        seconds: the limit.
    """

    seconds: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._transport, self._requests = transport, 0
        self._wait()

    def data_received(self, data: bytes) -> None:
        token = _connection.set(self)
        try:
            super().data_received(data)
        finally:
            _connection.reset(token)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        super().connection_lost(exc)

    def begin(self) -> None:
        """A request has come."""
        self._requests += 1  # a second one may begin before the task of the first has ended
        self._limit.cancel()

    def end(self) -> None:
        """A request is answered."""
        self._requests -= 1
        if not self._requests and not self._transport.is_closing():
            self._wait()

    def _wait(self) -> None:
        """Waits for a request, whose bytes may come slowly."""
        self._limit = asyncio.get_running_loop().call_later(self.seconds, self._transport.close)
