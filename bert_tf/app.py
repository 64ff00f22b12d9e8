"""What every program shares: flags in, one clear line and a proper exit status out."""

import dataclasses
import os
import pydoc
import re
import sys

from absl import app, flags, logging
from ml_collections import config_flags

from bert_tf import config
from bert_tf.config import ExampleData
from bert_tf.config.values import unknown_field
from bert_tf.errors import BertTfError


def _import_quietly():
    """Loads TensorFlow with standard error closed.

    Its C++ parts greet with a dozen lines on oneDNN, CUDA and absl that no setting silences, before a program can say
    a word. Whoever wants them sets TF_CPP_MIN_LOG_LEVEL=0.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0":
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import tensorflow

        tensorflow.config.list_physical_devices()  # looks for GPUs, and complains, without starting them
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _say_interrupted(kind, error, trace):
    """sys.excepthook: one line for Ctrl-C while modules are still imported; the rest as ever."""
    if issubclass(kind, KeyboardInterrupt):
        print("bert_tf: interrupted", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _say_interrupted
_import_quietly()

import tensorflow as tf  # noqa: E402

# What TensorFlow raises for files that vanish, are damaged, are not allowed or do not fit on the disk or in memory.
_SYSTEM_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
)


def run(main, *, arguments=False):
    """Runs `main(argv)` as an absl program; `arguments` says whether there may be any that are no flags of its own.

    Exit status: 0; 1 for a `BertTfError` of data or a full disk; 2 for a wrong flag or config field; 130 for Ctrl-C.
    Each failure prints one line on standard error. Anything else is a defect and keeps its stack trace.
    """

    def guarded(argv):
        logging.set_verbosity(logging.WARNING)  # TensorFlow's own notes on how it saves are no news
        if len(argv) > 1 and not arguments:
            _fail(f"unexpected argument {argv[1]!r}: all arguments are flags, --name=value", 2)
        try:
            main(argv)
        except BertTfError as error:
            _fail(str(error), error.exit_status)
        except _SYSTEM_ERRORS as error:
            _fail(_reason(error), 1)
        except OSError as error:
            _fail(f"{error.filename or 'system'}: {error.strerror or error}", 1)
        except MemoryError as error:
            _fail(f"not enough memory: {error}", 1)
        except KeyboardInterrupt:
            _fail("interrupted", 130)

    app.run(guarded, flags_parser=_parse)


def _parse(argv):
    """Parses flags; errors that the config library raises as exceptions become one line as well."""
    home = os.path.expanduser("~")
    # A shell puts the home directory for ~ at the start of a word, and leaves --output=~/x to the program.
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
        # From inside a config file comes a whole stack trace, as text.
        inside = "Traceback" in str(error) and f"--config: {_wrong_field(str(error).strip().splitlines()[-1])}"
        _fail(inside or f"{error}; --help lists the flags", 2)
    except OSError as error:
        # The config library wraps the file's error in lines of its own; the last one is the file's.
        _fail(f"--config: {str(error).strip().splitlines()[-1].strip().split('] ')[-1]}", 2)
    except IndexError:
        named = ", ".join(re.findall(r"^--?config\.([\w.]+\[-?\d+\])", "\n".join(argv), re.MULTILINE))
        if not named:
            raise
        _fail(f"--config: {named}: out of range; the config file has fewer of them, and they count from 0", 2)
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        _fail(f"--config: {_wrong_field(error)}", 2)


def _wrong_field(error):
    """The error of the config library, or of a dataclass in a config file, in the words of `unknown_field`."""
    reason = (error.args[0] if error.args else error) if isinstance(error, Exception) else error
    found = re.search(r"Field (\w+) not found on dataclass <class '([\w.]+)'>", str(reason))
    if found:
        return unknown_field(pydoc.locate(found[2]), found[1])
    found = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(reason))
    if found and hasattr(config, found[1]):
        return unknown_field(getattr(config, found[1]), found[2])
    return reason


def _reason(error):
    """What a TensorFlow error says, without "Graph execution error", Python frames and names of nodes."""
    return error.message.split("[[")[0].strip().splitlines()[-1][:300]


def _fail(message, status):
    line = " ".join(str(message).split())
    kind = "error: " if status in (1, 2) else ""  # a run that was told to stop has made no error
    print(f"bert_tf: {kind}{line}", file=sys.stderr, flush=True)
    sys.exit(status)


def strategy_flags():
    """Defines --strategy and --tpu; returns a function that gives their values."""
    strategy = flags.DEFINE_string("strategy", "auto", "auto, one_device, mirrored, multi_worker or tpu.")
    tpu = flags.DEFINE_string("tpu", "", "Name or address of the TPU for --strategy=tpu; empty for the local one.")
    return lambda: (strategy.value, tpu.value)


def data_flags():
    """Defines --data.FIELD for the fields of ExampleData; returns a function that puts the given ones into another."""
    try:
        config_flags.DEFINE_config_dataclass("data", ExampleData(), "Other examples than the model learned from.")
    except KeyError as error:  # the library looks at the arguments at once
        _fail(f"--data: {_wrong_field(error)}", 2)
    return lambda data: dataclasses.replace(data, **config_flags.get_override_values(flags.FLAGS["data"]))


def accept_config_change_flag():
    """Defines --accept_config_change; returns its holder."""
    return flags.DEFINE_bool(
        "accept_config_change", False, "Goes on with an interrupted run though settings that change its result differ."
    )
