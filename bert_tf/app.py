"""Common entry point of all programs: parses flags, and turns errors into one line and an exit status."""

import dataclasses
import os
import pydoc
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from bert_tf import config, quiet
from bert_tf.config import ExampleData
from bert_tf.config.values import unknown_field
from bert_tf.errors import BertTfError


def _report_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """sys.excepthook: one line for Ctrl-C while modules are still being imported; the default for everything else."""
    if issubclass(kind, KeyboardInterrupt):
        print("bert_tf: interrupted", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


flags.disclaim_key_flags()  # flags defined here are listed by the --help of the program that asks for them
sys.excepthook = _report_interrupt
quiet.import_tensorflow()

from bert_tf.files import cause, check_output, is_stdout, is_stream, system_error  # noqa: E402
from bert_tf.gfiles import SYSTEM_ERRORS  # noqa: E402


def run(main: Callable[[list[str]], None], *, arguments: bool = False) -> None:
    """Runs `main(argv)` as an absl program.

    Exit status: 0; 1 for a `BertTfError` in the data or a full disk; 2 for a wrong flag or config field; 130 for
    Ctrl-C. Each failure prints one line on standard error. Any other exception is a bug and keeps its stack trace.

    Args:
        main: gets the program's name and the arguments that are not flags.
        arguments: whether such arguments are allowed.
    """

    def guarded(argv: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # hides TensorFlow's routine messages about saving
        if len(argv) > 1 and not arguments:
            _fail(f"unexpected argument {argv[1]!r}: all arguments are flags, --name=value", 2)
        try:
            main(argv)
        except BertTfError as error:
            _fail(str(error), error.exit_status)
        except MemoryError as error:
            _fail(f"not enough memory: {error}", 1)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except Exception as error:
            found = system_error(error)
            if not found and not isinstance(error, SYSTEM_ERRORS):
                raise
            _fail(f"{found.filename or 'system'}: {cause(error)}" if found else cause(error), 1)

    app.run(guarded, flags_parser=_parse)


def _parse(argv: list[str]) -> list[str]:
    """Parses flags; exceptions of the config library become one line, too. Returns the other arguments."""
    home = os.path.expanduser("~")
    # A shell replaces ~ only at the start of a word and leaves --output=~/x to the program.
    argv = [re.sub(r"^(--?[\w.]+=)~(?=/|$)", lambda flag: flag[1] + home, argument) for argument in argv]
    try:
        rest = flags.FLAGS(argv)
        for name in flags.FLAGS:
            _ = flags.FLAGS[name].value
        if "config" in flags.FLAGS:
            # A file that could not be read leaves an object here that fails when it is used.
            error = vars(flags.FLAGS.config).get("_error")
            if error:
                raise error
        return rest
    except BertTfError as error:  # raised by the config file itself
        _fail(f"--config: {error}", error.exit_status)
    except flags.Error as error:
        # An error inside a config file comes with its whole stack trace, as text.
        inside = "Traceback" in str(error) and f"--config: {_wrong_field(str(error).strip().splitlines()[-1])}"
        _fail(inside or f"{error}; --help lists the flags", 2)
    except OSError as error:
        # The config library wraps the file's error in several lines of its own; the original one comes last.
        _fail(f"--config: {str(error).strip().splitlines()[-1].strip().split('] ')[-1]}", 2)
    except IndexError:
        named = ", ".join(re.findall(r"^--?config\.([\w.]+\[-?\d+\])", "\n".join(argv), re.MULTILINE))
        if not named:
            raise
        _fail(f"--config: {named}: out of range; the config file has fewer entries (the first is [0])", 2)
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        _fail(f"--config: {_wrong_field(error)}", 2)


def _wrong_field(error: Exception | str) -> str:
    """The message of an error of the config library, or of a dataclass in a config file; see `unknown_field`."""
    reason = str((error.args[0] if error.args else error) if isinstance(error, Exception) else error)
    found = re.search(r"Field (\w+) not found on dataclass <class '([\w.]+)'>", reason)
    if found and isinstance(cls := pydoc.locate(found[2]), type):
        return unknown_field(cls, found[1])
    found = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", reason)
    if found and hasattr(config, found[1]):
        return unknown_field(getattr(config, found[1]), found[2])
    return reason


def _fail(message: str, status: int) -> NoReturn:
    line = " ".join(message.split())
    kind = "error: " if status in (1, 2) else ""  # stopping a run is not an error
    print(f"bert_tf: {kind}{line}", file=sys.stderr, flush=True)
    sys.exit(status)


def checked_extension(path: str) -> str:
    """Refuses an output file that cannot be written, before the work begins; returns the extension of its name.

    For a pipe or device whose name has none, that is .jsonl. If the output is standard output, whatever else the
    program prints goes to standard error.
    """
    check_output(path)
    if is_stdout(path):
        sys.stdout = sys.stderr
    return os.path.splitext(path)[1] or (".jsonl" if is_stream(path) else "")


def strategy_flags() -> Callable[[], tuple[str, str]]:
    """Defines --strategy and --tpu; returns a function that reads their values."""
    strategy = flags.DEFINE_string("strategy", "auto", "auto, one_device, mirrored, multi_worker or tpu.")
    tpu = flags.DEFINE_string("tpu", "", "Name or address of the TPU for --strategy=tpu; empty for the local one.")
    return lambda: (strategy.value, tpu.value)


def data_flags() -> Callable[[ExampleData], ExampleData]:
    """Defines --data.FIELD for each field of ExampleData; returns a function that applies the given ones."""
    try:
        config_flags.DEFINE_config_dataclass(
            "data", ExampleData(), "Overrides the description of the data that the model was fine-tuned on."
        )
    except KeyError as error:  # the library parses the arguments at once
        _fail(f"--data: {_wrong_field(error)}", 2)
    return lambda data: dataclasses.replace(data, **config_flags.get_override_values(flags.FLAGS["data"]))


def accept_config_change_flag() -> flags.FlagHolder[bool]:
    """Defines --accept_config_change."""
    return flags.DEFINE_bool(
        "accept_config_change",
        False,
        "Resume an interrupted run although settings that affect its result have changed.",
    )
