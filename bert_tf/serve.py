"""Serves exported models, with TF Serving's protocols and a page: python -m bert_tf.serve --export_dir=DIR.

--export_dir is the folder of one exported model, or of several. The page to try them is at http://127.0.0.1:8501/.
The flags of TF Serving's tensorflow_model_server do the same here: --model_name and --model_base_path, or
--model_config_file, instead of --export_dir, and those below.
"""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable

from absl import flags

if os.getpid() == 1:
    # The first process of a container ignores SIGTERM until it has a handler, and the server's own comes only after
    # TensorFlow is imported. Nothing has begun that would have to be finished.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

from bert_tf.app import run, xla_cache_flag
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_bytes
from bert_tf.server.options import DEFAULT_PROMETHEUS_PATH, MOST_THREADS, EndpointOptions, Limits, Tls

# For command lines of TF Serving: a flag that does nothing here is refused, not ignored.
_FLAGS_AT = "--help and docs/serving/flags.md#flags list the flags, and which of TF Serving work here"
_MOST_SECONDS = 86_400
_MOST_BYTES = 1 << 24  # of a file of settings, a key or a certificate
_MOST_TOKEN_BYTES = 1 << 16


def _integer(name: str, default: int, text: str, least: int = 0, most: int = 2**31 - 1) -> flags.FlagHolder[int]:
    """A flag for a whole number in bounds; TensorFlow and gRPC end the process at some numbers outside of them."""
    return flags.DEFINE_integer(name, default, text, lower_bound=least, upper_bound=most)


def _seconds(name: str, default: float, text: str) -> flags.FlagHolder[float]:
    """A flag for a time."""
    return flags.DEFINE_float(name, default, text, lower_bound=0, upper_bound=_MOST_SECONDS)


_XLA_CACHE = xla_cache_flag()
_EXPORT_DIR = flags.DEFINE_string("export_dir", "", "Folder of an exported model, or of several.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; 0.0.0.0 for all of the machine.")
_PORT = _integer("port", 8500, "Port of gRPC; 0 for none.", most=65535)
_SOCKET = flags.DEFINE_string("grpc_socket_path", "", "Unix socket for gRPC, beside the port.")
_REST_PORT = _integer("rest_api_port", 8501, "Port of REST and the page; 0 for none.", most=65535)
_MODEL_NAME = flags.DEFINE_string("model_name", "default", "Name of the model in --model_base_path.")
_MODEL_BASE_PATH = flags.DEFINE_string("model_base_path", "", "Folder with one folder per version of a model.")
_MODEL_CONFIG_FILE = flags.DEFINE_string("model_config_file", "", "ModelServerConfig in protobuf's text format.")
_CONFIG_POLL = _seconds("model_config_file_poll_wait_seconds", 0, "Interval in seconds of reading that file; 0: once.")
_POLL = _seconds(
    "file_system_poll_wait_seconds", 1, "Interval in seconds of looking for new versions; 0: at the start only."
)
_EARLY_LABELS = flags.DEFINE_bool(
    "allow_version_labels_for_unavailable_models", False, "Allow labels of versions that are not loaded."
)
_RETRIES = _integer("max_num_load_retries", 5, "Maximum retries of loading a version.")
_RETRY_MICROS = _integer(
    "load_retry_interval_micros", 60_000_000, "Interval between retries, in microseconds.", most=2**63 - 1
)
_BATCHING = flags.DEFINE_bool(
    "enable_batching", None, "Batch requests to all models; by default only to exports of bert_tf."
)
_BATCHING_FILE = flags.DEFINE_string("batching_parameters_file", "", "BatchingParameters in text format.")
_MONITORING_FILE = flags.DEFINE_string(
    "monitoring_config_file", "", "MonitoringConfig in text format; by default metrics are on."
)
_TIMEOUT = _integer(
    "rest_api_timeout_in_ms", 30_000, "Time limit of a request, in REST and gRPC, in milliseconds.",
    least=1, most=1000 * _MOST_SECONDS,
)  # fmt: skip
_CORS = flags.DEFINE_bool("rest_api_enable_cors_support", False, "Allow requests from web pages of other hosts.")
_HEALTH = flags.DEFINE_bool("enable_grpc_healthcheck_service", True, "Offer grpc.health.v1.")
_CHANNEL_ARGUMENTS = flags.DEFINE_string("grpc_channel_arguments", "", "For the gRPC server: NAME=VALUE,NAME=VALUE.")
_TENSOR_CONTENT = flags.DEFINE_bool(
    "enable_serialization_as_tensor_content", False, "Send tensors in gRPC answers as bytes instead of lists."
)
_SSL_FILE = flags.DEFINE_string("ssl_config_file", "", "SSLConfig in text format, for both ports.")
_TLS_KEY = flags.DEFINE_string("tls_key", "", "Private key in PEM; with --tls_certificate, both ports use TLS.")
_TLS_CERTIFICATE = flags.DEFINE_string("tls_certificate", "", "Certificate in PEM.")
_TOKEN_FILE = flags.DEFINE_string("token_file", "", "File with the bearer token that clients must send.")
_TAGS = flags.DEFINE_string("saved_model_tags", "serve", "Comma-separated tags of the graphs to load.")
_PARALLELISM = _integer(
    "tensorflow_session_parallelism", 0, "Threads of TensorFlow; 0: one per core.", most=MOST_THREADS
)
_INTRA = _integer(
    "tensorflow_intra_op_parallelism", 0,
    "Threads of one op; 0: one per core, or 1 if there is a core for each batch.", most=MOST_THREADS,
)  # fmt: skip
_INTER = _integer("tensorflow_inter_op_parallelism", 0, "Ops at the same time; 0: one per core.", most=MOST_THREADS)
_MEGABYTES = _integer("max_request_megabytes", 16, "Size of a request.", least=1, most=1024)
_ANSWER_MEGABYTES = _integer("max_answer_megabytes", 128, "Size of an answer.", least=1, most=1024)
_ROWS = _integer("max_rows", 10_000, "Maximum rows per request.", least=1)
_TEXT_KILOBYTES = _integer("max_text_kilobytes", 1024, "Maximum size of a text.", least=1, most=2**20)
_CONNECTIONS = _integer(
    "max_connections",
    1000,
    "Maximum of open connections in gRPC, and of requests at a time in REST.",
    least=1,
    most=1_000_000,
)
_ACCESS_LOG = flags.DEFINE_bool("access_log", True, "Log each request as a line of JSON.")


def main(_: list[str]) -> None:
    try:
        from bert_tf.server import config_files, server
        from bert_tf.server.models import PollingOptions
        from bert_tf.server.request_batching import BatchingOptions
        from bert_tf.server.servable import RunOptions
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'bert_tf[serving]'") from None
    _set_up_log()
    _XLA_CACHE()
    read_config = _config_reader()
    if not _HOST.value.strip():
        raise ConfigError("--host is empty; give an address, such as 127.0.0.1, or 0.0.0.0 for all of the machine")
    if not _PORT.value and not _REST_PORT.value and not _SOCKET.value:
        raise ConfigError("--port=0 and --rest_api_port=0: nothing to listen on; give one of them")
    if _PORT.value and _PORT.value == _REST_PORT.value:
        raise ConfigError(f"--port and --rest_api_port are both {_PORT.value}; give two ports")
    if bool(_TLS_KEY.value) != bool(_TLS_CERTIFICATE.value):
        raise ConfigError("--tls_key and --tls_certificate go together; give both")
    tls = None
    if _TLS_KEY.value and _SSL_FILE.value:
        raise ConfigError("--tls_key and --ssl_config_file: both have a key; give one of them")
    if _TLS_KEY.value:
        tls = Tls(_pem(_TLS_KEY), _pem(_TLS_CERTIFICATE))
    elif _SSL_FILE.value:
        tls = config_files.parse_tls(_SSL_FILE.value, _content(_SSL_FILE.value))
    limits = Limits(
        request_bytes=_MEGABYTES.value * 2**20,
        answer_bytes=_ANSWER_MEGABYTES.value * 2**20,
        rows=_ROWS.value,
        text_bytes=_TEXT_KILOBYTES.value * 1024,
        seconds=_TIMEOUT.value / 1000,
        connections=_CONNECTIONS.value,
    )
    prometheus = DEFAULT_PROMETHEUS_PATH
    if _MONITORING_FILE.value:
        if not _REST_PORT.value:
            raise ConfigError("--monitoring_config_file with --rest_api_port=0: the metrics are on that port; open it")
        prometheus = config_files.parse_prometheus_path(_MONITORING_FILE.value, _content(_MONITORING_FILE.value))
    endpoints = EndpointOptions(
        host=_HOST.value,
        grpc_port=_PORT.value,
        rest_port=_REST_PORT.value,
        grpc_socket=_SOCKET.value,
        limits=limits,
        token=_token(),
        cors=_CORS.value,
        prometheus_path=prometheus,
        tls=tls,
        channel_arguments=_channel_arguments(),
        tensor_content=_TENSOR_CONTENT.value,
        health=_HEALTH.value,
        access_log=_ACCESS_LOG.value,
    )
    if _BATCHING.value is False and _BATCHING_FILE.value:
        raise ConfigError("--noenable_batching with --batching_parameters_file, which would have no effect; give one")
    batching: BatchingOptions | None = BatchingOptions() if _BATCHING.value is not False else None
    if _BATCHING_FILE.value:
        batching = config_files.parse_batching(_BATCHING_FILE.value, _content(_BATCHING_FILE.value))
    run_options = RunOptions(
        tags=tuple(_TAGS.value.split(",")),
        intra_op_threads=_INTRA.value or _PARALLELISM.value or _intra_op_threads(batching.threads if batching else 0),
        inter_op_threads=_INTER.value or _PARALLELISM.value,
        batching=batching,
        batch_all=bool(_BATCHING.value),
        direct_threads=4 * (os.cpu_count() or 1),
    )
    polling = PollingOptions(_POLL.value, _RETRIES.value, _RETRY_MICROS.value / 1e6)
    server.serve(
        read_config,
        server.ServerOptions(endpoints, run_options, polling, _EARLY_LABELS.value, _CONFIG_POLL.value),
    )


def _intra_op_threads(batches: int) -> int:
    """The default for --tensorflow_intra_op_parallelism, for so many batches at a time; 0 for one thread per core."""
    # Two batches side by side, on one core each, take less time than one after the other on both: the threads of an op
    # wait for each other after every op, for 50 us, longer than most ops of a small model take.
    from bert_tf.training.strategy import cores

    return 1 if cores() <= batches else 0


def _config_reader() -> Callable[[], object]:
    """A function that returns the models to serve."""
    from bert_tf.server import config_files, model_list

    given = [flag for flag in (_EXPORT_DIR, _MODEL_BASE_PATH, _MODEL_CONFIG_FILE) if flag.value]
    if _MODEL_CONFIG_FILE.value and not _EXPORT_DIR.value:  # as in TF Serving, where the others are then ignored
        path = _MODEL_CONFIG_FILE.value
        # The next reader of a pipe may wait for ever.
        if _CONFIG_POLL.value and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise ConfigError(
                f"{path}: a pipe, socket or device, which cannot be read repeatedly; pass a file, or "
                "--model_config_file_poll_wait_seconds=0"
            )
        return lambda: config_files.parse_models(path, _content(path))
    if len(given) != 1:
        found = ", ".join(f"--{flag.name}" for flag in given) or "none"
        raise ConfigError(f"give one of --export_dir, --model_base_path and --model_config_file; found {found}")
    if _EXPORT_DIR.value:
        if _MODEL_NAME.present:
            raise ConfigError(
                "--model_name goes with --model_base_path; models of --export_dir have the names of their folders"
            )
        return lambda: model_list.models_in(_EXPORT_DIR.value)
    return lambda: model_list.one_model(_MODEL_NAME.value, _MODEL_BASE_PATH.value)


def _content(path: str, flag: str = "", most: int = _MOST_BYTES) -> bytes:
    """The content of a file of settings or secrets, which may be a pipe; `flag` begins the error."""
    try:
        return read_bytes(path, most=most, pipes=True)
    except DataError as error:
        raise ConfigError(f"{flag}{error}") from None


def _pem(flag: flags.FlagHolder[str]) -> bytes:
    content = _content(flag.value, f"--{flag.name}=")
    if b"-----BEGIN" not in content:
        raise ConfigError(f"--{flag.name}={flag.value}: not in PEM format; expected a file with '-----BEGIN ...-----'")
    return content


def _token() -> str:
    if not _TOKEN_FILE.value:
        return ""
    try:
        token = _content(_TOKEN_FILE.value, "--token_file=", _MOST_TOKEN_BYTES).decode("ascii").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"--token_file={_TOKEN_FILE.value}: not ASCII") from None
    if not re.fullmatch(r"[A-Za-z0-9._~+/-]{8,}=*", token):
        raise ConfigError(
            f"--token_file={_TOKEN_FILE.value}: expected one token of at least 8 letters, digits and -._~+/"
        )
    return token


def _channel_arguments() -> tuple[tuple[str, int | str], ...]:
    arguments = []
    for part in filter(None, _CHANNEL_ARGUMENTS.value.split(",")):
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise ConfigError(f"--grpc_channel_arguments: found {part!r}; expected NAME=VALUE,NAME=VALUE")
        number = int(value) if re.fullmatch("-?[0-9]{1,10}", value) else None
        if number is not None and not -(2**31) <= number < 2**31:
            raise ConfigError(f"--grpc_channel_arguments: {name} is {number}; expected a number of 32 bits")
        arguments.append((name, value if number is None else number))
    return tuple(arguments)


def _set_up_log() -> None:
    """Messages of the server go to standard error, with their time; those of requests are lines of JSON."""
    for name, line in ("server", "%(asctime)s %(levelname)s %(message)s"), ("server.access", "%(message)s"):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(line))
        log = logging.getLogger(f"bert_tf.{name}")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False


if __name__ == "__main__":
    run(main, flags_at=_FLAGS_AT)
