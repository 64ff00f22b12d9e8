"""Exports for certain processors."""

import json

import pytest

from bert_tf.server.errors import Code, ServingError
from bert_tf.server.monitoring import Metrics
from bert_tf.server.servable import RunOptions, Runtime, Servable
from bert_tf.serving import ask


def test_a_version_for_other_processors_is_not_loaded(tmp_path):
    card = {"format": "bert_tf", "signatures": {}, "instructions": ["avx9000", "amx_fp1"]}
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "model_card.json").write_text(json.dumps(card))
    message = "made for processors with avx9000 or amx_fp1, which this one lacks; export the model here, or with "
    with pytest.raises(ValueError, match=f"^{tmp_path}: {message}--optimize=none$"):
        ask.Model(str(tmp_path))
    runtime = Runtime(RunOptions(), Metrics())
    with pytest.raises(ServingError, match=message) as error:
        Servable("m", 1, str(tmp_path), runtime)
    runtime.close()
    assert error.value.code is Code.INVALID_ARGUMENT
    assert not ask.unsuitable([]) and not ask.unsuitable(["avx9000", *ask.processor_flags()])


def test_only_our_cards_name_instruction_sets(tmp_path):
    # A version with nothing but a card is refused too, for another reason.
    (tmp_path / "assets.extra").mkdir()
    for card in ({"instructions": "Ask in English."}, {"format": "bert_tf", "instructions": None}, [], {}):
        (tmp_path / "assets.extra" / "model_card.json").write_text(json.dumps(card))
        with pytest.raises(ValueError) as error:
            ask.Model(str(tmp_path))
        assert "made for" not in str(error.value)


@pytest.mark.skipif(not {"avx512f", "avx512_vnni"} <= ask.processor_flags(), reason="the processor lacks AVX512-VNNI")
def test_the_limit_that_onednn_obeys_counts(monkeypatch):
    for limit, missing in (
        ("AVX2", {"avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16"}),
        ("avx2_vnni", {"avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"}),
        ("AVX512_CORE", {"avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16"}),
        ("AVX512_CORE_VNNI", {"avx512_bf16", "amx_bf16"}),
        ("ALL", set()),
    ):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
        assert not missing & ask.processor_flags(), limit
        assert {"avx2", "avx512f", "avx512_vnni"} - missing <= ask.processor_flags(), limit
