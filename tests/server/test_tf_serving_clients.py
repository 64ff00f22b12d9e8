"""The client calls of TF Serving's documentation and of its own black-box test, against the real server.

half_plus_two and half_plus_three are written as TensorFlow's scripts write them: the input `x` of `predict` is a
feature of parsed examples with the shape [?, 1], and clients ask with [3].
"""

import json
import shutil
import subprocess
import urllib.error
import urllib.request

import grpc
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.server.saved_models import half_plus
from tests.server.test_server import Program

CLASSIFY, REGRESS, PREDICT = (f"tensorflow/serving/{method}" for method in ("classify", "regress", "predict"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfserving")
    config = "model_config_list {"
    for name, b in (("half_plus_two", 2.0), ("half_plus_three", 3.0)):
        half_plus(folder / name / "00000123", b)
        config += f' config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}'
    (folder / "models.config").write_text(config + " }")
    program = Program(f"--model_config_file={folder / 'models.config'}", f"--grpc_socket_path={folder / 'grpc.sock'}")
    program.socket = f"unix:{folder / 'grpc.sock'}"
    yield program
    status, log = program.end()
    assert status == 0 and "Traceback" not in log


@pytest.fixture(scope="module")
def stub(server):
    with grpc.insecure_channel(f"localhost:{server.grpc}") as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def curl(server, url, *options):
    """What `curl [options] http://localhost:8501/URL` prints."""
    url = f"http://localhost:{server.rest}/{url}"
    if shutil.which("curl"):
        return subprocess.run(["curl", "-s", *options, url], check=True, capture_output=True, text=True).stdout
    body = options[1].encode() if options else None
    try:
        with urllib.request.urlopen(url, body) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


# The pages "TensorFlow Serving with Docker" and "RESTful API"


def test_predict_with_curl(server):
    asked = ("-d", '{"instances": [1.0, 2.0, 5.0]}', "-X", "POST")
    assert json.loads(curl(server, "v1/models/half_plus_two:predict", *asked)) == {"predictions": [2.5, 3.0, 4.5]}
    assert json.loads(curl(server, "v1/models/half_plus_three:predict", *asked)) == {"predictions": [3.5, 4.0, 5.5]}
    for path in ("versions/123:predict", "versions/00000123:predict"):
        assert json.loads(curl(server, f"v1/models/half_plus_two/{path}", *asked))["predictions"] == [2.5, 3.0, 4.5]
    columns = ("-d", '{"inputs": [[1.0], [2.0], [5.0]]}', "-X", "POST")
    assert json.loads(curl(server, "v1/models/half_plus_two:predict", *columns)) == {"outputs": [[2.5], [3.0], [4.5]]}


def test_regress_and_classify_with_curl(server):
    asked = json.dumps({"signature_name": REGRESS, "examples": [{"x": 1.0}, {"x": 2.0}]})
    answer = curl(server, "v1/models/half_plus_three:regress", "-d", asked, "-X", "POST")
    assert json.loads(answer) == {"results": [3.5, 4.0]}
    asked = json.dumps({"signature_name": CLASSIFY, "examples": [{"x": 1.0}, {"x": 2.0}]})
    answer = curl(server, "v1/models/half_plus_three:classify", "-d", asked, "-X", "POST")
    assert json.loads(answer) == {"results": [[["", 3.5]], [["", 4.0]]]}


def test_status_and_metadata_with_curl(server):
    assert json.loads(curl(server, "v1/models/half_plus_three")) == {
        "model_version_status": [
            {"version": "123", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }
    metadata = json.loads(curl(server, "v1/models/half_plus_three/metadata"))
    assert metadata["model_spec"] == {"name": "half_plus_three", "signature_name": "", "version": "123"}
    inputs = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    shape = {"dim": [{"size": "-1", "name": ""}, {"size": "1", "name": ""}], "unknown_rank": False}
    assert inputs["x"] == {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": "x:0"}


def test_an_unknown_model_with_curl(server):
    answer = curl(server, "v1/models/half:predict", "-d", '{"instances": [1.0,5.0]}', "-X", "POST")
    assert "model half" in json.loads(answer)["error"]


# tensorflow_model_server_test.py


def predicting(model="half_plus_two", signature="", **version):
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    request.inputs["x"].dtype = types_pb2.DT_FLOAT
    request.inputs["x"].float_val.append(2.0)
    request.inputs["x"].tensor_shape.dim.add().size = 1
    return request


@pytest.mark.parametrize("filtered", [["y"], []])
@pytest.mark.parametrize("signature", ["", "serving_default", PREDICT])
def test_predict_with_grpc(stub, filtered, signature):
    request = predicting(signature=signature)
    request.output_filter.extend(filtered)
    for answer in (stub.Predict(request, 5.0), stub.Predict.future(request, 5.0).result()):
        assert answer.outputs["y"].dtype is types_pb2.DT_FLOAT and list(answer.outputs["y"].float_val) == [3.0]
        spec = answer.model_spec
        assert (spec.name, spec.signature_name, spec.version.value) == (
            "half_plus_two", signature or "serving_default", 123,
        )  # fmt: skip


def test_predict_over_the_unix_socket(server):
    with grpc.insecure_channel(server.socket) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        answer = stub.Predict(predicting("half_plus_three"), 5.0)
    assert list(answer.outputs["y"].float_val) == [4.0]


def with_example(request, model, signature):
    request.model_spec.name, request.model_spec.signature_name = model, signature
    request.input.example_list.examples.add().features.feature["x"].float_list.value.extend([2.0])
    return request


def test_classify_and_regress_with_grpc(stub):
    asked = with_example(classification_pb2.ClassificationRequest(), "half_plus_three", "classify_x_to_y")
    (row,) = stub.Classify(asked, 5.0).result.classifications
    assert [one.score for one in row.classes] == [4.0]
    answer = stub.Regress(with_example(regression_pb2.RegressionRequest(), "half_plus_three", "regress_x_to_y"), 5.0)
    assert [one.value for one in answer.result.regressions] == [4.0]
    assert (answer.model_spec.signature_name, answer.model_spec.version.value) == ("regress_x_to_y", 123)


def test_multi_inference_with_grpc(stub):
    request = inference_pb2.MultiInferenceRequest()
    for signature, method in (("regress_x_to_y", REGRESS), ("classify_x_to_y", CLASSIFY)):
        spec = request.tasks.add(method_name=method).model_spec
        spec.name, spec.signature_name = "half_plus_two", signature
    request.input.example_list.examples.add().features.feature["x"].float_list.value.extend([2.0])
    first, second = stub.MultiInference(request, 5.0).results
    assert [one.value for one in first.regression_result.regressions] == [3.0]
    assert [one.score for one in second.classification_result.classifications[0].classes] == [3.0]


def test_status_and_metadata_with_grpc(server, stub):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "half_plus_two"
    with grpc.insecure_channel(f"localhost:{server.grpc}") as channel:
        answer = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, 5.0)
    assert [(one.version, one.status.error_code) for one in answer.model_version_status] == [(123, 0)]
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    asked.model_spec.name = "half_plus_two"
    found = get_model_metadata_pb2.SignatureDefMap()
    assert stub.GetModelMetadata(asked, 5.0).metadata["signature_def"].Unpack(found)
    assert found.signature_def["regress_x_to_y"].method_name == REGRESS


def test_a_missing_model_with_grpc(stub):
    """This is how the black-box test waits for the server."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "intentionally_missing_model"
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(request, 5.0)
    assert "Servable" in caught.value.details()


# The grpc clients of the tutorials: tf.make_tensor_proto, and the fields of the answer by TensorFlow's reader.


def test_tensors_by_the_tools_of_tensorflow(stub):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "half_plus_two"
    request.model_spec.signature_name = "serving_default"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 2.0, 5.0], shape=[3, 1]))
    answer = stub.Predict(request, 10.0)
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [[2.5], [3.0], [4.5]]
