"""Shows what pre-training objectives and sizes are worth: python -m bert_tf.ablate --output_dir=runs/ablation."""

from absl import flags

from bert_tf.app import run
from bert_tf.report.ablation import markdown
from bert_tf.training import strategy
from bert_tf.training.runs.ablation import ablate

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Gets models, results.json, ablation.md and ablation.png.")
_SIZES = flags.DEFINE_list("sizes", ["tiny"], "Model sizes: all variants of the first, BERT alone of the others.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Trainings of each.", lower_bound=1)
_SMOKE = flags.DEFINE_bool("smoke", False, "A handful of steps each: shows that everything runs, learns nothing.")
flags.mark_flag_as_required("output_dir")


def main(_):
    output = _OUTPUT_DIR.value
    rows = ablate(output, strategy.create(), sizes=_SIZES.value, seeds=_SEEDS.value, smoke=_SMOKE.value)
    print(f"\n{markdown(rows)}\n{output}: ablation.md, ablation.png and results.json are there")


def cli():
    """The console command."""
    run(main)


if __name__ == "__main__":
    cli()
