"""The server's config files, which are TF Serving's, and the models in a folder of exports."""

import logging
import os
import re
from typing import Any, TypeVar

import google.protobuf.wrappers_pb2  # noqa: F401  adds the dependency of _FILE to the pool
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_bytes
from bert_tf.server.options import DEFAULT_PROMETHEUS_PATH, MOST_THREADS, Tls
from bert_tf.server.request_batching import BatchingOptions
from bert_tf.server.status import Code, ServingError, invalid

_log = logging.getLogger("bert_tf.server")
_Message = TypeVar("_Message", bound=message.Message)

# The messages of TF Serving's config files that tensorflow-serving-api does not contain: BatchingParameters
# (servables/tensorflow/session_bundle_config.proto), MonitoringConfig (config/monitoring_config.proto) and SSLConfig
# (config/ssl_config.proto), with their field numbers there. They are not in TF Serving's package, because a newer
# version of its API may contain these messages.
_MOST_BYTES = 1 << 24  # of a file of settings, a key or a certificate
_FILE = """
name: "bert_tf/server/config.proto" package: "bert_tf.server" syntax: "proto3"
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


def read_models(path: str, *, polled: bool = False) -> model_server_config_pb2.ModelServerConfig:
    """Reads a --model_config_file.

    Args:
        path: of the file.
        polled: whether it is read again and again; then it must not be a pipe, whose next reader may wait for ever.

    Raises:
        ConfigError: it cannot be read, is no ModelServerConfig, or is one that TF Serving refuses.
    """
    if polled and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise ConfigError(
            f"{path}: a pipe, socket or device, which cannot be read repeatedly; pass a file, or "
            "--model_config_file_poll_wait_seconds=0"
        )
    config = _read(path, model_server_config_pb2.ModelServerConfig())
    try:
        check_models(config)
    except ServingError as error:
        raise ConfigError(f"{path}: {error.message}") from None
    return config


def check_models(config: model_server_config_pb2.ModelServerConfig) -> None:
    """Raises ServingError for a configuration that TF Serving refuses: what works here works there, too."""
    if config.HasField("custom_model_config"):
        raise ServingError(Code.UNIMPLEMENTED, "custom_model_config is not supported; expected a model_config_list")
    names = set()
    for one in config.model_config_list.config:
        if not one.name or not one.base_path:
            shown = " ".join(str(one).split())[:200]
            raise invalid(f"a model has no name or no base_path: {shown}")
        if one.name in names:
            raise invalid(f"model {one.name} is listed twice")
        names.add(one.name)
        if not _is_absolute(one.base_path):
            raise invalid(f"{one.name}: base_path is {one.base_path!r}; expected an absolute path, such as /models/m")
        # model_type is the deprecated form of model_platform.
        platform = model_server_config_pb2.ModelType.Name(one.model_type).lower() if one.model_type else ""
        if platform and one.model_platform:
            raise invalid(f"{one.name}: has model_type and model_platform; remove model_type")
        platform = platform or one.model_platform
        if platform != "tensorflow":
            found = f"is {platform!r}" if platform else "is missing"
            raise invalid(f'{one.name}: model_platform {found}; expected model_platform: "tensorflow"')
        if one.HasField("logging_config"):
            raise invalid(f"{one.name}: logging_config is not supported, nor by TF Serving's own program; remove it")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or bool(re.match(r"[A-Za-z][A-Za-z0-9.]*://", path))


def one_model(name: str, base_path: str) -> model_server_config_pb2.ModelServerConfig:
    """The configuration of one model, of which the newest version is served."""
    base_path = base_path if _is_absolute(base_path) else os.path.abspath(base_path)
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.config.add(name=name, base_path=base_path, model_platform="tensorflow")
    return config


def models_in(folder: str) -> model_server_config_pb2.ModelServerConfig:
    """The configuration of the models in a folder of exports.

    Args:
        folder: of one model, with its versions inside; of several models; or of one version.

    Raises:
        ConfigError: there is none.
    """
    folder = os.path.abspath(folder)
    if os.path.isfile(folder):
        raise ConfigError(f"--export_dir={folder}: a file; expected the folder of an exported model, or of several")
    if not os.path.isdir(folder):
        raise ConfigError(f"--export_dir={folder}: no such folder; export a model with `python -m bert_tf.export`")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"--export_dir={folder}: this folder may not be read; change its rights")
    if os.path.exists(os.path.join(folder, "saved_model.pb")):
        parent, name = os.path.split(folder)
        version = version_number(name)
        if version is None:
            raise ConfigError(
                f"--export_dir={folder} is a SavedModel whose folder is not named by a number; move what is in it to a "
                f"new folder {folder}/1 and pass {folder}"
            )
        config = one_model(os.path.basename(parent), parent)
        policy = config.model_config_list.config[0].model_version_policy
        policy.specific.versions.append(version)
        return config
    if _has_versions(folder):
        return one_model(os.path.basename(folder), folder)
    config = model_server_config_pb2.ModelServerConfig()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith(".") and _has_versions(path):
            config.MergeFrom(one_model(name, path))
    if not config.model_config_list.config:
        raise ConfigError(
            f"--export_dir={folder}: no exported model; expected folders named by numbers, such as {folder}/1, or "
            "folders of models that contain them"
        )
    return config


def _has_versions(path: str) -> bool:
    try:
        return any(version_number(name) is not None for name in os.listdir(path))
    except OSError:  # a file, or such as lost+found, which is not for the server's user
        return False


def version_number(name: str) -> int | None:
    """The version in a folder of this name, or None; like in TF Serving, 007 is 7, and it is an int64."""
    number = int(name) if name.isascii() and name.isdigit() and len(name) < 100 else 2**63
    return number if number < 2**63 else None


def read_batching(path: str) -> BatchingOptions:
    """Reads a --batching_parameters_file. Fields that have no effect here are logged.

    Raises:
        ConfigError: it cannot be read, is no BatchingParameters, or has values that TF Serving refuses, too.
    """
    found = _read(path, _MESSAGES["bert_tf.server.BatchingParameters"]())
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


def read_prometheus_path(path: str) -> str:
    """Reads a --monitoring_config_file: the path of the metrics page; "" for none.

    Raises:
        ConfigError: it cannot be read, or is no MonitoringConfig.
    """
    found = _read(path, _MESSAGES["bert_tf.server.MonitoringConfig"]()).prometheus_config
    if not found.enable:
        return ""
    address = found.path or DEFAULT_PROMETHEUS_PATH
    if not address.startswith("/"):
        raise ConfigError(f"{path}: prometheus_config.path is {address!r}; expected one that starts with '/'")
    return address


def read_tls(path: str) -> Tls:
    """Reads an --ssl_config_file.

    Raises:
        ConfigError: it cannot be read, or is no SSLConfig.
    """
    found = _read(path, _MESSAGES["bert_tf.server.SSLConfig"]())
    key, certificate, ca = found.server_key, found.server_cert, found.custom_ca
    if found.client_verify and not ca:
        raise ConfigError(f"{path}: client_verify without custom_ca; add the certificate that signed those of clients")
    return Tls(key.encode(), certificate.encode(), ca.encode(), found.client_verify)


def read_pem(key: str, certificate: str) -> Tls:
    """Reads the files of --tls_key and --tls_certificate.

    Raises:
        ConfigError: one cannot be read, or is not in PEM format.
    """
    return Tls(_pem("--tls_key", key), _pem("--tls_certificate", certificate))


def _pem(flag: str, path: str) -> bytes:
    try:
        content = read_bytes(path, most=_MOST_BYTES, pipes=True)
    except DataError as error:
        raise ConfigError(f"{flag}={error}") from None
    if b"-----BEGIN" not in content:
        raise ConfigError(f"{flag}={path}: not in PEM format; expected a file with '-----BEGIN ...-----'")
    return content


def _read(path: str, into: _Message) -> _Message:
    try:
        return text_format.Parse(read_bytes(path, most=_MOST_BYTES, pipes=True).decode(), into)
    except DataError as error:
        raise ConfigError(str(error)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    except text_format.ParseError as error:
        found = " ".join(str(error).split())  # begins with line and column
        kind = into.DESCRIPTOR.name
        raise ConfigError(f"{path}:{found}; expected a {kind} in protobuf's text format") from None
