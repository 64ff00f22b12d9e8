"""TF Serving's gRPC services, PredictionService and ModelService.

The rules and the codes of errors are those of TF Serving (model_servers and servables/tensorflow). `rpc.py` calls the
methods, with a request and its `Call`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from bert_tf.server import tensors, tf_examples
from bert_tf.server.calls import Call, Runner, in_thread
from bert_tf.server.models import Models, status_response
from bert_tf.server.options import EndpointOptions
from bert_tf.server.servable import DEFAULT_SIGNATURE, Servable
from bert_tf.server.status import Code, ServingError, invalid
from bert_tf.types import Array

_log = logging.getLogger("bert_tf.server")


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict, Classify, Regress, MultiInference and GetModelMetadata.

    Args:
        models: to serve.
        runner: of `models`.
        options: whether tensors in answers are lists, and the largest size of inputs in memory.
    """

    def __init__(self, models: Models, runner: Runner, options: EndpointOptions) -> None:
        self._models, self._runner, self._options = models, runner, options

    @contextlib.contextmanager
    def _servable(self, spec: model_pb2.ModelSpec, api: str, call: Call) -> Iterator[Servable]:
        """Context manager: the version for a request, which is counted."""
        acquired = self._runner.acquired(call, spec.name, _version(spec), spec.version_label)
        with self._runner.counted(call, spec.name, api), acquired as servable:
            yield servable

    async def Predict(self, request: predict_pb2.PredictRequest, call: Call) -> predict_pb2.PredictResponse:
        spec = _spec(request)
        with self._servable(spec, "Predict", call) as servable:
            signature = servable.signature(spec.signature_name)
            protos = {name: value for name, value in signature.defaults.items() if name not in request.inputs}
            protos |= request.inputs
            size, most = tensors.required_bytes(protos), self._options.limits.request_bytes
            if size > most:
                raise invalid(f"the input tensors take {size} bytes of memory; at most {most} are allowed")
            inputs = await in_thread(max(call.size, size), tensors.to_arrays, protos, signature)
            chosen = list(request.output_filter)
            if len(set(chosen)) < len(chosen):
                twice = next(name for name in chosen if chosen.count(name) > 1)
                raise invalid(f"output_filter has {twice} twice")
            outputs = await self._runner.predict(call, servable, spec.signature_name, inputs, chosen)
            size = sum(value.nbytes for value in outputs.values())
            return await in_thread(size, self._response, servable, spec, outputs)

    def _response(
        self, servable: Servable, spec: model_pb2.ModelSpec, outputs: dict[str, Array]
    ) -> predict_pb2.PredictResponse:
        response = predict_pb2.PredictResponse(model_spec=_answered_by(servable, spec))
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(tensors.to_proto(value, content=self._options.tensor_content))
        return response

    async def Classify(
        self, request: classification_pb2.ClassificationRequest, call: Call
    ) -> classification_pb2.ClassificationResponse:
        fields = await self._inferred(request, "Classify", tf_examples.CLASSIFY, call)
        return classification_pb2.ClassificationResponse(**fields)

    async def Regress(self, request: regression_pb2.RegressionRequest, call: Call) -> regression_pb2.RegressionResponse:
        return regression_pb2.RegressionResponse(**await self._inferred(request, "Regress", tf_examples.REGRESS, call))

    async def _inferred(self, request: Any, api: str, method: str, call: Call) -> dict[str, Any]:
        """The fields of the answer to Classify or Regress."""
        spec = _spec(request)
        with self._servable(spec, api, call) as servable:
            outputs = tf_examples.outputs_of(servable.signatures, spec.signature_name, method)
            result = await self._runner.infer(call, servable, spec.signature_name, method, outputs, request.input)
            return {"result": result, "model_spec": _answered_by(servable, spec)}

    async def MultiInference(
        self, request: inference_pb2.MultiInferenceRequest, call: Call
    ) -> inference_pb2.MultiInferenceResponse:
        first = request.tasks[0].model_spec if request.tasks else model_pb2.ModelSpec()
        with self._servable(first, "MultiInference", call) as servable:
            response = inference_pb2.MultiInferenceResponse()
            for task, outputs in zip(request.tasks, _multi_outputs(servable, request), strict=True):
                spec, method = task.model_spec, task.method_name
                result = await self._runner.infer(call, servable, spec.signature_name, method, outputs, request.input)
                field = f"{tf_examples.KINDS[method]}_result"
                response.results.add(model_spec=_answered_by(servable, spec), **{field: result})
            return response

    async def GetModelMetadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest, call: Call
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        spec = _spec(request)
        if {*request.metadata_field} != {"signature_def"}:
            found = ", ".join(request.metadata_field) or "empty"
            raise invalid(f"metadata_field is {found}; expected signature_def")
        with self._runner.acquired(call, spec.name, _version(spec), spec.version_label) as servable:
            signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=servable.signatures)
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = servable.name
            response.model_spec.version.value = servable.version
            response.metadata["signature_def"].Pack(signatures)
            return response


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus and HandleReloadConfigRequest.

    Args:
        models: to serve.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._reloads: set[asyncio.Task[None]] = set()

    async def GetModelStatus(
        self, request: get_model_status_pb2.GetModelStatusRequest, call: Call
    ) -> get_model_status_pb2.GetModelStatusResponse:
        spec = _spec(request)
        found = self._models.status(spec.name, _version(spec))
        call.model, call.version = spec.name, _version(spec)
        return status_response(found)

    async def HandleReloadConfigRequest(
        self, request: model_management_pb2.ReloadConfigRequest, call: Call
    ) -> model_management_pb2.ReloadConfigResponse:
        if not request.config.HasField("model_config_list"):
            raise invalid("the request has no config.model_config_list")
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
        raise invalid("the request has no model_spec")
    return request.model_spec


def _version(spec: model_pb2.ModelSpec) -> int | None:
    return spec.version.value if spec.HasField("version") else None


def _answered_by(servable: Servable, spec: model_pb2.ModelSpec) -> model_pb2.ModelSpec:
    answered = model_pb2.ModelSpec(name=servable.name, signature_name=spec.signature_name or DEFAULT_SIGNATURE)
    answered.version.value = servable.version
    return answered


def _multi_outputs(servable: Servable, request: inference_pb2.MultiInferenceRequest) -> list[list[str]]:
    """The outputs of each task, after a check whether the tasks fit together."""
    outputs = []
    seen: set[str] = set()
    for task in request.tasks:
        spec = task.model_spec
        name = spec.signature_name or DEFAULT_SIGNATURE
        if spec.name != servable.name:
            raise invalid(f"a task is for the model {spec.name!r}; expected {servable.name!r}, as in the first task")
        if name in seen:
            raise invalid(f"two tasks have the signature {name}")
        seen.add(name)
        if task.method_name not in tf_examples.KINDS:
            expected = " or ".join(tf_examples.KINDS)
            raise ServingError(Code.UNIMPLEMENTED, f"method_name is {task.method_name!r}; expected {expected}")
        outputs.append(tf_examples.outputs_of(servable.signatures, name, task.method_name))
    return outputs
