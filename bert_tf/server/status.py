"""Errors of requests: the codes of gRPC and TensorFlow, and the HTTP statuses that TF Serving gives them."""

import enum
from typing import Self

import tensorflow as tf


class Code(enum.Enum):
    """Status codes: their numbers in gRPC and TensorFlow, and their HTTP statuses in TF Serving's REST API."""

    http_status: int

    OK = 0, 200
    CANCELLED = 1, 499
    UNKNOWN = 2, 500
    INVALID_ARGUMENT = 3, 400
    DEADLINE_EXCEEDED = 4, 504
    NOT_FOUND = 5, 404
    ALREADY_EXISTS = 6, 409
    PERMISSION_DENIED = 7, 403
    RESOURCE_EXHAUSTED = 8, 429
    FAILED_PRECONDITION = 9, 400
    ABORTED = 10, 409
    OUT_OF_RANGE = 11, 400
    UNIMPLEMENTED = 12, 501
    INTERNAL = 13, 500
    UNAVAILABLE = 14, 503
    DATA_LOSS = 15, 500
    UNAUTHENTICATED = 16, 401

    def __new__(cls, number: int, http_status: int) -> Self:
        code = object.__new__(cls)
        code._value_, code.http_status = number, http_status
        return code


class ServingError(Exception):
    """An error that a client gets.

    Args:
        code: its kind.
        message: for the client.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @classmethod
    def of(cls, error: tf.errors.OpError) -> Self:
        """The error of an op, without the names of the nodes that it passed."""
        # Sessions add where in Python a node was made to the message of the op, which is the context of the error.
        inner = error.__context__ if isinstance(error.__context__, tf.errors.OpError) else error
        message = inner.message.split("\n\t [[")[0].split(" [[{{")[0].split("\n\nOriginal stack trace")[0]
        return cls(next(code for code in Code if code.value == error.error_code), message.strip())


def invalid(message: str) -> ServingError:
    """INVALID_ARGUMENT, the code of most errors."""
    return ServingError(Code.INVALID_ARGUMENT, message)


def one_line(error: BaseException) -> str:
    """The message of an error of another library."""
    return " ".join(str(error).split())[:500]
