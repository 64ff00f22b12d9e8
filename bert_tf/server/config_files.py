"""The contents of TF Serving's config files, for each of which `path` names the file in errors."""

import logging
from typing import Any, TypeVar

import google.protobuf.wrappers_pb2  # noqa: F401  adds the dependency of _FILE to the pool
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.errors import ConfigError
from bert_tf.server.model_list import check_models
from bert_tf.server.options import DEFAULT_PROMETHEUS_PATH, MOST_THREADS, Tls
from bert_tf.server.request_batching import BatchingOptions
from bert_tf.server.status import ServingError

_log = logging.getLogger("bert_tf.server")
_Message = TypeVar("_Message", bound=message.Message)

# The messages of TF Serving's config files that tensorflow-serving-api does not contain: BatchingParameters
# (servables/tensorflow/session_bundle_config.proto), MonitoringConfig (config/monitoring_config.proto) and SSLConfig
# (config/ssl_config.proto), with their field numbers there. They are not in TF Serving's package, because a newer
# version of its API may contain these messages.
_FILE = """
name: "bert_tf/server/config_files.proto" package: "bert_tf.server" syntax: "proto3"
dependency: "google/protobuf/wrappers.proto"
message_type {
  name: "BatchingParameters"
  field { name: "max_batch_size" number: 1 type_name: ".google.protobuf.Int64Value" }
  field { name: "batch_timeout_micros" number: 2 type_name: ".google.protobuf.Int64Value" }
  field { name: "max_enqueued_batches" number: 3 type_name: ".google.protobuf.Int64Value" }
  field { name: "num_batch_threads" number: 4 type_name: ".google.protobuf.Int64Value" }
  field { name: "thread_pool_name" number: 5 type_name: ".google.protobuf.StringValue" }
  field { name: "allowed_batch_sizes" number: 6 type: TYPE_INT64 label: LABEL_REPEATED }
  field { name: "pad_variable_length_inputs" number: 7 type: TYPE_BOOL }
  field { name: "enable_large_batch_splitting" number: 8 type_name: ".google.protobuf.BoolValue" }
  field { name: "max_execution_batch_size" number: 9 type_name: ".google.protobuf.Int64Value" }
}
message_type {
  name: "PrometheusConfig"
  field { name: "enable" number: 1 type: TYPE_BOOL }
  field { name: "path" number: 2 type: TYPE_STRING }
}
message_type {
  name: "MonitoringConfig"
  field { name: "prometheus_config" number: 1 type_name: ".bert_tf.server.PrometheusConfig" }
}
message_type {
  name: "SSLConfig"
  field { name: "server_key" number: 1 type: TYPE_STRING }
  field { name: "server_cert" number: 2 type: TYPE_STRING }
  field { name: "custom_ca" number: 3 type: TYPE_STRING }
  field { name: "client_verify" number: 4 type: TYPE_BOOL }
}
"""
_MESSAGES = message_factory.GetMessages(
    [text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto())], descriptor_pool.Default()
)


# Fields of BatchingParameters that have an effect here -> those of BatchingOptions, least and largest value.
_BATCHING = {
    "max_batch_size": ("rows", 1, 2**31 - 1),
    "batch_timeout_micros": ("wait", 0, 60_000_000),
    "max_enqueued_batches": ("queued_rows", 1, 2**31 - 1),
    "num_batch_threads": ("threads", 1, MOST_THREADS),
}
_MAX_BATCH_SIZE = 1000  # TF Serving's default, to which the other sizes are compared


def parse_models(path: str, content: bytes) -> model_server_config_pb2.ModelServerConfig:
    """The models of a --model_config_file.

    Raises:
        ConfigError: it is no ModelServerConfig, or one that TF Serving refuses.
    """
    config = _parse(path, content, model_server_config_pb2.ModelServerConfig())
    try:
        check_models(config)
    except ServingError as error:
        raise ConfigError(f"{path}: {error.message}") from None
    return config


def parse_batching(path: str, content: bytes) -> BatchingOptions:
    """The options of a --batching_parameters_file. Fields that have no effect here are logged.

    Raises:
        ConfigError: it is no BatchingParameters, or has values that TF Serving refuses, too.
    """
    found = _parse(path, content, _MESSAGES["bert_tf.server.BatchingParameters"]())
    options, values = BatchingOptions(), {}
    for field, (name, least, most) in _BATCHING.items():
        if found.HasField(field):
            values[name] = getattr(found, field).value
            if not least <= values[name] <= most:
                raise ConfigError(f"{path}: {field} is {values[name]}; expected {least} to {most}")
    if problem := _wrong_sizes(found):
        raise ConfigError(f"{path}: {problem}")
    if ignored := [field.name for field, _ in found.ListFields() if field.name not in _BATCHING]:
        _log.warning("%s: no effect in this server, whose batches have any size: %s", path, ", ".join(ignored))
    if "wait" in values:
        values["wait"] /= 1e6
    options = options._replace(**values)
    if "queued_rows" in values:
        options = options._replace(queued_rows=values["queued_rows"] * options.rows)
    return options


def _wrong_sizes(found: Any) -> str:
    """What is wrong with the sizes of batches in BatchingParameters, by TF Serving's rules; "" if nothing is."""
    most = found.max_batch_size.value if found.HasField("max_batch_size") else _MAX_BATCH_SIZE
    executed = found.max_execution_batch_size.value if found.HasField("max_execution_batch_size") else most
    if not 1 <= executed <= most:
        return f"max_execution_batch_size is {executed}; expected 1 to {most}, which is max_batch_size"
    sizes = list(found.allowed_batch_sizes)
    if sizes != sorted(set(sizes)) or min(sizes, default=1) < 1:
        return f"allowed_batch_sizes are {', '.join(map(str, sizes))}; expected increasing numbers"
    last, name = (executed, "max_execution_") if found.enable_large_batch_splitting.value else (most, "max_")
    if sizes and sizes[-1] != last:
        return f"the last of allowed_batch_sizes is {sizes[-1]}; expected {last}, which is {name}batch_size"
    return ""


def parse_prometheus_path(path: str, content: bytes) -> str:
    """The path of the metrics page in a --monitoring_config_file; "" for none.

    Raises:
        ConfigError: it is no MonitoringConfig.
    """
    found = _parse(path, content, _MESSAGES["bert_tf.server.MonitoringConfig"]()).prometheus_config
    if not found.enable:
        return ""
    address = found.path or DEFAULT_PROMETHEUS_PATH
    if not address.startswith("/"):
        raise ConfigError(f"{path}: prometheus_config.path is {address!r}; expected one that starts with '/'")
    return address


def parse_tls(path: str, content: bytes) -> Tls:
    """The key and certificates of an --ssl_config_file.

    Raises:
        ConfigError: it is no SSLConfig.
    """
    found = _parse(path, content, _MESSAGES["bert_tf.server.SSLConfig"]())
    key, certificate, ca = found.server_key, found.server_cert, found.custom_ca
    if found.client_verify and not ca:
        raise ConfigError(f"{path}: client_verify without custom_ca; add the certificate that signed those of clients")
    return Tls(key.encode(), certificate.encode(), ca.encode(), found.client_verify)


def _parse(path: str, content: bytes, into: _Message) -> _Message:
    try:
        return text_format.Parse(content.decode(), into)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    except text_format.ParseError as error:
        found = " ".join(str(error).split())  # begins with line and column
        kind = into.DESCRIPTOR.name
        raise ConfigError(f"{path}:{found}; expected a {kind} in protobuf's text format") from None
