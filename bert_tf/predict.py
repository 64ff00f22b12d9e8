"""Answers examples: python -m bert_tf.predict --model_dir=DIR --data_dir=DIR_OR_FILE --output=FILE.

Rows by the million, on Apache Beam and an exported model: --export_dir=DIR --runner=DirectRunner in place of
--model_dir. What follows a lone -- are then Beam's own flags, as of `prepare`.
"""

import logging
import os

from absl import flags

from bert_tf.app import data_flags, run, strategy_flags
from bert_tf.checkpoints.directory import load_fine_tuned
from bert_tf.errors import ConfigError
from bert_tf.files import replacing_with_others
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.training import strategy
from bert_tf.training.runs import finetuning

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "What finetune wrote.")
_EXPORT_DIR = flags.DEFINE_string(
    "export_dir",
    None,
    "With --runner, in place of --model_dir: an exported model; its newest version, or the one named.",
)
_RUNNER = flags.DEFINE_string("runner", None, "Where Beam runs, such as DirectRunner; --output then names shards.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir", "", "Examples, labelled or not: a file, the folder with the task's files, or - for JSON lines on stdin."
)
_SPLIT = flags.DEFINE_string("split", "test", "Of a folder: train, validation, test, or a split's own name.")
_OUTPUT = flags.DEFINE_string("output", None, "What is written; the ending says how: .jsonl, or one of the task's own.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Rows at once.", lower_bound=1)
_DATA = data_flags()
_STRATEGY = strategy_flags()
flags.mark_flags_as_required(["output"])


def main(argv):
    _check_flags(argv)
    if _RUNNER.value is None:
        _predict()
    else:
        _predict_on_beam(argv[1:])


def _check_flags(argv):
    if _RUNNER.value is None:
        if len(argv) > 1:
            raise ConfigError(f"unexpected argument {argv[1]!r}: all arguments are flags, --name=value")
        if _EXPORT_DIR.value is not None:
            raise ConfigError("--export_dir is for --runner, such as --runner=DirectRunner; else give --model_dir")
        if _MODEL_DIR.value is None:
            raise ConfigError("--model_dir is missing; it names what finetune wrote")
    else:
        if _MODEL_DIR.value is not None:
            raise ConfigError("--runner asks an exported model: give --export_dir, and leave --model_dir out")
        if _EXPORT_DIR.value is None:
            raise ConfigError("--runner needs --export_dir, which names what `python -m bert_tf.export` wrote")
        if _STRATEGY() != ("auto", ""):
            raise ConfigError("--strategy and --tpu are not for --runner: Beam's workers ask the exported model")


def _predict():
    devices = strategy.create(*_STRATEGY())
    with devices.scope():
        task, model = load_fine_tuned(_MODEL_DIR.value)
    task.data = _DATA(task.data)
    writers, ending = task.writers(), os.path.splitext(_OUTPUT.value)[1]
    if ending not in writers:
        raise ConfigError(
            f"--output={_OUTPUT.value}: a {task.name} model writes {', '.join(writers)}; choose an ending"
        )
    source, read_report = Source(task.data, _DATA_DIR.value, task.example), ReadReport()
    examples = source.examples(read_report, _SPLIT.value, labelled=False)
    written = _Counted(finetuning.predicting(task, model, examples, _BATCH_SIZE.value, devices))
    with replacing_with_others(_OUTPUT.value, adding=ending == ".zip") as temporary:
        note = writers[ending](temporary, written)
    finetuning.print_report(source, _SPLIT.value, read_report)
    print(f"{_OUTPUT.value}: {written.count:,} rows" + (f"; {note}" if note else ""))


def _predict_on_beam(arguments):
    logging.getLogger().addFilter(_is_news)
    try:
        from apache_beam.options.pipeline_options import PipelineOptions

        from bert_tf.serving import beam
    except ImportError as error:
        raise ConfigError(f"Apache Beam is not there ({error}); pip install 'bert_tf[beam]'") from None

    version = beam.find_version(_EXPORT_DIR.value)
    task = beam.task_of(version)
    task.data = _DATA(task.data)
    source, read_report = Source(task.data, _DATA_DIR.value, task.example), ReadReport()
    examples = source.examples(read_report, _SPLIT.value, labelled=False)
    options = PipelineOptions([f"--runner={_RUNNER.value}", *arguments])
    shards, made = beam.predict(version, task, examples, _OUTPUT.value, _BATCH_SIZE.value, options)
    finetuning.print_report(source, _SPLIT.value, read_report)
    rows = sum(shards.rows(number) for number in range(len(shards)))
    there = f", {len(shards) - len(made)} of which were there" if len(made) < len(shards) else ""
    print(f"{shards.path(0)} and on: {rows:,} rows in {len(shards)} shards{there}")


def _is_news(record):
    """False for what Beam warns of whatever is done: clouds that are not installed, and memory it does not measure."""
    return not record.getMessage().startswith(("apitools not found", "Resource module is not available"))


class _Counted:
    """An iterable that knows how far it has been gone through."""

    def __init__(self, values):
        self._values, self.count = values, 0

    def __iter__(self):
        for value in self._values:
            self.count += 1
            yield value


def cli():
    """The console command."""
    run(main, arguments=True)


if __name__ == "__main__":
    cli()
