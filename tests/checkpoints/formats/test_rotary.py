"""config.json and tensors of nomic_bert and GTE in all their names. Outputs: ../test_transformers.py."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_tf import BertConfig
from bert_tf.checkpoints.formats import huggingface, huggingface_config
from bert_tf.config.model import DENSE_LAYERS
from bert_tf.errors import DataError
from tests.checkpoints.small import FAMILIES, assert_same, small_checkpoint
from tests.errors import raises

SIZES = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "max_position_embeddings": 8192, "vocab_size": 30528, "type_vocab_size": 2,
}  # fmt: skip
NOMIC_BERT = SIZES | {
    "model_type": "nomic_bert", "hidden_act": "silu", "head_dim": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}  # fmt: skip
# Its first config.json, in the keys of GPT-2.
GPT_2 = {
    "model_type": "nomic_bert", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": 3072, "n_positions": 8192,
    "vocab_size": 30528, "type_vocab_size": 2, "layer_norm_epsilon": 1e-12, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0, "activation_function": "swiglu", "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "prenorm": False, "parallel_block": False, "use_rms_norm": False, "causal": False,
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "max_trained_positions": 2048,
    "initializer_range": 0.02,
}  # fmt: skip
GTE = SIZES | {"model_type": "gte", "vocab_size": 250048, "type_vocab_size": 1, "rope_theta": 160000.0}
ROTARY = {"positions": "rotary", "feed_forward": "gated", "attention_dropout": 0.0}


@pytest.mark.parametrize("settings", [NOMIC_BERT, GPT_2], ids=["today's keys", "GPT-2's keys"])
def test_nomic_berts_settings_are_read(settings):
    assert huggingface_config.read_config(dict(settings), "config.json") == BertConfig(
        vocab_size=30528, max_position_embeddings=8192, activation="silu", rotary_base=1000.0, dropout=0.0,
        unbiased_layers=DENSE_LAYERS, **ROTARY,
    )  # fmt: skip


def test_gtes_settings_are_read():
    assert huggingface_config.read_config(dict(GTE), "config.json") == BertConfig(
        vocab_size=250048, max_position_embeddings=8192, type_vocab_size=1, activation="erf_gelu",
        rotary_base=160_000.0, unbiased_layers=("intermediate",), **ROTARY,
    )  # fmt: skip


def test_positions_end_where_another_base_would_begin():
    settings = GPT_2 | {"rotary_scaling_factor": 2.0}
    assert huggingface_config.read_config(settings, "config.json").max_position_embeddings == 2048


REFUSED = {
    "rope_type": (NOMIC_BERT, {"rope_parameters": {"rope_type": "yarn"}}, ["rope_type 'yarn'", "'default'"]),
    "scaling": (GTE, {"rope_scaling": {"type": "ntk", "factor": 8.0}}, ["rope_type 'ntk'", "'default'"]),
    "base": (GTE, {"rope_theta": 0}, ["rotary_base is 0.0", "above 1"]),
    "no base": (GTE, {"rope_theta": "160000"}, ["rope_theta '160000'; expected a number"]),
    "odd heads": (GTE, {"num_attention_heads": 256}, ["'rotary'", "is 3; expected an even number"]),
    "heads": (NOMIC_BERT, {"head_dim": 32}, ["head_dim 32", "num_attention_heads, 64"]),
    "activation": (NOMIC_BERT, {"hidden_act": "mish"}, ["hidden_act 'mish'", "'silu'"]),
    "first": (GPT_2, {"activation_function": "gelu"}, ["activation_function 'gelu'", "'swiglu' or 'geglu'"]),
    "biases": (GPT_2, {"qkv_proj_bias": True}, ["qkv_proj_bias True; expected False"]),
    "experts": (GPT_2, {"num_experts": 8}, ["num_experts 8; expected None"]),
    "fraction": (GPT_2, {"rotary_emb_fraction": 0.5}, ["rotary_emb_fraction 0.5; expected 1.0"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_nothing_here_computes_is_refused_by_name(case):
    settings, changes, found = REFUSED[case]
    with raises(DataError, "config.json", *found):
        huggingface_config.read_config(settings | changes, "config.json")


def test_a_setting_whose_value_was_another_if_missing_is_named():
    settings = {name: value for name, value in GPT_2.items() if name != "mlp_fc1_bias"}
    with raises(DataError, "config.json: mlp_fc1_bias is missing, so True; expected False"):
        huggingface_config.read_config(settings, "config.json")


def fused(tensors, name, parts):
    """One tensor in place of several of each layer, whose rows it has."""
    for layer in range(2):
        for kind in ("weight", "bias"):
            names = [f"{part}.{kind}".replace("*", str(layer)) for part in parts]
            if names[0] in tensors:
                rows = [tensors.pop(one) for one in names]
                tensors[f"{name}.{kind}".replace("*", str(layer))] = np.concatenate(rows)


def renamed(tensors, **names):
    for ours, theirs in names.items():
        tensors = {name.replace(ours, theirs): value for name, value in tensors.items()}
    return tensors


QKV = [f"layers.*.self_attn.{part}_proj" for part in "qkv"]


def in_older_names(family, tensors):
    """As the Hub has them, where the prefix is another."""
    start = f"{family}."
    tensors = {name.removeprefix(start): value for name, value in tensors.items()}
    heads = ("cls.", "lm_head.", "classifier.")
    if family == "nomic_bert":
        fused(tensors, "encoder.layers.*.attn.Wqkv", QKV)
        parts = {"self_attn.o_proj": "attn.out_proj", "up_proj": "fc11", "gate_proj": "fc12", "down_proj": "fc2"}
        parts |= {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
        parts |= {"embeddings.LayerNorm": "emb_ln"}
        tensors = renamed(tensors, **parts)
        tensors = {("encoder." if name.startswith("layers.") else "") + name: one for name, one in tensors.items()}
        tensors["encoder.layers.0.attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
        return {name if name.startswith(heads) else f"bert.{name}": value for name, value in tensors.items()}
    fused(tensors, "layers.*.attention.qkv_proj", QKV)
    fused(tensors, "layers.*.mlp.up_gate_proj", [f"layers.*.mlp.{part}_proj" for part in ("up", "gate")])
    parts = {"self_attn.o_proj": "attention.o_proj", "post_attention_layernorm": "attn_ln"}
    parts |= {"post_mlp_layernorm": "mlp_ln", "lm_head.layer_norm": "lm_head.norm", "layers.": "encoder.layer."}
    tensors = renamed(tensors, **parts)
    return {name if name.startswith(heads) else f"new.{name}": value for name, value in tensors.items()}


def written(family, head, path):
    checkpoint = small_checkpoint(head, **FAMILIES[family] | {"pooler": head == "classification"})
    path.mkdir()
    huggingface.write(checkpoint, str(path))
    return checkpoint


@pytest.mark.parametrize("head", ["masked_lm", "classification"])
@pytest.mark.parametrize("family", ["nomic_bert", "gte"])
def test_older_names_of_tensors_are_read(tmp_path, family, head):
    checkpoint = written(family, head, tmp_path / family)
    file = tmp_path / family / "model.safetensors"
    tensors = in_older_names(family, load_file(file))
    assert not any(".q_proj." in name for name in tensors)
    save_file(tensors, file)
    assert_same(huggingface.read(str(tmp_path / family)), checkpoint)
    # One row more than queries, keys and values have together.
    name = next(name for name in tensors if "qkv" in name)
    save_file(tensors | {name: np.pad(tensors[name], [[0, 1], [0, 0]])}, file)
    with raises(DataError, "missing layers.0.self_attn.k_proj.weight", "misshapen layers.0.self_attn.q_proj.weight"):
        huggingface.read(str(tmp_path / family))


@pytest.mark.parametrize(
    "family, head, other, found",
    [
        ("nomic_bert", "masked_lm", "bert", "the tensors are those of NomicBert models"),
        ("gte", None, "modernbert", "the tensors are those of "),
        ("bert", None, "gte", "the tensors are those of Bert models"),
        ("modernbert", None, "nomic_bert", "the tensors are those of ModernBert models"),
        ("nomic_bert", "masked_lm", "gte", "the tensors are those of NomicBert models"),
        # Without prefix, the names are the same but for biases.
        ("nomic_bert", None, "gte", "missing layers.0.self_attn.q_proj.bias"),
        ("gte", None, "nomic_bert", "embeddings.token_type_embeddings.weight is [1, 32], not [2, 32]"),
    ],
)
def test_weights_of_another_family_and_missing_biases_are_named(tmp_path, family, head, other, found):
    for name in (family, other):
        written(name, head, tmp_path / name)
    (tmp_path / other / "config.json").replace(tmp_path / family / "config.json")
    with raises(DataError, found):
        huggingface.read(str(tmp_path / family))


def test_a_model_without_types_is_written_as_gte_without_them(tmp_path):
    checkpoint = small_checkpoint("tagging", **FAMILIES["gte"] | {"type_vocab_size": 0, "pooler": False})
    huggingface.write(checkpoint, str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["type_vocab_size"] == 0
    assert_same(huggingface.read(str(tmp_path)), checkpoint)
