"""Every output that docs/python.md and the README give for their Python is what it prints."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.bundled import write_english_vocabulary
from tests.packages import minilm
from tests.pages import blocks, difference

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/python.md"


def run(folder, *command):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]


def check(folder, numbers, page=PAGE):
    """Runs blocks of a page and compares their outputs."""
    minilm()
    if not (folder / "data").exists():
        (folder / "data").symlink_to(ROOT / "data")
    run(folder, "-m", "tests.pages", str(page), *map(str, numbers))
    outputs = json.loads((folder / "outputs.json").read_text(encoding="utf-8"))
    for number, printed in zip(numbers, outputs, strict=True):
        code, expected = blocks(page)[number]
        found = difference(printed, expected)
        assert not found, f"{code}\n{found}\n{printed}"


def test_outputs_that_need_no_training_are_those_of_the_page(tmp_path):
    chosen = [number for number, block in enumerate(blocks(PAGE)) if re.search(r"(?<!\.)\bpath\b", block.code)]
    chosen = [number for number in chosen if "fit(" not in blocks(PAGE)[number].code]
    assert len(chosen) == 3  # the path, vectors, and inputs and outputs of the encoder
    check(tmp_path, chosen)


@pytest.mark.slow
def test_every_output_is_that_of_the_page(tmp_path):
    write_english_vocabulary(str(tmp_path / "vocab.txt"))  # the model of the quick start
    arguments = [f"--config={ROOT}/configs/pretrain/tiny.py", "--model_dir=runs/quickstart/tiny"]
    run(tmp_path, "-m", "bert_tf.pretrain", *arguments)
    check(tmp_path, range(len(blocks(PAGE))))


@pytest.mark.slow
def test_the_outputs_of_the_readme_are_those_of_its_example(tmp_path):
    check(tmp_path, [0], ROOT / "README.md")


def test_a_difference_is_found():
    assert difference("{'a': 0.52, 'b': [1,\n 2, 3, 4]}", "{'a': 0.5, 'b': [1, ...]}") is None
    assert difference("{'a': 0.72}", "{'a': 0.5}") == "'0.5' is documented, '0.72' was printed"
    assert difference("London 25 31 0.3", "1815 35 39 0.3") == "'1815' is documented, 'London' was printed"
    assert difference("a", "a b") == "'b' is documented, 'nothing' was printed"
    assert difference("a b", "a") == "'nothing' is documented, 'b' was printed"
