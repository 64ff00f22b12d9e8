"""Checks and measures a GPU: python benchmarks/gpu.py --output=gpu.json, 30 minutes, without a network.

Each stage is a process of its own. Its rows are printed and written to the JSON file as soon as they are measured, so a
run that is cut off still tells something, and a stage that fails or takes too long does not end the others. Needs
TensorFlow, TF Text, absl-py, NumPy, safetensors and tqdm, and no installation of bert_tf. `--small` runs every stage on
the CPU with tiny sizes, to test this program.
"""

import argparse
import contextlib
import functools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any
from unittest import mock

import side_by_side

from bert_tf import xla_settings

# Stage, a method in workers/gpu_stages.py -> its share of the time; what a stage leaves is for the later ones. Numbers
# first; what was measured before comes last.
STAGES = {
    "devices": 20,
    "flash": 40,
    "resume": 180,
    "change_before": 60,
    "change_roundings": 60,
    "change_sums": 60,
    "change_both": 60,
    "change_flash": 60,
    "products": 30,
    "base": 240,
    "large": 420,
    "long": 150,
    "first_update": 90,
    "second_start": 40,
    "inference": 90,
    "serving": 60,
    "finetuning": 180,
    "encoder": 50,
    "updates": 110,
}
# Of stages that are called change_NAME: whether XLA keeps roundings, how columns are summed, who computes attention.
CHANGES = {
    "before": {"roundings": False, "reductions": False, "flash": False},
    "roundings": {"roundings": True, "reductions": False, "flash": False},
    "sums": {"roundings": False, "reductions": True, "flash": False},
    "both": {"roundings": True, "reductions": True, "flash": False},
    "flash": {"roundings": True, "reductions": True, "flash": True},
}
ROUNDINGS = "--xla_allow_excess_precision"
# An A100 with NVIDIA's TF2 examples, sequences per second and GPU in pre-training, and this project's aim on an H200.
GOALS = {"large, 128": 485, "large, 512": 96, "utilisation": 0.45}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="gpu.json", help="the JSON file")
    parser.add_argument("--minutes", type=float, default=30.0, help="for all stages together")
    parser.add_argument("--stages", default=",".join(STAGES), help="the stages to run, separated by commas")
    parser.add_argument("--small", action="store_true", help="tiny sizes, on the CPU")
    arguments = parser.parse_args()
    unknown = set(arguments.stages.split(",")) - STAGES.keys()
    if unknown:
        parser.error(f"--stages: unknown {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
    sys.exit(run(arguments))


# The parent, which does not import TensorFlow: two processes cannot share a GPU's memory.


def run(arguments: argparse.Namespace) -> int:
    """Runs the stages one after the other; returns the exit status, 1 if one failed."""
    began, chosen = time.monotonic(), arguments.stages.split(",")
    report: dict[str, Any] = {
        "command": ["python", *sys.argv],
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": side_by_side.machine(),
        "small": arguments.small,
        "goals": GOALS,
        "rows": [],
        "stages": {},
    }
    names = [name for name in STAGES if name in chosen]
    with tempfile.TemporaryDirectory() as cache:
        run_stages(names, began, arguments, report, cache)
    report["seconds"] = round(time.monotonic() - began, 1)
    write(arguments.output, report)
    failed = [name for name, stage in report["stages"].items() if "error" in stage]
    print(f"{report['seconds']:.0f} s, {arguments.output}" + (f"; not complete: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def run_stages(
    names: list[str], began: float, arguments: argparse.Namespace, report: dict[str, Any], cache: str
) -> None:
    """Runs stages, and adds to the report what comes of them.

    Args:
        names: of the stages.
        began: time when the first one was started, on the monotonic clock.
        arguments: of the program.
        report: of all stages.
        cache: a folder for compiled programs.
    """
    for position, name in enumerate(names):
        left = 60 * arguments.minutes - (time.monotonic() - began)
        seconds = left * STAGES[name] / sum(STAGES[other] for other in names[position:])
        started = time.monotonic()
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        error = run_stage(name, seconds, arguments, report, cache)
        report["stages"][name] = {"seconds": round(time.monotonic() - started, 1)} | ({"error": error} if error else {})
        write(arguments.output, report)
        if error:
            print(f"  {name} ended early: {error.splitlines()[-1]}", flush=True)
            if name == "devices":  # nothing else would run on a GPU
                break


def run_stage(name: str, seconds: float, arguments: argparse.Namespace, report: dict[str, Any], cache: str) -> str:
    """Runs a stage in a process and takes its rows as they come; returns the error, "" if there was none."""
    products = [row for row in report["rows"] if "product" in row and row["dtype"] == "bfloat16"]
    peaks = [1e12 * row["tflops"] for row in products if "tflops" in row]
    settings = {"stage": name, "began": time.monotonic(), "seconds": seconds, "small": arguments.small}
    settings |= {"peak": max(peaks, default=0.0), "goals": GOALS}
    change = CHANGES[name.removeprefix("change_")] if name.startswith("change_") else {"roundings": True}
    with mock.patch.dict(os.environ):
        keeps = name in ("first_update", "second_start")
        reason = xla_settings.keep_programs([f"--xla_cache={cache}"]) if keeps else "it is not asked for"
        given = dict(os.environ)
    settings |= {"change": change, "kept": reason or "yes"}
    command = [sys.executable, str(side_by_side.WORKERS / "gpu_stages.py"), json.dumps(settings)]
    search = os.pathsep.join(filter(None, [str(side_by_side.ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"} | given | {"PYTHONPATH": search}
    flags = [flag for flag in environment.get("XLA_FLAGS", "").split() if not flag.startswith(ROUNDINGS)]
    environment["XLA_FLAGS"] = " ".join([*flags, *[f"{ROUNDINGS}=false"] * change["roundings"]])
    if arguments.small:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    with tempfile.TemporaryFile("w+", errors="replace") as messages:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=messages, stdin=subprocess.DEVNULL, text=True, env=environment
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=functools.partial(_read, process, lines), daemon=True).start()
        deadline = time.monotonic() + seconds
        error = ""
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                process.kill()
                error = f"stopped after {seconds:.0f} s"
                break
            if line is None:
                break
            with contextlib.suppress(ValueError):  # a library may print, too
                row = {"stage": name, **json.loads(line)}
                report["rows"].append(row)
                write(arguments.output, report)
                print(f"  {shown(row)}", flush=True)
        if process.wait() and not error:
            messages.seek(0)
            error = messages.read()[-3000:].strip() or f"exit status {process.returncode}"
        return error


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def write(path: str, report: dict[str, Any]) -> None:
    """Replaces the file at once."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    os.replace(f"{path}.new", path)


def shown(row: dict[str, Any]) -> str:
    """A row of the report as a line."""

    def value(given: Any) -> str:
        return f"{given:.4g}" if isinstance(given, float) else str(given)

    return ", ".join(f"{name} {value(given)}" for name, given in row.items() if name not in ("stage", "losses"))


if __name__ == "__main__":
    main()
