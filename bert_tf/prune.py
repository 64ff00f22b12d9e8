"""Prunes a fine-tuned model: python -m bert_tf.prune --model_dir=DIR --data_dir=DIR --share=0.5 --output_dir=DIR."""

import os

from absl import flags

from bert_tf.app import data_flags, run, strategy_flags
from bert_tf.checkpoints import directory
from bert_tf.files import check_output, replacing_directory, write_json
from bert_tf.inputs.datasets.sources import Source
from bert_tf.model.encoder import encoder_of
from bert_tf.training import pruning, strategy
from bert_tf.training.evaluation import Split

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory that finetune wrote.", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", "", "Labelled examples: a file, or the directory with the task's files.")
_SPLIT = flags.DEFINE_string(
    "split", "train", "Split of a directory: train, validation, test, or a name of the data set's own."
)
_EXAMPLES = flags.DEFINE_integer(
    "examples",
    1000,
    "Number of examples, spread over the split, on which the loss without a part is measured.",
    lower_bound=1,
    upper_bound=10_000_000,
)
_SHARE = flags.DEFINE_float(
    "share", None, "Part of the weights of the transformer layers to remove, above 0 and below 1.", required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "Directory for the pruned model; it must not exist.", required=True
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Examples per batch.", lower_bound=1, upper_bound=10_000_000)
_DATA = data_flags()
_STRATEGY = strategy_flags()


def main(_: list[str]) -> None:
    output = _OUTPUT_DIR.value
    check_output(output, directory=True, new=True)
    pruning.check_share(_SHARE.value)
    devices = strategy.create(*_STRATEGY())
    with devices.scope():
        task, model = directory.load_fine_tuned(_MODEL_DIR.value)
    read = task.replaced(data=_DATA(task.data))
    split = Split(Source(read.data, _DATA_DIR.value, task.example), _SPLIT.value)
    split.keep(_EXAMPLES.value)
    split.prepare(read)
    pruned = pruning.prune(read, model, split.columns, _SHARE.value, devices, batch_size=_BATCH_SIZE.value)
    report = {"program": "prune", "model_dir": _MODEL_DIR.value, "data": split.where, "examples": len(split.examples)}
    report |= pruned.report
    with replacing_directory(output) as temporary:
        directory.save(temporary, pruned.model, encoder_of(pruned.model), task)
        write_json(os.path.join(temporary, pruning.REPORT), report)
    print(f"{pruning.text(report)}\n{output}: wrote the model and {pruning.REPORT}")


if __name__ == "__main__":
    run(main)
