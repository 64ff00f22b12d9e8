"""BERT and its descendants on one text in equal time: python benchmarks/family.py --data=DIR --output=runs/family.

With --members=parts, what ModernBERT changed, each part alone and all together, in equal numbers of updates.

Each member is pre-trained, then fine-tuned on every data set that DIR has. `--parallel=13` trains 13 at once, since
models this small do not fill a GPU. The results are added to family.json, one entry per member and seed, and drawn as
family.png. What is in family.json already is not trained again, so more seeds can be added later.

DIR holds data sets: `sst2/` (train, dev and test.tsv), `nsmc/` (ratings_train.txt and ratings_test.txt) and, where
parts of speech are wanted, `ud/` (en_ewt-*.conllu and ko_gsd-*.conllu). From their sentences and the bundled texts, the
first run makes texts.txt and heldout.txt (a sentence a line, an empty line between documents), and vocab.txt of 12,000
pieces.
"""

import argparse
import copy
import dataclasses
import functools
import gzip
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

# Updates of 128 rows of 128 tokens, equal in time on one H100 on which 13 trainings run at once, with XLA and bfloat16.
UPDATES = {"BERT": 3036, "RoBERTa": 3036, "ALBERT": 3128, "SpanBERT": 2484, "ELECTRA": 2162}
# In what a part of ModernBERT differs from RoBERTa: in fields of the model, the data and the training.
_ROTARY = {"positions": "rotary"}
_GATED = {"feed_forward": "gated", "intermediate_size": 688}  # as many weights as 1,024 without a gate
_NORMS = {"norm": "pre", "norm_offset": False, "first_norm": False, "biases": False, "layer_norm_epsilon": 1e-5}
_DEPTH = {"initializer_by_depth": True}
_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "attention_output_dropout": 0.1}
_MASKS = {"masking_rate": 0.3, "max_predictions": 38, "mask_special": True, "validation_masking_rate": 0.15}
_SCHEDULE = {"schedule": "stable", "warmup": 0.02}
_STABLE_ADAMW = {"optimizer": "stable_adamw", "beta_2": 0.98, "weight_decay": 1e-5}
_ARCHITECTURE = {
    **_ROTARY, **_GATED, **_NORMS, **_DEPTH,
    "activation": "erf_gelu", "type_vocab_size": 0, "local_layers": (1, 2), "head_transform": True,
    "pooler_activation": "erf_gelu",
}  # fmt: skip
PARTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "rotary": (_ROTARY, {}, {}),
    "gated": (_GATED, {}, {}),
    "norms": (_NORMS, {}, {}),
    "depth": (_DEPTH, {}, {}),
    "architecture": (_ARCHITECTURE, {}, {}),
    "dropout": (_DROPOUT, {}, {}),
    "masks": ({}, _MASKS, {}),
    "schedule": ({}, {}, _SCHEDULE),
    "StableAdamW": ({}, {}, _STABLE_ADAMW),
    "Muon": ({}, {}, {"optimizer": "muon"}),
    "ModernBERT": (_ARCHITECTURE | _DROPOUT, _MASKS, _SCHEDULE | _STABLE_ADAMW),
    "ELECTRA+rotary": (_ROTARY, {}, {}),
}
GROUPS = {"family": [*UPDATES], "parts": ["RoBERTa", *PARTS, "ELECTRA"]}
# Data set -> its config, folder, files and settings of training.
TASKS: dict[str, tuple[str, str, dict[str, str], dict[str, Any]]] = {
    "SST-2": ("sst2", "sst2", {"validation": "test.tsv"}, {"batch_size": 64, "learning_rate": 2e-4, "epochs": 5}),
    "EWT": (
        "ud_upos",
        "ud",
        {"train": "en_ewt-dev.conllu", "validation": "en_ewt-test.conllu"},
        {"batch_size": 32, "learning_rate": 5e-4, "epochs": 6},
    ),
    "GSD": (
        "ud_upos",
        "ud",
        {"train": "ko_gsd-dev.conllu", "validation": "ko_gsd-test.conllu"},
        {"batch_size": 32, "learning_rate": 5e-4, "epochs": 10},
    ),
    "NSMC": ("nsmc", "nsmc", {}, {"batch_size": 128, "learning_rate": 3e-4, "epochs": 2}),
}

# Of the members, in their order.
COLOURS = (
    "#0072b2", "#c24e00", "#009e73", "#aa4499", "#888888", "#56b4e9", "#e69f00", "#6a3d9a", "#b15928", "#000000",
    "#1b9e77", "#e7298a", "#a6761d",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="the folder with texts and data sets; without it, only draws")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/family"), help="the folder")
    parser.add_argument("--members", default="family", help="family, parts, or names separated by commas")
    parser.add_argument("--tasks", default=",".join(TASKS), help="data sets to fine-tune on, of those that DIR has")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=1, help="trainings at once")
    parser.add_argument("--share", type=float, default=1.0, help="of the updates")
    parser.add_argument("--updates", type=int, default=0, help="of each member; 0: as many as take equal time")
    parser.add_argument("--rows", type=int, default=128, help="of an update")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="the highest learning rate")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # member:seed, in a process of its own
    arguments = parser.parse_args()
    members = GROUPS.get(arguments.members) or arguments.members.split(",")
    for flag, given, known in (
        ("members", members, [*UPDATES, *PARTS]),
        ("tasks", arguments.tasks.split(","), [*TASKS]),
    ):
        if unknown := set(given) - set(known):
            parser.error(f"--{flag}: unknown {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    if arguments.one:
        return train(arguments)
    results = arguments.output / "family.json"
    if arguments.data:
        try:
            make_texts(arguments.data)
        except FileNotFoundError as error:
            parser.error(f"--data={arguments.data}: it lacks {error.filename}")
        wanted = [f"{member}:{seed}" for seed in range(arguments.seeds) for member in members]
        done = {f"{row['member']}:{row['seed']}" for row in read(results)}
        cores = sorted(os.sched_getaffinity(0))
        shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for number in range(arguments.parallel):
            shares.put(cores[number :: arguments.parallel] or cores)
        with ThreadPoolExecutor(arguments.parallel) as pool:
            statuses = pool.map(lambda one: one not in done and start(one, shares), wanted)
            failed = [one for one, status in zip(wanted, statuses, strict=True) if status]
        if failed:
            sys.exit(f"failed: {', '.join(failed)}")
    print(table(read(results)))
    draw(read(results), str(arguments.output / "family.png"))


def make_texts(data: pathlib.Path) -> None:
    """Writes texts.txt, heldout.txt and vocab.txt, where they are absent."""
    # Part -> bundled texts, the files of SST-2 and NSMC, and the most lines of each.
    parts = {"texts": ("train", "train", "train", None), "heldout": ("heldout", "dev", "test", 1000)}
    for name, (bundled, sst2, nsmc, most) in parts.items():
        if (data / f"{name}.txt").exists():
            continue
        files = sorted(ROOT.glob(f"data/*/*{bundled}.txt.gz"))
        reviews = (data / f"nsmc/ratings_{nsmc}.txt").read_text(encoding="utf-8").splitlines()[1:]
        sentences = (data / f"sst2/{sst2}.tsv").read_text(encoding="utf-8").splitlines()
        sources = [
            *(gzip.decompress(file.read_bytes()).decode() for file in files),
            "\n".join(line.partition("\t")[0] for line in sentences),
            "\n\n".join(re.sub(r"(?<=[.!?])\s+", "\n", line.split("\t")[1]) for line in reviews),
        ]
        shortened = ("\n".join(source.splitlines()[:most]) for source in sources)
        (data / f"{name}.txt").write_text("\n\n".join(shortened) + "\n", encoding="utf-8")
    if not (data / "vocab.txt").exists():
        from bert_tf.text import learn_vocabulary

        with (data / "texts.txt").open("rb") as file:
            pieces = learn_vocabulary(file, 12_000, strip_accents=False)
        (data / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")


def start(one: str, shares: "queue.SimpleQueue[list[int]]") -> int:
    """Trains a member in a process of its own, on a free share of the cores; returns its exit status.

    Two trainings of so small models that share two cores are half as fast as with a core each.
    """
    cores = shares.get()
    try:
        pin = functools.partial(os.sched_setaffinity, 0, cores)
        return subprocess.run([sys.executable, __file__, *sys.argv[1:], f"--one={one}"], preexec_fn=pin).returncode
    finally:
        shares.put(cores)


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of family.json, and those that single trainings have left beside it."""
    rows = json.loads(path.read_text()) if path.exists() else []
    for part in sorted(path.parent.glob("*/row.json")):
        row = json.loads(part.read_text())
        if not any((row["member"], row["seed"]) == (other["member"], other["seed"]) for other in rows):
            rows.append(row)
    if rows:
        path.write_text(json.dumps(rows, indent=1))
    return rows


def train(arguments: argparse.Namespace) -> None:
    """Pre-trains and fine-tunes one member."""
    from bert_tf import quiet

    quiet.import_tensorflow()
    from bert_tf.bundled import config
    from bert_tf.training import strategy
    from bert_tf.training.runs.ablation import VARIANTS
    from bert_tf.training.runs.finetuning import finetune
    from bert_tf.training.runs.pretraining import pretrain
    from bert_tf.training.runs.stage import isolated_session

    member, _, seed = arguments.one.partition(":")
    # As in the ablation study.
    base = member.partition("+")[0]
    variant = VARIANTS["No NSP" if base == "RoBERTa" or base in PARTS else base]
    model, data, training = PARTS.get(member, ({}, {}, {}))
    folder = arguments.output / f"{member}-{seed}"
    settings = config("pretrain/korean_mini.py")
    settings.input, settings.validation = str(arguments.data / "texts.txt"), str(arguments.data / "heldout.txt")
    settings.tokenizer.vocab = str(arguments.data / "vocab.txt")
    changed = {"max_length": 128, "max_predictions": 20, "group_size": 100_000, "pairs": "nsp"} | variant.data | data
    settings.data = dataclasses.replace(settings.data, **changed, pack=changed["pairs"] == "none")
    settings.model = dataclasses.replace(settings.model, **variant.model | model)
    updates = max(round((arguments.updates or UPDATES[member]) * arguments.share), 2)
    settings.train = dataclasses.replace(
        settings.train,
        batch_size=arguments.rows,
        steps=updates,
        learning_rate=arguments.rate,
        seed=int(seed),
        evaluate_every=max(updates // 5, 1),
        save_every=100_000,
        **training,
    )
    devices = strategy.create(train=settings.train)
    with isolated_session():
        before = pretrain(settings, str(folder / "pretrained"), devices)
    row: dict[str, Any] = {"member": member, "seed": int(seed)}
    row |= {key: before[key] for key in ("parameters", "steps", "seconds", "evaluations", "final")}
    row["tokens_per_second"] = [point.get("tokens_per_second") for point in before["history"]]
    row["tasks"] = {}
    for name, (path, where, files, training) in TASKS.items():
        if name not in arguments.tasks.split(",") or not (arguments.data / where).is_dir():
            continue
        task = copy.deepcopy(config(f"finetune/{path}.py"))
        task.data = dataclasses.replace(task.data, **files)
        task.train = dataclasses.replace(task.train, **training, seed=int(seed), evaluate_every=100_000)
        task.train.epochs = training["epochs"] * min(arguments.share, 1.0)
        with isolated_session():
            after = finetune(task, str(arguments.data / where), str(folder / "pretrained"), str(folder / name), devices)
        row["tasks"][name] = after["final"]["accuracy"]
    (folder / "row.json").write_text(json.dumps(row))


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a table in Markdown: a line per member, the accuracies of its seeds in order."""
    names = [name for name in TASKS if any(name in row["tasks"] for row in rows)]
    columns = ["member", "weights", "updates", "seconds", "MLM loss", *names]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for member, found in by_member(rows).items():
        accuracies = [", ".join(f"{row['tasks'][name]:.3f}" for row in found if name in row["tasks"]) for name in names]
        losses = ", ".join(f"{row['final']['mlm_loss']:.2f}" for row in found)
        seconds = sum(row["seconds"] for row in found) / len(found)
        first = f"| {member} | {found[0]['parameters'] / 1e6:.1f} M | {found[0]['steps']} | {seconds:.0f} | {losses} "
        lines.append(f"{first}| {' | '.join(accuracies)} |")
    return "\n".join(lines)


def by_member(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Member -> its rows in the order of seeds, for the members that have any."""
    found = {name: [row for row in rows if row["member"] == name] for name in (*UPDATES, *PARTS)}
    return {name: sorted(own, key=lambda row: row["seed"]) for name, own in found.items() if own}


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Writes a PNG: validation loss of masked tokens over time, and the accuracy on each data set, a dot per seed."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    members = by_member(rows)
    names = [name for name in TASKS if any(name in row["tasks"] for row in rows)]
    with rc_context(fname=str(ROOT / "bert_tf/report/plots.mplstyle")):
        figure = Figure(figsize=(10.5, 3.8))
        loss, *others = figure.subplots(1, 1 + len(names), width_ratios=[2.2] + [1] * len(names))
        for number, (member, found) in enumerate(members.items()):
            for row in found:
                points = row["evaluations"]
                share = row["seconds"] / max(points[-1]["step"], 1)
                loss.plot(
                    [point["step"] * share for point in points],
                    [point["mlm_loss"] for point in points],
                    color=COLOURS[number],
                    label=member if row is found[0] else None,
                    linewidth=1.2,
                )
        loss.set(title="Masked tokens: loss", xlabel="seconds of training", ylim=(3.4, 8.0))
        loss.legend(fontsize=9)
        for axes, name in zip(others, names, strict=True):
            for number, found in enumerate(members.values()):
                values = [100 * row["tasks"][name] for row in found if name in row["tasks"]]
                axes.plot([number] * len(values), values, "o", color=COLOURS[number], alpha=0.6)
            axes.set_xticks(range(len(members)), list(members), rotation=60, ha="right")
            axes.set_title(f"{name}, %")
        figure.savefig(path)


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s")
