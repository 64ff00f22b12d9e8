"""TF Serving's gRPC API: PredictionService, ModelService, health and reflection.

The rules and the words of the errors are those of TF Serving (model_servers and servables/tensorflow).
"""

import asyncio
import contextlib
import dataclasses
import importlib
import logging
import math
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    input_pb2,
    model_management_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from bert_tf.errors import ConfigError
from bert_tf.server import examples, tensors
from bert_tf.server.errors import Code, ServingError, invalid, one_line
from bert_tf.server.models import Models
from bert_tf.server.monitoring import Metrics, log_access
from bert_tf.server.options import EndpointOptions
from bert_tf.server.servable import DEFAULT_SIGNATURE, Servable, serialized
from bert_tf.types import Array

_T = TypeVar("_T")
_log = logging.getLogger("bert_tf.server")

SERVICES = ("tensorflow.serving.ModelService", "tensorflow.serving.PredictionService")
# The first is the server as a whole, the next two are TF Serving's.
HEALTH_NAMES = ("", "ModelService", "PredictionService", *SERVICES)
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
_LARGE = 2**18  # bytes of a message that is converted in a thread
_LONGEST_MESSAGE = 2000  # bytes of an error; gRPC allows 8 kB, and escapes other characters than ASCII


async def start(models: Models, metrics: Metrics, options: EndpointOptions) -> "Server":
    """Starts to answer gRPC requests.

    Args:
        models: to serve.
        metrics: counts the requests.
        options: address, limits, token and certificate; a port of 0 is chosen by the system.

    Raises:
        ConfigError: the address cannot be listened on, or the certificate is not valid.
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
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(models, metrics, options), server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(_ModelService(models), server)
    names = [*SERVICES]
    checked, following = None, None
    if options.health:
        checked = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checked, server)
        names.append(health.SERVICE_NAME)
    if _have_descriptors():
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
    port = _listen(server, options)
    if checked:
        following = asyncio.create_task(_follow(models, checked))
    await server.start()
    return Server(server, port, guard, checked, following)


class Server(NamedTuple):
    """A running gRPC server.

    Args:
        server: running.
        port: it listens on.
        guard: sees its calls.
        checked: its health service, if it has one.
        following: keeps `checked` up to date.
    """

    server: grpc.aio.Server
    port: int
    guard: "_Guard"
    checked: health.aio.HealthServicer | None
    following: asyncio.Task[None] | None

    async def stop(self, grace: float) -> None:
        """Takes no more calls, and waits for the answers to the others.

        Args:
            grace: seconds, after which calls are cancelled.
        """
        if self.following and self.checked:
            self.following.cancel()
            await self.checked.enter_graceful_shutdown()
        stopping = asyncio.create_task(self.server.stop(grace))
        await asyncio.sleep(0.01)  # for calls that have come and are not counted yet
        while self.guard.active and not stopping.done():
            await asyncio.sleep(0.01)
        await self.server.stop(None)  # what is left are clients that watch the health
        await stopping


def _listen(server: grpc.aio.Server, options: EndpointOptions) -> int:
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"{host}:{options.grpc_port}"
    credentials, tls = None, options.tls
    if tls:
        pair, ca = (tls.key, tls.certificate), tls.client_ca or None
        credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=tls.client_required)

    def add(where: str) -> int:
        return server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)

    try:
        return add(address)
    except RuntimeError:
        message = f"cannot listen on {address} for gRPC: the port is in use, or the host is not this machine; choose "
        message += "another --port or --host"
        try:
            add("127.0.0.1:0")  # because gRPC has the same error for a wrong certificate
        except RuntimeError:
            message = "the TLS certificate and key are not valid, or do not belong together"
        raise ConfigError(message) from None


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


@dataclasses.dataclass
class _Call:
    """What is known of a call.

    Attributes:
        deadline: on the monotonic clock.
        bytes_in, bytes_out: of request and answer.
        model, version, rows: for the log; None until they are known.
    """

    deadline: float | None
    bytes_in: int = 0
    bytes_out: int = 0
    model: str | None = None
    version: int | None = None
    rows: int | None = None

    def seconds_left(self) -> float | None:
        """The time left.

        Raises:
            ServingError: DEADLINE_EXCEEDED, there is none.
        """
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise ServingError(Code.DEADLINE_EXCEEDED, "Deadline exceeded")
        return left


class _Guard(grpc.aio.ServerInterceptor):
    """Around each call to the models: token, time limit, errors and log.

    Methods of services get the request and a `_Call`, and may raise ServingErrors.

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
        if handler is None or details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return handler
        allowed = self._options.allow(dict(details.invocation_metadata).get("authorization", ""))
        if allowed and handler.request_streaming:  # reflection
            return handler

        async def call(requests: object, context: grpc.aio.ServicerContext) -> None:
            await self._answer(details.method, handler, context, allowed)

        # As a stream, because then the request can be waited for with a limit, and is not read at all if not allowed.
        return grpc.stream_stream_rpc_method_handler(call)

    async def _answer(
        self, method: str, handler: grpc.RpcMethodHandler, context: grpc.aio.ServicerContext, allowed: bool
    ) -> None:
        start = time.monotonic()
        limits = [] if method == _RELOAD else [self._options.limits.seconds]
        remaining = context.time_remaining()
        if remaining is not None:
            limits.append(remaining)
        call = _Call(start + min(limits) if limits else None)
        code, message = Code.OK, ""
        self.active += 1
        context.add_done_callback(self._ended)  # its status is sent after this method
        try:
            if not allowed:
                raise ServingError(Code.UNAUTHENTICATED, "expected metadata 'authorization: Bearer TOKEN'")
            raw = await _read(context, call)
            call.bytes_in = len(raw)
            response = await handler.unary_unary(_parsed(handler.request_deserializer, raw), call)
            answer = handler.response_serializer(response)
            call.bytes_out = len(answer)
            await context.write(answer)
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
                milliseconds, known = round((time.monotonic() - start) * 1000, 1), dataclasses.asdict(call)
                del known["deadline"]
                client = _host(context.peer())
                log_access(method=method, status=code.name, milliseconds=milliseconds, **known, client=client)
        if code is not Code.OK:
            await context.abort(grpc.StatusCode[code.name], _shortened(message))

    def _ended(self, _: object) -> None:
        self.active -= 1


async def _read(context: grpc.aio.ServicerContext, call: _Call) -> bytes:
    try:
        raw = await asyncio.wait_for(context.read(), call.seconds_left())
    except TimeoutError:
        raise ServingError(Code.DEADLINE_EXCEEDED, "Deadline exceeded while reading the request") from None
    if raw is grpc.aio.EOF:
        raise invalid("the request has no message")
    return raw


def _parsed(parse: Callable[[bytes], _T], raw: bytes) -> _T:
    try:
        return parse(raw)
    except DecodeError as error:
        raise invalid(f"the request cannot be parsed: {one_line(error)}") from None


async def _in_thread(size: int, function: Callable[..., _T], *args: Any) -> _T:
    """Calls a function; in a thread if it has much to convert, so others are answered meanwhile."""
    return await asyncio.to_thread(function, *args) if size > _LARGE else function(*args)


def _host(peer: str) -> str:
    """The address in "ipv4:127.0.0.1:12345" or "ipv6:%5B::1%5D:12345"."""
    kind, _, address = urllib.parse.unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer


def _shortened(message: str) -> str:
    encoded = message.encode("utf-8", "backslashreplace")
    return encoded[:_LONGEST_MESSAGE].decode(errors="ignore") + ("..." if len(encoded) > _LONGEST_MESSAGE else "")


# Services


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, models: Models, metrics: Metrics, options: EndpointOptions) -> None:
        self._models, self._metrics, self._options = models, metrics, options

    @contextlib.contextmanager
    def _servable(self, spec: model_pb2.ModelSpec, api: str, call: _Call) -> Iterator[Servable]:
        """Context manager: the version for a request, which is counted."""
        # Not counted before the model is found: any number of names could be.
        with _acquired(self._models, spec, call) as servable, self._metrics.request(servable.name, api, "GRPC"):
            yield servable

    async def Predict(self, request: predict_pb2.PredictRequest, call: _Call) -> predict_pb2.PredictResponse:
        spec = _spec(request)
        with self._servable(spec, "Predict", call) as servable:
            signature = servable.signature(spec.signature_name)
            protos = {name: value for name, value in signature.defaults.items() if name not in request.inputs}
            protos |= request.inputs
            size, most = tensors.required_bytes(protos), self._options.limits.request_bytes
            if size > most:
                raise invalid(f"the input tensors take {size} bytes of memory; at most {most} are allowed")
            inputs = await _in_thread(max(call.bytes_in, size), tensors.to_arrays, protos, signature)
            chosen = list(request.output_filter)
            if len(set(chosen)) < len(chosen):
                twice = next(name for name in chosen if chosen.count(name) > 1)
                raise invalid(f"duplicate output tensor alias: {twice}")
            outputs = await self._run(servable, spec.signature_name, inputs, chosen, call)
            size = sum(value.nbytes for value in outputs.values())
            return await _in_thread(size, self._response, servable, spec, outputs)

    def _response(
        self, servable: Servable, spec: model_pb2.ModelSpec, outputs: dict[str, Array]
    ) -> predict_pb2.PredictResponse:
        response = predict_pb2.PredictResponse(model_spec=_answered_by(servable, spec))
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(tensors.to_proto(value, content=self._options.tensor_content))
        return response

    async def Classify(
        self, request: classification_pb2.ClassificationRequest, call: _Call
    ) -> classification_pb2.ClassificationResponse:
        return classification_pb2.ClassificationResponse(
            **await self._one(request, "Classify", examples.CLASSIFY, call)
        )

    async def Regress(
        self, request: regression_pb2.RegressionRequest, call: _Call
    ) -> regression_pb2.RegressionResponse:
        return regression_pb2.RegressionResponse(**await self._one(request, "Regress", examples.REGRESS, call))

    async def _one(self, request: Any, api: str, method: str, call: _Call) -> dict[str, Any]:
        """The fields of the answer to Classify or Regress."""
        spec = _spec(request)
        with self._servable(spec, api, call) as servable:
            outputs = examples.outputs_of(servable.signatures, spec.signature_name, method)
            result = await self._infer(servable, spec, method, outputs, request.input, call)
            return {"result": result, "model_spec": _answered_by(servable, spec)}

    async def MultiInference(
        self, request: inference_pb2.MultiInferenceRequest, call: _Call
    ) -> inference_pb2.MultiInferenceResponse:
        first = request.tasks[0].model_spec if request.tasks else model_pb2.ModelSpec()
        with self._servable(first, "MultiInference", call) as servable:
            outputs = _multi_outputs(servable, request)
            response = inference_pb2.MultiInferenceResponse()
            for task, names in zip(request.tasks, outputs, strict=True):
                spec = task.model_spec
                result = await self._infer(servable, spec, task.method_name, names, request.input, call)
                field = f"{examples.KINDS[task.method_name]}_result"
                response.results.add(model_spec=_answered_by(servable, spec), **{field: result})
            return response

    async def _infer(
        self,
        servable: Servable,
        spec: model_pb2.ModelSpec,
        method: str,
        names: list[str],
        examples_: input_pb2.Input,
        call: _Call,
    ) -> Any:
        """The result for examples, a ClassificationResult or RegressionResult."""
        inputs = {"inputs": await _in_thread(call.bytes_in, serialized, examples_)}
        outputs = await self._run(servable, spec.signature_name, inputs, names, call)
        convert = examples.classification if method == examples.CLASSIFY else examples.regression
        size = sum(value.nbytes for value in outputs.values())
        return await _in_thread(size, convert, outputs, len(inputs["inputs"]))

    async def _run(
        self, servable: Servable, signature_name: str, inputs: dict[str, Array], outputs: list[str], call: _Call
    ) -> dict[str, Array]:
        call.rows = await _in_thread(call.bytes_in, tensors.check_limits, inputs, self._options.limits)
        return await servable.predict(signature_name, inputs, outputs, call.seconds_left())

    async def GetModelMetadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest, call: _Call
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        spec = _spec(request)
        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid(f"Metadata field {field} is not supported")
        with _acquired(self._models, spec, call) as servable:
            signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=servable.signatures)
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = servable.name
            response.model_spec.version.value = servable.version
            response.metadata["signature_def"].Pack(signatures)
            return response


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, models: Models) -> None:
        self._models = models
        self._reloads: set[asyncio.Task[None]] = set()

    async def GetModelStatus(
        self, request: get_model_status_pb2.GetModelStatusRequest, call: _Call
    ) -> get_model_status_pb2.GetModelStatusResponse:
        spec = _spec(request)
        found = self._models.status(spec.name, _version(spec))
        call.model, call.version = spec.name, _version(spec)
        response = get_model_status_pb2.GetModelStatusResponse()
        for status in found:
            added = response.model_version_status.add(version=status.version, state=status.state)
            added.status.error_code = status.code.value
            added.status.error_message = status.message
        return response

    async def HandleReloadConfigRequest(
        self, request: model_management_pb2.ReloadConfigRequest, call: _Call
    ) -> model_management_pb2.ReloadConfigResponse:
        if not request.config.HasField("model_config_list"):
            raise invalid(
                "ServerModelConfig type not supported by HandleReloadConfigRequest. Only ModelConfigList is currently "
                "supported"
            )
        for config in request.config.model_config_list.config:
            _log.info("reload: model %s from %s", config.name, config.base_path)
        # Not cancelled with the call: half of a configuration would be in force.
        task = asyncio.create_task(self._models.reload(request.config))
        self._reloads.add(task)
        task.add_done_callback(self._reloaded)
        try:
            await asyncio.wait_for(asyncio.shield(task), call.seconds_left())
        except TimeoutError:
            raise ServingError(Code.DEADLINE_EXCEEDED, "Deadline exceeded; loading goes on") from None
        response = model_management_pb2.ReloadConfigResponse()
        response.status.error_code = Code.OK.value
        return response

    def _reloaded(self, task: asyncio.Task[None]) -> None:
        self._reloads.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("reload failed: %s", error)


def _spec(request: Any) -> model_pb2.ModelSpec:
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    return request.model_spec


def _version(spec: model_pb2.ModelSpec) -> int | None:
    return spec.version.value if spec.HasField("version") else None


@contextlib.contextmanager
def _acquired(models: Models, spec: model_pb2.ModelSpec, call: _Call) -> Iterator[Servable]:
    with models.acquire(spec.name, _version(spec), spec.version_label) as servable:
        call.model, call.version = servable.name, servable.version
        yield servable


def _answered_by(servable: Servable, spec: model_pb2.ModelSpec) -> model_pb2.ModelSpec:
    answered = model_pb2.ModelSpec(name=servable.name, signature_name=spec.signature_name or DEFAULT_SIGNATURE)
    answered.version.value = servable.version
    return answered


def _multi_outputs(servable: Servable, request: inference_pb2.MultiInferenceRequest) -> list[list[str]]:
    """The outputs of each task, after a check whether the tasks fit together."""
    outputs, tensor = [], ""
    seen: set[str] = set()
    for task in request.tasks:
        spec = task.model_spec
        name = spec.signature_name or DEFAULT_SIGNATURE
        if not spec.name:
            raise invalid("Found ModelSpec with an empty model name.")
        if spec.name != servable.name:
            raise invalid("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
        if name in seen:
            raise invalid(f"Duplicate evaluation of signature: {name}")
        seen.add(name)
        if task.method_name not in examples.KINDS:
            raise ServingError(Code.UNIMPLEMENTED, f"Unsupported signature method_name: {task.method_name}")
        unknown = "Requested signature not found in model graph"
        outputs.append(examples.outputs_of(servable.signatures, name, task.method_name, unknown))
        found = servable.signatures[name].inputs["inputs"].name
        if tensor not in ("", found):
            raise invalid("Input tensor must be the same for all Signatures.")
        tensor = found
    return outputs
