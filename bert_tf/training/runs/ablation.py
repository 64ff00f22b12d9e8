"""What pre-training objectives and model sizes are worth (paper, sections 5.1 and 5.2), on the bundled data.

Each model is pre-trained on the State of the Union addresses and fine-tuned on the movie reviews, several times.
"""

import dataclasses
import os
from typing import NamedTuple

from bert_tf.bundled import config, write_english_vocabulary
from bert_tf.config import BertConfig
from bert_tf.errors import ConfigError
from bert_tf.files import bundled, write_json, write_text
from bert_tf.report.ablation import draw_ablation, markdown
from bert_tf.report.statistics import mean_and_deviation
from bert_tf.training.runs.finetuning import finetune
from bert_tf.training.runs.pretraining import pretrain
from bert_tf.training.state.run_manifest import remedy
from bert_tf.training.runs.runner import isolated_session

_SMOKE_STEPS = 4


class Variant(NamedTuple):
    """A row of table 5.

    Attributes:
        objective: name of the pre-training, of which the folder is called.
        data, model: what differs from BERT's PretrainingData and BertConfig.
        task: what differs in the ClassificationConfig.
    """

    objective: str
    data: dict
    model: dict
    task: dict


def _left_to_right(**task):
    return Variant("left_to_right", {"pairs": "none", "masking": "causal_lm"}, {"attention": "causal"}, task)


# By their names in table 5.
VARIANTS = {
    "BERT": Variant("bert", {}, {}, {}),
    "No NSP": Variant("no_nsp", {"pairs": "none"}, {}, {}),
    "LTR & No NSP": _left_to_right(),
    "LTR & No NSP + BiLSTM": _left_to_right(head="bilstm"),
}


def ablate(output_dir, strategy, *, sizes, seeds, smoke=False):
    """Trains every variant at the first size, and BERT at the others.

    Args:
        output_dir: gets vocab.txt, a folder a training, results.json, ablation.md and ablation.png; what is there
            already is gone on with.
        strategy: tf.distribute.Strategy.
        sizes: list of str, names of BertConfig.from_name.
        seeds: how many times, each with another seed for pre-training and fine-tuning.
        smoke: some steps each, which learn nothing.

    Returns:
        list of dicts, one a row: name, size, parameters, accuracies (one a seed), mean, deviation (of the sample;
        None of one seed), pretraining_losses (validation; of different objectives not to be compared).

    Raises:
        ConfigError: no size or an unknown one, before anything is trained; a training that is there had other settings.
    """
    if not sizes:
        raise ConfigError("no size of model to train; name one, such as tiny")
    for size in sizes:
        BertConfig.from_name(size)
    vocab = os.path.join(output_dir, "vocab.txt")
    if not os.path.exists(vocab):
        write_english_vocabulary(vocab)
    wanted = [(name, sizes[0]) for name in VARIANTS] + [("BERT", size) for size in sizes[1:]]
    rows = []
    for name, size in wanted:
        variant, accuracies, losses = VARIANTS[name], [], []
        for seed in range(seeds):
            folder = os.path.join(output_dir, f"{variant.objective}-{size}", f"seed_{seed}")
            pretrained = os.path.join(folder, "pretrained")
            print(f"\n== {name}, {size}, seed {seed}", flush=True)
            end = os.path.join(folder, "-".join(["reviews", *variant.task.values()]))
            pretraining, tuning = _pretraining(variant, size, vocab, seed, smoke), _finetuning(variant, seed, smoke)
            with remedy("choose another --output_dir"):
                with isolated_session():
                    before = pretrain(pretraining, pretrained, strategy)
                with isolated_session():
                    after = finetune(tuning, bundled("data/reviews"), pretrained, end, strategy)
            losses.append(before["final"]["loss"])
            accuracies.append(after["final"]["accuracy"])
        mean, deviation = mean_and_deviation(accuracies)
        rows.append(
            {
                "name": name,
                "size": size,
                "parameters": after["parameters"],
                "accuracies": accuracies,
                "mean": mean,
                "deviation": deviation,
                "pretraining_losses": losses,
            }
        )
    write_json(os.path.join(output_dir, "results.json"), {"program": "ablate", "smoke": smoke, "rows": rows})
    write_text(os.path.join(output_dir, "ablation.md"), markdown(rows))
    draw_ablation(os.path.join(output_dir, "ablation.png"), rows)
    return rows


def _pretraining(variant, size, vocab, seed, smoke):
    settings = config("pretrain/tiny.py")
    settings.tokenizer.vocab = vocab
    settings.data = dataclasses.replace(settings.data, **variant.data)
    if settings.data.masking == "causal_lm":
        settings.data.max_predictions = settings.data.max_length - 1
    kept = {name: getattr(settings.model, name) for name in ("vocab_size", "dropout", "attention_dropout")}
    model = BertConfig.from_name(size, **kept, **variant.model)
    # As in tiny.py: in proportion to 1 / sqrt(width), 0.02 at 768.
    settings.model = dataclasses.replace(model, initializer_range=0.02 * (768 / model.hidden_size) ** 0.5)
    settings.train.seed = seed
    if smoke:
        settings.train.steps = settings.train.evaluate_every = _SMOKE_STEPS
    return settings


def _finetuning(variant, seed, smoke):
    settings = config("finetune/reviews_tiny.py")
    settings.task = dataclasses.replace(settings.task, **variant.task)
    settings.train.seed = seed
    if smoke:
        settings.train.steps = _SMOKE_STEPS
    return settings
