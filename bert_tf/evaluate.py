"""Measures a fine-tuned model: python -m bert_tf.evaluate --model_dir=DIR --data_dir=DIR_OR_FILE --output=DIR."""

import os

from absl import flags

from bert_tf.app import run, strategy_flags
from bert_tf.checkpoints.directory import load_task
from bert_tf.files import write_json
from bert_tf.training import evaluation, strategy

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "What finetune wrote.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "A table, or the folder with the evaluation table of the task.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder for results.json.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Rows at once.", lower_bound=1)
_STRATEGY = strategy_flags()
flags.mark_flags_as_required(["model_dir", "data_dir", "output"])


def main(_):
    devices = strategy.create(*_STRATEGY())
    with devices.scope():
        task, model = load_task(_MODEL_DIR.value)
    table = task.table(_DATA_DIR.value)
    rows = task.read(table)
    measured = evaluation.evaluator(task, model, task.batches(rows, _BATCH_SIZE.value), devices)()
    measured["rows"] = len(rows[task.label])
    write_json(
        os.path.join(_OUTPUT.value, "results.json"),
        {"program": "evaluate", "model_dir": _MODEL_DIR.value, "data": table, "final": measured},
    )
    print(f"{table}: " + ", ".join(f"{name} {value:.4f}" for name, value in measured.items() if name != "rows"))


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
