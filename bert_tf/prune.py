"""Prunes a fine-tuned model: python -m bert_tf.prune --model_dir=DIR --data_dir=DIR --share=0.5 --output_dir=DIR."""

from absl import flags

from bert_tf.app import data_flags, run, strategy_flags
from bert_tf.files import check_output
from bert_tf.inputs.datasets.sources import Source
from bert_tf.report.terminal import pruning_text
from bert_tf.training import strategy
from bert_tf.training.runs import pruning

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
    report = pruning.prune_model(
        _MODEL_DIR.value,
        output,
        lambda task: Source(_DATA(task.data), _DATA_DIR.value, task.example),
        _SPLIT.value,
        _SHARE.value,
        strategy.create(*_STRATEGY()),
        examples=_EXAMPLES.value,
        batch_size=_BATCH_SIZE.value,
    )
    print(f"{pruning_text(report)}\n{output}: wrote the model and {pruning.REPORT}")


if __name__ == "__main__":
    run(main)
