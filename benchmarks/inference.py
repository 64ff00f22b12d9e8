"""Inference side by side: python benchmarks/inference.py --work=base:8x128 --output=inference.json.

From ids, the result is the last layer; from text, the mean over the tokens of each text. The sequences of 8x128 have no
padding; those of 16x8-64 have lengths from 8 to 64. MiniLM has its own weights (--minilm, a Hugging Face checkpoint
with its vocabulary); others have random ones.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import side_by_side
from side_by_side import CEILING, WORKERS, Contestant, Python

from bert_tf.config import BertConfig
from bert_tf.inference.session import TOLERANCES
from bert_tf.model import long_rows

_WORK = "base:8x128,minilm:1x16,minilm:8x32,minilm:32x128"
_MINILM = BertConfig(num_layers=6, hidden_size=384, num_heads=12, intermediate_size=1536)
# Their dtype, for the ceiling: what a mode of the export multiplies in.
_DTYPES = {"none": "float32", "bfloat16": "bfloat16", "int8": "int8"}


def contestants(settings: dict[str, Any], arguments: argparse.Namespace) -> list[Contestant]:
    """Ours first, then the peers and the ceiling, all of one `dtype` and `input`."""
    ours = Python(sys.executable, ("bert_tf",))
    torch = Python(arguments.torch_python, ("torch", "transformers"), ".venv-torch/.ready")
    onnx = Python(arguments.torch_python, ("torch", "transformers", "onnx", "onnxruntime"), ".venv-torch/.ready")
    kerashub = Python(arguments.kerashub_python, ("tensorflow", "keras_hub"), ".venv-kerashub/.ready")

    def one(name: str, python: Python, script: str, **more: Any) -> Contestant:
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        return Contestant(name, python, WORKERS / f"{script}.py", settings | more, environment)

    dtype, is_modern, listed = settings["dtype"], settings["model"] == "modernbert_base", []
    if dtype != "int8":
        listed.append(one("bert_tf", ours, "inference_ours", how="evaluate"))
    listed += [
        one(f"bert_tf, export --optimize={mode}, session", ours, "inference_ours", how="export", mode=mode)
        for mode in TOLERANCES
        if _DTYPES.get(mode) == dtype
    ]
    if dtype != "int8":
        listed += [
            one("Transformers, eager", torch, "inference_torch", compile=False),
            one("Transformers, torch.compile", torch, "inference_torch", compile=True),
        ]
        if settings["input"] == "ids" and not is_modern:
            listed += [
                one("KerasHub", kerashub, "inference_kerashub", compile=False),
                one("KerasHub, XLA", kerashub, "inference_kerashub", compile=True),
            ]
    if dtype != "bfloat16" and not is_modern:
        listed.append(one("ONNX Runtime, fused for BERT", onnx, "inference_onnx", mode=dtype))
    if settings["input"] == "ids":
        listed.append(one(CEILING, ours, "ceiling", **_products(settings)))
    reference = listed[:1]
    return [
        each for each in listed if each in reference or each.name == CEILING or re.search(arguments.only, each.name)
    ]


def _config(model: str) -> BertConfig:
    return _MINILM if model == "minilm" else BertConfig.from_name(model)


def _products(settings: dict[str, Any]) -> dict[str, Any]:
    """The ceiling's settings: all products of the encoder, at the rate of its dense ones."""
    config = _config(settings["model"])
    rows, length, hidden, layers = settings["batch"], settings["length"], config.hidden_size, config.num_layers
    tokens = sum(settings["lengths"])
    shapes = side_by_side.dense_products(config, tokens)
    attention = [[tokens, hidden, long_rows.num_keys(length, config, layer), 2] for layer in range(layers)]
    flops = sum(times * 2 * m * k * n for m, k, n, times in [*shapes, *attention])
    return {"shapes": shapes, "flops": flops / rows, "unit": "sequences"}


def works(text: str) -> list[dict[str, Any]]:
    """The settings of each element of --work, a list of MODEL:BATCHxLENGTH or MODEL:BATCHxSHORTEST-LONGEST."""

    def settings(element: str) -> dict[str, Any]:
        match = re.fullmatch(r"(tiny|mini|minilm|base|large|modernbert_base):(\d+)x(?:(\d+)-)?(\d+)", element)
        if not match:
            raise argparse.ArgumentTypeError(
                f"{element!r} is not MODEL:BATCHxLENGTH, such as base:8x128 or base:8x16-128"
            )
        config = _config(match[1])
        sizes = [config.num_layers, config.hidden_size, config.num_heads]
        rows, longest = int(match[2]), int(match[4])
        shortest = int(match[3] or longest)
        lengths = [longest - (longest - shortest) * row // max(rows - 1, 1) for row in range(rows)]
        return {"model": match[1], "batch": rows, "length": longest, "lengths": lengths, "sizes": sizes}

    return [settings(element) for element in text.split(",")]


def _range(lengths: Sequence[int]) -> str:
    return " to ".join(map(str, sorted({min(lengths), max(lengths)})))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    side_by_side.flags(parser)
    parser.add_argument(
        "--work", type=works, default=_WORK, help="list of MODEL:BATCHxLENGTH or MODEL:BATCHxSHORTEST-LONGEST"
    )
    parser.add_argument("--dtypes", default="float32,bfloat16,int8", help="list of compute dtypes")
    parser.add_argument("--inputs", default="ids,text", help="list of ids and text")
    parser.add_argument("--minilm", required=True, help="folder of MiniLM; its vocab.txt serves all models")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    arguments = parser.parse_args(argv)
    folder = Path(arguments.minilm).resolve()
    more = {"checkpoint": str(folder), "vocabulary": str(folder / "vocab.txt"), "seconds": arguments.seconds}
    machine, cases = side_by_side.machine(), []
    for settings in arguments.work:
        for source in arguments.inputs.split(","):
            for dtype in arguments.dtypes.split(","):
                case = side_by_side.compare(
                    "{model}, {batch} x {range}, {dtype}, from {source}".format(
                        **settings, range=_range(settings["lengths"]), dtype=dtype, source=source
                    ),
                    contestants(settings | more | {"dtype": dtype, "input": source}, arguments),
                    rounds=arguments.rounds,
                )
                cases.append(case)
    side_by_side.report(arguments, machine, cases)


if __name__ == "__main__":
    main()
