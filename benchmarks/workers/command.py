"""A whole command: each round runs it, from the start of its process to its exit or until it has written a file."""

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from worker import Round, serve


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    """Settings.

    `command`: list of words, in which {output} becomes a path that does not exist; `until`: a file whose first line
    ends the clock, with the same {output}; empty for the exit.
    """

    def do_round() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            output = os.path.join(folder, "output")
            command = [word.replace("{output}", output) for word in settings["command"]]
            until = settings["until"].replace("{output}", output)
            start = time.perf_counter()
            process = subprocess.Popen(command, stdout=sys.stderr)
            if until:
                while process.poll() is None and not (os.path.exists(until) and os.path.getsize(until)):
                    time.sleep(0.01)
                seconds = time.perf_counter() - start
                if process.poll() is None:
                    process.kill()
                    process.wait()
                    return {"seconds": seconds, "count": 1, "unit": "runs"}
            if process.wait():
                raise ValueError(f"exit status {process.returncode}")
            return {"seconds": time.perf_counter() - start, "count": 1, "unit": "runs"}

    do_round()  # so that the files of the libraries are in the page cache
    return {"command": " ".join(settings["command"])}, do_round


serve(setup)
