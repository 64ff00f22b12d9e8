"""Draws the picture of the READMEs from the results of the quick start, for light and dark pages.

python benchmarks/quickstart_picture.py runs/quickstart/results.json
"""

import argparse
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from bert_tf.metrics.statistics import wilson_interval

PICTURES = pathlib.Path(__file__).parents[1] / "docs" / "pictures"
# Colors of text, of lesser text, of boxes, of their edges, of what is emphasized, and of bars.
THEMES = {
    "light": ("#1f2328", "#59636e", "#f6f8fa", "#d1d9e0", "#0969da", "#9ec5f4"),
    "dark": ("#f0f6fc", "#9198a1", "#151b23", "#3d444d", "#4493f8", "#1f4f8f"),
}
_LEFT, _WIDTH = 210, 600  # of the bars
_FONT = "-apple-system, Segoe UI, Helvetica, Arial, sans-serif"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, help="results.json of the quick start")
    results = json.loads(parser.parse_args().results.read_text(encoding="utf-8"))
    for name, theme in THEMES.items():
        (PICTURES / f"quickstart-{name}.svg").write_text("\n".join(lines(results, theme)) + "\n", encoding="utf-8")


def lines(results: dict[str, Any], theme: Sequence[str]) -> Iterator[str]:
    """The lines of the picture: the stages in boxes, and a bar for each accuracy with its 95% interval."""
    strong, weak, box, edge, accent, bar = theme
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 330" width="880" height="330" role="img" '
        f'font-family="{_FONT}" font-size="14">'
    )
    yield "<title>make quickstart: from raw text to a SavedModel, and the accuracy of its classifiers</title>"
    pretraining = results["pretraining"]
    stages = {
        "raw text": "English speeches",
        "vocabulary": f"{pretraining['vocab_size']:,} wordpieces",
        "pre-training": f"{pretraining['steps']:,} updates",
        "fine-tuning": f"{len(results['finetuning'])} models",
        "SavedModel": "takes strings",
    }
    for number, (title, text) in enumerate(stages.items()):
        x, last = 1 + 184 * number, number == len(stages) - 1
        stroke = f'stroke="{accent}" stroke-width="2"' if last else f'stroke="{edge}" stroke-width="1"'
        yield f'<rect x="{x}" y="5" width="142" height="58" rx="8" fill="{box}" {stroke}/>'
        yield _text(x + 71, 30, title, strong, "middle", bold=True)
        yield _text(x + 71, 50, text, weak, "middle", size=12)
        if not last:
            yield f'<path d="M{x + 150} 34h24m-6-5l6 5-6 5" fill="none" stroke="{weak}" stroke-width="1.5"/>'
    yield f'<path d="M369 74v8h510v-8" fill="none" stroke="{accent}" stroke-width="1.5"/>'
    graph = "one TensorFlow graph from strings to answers, in training and in the exported model"
    yield _text(624, 102, graph, accent, "middle", size=13)
    total = results["comparison"][0]["total"]
    heading = f"Accuracy on {total:,} held-out movie-review sentences, with 95% intervals"
    yield _text(0, 146, heading, strong, "start", bold=True)
    names = (
        "majority class",
        "tiny BERT, pre-trained here",
        "tf-idf, logistic regression",
        "MiniLM, published weights",
    )
    for number, (name, row) in enumerate(zip(names, results["comparison"], strict=True)):
        y = 164 + 40 * number
        low, high = (_LEFT + _WIDTH * one for one in wilson_interval(row["correct"], total))
        yield _text(_LEFT - 12, y + 18, name, strong, "end")
        yield f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH * row["accuracy"]:.0f}" height="26" rx="3" fill="{bar}"/>'
        mark = f"M{low:.0f} {y + 13}H{high:.0f}m0-5v10M{low:.0f} {y + 8}v10"
        yield f'<path d="{mark}" fill="none" stroke="{strong}" stroke-width="1.5"/>'
        yield _text(high + 12, y + 18, f"{row['accuracy']:.3f}", strong, "start", bold=True)
    yield "</svg>"


def _text(x: float, y: float, text: str, color: str, anchor: str, *, size: int = 0, bold: bool = False) -> str:
    style = (f' font-size="{size}"' if size else "") + (' font-weight="600"' if bold else "")
    return f'<text x="{x:.1f}" y="{y}" fill="{color}" text-anchor="{anchor}"{style}>{text}</text>'


if __name__ == "__main__":
    main()
