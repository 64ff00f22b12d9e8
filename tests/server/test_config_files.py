"""The config files of TF Serving, and what is wrong with them in one line."""

import pytest

from bert_tf.errors import ConfigError
from bert_tf.server.config_files import parse_batching, parse_models, parse_prometheus_path, parse_tls
from bert_tf.server.request_batching import BatchingOptions

PATH = "folder/config.txt"


def test_models_are_read_as_tf_serving_reads_them():
    text = """
    # Comments and both ways to write a message are allowed.
    model_config_list: {
      config: { name: "a", base_path: "/models/a", model_platform: "tensorflow",
                model_version_policy: { specific: { versions: 42, versions: 43 } },
                version_labels: { key: 'stable', value: 42 } }
      config { name: "b" base_path: "gs://bucket/b" model_type: TENSORFLOW }
    }
    """
    first, second = parse_models(PATH, text.encode()).model_config_list.config
    assert list(first.model_version_policy.specific.versions) == [42, 43]
    assert first.version_labels == {"stable": 42} and second.base_path == "gs://bucket/b"


@pytest.mark.parametrize(
    "fields, message",
    [
        ('name: "m"', "a model has no name or no base_path"),
        ('name: "m" base_path: "/m"', 'm: model_platform is missing; expected model_platform: "tensorflow"'),
        ('name: "m" base_path: "/m" model_platform: "onnx"', "m: model_platform is 'onnx'; expected"),
        ('name: "m" base_path: "/m" model_type: OTHER', "m: model_platform is 'other'; expected"),
        ('name: "m" base_path: "/m" model_platform: "tensorflow" model_type: TENSORFLOW', "m: has model_type and"),
        ('name: "m" base_path: "models/m" model_platform: "tensorflow"', "m: base_path is 'models/m'; expected an abs"),
        ('name: "m" base_path: "/m" model_platform: "tensorflow" logging_config {}', "m: logging_config is not supp"),
    ],
)
def test_a_model_that_tf_serving_refuses_is_refused(fields, message):
    """By its server_core.cc, ValidateModelConfigList and GetPlatform, and server_request_logger.cc."""
    with pytest.raises(ConfigError, match=f"^{PATH}: {message}"):
        parse_models(PATH, f"model_config_list {{ config {{ {fields} }} }}".encode())


@pytest.mark.parametrize(
    "parse, text, message",
    [
        (
            parse_models,
            'model_config_list {\n config { nam: "a" } }',
            r':2:11.*"nam".*a ModelServerConfig in',
        ),
        (parse_models, "model_config_list {", "expected a ModelServerConfig in protobuf's text format"),
        (parse_models, "\udcff", "codec can't decode"),
        (parse_batching, "max_batch_size: 3", "expected a BatchingParameters in"),
        (parse_batching, "max_batch_size { value: 0 }", "max_batch_size is 0; expected 1 to 2147483647"),
        (
            parse_batching,
            "allowed_batch_sizes: 8 allowed_batch_sizes: 4",
            "_sizes are 8, 4; expected increasing",
        ),
        (
            parse_batching,
            "max_batch_size { value: 8 } allowed_batch_sizes: 4",
            "is 4; expected 8, which is max_b",
        ),
        (parse_batching, "allowed_batch_sizes: 4", "is 4; expected 1000, which is max_batch_size"),
        (
            parse_batching,
            "max_batch_size { value: 8 } max_execution_batch_size { value: 9 }",
            "max_execution_batch_size is 9; expected 1 to 8, which is max_batch_size",
        ),
        (
            parse_batching,
            "enable_large_batch_splitting { value: true } max_execution_batch_size { value: 8 } allowed_batch_sizes: 4",
            "is 4; expected 8, which is max_execution_batch_size",
        ),
        (
            parse_batching,
            "num_batch_threads { value: 1000000 }",
            "num_batch_threads is 1000000; expected 1 to 1",
        ),
        (
            parse_prometheus_path,
            'prometheus_config { enable: true path: "x" }',
            "'x'; expected one that starts",
        ),
        (parse_tls, "server_key: 3", "expected a SSLConfig in"),
        (parse_tls, "client_verify: true", "client_verify without custom_ca"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(parse, text, message):
    with pytest.raises(ConfigError, match=f"^{PATH}.*{message}") as error:
        parse(PATH, text.encode(errors="surrogateescape"))
    assert "\n" not in str(error.value)


def test_batching_parameters_have_the_meaning_that_they_have_in_tf_serving_or_are_said_to_have_none(caplog):
    text = """max_batch_size { value: 16 } batch_timeout_micros { value: 5000 } max_enqueued_batches { value: 3 }
              num_batch_threads { value: 2 } allowed_batch_sizes: 4 allowed_batch_sizes: 16"""
    found = parse_batching(PATH, text.encode())
    assert found == BatchingOptions()._replace(rows=16, wait=0.005, queued_rows=48, threads=2)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["allowed_batch_sizes"]
    caplog.clear()
    text = """enable_large_batch_splitting { value: true } max_execution_batch_size { value: 8 } allowed_batch_sizes: 8
              pad_variable_length_inputs: true thread_pool_name { value: "x" }"""
    assert parse_batching(PATH, text.encode()) == BatchingOptions()
    named = set(caplog.messages[0].rpartition(": ")[2].split(", "))
    assert named == {
        "enable_large_batch_splitting", "max_execution_batch_size", "allowed_batch_sizes",
        "pad_variable_length_inputs", "thread_pool_name",
    }  # fmt: skip
    caplog.clear()
    assert parse_batching(PATH, b"") == BatchingOptions() and not caplog.records


def test_metrics_have_the_path_of_the_monitoring_config():
    assert parse_prometheus_path(PATH, b'prometheus_config { enable: true path: "/m" }') == "/m"
    assert parse_prometheus_path(PATH, b"prometheus_config { enable: true }") == ("/monitoring/prometheus/metrics")
    assert parse_prometheus_path(PATH, b"") == ""
