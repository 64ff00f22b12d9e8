"""Predicts labels or answers: python -m bert_tf.predict --model_dir=DIR --data_dir=DIR_OR_FILE --output=FILE.

An exported model answers with --export_dir=DIR instead of --model_dir, in either of two ways. On a server, TF Serving
or `python -m bert_tf.serve`: --server=http://HOST:8501/v1/models/NAME. For millions of rows on Apache Beam:
--runner=DirectRunner; arguments after a lone -- are passed on to Beam, as in `prepare`.
"""

import glob
import os
from collections.abc import Callable, Iterable
from typing import Any

from absl import flags

from bert_tf.app import data_flags, dtype_flag, run, strategy_flags
from bert_tf.checkpoints.directory import files_of, load_fine_tuned
from bert_tf.errors import ConfigError
from bert_tf.files import check_output, replacing
from bert_tf.inference.predictions import ServerClient, find_version, task_of
from bert_tf.inference.rest import without_password
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.progress import Counted
from bert_tf.quiet import hide_beam_warnings
from bert_tf.tasks import FineTuningTask
from bert_tf.training import strategy
from bert_tf.training.dtype import infer_in
from bert_tf.training.evaluation import predictor, print_report
from bert_tf.types import Json

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory that finetune wrote.")
_EXPORT_DIR = flags.DEFINE_string(
    "export_dir",
    None,
    "With --runner or --server, instead of --model_dir: an exported model; its newest version (that of the server), or "
    "the given one.",
)
_SERVER = flags.DEFINE_string(
    "server",
    None,
    "URL of the exported model on a server, http://HOST:8501/v1/models/NAME; the environment variable BERT_TF_TOKEN "
    "may hold a token for it. With --export_dir, of which only the settings and the vocabulary are read.",
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
_DTYPE = dtype_flag()
_DATA = data_flags()
_STRATEGY = strategy_flags()


def main(argv: list[str]) -> None:
    if (folder := _EXPORT_DIR.value or "").startswith(("http://", "https://")):
        shown = without_password(folder)
        raise ConfigError(f"--export_dir={shown}: a URL; give it as --server, and the export's folder as --export_dir")
    if _RUNNER.value is not None:
        _predict_on_beam(_RUNNER.value, _checked_export_dir("--runner"), argv[1:])
        return
    if len(argv) > 1:
        raise ConfigError(f"unexpected argument {argv[1]!r}: all arguments are flags, --name=value")
    if _SERVER.value is not None:
        _predict_on_server(_SERVER.value, _checked_export_dir("--server"))
    elif _EXPORT_DIR.value is not None:
        raise ConfigError(
            "--export_dir needs --runner, such as --runner=DirectRunner, or --server=http://HOST:8501/v1/models/NAME; "
            "without them, give --model_dir"
        )
    elif _MODEL_DIR.value is None:
        raise ConfigError("--model_dir is missing; expected the directory that finetune wrote")
    else:
        _predict(_MODEL_DIR.value)


def _checked_export_dir(way: str) -> str:
    if _RUNNER.value is not None and _SERVER.value is not None:
        raise ConfigError("--runner and --server are two ways to predict; leave one out")
    if _MODEL_DIR.value is not None:
        raise ConfigError(f"{way} needs an exported model: give --export_dir instead of --model_dir")
    if _EXPORT_DIR.value is None:
        raise ConfigError(f"{way} needs --export_dir: the directory that `python -m bert_tf.export` wrote")
    if _STRATEGY() != ("auto", "") or _DTYPE.value != "float32":
        raise ConfigError(
            f"--strategy, --tpu and --dtype do not work with {way}, which computes elsewhere; leave them out"
        )
    return _EXPORT_DIR.value


def _predict(model_dir: str) -> None:
    check_output(_OUTPUT.value, inputs=files_of(model_dir))
    devices = strategy.create(*_STRATEGY())
    with devices.scope():
        task, model = load_fine_tuned(model_dir)
        infer_in(_DTYPE.value, model)
    predict = predictor(task, model, devices)
    _write(task, lambda examples: predict(examples, _BATCH_SIZE.value))


def _predict_on_server(url: str, export_dir: str) -> None:
    check_output(_OUTPUT.value)
    server = ServerClient(url, export_dir)
    _write(server.task, lambda examples: server.predicting(examples, _BATCH_SIZE.value))


def _write(task: FineTuningTask, predicting: Callable[[Iterable[Any]], Iterable[tuple[Any, Json]]]) -> None:
    """Reads the examples and writes what `predicting` makes of them."""
    task = task.replaced(data=_DATA(task.data))
    writers, ending = task.writers(), os.path.splitext(_OUTPUT.value)[1]
    if ending not in writers:
        raise ConfigError(
            f"--output={_OUTPUT.value}: unknown extension; a {task.name} model writes {', '.join(writers)}"
        )
    source, read_report = Source(task.data, _DATA_DIR.value, task.example), ReadReport()
    check_output(_OUTPUT.value, inputs=source.files(_SPLIT.value))
    predictions = Counted(predicting(source.examples(read_report, _SPLIT.value, labelled=False)))
    with replacing(_OUTPUT.value, adding=ending == ".zip") as temporary:
        note = writers[ending](temporary, predictions)
    print_report(source.where(_SPLIT.value), read_report)
    print(f"{_OUTPUT.value}: {predictions.count:,} rows" + (f"; {note}" if note else ""))


def _predict_on_beam(runner: str, export_dir: str, arguments: list[str]) -> None:
    hide_beam_warnings()
    try:
        from bert_tf.beam_options import pipeline_options
        from bert_tf.inference import beam
    except ImportError as error:
        raise ConfigError(f"Apache Beam is not installed ({error}); pip install 'bert_tf[beam]'") from None

    options = pipeline_options(arguments, runner)
    version = find_version(export_dir)
    task = task_of(version)
    task = task.replaced(data=_DATA(task.data))
    source, read_report = Source(task.data, _DATA_DIR.value, task.example), ReadReport()
    stem, ending = os.path.splitext(_OUTPUT.value)
    for shard in glob.glob(f"{glob.escape(stem)}-*-of-*{glob.escape(ending)}"):  # which may be replaced or removed
        check_output(shard, inputs=source.files(_SPLIT.value))
    examples = source.examples(read_report, _SPLIT.value, labelled=False)
    shards, written = beam.predict(version, task, examples, _OUTPUT.value, _BATCH_SIZE.value, options)
    print_report(source.where(_SPLIT.value), read_report)
    rows = sum(shards.rows(number) for number in range(len(shards)))
    reused = f", {len(shards) - len(written)} of them from an earlier run" if len(written) < len(shards) else ""
    names = f"{shards.path(0)}, ...: {rows:,} rows in {len(shards)} shards"
    print((names if len(shards) > 1 else f"{shards.path(0)}: {rows:,} rows") + reused)


if __name__ == "__main__":
    run(main, arguments=True)
