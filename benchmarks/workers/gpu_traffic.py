"""Counts the kernels of a program that XLA has compiled for a GPU, and the memory that they read and write."""

import math
import re
from typing import Any

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}
# Instructions that are no kernels.
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier")
_ARRAY = re.compile(r"\b(" + "|".join(_BYTES) + r")\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:, |$)")


def counted(program: str) -> dict[str, Any]:
    """Kernels of a compiled program, and the gigabytes that they read and write."""
    sizes: dict[str, int] = {}
    kernels, products, moved, by_products = 0, 0, 0, 0
    for line in program[program.index("\nENTRY") :].splitlines():
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        name, results, operation, operands = found.groups()
        library = "custom_call_target" in line
        # The scratch memory of libraries is no traffic of their operands.
        sizes[name] = size_of(re.sub(r"\b[su]8\[\d+\]", "", results) if library else results)
        if operation in _FREE:
            continue
        read = {operand for operand in re.findall(r"%?([\w.-]+)", operands) if operand in sizes}
        traffic = sizes[name] + sum(sizes[operand] for operand in read)
        is_product = "__cublas" in line
        kernels, products = kernels + 1, products + is_product
        moved, by_products = moved + traffic, by_products + is_product * traffic
    return {
        "kernels": kernels, "products": products, "gigabytes": moved / 1e9, "gigabytes of products": by_products / 1e9,
    }  # fmt: skip


def size_of(results: str) -> int:
    """Bytes of the arrays in a type of HLO."""
    shapes = [(kind, [int(size) for size in sizes.split(",") if size]) for kind, sizes in _ARRAY.findall(results)]
    return sum(_BYTES[kind] * math.prod(shape) for kind, shape in shapes)
