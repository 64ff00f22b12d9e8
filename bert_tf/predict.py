"""Predicts labels or answers: python -m bert_tf.predict --model_dir=DIR --data_dir=DIR_OR_FILE --output=FILE.

For millions of rows, with Apache Beam and an exported model: --export_dir=DIR --runner=DirectRunner instead of
--model_dir. Arguments after a lone -- are passed on to Beam, as in `prepare`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from absl import flags

from bert_tf.app import checked_extension, data_flags, run, strategy_flags
from bert_tf.checkpoints.directory import load_fine_tuned
from bert_tf.errors import ConfigError
from bert_tf.files import replacing
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.quiet import hide_beam_warnings
from bert_tf.training import strategy
from bert_tf.training.runs import finetuning
from bert_tf.types import Json

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory that finetune wrote.")
_EXPORT_DIR = flags.DEFINE_string(
    "export_dir",
    None,
    "With --runner, instead of --model_dir: an exported model; its newest version, or the given one.",
)
_RUNNER = flags.DEFINE_string("runner", None, "Beam runner, such as DirectRunner; --output then names shards.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    "",
    "Examples, with or without labels: a file, the directory with the task's files, or - for JSON lines on standard "
    "input.",
)
_SPLIT = flags.DEFINE_string(
    "split", "test", "Split of a directory: train, validation, test, or a name of the data set's own."
)
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "File to write; its extension determines the format: .jsonl, or one that the task defines.",
    required=True,
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Examples per batch.", lower_bound=1, upper_bound=10_000_000)
_DATA = data_flags()
_STRATEGY = strategy_flags()


def main(argv: list[str]) -> None:
    if _RUNNER.value is None:
        _predict(_checked_model_dir(argv))
    else:
        _predict_on_beam(_RUNNER.value, _checked_export_dir(), argv[1:])


def _checked_model_dir(argv: list[str]) -> str:
    if len(argv) > 1:
        raise ConfigError(f"unexpected argument {argv[1]!r}: all arguments are flags, --name=value")
    if _EXPORT_DIR.value is not None:
        raise ConfigError("--export_dir needs --runner, such as --runner=DirectRunner; without one, give --model_dir")
    if _MODEL_DIR.value is None:
        raise ConfigError("--model_dir is missing; expected the directory that finetune wrote")
    return _MODEL_DIR.value


def _checked_export_dir() -> str:
    if _MODEL_DIR.value is not None:
        raise ConfigError("--runner needs an exported model: give --export_dir instead of --model_dir")
    if _EXPORT_DIR.value is None:
        raise ConfigError("--runner needs --export_dir: the directory that `python -m bert_tf.export` wrote")
    if _STRATEGY() != ("auto", ""):
        raise ConfigError("--strategy and --tpu do not work with --runner, which uses Beam's workers; leave them out")
    return _EXPORT_DIR.value


def _predict(model_dir: str) -> None:
    ending = checked_extension(_OUTPUT.value)
    devices = strategy.create(*_STRATEGY())
    with devices.scope():
        task, model = load_fine_tuned(model_dir)
    task.data = _DATA(task.data)
    writers = task.writers()
    if ending not in writers:
        raise ConfigError(
            f"--output={_OUTPUT.value}: unknown extension; a {task.name} model writes {', '.join(writers)}"
        )
    source, read_report = Source(task.data, _DATA_DIR.value, task.example), ReadReport()
    examples = source.examples(read_report, _SPLIT.value, labelled=False)
    predictions = _Counted(finetuning.predicting(task, model, examples, _BATCH_SIZE.value, devices))
    with replacing(_OUTPUT.value, adding=ending == ".zip") as temporary:
        note = writers[ending](temporary, predictions)
    finetuning.print_report(source, _SPLIT.value, read_report)
    print(f"{_OUTPUT.value}: {predictions.count:,} rows" + (f"; {note}" if note else ""))


def _predict_on_beam(runner: str, export_dir: str, arguments: list[str]) -> None:
    hide_beam_warnings()
    try:
        from bert_tf.beam_options import pipeline_options
        from bert_tf.serving import beam
    except ImportError as error:
        raise ConfigError(f"Apache Beam is not installed ({error}); pip install 'bert_tf[beam]'") from None

    options = pipeline_options(arguments, runner)
    version = beam.find_version(export_dir)
    task = beam.task_of(version)
    task.data = _DATA(task.data)
    source, read_report = Source(task.data, _DATA_DIR.value, task.example), ReadReport()
    examples = source.examples(read_report, _SPLIT.value, labelled=False)
    shards, written = beam.predict(version, task, examples, _OUTPUT.value, _BATCH_SIZE.value, options)
    finetuning.print_report(source, _SPLIT.value, read_report)
    rows = sum(shards.rows(number) for number in range(len(shards)))
    reused = f", {len(shards) - len(written)} of them from an earlier run" if len(written) < len(shards) else ""
    names = f"{shards.path(0)}, ...: {rows:,} rows in {len(shards)} shards"
    print((names if len(shards) > 1 else f"{shards.path(0)}: {rows:,} rows") + reused)


class _Counted:
    """An iterable that counts the pairs taken from it."""

    def __init__(self, pairs: Iterable[tuple[Any, Json]]) -> None:
        self._pairs, self.count = pairs, 0

    def __iter__(self) -> Iterator[tuple[Any, Json]]:
        for pair in self._pairs:
            self.count += 1
            yield pair


def cli() -> None:
    """The console command."""
    run(main, arguments=True)


if __name__ == "__main__":
    cli()
