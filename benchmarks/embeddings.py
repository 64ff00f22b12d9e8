"""Sentence encoders trained side by side: python benchmarks/embeddings.py --data_dir=SQUAD --init=MINILM.

A sentence encoder learns from questions and their paragraphs with in-batch negatives, and finds the paragraphs of
validation questions twice, halfway and at the end. Timed are whole commands. Ours is `python -m bert_tf.finetune`; the
peer is a plain script with the Trainer of sentence-transformers. Both save the model.
"""

import argparse
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Sequence

import finetuning
import side_by_side
from side_by_side import ROOT, WORKERS, Contestant, Python

METRIC = "mrr@10"


def write_data(source: str, folder: str, counts: dict[str, int]) -> None:
    """Writes random pairs of source/ROLE-v1.1.json, for each role as many as `counts` says, to folder/ROLE.jsonl."""
    for role, count in counts.items():
        with open(os.path.join(source, f"{role}-v1.1.json"), encoding="utf-8") as file:
            articles = json.load(file)["data"]
        pairs = [
            {"query": question["question"], "positive": paragraph["context"]}
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
        with open(os.path.join(folder, f"{role}.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(pair) + "\n" for pair in random.Random(0).sample(pairs, count))


def contestants(data: str, arguments: argparse.Namespace) -> list[Contestant]:
    """Ours first, in each dtype, then the peer."""
    script = WORKERS / "finetuning_command.py"
    ours = Python(sys.executable, ("bert_tf",))
    torch = Python(arguments.torch_python, ("torch", "sentence_transformers", "datasets"), ".venv-torch/.ready")
    shared = {"metric": METRIC, "least": arguments.least, "sentences": arguments.pairs, "batch": arguments.batch_size}
    half = -(-arguments.pairs // arguments.batch_size // 2)
    listed = []
    for dtype in arguments.dtypes.split(","):
        command = [
            sys.executable, "-m", "bert_tf.finetune", f"--config={ROOT / 'configs' / 'finetune' / 'embeddings.py'}",
            f"--data_dir={data}", f"--init={arguments.init}", "--model_dir={output}", "--config.train.epochs=1",
            f"--config.train.batch_size={arguments.batch_size}", f"--config.train.learning_rate={arguments.rate}",
            f"--config.task.max_length={arguments.max_length}", f"--config.train.evaluate_every={half}",
            f"--config.train.dtype={dtype}", f"--config.train.seed={arguments.seed}",
        ]  # fmt: skip
        settings = shared | {"command": command, "imports": "tensorflow", "kind": "ours"}
        listed.append(Contestant(f"bert_tf, {dtype}", ours, script, settings))
    for dtype in arguments.dtypes.split(","):
        command = [
            torch.executable, str(WORKERS / "embeddings_trainer.py"), f"--data_dir={data}", f"--init={arguments.init}",
            "--output={output}", f"--batch_size={arguments.batch_size}", f"--learning_rate={arguments.rate}",
            f"--max_length={arguments.max_length}", f"--eval_steps={half}", f"--dtype={dtype}",
            f"--seed={arguments.seed}",
        ]  # fmt: skip
        settings = shared | {"command": command, "imports": "torch, sentence_transformers", "kind": "trainer"}
        listed.append(Contestant(f"sentence-transformers, Trainer, {dtype}", torch, script, settings))
    return [each for each in listed if each.name.startswith("bert_tf") or re.search(arguments.only, each.name)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.flags(parser, rounds=3)
    parser.add_argument("--data_dir", required=True, help="SQuAD 1.1: train-v1.1.json and dev-v1.1.json")
    parser.add_argument("--init", required=True, help="folder of a sentence encoder, such as MiniLM")
    parser.add_argument("--pairs", type=int, default=2000, help="of training")
    parser.add_argument("--questions", type=int, default=400, help="of validation")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--max_length", type=int, default=256)
    parser.add_argument("--rate", default="5e-5", help="peak of the learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtypes", default="bfloat16,float32", help="list of compute dtypes")
    parser.add_argument("--least", type=float, default=0.5, help=f"a run that ends with a lower {METRIC} fails")
    arguments = parser.parse_args(argv)
    machine = side_by_side.machine()
    with tempfile.TemporaryDirectory() as data:
        write_data(arguments.data_dir, data, {"train": arguments.pairs, "dev": arguments.questions})
        case = side_by_side.compare("training", contestants(data, arguments), rounds=arguments.rounds)
    side_by_side.report(arguments, machine, [case], finetuning.table([case], METRIC, "pairs"))


if __name__ == "__main__":
    main()
