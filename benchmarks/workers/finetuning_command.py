"""Fine-tuning by the clock: each round runs a whole command, from the start of its process to its exit."""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from worker import Round, serve

_WARMUP = 10  # updates that do not count as steady


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    """Settings.

    `command`: list of words, in which {output} becomes a new folder; `imports`: modules that it imports; `kind`:
    "ours" or "trainer", which says where its results are; `sentences`: of training, in batches of `batch`; `metric`: of
    the evaluations; `least`: what it must reach.
    """
    # Once, so that the files of the libraries are in the page cache.
    subprocess.run([settings["command"][0], "-c", f"import {settings['imports']}"], check=True, stdout=sys.stderr)

    metric = settings["metric"]

    def do_round() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            output = os.path.join(folder, "model")
            command = [word.format(output=output) for word in settings["command"]]
            start = time.perf_counter()
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            seconds = time.perf_counter() - start
            found = {"ours": _ours, "trainer": _trainer}[settings["kind"]](output, done.stdout, metric)
        if not found["steady_seconds"]:
            raise ValueError(f"no updates after the first {_WARMUP}; raise --epochs")
        steady = settings["sentences"] - _WARMUP * settings["batch"]
        found["sentences_per_second"] = steady / found["steady_seconds"]
        if found["evaluations"] != 2:
            raise ValueError(f"{found['evaluations']} evaluations instead of 2")
        if found[metric] < settings["least"]:
            raise ValueError(f"{metric} {found[metric]:.3f}, below {settings['least']}")
        return {"seconds": seconds, "count": 1, "unit": "runs"} | found

    return {"command": " ".join(settings["command"])}, do_round


def _ours(output: str, _: str, metric: str) -> dict[str, Any]:
    with open(os.path.join(output, "history.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    points = [row for row in rows if row["kind"] == "training"]
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    names = ("start", "training", "evaluation", "saving")
    return {
        metric: evaluations[-1][metric],
        "evaluations": len(evaluations),
        "steady_seconds": sum(point["training_seconds"] for point in points if point["step"] > _WARMUP),
        "spent": {name: sum(point.get(f"{name}_seconds", 0.0) for point in points) for name in names},
    }


def _trainer(_: str, stdout: str, metric: str) -> dict[str, Any]:
    found = json.loads(stdout.splitlines()[-1])
    return {
        metric: found[metric],
        "evaluations": len(found["evaluations"]),
        "steady_seconds": sum(found["updates"][_WARMUP:]),
        "spent": {"training": sum(found["updates"]), "evaluation": sum(found["evaluations"])},
    }


serve(setup)
