"""Few labels: `TextClassifier.fit(few_labels=True)` beside ordinary fine-tuning and a frozen encoder.

    python benchmarks/few_labels.py --data_dir=ENGLISH --init=MINILM --output=few_labels.jsonl

ENGLISH has sst2/{train,dev}.tsv, snips/{train,test}/{seq.in,label} and clinc150/data_full.json. So many examples of
each class are drawn at random from the training file; all three methods learn from the same ones, and are measured on
the whole validation file. A row is written when it is known, and a second run goes on.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import bert_tf

Examples = list[tuple[str, str]]  # (text, label)
# Arguments of `fit`, with the updates of UPDATES where they name none. Without updates to speak of, few labels are a
# logistic regression on the vectors as they are.
METHODS: dict[str, dict[str, Any]] = {
    "few labels": {"few_labels": True},
    "fine-tuning": {},
    "frozen": {"few_labels": True, "steps": 1, "learning_rate": 1e-12},
}
UPDATES = {"sst2": 60, "snips": 60, "clinc150": 300}  # of 32 examples; clinc150 has 150 classes, snips seven


def _tsv(path: pathlib.Path) -> Examples:
    rows = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]
    return [(text, label) for text, label in rows]


def _snips(folder: pathlib.Path) -> Examples:
    texts, labels = ((folder / name).read_text(encoding="utf-8").splitlines() for name in ("seq.in", "label"))
    return list(zip(texts, labels, strict=True))


def read(folder: pathlib.Path, name: str) -> tuple[Examples, Examples]:
    """Training and validation examples."""
    if name == "clinc150":
        parts = json.loads((folder / name / "data_full.json").read_text(encoding="utf-8"))
        return [tuple(one) for one in parts["train"]], [tuple(one) for one in parts["val"]]
    if name == "snips":
        return _snips(folder / name / "train"), _snips(folder / name / "test")
    return _tsv(folder / name / "train.tsv"), _tsv(folder / name / "dev.tsv")


def drawn(examples: Examples, size: int, seed: int) -> Examples:
    """So many random examples of each class."""
    by_class: dict[str, list[str]] = {}
    for text, label in examples:
        by_class.setdefault(label, []).append(text)
    generator = random.Random(seed)
    return [(text, label) for label in sorted(by_class) for text in generator.sample(by_class[label], size)]


@dataclasses.dataclass
class Row:
    """A result."""

    data: str
    size: int
    seed: int
    method: str
    accuracy: float
    seconds: float


def measure(init: str, few: Examples, validation: Examples, arguments: dict[str, Any]) -> tuple[float, float]:
    """Accuracy, and seconds of `fit`."""
    model = bert_tf.TextClassifier.from_pretrained(init, max_length=64)
    start = time.perf_counter()
    model.fit(*map(list, zip(*few, strict=True)), verbose=False, **arguments)
    seconds = time.perf_counter() - start
    return model.evaluate(*map(list, zip(*validation, strict=True)), batch_size=128)["accuracy"], seconds


def table(rows: Sequence[Row], methods: Sequence[str]) -> str:
    """Mean accuracy and its standard deviation over the draws that all these methods have."""
    found: dict[tuple[str, int], dict[int, dict[str, float]]] = collections.defaultdict(
        lambda: collections.defaultdict(dict)
    )
    for row in rows:
        found[row.data, row.size][row.seed][row.method] = row.accuracy
    lines = [f"| data | examples per class | draws | {' | '.join(methods)} |", "|---|---|---|" + "---|" * len(methods)]
    for (data, size), by_seed in found.items():
        draws = [one for one in by_seed.values() if {*methods} <= one.keys()]
        if draws:
            values = [[one[name] for one in draws] for name in methods]
            spreads = [statistics.stdev(one) if len(one) > 1 else 0 for one in values]
            means = map(statistics.mean, values)
            cells = [f"{mean:.3f} ± {spread:.3f}" for mean, spread in zip(means, spreads, strict=True)]
            lines.append(f"| {data} | {size} | {len(draws)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--init", required=True, help="folder of a sentence encoder, such as MiniLM")
    parser.add_argument("--output", required=True, help="file of JSON lines")
    parser.add_argument("--data", default="sst2,snips,clinc150")
    parser.add_argument("--sizes", default="4,8,16,64", help="examples per class")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--methods", default=",".join(METHODS))
    arguments = parser.parse_args(argv)
    rows, methods = list[Row](), arguments.methods.split(",")
    if os.path.exists(arguments.output):
        with open(arguments.output, encoding="utf-8") as file:
            rows = [Row(**json.loads(line)) for line in file]
    known = {(row.data, row.size, row.seed, row.method) for row in rows}
    for seed in range(arguments.draws):
        for data in arguments.data.split(","):
            training, validation = read(pathlib.Path(arguments.data_dir), data)
            for size in map(int, arguments.sizes.split(",")):
                few = drawn(training, size, seed)
                for method in methods:
                    if (data, size, seed, method) in known:
                        continue
                    accuracy, seconds = measure(
                        arguments.init, few, validation, {"steps": UPDATES[data], "seed": seed} | METHODS[method]
                    )
                    rows.append(Row(data, size, seed, method, round(accuracy, 4), round(seconds, 1)))
                    with open(arguments.output, "a", encoding="utf-8") as file:
                        file.write(json.dumps(dataclasses.asdict(rows[-1])) + "\n")
    print(table(rows, methods))


if __name__ == "__main__":
    main()
