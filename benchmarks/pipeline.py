"""The input pipeline on one core: python benchmarks/pipeline.py --vocab=vocab.txt --output=pipeline.json.

The first table has the stages from raw text, and from shards of the same text, to masked batches; each contains those
below it. Batches are counted with the tokens in them, which are more than those of the text, as random second segments
repeat some. The second table shows growth: the bundled speeches, repeated up to each size, and read by a new process.
"""

import argparse
import gzip
import itertools
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import side_by_side
from side_by_side import ROOT, WORKERS, Contestant, Python

_SENTENCES = 12  # of a document; the speeches are ten times as long as most articles
_FILES = 4
_STAGES = {
    "batches": "masked batches",
    "unmasked": "batches without masks",
    "documents": "documents of token ids",
    "tokens": "tokenization alone",
    "lines": "lines",
}


def write_text(folder: pathlib.Path, size: int) -> None:
    """Writes files of documents, about `size` bytes in all."""
    sentences: list[bytes] = []
    for name in ("train", "heldout"):
        text = gzip.decompress((ROOT / "data/sotu" / f"{name}.txt.gz").read_bytes())
        sentences += [line for line in text.split(b"\n") if line]
    folder.mkdir(parents=True)
    starts = itertools.cycle(range(0, len(sentences), _SENTENCES))
    # Numbered, because `prepare` leaves out repeated documents.
    documents = (
        b"\n".join([b"%d." % number, *sentences[start : start + _SENTENCES]]) + b"\n\n"
        for number, start in enumerate(starts)
    )
    for number in range(_FILES):
        with open(folder / f"{number}.txt", "wb") as file:
            while file.tell() < size // _FILES:
                file.write(next(documents))


def contestant(name: str, **settings: Any) -> Contestant:
    ours = Python(sys.executable, ("bert_tf",))
    return Contestant(name, ours, WORKERS / "pipeline_ours.py", {"batch": 32, "seconds": 2} | settings)


def growth(cases: Sequence[Mapping[str, Any]]) -> str:
    """The Markdown table of growth."""
    lines = [
        "| text | tokens | tokens/s | time per token, of the second row's | peak memory |",
        "|---|---|---|---|---|",
    ]
    rows = [case["rows"][0] for case in cases]
    usual = rows[min(1, len(rows) - 1)].get("rate", 1.0)
    for case, row in zip(cases, rows, strict=True):
        if "rate" not in row:
            lines.append(f"| {case['work']} | {row['error']} | | | |")
            continue
        lines.append(
            f"| {case['work']} | {row['rate']:.3g} | {row['lowest']:.3g} to {row['highest']:.3g} | "
            f"{usual / row['rate']:.2f} | {row['peak_megabytes'] / 1000:.2f} GB |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.flags(parser)
    parser.add_argument("--vocab", required=True, help="vocab.txt of the tokenizer")
    parser.add_argument("--megabytes", type=float, default=20, help="of text, for the stages; 0 leaves them out")
    parser.add_argument("--grow", default="1,10,100", help="sizes in MB for the table of growth; empty leaves it out")
    arguments = parser.parse_args(argv)
    machine, cases, grown = side_by_side.machine(), [], []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.megabytes:
            text, shards = pathlib.Path(folder, "text"), pathlib.Path(folder, "shards")
            write_text(text, int(1e6 * arguments.megabytes))
            subprocess.run(
                [sys.executable, "-m", "bert_tf.prepare", f"--input={text}/*", f"--vocab={arguments.vocab}",
                 f"--output={shards}"], check=True, stdout=sys.stderr,
            )  # fmt: skip
            for source, path in (("text", f"{text}/*"), ("shards", str(shards))):
                stages = [stage for stage in _STAGES if source == "text" or stage not in ("tokens", "lines")]
                listed = [
                    contestant(_STAGES[stage], stage=stage, input=path, vocab=arguments.vocab) for stage in stages
                ]
                cases.append(side_by_side.compare(f"from {source}", listed, rounds=arguments.rounds))
        for size in filter(None, arguments.grow.split(",")):
            text = pathlib.Path(folder, f"{size}MB")
            write_text(text, int(1e6 * float(size)))
            one = contestant("growth", stage="batches", input=f"{text}/*", vocab=arguments.vocab)
            grown.append(side_by_side.compare(f"{size} MB", [one], rounds=arguments.rounds if float(size) < 500 else 1))
    tables = [make(listed) for make, listed in ((side_by_side.table, cases), (growth, grown)) if listed]
    side_by_side.report(arguments, machine, cases + grown, "\n\n".join(tables))


if __name__ == "__main__":
    main()
