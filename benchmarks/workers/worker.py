"""The worker's side of side_by_side.py: set up, then one timed round at a time. Standard library only.

A worker script is called with one argument, a JSON object of settings, and ends in `serve(setup)`.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Round = Callable[[], dict[str, Any]]


def serve(setup: Callable[[dict[str, Any]], tuple[dict[str, Any], Round]]) -> None:
    """Answers the runner until it says `end` or goes away.

    Args:
        setup: function from the settings to what exactly runs (versions, dtype, threads, ...; JSON) and the function
            that does one round, warmed up. A round returns its `seconds`, `count` and `unit`, and optionally other
            keys, which are stored.
    """
    # Only this module writes to the runner's pipe; what libraries and child processes print goes to standard error.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        ready, do_round = setup(json.loads(sys.argv[1]))
        print(json.dumps({"ready": ready}), file=answers)
        for line in sys.stdin:
            if line.strip() == "end":
                break
            print(json.dumps(do_round()), file=answers)
        print(json.dumps({"peak_megabytes": round(_peak_megabytes())}), file=answers)
        sys.stdout.flush()
    os._exit(0)  # leaving TensorFlow takes a second, and nothing is left to be written


def repeated(
    step: Callable[[], Any],
    count: float,
    unit: str,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Round:
    """A round that calls `step` until `seconds` have passed, at least once.

    Args:
        step: a unit of work; returns only after it is done.
        count: what a call processes, in `unit`.
        clock: whose seconds count.
    """

    def do_round() -> dict[str, Any]:
        calls, start = 0, clock()
        now = start
        while now - start < seconds:
            step()
            calls += 1
            now = clock()
        return {"seconds": now - start, "count": calls * count, "unit": unit}

    return do_round


def warmed_up(step: Callable[[], float]) -> list[float]:
    """The results of the first calls of `step`: two, and more if they are quick.

    The first one compiles, and after it the next is still slower than the rest: memory is new to the process.
    """
    start = time.perf_counter()
    results = [step(), step()]
    while time.perf_counter() - start < 3:
        results.append(step())
    return results


def versions(*names: str) -> dict[str, str]:
    """Versions of installed distributions; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _peak_megabytes() -> float:
    """The most resident memory that this process, or any one of its children that have ended, had at a time."""
    own = 0
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM"):
                own = int(line.split()[1])
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024
