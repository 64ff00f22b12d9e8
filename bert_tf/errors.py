"""Errors that a user can cause: one line each, with what was found, what was expected and what to do."""

import contextlib
import logging
import re
from collections.abc import Iterator

_LONGEST = 1000  # characters of a message


class BertTfError(Exception):
    """An error that the user can fix. Programs print its message as one line and exit with `exit_status`."""

    exit_status = 1

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(message: str) -> str:
    """A message that can be printed, without line ends and not too long: names and values may be anything."""
    line = " ".join(message.encode(errors="backslashreplace").decode().splitlines())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 300]} ... {line[-295:]}"


class ConfigError(BertTfError):
    """A flag, a config field or a combination of them is wrong."""

    exit_status = 2


class DataError(BertTfError):
    """An input file is missing or does not contain what it should."""


class UnsuitedError(DataError):
    """A model or a machine cannot have what was asked of it, however often it is tried."""


@contextlib.contextmanager
def located(source: str) -> Iterator[None]:
    """Puts the source of what is wrong, such as a path, before the message of a DataError."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{source}: {error}") from None


@contextlib.contextmanager
def of_workers() -> Iterator[None]:
    """Raises the BertTfError, or KeyboardInterrupt, of a Beam worker itself, without what the runner adds to it."""
    log = logging.getLogger("apache_beam.runners")  # which prints stack traces first
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    except BertTfError as error:
        raise type(error)(_of_worker(str(error))) from None
    except Exception as error:  # of runners whose workers are other processes: a stack trace, as text
        found = re.findall(r"bert_tf\.errors\.(\w+): (.*)", str(error))
        if found:
            name, message = found[-1]
            raise globals()[name](_of_worker(message)) from None
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        log.setLevel(level)


def _of_worker(message: str) -> str:
    """The message of an error without the step that Beam appends."""
    return re.sub(r" \[while running '.*", "", message, flags=re.DOTALL)
