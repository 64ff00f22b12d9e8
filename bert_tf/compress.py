"""Makes a fine-tuned model or an encoder small: python -m bert_tf.compress --model_dir=DIR --target_size=20MB ...

Tries a smaller vocabulary, 8 bits and so on, and stops at the first model that meets the target.
"""

import re

from absl import flags

from bert_tf.app import data_flags, run, strategy_flags
from bert_tf.checkpoints.directory import files_of
from bert_tf.errors import ConfigError
from bert_tf.files import check_output
from bert_tf.report.file_reporter import FileReporter
from bert_tf.tasks.embeddings import Embeddings
from bert_tf.training import strategy
from bert_tf.training.runs.compression import Target, compress, task_of
from bert_tf.training.runs.compression_steps import STEPS, STEPS_OF_ENCODERS
from bert_tf.training.state.signals import terminable

_UNITS = {"kb": 1e-3, "mb": 1.0, "gb": 1e3}  # MB

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory that finetune wrote.", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Directory with the labelled examples of the fine-tuning.")
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Directory for a model and an export of each step, results.json and report.html.", required=True
)
_SIZE = flags.DEFINE_string("target_size", None, "Largest export on disk, such as 20MB or 900kB.")
_MS = flags.DEFINE_float("target_ms", None, "Longest time for a text, in milliseconds: the median with one thread.")
_TEXTS = flags.DEFINE_string(
    "texts",
    "",
    "Examples, labelled or not, such as the model will read: their words are kept, students learn from them, and the "
    "time for them is measured.",
)
_DATA = data_flags()
_STRATEGY = strategy_flags()


def main(_: list[str]) -> None:
    target = Target(_megabytes(_SIZE.value), _MS.value).check()
    check_output(_OUTPUT_DIR.value, directory=True, inputs=files_of(_MODEL_DIR.value))
    devices = strategy.create(*_STRATEGY())
    task = task_of(_MODEL_DIR.value, _DATA_DIR.value, _DATA)
    output = _OUTPUT_DIR.value
    with terminable(output):
        results = compress(
            _MODEL_DIR.value,
            _DATA_DIR.value,
            output,
            target,
            devices,
            task=task,
            texts=_TEXTS.value,
            steps=STEPS_OF_ENCODERS if isinstance(task, Embeddings) else STEPS,
            reporter=FileReporter(),
        )
    best = results["rows"][-1]
    print(f"{best['export']} meets {target.text(target.limit)}; wrote results.json and report.html to {output}")


def _megabytes(size: str | None) -> float | None:
    if size is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMG]B)", size, re.ASCII | re.IGNORECASE)
    if not found or not float(found[1]):
        raise ConfigError(f"--target_size={size}: expected a size above 0 with its unit, such as 20MB, 900kB or 1.5GB")
    return float(found[1]) * _UNITS[found[2].lower()]


if __name__ == "__main__":
    run(main)
