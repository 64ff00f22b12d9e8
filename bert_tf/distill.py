"""Trains a small model on the answers of a large one: python -m bert_tf.distill --teacher=DIR --config=FILE ...

The config says what is distilled: a FinetuneConfig a task, with the labels that there are.
"""

import sys
import types
from typing import Any

from absl import flags

from bert_tf.api import distillation
from bert_tf.app import accept_config_change_flag, config_flag, run, strategy_flags
from bert_tf.config import FinetuneConfig, TaskDistillation
from bert_tf.files import check_output
from bert_tf.metrics.units import metrics_line
from bert_tf.report.file_reporter import FileReporter
from bert_tf.training import strategy
from bert_tf.training.runs import sweep
from bert_tf.training.state.signals import terminable

_CONFIG = config_flag("Config file, such as configs/distill/sst2.py; --config.distillation.temperature=4 sets a field.")
_TEACHER = flags.DEFINE_string(
    "teacher", None, "Model that was fine-tuned for the task, in any format that bert_tf.load reads.", required=True
)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Directory with the files that the config's data.format reads.")
_INIT = flags.DEFINE_string(
    "init", "", "Model that becomes the student; without it, distillation.student is the architecture of a new one."
)
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "Directory for the model, checkpoints, curves, results.json and the teacher's answers.",
    required=True,
)  # fmt: skip
_ACCEPT = accept_config_change_flag()
_STRATEGY = strategy_flags()


def main(_: list[str]) -> None:
    check_output(_MODEL_DIR.value, directory=True)
    config = _CONFIG()
    if isinstance(config, FinetuneConfig) and config.distillation is None:
        config.distillation = TaskDistillation()
    devices = strategy.create(*_STRATEGY(), config.train)
    files = _DATA_DIR.value, _INIT.value, _MODEL_DIR.value
    with terminable(_MODEL_DIR.value):
        results = sweep.finetune(
            config,
            *files,
            devices,
            accept_config_change=_ACCEPT.value,
            teacher=_TEACHER.value,
            reporter=FileReporter(),
        )
    metrics = metrics_line(results["final"])
    print(f"{_MODEL_DIR.value}: {results['steps']} steps done, {metrics}; wrote the model and results.json")


class _Function(types.ModuleType):
    """Lets the module be called like `bert_tf.distill`, the function, whose place it takes where it is imported."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return distillation.distill(*args, **settings)


sys.modules[__name__].__class__ = _Function
if __name__ == "__main__":
    run(main)
