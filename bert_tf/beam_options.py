"""Apache Beam's own flags, checked before anything is read or written: Beam ignores unknown ones."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.runner import create_runner

from bert_tf.errors import ConfigError

# The others may pass flags that Beam's Python package does not know to a job server or to the cloud.
_LOCAL_RUNNERS = ("directrunner", "switchingdirectrunner", "bundlebaseddirectrunner", "fnapirunner")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"Beam's flags after --: {message}")

    def add_value_provider_argument(self, *names: str, **options: object) -> None:
        self.add_argument(*names, **options)  # type: ignore[arg-type]


def pipeline_options(arguments: Sequence[str], runner: str | None = None) -> PipelineOptions:
    """Options of a pipeline that can start.

    Args:
        arguments: Beam's flags.
        runner: name of the runner if it is not among `arguments`.

    Raises:
        ConfigError: an unknown runner or flag, a bad value, or a flag that the runner lacks.
    """
    arguments = list(arguments)
    parser = _Parser(allow_abbrev=False, add_help=False)
    for kind in {*_subclasses(PipelineOptions)}:
        if "_add_argparse_args" in vars(kind):
            kind._add_argparse_args(parser)
    named, unknown = parser.parse_known_args(arguments)
    if runner is not None:
        if not runner:
            raise ConfigError("--runner is empty; name one, such as DirectRunner")
        if named.runner is not None:
            raise ConfigError(f"--runner={named.runner} after --, but --runner={runner} before it; leave one out")
        arguments.insert(0, f"--runner={runner}")
    name = runner or named.runner or "DirectRunner"
    for flag in ("-h", "--help"):
        if flag in unknown:  # Beam would print the help of an empty parser
            raise ConfigError(f"{flag} after --: Beam's flags are described in its documentation")
    if unknown and name.rpartition(".")[2].lower() in _LOCAL_RUNNERS:
        raise ConfigError(f"{unknown[0]!r} is no flag of Beam's {name}; see its documentation for the flags after --")
    options = PipelineOptions(arguments)
    try:
        created = create_runner(name)
        problems = PipelineOptionsValidator(options, created).validate()
    except (AttributeError, ImportError, ValueError) as error:
        raise ConfigError(f"--runner={name}: {error}") from None
    if options.view_as(DirectOptions).direct_num_workers < 0:
        problems.append("direct_num_workers is negative; it must be 1 or more, or 0 for one per core")
    if problems:
        raise ConfigError(f"--runner={name}: {'; '.join(problems)}")
    return options


def _subclasses(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)
