"""The gRPC API, over a socket, with the stubs of tensorflow-serving-api as a client."""

import asyncio
import contextlib
import datetime
import json
import logging
import re
import socket
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from bert_tf.errors import ConfigError
from bert_tf.server import rpc, tensors
from bert_tf.server.options import EndpointOptions, Limits, Tls
from bert_tf.server.servable import Servable
from bert_tf.server.status import Code, ServingError
from tests.inference.servers import certificate
from tests.server.saved_models import half_plus_two

STATUS = grpc.StatusCode
INVALID, PRECONDITION, NOT_FOUND = STATUS.INVALID_ARGUMENT, STATUS.FAILED_PRECONDITION, STATUS.NOT_FOUND
REGRESS, CLASSIFY = "tensorflow/serving/regress", "tensorflow/serving/classify"
LIMITS = Limits(request_bytes=8 * 2**20, rows=1000, text_bytes=10_000, seconds=20.0, connections=50)
LOCAL = EndpointOptions(host="127.0.0.1", grpc_port=0, limits=LIMITS)
ONE_ID = np.ones([1, 1], np.int32)
PREDICT = "/tensorflow.serving.PredictionService/Predict"


class Client:
    """Stubs of a connection."""

    def __init__(self, port, credentials=None, **options):
        options = [(f"grpc.{name}", value) for name, value in options.items()]
        options.append(("grpc.use_local_subchannel_pool", 1))  # a connection of its own
        address = f"localhost:{port}"
        if credentials:
            self.channel = grpc.secure_channel(address, credentials, options)
        else:
            self.channel = grpc.insecure_channel(address, options)
        prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        health = health_pb2_grpc.HealthStub(self.channel)
        self.predict, self.classify, self.regress = prediction.Predict, prediction.Classify, prediction.Regress
        self.multi_inference, self.metadata = prediction.MultiInference, prediction.GetModelMetadata
        self.status, self.reload = models.GetModelStatus, models.HandleReloadConfigRequest
        self.check, self.watch = health.Check, health.Watch

    def method_of(self, request):
        kinds = {
            "PredictRequest": self.predict, "ClassificationRequest": self.classify, "RegressionRequest": self.regress,
            "MultiInferenceRequest": self.multi_inference, "GetModelMetadataRequest": self.metadata,
            "GetModelStatusRequest": self.status, "ReloadConfigRequest": self.reload,
        }  # fmt: skip
        return kinds[type(request).__name__]

    def half(self, *values, **options):
        answer = self.predict(predicting("half", x=np.array(values, np.float32)), **options)
        return tf.make_ndarray(answer.outputs["y"]).tolist()


@pytest.fixture(scope="module")
def backend(case, tmp_path_factory, start):
    folder = tmp_path_factory.mktemp("models")
    half_plus_two(folder / "half", 1)
    half_plus_two(folder / "half", 2, b=3.0)
    one_input(folder / "shared" / "1")
    bert = case.path.rsplit("/", 1)[0]
    config = f"""model_config_list {{
        config {{ name: "half" base_path: "{folder}/half" model_platform: "tensorflow"
                  model_version_policy {{ all {{}} }} version_labels {{ key: "stable" value: 1 }} }}
        config {{ name: "shared" base_path: "{folder}/shared" model_platform: "tensorflow" }}
        config {{ name: "bert" base_path: "{bert}" model_platform: "tensorflow" }} }}"""
    return start(config)


@pytest.fixture(scope="module")
def server(backend):
    with backend.grpc(LOCAL) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    client = Client(server.port, max_receive_message_length=-1, max_send_message_length=-1)
    yield client
    client.channel.close()


@pytest.fixture(autouse=True)
def _next_request_is_answered(client):
    yield
    assert client.half(2.0, timeout=20) == [4.0]


def one_input(path):
    """Writes a model of TensorFlow 1 whose signatures share an input, and some that have not what they should."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = tf.compat.v1.placeholder(tf.string, [None])
        x = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([], tf.float32)})["x"]
        number = tf.compat.v1.placeholder(tf.int64, [])
        texts = tf.strings.as_string(x)
        signatures = {
            "serving_default": ({"inputs": inputs}, {"outputs": x[:, None] * 2}),
            "classify": ({"inputs": inputs}, {"scores": tf.stack([x, -x], 1)}),
            "labels": ({"inputs": inputs}, {"classes": texts[:, None]}),
            "no inputs": ({"texts": inputs}, {"scores": x, "outputs": x}),
            "one output": ({"texts": inputs}, {"outputs": x}),
            "no scores": ({"inputs": inputs}, {"values": x}),
            "flat": ({"inputs": inputs}, {"scores": x}),
            "wrong types": ({"inputs": inputs}, {"classes": x[:, None], "scores": texts[:, None]}),
            "texts": ({"inputs": inputs}, {"outputs": texts}),
            "one row": ({"inputs": inputs}, {"outputs": x[:1]}),
            "widths": ({"inputs": inputs}, {"classes": texts[:, None], "scores": tf.stack([x, x], 1)}),
            "number": ({"number": number}, {"square": number * number, "text": tf.strings.as_string(number) + "\0"}),
        }
        builder = tf.compat.v1.saved_model.Builder(str(path))
        info = tf.compat.v1.saved_model.build_tensor_info
        definition = tf.compat.v1.saved_model.build_signature_def
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {
                name: definition(*({key: info(value) for key, value in side.items()} for side in sides))
                for name, sides in signatures.items()
            },
        )
        builder.save()


def specified(request, model, signature="", version=None, label=None):
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    if label is not None:
        request.model_spec.version_label = label
    return request


def predicting(model, signature="", *, version=None, label=None, outputs=(), **inputs):
    request = specified(predict_pb2.PredictRequest(output_filter=outputs), model, signature, version, label)
    for name, value in inputs.items():
        proto = value if isinstance(value, tensor_pb2.TensorProto) else tf.make_tensor_proto(value)
        request.inputs[name].CopyFrom(proto)
    return request


def arrays(response):
    return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}


def example(**features):
    kept = {name: {"float_list": {"value": values}} for name, values in features.items()}
    return tf.train.Example(features={"feature": kept})


def asking(kind, model, signature, *values, **which):
    """A request to Classify or Regress, with an example for each value."""
    request = specified(kind(), model, signature, **which)
    request.input.example_list.examples.extend([example(x=[value]) for value in values])
    return request


def regressing(*arguments, **which):
    return asking(regression_pb2.RegressionRequest, *arguments, **which)


def classifying(*arguments, **which):
    return asking(classification_pb2.ClassificationRequest, *arguments, **which)


def refused(method, request, **options):
    """(Code, message) of a request that is not answered."""
    with pytest.raises(grpc.RpcError) as caught:
        method(request, timeout=options.pop("timeout", 30), **options)
    return caught.value.code(), caught.value.details()


def tensor(dtype, shape, **fields):
    """A TensorProto that may not be valid."""
    return tensor_pb2.TensorProto(dtype=dtype, tensor_shape={"dim": [{"size": size} for size in shape]}, **fields)


# Predict


@pytest.mark.parametrize(
    "which, version, expected", [({}, 2, 3.5), ({"version": 1}, 1, 2.5), ({"label": "stable"}, 1, 2.5)]
)
def test_predict_answers_with_the_version_asked_for_and_names_it(client, which, version, expected):
    answer = client.predict(predicting("half", x=np.array([1.0, 2.0], np.float32), **which))
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [expected, expected + 0.5]
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("half", version, "serving_default")


def test_predict_answers_like_the_exported_bert(client, case):
    for request, expected in zip(case.requests, case.expected, strict=True):
        found = arrays(client.predict(predicting("bert", request.signature, **request.inputs)))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if value.dtype == object:
                np.testing.assert_array_equal(found[name], value)
            else:
                np.testing.assert_allclose(found[name], value, atol=1e-5)


def test_predict_answers_only_the_outputs_asked_for(client):
    inputs = {"ids": np.array([[1, 2]], np.int32), "raw_bytes": np.array([b"\xff"], object)}
    assert arrays(client.predict(predicting("half", "several", outputs=["sums"], **inputs))) == {"sums": [3]}
    both = arrays(client.predict(predicting("half", "several", **inputs)))
    assert both == {"sums": [3], "twice_bytes": [b"\xff\xff"]}


def test_an_input_may_have_another_shape_than_its_signature(client):
    """The runtime in C++ does not compare them; [?] is declared."""
    assert arrays(client.predict(predicting("half", x=[[1.0, 2.0]])))["y"].tolist() == [[3.5, 4.0]]
    assert arrays(client.predict(predicting("half", x=1.0)))["y"] == 3.5


def test_an_answer_that_is_too_large_is_refused(backend, client):
    limits = LIMITS._replace(answer_bytes=3000)
    with (
        backend.grpc(LOCAL._replace(limits=limits)) as other,
        contextlib.closing(Client(other.port).channel) as channel,
    ):
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        code, message = refused(predict, predicting("half", x=np.ones([800], np.float32)))
        assert code is STATUS.RESOURCE_EXHAUSTED
        assert message.startswith(
            "the answer has 3200 bytes or more; at most 3000 are allowed (--max_answer_megabytes)"
        )
        assert len(predict(predicting("half", x=np.ones([700], np.float32)), timeout=30).outputs["y"].float_val) == 700


def test_numbers_without_rows_are_answered(client):
    found = arrays(client.predict(predicting("shared", "number", number=np.int64(7))))
    assert found == {"square": 49, "text": b"7\0"}


def test_answers_are_lists_or_bytes(backend, client):
    request = predicting("half", x=np.array([1.0, 2.0], np.float32))
    listed = client.predict(request).outputs["y"]
    assert list(listed.float_val) == [3.5, 4.0] and not listed.tensor_content
    with backend.grpc(LOCAL._replace(tensor_content=True)) as other:
        content = Client(other.port).predict(request).outputs["y"]
    assert content.tensor_content == np.array([3.5, 4.0], np.float32).tobytes() and not content.float_val


def multi(*tasks):
    request = inference_pb2.MultiInferenceRequest()
    request.input.example_list.examples.extend([example(x=[1.0]), example(x=[3.0])])
    for model, signature, method in tasks:
        specified(request.tasks.add(method_name=method), model, signature)
    return request


def reloading(config):
    return model_management_pb2.ReloadConfigRequest(config=config)


def watching(*arguments, **which):
    return specified(get_model_status_pb2.GetModelStatusRequest(), *arguments, **which)


def asked(model, fields):
    return specified(get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields), model)


# Requests that are refused


@pytest.mark.parametrize(
    "request_, code, found",
    [
        (predict_pb2.PredictRequest(), INVALID, "model_spec"),
        (predicting(""), INVALID, "no model"),
        (predicting("no"), NOT_FOUND, "model no"),
        (predicting("n" * 10**6), NOT_FOUND, "model nnn"),
        (predicting("half", version=9), NOT_FOUND, "version 9 of model half"),
        (predicting("half", version=-1), NOT_FOUND, "version -1 of model half"),
        (predicting("half", label="x"), INVALID, "label x"),
        (predicting("half", "no", x=1.0), PRECONDITION, "'no'"),
        (predicting("half", y=[1.0]), INVALID, "the inputs are y; expected x"),
        (predicting("half"), INVALID, "the inputs are none; expected x"),
        (predicting("half", x=[1.0], y=[1.0]), INVALID, "the inputs are x, y; expected x"),
        (predicting("half", x=[1.0], outputs=["z"]), INVALID, "'z'; it has y"),
        (predicting("half", x=[1.0], outputs=["y", "y"]), INVALID, "y twice"),
        (predicting("half", x=np.array([1])), INVALID, "x is DT_INT"),
        (predicting("half", x=[b"1"]), INVALID, "x is DT_STRING; expected DT_FLOAT"),
        (predicting("half", "several", ids=np.array([[-1]], np.int32), raw_bytes=[b""]), INVALID, "an id is negative"),
        (predicting("half", x=[1.0] * 1001), INVALID, "1001 rows"),
        (predicting("half", "several", ids=ONE_ID, raw_bytes=[b"x" * 10_001]), INVALID, "raw_bytes"),
        (regressing("half", "no", 1.0), INVALID, "'no'"),
        (regressing("no", "no", 1.0), NOT_FOUND, "model no"),
        (regressing("half", "regress_x_to_y"), INVALID, "no examples"),
        (regressing("half", "several", 1.0), INVALID, "['ids', 'raw_bytes']"),
        (regressing("half", "classify_x_to_y", 1.0), INVALID, "['classes', 'scores']"),
        (regressing("shared", "one output", 1.0), PRECONDITION, "['texts']"),
        (regressing("shared", "flat", 1.0), PRECONDITION, "['scores']"),
        (regressing("shared", "texts", 1.0), INVALID, "string [1]; expected float32 [1]"),
        (regressing("shared", "one row", 1.0, 2.0), INVALID, "float32 [1]; expected float32 [2]"),
        (regressing("half", "regress_x_to_y", *[1.0] * 1001), INVALID, "1001 rows"),
        (classifying("half", "several", 1.0), INVALID, "['ids', 'raw_bytes']"),
        (classifying("shared", "no inputs", 1.0), PRECONDITION, "['texts']"),
        (classifying("shared", "no scores", 1.0), PRECONDITION, "['values']"),
        (classifying("shared", "flat", 1.0), INVALID, "scores is float32 [1]"),
        (classifying("shared", "wrong types", 1.0), INVALID, "classes is float32 [1, 1]"),
        (classifying("shared", "widths", 1.0), INVALID, "1 classes and 2 scores"),
        (multi(), INVALID, "no model"),
        (multi(("shared", "no", REGRESS)), INVALID, "'no'"),
        (multi(("shared", "", REGRESS), ("", "", REGRESS)), INVALID, "''"),
        (multi(("shared", "", REGRESS), ("half", "", REGRESS)), INVALID, "'half'"),
        (multi(("shared", "", REGRESS), ("shared", "serving_default", REGRESS)), INVALID, "serving_default"),
        (multi(("shared", "", "predict")), STATUS.UNIMPLEMENTED, "'predict'"),
        (asked("half", []), INVALID, "metadata_field"),
        (asked("half", ["signature_def", "x"]), INVALID, "signature_def, x"),
        (get_model_status_pb2.GetModelStatusRequest(), INVALID, "model_spec"),
        (watching("no"), NOT_FOUND, "model no"),
        (watching("half", version=7), NOT_FOUND, "version 7 of model half"),
        (reloading(None), INVALID, "config.model_config_list"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_wrong_request_is_refused_with_the_code_of_tf_serving(client, request_, code, found):
    answered, message = refused(client.method_of(request_), request_)
    assert answered is code
    assert found in message and "\n" not in message


@pytest.mark.parametrize(
    "proto",
    [
        tensor(types_pb2.DT_FLOAT, [2], tensor_content=b"abc"),
        tensor(types_pb2.DT_FLOAT, [2], tensor_content=b"abcd"),
        tensor(types_pb2.DT_FLOAT, [-1], float_val=[1.0]),
        tensor(types_pb2.DT_FLOAT, [2**62, 2**62], float_val=[1.0]),
        tensor(types_pb2.DT_FLOAT, [0, 2**62, 2**62]),
        tensor(types_pb2.DT_FLOAT, [1] * 65, float_val=[1.0]),
        tensor(types_pb2.DT_INVALID, [1]),
        tensor(types_pb2.DT_VARIANT, [1]),
        tensor(types_pb2.DT_RESOURCE, [1]),
        tensor(types_pb2.DT_FLOAT_REF, [1], float_val=[1.0]),
        tensor(999, [1]),
        tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_shape={"unknown_rank": True}, float_val=[1.0]),
        tensor_pb2.TensorProto(),
        tensor(types_pb2.DT_STRING, [1], tensor_content=b"abcd"),
        tensor(types_pb2.DT_STRING, [1], string_val=[b"a", b"b"]),
    ],
    ids=repr,
)
def test_a_damaged_tensor_is_refused(client, proto):
    request = predicting("half", x=proto)
    if proto.dtype == types_pb2.DT_STRING:
        request = predicting("half", "several", ids=ONE_ID, raw_bytes=proto)
    code, message = refused(client.predict, request)
    assert code is INVALID and message


@pytest.mark.parametrize(
    "request_",
    [
        predicting("half", x=tensor(types_pb2.DT_FLOAT, [10**9], float_val=[1.0])),
        predicting("half", x=tensor(types_pb2.DT_FLOAT, [10**9])),
        predicting("half", **{str(n): tensor(types_pb2.DT_FLOAT, [2 * 10**6], float_val=[1.0]) for n in range(3)}),
        predicting("half", "several", raw_bytes=tensor(types_pb2.DT_STRING, [1000], string_val=[b"x" * 10_000])),
    ],
    ids=["one value", "no value", "many inputs", "one text"],
)
def test_a_small_message_cannot_ask_for_much_memory(client, request_):
    code, message = refused(client.predict, request_)
    assert code is INVALID
    assert "bytes of memory; at most 8388608 are allowed" in message


def test_the_last_value_of_a_tensor_is_repeated(client):
    repeated = tensor(types_pb2.DT_FLOAT, [4], float_val=[1.0, 2.0])
    assert arrays(client.predict(predicting("half", x=repeated)))["y"].tolist() == [3.5, 4.0, 4.0, 4.0]
    texts = tensor(types_pb2.DT_STRING, [3], string_val=[b"a", b"b"])
    request = predicting("half", "several", ids=np.ones([3, 1], np.int32), raw_bytes=texts)
    assert arrays(client.predict(request))["twice_bytes"].tolist() == [b"aa", b"bb", b"bb"]


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
     "uint64", "bool", "complex64", "complex128", "string"],
)  # fmt: skip
def test_tensors_of_all_types_survive(dtype, content):
    values = (
        [b"a\0", b"", b"\xff"] if dtype == "string" else np.array([[0, 1, 3]]).astype(tf.as_dtype(dtype).as_numpy_dtype)
    )
    for value in (np.array(values), np.array(values)[:0], np.array(values).ravel()[0]):
        value = np.asarray(value, object if dtype == "string" else None)
        proto = tensors.to_proto(value, content=content)
        # TensorFlow's other reader is the reference.
        expected = tf.io.parse_tensor(proto.SerializeToString(), tf.as_dtype(dtype)).numpy()
        np.testing.assert_array_equal(expected, value)
        signature = tf.compat.v1.saved_model.build_signature_def({"x": tf.compat.v1.TensorInfo(dtype=proto.dtype)})
        found = tensors.to_arrays({"x": proto}, signature)["x"]
        assert found.dtype == value.dtype and found.shape == value.shape
        np.testing.assert_array_equal(found, value)
        assert tensors.required_bytes({"x": proto}) >= (0 if dtype == "string" else value.nbytes)


# Classify, Regress, MultiInference


def test_regress_and_classify_answer_each_example(client):
    answer = client.regress(regressing("half", "regress_x_to_y", 1.0, 4.0, version=1))
    assert [one.value for one in answer.result.regressions] == [2.5, 4.0]
    assert (answer.model_spec.signature_name, answer.model_spec.version.value) == ("regress_x_to_y", 1)
    answer = client.classify(classifying("half", "classify_x_to_y", 1.0, 4.0))
    found = [[(one.label, one.score) for one in row.classes] for row in answer.result.classifications]
    assert found == [[("up", 3.5), ("down", -3.5)], [("up", 5.0), ("down", -5.0)]]
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("half", 2)


def test_classes_may_have_only_scores_or_only_labels(client):
    only = {}
    for signature in ("classify", "labels"):
        answer = client.classify(classifying("shared", signature, 1.0))
        only[signature] = [(one.label, one.score) for one in answer.result.classifications[0].classes]
    assert only == {"classify": [("", 1.0), ("", -1.0)], "labels": [("1.000000", 0.0)]}


def test_features_of_the_context_are_those_of_each_example(client):
    request = specified(regression_pb2.RegressionRequest(), "half", "regress_x_to_y")
    listed = request.input.example_list_with_context
    listed.context.CopyFrom(example(x=[2.0]))
    listed.examples.extend([example(), example(x=[4.0])])
    assert [one.value for one in client.regress(request).result.regressions] == [4.0, 5.0]


def test_an_example_without_a_required_feature_is_refused(client):
    request = specified(regression_pb2.RegressionRequest(), "half", "regress_x_to_y")
    request.input.example_list.examples.add()
    for model, signature in (("half", "regress_x_to_y"), ("shared", "")):
        code, message = refused(client.regress, specified(request, model, signature))
        assert code is INVALID
        assert message.endswith("Feature: x (data type: float) is required but could not be found.")
        assert "\n" not in message


def test_multi_inference_answers_each_task(client):
    answer = client.multi_inference(multi(("shared", "", REGRESS), ("shared", "classify", CLASSIFY)))
    first, second = answer.results
    assert [one.value for one in first.regression_result.regressions] == [2.0, 6.0]
    scores = [[one.score for one in row.classes] for row in second.classification_result.classifications]
    assert scores == [[1.0, -1.0], [3.0, -3.0]]
    assert [result.model_spec.signature_name for result in answer.results] == ["serving_default", "classify"]
    assert {result.model_spec.version.value for result in answer.results} == {1}


def test_tasks_of_multi_inference_may_have_inputs_of_their_own(client):
    """As the signatures of TensorFlow 2 always have."""
    answer = client.multi_inference(multi(("half", "regress_x_to_y", REGRESS), ("half", "classify_x_to_y", CLASSIFY)))
    first, second = answer.results
    assert [one.value for one in first.regression_result.regressions] == [3.5, 4.5]
    scores = [[one.score for one in row.classes] for row in second.classification_result.classifications]
    assert scores == [[3.5, -3.5], [4.5, -4.5]]


# Models


def test_metadata_are_the_signatures(client):
    answer = client.metadata(asked("half", ["signature_def"]))
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("half", 2)
    found = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    assert set(found.signature_def) >= {"serving_default", "regress_x_to_y", "classify_x_to_y", "several"}
    assert found.signature_def["serving_default"].inputs["x"].dtype == types_pb2.DT_FLOAT


def status_of(client, model, **which):
    answer = client.status(watching(model, **which))
    states = get_model_status_pb2.ModelVersionStatus.State
    return [
        (one.version, states.Name(one.state), one.status.error_code, one.status.error_message)
        for one in answer.model_version_status
    ]


def test_status_lists_the_versions(client):
    assert status_of(client, "half") == [(2, "AVAILABLE", 0, ""), (1, "AVAILABLE", 0, "")]
    assert status_of(client, "half", version=1) == [(1, "AVAILABLE", 0, "")]


def test_a_reload_changes_models_and_labels(backend, client):
    config = type(backend.config)()
    config.CopyFrom(backend.config)
    half = config.model_config_list.config[0]
    half.version_labels["stable"] = 2
    more = config.model_config_list.config.add(name="more", base_path=half.base_path, model_platform="tensorflow")
    more.model_version_policy.specific.versions.append(1)
    try:
        assert client.reload(reloading(config), timeout=60).status.error_code == 0
        assert [status[:2] for status in status_of(client, "more")] == [(1, "AVAILABLE")]
        assert client.predict(predicting("half", label="stable", x=[1.0])).model_spec.version.value == 2
    finally:
        client.reload(reloading(backend.config), timeout=60)
    assert refused(client.predict, predicting("more", x=[1.0]))[0] is STATUS.NOT_FOUND


def test_a_wrong_reload_changes_nothing(backend, client, tmp_path):
    twice = type(backend.config)()
    twice.CopyFrom(backend.config)
    twice.MergeFrom(backend.config)
    code, message = refused(client.reload, reloading(twice))
    assert code is INVALID and "half" in message
    assert client.half(1.0) == [3.5]


def test_a_reload_goes_on_without_its_client(backend, client, monkeypatch):
    ended = []

    async def reload(config):
        await asyncio.sleep(0.2)
        ended.append(config)

    monkeypatch.setattr(backend.models, "reload", reload)
    assert refused(client.reload, reloading(backend.config), timeout=0.05)[0] is STATUS.DEADLINE_EXCEEDED
    wait_for(lambda: ended)


# Health and reflection


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def test_health_follows_the_models(backend, client, monkeypatch):
    serving, other = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    for name in ("", "ModelService", "PredictionService", "tensorflow.serving.PredictionService"):
        assert client.check(health_pb2.HealthCheckRequest(service=name)).status == serving
    assert refused(client.check, health_pb2.HealthCheckRequest(service="x"))[0] is STATUS.NOT_FOUND
    watched = client.watch(health_pb2.HealthCheckRequest(service="PredictionService"), timeout=30)
    assert next(watched).status == serving
    monkeypatch.setattr(backend.models, "ready", lambda: False)
    assert next(watched).status == other
    monkeypatch.undo()
    assert next(watched).status == serving
    watched.cancel()


def test_there_is_no_health_service_if_it_is_not_wanted(backend):
    with backend.grpc(LOCAL._replace(health=False)) as server:
        assert refused(Client(server.port).check, health_pb2.HealthCheckRequest())[0] is STATUS.UNIMPLEMENTED


def test_reflection_describes_the_services(client):
    try:
        from tensorflow_serving.apis import prediction_service_pb2
    except AttributeError as error:
        pytest.skip(f"this tensorflow-serving-api is older than protobuf: {error}")
    database = ProtoReflectionDescriptorDatabase(client.channel)
    assert {"tensorflow.serving.PredictionService", "tensorflow.serving.ModelService", "grpc.health.v1.Health"} < set(
        database.get_services()
    )
    described = descriptor_pool.DescriptorPool(database).FindServiceByName("tensorflow.serving.PredictionService")
    expected = prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"]
    assert [method.name for method in described.methods] == [method.name for method in expected.methods]


def test_a_server_that_cannot_describe_its_services_has_no_reflection(backend, monkeypatch):
    def fail(name):
        raise TypeError("Couldn't build proto file into descriptor pool")

    monkeypatch.setattr(rpc.importlib, "import_module", fail)
    with backend.grpc(LOCAL) as server:
        other = Client(server.port)
        assert other.half(1.0) == [3.5]
        with pytest.raises(grpc.RpcError):
            list(ProtoReflectionDescriptorDatabase(other.channel).get_services())


# Token, certificate, options


def test_only_clients_with_the_token_are_answered(backend, client):
    with backend.grpc(LOCAL._replace(token="secret-token")) as server:
        other = Client(server.port, max_send_message_length=-1)
        for metadata in (
            (),
            (("authorization", "Bearer secret-toke"),),
            (("authorization", "secret-token"),),
            (("authorization", "Basic secret-token"),),
            (("authorization", ""),),
            (("authorization-bin", b"\xff"),),
        ):
            found, message = refused(other.predict, predicting("half", x=[1.0]), metadata=metadata)
            assert (found, message) == (STATUS.UNAUTHENTICATED, "expected metadata 'authorization: Bearer TOKEN'")
        assert refused(other.reload, reloading(backend.config))[0] is STATUS.UNAUTHENTICATED
        # Without being read.
        assert refused(other.predict, predicting("half", x=[1.0] * 10**6))[0] is STATUS.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError):
            list(ProtoReflectionDescriptorDatabase(other.channel).get_services())
        assert other.half(1.0, metadata=(("authorization", "Bearer secret-token"),)) == [3.5]
        assert other.check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING


def test_tls_encrypts_and_can_ask_clients_for_certificates(backend):
    mine, yours = certificate("localhost"), certificate("client")
    with backend.grpc(LOCAL._replace(tls=Tls(*mine))) as server:
        assert Client(server.port, grpc.ssl_channel_credentials(mine[1])).half(1.0) == [3.5]
        for wrong in (None, grpc.ssl_channel_credentials(yours[1])):
            assert refused(Client(server.port, wrong).predict, predicting("half"), timeout=5)[0] is STATUS.UNAVAILABLE
    with backend.grpc(LOCAL._replace(tls=Tls(*mine, client_ca=yours[1], client_required=True))) as server:
        assert Client(server.port, grpc.ssl_channel_credentials(mine[1], *yours)).half(1.0) == [3.5]
        anonymous = Client(server.port, grpc.ssl_channel_credentials(mine[1]))
        assert refused(anonymous.predict, predicting("half"), timeout=5)[0] is STATUS.UNAVAILABLE
    with (
        pytest.raises(ConfigError, match="or the TLS certificate is not valid"),
        backend.grpc(LOCAL._replace(tls=Tls(mine[0], yours[1]))),
    ):
        pass


def test_a_port_in_use_is_reported(backend, server):
    for tls in (None, Tls(*certificate("localhost"))):
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{server.port} for gRPC"):
            backend.grpc(LOCAL._replace(grpc_port=server.port, tls=tls)).__enter__()


def test_a_second_server_takes_a_unix_socket_over_and_the_end_of_the_first_leaves_it(backend, tmp_path):
    path = tmp_path / "socket"
    first, second = (LOCAL._replace(grpc_socket=str(path), tensor_content=content) for content in (False, True))

    def answered_by():
        with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            answer = stub.Predict(predicting("half", x=[1.0, 2.0]), timeout=20)
        return second if answer.outputs["y"].tensor_content else first

    with contextlib.ExitStack() as stack:
        with backend.grpc(first):
            assert answered_by() is first
            stack.enter_context(backend.grpc(second))
            assert answered_by() is second
        assert answered_by() is second and list(tmp_path.iterdir()) == [path]
    assert not list(tmp_path.iterdir())


def test_channel_arguments_have_the_last_word(backend):
    options = LOCAL._replace(channel_arguments=(("grpc.max_receive_message_length", 1000),))
    with backend.grpc(options) as server:
        other = Client(server.port)
        assert refused(other.predict, predicting("half", x=[1.0] * 500))[0] is STATUS.RESOURCE_EXHAUSTED
        assert other.half(1.0) == [3.5]


# Bad clients, errors, overload


@pytest.mark.parametrize(
    "size, compression",
    [pytest.param(25_000_000, None, marks=pytest.mark.slow), (3_000_000, grpc.Compression.Gzip)],
)
def test_a_message_that_is_too_large_is_refused(client, size, compression):
    request = predicting("half", x=np.zeros(size, np.float32))
    code, message = refused(client.predict, request, compression=compression)
    assert code is STATUS.RESOURCE_EXHAUSTED
    assert "message larger than max" in message


@pytest.mark.parametrize("method", ["Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata"])
def test_bytes_that_are_no_request_are_refused(client, method):
    call = client.channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
    for raw in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xff" * 1000):
        code, message = refused(call, raw)
        assert code is INVALID
        assert message.startswith("the request cannot be parsed")


def test_bytes_that_are_no_request_for_health_or_reflection_are_refused_without_a_stack_trace(client, caplog):
    garbage = b"\x0a\xff\xff\xff\xff\x0f"
    reflect = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    check = client.channel.unary_unary("/grpc.health.v1.Health/Check")
    watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")
    reflected = client.channel.stream_stream(reflect)
    for call in (
        check,
        lambda raw, **options: next(watch(raw, **options)),
        lambda raw, **options: next(reflected(iter([raw]), **options)),
    ):
        code, message = refused(call, garbage)
        assert (code, message.partition(":")[0]) == (INVALID, "the request cannot be parsed")
    assert not [record for record in caplog.records if record.exc_info]


def test_an_example_that_is_none_is_refused(client):
    request = specified(regression_pb2.RegressionRequest(), "half", "regress_x_to_y")
    # Field 1 (input), 1 (example_list), 1 (examples): four bytes that are no Example.
    raw = request.SerializeToString() + b"\x12\x08\x0a\x06\x0a\x04\xff\xff\xff\xff"
    call = client.channel.unary_unary("/tensorflow.serving.PredictionService/Regress")
    assert refused(call, raw)[0] is INVALID


def test_unknown_methods_are_not_implemented(client):
    for method in ("/tensorflow.serving.SessionService/SessionRun", "/x/y", PREDICT.lower()):
        assert refused(client.channel.unary_unary(method), b"")[0] is STATUS.UNIMPLEMENTED


def test_connections_that_say_nothing_or_nonsense_hold_nobody_up(server, client):
    with contextlib.ExitStack() as stack:
        for first in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000) * 5:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(first)
        assert client.half(1.0, timeout=5) == [3.5]


def test_a_request_that_never_comes_is_given_up(backend):
    with backend.grpc(LOCAL._replace(limits=LIMITS._replace(seconds=0.2))) as server:
        other = Client(server.port)
        never = threading.Event()
        call = other.channel.stream_unary(PREDICT)
        code, message = refused(call, iter(never.wait, None))
        assert (code, message) == (STATUS.DEADLINE_EXCEEDED, "Deadline exceeded while reading the request")
        never.set()
        assert refused(call, iter([]))[0] is INVALID
        assert other.half(1.0) == [3.5]


def slow(monkeypatch, seconds, seen=None):
    """Makes the models slow; `seen` gets the timeouts, and what ended the requests."""

    async def predict(self, signature, inputs, outputs, timeout, api):
        seen.append(timeout)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return {"y": inputs["x"]}

    seen = [] if seen is None else seen
    monkeypatch.setattr(Servable, "predict", predict)
    return seen


def test_a_deadline_reaches_the_model(client, monkeypatch):
    seen = slow(monkeypatch, 0)
    client.half(1.0, timeout=7)
    client.half(1.0)
    client.half(1.0, timeout=1000)
    assert seen == pytest.approx([7, LIMITS.seconds, LIMITS.seconds], abs=1)


def test_a_model_that_does_not_end_is_given_up(backend, monkeypatch):
    with backend.grpc(LOCAL._replace(limits=LIMITS._replace(seconds=0.2))) as server, monkeypatch.context() as patch:
        patch.setattr(Servable, "run", lambda *arguments: time.sleep(1))
        found = refused(Client(server.port).predict, predicting("half", x=np.array([1.0], np.float32)))
    assert found == (STATUS.DEADLINE_EXCEEDED, "Deadline exceeded while waiting for the model")


def test_a_call_that_ends_early_is_cancelled(client, monkeypatch):
    seen = slow(monkeypatch, 60)
    request = predicting("half", x=np.array([1.0], np.float32))
    assert refused(client.predict, request, timeout=0.2)[0] is STATUS.DEADLINE_EXCEEDED
    call = client.predict.future(request)
    wait_for(lambda: len(seen) >= 3)
    call.cancel()
    wait_for(lambda: seen.count("cancelled") == 2)
    assert refused(client.predict, request, timeout=-1)[0] is STATUS.DEADLINE_EXCEEDED


def test_more_calls_than_allowed_are_refused(backend, monkeypatch):
    limits = LIMITS._replace(connections=3)
    with backend.grpc(LOCAL._replace(limits=limits)) as server:
        other = Client(server.port)
        with monkeypatch.context() as patch:
            seen = slow(patch, 60)
            request = predicting("half", x=np.array([1.0], np.float32))
            calls = [other.predict.future(request) for _ in range(3)]
            wait_for(lambda: len(seen) == 3)
            assert refused(other.predict, request)[0] is STATUS.RESOURCE_EXHAUSTED
            for call in calls:
                call.cancel()
            wait_for(lambda: seen.count("cancelled") == 3)
        assert other.half(1.0) == [3.5]


def test_a_bug_reaches_one_client_only_and_the_log(client, monkeypatch, caplog):
    async def predict(*arguments):
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "bert_tf.server"):
        patch.setattr(Servable, "predict", predict)
        found = refused(client.predict, predicting("half", x=[1.0]))
    assert found == (STATUS.INTERNAL, "Internal error; the server's log says more")
    (record,) = caplog.records
    assert "a bug" in record.exc_text and PREDICT in record.getMessage()


@pytest.mark.parametrize("text", ["é" * 5000, "\udcff bytes", "a\0b"])
def test_any_message_of_an_error_can_be_sent(client, monkeypatch, text):
    async def predict(*arguments):
        raise ServingError(Code.DATA_LOSS, text)

    with monkeypatch.context() as patch:
        patch.setattr(Servable, "predict", predict)
        code, message = refused(client.predict, predicting("half", x=[1.0]))
    assert code is STATUS.DATA_LOSS and message[:2] == text.encode("utf-8", "backslashreplace").decode()[:2]


def test_large_requests_and_answers_are_converted(client, backend):
    ids = np.arange(1000 * 300, dtype=np.int32).reshape(1000, 300)
    texts = np.array([b"%d" % row for row in range(1000)], object)
    found = arrays(client.predict(predicting("half", "several", ids=ids, raw_bytes=texts)))
    np.testing.assert_array_equal(found["sums"], ids.sum(1))
    assert found["twice_bytes"][999] == b"999999"


def test_a_server_that_stops_answers_what_it_has_begun(backend, monkeypatch):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(backend.grpc(LOCAL))
        other = Client(server.port)
        watched = other.watch(health_pb2.HealthCheckRequest())
        next(watched)
        seen = slow(monkeypatch, 0.5)
        call = other.predict.future(predicting("half", x=np.array([1.0], np.float32)))
        wait_for(lambda: seen)
        start = time.monotonic()
        backend.call(server.stop(60))
        assert time.monotonic() - start < 30  # a client that watches the health does not hold it up
        assert tf.make_ndarray(call.result().outputs["y"]).tolist() == [1.0]
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert refused(other.predict, predicting("half", x=[1.0]))[0] is STATUS.UNAVAILABLE
        monkeypatch.undo()


# Log and metrics


def test_each_call_is_a_line_of_json_in_the_access_log(client, caplog):
    with caplog.at_level(logging.INFO, "bert_tf.server.access"):
        client.half(1.0, 2.0)
        refused(client.predict, predicting("no"))
        client.check(health_pb2.HealthCheckRequest())
        wait_for(lambda: len(caplog.records) == 2)
    first, second = (json.loads(record.getMessage()) for record in caplog.records)
    assert datetime.datetime.fromisoformat(first.pop("time")).tzinfo
    assert first.pop("milliseconds") > 0
    assert first.pop("client") in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
    assert first.pop("bytes_in") > 8 and first.pop("bytes_out") > 8
    assert first == {"method": PREDICT, "status": "OK", "model": "half", "version": 2, "rows": 2}
    assert (second["status"], second["model"]) == ("NOT_FOUND", None)


def test_requests_are_counted(client, backend):
    client.half(1.0)
    refused(client.predict, predicting("half", x=[b"text"]))
    client.classify(classifying("half", "classify_x_to_y", 1.0))
    page = backend.metrics.page()
    assert ':tensorflow:serving:request_count{model_name="half",status="OK"}' in page
    assert ':tensorflow:serving:request_count{model_name="half",status="INVALID_ARGUMENT"}' in page
    for api in ("Predict", "Classify"):
        labels = f'{{model_name="half",API="{api}",entrypoint="GRPC"}}'
        assert f":tensorflow:serving:request_latency_count{labels}" in page


def runs_of(backend):
    """API -> number of requests for which the model ran."""
    line = r'^:tensorflow:serving:runtime_latency_count\{model_name="half",API="(\w+)",runtime="TF1"\} (\d+)$'
    return {api: int(count) for api, count in re.findall(line, backend.metrics.page(), re.MULTILINE)}


def test_the_time_of_the_model_is_measured_by_api_also_if_requests_share_a_batch(client, backend):
    before = runs_of(backend)
    client.half(1.0)
    client.classify(classifying("half", "classify_x_to_y", 1.0))
    assert backend.post("half:predict", {"instances": [1.0]})[0] == 200
    example = {"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}]}
    assert backend.post("half:regress", example)[0] == 200
    client.multi_inference(multi(("half", "regress_x_to_y", REGRESS), ("half", "classify_x_to_y", CLASSIFY)))
    after = runs_of(backend)
    added = {api: after[api] - before.get(api, 0) for api in after if after[api] != before.get(api, 0)}
    assert added == {"Predict": 2, "Classify": 1, "Regress": 1, "MultiInference": 2}


def test_models_that_do_not_exist_are_not_counted(client, backend):
    for name in range(3):
        refused(client.predict, predicting(f"unknown{name}", label="x"))
    assert "unknown" not in backend.metrics.page()
