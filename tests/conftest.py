"""For all tests."""

import sys

# PyTorch's compiler for GPUs and TensorFlow each bring LLVM, and the second to be loaded ends the process. PyTorch does
# without where there is none.
sys.modules.setdefault("triton", None)
