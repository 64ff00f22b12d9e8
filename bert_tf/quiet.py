"""Hides TensorFlow's routine messages."""

import contextlib
import functools
import gc
import logging as standard_logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging


def hide_logs() -> None:
    """Hides what TensorFlow's C++ parts log, if it is not imported yet; TF_CPP_MIN_LOG_LEVEL=0 shows it.

    Levels 1 and 2, which many have in their environment, become 3, too: TensorFlow logs as errors what is none, such as
    a format for which oneDNN has no kernel on this processor.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def import_tensorflow() -> None:
    """Imports TensorFlow, unless it is imported already, with standard error closed.

    It prints a dozen lines about oneDNN, CUDA and absl that no setting silences. TF_CPP_MIN_LOG_LEVEL=0 shows them.
    Nothing is collected meanwhile: looking for garbage in what is being imported takes a quarter of the time.
    """
    if "tensorflow" in sys.modules:
        return
    collecting = gc.isenabled()
    gc.disable()
    try:
        with standard_error_closed():
            import tensorflow

            tensorflow.config.list_physical_devices()  # looks for GPUs, and complains, without starting them
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def standard_error_closed() -> Iterator[None]:
    """Hides what C++ code prints, for which there is no setting. TF_CPP_MIN_LOG_LEVEL=0 shows it."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    sys.stderr.flush()
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)


def traced_function(function: Callable[..., Any], **options: Any) -> Any:
    """A tf.function without AutoGraph, for functions that are made anew for each model.

    TensorFlow counts the traces of functions with the same code together, and would warn that those of the fifth model
    are the fifth retracing of one. A partial function has no code of its own.

    Args:
        function: to trace.
        **options: of `tf.function`.
    """
    import tensorflow

    return tensorflow.function(functools.partial(function), autograph=False, **options)


def hide_beam_warnings() -> None:
    """Hides warnings that importing and running Apache Beam always logs: about clouds, and memory not measured."""
    standard_logging.getLogger().addFilter(
        lambda record: not record.getMessage().startswith(("apitools not found", "Resource module is not available"))
    )


@contextlib.contextmanager
def warnings_only() -> Iterator[None]:
    """Hides messages below warnings, such as those about saving."""
    before = logging.get_verbosity()
    own = standard_logging.getLogger("tensorflow")  # in notebooks it prints without absl
    level = own.level
    logging.set_verbosity(min(before, logging.WARNING))
    own.setLevel(max(level, standard_logging.WARNING))
    try:
        yield
    finally:
        logging.set_verbosity(before)
        own.setLevel(level)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Hides everything that Python prints: progress bars, metrics, warnings."""
    # Never closed: with several threads, another one may restore it as its standard output.
    devnull = open(os.devnull, "w")  # noqa: SIM115
    with contextlib.redirect_stdout(devnull), contextlib.redirect_stderr(devnull):
        yield
