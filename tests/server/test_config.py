"""The config files of TF Serving, and what is wrong with them in one line."""

import os
import re

import pytest

from bert_tf.errors import ConfigError
from bert_tf.server import config
from bert_tf.server.request_batching import BatchingOptions


def written(folder, text):
    path = folder / "config.txt"
    path.write_text(text)
    return str(path)


def test_models_are_read_as_tf_serving_reads_them(tmp_path):
    text = """
    # Comments and both ways to write a message are allowed.
    model_config_list: {
      config: { name: "a", base_path: "/models/a", model_platform: "tensorflow",
                model_version_policy: { specific: { versions: 42, versions: 43 } },
                version_labels: { key: 'stable', value: 42 } }
      config { name: "b" base_path: "gs://bucket/b" model_type: TENSORFLOW }
    }
    """
    first, second = config.read_models(written(tmp_path, text)).model_config_list.config
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
def test_a_model_that_tf_serving_refuses_is_refused(tmp_path, fields, message):
    """By its server_core.cc, ValidateModelConfigList and GetPlatform, and server_request_logger.cc."""
    path = written(tmp_path, f"model_config_list {{ config {{ {fields} }} }}")
    with pytest.raises(ConfigError, match=f"^{re.escape(path)}: {message}"):
        config.read_models(path)


def test_the_folder_of_one_model_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for base_path, expected in (("m", f"{tmp_path}/m"), ("/m", "/m"), ("gs://bucket/m", "gs://bucket/m")):
        made = config.one_model("m", base_path)
        assert made.model_config_list.config[0].base_path == expected
        config.check_models(made)


@pytest.mark.parametrize(
    "read, text, message",
    [
        (config.read_models, 'model_config_list {\n config { nam: "a" } }', r':2:11.*"nam".*a ModelServerConfig in'),
        (config.read_models, "model_config_list {", "expected a ModelServerConfig in protobuf's text format"),
        (config.read_models, "\udcff", "codec can't decode"),
        (config.read_batching, "max_batch_size: 3", "expected a BatchingParameters in"),
        (config.read_batching, "max_batch_size { value: 0 }", "max_batch_size is 0; expected 1 to 2147483647"),
        (config.read_batching, "allowed_batch_sizes: 8 allowed_batch_sizes: 4", "_sizes are 8, 4; expected increasing"),
        (
            config.read_batching,
            "max_batch_size { value: 8 } allowed_batch_sizes: 4",
            "is 4; expected 8, which is max_b",
        ),
        (config.read_batching, "allowed_batch_sizes: 4", "is 4; expected 1000, which is max_batch_size"),
        (
            config.read_batching,
            "max_batch_size { value: 8 } max_execution_batch_size { value: 9 }",
            "max_execution_batch_size is 9; expected 1 to 8, which is max_batch_size",
        ),
        (
            config.read_batching,
            "enable_large_batch_splitting { value: true } max_execution_batch_size { value: 8 } allowed_batch_sizes: 4",
            "is 4; expected 8, which is max_execution_batch_size",
        ),
        (config.read_batching, "num_batch_threads { value: 1000000 }", "num_batch_threads is 1000000; expected 1 to 1"),
        (config.read_prometheus_path, 'prometheus_config { enable: true path: "x" }', "'x'; expected one that starts"),
        (config.read_tls, "server_key: 3", "expected a SSLConfig in"),
        (config.read_tls, "client_verify: true", "client_verify without custom_ca"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(tmp_path, read, text, message):
    path = tmp_path / "config.txt"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}.*{message}") as error:
        read(str(path))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match="/no/such: no such file"):
        config.read_models("/no/such")


def test_batching_parameters_have_the_meaning_that_they_have_in_tf_serving_or_are_said_to_have_none(tmp_path, caplog):
    text = """max_batch_size { value: 16 } batch_timeout_micros { value: 5000 } max_enqueued_batches { value: 3 }
              num_batch_threads { value: 2 } allowed_batch_sizes: 4 allowed_batch_sizes: 16"""
    found = config.read_batching(written(tmp_path, text))
    assert found == BatchingOptions()._replace(rows=16, wait=0.005, queued_rows=48, threads=2)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["allowed_batch_sizes"]
    caplog.clear()
    text = """enable_large_batch_splitting { value: true } max_execution_batch_size { value: 8 } allowed_batch_sizes: 8
              pad_variable_length_inputs: true thread_pool_name { value: "x" }"""
    assert config.read_batching(written(tmp_path, text)) == BatchingOptions()
    named = set(caplog.messages[0].rpartition(": ")[2].split(", "))
    assert named == {
        "enable_large_batch_splitting", "max_execution_batch_size", "allowed_batch_sizes",
        "pad_variable_length_inputs", "thread_pool_name",
    }  # fmt: skip
    caplog.clear()
    assert config.read_batching(written(tmp_path, "")) == BatchingOptions() and not caplog.records


def test_metrics_have_the_path_of_the_monitoring_config(tmp_path):
    assert config.read_prometheus_path(written(tmp_path, 'prometheus_config { enable: true path: "/m" }')) == "/m"
    assert config.read_prometheus_path(written(tmp_path, "prometheus_config { enable: true }")) == (
        "/monitoring/prometheus/metrics"
    )
    assert config.read_prometheus_path(written(tmp_path, "")) == ""


def test_an_export_folder_is_of_a_model_or_of_models_or_of_a_version(tmp_path):
    for model, version in (("a", "1"), ("a", "2"), ("b", "7")):
        (tmp_path / model / version).mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "lost+found").mkdir(mode=0)  # as root owns it in a volume
    (tmp_path / "a" / "1" / "saved_model.pb").touch()

    def models(path):
        return {one.name: one.base_path for one in config.models_in(str(path)).model_config_list.config}

    both = {name: str(tmp_path / name) for name in "ab"}
    assert models(tmp_path) == both
    assert models(tmp_path / "a") == {"a": both["a"]}
    one = config.models_in(str(tmp_path / "a" / "1")).model_config_list.config[0]
    assert one.name == "a" and list(one.model_version_policy.specific.versions) == [1]
    with pytest.raises(ConfigError, match="no exported model; expected folders named by numbers"):
        models(tmp_path / "notes")
    with pytest.raises(ConfigError, match="no such folder"):
        models(tmp_path / "c")
    with pytest.raises(ConfigError, match="a file; expected the folder of an exported model"):
        models(tmp_path / "a" / "1" / "saved_model.pb")
    (tmp_path / "a" / "1").rename(tmp_path / "notes" / "model")
    with pytest.raises(ConfigError, match="not named by a number; move what is in it to"):
        models(tmp_path / "notes" / "model")


def test_folders_that_are_hidden_unreadable_or_no_int64_are_not_served(tmp_path, monkeypatch):
    for name in ("reviews/007", ".hidden/1", "large/9223372036854775808", "lost+found/1"):
        (tmp_path / name).mkdir(parents=True)
    listdir = os.listdir

    def listed(path):
        if "lost+found" in path:
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", listed)
    assert [one.name for one in config.models_in(str(tmp_path)).model_config_list.config] == ["reviews"]
