"""Evaluates a fine-tuned model: python -m bert_tf.evaluate --model_dir=DIR --data_dir=DIR_OR_FILE --output=DIR."""

import os

from absl import flags

from bert_tf.app import data_flags, dtype_flag, run, strategy_flags
from bert_tf.checkpoints.directory import files_of, load_fine_tuned
from bert_tf.files import check_output, write_json
from bert_tf.inputs.datasets.sources import Source
from bert_tf.metrics.units import metrics_line
from bert_tf.report.file_reporter import FileReporter
from bert_tf.training import strategy
from bert_tf.training.dtype import infer_in
from bert_tf.training.evaluation import Evaluation, Split

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory that finetune wrote.", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Labelled examples: a file, or the directory with the task's files.")
_SPLIT = flags.DEFINE_string(
    "split", "validation", "Split of a directory: train, validation, test, or a name of the data set's own."
)
_OUTPUT = flags.DEFINE_string("output", None, "Directory for results.json and report.html.", required=True)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Examples per batch.", lower_bound=1, upper_bound=10_000_000)
_DTYPE = dtype_flag()
_DATA = data_flags()
_STRATEGY = strategy_flags()


def main(_: list[str]) -> None:
    check_output(_OUTPUT.value, directory=True, inputs=files_of(_MODEL_DIR.value))
    devices = strategy.create(*_STRATEGY())
    with devices.scope():
        task, model = load_fine_tuned(_MODEL_DIR.value)
        dtype = infer_in(_DTYPE.value, model)
    task = task.replaced(data=_DATA(task.data))
    source = Source(task.data, _DATA_DIR.value, task.example)
    check_output(_OUTPUT.value, directory=True, inputs=source.files(_SPLIT.value))
    split = Split(source, _SPLIT.value)
    split.prepare(task)
    evaluation = Evaluation(task, model, split, _BATCH_SIZE.value, devices)
    metrics = evaluation()
    results = {
        "program": "evaluate",
        "model_dir": _MODEL_DIR.value,
        "data": split.where,
        "dtype": dtype,
        "examples": len(split.examples),
        "skipped": split.read_report.counts,
        "unknown_share": split.unknown.share,
        "baseline": task.benchmark.baseline(split.examples),
        "final": metrics,
    }
    FileReporter().evaluation(_OUTPUT.value, evaluation, metrics)
    write_json(os.path.join(_OUTPUT.value, "results.json"), results)
    print(f"{split.where}: {metrics_line(metrics)}; wrote results.json and report.html to {_OUTPUT.value}")


if __name__ == "__main__":
    run(main)
