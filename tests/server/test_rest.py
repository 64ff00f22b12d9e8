"""The REST API as clients see it."""

import concurrent.futures
import contextlib
import gzip
import http.client
import json
import logging
import pathlib
import re
import shutil
import ssl
import subprocess
import time

import numpy as np
import pytest

from bert_tf.errors import ConfigError
from bert_tf.inference import check
from bert_tf.server import rest
from bert_tf.server.options import EndpointOptions, Limits, Tls
from bert_tf.server.web import Web
from tests.inference.servers import certificate


@pytest.fixture(scope="module")
def server(start, half_plus_config):
    return start(half_plus_config, limits=Limits(request_bytes=2**20, rows=1000, text_bytes=1000))


@pytest.mark.parametrize(
    ("path", "document", "answer"),
    [
        ("half:predict", {"instances": [1.0, 2, 5]}, {"predictions": [3.5, 4.0, 5.5]}),
        ("half:predict", {"inputs": [1.0]}, {"outputs": [3.5]}),
        ("half:predict", {"inputs": {"x": [0.2]}}, {"outputs": [3.1]}),
        ("half:predict", {"instances": [[1.0], [2.0]]}, {"predictions": [[3.5], [4.0]]}),  # [?] is declared
        ("half/versions/1:predict", {"instances": [{"x": 1}]}, {"predictions": [2.5]}),
        ("half/labels/stable:predict", {"instances": [1]}, {"predictions": [2.5]}),
        (
            "half:predict",
            {"signature_name": "types", "inputs": {"bool": True, "uint8": [1], "int64": [[2]], "float64": 0.1}},
            {"outputs": {"bool": True, "uint8": [1], "int64": [[2]], "float64": 0.1}},
        ),
        (
            "half:predict",
            {"signature_name": "several", "inputs": {"ids": [[1, 2]], "raw_bytes": ["é", {"b64": "aGk="}]}},
            {"outputs": {"sums": [3], "twice_bytes": [{"b64": "w6nDqQ=="}, {"b64": "aGloaQ=="}]}},
        ),
        (
            "half:predict",
            {"signature_name": "several", "instances": [{"ids": [1], "raw_bytes": "a"}, {"raw_bytes": "", "ids": [2]}]},
            {"predictions": [{"sums": 1, "twice_bytes": {"b64": "YWE="}}, {"sums": 2, "twice_bytes": {"b64": ""}}]},
        ),
        (
            "half:classify",
            {"signature_name": "classify_x_to_y", "examples": [{"x": 1.0}, {"x": [2.0]}]},
            {"results": [[["up", 3.5], ["down", -3.5]], [["up", 4.0], ["down", -4.0]]]},
        ),
        (
            "half/versions/1:regress",
            {"signature_name": "regress_x_to_y", "context": {"x": 3.0}, "examples": [{}, {"x": 5.0}]},
            {"results": [3.5, 4.5]},
        ),
    ],
)
def test_answers(server, path, document, answer):
    assert server.post(path, document) == (200, answer)


def test_answers_are_those_of_numpy(server):
    x = np.random.default_rng(0).normal(size=900).astype(np.float32)
    status, answer = server.post("half:predict", {"instances": x.tolist()})
    assert status == 200
    np.testing.assert_array_equal(np.float32(answer["predictions"]), x * np.float32(0.5) + 3)


def test_an_export_answers_like_its_model(start, case):
    folder = pathlib.Path(case.path).parent
    server = start(
        f'model_config_list {{ config {{ name: "bert" base_path: "{folder}" model_platform: "tensorflow" }} }}'
    )
    # In JSON, [] is of rank 1, so a tensor without rows cannot be of rank 2.
    asked = [pair for pair in zip(case.requests, case.expected, strict=True) if pair[0].kind != "no rows"]
    requests, expected = zip(*asked, strict=True)
    answers = [server.post("bert:predict", check.rest_body(request))[1] for request in requests]
    assert check.compare(requests, expected, answers) < 1e-5
    card = server.request("GET", "/page/models.json")[1]["models"][0]["card"]
    assert card["task"]["name"] == "classification"


@pytest.mark.parametrize(
    ("path", "document", "status", "found"),
    [
        ("none:predict", {"instances": [1]}, 404, "model none"),
        ("half/versions/5:predict", {"instances": [1]}, 404, "version 5 of model half"),
        ("half/labels/x:predict", {"instances": [1]}, 400, "label x"),
        ("..%2F..%2Fetc:predict", {"instances": [1]}, 404, "model ../../etc"),
        ("../x:predict", {"instances": [1]}, 400, "POST /v1/models/../x:predict"),
        ("half:predict?x=1", {"instances": [1]}, 400, "POST /v1/models/half:predict?x=1"),
        ("half:explain", {"instances": [1]}, 400, "POST /v1/models/half:explain"),
        ("half:PREDICT", {"instances": [1]}, 400, "POST /v1/models/half:PREDICT"),
        (
            "half/versions/99999999999999999999:predict",
            {"instances": [1]},
            400,
            "99999999999999999999",
        ),
        (
            "half:predict",
            {"instances": [1], "signature_name": "x"},
            400,
            '"x"',
        ),
        ("half:classify", {"examples": [{}], "signature_name": "x"}, 400, "'x'"),
        ("half:regress", {"examples": [{}], "signature_name": "classify_x_to_y"}, 400, "['classes', 'scores']"),
        ("half:classify", {"examples": [{}]}, 400, "['x']"),
        ("half:predict", {"instances": [0.0] * 1001}, 400, "1001 rows"),
        (
            "half:predict",
            {"signature_name": "several", "inputs": {"ids": [[1]], "raw_bytes": ["a" * 1001]}},
            400,
            "raw_bytes: a text has 1001 bytes",
        ),
        ("half:predict", "x" * (2**20 + 1), 413, "1048577"),
        ("half:predict", "", 400, "char 0"),
    ],
)
def test_errors(server, path, document, status, found):
    answered, answer = server.post(path, document)
    assert answered == status
    assert answer.keys() == {"error"}
    assert found in answer["error"]
    assert "\n" not in answer["error"]


def test_status(server):
    def described(version):
        return {"version": version, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}

    both = {"model_version_status": [described("123"), described("1")]}
    assert server.request("GET", "/v1/models/half")[:2] == (200, both)
    assert server.request("GET", "/V1/Models/half/labels/stable")[1] == both  # as in TF Serving
    assert server.request("GET", "/v1/models/half/versions/1")[1] == {"model_version_status": [described("1")]}


@pytest.mark.parametrize(
    ("method", "path", "status", "found"),
    [
        ("GET", "/v1/models/x", 404, "model x"),
        ("GET", "/v1/models/half/versions/7", 404, "version 7 of model half"),
        ("GET", "/v1/models", 400, "no model"),
        ("GET", "/v1/foo", 400, "GET /v1/foo"),
        ("GET", "/v1/models/half:predict", 400, "GET /v1/models/half:predict"),
        ("PUT", "/v1/models/half:predict", 400, "PUT /v1/models/half:predict"),
        ("GET", "/v1/models/x/metadata", 404, "model x"),
        ("GET", "/v2/health", 404, "GET /v2/health"),
        ("POST", "/healthz", 405, "POST /healthz"),
    ],
)
def test_paths_without_answer(server, method, path, status, found):
    answered, answer, _ = server.request(method, path)
    assert answered == status and answer.keys() == {"error"}
    assert found in answer["error"]


def test_metadata(server):
    status, answer, headers = server.request("GET", "/v1/models/half/labels/stable/metadata")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert answer["model_spec"] == {"name": "half", "signature_name": "", "version": "1"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == {"serving_default", "several", "types", "classify_x_to_y", "regress_x_to_y", "slow"}
    assert signatures["serving_default"]["inputs"]["x"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]


def test_gzip_in_requests(server):
    body = gzip.compress(b'{"instances": [1.0]}')
    assert server.post("half:predict", body, {"Content-Encoding": "gzip"}) == (200, {"predictions": [3.5]})


def test_large_bodies_are_answered_like_small_ones(server):
    body = json.dumps({"instances": [1.0, 2.0], "rest": "x" * 100_000})
    assert server.post("half:predict", body) == (200, {"predictions": [3.5, 4.0]})


def test_health_and_metrics(server):
    server.post("half:predict", {"instances": [1]})
    server.post("half:predict", {})
    server.post("unknown:predict", "no JSON")
    assert server.request("GET", "/healthz")[:2] == (200, b"ok\n")
    assert server.request("GET", "/readyz")[:2] == (200, b"ready\n")
    status, page, headers = server.request("GET", "/monitoring/prometheus/metrics")
    assert status == 200
    assert headers.get_content_type() == "text/plain"
    assert re.search(rb'\n:tensorflow:serving:request_count{model_name="half",status="OK"} \d', page)
    assert b'status="INVALID_ARGUMENT"' in page
    assert b':tensorflow:serving:request_latency_count{model_name="half",API="predict",entrypoint="REST"}' in page
    assert b"unknown" not in page


def test_a_model_that_cannot_be_loaded_is_not_ready(start, tmp_path):
    (tmp_path / "1").mkdir()
    server = start(
        f'model_config_list {{ config {{ name: "m" base_path: "{tmp_path}" model_platform: "tensorflow" }} }}'
    )
    assert server.request("GET", "/healthz")[0] == 200
    assert server.request("GET", "/readyz")[0] == 503
    (status,) = server.request("GET", "/v1/models/m")[1]["model_version_status"]
    assert status["state"] == "END"
    assert status["status"]["error_code"] != "OK"
    assert server.request("GET", "/page/models.json")[1]["models"][0]["versions"] == [{"version": 1, "state": "END"}]


def test_models_for_the_page(server):
    (model,) = server.request("GET", "/page/models.json")[1]["models"]
    assert model["name"] == "half"
    assert model["versions"][0] == {"version": 123, "state": "AVAILABLE"}
    assert model["labels"] == {"stable": 1}
    assert model["card"] is None
    assert "serving_default" in model["signatures"]


def test_files_of_the_page(server):
    status, _, headers = server.request("GET", "/")
    assert status == 200
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert server.request("GET", "/page/index.html")[0] == 200
    for path in ("/page/../rest.py", "/page/%2e%2e/rest.py", "/page/none", "/page/..%2frest.py"):
        assert server.request("GET", path)[0] == 404


def test_web_pages_of_other_hosts_get_no_answers(server):
    own, other = f"http://127.0.0.1:{server.port}", "https://other.example"
    document = {"instances": [1]}
    assert server.post("half:predict", document, {"Origin": own})[0] == 200
    for origin in (other, "null", f"http://127.0.0.1:{server.port + 1}"):
        status, answer = server.post("half:predict", document, {"Origin": origin, "Content-Type": "text/plain"})
        assert status == 403
        assert answer["error"].startswith(f"Requests from web pages of {origin} are not allowed")
    status, _, headers = server.request("OPTIONS", "/v1/models/half:predict", headers={"Origin": other})
    assert status == 200
    assert "Access-Control-Allow-Origin" not in headers


def test_web_pages_whose_name_leads_to_this_machine_get_no_answers(start, server, half_plus_config):
    def status(server, address):
        headers = {"Origin": address, "Host": address.partition("://")[2]}
        return server.post("half:predict", {"instances": [1]}, headers)[0]

    for address in ("localhost", "127.0.0.1", "[::1]", "192.168.0.1"):
        assert status(server, f"http://{address}:{server.port}") == status(server, f"http://{address}") == 200
    assert status(server, f"http://evil.example:{server.port}") == status(server, "http://evil.example") == 403
    assert status(server, "http://127.0.0.1.evil.example") == status(server, "http://[") == 403
    assert status(server, "https://models.example") == 200  # by a proxy
    assert status(start(half_plus_config, token="geheim é"), "http://evil.example") == 401


def test_web_pages_of_other_hosts_get_answers_if_that_is_enabled(start, half_plus_config):
    server = start(half_plus_config, cors=True)
    for method, path, body in (
        ("OPTIONS", "/v1/models/half:predict", None),
        ("POST", "/v1/models/half:predict", '{"instances": [1]}'),
        ("GET", "/v1/models/half", None),
    ):
        status, _, headers = server.request(method, path, body, {"Origin": "https://other.example"})
        assert status == 200
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert headers["Access-Control-Allow-Methods"] == "POST, GET"
        assert headers["Access-Control-Allow-Headers"] == "Content-Type"
    status, answer, _ = server.request("OPTIONS", "/v1/models/half:predict")
    assert status == 400 and "Origin" in answer["error"]


def test_a_token_protects_all_but_health_and_the_page(start, half_plus_config):
    server = start(half_plus_config, token="geheim é")
    right = {"Authorization": "Bearer geheim é".encode()}
    for path in ("/v1/models/half", "/monitoring/prometheus/metrics", "/page/models.json"):
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic geheim"}):
            status, answer, found = server.request("GET", path, headers=headers)
            assert (status, answer.keys()) == (401, {"error"})
            assert found["WWW-Authenticate"] == "Bearer"
    for path in ("/v1/models/half", "/monitoring/prometheus/metrics", "/page/models.json"):
        assert server.request("GET", path, headers=right)[0] == 200
    for path in ("/healthz", "/readyz", "/", "/page/index.html"):
        assert server.request("GET", path)[0] == 200
    assert server.post("half:predict", {"instances": [1]})[0] == 401
    assert server.post("half:predict", {"instances": [1]}, right)[0] == 200


def test_tls_encrypts_rest(start, half_plus_config):
    key, pem = certificate("localhost")
    server = start(half_plus_config, tls=Tls(key, pem))
    context = ssl.create_default_context(cadata=pem.decode())
    with contextlib.closing(http.client.HTTPSConnection("localhost", server.port, context=context)) as connection:
        connection.request("GET", "/readyz")
        assert connection.getresponse().read() == b"ready\n"
    for wrong in (certificate("localhost")[0], certificate("localhost", b"password")[0]):
        with pytest.raises(ConfigError, match="the TLS certificate and key cannot be used"):
            Web(None, None, EndpointOptions(rest_port=0, tls=Tls(wrong, pem)))


def test_each_request_is_logged_as_json(server, caplog):
    with caplog.at_level(logging.INFO, "bert_tf.server.access"):
        body = b'{"instances": [1, 2]}'
        server.post("half/versions/1:predict", body)
        server.request("GET", "/x?\"'%0a")
        while "/x?" not in caplog.text:  # it comes after the answer
            time.sleep(0.01)
    first, second = (json.loads(record.message) for record in caplog.records[-2:])
    assert first.pop("time").endswith("+00:00")
    assert first.pop("milliseconds") > 0
    assert first == {
        "method": "POST",
        "path": "/v1/models/half/versions/1:predict",
        "status": 200,
        "bytes_in": len(body),
        "bytes_out": len(b'{"predictions": [2.5, 3.0]}'),
        "model": "half",
        "version": 1,
        "rows": 2,
        "client": "127.0.0.1",
    }
    assert (second["status"], second["path"]) == (404, "/x?\"'%0a")


def test_a_request_that_takes_too_long_gets_an_error(start, half_plus_config):
    server = start(half_plus_config, limits=Limits(seconds=0.5))
    document = {"signature_name": "slow", "instances": [2**31 - 1]}
    status, answer = server.post("half:predict", document)
    assert status == 504
    assert "eadline" in answer["error"] or "Timed out" in answer["error"]
    assert server.post("half:predict", {"instances": [1]})[0] == 200


def test_slow_requests_to_one_version_do_not_hold_up_another(start, half_plus_config):
    server = start(half_plus_config, limits=Limits(seconds=1))
    document = {"signature_name": "slow", "instances": [2**31 - 1]}
    with concurrent.futures.ThreadPoolExecutor(16) as clients:
        slow = [clients.submit(server.post, "half/versions/123:predict", document) for _ in range(16)]
        time.sleep(0.5)
        assert server.post("half/versions/1:predict", {"instances": [1]}) == (200, {"predictions": [2.5]})
        assert not any(request.done() for request in slow)
        assert {request.result()[0] for request in slow} == {504}


def test_an_unexpected_error_says_nothing_of_the_inside(server, monkeypatch, caplog):
    monkeypatch.setattr(rest.json_requests, "parse", lambda body: 1 / 0)
    assert server.post("half:predict", {}) == (500, {"error": "Internal error; the server's log says more"})
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_as_in_the_documentation(server):
    command = [
        "curl",
        "-s",
        "-d",
        '{"instances": [1.0, 2.0, 5.0]}',
        f"http://localhost:{server.port}/v1/models/half:predict",
    ]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout) == {
        "predictions": [3.5, 4.0, 5.5]
    }
