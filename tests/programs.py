"""Runs the programs like `python -m`, each in its own process, forked from one that has already loaded TensorFlow.

Otherwise starting takes seconds, longer than most tests of a program's errors.
"""

import atexit
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback

_PYPROJECT = pathlib.Path(__file__).parent.parent / "pyproject.toml"


# What rough numbers are enough for: the processor's peak, measured for two seconds in each process, and intervals of
# metrics, for which each evaluation computes its metrics a thousand times.
ROUGH = {
    "bert_tf.training.speed": {"_SIZES": (512,), "_TRIES": 1},
    "bert_tf.metrics.statistics": {"RESAMPLES": 100},
}


@dataclasses.dataclass
class Done:
    status: int
    output: str
    errors: str

    @property
    def error_line(self):
        """The single line printed by a failure or an interruption, without progress bars and evaluations."""
        assert "Traceback" not in self.errors, self.errors
        lines = [line for line in self.errors.replace("\r", "\n").splitlines() if line.startswith("bert_tf: ")]
        assert len(lines) == 1, self.errors
        return lines[0]


class Programs:
    def __init__(self):
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.programs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, name, *arguments, meanwhile=None, stdin=""):
        """Runs bert_tf.NAME, or the console command bert-tf-NAME.

        `meanwhile` is called with its process id as soon as it has started.
        """
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/in", "w", encoding="utf-8") as file:
                file.write(stdin)
            print(json.dumps([name, folder, *map(str, arguments)]), file=self._server.stdin, flush=True)
            process = int(self._server.stdout.readline())
            if meanwhile:
                meanwhile(process)
            status = int(self._server.stdout.readline())
            output, errors = (open(f"{folder}/{stream}").read() for stream in ("out", "err"))  # noqa: SIM115
        return Done(status, output, errors)

    def succeed(self, name, *arguments, stdin=""):
        done = self(name, *arguments, stdin=stdin)
        assert done.status == 0, done.errors
        return done

    def close(self):
        self._server.stdin.close()
        self._server.wait(60)


@functools.cache
def running() -> Programs:
    """The Programs of this process, which end with it."""
    programs = Programs()
    atexit.register(programs.close)
    return programs


def report_missing_tf_text():
    """Prints the line on a missing TF Text here, once, and not where other lines are expected."""
    from bert_tf.text import operations

    if not operations.TF_TEXT:
        from bert_tf.text import without_tf_text

        without_tf_text._report()


def peak_memory(*command):
    """Runs a command that succeeds; returns the peak resident memory of its process, in bytes.

    Linux counts for a process also what its parent had when it started, so a small one starts it here.
    """
    run = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", run, *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) * 1024


def wait_for(condition, seconds=120):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end
        time.sleep(0.02)


def _serve():
    # Loads everything that takes long, but runs no TensorFlow operation: its threads would not survive the fork.
    # As in a program, bert_tf.app comes first: TensorFlow 2.20 reads its log level while it is loaded.
    import bert_tf.app  # isort: skip
    from ml_collections import config_flags  # noqa: F401

    import bert_tf.training.runs.finetuning  # noqa: F401

    report_missing_tf_text()
    for name, values in ROUGH.items():
        vars(importlib.import_module(name)).update(values)
    for line in sys.stdin:
        name, folder, *arguments = json.loads(line)
        process = os.fork()
        if not process:
            _run(name, folder, arguments)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _run(name, folder, arguments):
    status = 1
    try:
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{stream}", os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(f"{folder}/in", os.O_RDONLY), 0)
        sys.argv = [name, *arguments]
        if name.startswith("bert-tf-"):  # as the script that pip installs
            scripts = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
            importlib.metadata.EntryPoint(name, scripts[name], "console_scripts").load()()
        else:
            runpy.run_module(f"bert_tf.{name}", run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as done:
        status = done.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
