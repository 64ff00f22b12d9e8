"""Fine-tunes on labelled texts: python -m bert_tf.finetune --config=FILE --data_dir=DIR --init=DIR --model_dir=DIR."""

from absl import flags

from bert_tf.app import accept_config_change_flag, config_flag, run, strategy_flags, xla_cache_flag
from bert_tf.files import check_output
from bert_tf.metrics.units import metrics_line
from bert_tf.report.file_reporter import FileReporter
from bert_tf.training import strategy
from bert_tf.training.runs.sweep import finetune_best
from bert_tf.training.state.signals import terminable

_CONFIG = config_flag("Config file, such as configs/finetune/reviews.py; --config.train.epochs=2 sets a field.")
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Directory with the files that the config's data.format reads.")
_INIT = flags.DEFINE_string(
    "init", None, "Model to start from, in any format that bert_tf.load reads, e.g. hf://OWNER/NAME.", required=True
)
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "Directory for the model, checkpoints, curves and results.json.", required=True
)
_ACCEPT = accept_config_change_flag()
_STRATEGY = strategy_flags()
_XLA_CACHE = xla_cache_flag()


def main(_: list[str]) -> None:
    check_output(_MODEL_DIR.value, directory=True)
    config = _CONFIG()
    _XLA_CACHE()
    devices = strategy.create(*_STRATEGY(), config.train)
    files = _DATA_DIR.value, _INIT.value, _MODEL_DIR.value
    with terminable(_MODEL_DIR.value):
        results = finetune_best(config, *files, devices, accept_config_change=_ACCEPT.value, reporter=FileReporter())
    metrics = metrics_line(results["final"])
    print(f"{_MODEL_DIR.value}: {results['steps']} steps done, {metrics}; wrote the model and results.json")


if __name__ == "__main__":
    run(main)
