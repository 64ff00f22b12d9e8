"""Trains a small model on the answers of a large one: python -m bert_tf.distill --teacher=DIR --config=FILE ...

The config says what is distilled: a FinetuneConfig a task, with the labels that there are; a PretrainConfig an encoder,
on plain text.
"""

import sys
import types
from typing import Any

from absl import flags

from bert_tf.app import accept_config_change_flag, config_flag, run, strategy_flags, xla_cache_flag
from bert_tf.config import FinetuneConfig, PretrainConfig, TaskDistillation
from bert_tf.errors import ConfigError
from bert_tf.files import check_output
from bert_tf.metrics.units import metrics_line
from bert_tf.report.file_reporter import FileReporter
from bert_tf.report.terminal import plan_text, print_pretrained
from bert_tf.training import strategy
from bert_tf.training.runs.encoder_distillation import distill_encoder
from bert_tf.training.runs.sweep import finetune_best
from bert_tf.training.state.signals import terminable


def _complete(config: Any) -> None:
    if isinstance(config, FinetuneConfig) and config.distillation is None:
        config.distillation = TaskDistillation()


_CONFIG = config_flag(
    "Config file of a fine-tuning or of a distillation; --config.distillation.layers=3 sets a field.",
    _complete,
)
_TEACHER = flags.DEFINE_string(
    "teacher", None, "Model that was fine-tuned for the task, or an encoder, in any format that bert_tf.load reads.",
    required=True,
)  # fmt: skip
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Directory with the files that the config's data.format reads.")
_INIT = flags.DEFINE_string(
    "init",
    "",
    "Model that becomes the student; without it, distillation.layers or distillation.size is that of a new one.",
)
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "Directory for the model, checkpoints, curves, results.json and the teacher's answers.",
    required=True,
)  # fmt: skip
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Of an encoder: print the plan of the run, its cost and some examples; write nothing."
)
_ACCEPT = accept_config_change_flag()
_STRATEGY = strategy_flags()
_XLA_CACHE = xla_cache_flag()


def main(_: list[str]) -> None:
    check_output(_MODEL_DIR.value, directory=True)
    config = _CONFIG()
    if isinstance(config, PretrainConfig):
        _distil_encoder(config)
        return
    if _DRY_RUN.value:
        raise ConfigError("--dry_run is for encoders, but --config holds a FinetuneConfig; leave it out")
    _XLA_CACHE()
    devices = strategy.create(*_STRATEGY(), config.train)
    files = _DATA_DIR.value, _INIT.value, _MODEL_DIR.value
    with terminable(_MODEL_DIR.value):
        results = finetune_best(
            config,
            *files,
            devices,
            accept_config_change=_ACCEPT.value,
            teacher=_TEACHER.value,
            reporter=FileReporter(),
        )
    metrics = metrics_line(results["final"])
    if teacher := results.get("teacher_results"):
        metrics += f" (teacher: {metrics_line(teacher['metrics'])})"
    print(f"{_MODEL_DIR.value}: {results['steps']} steps done, {metrics}; wrote the model and results.json")


def _distil_encoder(config: PretrainConfig) -> None:
    for flag in (_DATA_DIR, _INIT):
        if flag.value:
            raise ConfigError(
                f"--{flag.name} is for tasks, but --config holds a PretrainConfig: its input names the text, its model "
                "the student; leave it out"
            )
    _XLA_CACHE()
    devices = strategy.create(*_STRATEGY(), config.train)
    if _DRY_RUN.value:
        print(plan_text(distill_encoder(config, _MODEL_DIR.value, devices, teacher=_TEACHER.value, dry_run=True)))
        return
    with terminable(_MODEL_DIR.value):
        results = distill_encoder(
            config,
            _MODEL_DIR.value,
            devices,
            teacher=_TEACHER.value,
            accept_config_change=_ACCEPT.value,
            reporter=FileReporter(),
        )
    print_pretrained(results, _MODEL_DIR.value)


class _Function(types.ModuleType):
    """Lets the module be called like `bert_tf.distill`, the function, whose place it takes where it is imported."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from bert_tf.api.distill import distill  # not before bert_tf.app, which has TensorFlow load quietly

        return distill(*args, **settings)


sys.modules[__name__].__class__ = _Function
if __name__ == "__main__":
    run(main)
