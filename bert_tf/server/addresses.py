"""Addresses and certificates of the server, checked before models are loaded."""

import os
import socket
import ssl
import stat
import tempfile

from bert_tf.errors import ConfigError
from bert_tf.server.options import Tls


def bound(flag: str, host: str, port: int) -> socket.socket:
    """A socket with an address on which nobody listens; clients are refused until this one does.

    Args:
        flag: sets the port, for the error.
        host: name or IP address.
        port: 0 for one that the system chooses.

    Raises:
        ConfigError: the port is in use, or the host is not this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small packets at once only if the protocol is named; else each answer waits 40 ms for the client.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise refused(flag, host, port, error) from None
    return made


def refused(flag: str, host: str, port: int, error: OSError) -> ConfigError:
    """The error for an address that cannot be listened on."""
    return ConfigError(f"{flag}={port}: cannot listen on {host}: {error.strerror}; choose another port or --host")


def check_socket_path(path: str) -> None:
    """Raises ConfigError if no server can listen on a Unix socket; one that a server left behind is replaced."""
    problem = ""
    with socket.socket(socket.AF_UNIX) as other:
        try:
            other.connect(path)
            problem = "another server listens there"
        except (FileNotFoundError, ConnectionRefusedError):
            folder = os.path.dirname(path) or "."
            if os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
                problem = "this file is no socket"
            elif not os.access(folder, os.W_OK | os.X_OK):
                problem = f"the folder {folder} does not exist, or may not be written to"
        except OSError as error:  # such as a path of more than 107 bytes
            problem = error.strerror or str(error)
    if problem:
        raise ConfigError(f"--grpc_socket_path={path}: {problem}; choose another path")


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """A certificate for Python's servers.

    Raises:
        ConfigError: it cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Python's ssl reads certificates only from files.
        with tempfile.NamedTemporaryFile() as file:
            file.write(tls.key + b"\n" + tls.certificate)
            file.flush()
            context.load_cert_chain(file.name, password="")  # not to be asked for on the terminal
        if tls.client_ca:
            context.load_verify_locations(cadata=tls.client_ca.decode())
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"the TLS certificate and key cannot be used: {error}") from None
    if tls.client_required:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
