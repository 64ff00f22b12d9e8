"""The commands and Python examples of Markdown pages: finding them, running them, and comparing what they print.

    python -m tests.pages PAGE NUMBER...

runs these blocks of Python of a page, one after the other in one process, and writes their outputs, a list, to
outputs.json.
"""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_TOKEN = re.compile(r"\.\.\.|-?\d+(?:\.\d*)?(?:e-?\d+)?|\w+|\S")
# Processors compute in different number formats. The models of docs/python.md, trained in float32 for AVX2 and in
# bfloat16, differ by 0.005 in accuracies and scores, by 0.001 in other probabilities.
_ABSOLUTE, _RELATIVE = 0.02, 0.01
# First words of the indented lines that are commands; others are outputs and the contents of files.
_COMMANDS = "awk cat cd cp curl cut docker echo export for make mkdir nvidia-smi openssl pip prometheus python python3 "
_COMMANDS += "source tar tensorboard tensorflow_model_server wget zcat"
_PORT = 8501  # of the servers that pages start

# What pages assume: the tools of this environment, which has what they install with pip, and what make builds. A server
# is started when its port is open, and ends when the next one is started, or with the session. HOST in an address is
# this machine, and an answer that is an error fails.
_PRELUDE = f"""
set -eo pipefail
export PATH="{Path(sys.executable).parent}:$PATH"
pip() {{ :; }}
make() {{ command make --old-file=.venv/bin/.ready "$@"; }}
curl() {{ command curl --silent --show-error --fail-with-body --resolve HOST:{_PORT}:127.0.0.1 "$@"; }}
is_open() {{ (echo > /dev/tcp/127.0.0.1/{_PORT}) 2> /dev/null; }}
stop() {{ kill $(jobs -p) 2> /dev/null && wait || true; }}
served() {{ stop; "$@" & for _ in $(seq 300); do is_open && return; kill -0 $! || return 1; sleep 1; done; return 1; }}
trap stop EXIT
"""
_COPIED = ("Makefile", "README.md", "benchmarks", "bert_tf", "configs", "data", "docs", "pyproject.toml")
# The name of a program that trains, and what follows it; five updates are enough to fail.
_TRAINING = re.compile(r"bert_tf\.(?:pretrain|finetune|distill) (?:[^\n#]*\\\n)*[^\n#]*")


def _shortened(training):
    return re.sub(r"--config\.train\.steps=\S+", "", training[0]) + " --config.train.steps=5 "


class Block(NamedTuple):
    """A block of code and the indented output that follows it, "" if there is none."""

    code: str
    output: str


class Step(NamedTuple):
    """A part of a page that its reader runs: a paragraph of commands, or a block of Python.

    Attributes:
        code: without the indentation.
        python: the number of the block of Python, as in `blocks`; None for commands.
    """

    code: str
    python: int | None = None


def blocks(path):
    """The blocks of Python of a page."""
    text = Path(path).read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```\n(?:\n((?: {4}[^\n]*\n|\n)+))?", text, re.MULTILINE | re.DOTALL)
    return [Block(one[1], re.sub(r"^ {4}", "", one[2] or "", flags=re.MULTILINE).strip()) for one in found]


def steps(path):
    """What the reader of a page runs, in its order."""
    found, numbers = [], iter(range(1000))
    text = Path(path).read_text(encoding="utf-8")
    for part in re.finditer(r"^```(\w*)\n(.*?)^```$|((?:^ {4}[^\n]*\n)+)", text, re.MULTILINE | re.DOTALL):
        language, fenced, indented = part.groups()
        if language == "python":
            found.append(Step(fenced, next(numbers)))
        elif indented:
            code = re.sub(r"^ {4}", "", indented, flags=re.MULTILINE)
            first = re.search(r"^(?!#)[\w-]+", code, re.MULTILINE)
            # NAME=VALUE is one, too.
            if first and (first[0] in _COMMANDS.split() or re.match(r"[A-Z]+=", code[first.start() :])):
                found.append(Step(code))
    return found


def named_commands(path):
    """The commands in a page's text and tables: `NAME --flag=...`, where NAME is a program's or follows python -m."""
    text = Path(path).read_text(encoding="utf-8")
    programs = "|".join(one.stem for one in (ROOT / "bert_tf").glob("*.py"))
    return [f"{one[1]} {one[2]}" for one in re.finditer(rf"`(?:python -m bert_tf\.)?({programs}) (-[^`]*)`", text)]


def run_steps(folder, chosen, brief=(), given=""):
    """Runs steps of pages, one after the other in one shell, in a copy of the checkout.

    Args:
        folder: an empty directory, which becomes the copy.
        chosen: pairs of a page's path and a step.
        brief: texts that mark the steps in which each training ends after five updates.
        given: Python that comes before the blocks of each page, such as variables that stand for the reader's.

    Returns:
        What blocks of Python have printed, by path and number. Those that follow each other share a process.
    """
    for name in _COPIED:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "given.py").write_text(given, encoding="utf-8")
    script, outputs = [_PRELUDE], []
    for path, step in chosen:
        if step.python is None:
            code = _TRAINING.sub(_shortened, step.code) if any(map(step.code.count, brief)) else step.code
            script.append(re.sub(r"^(python -m bert_tf\.serve )", r"served \1", code, flags=re.MULTILINE))
        elif outputs and outputs[-1][0] == path and script[-1] is outputs[-1][2]:
            outputs[-1][1].append(step.python)
        else:
            outputs.append((path, [step.python], []))
            script.append(outputs[-1][2])
    for number, (path, numbers, line) in enumerate(outputs):
        line += [f"python -m tests.pages '{path}' {' '.join(map(str, numbers))}", f"mv outputs.json {number}.json"]
    lines = "\n".join("\n".join(one) if isinstance(one, list) else one for one in script)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", lines], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert done.returncode == 0, f"{done.stdout.decode()[-2000:]}\n{done.stderr.decode()[-4000:]}"
    printed = {}
    for number, (path, numbers, _) in enumerate(outputs):
        texts = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
        printed |= {(path, one): text for one, text in zip(numbers, texts, strict=True)}
    return printed


def difference(printed, documented, tolerance=_ABSOLUTE):
    """The first token of a documented output that was not printed, with what was; None if there is none.

    White space is ignored, floats may differ a little, and "..." stands for any number of tokens.
    """
    tokens = [*_TOKEN.findall(printed), "nothing"]
    expected = [*_TOKEN.findall(documented), "nothing"]
    for number, token in enumerate(expected):
        if token == "...":  # up to the next two tokens, such as "/" and a name
            while len(tokens) > 1 and tokens[:2] != expected[number + 1 : number + 3]:
                tokens.pop(0)
        elif tokens[0] == token or _is_near(tokens[0], token, tolerance):
            tokens.pop(0)
        else:
            return f"{token!r} is documented, {tokens[0]!r} was printed"
    return None


def _is_near(found, expected, tolerance):
    if not re.search(r"\d\.|\de", expected):
        return False
    try:
        return abs(float(found) - float(expected)) <= max(tolerance, _RELATIVE * abs(float(expected)))
    except ValueError:
        return False


def main(path, *numbers):
    page, outputs = blocks(path), []
    # Only the page's own output: `fit` prints its progress.
    namespace = {"print": lambda *values, **options: print(*values, **options, file=outputs[-1])}
    exec(Path("given.py").read_text(encoding="utf-8"), namespace)
    for number in map(int, numbers):
        outputs.append(io.StringIO())
        exec(compile(page[number].code, f"{path}, block {number}", "exec"), namespace)
    Path("outputs.json").write_text(json.dumps([one.getvalue() for one in outputs]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
