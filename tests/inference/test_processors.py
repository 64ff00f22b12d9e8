"""Optimized exports on other processors: the C API with other flags in the file that the graph reads.

oneDNN itself is limited by ONEDNN_MAX_CPU_ISA. Under AVX2, which TensorFlow does not know of, it also must not rewrite
graphs (TF_ENABLE_ONEDNN_OPTS=0): it would do so by what the processor says.
"""

import functools
import json
import pathlib
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf import processor_flags
from bert_tf.inference import ask
from bert_tf.inference.check import difference
from bert_tf.inference.saved_model import export
from bert_tf.model.precision.dispatch import VARIANTS
from bert_tf.processor_flags import describe_variant, unsuitable
from bert_tf.processor_flags import processor_flags as usable_flags
from bert_tf.server.monitoring import Metrics
from bert_tf.server.servable import RunOptions, Runtime, Servable
from bert_tf.server.status import Code, ServingError
from tests.inference import kinds, runtimes
from tests.model.small import multiplies_bfloat16

PAIRS = "classification of pairs"
BEST = {"bfloat16": "by kernels for bfloat16", "int8": "by kernels for int8 and bfloat16"}
USUAL = {"bfloat16": "by TensorFlow's usual operations", "int8": "by TensorFlow's usual operations, in float32"}
INT8 = BEST | {"int8": "by kernels for int8"}
SKYLAKE = BEST | {"int8": USUAL["int8"]}
ALDER_LAKE = USUAL | {"int8": INT8["int8"]}
AVX512 = "avx2 avx512f avx512bw avx512vl"
LIMITED = {"TF_ENABLE_ONEDNN_OPTS": "0", "ONEDNN_MAX_CPU_ISA": "AVX2"}
here = usable_flags()
has_all = pytest.mark.skipif(
    not {"avx512bw", "avx512_bf16", "avx512_vnni", "avx_vnni"} <= here, reason="the processor lacks instruction sets"
)

# The quick tests of model/precision export and check int8.
each_mode = pytest.mark.parametrize("mode", ["bfloat16", pytest.param("int8", marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def optimized(tmp_path_factory):
    return versions_of(PAIRS, tmp_path_factory.mktemp("optimized"))


def versions_of(kind, folder):
    """The float32 model's Case; function from a mode to its version; and the file that both read for /proc/cpuinfo."""
    cpuinfo = folder / "cpuinfo"
    case, (task, model) = kinds.case(kind), kinds.KINDS[kind]()

    @functools.cache
    def path(mode):
        write(cpuinfo, " ".join(sorted(here)))
        before = [weight.numpy() for weight in model.weights]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(processor_flags, "CPUINFO", str(cpuinfo))
            path = export(task, model, str(folder / mode), optimize=mode, check=False).path
        for weight, value in zip(model.weights, before, strict=True):
            np.testing.assert_array_equal(weight, value)
        return path

    return types.SimpleNamespace(case=case, path=path, cpuinfo=cpuinfo)


def write(cpuinfo, flags):
    """As in Linux; None for a system without the file."""
    cpuinfo.unlink(missing_ok=True)
    if flags is not None:
        cpuinfo.write_text(f"processor\t: 0\nmodel name\t: any\nflags\t\t: fpu {flags} smap\nbugs\t\t:\n\n" * 2)


# Clipped sums of int8 differ by 0.05.
LIMITS = dict.fromkeys(BEST, 0.01)


def check(optimized, flags, variants, version="2.21", environment=(), emulator=(), modes=tuple(BEST), limits=LIMITS):
    """Asks versions on a processor with these flags, and checks which variants they choose, and their answers."""
    asked = [
        (request, expected)
        for request, expected in zip(optimized.case.requests, optimized.case.expected, strict=True)
        if request.signature in ("serving_default", "tokens") and (not emulator or request.kind == "short")
    ]
    modes = [mode for mode in modes if mode != "int8" or version != "2.12"]  # which has no products in int8
    paths, log = [optimized.path(mode) for mode in modes], []
    write(optimized.cpuinfo, flags)
    answers = runtimes.by_c_api(
        [(path, [request for request, _ in asked]) for path in paths],
        runtimes.python(version),
        emulator=emulator,
        environment={"TF_CPP_MIN_LOG_LEVEL": "0", **dict(environment)},
        log=log,
    )
    said = [line.split("bert_tf: ")[1] for line in log if "bert_tf: " in line]
    assert said == [f"{mode}, computed {variants[mode]}" for mode in modes if mode in variants]
    assert not [line for line in log if "Error in PredictCost" in line or "Optimization loop failed" in line]
    for mode, found in zip(modes, answers, strict=True):
        for answer, (_, expected) in zip(found, asked, strict=True):
            apart = difference("probabilities", answer["outputs"]["probabilities"], expected["probabilities"])
            assert apart < limits[mode], mode


@each_mode
def test_all_signatures_share_one_body_of_each_variant(optimized, mode):
    saved = saved_model_pb2.SavedModel.FromString(pathlib.Path(optimized.path(mode), "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    encoders = [
        function
        for function in graph.library.function
        if any(node.op in ("Rsqrt", "_MklLayerNorm") for node in function.node_def)
    ]
    assert len(encoders) == len(VARIANTS[mode])


@multiplies_bfloat16
def test_an_export_in_bfloat16_is_smaller(optimized):
    paths = pathlib.Path(optimized.path("bfloat16")), pathlib.Path(optimized.case.path)
    sizes = [(path / "variables/variables.data-00000-of-00001").stat().st_size for path in paths]
    assert sizes[0] < 0.7 * sizes[1]
    card = json.loads((paths[0] / "assets.extra/model_card.json").read_text())
    assert card["approximation"].startswith("bfloat16: the last layer differs by ")
    assert f"Computes {card['approximation']}." in (paths[0] / "assets.extra/README.md").read_text()
    has_kernels = b"_MklNativeFusedMatMul" in (paths[0] / "saved_model.pb").read_bytes()
    assert [variant["instructions"] for variant in card["variants"]] == ([[["avx512bw"]], []] if has_kernels else [])
    assert has_kernels == (not tf.config.list_physical_devices("GPU"))


@each_mode
@pytest.mark.parametrize("flags", ["avx2 fma", pytest.param(None, marks=pytest.mark.slow)])
def test_without_instruction_sets_an_optimized_export_computes_by_usual_operations(optimized, flags, mode):
    check(optimized, flags, USUAL, modes=[mode])


@has_all
@each_mode
def test_with_instruction_sets_it_computes_by_kernels(optimized, mode):
    check(optimized, " ".join(here), BEST, modes=[mode])


@has_all
@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.21", "2.20", "2.17", "2.12"])
@pytest.mark.parametrize(
    ("flags", "variants", "environment"),
    [
        (" ".join(here), BEST, {}),
        (f"{AVX512} avx512_vnni", INT8, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}),
        (AVX512, SKYLAKE, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}),
        ("avx2 avx_vnni", ALDER_LAKE, LIMITED | {"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"}),
        ("avx2", USUAL, LIMITED),
    ],
    ids=["all", "Cascade Lake", "Skylake", "Alder Lake", "Haswell"],
)
def test_each_version_answers_rightly_on_each_processor(optimized, version, flags, variants, environment):
    check(optimized, flags, variants, version, environment)


# Of gated networks. In 4 bits, mmBERT's random weights are too coarse.
GATED_LIMITS = {"none": 1e-5, "bfloat16": 0.05, "int8": 0.1}
GATED = {"mmBERT": GATED_LIMITS, "nomic_bert": GATED_LIMITS | {"int4": 0.3}}


@pytest.fixture(scope="module", params=GATED)
def gated(request, tmp_path_factory):
    versions = versions_of(f"classification by {request.param}", tmp_path_factory.mktemp("gated"))
    return versions, GATED[request.param]


@pytest.mark.slow
@pytest.mark.skipif(
    not {"avx512bw", "avx512_bf16", "avx512_vnni"} <= here, reason="the processor lacks instruction sets"
)
@pytest.mark.parametrize("version", ["2.21", "2.20", "2.12"])
@pytest.mark.parametrize(
    "flags, variants, environment",
    [(" ".join(here), BEST, {}), ("avx2", USUAL, LIMITED)],
    ids=["all", "Haswell"],
)
def test_gated_layers_in_low_precision_answer_rightly_on_each_version(gated, version, flags, variants, environment):
    versions, limits = gated
    check(versions, flags, variants, version, environment, modes=tuple(limits), limits=limits)


@has_all
@pytest.mark.slow
def test_the_limits_of_these_tests_limit(optimized):
    """With flags that the processor has not, the same graphs abort, or answer wrongly."""
    with pytest.raises(AssertionError, match="could not create a primitive"):
        check(optimized, AVX512, BEST, environment=LIMITED)
    with pytest.raises(AssertionError, match=r"< 0\.01"):
        check(optimized, f"{AVX512} avx512_vnni", INT8, environment={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"})


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="needs qemu-x86_64 (Debian's qemu-user)")
@pytest.mark.parametrize("version", ["2.20", "2.12"])
@pytest.mark.parametrize("processor", ["Haswell", "EPYC-Rome"])
def test_emulated_processors_without_avx_512_answer_rightly(optimized, processor, version):
    check(optimized, "avx2 fma", USUAL, version, emulator=("qemu-x86_64", "-cpu", processor))


def test_a_version_whose_graph_would_use_forbidden_instructions_is_not_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(processor_flags, "CPUINFO", str(tmp_path / "cpuinfo"))
    write(tmp_path / "cpuinfo", "avx2 avx512bw")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    card = {"format": "bert_tf", "signatures": {}, "variants": [a_variant("fast", ("avx512bw",)), a_variant("anyhow")]}
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "model_card.json").write_text(json.dumps(card))
    message = "ONEDNN_MAX_CPU_ISA=AVX2 forbids instruction sets that the processor has .*, avx512bw; unset it"
    with pytest.raises(ValueError, match=f"^{tmp_path}: {message}$"):
        ask.Model(str(tmp_path))
    runtime = Runtime(RunOptions(), Metrics())
    with pytest.raises(ServingError, match=message) as error:
        Servable("m", 1, str(tmp_path), runtime)
    runtime.close()
    assert error.value.code is Code.INVALID_ARGUMENT


def a_variant(computes, *instructions):
    return {"computes": computes, "instructions": [list(group) for group in instructions]}


def test_the_way_that_is_taken_is_said(monkeypatch, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor_flags, "CPUINFO", str(cpuinfo))
    variants = [a_variant("fast", ("a", "b"), ("c",)), a_variant("anyhow")]
    slower = "computes anyhow, slower than with (a or b) and (c)"
    for flags, expected in (("b c", "computes fast"), ("a b", slower), ("avx2", slower), ("bc", slower)):
        write(cpuinfo, flags)
        assert (describe_variant(variants), unsuitable(variants)) == (expected, "")
    write(cpuinfo, None)
    assert describe_variant(variants) == slower
    assert not describe_variant([]) and not unsuitable([]) and not unsuitable(variants)


@has_all
def test_a_limit_of_onednn_that_the_graph_does_not_see_is_refused(monkeypatch):
    variants = [a_variant("fast", ("avx512bw",)), a_variant("anyhow")]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert unsuitable(variants) == (
        "ONEDNN_MAX_CPU_ISA=AVX2 forbids instruction sets that the processor has and the graph would use, avx512bw; "
        "unset it"
    )
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    assert not unsuitable(variants)
    # oneDNN reads its old name, too, if the new one is not set.
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    assert not unsuitable(variants)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")
    assert unsuitable(variants).startswith("DNNL_MAX_CPU_ISA=AVX2 forbids ")


def test_only_our_cards_name_instruction_sets(tmp_path):
    # A version with nothing but a card is refused too, for another reason.
    (tmp_path / "assets.extra").mkdir()
    for card in ({"variants": ["fast", "slow"]}, {"format": "bert_tf", "variants": None}, [], {}):
        (tmp_path / "assets.extra" / "model_card.json").write_text(json.dumps(card))
        with pytest.raises(ValueError) as error:
            ask.Model(str(tmp_path))
        assert "forbids" not in str(error.value)


@pytest.mark.skipif(not {"avx512f", "avx512_vnni"} <= usable_flags(), reason="the processor lacks AVX512-VNNI")
def test_the_limit_that_onednn_obeys_counts(monkeypatch):
    for limit, missing in (
        ("AVX2", {"avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16"}),
        ("avx2_vnni", {"avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"}),
        ("AVX512_CORE", {"avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16"}),
        ("AVX512_CORE_VNNI", {"avx512_bf16", "amx_bf16"}),
        ("ALL", set()),
    ):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        assert not missing & usable_flags(), limit
        assert {"avx2", "avx512f", "avx512_vnni"} - missing <= usable_flags(), limit
