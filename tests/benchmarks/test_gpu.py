"""benchmarks/gpu.py, on the CPU: its checks of numbers, and a report that survives stages that end early."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.config import BertConfig

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def training():
    spec = importlib.util.spec_from_file_location("gpu_training", PROGRAM.parent / "workers" / "gpu_training.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder, *arguments, **environment):
    """The finished process and its report."""
    output = folder / "gpu.json"
    command = [sys.executable, PROGRAM, "--small", f"--output={output}", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    return finished, json.loads(output.read_text())


def test_stages_that_take_too_long_are_ended_and_the_report_names_them(tmp_path):
    finished, report = run(tmp_path, "--stages=products,inference", "--minutes=0.02")
    assert finished.returncode == 1
    assert "not complete: products, inference" in finished.stdout
    assert all(stage["error"].startswith("stopped after") for stage in report["stages"].values())


def test_batches_are_powers_of_two_that_fill_up_to_half_of_the_memory(training):
    base, large = BertConfig.from_name("base"), BertConfig.from_name("large")
    assert training.rows_for(base, 128, 141e9) == 256
    assert training.rows_for(large, 512, 141e9) > training.rows_for(large, 512, 24e9) >= 1
    assert training.rows_for(large, 512, 1e9) == 1


# What such a machine may lack: an import of one of these ends the stage.
BLOCKER = """
import importlib.abc, sys
missing = {"apache_beam", "huggingface_hub", "jinja2", "matplotlib", "ml_collections", "pandas", "scipy", "sklearn",
           "tensorboard", "tensorflow_serving", "tokenizers", "yaml"}
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.slow
def test_every_stage_runs_and_its_checks_pass_without_the_packages_of_reports(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    finished, report = run(tmp_path, PYTHONPATH=str(tmp_path))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert not [row for row in report["rows"] if "error" in row]
    checked = [row for row in report["rows"] if "right" in row]
    assert {row["stage"] for row in checked} == {"encoder", "updates", "resume"}
    assert all(row["right"] for row in checked)
    assert {row["stage"] for row in report["rows"]} == set(report["stages"])
