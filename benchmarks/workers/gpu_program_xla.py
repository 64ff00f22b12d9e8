"""Compiles an HLO file for an H100 and counts its kernels: gpu_program_xla.py FILE, in an environment with JAX.

Prints a line of JSON: kernels, products among them, gigabytes that all kernels read and write, those of the products,
gigabytes of temporaries, the different calls of cuDNN's attention, and how these differ from those that JAX makes.
"""

import functools
import json
import os
import pathlib
import re
import sys
from typing import Any

import nvidia.cuda_nvcc

os.environ["XLA_FLAGS"] += f" --xla_gpu_cuda_data_dir={next(iter(nvidia.cuda_nvcc.__path__))}"

import jax
import jax._src.cudnn.fused_attention_stablehlo as attention
import jax.numpy as jnp
import jaxlib._jax as lib
from gpu_traffic import counted
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies

# NVIDIA's data of an H100 SXM with 80 GB, as XLA names them, with cuDNN 9.7 and CUDA 12.8.
H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 3352320000000
  device_memory_size: 84929347584
  l2_cache_size: 52428800
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
"""


def main() -> None:
    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    device = topology.devices[0]
    text = lib.mlir.hlo_to_stablehlo(pathlib.Path(sys.argv[1]).read_bytes())
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        found_calls = calls(str(module))
        differences = sorted(filter(None, map(difference, found_calls)))
        program = device.client.compile(module, lib.DeviceList((device,)), xla_client.CompileOptions())
    found = counted(program.hlo_modules()[0].to_string())
    temporaries = program.get_compiled_memory_stats().temp_size_in_bytes / 1e9
    names = sorted(name for name, *_ in found_calls)
    print(json.dumps({**found, "temporaries": temporaries, "calls": names, "differences": differences}))


def calls(module: str) -> set[tuple[str, str, str]]:
    """The name, settings and operands' types of each call of cuDNN's attention in StableHLO."""
    pattern = r'custom_call @(__cudnn\$fmha\w+)\(.*?backend_config = "(.*?)", .*?\} : \((.*?)\)'
    return {found.groups() for found in re.finditer(pattern, module)}


def difference(call: tuple[str, str, str]) -> str:
    """How a call differs from JAX's for the same arrays, "" if it does not."""
    name, settings, types = call
    found, expected = (json.loads(one.replace(r"\22", '"')) for one in (settings, of_jax(name, settings, types)))
    missing = list(differing(found, expected))
    return f"{name} {', '.join(missing)}" if missing else ""


def differing(found: Any, expected: Any, path: str = "") -> Any:
    """Yields the settings that are not JAX's, which writes numbers as strings; what it leaves out is ours alone."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key != "force_deterministic":
                yield from differing(value, expected.get(key), f"{path}.{key}")
    elif isinstance(found, list):
        if [str(one) for one in found] != [str(one) for one in expected or ()]:
            yield f"{path} is {found}, expected {expected}"
    elif not isinstance(expected, type(found)) or found != expected:
        yield f"{path} is {found}, expected {expected}"


@functools.cache
def of_jax(name: str, settings: str, types: str) -> str:
    """The settings of JAX's call of this name for arrays of these types."""
    # JAX asks the card, and there is none.
    attention.check_cudnn_version = lambda: 91000
    attention.check_compute_capability = lambda capability: True
    attention.is_cuda_compute_capability_equal = lambda capability: False
    sizes, dtype = re.match(r"tensor<([\dx]+)x(\w+)>", types).groups()
    shape = [int(size) for size in sizes.split("x")]
    states = jax.ShapeDtypeStruct(shape, {"bf16": jnp.bfloat16, "f16": jnp.float16}[dtype])
    rows = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    bias = jax.ShapeDtypeStruct([shape[0], 1, shape[1], shape[1]], states.dtype)
    mask = attention.MaskType[re.search(r"mask_type\\22: \\22(\w+)", settings)[1]]

    def both(query: Any, key: Any, value: Any, rows: Any, bias: Any) -> Any:
        def attend(*states: Any) -> Any:
            seen = {"q_seqlen": rows, "kv_seqlen": rows} if mask == attention.MaskType.PADDING else {}
            seen |= {"bias": bias} if "Bias" in name else {}
            return attention.dot_product_attention(*states, **seen, scale=shape[-1] ** -0.5, mask_type=mask)

        context, backward = jax.vjp(attend, query, key, value)
        return context, backward(context)

    lowered = jax.jit(both).trace(states, states, states, rows, bias).lower(lowering_platforms=("cuda",)).as_text()
    ((expected, of_operands),) = [(one, operands) for found, one, operands in calls(lowered) if found == name]
    if of_operands != types:
        raise ValueError(f"{name} has the operands {types}, JAX's has {of_operands}")
    return expected


if __name__ == "__main__":
    main()
