"""Times programs side by side: all of them run, and take turns, because the speed of a machine changes by the minute.

Each contestant is a process of its own, with its own Python (workers/worker.py has its side). It sets itself up, says
what exactly it runs, and waits; then each does one round after the other, in an order that rotates. While one works,
all others are stopped by a signal, so that no pool of threads spins. Reported are medians over the rounds, the lowest
and the highest; ratios are medians of the ratios of the same round.
"""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import platform
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from bert_tf.config import BertConfig

ROOT = pathlib.Path(__file__).parents[1]
WORKERS = pathlib.Path(__file__).parent / "workers"
CEILING = "ceiling"
_EXTENSIONS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


@dataclasses.dataclass(frozen=True)
class Python:
    """An environment in which contestants run.

    Attributes:
        executable: its interpreter.
        modules: what it must contain.
        target: of the Makefile; makes it.
    """

    executable: str
    modules: tuple[str, ...] = ()
    target: str = ""

    def lacks(self) -> str:
        """Why nothing can run here, in a line, or an empty string."""
        return _lacks(self)


@functools.cache
def _lacks(python: Python) -> str:
    remedy = f"; make {python.target} makes it" if python.target else ""
    find = "import sys, importlib.util as util; print(*(name for name in sys.argv[1:] if not util.find_spec(name)))"
    try:
        done = subprocess.run([python.executable, "-c", find, *python.modules], capture_output=True, text=True)
    except OSError:
        return f"{python.executable} does not exist{remedy}"
    if done.returncode or done.stdout.strip():
        return f"{python.executable} lacks {done.stdout.strip() or 'a working Python'}{remedy}"
    return ""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One row of a table.

    Attributes:
        name: shown in the table.
        python: in which it runs.
        script: path of the worker.
        settings: for the worker, JSON.
        environment: variables set for it.
    """

    name: str
    python: Python
    script: pathlib.Path
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class WorkerError(Exception):
    """A worker ended or said nothing in time; the message is the last line of its standard error."""


class _Worker:
    """The process of a contestant, stopped except during its rounds."""

    def __init__(self, contestant: Contestant, patience: float) -> None:
        self._patience = patience
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [contestant.python.executable, str(contestant.script), json.dumps(dict(contestant.settings))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env=os.environ | contestant.environment,
        )  # fmt: skip
        assert self._process.stdin and self._process.stdout  # pipes, as asked for
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        try:
            self.ready = self._answer()["ready"]
        except BaseException:
            self.kill()
            raise
        self._stop()

    def round(self) -> dict[str, Any]:
        self._process.send_signal(signal.SIGCONT)
        self._say("go")
        result = self._answer()
        self._stop()
        return result

    def end(self) -> float:
        """Ends the process; returns its peak of resident memory in MB."""
        self._process.send_signal(signal.SIGCONT)
        self._say("end")
        peak = float(self._answer()["peak_megabytes"])
        self.kill()
        return peak

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout, self._errors):
            with contextlib.suppress(OSError):  # what could not be written to a dead process
                stream.close()

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # signals take a moment

    def _say(self, word: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the answer tells why it ended
            self._stdin.write(f"{word}\n".encode())
            self._stdin.flush()

    def _answer(self) -> dict[str, Any]:
        if not select.select([self._stdout], [], [], self._patience)[0]:
            raise WorkerError(f"no answer in {self._patience:g} seconds; last line of its output: {self._last_line()}")
        line = self._stdout.readline()
        if not line:
            status = self._process.wait()
            raise WorkerError(f"ended with status {status}: {self._last_line()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_line(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "(it wrote nothing to standard error)"


def compare(
    work: str,
    contestants: Sequence[Contestant],
    *,
    rounds: int = 5,
    restart: bool = False,
    patience: float = 900.0,
) -> dict[str, Any]:
    """Runs the contestants in turns.

    Args:
        work: what all of them do; the title of the rows.
        contestants: the first one is the reference of the ratios. One whose environment is missing is left out; one
            that fails gets a row that says so, and the others go on.
        rounds: of each contestant.
        restart: start every worker anew for each of its rounds, so that only one model is in memory at a time.
        patience: seconds to wait for a worker's answer.

    Returns:
        JSON object: `work` and `rows`, one for each contestant: `name`, then `left_out` (a line), or `error` (a line),
        or `ready` (what the worker said of itself), `unit`, `rounds` (what each round returned), `rate` (the median of
        count / seconds), `lowest`, `highest`, `times_reference` (the reference's rate divided by this one's) and
        `peak_megabytes`.
    """
    rows: dict[str, dict[str, Any]] = {contestant.name: {"name": contestant.name} for contestant in contestants}
    if len(rows) < len(contestants):
        raise ValueError(f"{work}: contestants of one name")
    workers: dict[str, _Worker] = {}
    playing = []
    for contestant in contestants:
        lacks = contestant.python.lacks()
        if lacks:
            rows[contestant.name]["left_out"] = lacks
            _log(f"{work}: without {contestant.name}: {lacks}")
        else:
            playing.append(contestant)
            rows[contestant.name] |= {"rounds": [], "peak_megabytes": 0}

    @contextlib.contextmanager
    def failures(contestant: Contestant) -> Iterator[None]:
        try:
            yield
        except WorkerError as error:
            rows[contestant.name]["error"] = str(error)
            _log(f"{work}: {contestant.name} {error}")
            playing.remove(contestant)
            if contestant.name in workers:
                workers.pop(contestant.name).kill()

    def start(contestant: Contestant) -> None:
        workers[contestant.name] = _Worker(contestant, patience)
        rows[contestant.name]["ready"] = workers[contestant.name].ready

    def end(contestant: Contestant) -> None:
        peak = workers[contestant.name].end()
        del workers[contestant.name]
        rows[contestant.name]["peak_megabytes"] = max(peak, rows[contestant.name]["peak_megabytes"])

    try:
        if not restart:
            for contestant in list(playing):
                with failures(contestant):
                    start(contestant)
        for number in range(rounds):
            shift = number % max(1, len(playing))
            for contestant in playing[shift:] + playing[:shift]:
                with failures(contestant):
                    if restart:
                        start(contestant)
                    rows[contestant.name]["rounds"].append(workers[contestant.name].round())
                    if restart:
                        end(contestant)
        for contestant in [] if restart else list(playing):
            with failures(contestant):
                end(contestant)
    finally:
        for worker in workers.values():
            worker.kill()
    _summarize(list(rows.values()))
    case = {"work": work, "rows": list(rows.values())}
    _log(table([case]))  # a run that is stopped later still says this
    return case


def _rates(row: Mapping[str, Any]) -> list[float]:
    return [each["count"] / each["seconds"] for each in row["rounds"]]


def _summarize(rows: Sequence[dict[str, Any]]) -> None:
    """Adds medians and ratios to the rows that have all rounds; removes what failed ones have of them."""
    whole = [row for row in rows if "left_out" not in row and "error" not in row]
    for row in whole:
        rates = _rates(row)
        row["unit"] = row["rounds"][0]["unit"]
        row |= {"rate": statistics.median(rates), "lowest": min(rates), "highest": max(rates)}
    if whole and whole[0] is rows[0]:
        reference = _rates(rows[0])
        for row in whole:
            ratios = [ours / theirs for ours, theirs in zip(reference, _rates(row), strict=True)]
            row["times_reference"] = statistics.median(ratios)


def table(cases: Sequence[Mapping[str, Any]]) -> str:
    """The Markdown table of the results of `compare`."""
    lines = [
        "| work | | median | lowest to highest | of the ceiling | reference / this | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        ceiling = next((row.get("rate") for row in case["rows"] if row["name"] == CEILING), None)
        for row in case["rows"]:
            if "rate" not in row:
                lines.append(f"| {case['work']} | {row['name']} | {row.get('error') or row['left_out']} | | | | |")
                continue
            share = f"{row['rate'] / ceiling:.0%}" if ceiling else ""
            times = f"{row['times_reference']:.2f}" if "times_reference" in row else ""
            lines.append(
                f"| {case['work']} | {row['name']} | {row['rate']:.3g} {row['unit']}/s | {row['lowest']:.3g} to "
                f"{row['highest']:.3g} | {share} | {times} | {row['peak_megabytes'] / 1000:.1f} GB |"
            )
    return "\n".join(lines)


def dense_products(config: BertConfig, tokens: int) -> list[list[int]]:
    """The products of an encoder's dense layers for so many tokens, as the ceiling takes them: [m, k, n, times]."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
    return [
        [tokens, hidden, 3 * hidden, layers],
        [tokens, hidden, hidden, layers],
        [tokens, hidden, (config.feed_forward_matrices - 1) * inner, layers],
        [tokens, inner, hidden, layers],
    ]


def machine() -> dict[str, Any]:
    """The processor, its extensions, the cores that this process may use, and the memory."""
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text(errors="replace")
    flags = set(next(iter(re.findall(r"^flags\s*:(.*)$", cpuinfo, re.M)), "").split())
    meminfo = pathlib.Path("/proc/meminfo").read_text()
    return {
        "processor": next(iter(re.findall(r"^model name\s*:\s*(.*)$", cpuinfo, re.M)), platform.machine()),
        "extensions": [name for name in _EXTENSIONS if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gigabytes": round(int(re.findall(r"^MemTotal:\s*(\d+)", meminfo, re.M)[0]) / 1e6),
        "load_at_start": os.getloadavg()[0],
        "system": platform.platform(),
    }


def flags(parser: argparse.ArgumentParser, rounds: int = 5) -> None:
    """Adds the flags that all benchmarks have."""
    parser.add_argument("--rounds", type=int, default=rounds, help="of each contestant")
    parser.add_argument("--only", default="", help="regular expression: the contestants that take part")
    parser.add_argument("--output", default="", help="JSON file for the results")
    for name, folder in (("torch", "torch"), ("kerashub", "kerashub"), ("garden", "model-garden")):
        default = str(ROOT / f".venv-{folder}" / "bin" / "python")
        parser.add_argument(f"--{name}_python", default=default, help="interpreter of this peer's environment")


def report(
    arguments: argparse.Namespace, started: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], text: str = ""
) -> None:
    """Prints the table and writes the JSON file; exits with status 1 if a contestant failed.

    Args:
        arguments: with the attributes of `flags`.
        started: `machine()`, from before the first case.
        cases: results of `compare`.
        text: to print instead of `table(cases)`.
    """
    if arguments.output:
        result = {
            "machine": dict(started), "date": datetime.date.today().isoformat(),
            "command": " ".join(["python", *sys.argv]), "cases": list(cases),
        }  # fmt: skip
        pathlib.Path(arguments.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(text or table(cases), flush=True)
    if any("error" in row for case in cases for row in case["rows"]):
        sys.exit(1)


def _log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
