"""Fixtures for all tests."""

import gc
import sys

import pytest

from tests.programs import ROUGH, report_missing_tf_text, running
from tests.sessions import ForkedSession

# PyTorch's compiler for GPUs and TensorFlow each contain LLVM, and loading the second one ends the process. PyTorch
# works without its compiler if there is none.
sys.modules.setdefault("triton", None)


# The longest first: one of them at the end would leave the other process without work.
LONG = ("tests/test_pages", "tests/inference", "tests/inputs", "tests/test_programs", "tests/training")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [*map(item.nodeid.startswith, LONG), True].index(True))


def pytest_collection_finish():
    # The imported modules are a million objects; each full garbage collection would take a second for them.
    gc.collect()
    gc.freeze()
    # Graphs are built from many small objects, few of which are garbage.
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="module", autouse=True)
def _isolated():
    """Frees the models and graphs of a file's tests after the last one; they would add up to gigabytes."""
    from bert_tf.training.runs.stage import isolated_session  # not in the process that only starts those of the tests

    with isolated_session():
        yield
    # What is left, modules and what all files share, stays: later collections, of which a server makes one for each
    # version that it unloads, need not look at it again, which takes a quarter of a second.
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _sessions():
    """Checks of exports run in processes of `programs`, which have loaded TensorFlow; some numbers are rough."""
    from bert_tf.inference import saved_model

    report_missing_tf_text()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(saved_model, "Session", ForkedSession)
        for module, values in ROUGH.items():
            for name, value in values.items():
                patched.setattr(f"{module}.{name}", value)
        yield


@pytest.fixture(scope="session")
def programs():
    """Runs the programs, with one server for all tests because loading TensorFlow takes seconds."""
    return running()
