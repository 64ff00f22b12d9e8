"""Fine-tuning side by side, whole commands by the clock: python benchmarks/finetuning.py --data_dir=sst2 --init=minilm.

A model of Hugging Face's format is fine-tuned for one epoch on the first 2,000 sentences of SST-2, in batches of 32,
and evaluated on the first 400 validation sentences twice, halfway and at the end. Ours is `python -m bert_tf.finetune`;
the peer is a plain script with the Trainer of Transformers. Both save the model; ours also writes checkpoints, curves
and a report.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import side_by_side
from side_by_side import ROOT, WORKERS, Contestant, Python

_SENTENCES = {"train": 2000, "dev": 400}
_BATCH = 32


def write_data(source: str, folder: str) -> None:
    """Writes the first sentences of source/train.tsv and dev.tsv, lines of sentence<TAB>label, to `folder`."""
    for name, count in _SENTENCES.items():
        with open(os.path.join(source, f"{name}.tsv"), encoding="utf-8") as file:
            lines = [line.rstrip("\n") + "\n" for _, line in zip(range(count), file, strict=False)]
        with open(os.path.join(folder, f"{name}.tsv"), "w", encoding="utf-8") as file:
            file.writelines(lines)


def contestants(data: str, arguments: argparse.Namespace) -> list[Contestant]:
    """Ours first, in each dtype, then the peers."""
    script = WORKERS / "finetuning_command.py"
    ours = Python(sys.executable, ("bert_tf",))
    torch = Python(arguments.torch_python, ("torch", "transformers", "accelerate"), ".venv-torch/.ready")
    sentences = round(arguments.epochs * _SENTENCES["train"])
    shared = {"metric": "accuracy", "least": arguments.accuracy, "sentences": sentences, "batch": _BATCH}
    half = -(-sentences // _BATCH // 2)
    listed = []
    for dtype in arguments.dtypes.split(","):
        command = [
            sys.executable, "-m", "bert_tf.finetune", f"--config={ROOT / 'configs' / 'finetune' / 'sst2.py'}",
            f"--data_dir={data}", f"--init={arguments.init}", "--model_dir={output}",
            f"--config.train.epochs={arguments.epochs:g}", f"--config.train.batch_size={_BATCH}",
            "--config.train.learning_rate=5e-5",
            f"--config.train.evaluate_every={half}", f"--config.train.dtype={dtype}",
        ]  # fmt: skip
        settings = shared | {"command": command, "imports": "tensorflow", "kind": "ours"}
        listed.append(Contestant(f"bert_tf, {dtype}", ours, script, settings))
    for dtype in arguments.dtypes.split(","):
        for how, flags in (
            ("", []),
            (", by length", ["--by_length"]),
            (", by length, torch.compile", ["--by_length", "--compile"]),
        ):
            command = [
                torch.executable, str(WORKERS / "finetuning_trainer.py"), f"--data_dir={data}",
                f"--init={arguments.init}", "--output={output}", f"--epochs={arguments.epochs:g}", f"--dtype={dtype}",
                f"--eval_steps={half}", *flags,
            ]  # fmt: skip
            settings = shared | {"command": command, "imports": "torch, transformers", "kind": "trainer"}
            listed.append(Contestant(f"Transformers, Trainer{how}, {dtype}", torch, script, settings))
    return [each for each in listed if each.name.startswith("bert_tf") or re.search(arguments.only, each.name)]


def table(cases: Sequence[Mapping[str, Any]], metric: str = "accuracy", unit: str = "sentences") -> str:
    """The Markdown table: medians, with the lowest and highest in brackets."""
    lines = [f"| | whole command | steady | {metric} | peak memory |", "|---|---|---|---|---|"]
    for row in cases[0]["rows"]:
        if "rate" not in row:
            lines.append(f"| {row['name']} | {row.get('error') or row['left_out']} | | | |")
            continue
        seconds, steady, reached = (
            [each[key] for each in row["rounds"]] for key in ("seconds", "sentences_per_second", metric)
        )
        lines.append(
            f"| {row['name']} | {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f}) | "
            f"{statistics.median(steady):.3g} {unit}/s ({min(steady):.3g} to {max(steady):.3g}) | "
            f"{statistics.median(reached):.3f} | {row['peak_megabytes'] / 1000:.1f} GB |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.flags(parser, rounds=3)
    parser.add_argument("--data_dir", required=True, help="SST-2: train.tsv and dev.tsv with sentence<TAB>label")
    parser.add_argument("--init", required=True, help="folder of a small BERT in Hugging Face's format, such as MiniLM")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--dtypes", default="bfloat16,float32", help="list of compute dtypes")
    parser.add_argument("--accuracy", type=float, default=0.75, help="a run that ends below it fails")
    arguments = parser.parse_args(argv)
    machine = side_by_side.machine()
    with tempfile.TemporaryDirectory() as data:
        write_data(arguments.data_dir, data)
        case = side_by_side.compare("fine-tuning", contestants(data, arguments), rounds=arguments.rounds)
    side_by_side.report(arguments, machine, [case], table([case]))


if __name__ == "__main__":
    main()
