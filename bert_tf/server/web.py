"""The HTTP server of the REST API and the page.

HTTP itself is h11's and uvicorn's. This adds the limits that they lack: for clients that send or read slowly, for
connections without requests, and for their number.
"""

import asyncio
import asyncio.constants
import asyncio.sslproto
import contextlib
import math
import sys
from collections.abc import Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from bert_tf.server import addresses, json_answers
from bert_tf.server.models import Models
from bert_tf.server.monitoring import Metrics
from bert_tf.server.options import EndpointOptions, Limits
from bert_tf.server.rest import Application

_HEAD_SECONDS = 10.0  # to send the first lines of a request
_LINGER_SECONDS = 2.0  # to read the answer after an error, before the connection is closed


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
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            Application(models, metrics, endpoints),
            http=_protocol(endpoints),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=math.ceil(endpoints.limits.seconds),
        )
        config.load()
        if endpoints.tls:
            config.ssl = addresses.ssl_context(endpoints.tls)
        self.server = _Uvicorn(config)

    def start(self) -> None:
        """Takes requests.

        Raises:
            ConfigError: another server listens by now.
        """
        try:
            self._socket.listen(2048)
        except OSError as error:
            raise addresses.refused("--rest_api_port", self._host, self.port, error) from None
        self._running = asyncio.create_task(self.server.serve([self._socket]))

    async def stop(self) -> None:
        """Takes no more requests, and waits for the answers to the others."""
        self.server.should_exit = True
        await self._running


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us, because another server must end with this one."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


# Connections


def _protocol(endpoints: EndpointOptions) -> type[asyncio.Protocol]:
    """The class of connections, for uvicorn's option `http`."""
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
        body = json_answers.encode_error(message)
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
