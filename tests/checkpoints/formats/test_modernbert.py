"""ModernBERT's config.json: both kinds of keys, and what is refused by name. Outputs: ../test_transformers.py."""

import json

import numpy as np
import pytest

from bert_tf import BertConfig
from bert_tf.checkpoints import directory, load_model
from bert_tf.checkpoints.conversion import convert
from bert_tf.checkpoints.formats import huggingface, huggingface_config
from bert_tf.errors import DataError
from tests.checkpoints.small import small_checkpoint
from tests.errors import raises
from tests.model.small import MODERNBERT

SIZES = {
    "vocab_size": 50368, "num_hidden_layers": 22, "hidden_size": 768, "num_attention_heads": 12,
    "intermediate_size": 1152, "max_position_embeddings": 8192, "model_type": "modernbert",
}  # fmt: skip
# As in the config.json that was published with the weights.
PUBLISHED = SIZES | {
    "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "local_attention": 128,
    "norm_eps": 1e-05, "norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False,
    "hidden_activation": "gelu", "classifier_activation": "gelu", "classifier_pooling": "cls", "decoder_bias": True,
    "position_embedding_type": "absolute", "embedding_dropout": 0.0, "attention_dropout": 0.0, "pad_token_id": 50283,
}  # fmt: skip
TYPES = ["full_attention" if layer % 3 == 0 else "sliding_attention" for layer in range(22)]
ROTARY = {
    "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
NEW = SIZES | {"layer_types": TYPES, "rope_parameters": ROTARY, "local_attention": 128}


@pytest.mark.parametrize("settings", [PUBLISHED, NEW, SIZES], ids=["published", "new keys", "defaults"])
def test_both_kinds_of_keys_are_read(settings):
    found = huggingface_config.read_config(dict(settings), "config.json")
    assert found == BertConfig.from_name("modernbert_base")


REFUSED = {
    "rope_type": ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, ["rope_type 'yarn'", "'default'"]),
    "object": ({"rope_parameters": {"full_attention": 3}}, ["rope_parameters has 3; expected an object"]),
    "scaling": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_type 'linear'", "'default'"]),
    "types": ({"layer_types": ["full_attention", "chunked_attention"] * 11}, ["layer_types has 'chunked_attention'"]),
    "count": ({"layer_types": TYPES[:21]}, ["layer_types has 21 entries", "the 22 of num_hidden_layers"]),
    "every": ({"global_attn_every_n_layers": 0}, ["global_attn_every_n_layers 0", "from 1"]),
    "activation": ({"hidden_activation": "silu"}, ["hidden_activation 'silu'", "'gelu'"]),
    "biases": ({"attention_bias": True}, ["attention_bias True, mlp_bias False", "one value for all"]),
    "decoder": ({"decoder_bias": False}, ["decoder_bias False", "True"]),
    "pooling": ({"classifier_pooling": "max"}, ["classifier_pooling 'max'", "'cls', 'mean'"]),
    "window": ({"local_attention": 1}, ["local_distance is 0", "from 1"]),
    "base": ({"global_rope_theta": 0.0}, ["rotary_base is 0.0", "above 1"]),
    "heads": ({"num_attention_heads": 256}, ["'rotary'", "is 3; expected an even number"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_nothing_here_computes_is_refused_by_name(case):
    changes, found = REFUSED[case]
    with raises(DataError, "config.json", *found):
        huggingface_config.read_config(PUBLISHED | changes, "config.json")


def test_weights_of_another_family_and_missing_biases_are_named(tmp_path):
    for name, config in {"modern": MODERNBERT, "bert": {}, "biased": MODERNBERT | {"biases": True}}.items():
        (tmp_path / name).mkdir()
        huggingface.write(small_checkpoint(**config | {"pooler": False}), str(tmp_path / name))
    files = {name: tmp_path / name / "config.json" for name in ("modern", "bert", "biased")}
    texts = {name: file.read_text() for name, file in files.items()}
    for name, other, found in (
        ("modern", "bert", "the tensors are those of ModernBert models"),
        ("bert", "modern", "the tensors are those of Bert models"),
        ("modern", "biased", "missing layers.0.attn.Wqkv.bias"),
        ("biased", "modern", "unknown"),
    ):
        files[name].write_text(texts[other])
        with raises(DataError, found):
            load_model(str(tmp_path / name))
        files[name].write_text(texts[name])


def test_a_model_without_a_pattern_of_layers_is_written_in_new_keys_alone(tmp_path):
    settings = {}
    for layers in ((1,), (0, 1)):
        checkpoint = small_checkpoint("masked_lm", **MODERNBERT | {"local_layers": layers, "pooler": False})
        folder = tmp_path / str(len(layers))
        folder.mkdir()
        huggingface.write(checkpoint, str(folder))
        settings[layers] = json.loads((folder / "config.json").read_text())
        again = huggingface.read(str(folder))
        assert again.config == checkpoint.config
        for path, tensor in checkpoint.tensors.items():
            np.testing.assert_array_equal(again.tensors[path].read(), tensor.read())
    assert settings[1,]["global_attn_every_n_layers"] == 2
    assert "global_attn_every_n_layers" not in settings[0, 1]


@pytest.mark.slow
def test_a_conversion_is_verified_by_transformers_which_has_the_last_layer_after_its_norm(tmp_path):
    pytest.importorskip("transformers")
    checkpoint = small_checkpoint("classification", **MODERNBERT)
    directory.write(checkpoint, str(tmp_path / "ours"))
    found = convert(str(tmp_path / "ours"), "huggingface", str(tmp_path / "theirs"), verify=True)["verification"]
    assert found["output_run_by"].startswith("transformers")
    assert found["differences"].keys() == {"layer_0", "sequence_output", "logits"}
