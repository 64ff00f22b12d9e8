"""Compares pre-training on one replica, on several, and in micro-batches: are the runs equal?

    python -m tests.training.equality FOLDER

prints the table of tests/README.md ("Replicas, workers and micro-batches"), with 20 updates per run; run the same
command again to resume. Nothing is simulated: the bundled corpus goes through the real pipeline, the runs are complete,
and their last checkpoints are compared.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import pretraining_dataset
from bert_tf.text import Tokenizer, learn_vocabulary, write_vocabulary
from bert_tf.text.learning import read_lines
from bert_tf.training.runs import pretraining
from bert_tf.training.strategy import create
from tests.training.processes import cluster, finish, start, virtual_devices

CORPUS = bundled("data/sotu/heldout.txt.gz")
# Cases of runs, and changes of their settings: in `train`, except those of the data.
CASES = {
    "modern": {},
    "google": {"recipe": "google"},
    # Cases with code of their own for split batches.
    "LAMB, layer-wise rates": {"optimizer": "lamb", "layer_decay": 0.8, "learning_rate": 1e-3},
    "RAdam, remat": {"optimizer": "radam", "remat": True},
    "spans masked on the host": {"masking": "span"},
    "spans masked on the device": {"masking": "span", "mask_on": "device"},
    "packed rows, remat": {"pack": True, "remat": True},
    "ELECTRA": {"objective": "electra", "pairs": "none"},
    "ELECTRA, masked on the device": {"objective": "electra", "pairs": "none", "mask_on": "device"},
    "span boundaries": {"objective": "span_boundary", "pairs": "none", "masking": "span"},
    "bfloat16": {"dtype": "bfloat16"},
    "dropout": {"dropout": 0.1},
}
CURVES = ("loss", "mlm_accuracy", "nsp_accuracy", "gradient_norm")
DATA = ("service", "service_workers", "objective", "pairs", "mask_on", "masking", "pack")
# Name of the strategy, and its number of devices or worker processes.
LAYOUTS = {"1 replica": ("one_device", 1), "2 replicas": ("mirrored", 2), "2 workers": ("multi_worker", 2)}
# (case, layout, micro-batches) -> the run that it must equal. Google's recipe normalizes and clips per shard, so its
# runs are equal if they have the same number of shards.
ONE = ("1 replica", 1)
ROWS = {
    ("modern", "1 replica", 2): ("modern", *ONE),
    ("modern", "2 replicas", 1): ("modern", *ONE),
    ("modern", "2 replicas", 2): ("modern", *ONE),
    ("modern", "2 workers", 1): ("modern", *ONE),
    ("modern", "2 workers", 2): ("modern", *ONE),
    ("google", "2 replicas", 1): ("google", "1 replica", 2),
    ("google", "2 workers", 1): ("google", "1 replica", 2),
    ("google", "2 replicas", 2): ("google", "1 replica", 4),
    ("google", "2 workers", 2): ("google", "1 replica", 4),
    ("LAMB, layer-wise rates", "2 replicas", 1): ("LAMB, layer-wise rates", *ONE),
    ("RAdam, remat", "2 replicas", 1): ("RAdam, remat", *ONE),
    ("spans masked on the device", "2 replicas", 1): ("spans masked on the host", *ONE),
    ("spans masked on the device", "1 replica", 2): ("spans masked on the host", *ONE),
    ("packed rows, remat", "2 replicas", 1): ("packed rows, remat", *ONE),
    ("ELECTRA", "2 replicas", 2): ("ELECTRA", *ONE),
    ("ELECTRA, masked on the device", "2 replicas", 1): ("ELECTRA", *ONE),
    ("span boundaries", "2 replicas", 2): ("span boundaries", *ONE),
    ("bfloat16", "2 replicas", 1): ("bfloat16", *ONE),
    # Each shard has its own dropout masks.
    ("dropout", "2 replicas", 1): ("dropout", "1 replica", 2),
}


def learn(folder):
    """Writes the vocabulary shared by all runs below `folder`."""
    write_vocabulary(os.path.join(folder, "vocab.txt"), learn_vocabulary(read_lines(CORPUS), 2000))


def config(folder, *, steps=20, corpus=CORPUS, dropout=0.0, **changes):
    """Three layers, so that errors can grow on their way; short and long sequences in one batch."""
    data = {name: changes.pop(name) for name in DATA if name in changes}
    train = {"batch_size": 16, "steps": steps, "learning_rate": 1e-4, "dtype": "float32", "log_every": 1} | changes
    return PretrainConfig(
        input=corpus,
        tokenizer=TokenizerConfig(vocab=os.path.join(folder, "vocab.txt")),
        model=BertConfig(
            vocab_size=0, num_layers=3, hidden_size=64, num_heads=4, intermediate_size=256,
            max_position_embeddings=128, dropout=dropout, attention_dropout=dropout, initializer_range=0.05,
        ),
        data=PretrainingData(**({"short_sequence_rate": 0.5} | data)),
        train=TrainConfig(**train),
    )  # fmt: skip


def folder_of(folder, case, layout, accumulation):
    """Folder of a run."""
    return os.path.join(folder, f"{case}, {layout}, {accumulation}")


def run(folder, wanted, **changes):
    """Runs each (case, layout, micro-batches); those with the same layout in one process, or in one per worker."""
    for layout, (strategy, devices) in LAYOUTS.items():
        names = [f"{case}:{count}" for case, of, count in wanted if of == layout]
        environments = cluster(devices) if strategy == "multi_worker" else [{}]
        if names:
            arguments = (folder, layout, json.dumps(changes), *names)
            started = [start("tests.training.equality", *arguments, environment=one) for one in environments]
            finish(*started, timeout=3600)


def pretrain(folder, layout, changes, *names):
    """Entry point of a process: pre-trains each CASE:MICRO-BATCHES."""
    name, devices = LAYOUTS[layout]
    if name == "mirrored":
        virtual_devices(devices)
    strategy = create(name)
    assert strategy.num_replicas_in_sync == devices
    for case, accumulation in (name.split(":") for name in names):
        settings = {"accumulation": int(accumulation)} | CASES[case] | json.loads(changes)
        pretraining.pretrain(config(folder, **settings), folder_of(folder, case, layout, accumulation), strategy)


def outcome(folder):
    """Outcome of the run in `folder`: dict of "weights" and "slots", dicts of arrays, and the curves, arrays."""
    reader = tf.train.load_checkpoint(os.path.join(folder, "checkpoints"))
    tensors = {path: reader.get_tensor(path) for path in reader.get_variable_to_shape_map()}
    with open(os.path.join(folder, "results.json")) as file:
        points = json.load(file)["history"]
    kinds = {kind: {p: v for p, v in tensors.items() if p.startswith(f"{kind}.")} for kind in ("weights", "slots")}
    assert all(kinds.values())
    return kinds | {name: np.array([point.get(name, 0.0) for point in points]) for name in CURVES}


def differences(ones, others):
    """dict kind -> largest relative difference.

    For a weight or slot, relative to the largest value of its tensor: rounding errors depend on the size of the terms
    of a sum, not on the sum. For each point of a curve, relative to that point.
    """
    tensors = {
        kind: max(
            np.abs(others[kind][path] - value).max() / max(np.abs(value).max(), 1e-30)
            for path, value in ones[kind].items()
        )
        for kind in ("weights", "slots")
    }
    assert all(ones[kind].keys() == others[kind].keys() for kind in tensors)
    return tensors | {name: _relative(ones[name], others[name]) for name in CURVES}


def _relative(ones, others):
    # If nothing is correct at first, an accuracy is 0: then the other one must be 0, too.
    return np.max(np.abs(others - ones) / np.maximum(np.abs(ones), 1e-30))


def masks(folder, microbatches, case="modern"):
    """int [updates, microbatches], the number of masked tokens in each microbatch of the batches of a case."""
    settings = config(folder, **CASES[case])
    batches = pretraining_dataset(
        Corpus([CORPUS], Tokenizer(settings.tokenizer.vocab), settings.data),
        seed=settings.train.seed,
        epoch=0,
        batch_size=settings.train.batch_size,
    )
    weights = np.stack([batch["masked_lm_weights"] for batch in batches.take(settings.train.steps)])
    return weights.reshape(len(weights), microbatches, -1).sum(-1).astype(int)


def compare(folder, row):
    """`differences` between the run of a row and the one that it must equal."""
    return differences(*(outcome(folder_of(folder, *one)) for one in (ROWS[row], row)))


def main(folder):
    """Makes all runs and prints the table."""
    if not os.path.exists(os.path.join(folder, "vocab.txt")):
        learn(folder)
    run(folder, list(dict.fromkeys([*ROWS.values(), *ROWS])))
    print("| run | compared with |", " | ".join(("weights", "slots", *CURVES)), "|")
    print("|---|---|", "---|" * (2 + len(CURVES)), sep="")
    for row, reference in ROWS.items():
        named = [f"{case}: {layout}" + f" x {count}" * (count > 1) for case, layout, count in (row, reference)]
        print(
            "|",
            " | ".join([*named, *(f"{value:.1e}" if value else "0" for value in compare(folder, row).values())]),
            "|",
        )
    halves = ", ".join(f"{one} and {two}" for one, two in masks(folder, 2)[:5])
    print(f"\nMasks in the halves of the first batches: {halves}")


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else pretrain(*sys.argv[1:])
