"""The server: both protocols in one event loop, from start to a graceful end."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from tensorflow_serving.config import model_server_config_pb2

from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.server import addresses, rpc
from bert_tf.server.models import END, Models, PollingOptions
from bert_tf.server.monitoring import Metrics
from bert_tf.server.options import EndpointOptions
from bert_tf.server.servable import RunOptions, Runtime
from bert_tf.server.status import ServingError
from bert_tf.server.threads import in_own_thread
from bert_tf.server.web import Web

_log = logging.getLogger("bert_tf.server")


class ServerOptions(NamedTuple):
    """Settings of a server.

    Attributes:
        endpoints: of the protocols.
        run: how models are run.
        polling: when to look for versions.
        early_labels: whether a label may be given to a version that is not loaded yet.
        config_poll_seconds: between two looks at the config file; 0 to read it once.
    """

    endpoints: EndpointOptions
    run: RunOptions
    polling: PollingOptions
    early_labels: bool = False
    config_poll_seconds: float = 0.0


def serve(read_config: Callable[[], model_server_config_pb2.ModelServerConfig], options: ServerOptions) -> None:
    """Serves models until SIGTERM or Ctrl-C, then answers the requests that run and ends.

    Args:
        read_config: returns the models to serve; it is called again every `config_poll_seconds`.
        options: settings.

    Raises:
        ConfigError: a port cannot be used, or the first configuration is invalid.
        DataError: no model could be loaded.
    """
    asyncio.run(_serve(read_config, options))


async def _serve(read_config: Callable[[], model_server_config_pb2.ModelServerConfig], options: ServerOptions) -> None:
    config = read_config()
    endpoints, metrics = options.endpoints, Metrics()
    _raise_file_limit()
    runtime = Runtime(options.run, metrics)
    models = Models(runtime, options.polling, early_labels=options.early_labels)
    stop = asyncio.Event()
    _on_signals(stop.set)
    # What is wrong with the addresses is to be known before models are loaded, which may take minutes.
    web = Web(models, metrics, endpoints) if endpoints.rest_port else None
    kept = addresses.bound("--port", endpoints.host, endpoints.grpc_port) if endpoints.grpc_port else None
    if endpoints.grpc_socket:
        addresses.UnixSocket(endpoints.grpc_socket)
    if endpoints.tls:
        addresses.ssl_context(endpoints.tls)
    stopping = asyncio.create_task(stop.wait())
    background: list[asyncio.Task[Any]] = [stopping]
    ends: list[Callable[[], Coroutine[Any, Any, None]]] = []
    try:
        loading = asyncio.create_task(_load(models, config))
        await asyncio.wait([loading, stopping], return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            problem = await loading
            # Only now, as in TF Serving: clients that wait for a port are answered by all models that can be loaded.
            if kept:
                kept.close()
            if endpoints.grpc_port or endpoints.grpc_socket:
                grpc_server = await rpc.start(models, metrics, endpoints)
                ends.append(lambda: grpc_server.stop(endpoints.limits.seconds))
            if web:
                await web.start()
                ends.append(web.stop)
                _on_signals(stop.set)  # which uvicorn has taken; both servers are to end with them
            _log.info("ready: %s", _addresses(endpoints))
            background.append(asyncio.create_task(models.poll_forever()))
            if options.config_poll_seconds:
                background.append(asyncio.create_task(_reread(models, read_config, config, problem, options)))
            await stopping
            _log.info("stopping: requests that run are answered, new ones are refused")
    finally:
        loading.cancel()
        # Both at the same time: each stops taking requests at once, and then waits for those that run.
        await asyncio.gather(*(end() for end in ends))
        for task in background:
            task.cancel()
        if models.loading:  # TensorFlow cannot interrupt it, and nothing is lost
            _log.info("stopped while a version was being loaded")
            logging.shutdown()
            os._exit(0)
        await models.close()
        runtime.close()


def _on_signals(callback: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, callback)


async def _load(models: Models, config: model_server_config_pb2.ModelServerConfig) -> str:
    """Returns what is wrong with a part of the models."""
    try:
        await models.reload(config)
        return ""
    except ServingError as error:
        names = models.names()
        states = [status for name in names for status in models.known(name)]
        if not names:  # the configuration is invalid
            raise ConfigError(error.message) from None
        if states and all(status.state == END for status in states):
            raise DataError(error.message) from None
        _log.error("%s", error.message)  # the others are served, and new versions may come
        return error.message


async def _reread(
    models: Models,
    read_config: Callable[[], model_server_config_pb2.ModelServerConfig],
    config: model_server_config_pb2.ModelServerConfig,
    problem: str,
    options: ServerOptions,
) -> None:
    """Applies changes of the config file; an invalid one changes nothing.

    What could not be applied is tried again, because the version of a label may have been loaded since.
    """
    while True:
        await asyncio.sleep(options.config_poll_seconds)
        try:
            found = await in_own_thread(read_config)
            if found != config or problem:
                await models.reload(found)
                config, problem = found, ""
                _log.info("the configuration is applied: %s", ", ".join(models.names()))
        except (BertTfError, ServingError, OSError) as error:
            if str(error) != problem:
                problem = str(error)
                _log.error("the configuration cannot be used: %s", problem)
        except Exception:  # a bug must not end this task
            _log.exception("reading the configuration failed")


def _addresses(endpoints: EndpointOptions) -> str:
    scheme = "https" if endpoints.tls else "http"
    host = "127.0.0.1" if endpoints.host in ("0.0.0.0", "::") else endpoints.host
    host = f"[{host}]" if ":" in host else host
    parts = []
    if endpoints.rest_port:
        parts.append(f"page and REST at {scheme}://{host}:{endpoints.rest_port}/")
    if endpoints.grpc_port:
        parts.append(f"gRPC at {host}:{endpoints.grpc_port}")
    if endpoints.grpc_socket:
        parts.append(f"gRPC at unix:{endpoints.grpc_socket}")
    return ", ".join(parts)


def _raise_file_limit() -> None:
    """Lets the process have as many connections as the system allows; the usual limit is 1024 files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # on macOS the hard limit is "unlimited", and not allowed
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
