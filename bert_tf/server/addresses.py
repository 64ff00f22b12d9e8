"""Addresses and certificates of the server, checked before models are loaded."""

import contextlib
import os
import secrets
import socket
import ssl
import stat
import tempfile

from bert_tf.errors import ConfigError
from bert_tf.server.options import Tls

_LONGEST_SOCKET_PATH = 107  # bytes; Linux' limit


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


class UnixSocket:
    """A path for gRPC's server to listen at, which it takes over from a server that listens there.

    gRPC removes what is at its path when it starts and when it ends, also the socket of another server. So it listens
    elsewhere, and its socket is moved.

    Args:
        path: for clients.

    Raises:
        ConfigError: no server can listen there.

    Attributes:
        made: path at which gRPC listens.
    """

    def __init__(self, path: str) -> None:
        self._path, folder = path, os.path.dirname(path)
        self.made = os.path.join(folder, f".{secrets.token_hex(4)}")
        longest = max(len(os.fsencode(name)) for name in (path, self.made))
        if os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
            problem = "this file is no socket"
        elif not os.access(folder or ".", os.W_OK | os.X_OK):
            problem = f"the folder {folder} does not exist, or may not be written to"
        elif longest > _LONGEST_SOCKET_PATH:
            problem = f"{longest} bytes; expected at most {_LONGEST_SOCKET_PATH}"
        else:
            return
        raise ConfigError(f"--grpc_socket_path={path}: {problem}; choose another path")

    def move(self) -> None:
        """Lets clients find the server, which listens."""
        os.replace(self.made, self._path)
        self._file = os.stat(self._path)

    def remove(self) -> None:
        """Removes the path, unless another server has taken it over."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._path), self._file):
                os.remove(self._path)


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
