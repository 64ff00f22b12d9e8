"""Fine-tunes on labelled texts: python -m bert_tf.finetune --config=FILE --data_dir=DIR --init=DIR --model_dir=DIR."""

from absl import flags
from ml_collections import config_flags

from bert_tf.app import accept_config_change_flag, run, strategy_flags
from bert_tf.progress import measures_line
from bert_tf.training import strategy
from bert_tf.training.runs import sweep
from bert_tf.training.state.signals import terminable

_CONFIG = config_flags.DEFINE_config_file("config", help_string="A file like configs/finetune/*.py.")
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Folder with the files that the config's data.format reads.")
_INIT = flags.DEFINE_string("init", None, "Model to start from: whatever bert_tf.load reads, e.g. hf://OWNER/NAME.")
_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Gets model, checkpoints, curves and results.json.")
_ACCEPT = accept_config_change_flag()
_STRATEGY = strategy_flags()
flags.mark_flags_as_required(["config", "init", "model_dir"])


def main(_):
    devices = strategy.create(*_STRATEGY())
    files = _DATA_DIR.value, _INIT.value, _MODEL_DIR.value
    with terminable(_MODEL_DIR.value):
        results = sweep.finetune(_CONFIG.value, *files, devices, accept_config_change=_ACCEPT.value)
    measured = measures_line(results["final"])
    print(f"{_MODEL_DIR.value}: {results['steps']} steps done, {measured}; the model and results.json are there")


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
