"""Long documents, windows against one input: python benchmarks/long_documents.py --init=MODEL --output=long.json.

Documents are consecutive passages of the bundled addresses, which are in order of time; the label is the period in
which an address was given, one of eight. The addresses of the test part are whole ones, one of each period. MODEL is an
encoder for the longest input, such as ModernBERT. Each way of reading is trained on the same documents, and a row is
written when it is known; a second run goes on.
"""

import argparse
import gzip
import json
import pathlib
import statistics
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
# Every 15th address is held out, from the eighth on (data/README.md): the middle one of each period.
PERIOD = 14
Documents = tuple[list[str], list[str]]  # texts, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", required=True, help="the encoder")
    parser.add_argument("--output", default="long_documents.json", help="the JSON file")
    parser.add_argument("--words", type=int, default=1500, help="of a document")
    parser.add_argument("--tokens", type=int, default=2048, help="of the longest input")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    training, test = (read(name, arguments.words) for name in ("train", "heldout"))
    ways = {
        "the first 512 tokens": {"max_length": 512},
        "windows of 128": {"max_length": 128, "long_texts": "window"},
        "windows of 512": {"max_length": 512, "long_texts": "window"},
        f"one input of {arguments.tokens}": {"max_length": arguments.tokens},
    }
    print(f"{len(training[0])} documents for training, {len(test[0])} for the test", flush=True)
    output = pathlib.Path(arguments.output)
    rows: list[dict[str, Any]] = json.loads(output.read_text()) if output.exists() else []
    known = {(row["way"], row["seed"]) for row in rows}
    for name, settings in ways.items():
        for seed in range(arguments.seeds):
            if (name, seed) in known:
                continue
            row = {"way": name, "seed": seed, **measure(arguments, settings, seed, training, test)}
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            rows.append(row)
            output.write_text(json.dumps(rows, indent=1))
    print(table(rows))


def read(name: str, words: int) -> Documents:
    """Passages of about as many words of each address, without what is left at its end."""
    with gzip.open(ROOT / "data" / "sotu" / f"{name}.txt.gz", "rt", encoding="utf-8") as file:
        addresses = file.read().strip().split("\n\n")
    texts, labels = [], []
    for number, address in enumerate(addresses):
        period = number if name == "heldout" else min(number // PERIOD, 7)
        passage: list[str] = []
        for sentence in address.split("\n"):
            passage += sentence.split()
            if len(passage) >= words:
                texts.append(" ".join(passage))
                labels.append(str(period))
                passage = []
    return texts, labels


def measure(
    arguments: argparse.Namespace, settings: dict[str, Any], seed: int, training: Documents, test: Documents
) -> dict[str, Any]:
    """Accuracy on the test, and seconds of training and of prediction."""
    import bert_tf

    model = bert_tf.TextClassifier.from_pretrained(arguments.init, **settings)
    began = time.perf_counter()
    schedule = {"batch_size": 8, "epochs": arguments.epochs, "learning_rate": 3e-4, "dtype": "auto", "seed": seed}
    model.fit(*training, verbose=False, **schedule)
    trained = time.perf_counter()
    found = model.evaluate(*test)["accuracy"]
    ended = time.perf_counter()
    return {
        "accuracy": round(found, 4),
        "training_seconds": round(trained - began, 1),
        "test_seconds": round(ended - trained, 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown: accuracies in the order of the seeds, medians of seconds."""
    lines = ["| input | accuracy | training, s | test, s |", "|---|---|---|---|"]
    for way in dict.fromkeys(row["way"] for row in rows):
        found = [row for row in rows if row["way"] == way]
        accuracies = ", ".join(f"{row['accuracy']:.3f}" for row in found)
        times = (statistics.median(row[key] for row in found) for key in ("training_seconds", "test_seconds"))
        lines.append(f"| {way} | {accuracies} | {' | '.join(f'{seconds:.0f}' for seconds in times)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
