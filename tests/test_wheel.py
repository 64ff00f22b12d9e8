"""The wheel contains what an installed package needs, and no tests."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import bert_tf

ROOT = pathlib.Path(bert_tf.__file__).parent.parent
# In a directory without the checkout: the bundled config and data, a program, a template, and the Python API.
PROGRAM = """
import os, pathlib, runpy
try:
    runpy.run_module("bert_tf.finetune", run_name="__main__")
except SystemExit as end:
    print(end.code)
import bert_tf
from bert_tf.bundled import config
from bert_tf.files import bundled
from bert_tf.inputs.corpus.readers import find_files
from bert_tf.report import pages
assert "installed" in bert_tf.__file__, bert_tf.__file__
print(config("finetune/reviews.py").data.train, pathlib.Path(bundled("data/reviews/train.tsv")).exists())
print(pages.__name__, bert_tf.TextClassifier.__name__)
print(len(bert_tf.read("table", "data/reviews", "heldout.tsv")), len(find_files("data/korean/*_train.txt.gz")))
print(os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""
FINETUNE = ["--config=finetune/reviews.py", "--data_dir=data/reviews", "--init=nowhere", "--model_dir=model"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy: setuptools builds in the checkout, in a folder that later wheels would take removed modules from."""
    source = tmp_path_factory.mktemp("source")
    for name in ("bert_tf", "configs", "data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


def wheel_of(source, folder):
    """The wheel that pip makes of a folder or an sdist."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source]
    subprocess.run(command, check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_all_modules_and_data_but_no_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "bert_tf"
    needed = {str(path.relative_to(ROOT)) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert needed <= names
    assert "bert_tf/configs/finetune/reviews.py" in names and "bert_tf/data/reviews/train.tsv" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "examples"))]


@pytest.mark.slow
def test_the_sdist_gives_the_same_wheel(source, wheel, tmp_path):
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert sdist.name == f"bert_tf-{bert_tf.__version__}.tar.gz"
    names = {*zipfile.ZipFile(wheel_of(sdist, tmp_path)).namelist()}
    assert names == {*zipfile.ZipFile(wheel).namelist()}


@pytest.mark.slow
def test_an_installed_wheel_finds_its_files(wheel, tmp_path):
    folder = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, wheel], check=True
    )
    environment = os.environ | {"PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-P", "-c", PROGRAM, *FINETUNE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "train.tsv", "True", "bert_tf.report.pages", "TextClassifier", "1500", "2", "3"]
    for path in ("finetune/reviews.py", "data/reviews"):
        assert (
            f"bert_tf: {path}: not in this directory; reading the one that ships with bert_tf, {folder}" in done.stderr
        )
    assert "bert_tf: error: nowhere" in done.stderr
    assert not re.search(r"^[IWE]\d{4} ", done.stderr, re.MULTILINE)  # of TensorFlow's C++ parts
