"""Start-up by the clock: python benchmarks/startup.py --init=hf://OWNER/NAME --output=startup.json.

Whole commands, from the start of the process: `import tensorflow` alone, then what this project's programs take until
they are done with one row, one model or their first update. Times are seconds per run; each command starts anew in each
round.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import side_by_side
from side_by_side import ROOT, WORKERS, Contestant, Python

_SENTENCES = 2000
_LOAD = "import bert_tf; bert_tf.load({init!r})"
_MAKE = """
import sys
from bert_tf import quiet
quiet.import_tensorflow()
from bert_tf.checkpoints import directory, load
from bert_tf.tasks.classification import Classification
from bert_tf.config import BertConfig
from bert_tf.model.encoder import BertEncoder
encoder, tokenizer = load(sys.argv[1], pooler=True)
for name, encoder in (("small", encoder), ("base", None)):
    encoder = encoder or BertEncoder(BertConfig(vocab_size=tokenizer.vocab_size), dtype="float32")
    task = Classification(tokenizer, labels=["negative", "positive"])
    directory.save(f"{sys.argv[2]}/{name}", task.build(encoder), encoder, task)
"""
_CONFIG = """
from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TrainConfig

def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(max_length=64),
        data=ExampleData(train="train.tsv", validation="dev.tsv", text="sentence", label="label"),
        train=TrainConfig(batch_size=32, epochs=1, learning_rate=3e-5, log_every=1),
    )
"""


def table(cases: Sequence[Mapping[str, Any]]) -> str:
    """The Markdown table: seconds, and seconds beyond `import tensorflow`."""
    lines = ["| from the start of the process | median | lowest to highest | beyond `import tensorflow` |"]
    lines.append("|---|---|---|---|")
    for case in cases:
        first = case["rows"][0].get("rate")
        for row in case["rows"]:
            if "rate" not in row:
                lines.append(f"| {row['name']} | {row.get('error') or row['left_out']} | | |")
                continue
            beyond = f"{1 / row['rate'] - 1 / first:.1f} s" if first else ""
            lines.append(
                f"| {row['name']} | {1 / row['rate']:.1f} s | {1 / row['highest']:.1f} to {1 / row['lowest']:.1f} s "
                f"| {beyond} |"
            )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.flags(parser)
    parser.add_argument("--init", required=True, help="checkpoint of MiniLM, or of another small model")
    arguments = parser.parse_args(argv)
    machine = side_by_side.machine()
    python = Python(sys.executable, ("bert_tf",))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        subprocess.run([sys.executable, "-c", _MAKE, arguments.init, temporary], check=True, stdout=sys.stderr)
        (folder / "one.jsonl").write_text(json.dumps({"sentence": "A fine film."}) + "\n")
        (folder / "config.py").write_text(_CONFIG)
        (folder / "data").mkdir()
        reviews = (ROOT / "data/reviews/train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / "data/train.tsv").write_text("".join(reviews[: _SENTENCES + 1]), encoding="utf-8")
        (folder / "data/dev.tsv").write_text("".join(reviews[:1] + reviews[-400:]), encoding="utf-8")

        def command(name: str, *words: str, until: str = "") -> Contestant:
            settings = {"command": [sys.executable, *words], "until": until}
            return Contestant(name, python, WORKERS / "command.py", settings)

        listed = [
            command("import tensorflow", "-c", "import tensorflow"),
            command(
                "predict, one row",
                *("-m", "bert_tf.predict", f"--model_dir={folder}/small"),
                *(f"--data_dir={folder}/one.jsonl", "--output={output}.jsonl"),
            ),
            command("export", "-m", "bert_tf.export", f"--model_dir={folder}/small", "--export_dir={output}"),
            command("loading base", "-c", _LOAD.format(init=f"{folder}/base")),
            command(
                "finetune, first update",
                *("-m", "bert_tf.finetune", f"--config={folder}/config.py", f"--data_dir={folder}/data"),
                *(f"--init={arguments.init}", "--model_dir={output}"),
                until="{output}/history.jsonl",
            ),
        ]
        cases = [side_by_side.compare("start-up", listed, rounds=arguments.rounds)]
    side_by_side.report(arguments, machine, cases, table(cases))


if __name__ == "__main__":
    main()
