"""The number format chosen by train.dtype=auto."""

import re

import pytest

from bert_tf import processor_flags
from bert_tf.model import processors
from bert_tf.training import dtype as training_dtype
from tests.model.small import multiplies_bfloat16

CPUINFO = "processor\t: 0\nmodel name\t: {0}\nflags\t\t: fpu sse avx2 {0} rdpid\nbugs\t\t: avx512_bf16\n\n"


@pytest.fixture
def of_processor(tmp_path, monkeypatch):
    """`processors.of_processor` with other contents of /proc/cpuinfo."""

    def call(cpuinfo, environment):
        (tmp_path / "cpuinfo").write_text(cpuinfo)
        monkeypatch.setattr(processor_flags, "CPUINFO", str(tmp_path / "cpuinfo"))
        return processors.of_processor(environment)

    return call


@pytest.mark.parametrize(
    "flag, environment, dtype",
    [
        ("amx_bf16", {}, "bfloat16"),
        ("avx512_bf16", {}, "bfloat16"),
        ("avx512_bf16 amx_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "bfloat16"),
        ("avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "DEFAULT", "TF_ENABLE_ONEDNN_OPTS": "1"}, "bfloat16"),
        ("avx512_bf16x amx_tile", {}, "float32"),
        ("avx512f", {}, "float32"),
        ("amx_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "float32"),
        ("amx_bf16", {"DNNL_MAX_CPU_ISA": "AVX2"}, "float32"),
        ("avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "avx512_core_vnni"}, "float32"),
        ("amx_bf16", {"TF_ENABLE_ONEDNN_OPTS": "0"}, "float32"),
        ("amx_bf16", {"TF_ENABLE_ONEDNN_OPTS": "False"}, "float32"),
    ],
)
def test_an_x86_processor_uses_bfloat16_if_it_has_usable_instructions_for_it(of_processor, flag, environment, dtype):
    assert of_processor(CPUINFO.format(flag), environment)[0] == dtype


def test_the_reason_is_reported(of_processor):
    info = CPUINFO.format("avx512_bf16")
    assert "avx512_bf16" in of_processor(info, {})[1]
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in of_processor(info, {"ONEDNN_MAX_CPU_ISA": "AVX2"})[1]
    assert "TF_ENABLE_ONEDNN_OPTS=0" in of_processor(info, {"TF_ENABLE_ONEDNN_OPTS": "0"})[1]


def test_the_flags_of_other_processors_are_ignored(of_processor):
    assert of_processor("processor\t: 0\nFeatures\t: fp asimd bf16\n", {}) is None
    assert of_processor("", {}) is None


@multiplies_bfloat16
def test_an_unknown_processor_is_measured():
    dtype, reason = processors._measured()
    ratio = float(re.fullmatch(r"measured, bfloat16 multiplies (\d+\.\d) times as fast", reason)[1])
    assert dtype == ("bfloat16" if ratio > 1.5 else "float32") or ratio == 1.5  # which is rounded


@pytest.mark.parametrize(
    "capability, dtype",
    [((6, 1), "float32"), ((7, 0), "float16"), ((7, 5), "float16"), ((8, 0), "bfloat16"), ((12, 0), "bfloat16")],
)
def test_gpus_use_the_shortest_format_that_their_matrix_units_have(capability, dtype):
    assert processors.of_gpu(capability)[0] == dtype


def test_auto_is_resolved_the_same_way_every_time_and_reported(capsys):
    first = training_dtype.policy("auto")
    assert training_dtype.policy("auto") == first
    line, again = capsys.readouterr().err.splitlines()
    assert line == again and f"training in {first.removeprefix('mixed_')}, " in line


def test_a_machine_without_fast_bfloat16_is_mentioned(monkeypatch, capsys):
    monkeypatch.setattr(training_dtype, "fastest", lambda: ("float32", "the processor has neither"))
    training_dtype.note_slow("none")
    assert capsys.readouterr().err == ""
    training_dtype.note_slow("bfloat16")
    assert capsys.readouterr().err.startswith(
        "bert_tf: bfloat16 is no faster than float32 on this machine (the processor has"
    )
