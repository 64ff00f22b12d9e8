"""Speed of an export with so many threads: requests to a session in a new process, one after the other."""

import importlib.resources
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence

from bert_tf.errors import DataError
from bert_tf.types import Json

# Each request is timed this often after a round that is not timed, until the seconds are over.
_ROUNDS, _SECONDS = 7, 20

# Runs ask.py's model, so that no more than TensorFlow is loaded.
_WORKER = f"""
import json, runpy, sys, time
program, path = sys.argv[1:]
model = runpy.run_path(program)["Model"](path)
requests = [json.loads(line) for line in sys.stdin]
times, start = [[] for _ in requests], time.perf_counter()
for number in range({_ROUNDS} + 1):
    for request, found in zip(requests, times):
        before = time.perf_counter()
        model.run(request["inputs"], request["signature_name"])
        if number:
            found.append(time.perf_counter() - before)
    if number and time.perf_counter() - start > {_SECONDS}:
        break
print(json.dumps(times))
"""


def seconds_of(version: str, requests: Iterable[Json], threads: int) -> list[float]:
    """The time that an export takes for each request, the median of some rounds.

    Args:
        version: folder of the version.
        requests: from `check.rest_body`.
        threads: of TensorFlow, for one operation and for several at a time.

    Raises:
        DataError: the version cannot be loaded, or a request fails.
    """
    program = str(importlib.resources.files("bert_tf.inference") / "ask.py")
    number = str(threads)
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WORKER, program, version],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"}
        | os.environ
        | {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONIOENCODING": "utf-8"}
        | dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), number),
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise DataError(f"{version}: a session could not answer (exit status {done.returncode}): {last}")
    times: Sequence[Sequence[float]] = json.loads(done.stdout)
    return [statistics.median(found) for found in times]
