"""Speed of an export with so many threads: requests to a session in a new process, one after the other."""

import statistics
from collections.abc import Iterable

from bert_tf.inference.session import Session
from bert_tf.types import Json

# Each request is timed this often after a round that is not timed, until the seconds are over.
_ROUNDS, _SECONDS = 7, 20

# Runs ask.py's model, so that no more than TensorFlow is loaded.
_TIMED = f"""
import json, runpy, sys, time
program, path = sys.stdin.buffer.readline().decode().split("\\0")[:-1]
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
print(*map(json.dumps, times), sep="\\n")
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
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    with Session(_TIMED, **dict.fromkeys(names, str(threads))) as session:
        times = session.ask(version, requests)
    return [statistics.median(found) for found in times]
