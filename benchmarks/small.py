"""Table and picture of small models: python benchmarks/small.py --results=runs/small/results.json --picture=small.png.

--results names what `python -m bert_tf.compress` wrote, several files separated by commas. --exports adds other exports
of models for the same task, NAME=DIR separated by commas, measured on --data_dir as compress measures its own.
"""

import argparse
import json
import pathlib
from typing import Any

from bert_tf import quiet

quiet.import_tensorflow()

from bert_tf.inference import predictions  # noqa: E402
from bert_tf.inputs.datasets.sources import Source  # noqa: E402
from bert_tf.report import tables  # noqa: E402
from bert_tf.report.plots import draw_tradeoff  # noqa: E402
from bert_tf.training.evaluation import Split  # noqa: E402
from bert_tf.training.runs.compression import measured  # noqa: E402


def _measured(export: str, data_dir: str) -> dict[str, Any]:
    version = predictions.find_version(export)
    predictor = predictions.load(version)
    task = predictor.task
    split = Split(Source(task.data, data_dir, task.example), "validation")
    split.prepare(task)
    return {"metric": task.monitor, "export": version} | measured(predictor, version, split, split.examples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default="", help="results.json of compress, separated by commas")
    parser.add_argument("--exports", default="", help="NAME=DIR, separated by commas")
    parser.add_argument("--data_dir", default="", help="of the labelled examples, for --exports")
    parser.add_argument("--picture", default="", help="PNG to write")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path in filter(None, arguments.results.split(",")):
        results = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        rows += [{"metric": results["metric"]} | row for row in results["rows"]]
    for name, export in (named.split("=", 1) for named in filter(None, arguments.exports.split(","))):
        rows.append({"name": name} | _measured(export, arguments.data_dir))
    if not rows:
        parser.error("no rows; give --results or --exports")
    metrics = {row["metric"] for row in rows}
    if len(metrics) > 1:
        parser.error(f"the rows have different metrics: {', '.join(sorted(metrics))}; expected one task")
    (metric,) = metrics
    lines = [
        (
            row["name"],
            f"{row['value']:.4f}",
            "" if row["interval"] is None else "{:.3f} to {:.3f}".format(*row["interval"]),
            f"{row['megabytes']:.1f}",
            f"{row['ms_1_thread']:.2f}",
            f"{row['ms_2_threads']:.2f}",
            f"{row['texts_per_second']:,.0f}",
        )
        for row in rows
    ]
    header = ("model", metric, "95% interval", "MB", "ms, 1 thread", "ms, 2 threads", "texts/s")
    print(tables.markdown(header, lines), end="")
    if arguments.picture:
        draw_tradeoff(arguments.picture, rows, metric)


if __name__ == "__main__":
    main()
