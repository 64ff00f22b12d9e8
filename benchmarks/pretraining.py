"""Pre-training steps side by side: python benchmarks/pretraining.py --work=base:16x128 --output=pretraining.json.

Masked language model and next-sentence prediction on the same synthetic batches without padding: forward, backward,
gradient clipping and AdamW. Every contestant has the same sizes, dropout 0.1, tanh GELU and the same masked positions.
ModernBERT (--work=modernbert_base:1x8192) has neither dropout nor next sentences, and its own parts.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any

import side_by_side
from side_by_side import CEILING, WORKERS, Contestant, Python

from bert_tf.config import BertConfig
from bert_tf.training.speed import row_flops

_WORK = "tiny:64x128,tiny:16x512,mini:32x128,mini:8x512,base:16x128,base:4x512"
# Masked positions of a sequence, by length: as in the paper's two phases.
_PREDICTIONS = {128: 20, 512: 77}
# Updates of a call, for the row that has several: a call should last less than a round.
_SEVERAL = {"tiny": 10, "mini": 10, "base": 2}


def contestants(settings: dict[str, Any], arguments: argparse.Namespace) -> list[Contestant]:
    """Ours first, then the peers and the ceiling; settings as the workers take them."""
    ours = Python(sys.executable, ("bert_tf",))
    torch = Python(arguments.torch_python, ("torch", "transformers"), ".venv-torch/.ready")
    kerashub = Python(arguments.kerashub_python, ("tensorflow", "keras_hub"), ".venv-kerashub/.ready")
    garden = Python(arguments.garden_python, ("tensorflow", "tf_keras", "official"), ".venv-model-garden/.ready")

    def one(name: str, python: Python, script: str, **more: Any) -> Contestant:
        # Processes that compile would otherwise stay, in no round, and would not be stopped.
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        return Contestant(name, python, WORKERS / f"{script}.py", settings | more, environment)

    listed = [one("bert_tf", ours, "pretraining_ours", updates=1)]
    if settings["model"] in _SEVERAL:
        updates = _SEVERAL[settings["model"]]
        listed.append(one(f"bert_tf, {updates} updates a call", ours, "pretraining_ours", updates=updates))
    for compiled in (False, True):
        how = "torch.compile" if compiled else "eager"
        listed += [
            one(f"Transformers, {how}", torch, "pretraining_torch", compile=compiled, gather=False),
            one(f"Transformers, {how}, masked logits", torch, "pretraining_torch", compile=compiled, gather=True),
        ]
    if settings["model"] != "modernbert_base":
        listed += [
            one("KerasHub", kerashub, "pretraining_kerashub", compile=False),
            one("KerasHub, XLA", kerashub, "pretraining_kerashub", compile=True),
            one("TF Model Garden", garden, "pretraining_garden"),
        ]
    listed.append(one(CEILING, ours, "ceiling", **_products(settings)))
    return [each for each in listed if each.name in ("bert_tf", CEILING) or re.search(arguments.only, each.name)]


def _products(settings: dict[str, Any]) -> dict[str, Any]:
    """The ceiling's settings: all products of a step, at the rate that its dense forward ones reach."""
    config = BertConfig.from_name(settings["model"])
    rows, length, hidden = settings["batch"], settings["length"], config.hidden_size
    shapes = side_by_side.dense_products(config, rows * length)
    shapes.append([rows * settings["predictions"], hidden, config.vocab_size, 1])
    pooled = int(settings["model"] != "modernbert_base")  # for the next sentence
    flops = row_flops(length, config, predictions=settings["predictions"], pooled=pooled)
    return {"shapes": shapes, "flops": flops, "unit": "sequences"}


def works(text: str) -> list[dict[str, Any]]:
    """The settings of each element of --work, a list of MODEL:BATCHxLENGTH."""

    def settings(element: str) -> dict[str, Any]:
        match = re.fullmatch(r"(tiny|mini|base|large|modernbert_base):(\d+)x(\d+)", element)
        if not match:
            raise argparse.ArgumentTypeError(f"{element!r} is not MODEL:BATCHxLENGTH, such as base:16x128")
        length = int(match[3])
        predictions = _PREDICTIONS.get(length, max(1, round(0.15 * length)))
        return {"model": match[1], "batch": int(match[2]), "length": length, "predictions": predictions}

    return [settings(element) for element in text.split(",")]


def check_sizes(case: dict[str, Any]) -> None:
    """Raises if contestants trained models of different sizes."""
    counts = {row["name"]: row["ready"]["parameters"] for row in case["rows"] if "parameters" in row.get("ready", {})}
    if len(set(counts.values())) > 1:
        raise ValueError(f"{case['work']}: the models differ in size: {counts}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.flags(parser)
    parser.add_argument("--work", type=works, default=_WORK, help="list of MODEL:BATCHxLENGTH")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="list of compute dtypes")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round, which has at least one update")
    parser.add_argument("--restart", action="store_true", help="keep one model in memory at a time: for large")
    arguments = parser.parse_args(argv)
    machine, cases = side_by_side.machine(), []
    for settings in arguments.work:
        for dtype in arguments.dtypes.split(","):
            case = side_by_side.compare(
                "{model}, {batch} x {length}, {dtype}".format(**settings, dtype=dtype),
                contestants(settings | {"dtype": dtype, "seconds": arguments.seconds}, arguments),
                rounds=arguments.rounds,
                restart=arguments.restart,
            )
            cases.append(case)
    side_by_side.report(arguments, machine, cases)
    for case in cases:
        check_sizes(case)


if __name__ == "__main__":
    main()
