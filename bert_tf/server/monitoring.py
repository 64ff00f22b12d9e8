"""Metrics of the server under TF Serving's names, their page for Prometheus, and the log of requests."""

import bisect
import collections
import datetime
import json
import logging
import threading
from typing import TypeAlias

_Labels: TypeAlias = tuple[tuple[str, str], ...]

_access = logging.getLogger("bert_tf.server.access")

REQUEST_COUNT = ":tensorflow:serving:request_count"
REQUEST_LATENCY = ":tensorflow:serving:request_latency"
RUNTIME_LATENCY = ":tensorflow:serving:runtime_latency"
QUEUING_LATENCY = ":tensorflow:serving:batching_session:queuing_latency"
WARMUP_LATENCY = ":tensorflow:serving:model_warmup_latency"
# Upper bounds of the histograms in microseconds, as in TF Serving.
_BOUNDS = [10 * 1.8**power for power in range(33)]


def log_access(**fields: object) -> None:
    """Logs a request as a line of JSON."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    _access.info(json.dumps({"time": now, **fields}))


class Metrics:
    """Counters and histograms; used from the event loop and, for values of the model's runtime, from its threads."""

    def __init__(self) -> None:
        self._counters: dict[str, collections.Counter[_Labels]] = collections.defaultdict(collections.Counter)
        self._histograms: dict[str, dict[_Labels, _Histogram]] = collections.defaultdict(
            lambda: collections.defaultdict(_Histogram)
        )
        self._lock = threading.Lock()  # for the histograms

    def count(self, name: str, **labels: str) -> None:
        """Adds 1 to a counter."""
        self._counters[name][tuple(labels.items())] += 1

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Adds a duration to a histogram."""
        with self._lock:
            self._histograms[name][tuple(labels.items())].add(seconds * 1e6)

    def page(self) -> str:
        """All metrics in Prometheus' text format."""
        # Not by prometheus_client, which appends _total to the names of counters.
        lines = []
        for name, counter in self._counters.items():
            lines.append(f"# TYPE {name} counter")
            lines += [f"{name}{_written(labels)} {value}" for labels, value in counter.items()]
        with self._lock:
            for name, histograms in self._histograms.items():
                lines.append(f"# TYPE {name} histogram")
                for labels, histogram in histograms.items():
                    lines += histogram.lines(name, labels)
        return "\n".join(lines) + "\n"


class _Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(_BOUNDS, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: _Labels) -> list[str]:
        total, lines = 0, []
        for bound, count in zip([*_BOUNDS, float("inf")], self._counts, strict=True):
            total += count
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f"{name}_bucket{_written((*labels, ('le', shown)))} {total}")
        return [*lines, f"{name}_sum{_written(labels)} {self._sum:g}", f"{name}_count{_written(labels)} {total}"]


def _written(labels: _Labels) -> str:
    quoted = ((name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in quoted) + "}"
