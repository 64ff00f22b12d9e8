"""Pre-trains BERT from raw text: python -m bert_tf.pretrain --config=configs/pretrain/tiny.py --model_dir=DIR."""

from absl import flags

from bert_tf.app import accept_config_change_flag, config_flag, run, strategy_flags, xla_cache_flag
from bert_tf.files import check_output
from bert_tf.report.file_reporter import FileReporter
from bert_tf.report.terminal import plan_text, print_pretrained
from bert_tf.training import strategy
from bert_tf.training.runs.pretraining import pretrain
from bert_tf.training.state.signals import terminable

_CONFIG = config_flag("Config file, such as configs/pretrain/tiny.py; --config.train.steps=1000 sets a field.")
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "Directory for the model, checkpoints, curves and results.json.", required=True
)
_ACCEPT = accept_config_change_flag()
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the plan of the run, its cost and some examples; write nothing.")
_STRATEGY = strategy_flags()
_XLA_CACHE = xla_cache_flag()


def main(_: list[str]) -> None:
    check_output(_MODEL_DIR.value, directory=True)
    config = _CONFIG()
    _XLA_CACHE()
    devices = strategy.create(*_STRATEGY(), config.train)
    if _DRY_RUN.value:
        print(plan_text(pretrain(config, _MODEL_DIR.value, devices, dry_run=True)))
        return
    with terminable(_MODEL_DIR.value):
        results = pretrain(
            config, _MODEL_DIR.value, devices, accept_config_change=_ACCEPT.value, reporter=FileReporter()
        )
    print_pretrained(results, _MODEL_DIR.value)


if __name__ == "__main__":
    run(main)
