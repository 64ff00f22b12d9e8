"""Saves tokenizers by the release of Transformers that runs this program, each with its ids of texts in expected.json.

    python save_by_release.py ORIGINALS OUTPUT

ORIGINALS has a folder of original files for each case, with case.json: {"class", "arguments", "added", "rows"}; and
texts.json. It imports nothing of bert_tf, as other releases have environments of their own.
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import transformers


def main(originals: pathlib.Path, output: pathlib.Path) -> None:
    texts = json.loads((originals / "texts.json").read_text(encoding="utf-8"))
    for source in sorted(path.parent for path in originals.glob("*/case.json")):
        case = json.loads((source / "case.json").read_text(encoding="utf-8"))
        cls = transformers.AutoTokenizer if case["class"] is None else getattr(transformers, case["class"])
        try:
            tokenizer = cls.from_pretrained(source, **case["arguments"])
        except Exception as error:  # 5.0.0 opens no CamemBERT's .model
            print(f"{source.name}: {error!r}")
            continue
        special = [transformers.AddedToken(**token) for token in case["special"]]
        if special:
            tokenizer.add_special_tokens({"additional_special_tokens": special})
        tokenizer.add_tokens([transformers.AddedToken(**token) for token in case["ordinary"]])
        target = output / source.name
        tokenizer.save_pretrained(target)
        rows = len(tokenizer) if case["multiple"] is None else -(-len(tokenizer) // case["multiple"]) * case["multiple"]
        config = json.loads((source / "config.json").read_text(encoding="utf-8")) | {"vocab_size": rows}
        (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
        # As the user of the directory would open it, not as it is in memory.
        opened = transformers.AutoTokenizer.from_pretrained(target)
        expected = {
            "class": type(opened).__name__,
            "rows": rows,
            "size": len(opened),
            "ids": [opened(text, add_special_tokens=False)["input_ids"] for text in texts],
            "pairs": opened(texts[:20], texts[-20:])["input_ids"],
        }
        (target / "expected.json").write_text(json.dumps(expected), encoding="utf-8")


main(*map(pathlib.Path, sys.argv[1:]))
