"""Tests of the JSON of the REST API."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import classification_pb2, regression_pb2

from bert_tf.server import json_answers, json_requests
from bert_tf.server.models import VersionStatus, status_response
from bert_tf.server.status import Code, ServingError

FLOAT, INT, STRING = types_pb2.DT_FLOAT, types_pb2.DT_INT32, types_pb2.DT_STRING


def signatures(**inputs):
    signature = meta_graph_pb2.SignatureDef()
    for name, dtype in inputs.items():
        signature.inputs[name].dtype = dtype
    return {"serving_default": signature}


def decoded(text, **inputs):
    body = text if isinstance(text, bytes) else text.encode()
    return json_requests.decode_predict(json_requests.parse(body), signatures(**inputs))


def error_of(function, *args, **kwargs):
    with pytest.raises(ServingError) as caught:
        function(*args, **kwargs)
    return caught.value


# The cases of TF Serving's json_tensor_test.cc.


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        ('{"instances": [[1,2],[3,4],[5,6]]}', INT, np.int32([[1, 2], [3, 4], [5, 6]])),
        ('{"instances": [1, 2.0, 3, 5.003, 0.007, 1e2]}', FLOAT, np.float32([1, 2, 3, 5.003, 0.007, 100])),
        ('{"instances": [1.0, 2, 0.662]}', types_pb2.DT_DOUBLE, np.float64([1, 2, 0.662])),
        ('{"instances": [NaN, Infinity, -Infinity]}', FLOAT, np.float32([np.nan, np.inf, -np.inf])),
        ('{"instances": [true, false]}', types_pb2.DT_BOOL, np.array([True, False])),
        ('{"instances": [0, 255]}', types_pb2.DT_UINT8, np.uint8([0, 255])),
        ('{"instances": [-9223372036854775808]}', types_pb2.DT_INT64, np.int64([-(2**63)])),
        ('{"instances": [18446744073709551615]}', types_pb2.DT_UINT64, np.uint64([2**64 - 1])),
        ('{"instances": [100000000000000000000000]}', FLOAT, np.float32([1e23])),
        # Rounded to the nearest float: 2**24 + 1 is between two, 1435774380 = 11217 * 128000 - 1620.
        ('{"instances": [16777217, 1435774380]}', FLOAT, np.float32([16777216, 1435774336])),
        ('{"instances": [9007199254740993]}', types_pb2.DT_DOUBLE, np.float64([9007199254740992])),
        (
            '{"instances": [1.7976931348623157e308, -1.7976931348623157e308, 3.5e38]}',
            FLOAT,
            np.float32([np.inf, -np.inf, np.inf]),
        ),
        ('{"instances": ["a", "\\u00e9\\ud83d\\ude00", ""]}', STRING, ["a", "é😀", ""]),
        ('{"instances": [{"b64" : "aGVsbG8="}, "x", {"b64": "d29 ybGQ"}]}', STRING, ["hello", "x", "world"]),
        ('{"instances": [{"x": "a"}, {"x": "b"}]}', STRING, ["a", "b"]),
        ('{"instances": [{"x": {"b64": "aGVsbG8="}}]}', STRING, ["hello"]),
        ('{"instances": [[["a"], ["b"]]]}', STRING, [[["a"], ["b"]]]),
        ('{"instances": [[], []]}', FLOAT, np.zeros([2, 0], np.float32)),
        ('{"inputs": [[1], [2]]}', INT, np.int32([[1], [2]])),
        ('{"inputs": {"x": [[1], [2]], "other": {}}}', INT, np.int32([[1], [2]])),
        ('{"inputs": 5}', INT, np.int32(5)),
        ('{"inputs": {"b64": "aGVsbG8="}}', STRING, "hello"),
        ('\ufeff \n{"instances": [1], "unknown": [[]]} and what follows }', INT, np.int32([1])),
        ('{"instances": [1], "instances": [2]}', INT, np.int32([1])),
        ('{"instances": [{"x": 1, "x": 2}]}', INT, np.int32([1])),
    ],
)
def test_tensors_of_one_input(text, dtype, expected):
    request = decoded(text, x=dtype)
    if dtype == STRING:
        expected = np.vectorize(str.encode, otypes=[object])(expected)
    assert request.inputs.keys() == {"x"}
    assert request.inputs["x"].dtype == expected.dtype
    np.testing.assert_array_equal(request.inputs["x"], expected)
    assert request.by_row == ("instances" in text)
    assert request.signature_name == "serving_default"


@pytest.mark.parametrize(
    "text",
    [
        '{"instances": [{"i": [[1,2],[3,4]], "s": "foo"}, {"s": "bar", "i": [[7,8],[9,0]]}]}',
        '{"inputs": {"i": [[[1,2],[3,4]], [[7,8],[9,0]]], "s": ["foo", "bar"], "extra": null}}',
    ],
)
def test_tensors_of_several_inputs(text):
    inputs = decoded(text, i=INT, s=STRING).inputs
    np.testing.assert_array_equal(inputs["i"], [[[1, 2], [3, 4]], [[7, 8], [9, 0]]])
    np.testing.assert_array_equal(inputs["s"], np.array([b"foo", b"bar"], object))


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", "char 0"),
        (b" \n", "char 0"),
        (b"[1]", "a list of 1"),
        (b'{"instances": [1], }', "char 1"),  # 19, or 17 since Python 3.13
        ('{"é": nul}'.encode(), "char 6"),
        (b'{"a" 1}', "char 5"),
        (b'{"a": "b', "char 6"),
        (b'{"a": "\n"}', "char 7"),
        (b'{"a": "\xff"}', "position 7"),
        (b'{"a": Inf}', "char 6"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "digits"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_texts_that_are_no_json_objects_are_invalid(body, place):
    error = error_of(json_requests.parse, body)
    assert error.code is Code.INVALID_ARGUMENT
    assert place in error.message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"signature_name": 5, "instances": [1]}', "signature_name is 5"),
        ('{"signature_name": "x", "instances": [1]}', '"x"'),
        ("{}", "neither of 'instances' and 'inputs'"),
        ('{"instances": [1], "inputs": [1]}', "both of 'instances' and 'inputs'"),
        ('{"instances": 1}', "instances is 1"),
        ('{"instances": []}', "instances is a list of 0"),
        ('{"instances": [[1,2],[3,4],[5,6,7]]}', "instances[2] is a list of 3"),
        ('{"instances": [[1,2],[3,4],[[5,6]]]}', "instances[2] is a list of 1"),
        ('{"instances": [1, [1]]}', "instances[1] is a list of 1"),
        ('{"instances": [[1,[2]]]}', "instances[0][1] is a list of 1"),
        ('{"instances": [[[1],2]]}', "instances[0][1] is 2"),
        ('{"inputs": [[1],[2,3]]}', "inputs[1] is a list of 2"),
        ('{"instances": [1, 2.5]}', "instances[1] is 2.5"),
        ('{"instances": [1.0]}', "instances[0] is 1.0"),
        ('{"instances": [true]}', "instances[0] is true"),
        ('{"instances": [null]}', "instances[0] is null"),
        ('{"instances": ["a"]}', 'instances[0] is "a"'),
        ('{"instances": [{"b64": "aGk="}]}', "instances[0] is an object with b64"),
        ('{"instances": [[1, 2], [3, 2147483648]]}', "instances[1][1] is 2147483648"),
        ('{"instances": [1, {"x": 1}]}', "instances[1] is an object with x"),
        ('{"instances": [{"x": 1}, 1]}', "instances[1] is 1"),
        ('{"instances": [{"x": 1, "y": 2}]}', "instances[0] is an object with x, y"),
        ('{"instances": [{"x": [1]}, {"x": ["a"]}]}', 'instances[1][0], x is "a"'),
        ('{"instances": [{}]}', "instances[0] is an object with no members"),
        ('{"inputs": {"x": [1, "a"]}}', 'x[1] is "a"'),
        ('{"inputs": {"y": 1}}', "inputs has no x"),
        ('{"instances": [' + "[" * 100 + "]" * 100 + "]}", "64 dimensions"),
        ('{"instances": [1, ' + "[" * 500 + "]" * 500 + "]}", "instances[1] is a list of 1"),
    ],
)
def test_requests_that_do_not_fit_an_input_of_integers_name_the_value(text, found):
    error = error_of(decoded, text, x=INT)
    assert error.code is Code.INVALID_ARGUMENT
    assert found in error.message


@pytest.mark.parametrize(
    ("text", "dtype", "found"),
    [
        ("1e999", FLOAT, "instances[0] is Infinity"),
        ("NaN, Infinity, -1e999", types_pb2.DT_DOUBLE, "instances[2] is -Infinity"),
        ("1" + "0" * 400, FLOAT, "instances[0] is 1000"),
        ("1" + "0" * 400, types_pb2.DT_INT64, "instances[0] is 1000"),
        ("256", types_pb2.DT_UINT8, "instances[0] is 256"),
        ("-1", types_pb2.DT_UINT64, "instances[0] is -1"),
        ("9223372036854775808", types_pb2.DT_INT64, "instances[0] is 9223372036854775808"),
        ("0", types_pb2.DT_BOOL, "instances[0] is 0"),
        ("1", STRING, "instances[0] is 1"),
        ('"a", {"b64": "?"}', STRING, "instances[1] is"),
        ('{"b64": "aGVsb"}', STRING, "instances[0] is"),
        ('[{"b64": 5}]', STRING, "instances[0][0] is"),
        ('[{"b64": "aGk=", "x": 1}]', STRING, "instances[0][0] is an object with b64, x"),
        ('"\\ud800"', STRING, "instances[0] is"),
        ('["' + "a" * 10_000 + '", 5, {}]', FLOAT, 'instances[0][0] is "aaa'),
    ],
)
def test_values_that_do_not_fit_their_type_are_named(text, dtype, found):
    error = error_of(decoded, f'{{"instances": [{text}]}}', x=dtype)
    assert error.code is Code.INVALID_ARGUMENT
    assert found in error.message
    assert len(error.message) < 200


@pytest.mark.parametrize("value", ["1", "[]"])
@pytest.mark.parametrize(
    "dtype", [types_pb2.DT_HALF, types_pb2.DT_BFLOAT16, types_pb2.DT_RESOURCE, types_pb2.DT_INVALID]
)
def test_types_that_json_cannot_have_are_not_implemented(value, dtype):
    error = error_of(decoded, f'{{"inputs": {value}}}', x=dtype)
    assert error.code is Code.UNIMPLEMENTED and types_pb2.DataType.Name(dtype) in error.message


@pytest.mark.parametrize("text", ['{"instances": [1]}', '{"inputs": [1]}', '{"instances": [{"i": 1}]}'])
def test_requests_that_do_not_fit_several_inputs_name_them(text):
    error = error_of(decoded, text, i=INT, s=STRING)
    assert error.code is Code.INVALID_ARGUMENT and "i, s" in error.message


def test_names_of_inputs_may_have_braces():
    assert '{0}[1] is "a"' in error_of(decoded, '{"inputs": {"{0}": [1, "a"]}}', **{"{0}": INT}).message


def test_a_signature_without_inputs_takes_no_request():
    assert "serving_default" in error_of(decoded, '{"inputs": 1}').message


def test_large_requests_are_decoded_like_numpy_does_it():
    values = np.random.default_rng(0).normal(size=(1000, 7, 3)).astype(np.float32)
    text = json.dumps({"instances": [{"x": row, "i": 1} for row in values.tolist()]})
    np.testing.assert_array_equal(decoded(text, x=FLOAT, i=INT).inputs["x"], values)


# Answers


def encoded(outputs, by_row=True):
    return json_answers.encode_predict({name: np.asarray(value) for name, value in outputs.items()}, by_row)


def texts(*values):
    return np.array(values, object)


@pytest.mark.parametrize(
    ("outputs", "by_row", "expected"),
    [
        ({"y": np.float32([2.5, 3, 0.1])}, True, '{"predictions": [2.5, 3.0, 0.1]}'),
        ({"y": np.float32([[2.5], [3]])}, False, '{"outputs": [[2.5], [3.0]]}'),
        ({"y": np.float32(0.5)}, False, '{"outputs": 0.5}'),
        ({"y": np.float32([np.nan, np.inf, -np.inf])}, True, '{"predictions": [NaN, Infinity, -Infinity]}'),
        ({"y": np.float64([0.1, 1 / 3])}, True, '{"predictions": [0.1, 0.3333333333333333]}'),
        ({"y": np.int64([2**62])}, True, '{"predictions": [4611686018427387904]}'),
        ({"y": np.uint8([200])}, True, '{"predictions": [200]}'),
        ({"y": np.array([True, False])}, True, '{"predictions": [true, false]}'),
        ({"y": texts(b"a", "é\n".encode())}, True, '{"predictions": ["a", "é\\n"]}'),
        ({"y_bytes": texts(b"hello")}, True, '{"predictions": [{"b64": "aGVsbG8="}]}'),
        ({"y_bytes": np.int32([1])}, True, '{"predictions": [1]}'),
        ({"y": np.zeros([0, 2], np.int32)}, True, '{"predictions": []}'),
        (
            {"b": np.int32([1, 2]), "a": np.float32([[1], [2]])},
            True,
            '{"predictions": [{"a": [1.0], "b": 1}, {"a": [2.0], "b": 2}]}',
        ),
        ({"b": np.int32(1), "a": texts(b"x")}, False, '{"outputs": {"a": ["x"], "b": 1}}'),
    ],
)
def test_answers(outputs, by_row, expected):
    assert encoded(outputs, by_row).decode() == expected


def test_bytes_that_are_no_text_are_passed_on():
    assert encoded({"y": texts(b"\xff")}) == b'{"predictions": ["\xff"]}'


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        ({}, "no outputs"),
        ({"y": np.float32(1)}, "'y': []"),
        ({"a": np.float32([1, 2]), "b": np.float32([1])}, "'a': [2], 'b': [1]"),
        ({"y": np.float16([1])}, "y is float16"),
        ({"y": np.array([1], tf.bfloat16.as_numpy_dtype)}, "y is bfloat16"),
        ({"y": np.complex64([1])}, "y is complex64"),
    ],
)
def test_answers_that_json_cannot_have(outputs, found):
    assert found in error_of(encoded, outputs).message


def test_floats_are_printed_with_six_digits_or_nine():
    rng = np.random.default_rng(0)
    special = [9e6, 999999, 0.0003, 3e-5, 555557.5, 999999.7, 2**-13, 2**-14, 1250002.375, 1e-45, 3.4e38, 0, -0.0]
    values = np.concatenate(
        [rng.integers(0, 2**32, 50_000, np.uint32).view(np.float32), rng.random(10_000), special], dtype=np.float32
    )
    values = values[np.isfinite(values)]
    found = json_answers.decimals(values)
    np.testing.assert_array_equal(found.astype(np.float32), values)
    assert math.copysign(1, found[-1]) == -1
    common = (np.abs(values) > 1e-12) & (np.abs(values) < 1e20)
    # What TF Serving does, number by number.
    expected = [f"{value:.6g}" for value in values[common].tolist()]
    expected = [
        text if np.float32(text) == value else f"{value:.9g}"
        for text, value in zip(expected, values[common], strict=True)
    ]
    assert found[common].tolist() == [float(text) for text in expected]


# Classification and regression


def examples_of(text):
    return json_requests.decode_examples(json_requests.parse(text.encode()))


@pytest.mark.parametrize(
    "values, expected",
    [
        ('[1, "a"]', '"a"; expected int64_list, as the first value'),
        ("[1, 0.5]", "0.5; expected int64_list, as the first value"),
        ("[1, {}]", 'an object with no members; expected a number, text or {"b64": base64}'),
    ],
)
def test_values_of_a_feature_are_of_one_kind(values, expected):
    with pytest.raises(ServingError) as refused:
        examples_of(f'{{"examples": [{{"x": {values}}}]}}')
    assert refused.value.code is Code.INVALID_ARGUMENT and str(refused.value).endswith(f", x has {expected}")


def test_examples_with_features_of_all_kinds():
    message = examples_of('{"examples": [{"i": [1, true], "f": [1.0, NaN], "s": ["a", {"b64": "aGk="}], "e": []}]}')
    (example,) = message.example_list.examples
    feature = example.features.feature
    assert list(feature["i"].int64_list.value) == [1, 1]
    assert feature["f"].float_list.value[0] == 1
    assert math.isnan(feature["f"].float_list.value[1])
    assert list(feature["s"].bytes_list.value) == [b"a", b"hi"]
    assert feature["e"].WhichOneof("kind") is None


def test_numbers_that_float32_cannot_have_are_infinite_in_examples():
    message = examples_of('{"examples": [{"x": [1e300, -1e300, 1.5]}]}')
    assert list(message.example_list.examples[0].features.feature["x"].float_list.value) == [np.inf, -np.inf, 1.5]


def test_examples_with_context():
    message = examples_of('{"context": {"c": "x"}, "examples": [{"t": "a"}, {"t": "b"}]}').example_list_with_context
    assert list(message.context.features.feature["c"].bytes_list.value) == [b"x"]
    assert [example.features.feature["t"].bytes_list.value[0] for example in message.examples] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", "examples is missing"),
        ('{"examples": []}', "examples is a list of 0"),
        ('{"examples": 1}', "examples is 1"),
        ('{"examples": ["a"]}', 'examples[0] is "a"'),
        ('{"context": 5, "examples": [{}]}', "context is 5"),
        ('{"examples": [{}, {"x": [1, 1.5]}]}', "examples[1], x has 1.5"),
        ('{"examples": [{"x": null}]}', "examples[0], x has null"),
        ('{"examples": [{"x": [[1]]}]}', "examples[0], x has a list"),
        ('{"examples": [{"x": {"a": 1}}]}', "examples[0], x has an object"),
        ('{"examples": [{"x": 18446744073709551615}]}', "examples[0], x has 18446744073709551615"),
        ('{"examples": [{"x": 1e999}]}', "examples[0], x has Infinity"),
        ('{"examples": [{"\\ud800": 1}]}', "examples[0] has"),
    ],
)
def test_examples_that_are_none(text, found):
    error = error_of(examples_of, text)
    assert error.code is Code.INVALID_ARGUMENT and found in error.message


def test_classes_with_scores():
    result = classification_pb2.ClassificationResult()
    result.classifications.add().classes.add(label="é", score=0.1)
    result.classifications.add().classes.add(score=np.nan)
    assert json_answers.encode_classification(result).decode() == '{"results": [[["é", 0.1]], [["", NaN]]]}'


def test_values_of_a_regression():
    result = regression_pb2.RegressionResult(regressions=[{"value": value} for value in (3.5, 1 / 3, -np.inf)])
    assert json_answers.encode_regression(result) == b'{"results": [3.5, 0.333333343, -Infinity]}'


def test_metadata_has_the_form_of_tf_serving():
    given = signatures(x=FLOAT)
    given["serving_default"].inputs["x"].tensor_shape.dim.add(size=-1)
    given["serving_default"].inputs["x"].name = "x:0"
    found = json.loads(json_answers.encode_metadata("half", 123, given))
    assert found["model_spec"] == {"name": "half", "signature_name": "", "version": "123"}
    assert found["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "x:0",
    }


def test_status_and_errors_have_the_form_of_tf_serving():
    versions = [VersionStatus(3, "AVAILABLE"), VersionStatus(1, "END", Code.UNKNOWN, "why \udcff")]
    assert json.loads(json_answers.encode_status(status_response(versions))) == {
        "model_version_status": [
            {"version": "3", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
            {"version": "1", "state": "END", "status": {"error_code": "UNKNOWN", "error_message": "why \\udcff"}},
        ]
    }
    assert json.loads(json_answers.encode_error('a "é" \ud800')) == {"error": 'a "é" \ud800'}
