"""Exports a model for TF Serving: python -m bert_tf.export --model_dir=DIR --export_dir=DIR."""

import os

from absl import flags

from bert_tf.app import run
from bert_tf.checkpoints.directory import load_task
from bert_tf.files import read_json_object
from bert_tf.serving.export import export, on_cpu, summary
from bert_tf.training.run import RESULTS

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "What pretrain or finetune wrote.")
_EXPORT_DIR = flags.DEFINE_string("export_dir", None, "The model's folder; gets the SavedModel as its next version.")
_ATTENTION = flags.DEFINE_bool("attention", False, "Adds a signature that gives tokens and attention probabilities.")
_CHECK = flags.DEFINE_bool("check", True, "Verify the export in a TensorFlow session, as TF Serving runs it.")
flags.mark_flags_as_required(["model_dir", "export_dir"])


def main(_):
    with on_cpu():  # whose answers the export is compared with
        task, model = load_task(_MODEL_DIR.value)
    results = os.path.join(_MODEL_DIR.value, RESULTS)
    exported = export(
        task,
        model,
        _EXPORT_DIR.value,
        attention=_ATTENTION.value,
        check=_CHECK.value,
        results=read_json_object(results) if os.path.exists(results) else None,
    )
    print(summary(exported, f"a {task.name} SavedModel"))


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
