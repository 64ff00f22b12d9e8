"""Tokenization side by side, each on one core: python benchmarks/tokenization.py --texts=FILE --vocabulary=vocab.txt.

The texts, one a line, are tokenized in batches and, with --long, as one text of each size. The vocabulary's name says
what is compared: vocab.txt WordPiece (uncased), vocab.json with merges.txt beside it byte-level BPE, NAME.model
SentencePiece. Seconds are those of the processor. Texts whose ids are not those of the reference are counted: Hugging
Face's tokenizer or, for SentencePiece, the sentencepiece library.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import side_by_side
from side_by_side import WORKERS, Contestant, Python

_OURS = Python(sys.executable, ("bert_tf", "tensorflow_text", "tokenizers", "sentencepiece"))
_HUGGING_FACE = ("Hugging Face tokenizers (Rust)", "tokenizers")
_KERASHUB = ("KerasHub", "kerashub")
# Of each ending of a vocabulary's name, the peers: name and what the worker calls it. The first one is the reference.
_PEERS = {
    ".txt": (
        _HUGGING_FACE,
        ("TF Text, FastBertTokenizer", "FastBertTokenizer"),
        ("TF Text, BertTokenizer", "BertTokenizer"),
    ),
    ".json": (_HUGGING_FACE, _KERASHUB),
    ".model": (("sentencepiece (C++)", "sentencepiece"), _HUGGING_FACE, _KERASHUB),
}


def contestants(settings: dict[str, Any], arguments: argparse.Namespace) -> list[Contestant]:
    """Ours first, then the peers."""
    kerashub = Python(arguments.kerashub_python, ("keras_hub",), ".venv-kerashub/.ready")
    peers = [peer for peer in _PEERS[Path(settings["vocabulary"]).suffix] if re.search(arguments.only, peer[0])]
    return [
        Contestant(name, kerashub if how == "kerashub" else _OURS, WORKERS / "tokenization.py", settings | {"how": how})
        for name, how in (("bert_tf", "bert_tf"), *peers)
    ]


def count_differences(case: dict[str, Any], reference: str) -> None:
    """Replaces the checksums of all contestants by the number of texts that differ from the reference's, if it ran."""
    checksums = {row["name"]: row["ready"].pop("checksums") for row in case["rows"] if "ready" in row}
    expected = checksums.get(reference)
    for row in case["rows"]:
        if expected and "ready" in row:
            pairs = zip(checksums[row["name"]], expected, strict=True)
            row["ready"]["texts_that_differ"] = sum(found != wanted for found, wanted in pairs)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.flags(parser)
    parser.add_argument("--texts", required=True, nargs="+", help="files with a text in each line; cases for each")
    parser.add_argument("--vocabulary", required=True, nargs="+", help="vocab.txt, vocab.json or .model files")
    parser.add_argument("--batch", type=int, nargs="*", default=[1000], help="texts in a batch; a case for each")
    parser.add_argument("--long", type=float, nargs="*", default=[], help="a case for one text of so many MB, of ours")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    arguments = parser.parse_args(argv)
    if unknown := [path for path in arguments.vocabulary if Path(path).suffix not in _PEERS]:
        parser.error(f"--vocabulary={unknown[0]}: expected a name that ends in {', '.join(_PEERS)}")
    machine, cases = side_by_side.machine(), []
    for vocabulary in arguments.vocabulary:
        for texts in arguments.texts:
            settings = {
                "texts": str(Path(texts).resolve()),
                "vocabulary": str(Path(vocabulary).resolve()),
                "seconds": arguments.seconds,
            }
            name = f"{Path(texts).stem}, {Path(vocabulary).name}"
            sizes = [(f"batches of {size:,}", {"batch": size}) for size in arguments.batch]
            sizes += [(f"a text of {size:g} MB", {"megabytes": size}) for size in arguments.long]
            for what, size in sizes:
                listed = contestants(settings | size, arguments)
                listed = listed[: 1 if "megabytes" in size else None]
                case = side_by_side.compare(f"{name}, {what}", listed, rounds=arguments.rounds)
                count_differences(case, _PEERS[Path(vocabulary).suffix][0][0])
                cases.append(case)
    for case in cases:
        for row in case["rows"]:
            if "texts_that_differ" in row.get("ready", {}):
                ready = row["ready"]
                print(f"{case['work']}: {row['name']}: {ready['texts_that_differ']} of {ready['texts']} texts differ")
    side_by_side.report(arguments, machine, cases)


if __name__ == "__main__":
    main()
