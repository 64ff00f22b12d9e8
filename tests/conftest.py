"""For all tests."""

import gc
import sys

import pytest

from bert_tf.training.runs.runner import isolated_session
from tests.programs import Programs

# PyTorch's compiler for GPUs and TensorFlow each bring LLVM, and the second to be loaded ends the process. PyTorch does
# without where there is none.
sys.modules.setdefault("triton", None)


def pytest_collection_finish():
    # The imported modules are a million objects, which every full collection would look through, a second each time.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _isolated():
    """Frees the models and graphs of a file's tests at its end: they would add up to gigabytes."""
    with isolated_session():
        yield


@pytest.fixture(scope="session")
def programs():
    """Runs the programs; one server for all tests, for it loads TensorFlow."""
    programs = Programs()
    yield programs
    programs.close()
