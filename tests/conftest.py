"""For all tests."""

import sys

import pytest

from tests.programs import Programs

# PyTorch's compiler for GPUs and TensorFlow each bring LLVM, and the second to be loaded ends the process. PyTorch does
# without where there is none.
sys.modules.setdefault("triton", None)


@pytest.fixture(scope="session")
def programs():
    """Runs the programs; one server for all tests, for it loads TensorFlow."""
    programs = Programs()
    yield programs
    programs.close()
