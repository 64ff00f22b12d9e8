"""Answers of exported models in one new process that knows nothing of bert_tf: starting one takes seconds."""

import json
import subprocess
import sys

import bert_tf.serving.ask

# -I keeps the working directory and PYTHONPATH out of it; ask.py is run by its path.
_PROGRAM = """
import json, runpy, sys
Model = runpy.run_path(sys.argv[1])["Model"]
for line in sys.stdin:
    path, questions = json.loads(line)
    model = Model(path)
    print(json.dumps([model.ask(question) for question in questions]), flush=True)
assert "bert_tf" not in sys.modules
"""


def answers(*exports, cwd):
    """What exported models answer.

    Args:
        *exports: (path of a version's folder, list of questions: dicts name of an input -> value).
        cwd: working directory of the new process, not the checkout.

    Returns:
        list of a list of answers, dicts, for each export.
    """
    lines = "".join(json.dumps([str(path), questions]) + "\n" for path, questions in exports)
    command = [sys.executable, "-I", "-c", _PROGRAM, bert_tf.serving.ask.__file__]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=cwd, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
