"""Common entry point of all programs: parses flags, and turns errors into one line and an exit status."""

import atexit
import dataclasses
import functools
import gc
import importlib.machinery
import inspect
import math
import os
import re
import sys
import traceback
import types
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from bert_tf import config, quiet, xla_settings
from bert_tf.config import ExampleData, FinetuneConfig, PretrainConfig
from bert_tf.config.paths import check_path, first_field, paths_to, unknown_field
from bert_tf.config.train import INFERENCE_DTYPES
from bert_tf.config.values import shown
from bert_tf.errors import BertTfError, ConfigError, one_line


def _report_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """sys.excepthook: one line for Ctrl-C while modules are still being imported; the default for everything else."""
    if issubclass(kind, KeyboardInterrupt):
        print("bert_tf: interrupted", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


_LONGEST_NAME = 100  # of a flag
_FLAGS_AT = "--help lists the flags"
_GPUS = "CUDA_VISIBLE_DEVICES=0 before the command chooses a GPU, and --strategy how several are used"
_ELSEWHERE = dict.fromkeys(("gpu", "gpus", "num_gpus", "n_gpu", "device", "devices", "cuda"), _GPUS)

flags.disclaim_key_flags()  # flags defined here are listed by the --help of the program that asks for them
sys.excepthook = _report_interrupt
_NOTHING_KEPT = xla_settings.keep_programs(sys.argv)
quiet.import_tensorflow()
# Python would look for garbage among what TensorFlow imports, which stays, while graphs are traced; and among the
# objects of graphs when a program ends, which took over a second after training.
gc.freeze()
atexit.register(gc.freeze)

from bert_tf.files import cause, here_or_bundled, is_system_error, system_error  # noqa: E402
from bert_tf.memory import lacking_memory  # noqa: E402
from bert_tf.progress import log  # noqa: E402

xla_settings.keep_roundings()


def run(main: Callable[[list[str]], None], *, arguments: bool = False, flags_at: str = _FLAGS_AT) -> None:
    """Runs `main(argv)` as an absl program.

    Exit status: 0; 1 for a `BertTfError` in the data or a full disk; 2 for a wrong flag or config field; 130 for
    Ctrl-C. Each failure prints one line on standard error. Any other exception is a bug and keeps its stack trace.

    Args:
        main: gets the program's name and the arguments that are not flags.
        arguments: whether such arguments are allowed.
        flags_at: where the flags are listed, for the error of a wrong one.
    """

    def guarded(argv: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # hides TensorFlow's routine messages about saving
        if len(argv) > 1 and not arguments:
            _fail(f"unexpected argument {argv[1]!r}: all arguments are flags, --name=value", 2)
        try:
            main(argv)
        except BertTfError as error:
            _fail(str(error), error.exit_status)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except UnicodeEncodeError as error:
            _fail(f"{error.object[:80]!a}: not UTF-8; rename the file, or correct the text", 1)
        except Exception as error:
            if lacking := lacking_memory(error):
                _fail(f"not enough memory ({lacking}); use a smaller model, batch or length", 1)
            # Of several workers, the others find out like this when one has ended.
            if lost := re.search("Collective ops is aborted by: (.{1,200})", str(getattr(error, "message", ""))):
                _fail(f"a worker of this run was lost ({lost[1]}); start all of them again to resume", 1)
            if not is_system_error(error):
                raise
            found = system_error(error)
            _fail(f"{found.filename or 'system'}: {cause(error)}" if found else cause(error), 1)

    app.run(guarded, flags_parser=functools.partial(_parse, flags_at=flags_at))


def _parse(argv: list[str], flags_at: str = _FLAGS_AT) -> list[str]:
    """Parses flags; exceptions of the config library become one line, too. Returns the other arguments."""
    home = os.path.expanduser("~")
    # A shell replaces ~ only at the start of a word and leaves --output=~/x to the program.
    argv = [re.sub(r"^(--?[\w.]+=)~(?=/|$)", lambda flag: flag[1] + home, argument) for argument in argv]
    try:
        if len(named := [one for one in argv if re.match("--?config(=|$)", one)]) > 1:
            raise ConfigError(
                f"{' and '.join(named)}: expected one config; give the fields of another as --config.FIELD="
            )
        for argument in argv:  # which absl would compare with each flag, in quadratic time
            if re.match(rf"--?\w{{{_LONGEST_NAME}}}", argument):
                raise ConfigError(f"{argument[:40]}...: no flag has such a name; {flags_at}")
        rest = flags.FLAGS(argv)
        for name in flags.FLAGS:
            value = flags.FLAGS[name].value
            # NaN is within any bounds of absl; those of a config are checked with the rest of it.
            if isinstance(value, float) and "." not in name and not math.isfinite(value):
                raise ConfigError(f"--{name}={value}: expected a finite number")
        return rest
    except BertTfError as error:  # of a flag, or raised by the config file itself
        _fail(str(error) if str(error).startswith("--") else f"--config: {error}", error.exit_status)
    except flags.UnrecognizedFlagError as error:
        hint = _meant(error.flagname)
        _fail(f"no flag is called --{error.flagname}; {hint}" if hint else f"{error}; {flags_at}", 2)
    except flags.Error as error:
        _fail(f"{error}; {flags_at}", 2)
    except (LookupError, AttributeError, TypeError, ValueError, RecursionError, MemoryError) as error:
        _fail(f"--config: {_message(error)}", 2)


def _meant(name: str) -> str:
    """What to write instead of a flag that there is not, if a field of a config or another way is meant; else ""."""
    # Before the first dot: --config.train.batch_size makes a flag of this name.
    configs = {"config": flags.FLAGS["config"].value} if "config" in flags.FLAGS else {}
    configs |= {"data": ExampleData()} if "data" in flags.FLAGS else {}
    found = [path for flag, config in configs.items() for path in paths_to(config, name, f"--{flag}")]
    return f"did you mean {found[0]}?" if found else _ELSEWHERE.get(name, "")


def _wrong_field(error: BaseException) -> str:
    """The message of an error in a config file; see `unknown_field`."""
    reason = _message(error)
    # Not searched for in the whole message, which may be long: that would take quadratic time.
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", reason)
    if found and hasattr(config, found[1]):
        return unknown_field(getattr(config, found[1]), found[2])
    return reason


def _fail(message: str, status: int) -> NoReturn:
    line = one_line(" ".join(message.split()))
    kind = "error: " if status in (1, 2) else ""  # stopping a run is not an error
    print(f"bert_tf: {kind}{line}", file=sys.stderr, flush=True)
    sys.exit(status)


def _as_it_is(_: object) -> None:
    """Sets no fields of a config."""


def config_flag(help_text: str, complete: Callable[[Any], None] = _as_it_is) -> Callable[[], Any]:
    """Defines --config, the path of a Python file, and --config.FIELD for each field of what its get_config returns.

    Args:
        help_text: for --help.
        complete: sets fields of the config that the flags may then change.

    Returns:
        Function that returns the config with these fields, checked: nothing may compute with settings before.
    """
    values = flags.FLAGS
    holder = config_flags.DEFINE_config_file("config", help_string=help_text, flag_values=values)
    values["config"].parser = _ConfigFile(complete)
    flags.mark_flag_as_required("config", values)  # type: ignore[no-untyped-call]
    return lambda: holder.value.check()


def _check_overrides(flag: str, config: object) -> None:
    """Raises ConfigError unless each --FLAG.PATH on the command line leads to a field of the dataclass `config`.

    The config library would refuse other paths, too, but in words for its own types.
    """
    for argument in flags.FLAGS.read_flags_from_files(sys.argv[1:], force_gnu=False):
        if override := re.match(rf"--?(?:no)?{flag}\.([^=]*)", argument):
            try:
                check_path(config, override[1], f"--{flag}.")
            except ConfigError as error:
                raise ConfigError(f"--{flag}.{override[1]}: {error}") from None


class _ConfigFile(flags.ArgumentParser[Any]):
    """Runs a config file; whatever goes wrong inside of it is a ConfigError with its line."""

    def __init__(self, complete: Callable[[Any], None] = _as_it_is) -> None:
        self._complete = complete

    def parse(self, path: str) -> Any:
        path, *argument = path.split(":", 1)
        path = here_or_bundled(path, "configs")
        loader = importlib.machinery.SourceFileLoader("config_file", path)
        module = sys.modules[loader.name] = types.ModuleType(loader.name)
        module.__file__ = path
        try:
            exec(loader.source_to_code(loader.get_data(path), path), vars(module))  # leaves no __pycache__
            config = _call(path, module.get_config, argument)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ConfigError(_inside(path, error)) from error
        if not isinstance(config, PretrainConfig | FinetuneConfig):
            found = f"get_config() returned {shown(config)}"
            raise ConfigError(f"{path}: {found}; expected a PretrainConfig or a FinetuneConfig")
        self._complete(config)
        _check_overrides("config", config)
        return config


def _call(path: str, get_config: Callable[..., Any], argument: list[str]) -> Any:
    if callable(get_config):
        try:
            inspect.signature(get_config).bind(*argument)
        except TypeError:
            expected = f"no argument: --config={path}" if argument else f"an argument: --config={path}:ARGUMENT"
            raise ConfigError(f"its get_config takes {expected}") from None
    return get_config(*argument)


def _inside(path: str, error: BaseException) -> str:
    """The message of an error inside of a config file, with the last line of the file that led to it."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno or 1]
    if not lines:  # the file could not be read, or has no get_config
        reason = error.strerror if isinstance(error, OSError) else _message(error)
        return f"{path or repr(path)}: {reason or type(error).__name__}"
    reason = _wrong_field(error)
    if not isinstance(error, BertTfError) and reason == _message(error):
        reason = f"{type(error).__name__}: {reason}".removesuffix(": ")
    return f"{path}:{lines[-1]}: {reason}"


def _message(error: BaseException) -> str:
    try:
        if isinstance(error, SyntaxError):
            return str(error.msg or "")  # without the name of the file
        if isinstance(error, KeyError) and error.args:
            return str(error.args[0])  # without quotes
        return str(error)
    except Exception:  # of a class that a config file defines
        return ""


def strategy_flags() -> Callable[[], tuple[str, str]]:
    """Defines --strategy and --tpu; returns a function that reads their values."""
    strategy = flags.DEFINE_string(
        "strategy",
        "auto",
        "auto: all GPUs if there are several, else one device. Or one_device, "
        "mirrored (all GPUs of this machine), multi_worker (those in TF_CONFIG), tpu.",
    )
    tpu = flags.DEFINE_string("tpu", "", "Name or address of the TPU for --strategy=tpu; empty for the local one.")
    return lambda: (strategy.value, tpu.value)


def xla_cache_flag() -> Callable[[], None]:
    """Defines --xla_cache, whose value is used before; returns a function that reports if nothing is kept."""
    cache = flags.DEFINE_string(
        "xla_cache",
        "",
        "Folder where XLA keeps what it compiles for a GPU, so that the next start takes seconds instead of minutes.",
    )

    def report() -> None:
        read = xla_settings.given(sys.argv) == xla_settings.given([f"--xla_cache={cache.value}"])
        if reason := _NOTHING_KEPT if read else "it must be on the command line, not in a file of flags":
            log(f"--xla_cache: nothing is kept: {reason}")

    return report


def dtype_flag() -> flags.FlagHolder[str]:
    """Defines --dtype of a program that predicts."""
    return flags.DEFINE_enum(
        "dtype",
        "float32",
        INFERENCE_DTYPES,
        "Number format of the encoder's matrix products; auto takes bfloat16 where the processor or GPU has it, int8 "
        "is the rounding of an int8 export, for models fine-tuned with train.quantization=int8.",
    )


def data_flags() -> Callable[[ExampleData], ExampleData]:
    """Defines --data.FIELD for each field of ExampleData; returns a function that applies the given ones."""
    try:  # the library parses the arguments at once
        _check_overrides("data", ExampleData())
    except ConfigError as error:
        _fail(str(error), 2)
    config_flags.DEFINE_config_dataclass(
        "data",
        ExampleData(),
        "Describes data that differs from that of fine-tuning, field by field: --data.text=review --data.label=stars.",
        parse_fn=_refuse,
    )
    return lambda data: dataclasses.replace(data, **config_flags.get_override_values(flags.FLAGS["data"]))


def _refuse(_: object) -> NoReturn:
    raise ConfigError(f"--data: expected one of its fields, such as --data.{first_field(ExampleData())}")


def accept_config_change_flag() -> flags.FlagHolder[bool]:
    """Defines --accept_config_change."""
    return flags.DEFINE_bool(
        "accept_config_change",
        False,
        "Resume an interrupted run although settings that affect its result have changed.",
    )
