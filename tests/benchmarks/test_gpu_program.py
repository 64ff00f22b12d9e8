"""benchmarks/gpu_program.py: how it counts kernels, on a program with one of each kind."""

import importlib.util
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "benchmarks" / "workers" / "gpu_traffic.py"
PROGRAM = """HloModule jit_step

%fused (x: f32[4,8]) -> bf16[4,8] {
  ROOT %inside = bf16[4,8]{1,0} convert(%x)
}

ENTRY %main (p0: f32[4,8], p1: bf16[8,16]) -> (bf16[4,16], f32[4]) {
  %p0 = f32[4,8]{1,0} parameter(0)
  %p1 = bf16[8,16]{1,0} parameter(1)
  %cast = bf16[4,8]{1,0} fusion(%p0), kind=kLoop, calls=%fused
  %product = (bf16[4,16]{1,0}, s8[33554432]{0}) custom-call(%cast, %p1), custom_call_target="__cublas$lt$matmul"
  %element = bf16[4,16]{1,0} get-tuple-element(%product), index=0
  %again = bf16[4,16]{1,0} bitcast(%element)
  %two = (f32[4]{0}, f32[4]{0}) fusion(%again, %again, %p0), kind=kInput, calls=%other
  %sums = f32[4]{0} get-tuple-element(%two), index=1
  ROOT %result = (bf16[4,16]{1,0}, f32[4]{0}) tuple(%element, %sums)
}
"""


@pytest.fixture(scope="module")
def traffic():
    spec = importlib.util.spec_from_file_location("gpu_traffic", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_count_their_operands_once_and_no_scratch_memory(traffic):
    cast, product, two = 128 + 64, 64 + 256 + 128, 128 + 128 + 2 * 16
    assert traffic.counted(PROGRAM) == {
        "kernels": 3,
        "products": 1,
        "gigabytes": pytest.approx((cast + product + two) / 1e9),
        "gigabytes of products": pytest.approx(product / 1e9),
    }
