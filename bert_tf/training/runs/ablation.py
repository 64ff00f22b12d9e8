"""Ablation of pre-training objectives and model sizes (paper, sections 5.1 and 5.2), with those of BERT's descendants.

Each model is pre-trained and fine-tuned several times.
"""

import copy
import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.config import BertConfig, FinetuneConfig, PretrainConfig
from bert_tf.errors import ConfigError
from bert_tf.files import write_json
from bert_tf.metrics.statistics import mean_and_deviation
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.runs.finetuning import finetune
from bert_tf.training.runs.pretraining import pretrain
from bert_tf.training.runs.stage import stage
from bert_tf.training.state.run_manifest import remedy
from bert_tf.types import Json

_SMOKE_STEPS = 4


class Variant(NamedTuple):
    """A row of table 5, or a descendant of BERT.

    Attributes:
        objective: name of the pre-training, part of the folder's name.
        data, model: fields that differ from BERT's PretrainingData and BertConfig.
        task: fields that differ in the ClassificationConfig.
    """

    objective: str
    data: dict[str, Any]
    model: dict[str, Any]
    task: dict[str, Any]


def _left_to_right(**task: str) -> Variant:
    return Variant("left_to_right", {"pairs": "none", "masking": "causal_lm"}, {"attention": "causal"}, task)


# By name, in table 5 if it is there.
VARIANTS = {
    "BERT": Variant("bert", {}, {}, {}),
    "No NSP": Variant("no_nsp", {"pairs": "none"}, {}, {}),
    "LTR & No NSP": _left_to_right(),
    "LTR & No NSP + BiLSTM": _left_to_right(head="bilstm"),
    # Not in table 5: BERT's descendants. RoBERTa's objective is that of "No NSP".
    "ALBERT": Variant(
        "albert", {"pairs": "sop", "masking": "ngram"}, {"shared_layers": True, "embedding_size": 128}, {}
    ),
    "SpanBERT": Variant("spanbert", {"pairs": "none", "masking": "span", "objective": "span_boundary"}, {}, {}),
    "ELECTRA": Variant(
        "electra",
        {"pairs": "none", "objective": "electra"},
        {"activation": "erf_gelu", "pooler_activation": "erf_gelu"},
        {},
    ),
}


class Recipe(NamedTuple):
    """What all variants have in common.

    Attributes:
        pretraining: of BERT; the vocabulary and the model's size are set here.
        finetuning: of the pre-trained models, for classification.
        data_dir: of the fine-tuning.
        write_vocabulary: learns the vocabulary of all models, and writes it to a path.
    """

    pretraining: PretrainConfig
    finetuning: FinetuneConfig
    data_dir: str
    write_vocabulary: Callable[[str], object]


def ablate(
    recipe: Recipe,
    output_dir: str,
    strategy: tf.distribute.Strategy,
    *,
    sizes: Sequence[str],
    seeds: int,
    smoke: bool = False,
    reporter: Reporter = SILENT,
) -> list[Json]:
    """Trains every variant at the first size, and BERT at the others.

    Args:
        output_dir: gets vocab.txt, a folder per training, and results.json; existing runs are resumed.
        sizes: names of `BertConfig.from_name`.
        seeds: runs of each variant, with different seeds for pre-training and fine-tuning.
        smoke: trains a few steps only, which learn nothing.
        reporter: gets the results of each training and of all.

    Returns:
        One dict per row: name, size, parameters, accuracies (one per seed), mean, deviation (of the sample; None for
        one seed), pretraining_losses (validation; not comparable between objectives).
    """
    if not sizes:
        raise ConfigError("no size of model to train; name one, such as tiny")
    for size in sizes:
        BertConfig.from_name(size)
    vocab = os.path.join(output_dir, "vocab.txt")
    if not os.path.exists(vocab):
        recipe.write_vocabulary(vocab)
    wanted = [(name, sizes[0]) for name in VARIANTS] + [("BERT", size) for size in sizes[1:]]
    rows: list[Json] = []
    for name, size in wanted:
        variant, accuracies, losses = VARIANTS[name], [], []
        for seed in range(seeds):
            folder = os.path.join(output_dir, f"{variant.objective}-{size}", f"seed_{seed}")
            pretrained = os.path.join(folder, "pretrained")
            print(f"\n== {name}, {size}, seed {seed}", flush=True)
            end = os.path.join(folder, "-".join(["reviews", *variant.task.values()]))
            pretraining = _pretraining(recipe.pretraining, variant, size, vocab, seed, smoke)
            finetuning = _finetuning(recipe.finetuning, variant, seed, smoke)
            with remedy("choose another --output_dir"):
                make = partial(pretrain, pretraining, pretrained, strategy, reporter=reporter)
                before = stage(pretrained, (), make)
                make = partial(finetune, finetuning, recipe.data_dir, pretrained, end, strategy, reporter=reporter)
                after = stage(end, (), make)
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
    reporter.ablation(output_dir, rows)
    return rows


def _pretraining(
    config: PretrainConfig, variant: Variant, size: str, vocab: str, seed: int, smoke: bool
) -> PretrainConfig:
    settings = copy.deepcopy(config)
    settings.tokenizer.vocab = vocab
    settings.data = dataclasses.replace(settings.data, **variant.data)
    if settings.data.masking == "causal_lm":
        settings.data.max_predictions = settings.data.max_length - 1
    kept = {name: getattr(settings.model, name) for name in ("vocab_size", "dropout", "attention_dropout")}
    model = BertConfig.from_name(size, **kept, **variant.model)
    # As in configs/pretrain/tiny.py: proportional to 1 / sqrt(width), 0.02 at 768.
    settings.model = dataclasses.replace(model, initializer_range=0.02 * (768 / model.hidden_size) ** 0.5)
    settings.train.seed = seed
    if smoke:
        settings.train.steps = settings.train.evaluate_every = _SMOKE_STEPS
    return settings


def _finetuning(config: FinetuneConfig, variant: Variant, seed: int, smoke: bool) -> FinetuneConfig:
    settings = copy.deepcopy(config)
    task: Any = settings.task
    settings.task = dataclasses.replace(task, **variant.task)
    settings.train.seed = seed
    if smoke:
        settings.train.steps = _SMOKE_STEPS
    return settings
