"""Answers examples: python -m bert_tf.predict --model_dir=DIR --data_dir=DIR_OR_FILE --output=FILE."""

import os

from absl import flags

from bert_tf.app import data_flags, run, strategy_flags
from bert_tf.checkpoints.directory import load_downstream
from bert_tf.errors import ConfigError
from bert_tf.files import replacing_with_others
from bert_tf.inputs.examples import Skips
from bert_tf.inputs.sources import Source
from bert_tf.training import finetuning, strategy

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "What finetune wrote.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir", "", "Examples, labelled or not: a file, the folder with the task's files, or - for JSON lines on stdin."
)
_SPLIT = flags.DEFINE_string("split", "test", "Of a folder: train, evaluation, test, or a split's own name.")
_OUTPUT = flags.DEFINE_string("output", None, "What is written; the ending says how: .jsonl, or one of the task's own.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Rows at once.", lower_bound=1)
_DATA = data_flags()
_STRATEGY = strategy_flags()
flags.mark_flags_as_required(["model_dir", "output"])


def main(_):
    devices = strategy.create(*_STRATEGY())
    with devices.scope():
        task, model = load_downstream(_MODEL_DIR.value)
    task.data = _DATA(task.data)
    writers, ending = task.writers(), os.path.splitext(_OUTPUT.value)[1]
    if ending not in writers:
        raise ConfigError(
            f"--output={_OUTPUT.value}: a {task.name} model writes {', '.join(writers)}; choose an ending"
        )
    source, skips = Source(task.data, _DATA_DIR.value, task.example), Skips()
    examples = source.examples(skips, _SPLIT.value, labelled=False)
    written = _Counted(finetuning.predicting(task, model, examples, _BATCH_SIZE.value, devices))
    with replacing_with_others(_OUTPUT.value, adding=ending == ".zip") as temporary:
        note = writers[ending](temporary, written)
    finetuning.say(source, _SPLIT.value, skips)
    print(f"{_OUTPUT.value}: {written.count:,} rows" + (f"; {note}" if note else ""))


class _Counted:
    """An iterable that knows how far it has been gone through."""

    def __init__(self, values):
        self._values, self.count = values, 0

    def __iter__(self):
        for value in self._values:
            self.count += 1
            yield value


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
