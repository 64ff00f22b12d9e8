"""Exports a model for TF Serving: python -m bert_tf.export --model_dir=DIR --export_dir=DIR."""

from absl import flags

from bert_tf.app import run
from bert_tf.checkpoints.directory import load_task
from bert_tf.serving.export import export

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "What pretrain or finetune wrote.")
_EXPORT_DIR = flags.DEFINE_string("export_dir", None, "Gets the SavedModel as its next version: 1, 2, ...")
flags.mark_flags_as_required(["model_dir", "export_dir"])


def main(_):
    task, model = load_task(_MODEL_DIR.value)
    print(f"{export(task, model, _EXPORT_DIR.value)}: a {task.name} SavedModel, text in")


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
