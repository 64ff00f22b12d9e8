"""Tokenization side by side, each on one core: python benchmarks/tokenization.py --texts=FILE --vocabulary=vocab.txt.

The texts, one a line, are tokenized in batches of 1,000, uncased. Texts whose ids are not those of Hugging Face's
tokenizer, which follows google-research/bert, are counted.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import side_by_side
from side_by_side import WORKERS, Contestant, Python

_OTHER = "Hugging Face tokenizers (Rust)"


def contestants(settings: dict[str, Any], arguments: argparse.Namespace) -> list[Contestant]:
    """Ours first, then the peers."""
    ours = Python(sys.executable, ("bert_tf", "tensorflow_text"))
    torch = Python(arguments.torch_python, ("tokenizers",), ".venv-torch/.ready")
    listed = [
        ("bert_tf", ours, "bert_tf"),
        (_OTHER, torch, "tokenizers"),
        ("TF Text, FastBertTokenizer", ours, "FastBertTokenizer"),
        ("TF Text, BertTokenizer", ours, "BertTokenizer"),
    ]
    return [
        Contestant(name, python, WORKERS / "tokenization.py", settings | {"how": how})
        for name, python, how in listed
        if how == "bert_tf" or re.search(arguments.only, name)
    ]


def count_differences(case: dict[str, Any]) -> None:
    """Replaces the checksums of all contestants by the number of texts that differ from Hugging Face's, if it ran."""
    checksums = {row["name"]: row["ready"].pop("checksums") for row in case["rows"] if "ready" in row}
    expected = checksums.get(_OTHER)
    for row in case["rows"]:
        if expected and "ready" in row:
            pairs = zip(checksums[row["name"]], expected, strict=True)
            row["ready"]["texts_that_differ"] = sum(found != wanted for found, wanted in pairs)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.flags(parser)
    parser.add_argument("--texts", required=True, nargs="+", help="files with a text in each line; a case for each")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt of an uncased model")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    arguments = parser.parse_args(argv)
    machine, cases = side_by_side.machine(), []
    for texts in arguments.texts:
        settings = {
            "texts": str(Path(texts).resolve()),
            "vocabulary": str(Path(arguments.vocabulary).resolve()),
            "seconds": arguments.seconds,
        }
        case = side_by_side.compare(Path(texts).stem, contestants(settings, arguments), rounds=arguments.rounds)
        count_differences(case)
        cases.append(case)
        for row in case["rows"]:
            if "texts_that_differ" in row.get("ready", {}):
                ready = row["ready"]
                print(f"{case['work']}: {row['name']}: {ready['texts_that_differ']} of {ready['texts']} texts differ")
    side_by_side.report(arguments, machine, cases)


if __name__ == "__main__":
    main()
