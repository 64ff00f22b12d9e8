"""The processor's instruction sets, and what follows from them for an exported version: which variant of its graph is
computed here, and whether it can be loaded.

Imports only Python's own modules, because `inference/ask.py` loads it by its path where the package is not installed.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

CPUINFO = "/proc/cpuinfo"
GRAPH = "saved_model.pb"
# oneDNN's environment variable, under its present and its old name; its value -> beginnings of the instruction sets, in
# /proc/cpuinfo's names, that it forbids.
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_UNUSED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sse41", "avx", "avx2"), ("avx512", "avx_vnni", "amx")),
    **dict.fromkeys(("avx2_vnni", "avx2_vnni_2"), ("avx512", "amx")),
    "avx512_core": ("avx512_vnni", "avx_vnni", "avx512_bf16", "amx"),
    "avx512_core_vnni": ("avx512_bf16", "amx"),
}


class Variant(TypedDict):
    """A variant of the graph of an optimized export, for some processors, as in its model card.

    Attributes:
        computes: how its products are computed, for people.
        instructions: groups of instruction sets, in /proc/cpuinfo's names; it needs one of each group.
    """

    computes: str
    instructions: list[list[str]]


def limit_of_onednn(environment: Mapping[str, str]) -> tuple[str, str]:
    """Name and value of the variable that limits the instruction sets of oneDNN; the value is "" if there is none."""
    name = next((name for name in _LIMITS if environment.get(name)), _LIMITS[0])
    return name, environment.get(name, "")


def all_flags() -> frozenset[str]:
    """Names of the instruction sets that the processor has; empty where they are not known."""
    try:
        with open(CPUINFO, encoding="utf-8", errors="replace") as file:
            found = re.search(r"^flags\s*:(.*)$", file.read(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(found[1].split() if found else ())


def processor_flags(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """Names of the instruction sets that TensorFlow's kernels may use here; empty where they are not known.

    Args:
        environment: variables, of which one may limit oneDNN; None for those of this process.
    """
    unused = _UNUSED.get(limit_of_onednn(os.environ if environment is None else environment)[1].lower(), ())
    return frozenset(name for name in all_flags() if not name.startswith(unused))


def _chosen(variants: Sequence[Variant], flags: Collection[str]) -> Variant | None:
    """The first variant for whose instruction sets these flags suffice: the one that the graph chooses."""
    for variant in variants:
        if all(not set(group).isdisjoint(flags) for group in variant["instructions"]):
            return variant
    return None


def variants_of(card: Any) -> list[Variant]:
    """The variants of an exported version by its model card, the fastest first; [] if it has only one."""
    if not isinstance(card, dict) or card.get("format") != "bert_tf":  # others mean something else by the word
        return []
    return card.get("variants") or []


def unsuitable(variants: Sequence[Variant]) -> str:
    """Why a version with these variants would fail here; "" if it works.

    TensorFlow does not look: without AVX-512, its kernel for bfloat16 ends the process, and without int8 dot products,
    the one for int8 returns wrong numbers.
    """
    here, usable = _chosen(variants, all_flags()), _chosen(variants, processor_flags())
    if here is None or here == usable or not all_flags():
        return ""
    return (
        f"{'='.join(limit_of_onednn(os.environ))} forbids instruction sets that the processor has and the graph "
        f"would use, {needed(here)}; unset it"
    )


def describe_variant(variants: Sequence[Variant]) -> str:
    """Which of its variants a version computes here, for people; "" if it has only one."""
    variant = _chosen(variants, all_flags())
    if variant is None or len(variants) == 1:
        return ""
    rest = "" if variant == variants[0] else f", slower than with {needed(variants[0])}"
    return f"computes {variant['computes']}{rest}"


def needed(variant: Variant) -> str:
    """The instruction sets that a variant needs, which must be some, for people."""
    groups = [" or ".join(group) for group in variant["instructions"]]
    return groups[0] if len(groups) == 1 else " and ".join(f"({group})" for group in groups)


def changed(card: Any, graph: bytes | None) -> str:
    """Why a graph is not the one that was exported with a model card, of which a loader would say nothing; "" if it is.

    Args:
        card: of the version; those of other programs and of earlier versions have no checksum.
        graph: content of its saved_model.pb, if it has one. TensorFlow itself checks the variables beside it.
    """
    checksums = card.get("crc32") if isinstance(card, dict) and card.get("format") == "bert_tf" else None
    expected = checksums.get(GRAPH) if isinstance(checksums, dict) else None
    if graph is None or expected in (None, found := f"{zlib.crc32(graph):08x}"):
        return ""
    return f"{GRAPH} is damaged (CRC-32 {found}, expected {expected}); copy or export the version again"
