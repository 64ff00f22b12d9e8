"""Labels texts: python -m bert_tf.predict --model_dir=DIR --data_dir=DIR_OR_FILE --output=FILE.tsv."""

from absl import flags

from bert_tf.app import run
from bert_tf.checkpoints.directory import load_task
from bert_tf.files import replacing
from bert_tf.training import evaluation

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "What finetune wrote.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "A table (labels are not needed), or the task's folder of them.")
_OUTPUT = flags.DEFINE_string("output", None, "TSV: a line a row of the table: label, then each label's probability.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Rows at once.", lower_bound=1)
flags.mark_flags_as_required(["model_dir", "data_dir", "output"])


def main(_):
    task, model = load_task(_MODEL_DIR.value)
    table = task.table(_DATA_DIR.value)
    rows = task.read(table, labelled=False)
    predictions = sorted(evaluation.predict(model, task.batches(rows, _BATCH_SIZE.value)), key=lambda item: item[0])
    with replacing(_OUTPUT.value) as temporary, open(temporary, "w", encoding="utf-8") as file:
        task.write_predictions(file, (outputs for _, outputs in predictions))
    print(f"{_OUTPUT.value}: {len(predictions)} rows")


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
