"""The tensors and settings of each family, as Transformers 5.24 saves them (`state_dict` of each class)."""

import dataclasses
import json

import pytest
from safetensors import safe_open

from bert_tf.checkpoints.formats import huggingface
from tests.checkpoints.small import FAMILIES, small_checkpoint
from tests.model.small import PIECES

WORDS, POSITIONS, HIDDEN, WIDTH, INNER, LABELS = len(PIECES), 24, 32, 16, 64, 3


def dense(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name, size=HIDDEN):
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def embeddings(prefix, width=HIDDEN, **rows):
    rows = {"word": WORDS, "position": POSITIONS, "token_type": 2} | rows
    tables = {f"{prefix}.embeddings.{name}_embeddings.weight": (count, width) for name, count in rows.items() if count}
    return tables | norm(f"{prefix}.embeddings.LayerNorm", width)


def layers(prefix, attention, output, attention_norm, intermediate, outer, output_norm, count=2):
    tensors = {}
    for name in [f"{prefix}.{number}." for number in range(count)]:
        for part in (*attention, output):
            tensors |= dense(f"{name}attention.{part}", HIDDEN, HIDDEN)
        tensors |= norm(name + attention_norm) | norm(name + output_norm)
        tensors |= dense(name + intermediate, HIDDEN, INNER) | dense(name + outer, INNER, HIDDEN)
    return tensors


def bert_layers(prefix):
    parts = {"output": "output.dense", "intermediate": "intermediate.dense", "outer": "output.dense"}
    norms = {"attention_norm": "attention.output.LayerNorm", "output_norm": "output.LayerNorm"}
    return layers(f"{prefix}.encoder.layer", ["self.query", "self.key", "self.value"], **parts, **norms)


def distilbert():
    parts = {"output": "out_lin", "intermediate": "ffn.lin1", "outer": "ffn.lin2"}
    norms = {"attention_norm": "sa_layer_norm", "output_norm": "output_layer_norm"}
    stack = layers("distilbert.transformer.layer", ["q_lin", "k_lin", "v_lin"], **parts, **norms)
    return embeddings("distilbert", token_type=0) | stack


def electra():
    return embeddings("electra", WIDTH) | dense("electra.embeddings_project", WIDTH, HIDDEN) | bert_layers("electra")


def albert():
    parts = {"output": "dense", "intermediate": "ffn", "outer": "ffn_output"}
    norms = {"attention_norm": "attention.LayerNorm", "output_norm": "full_layer_layer_norm"}
    group = "albert.encoder.albert_layer_groups.0.albert_layers"
    return {
        **embeddings("albert", WIDTH),
        **dense("albert.encoder.embedding_hidden_mapping_in", WIDTH, HIDDEN),
        **layers(group, ["query", "key", "value"], count=1, **parts, **norms),
    }


def rotary(stem, biased=(), **rows):
    """nomic_bert's or GTE's encoder; `biased` are parts of names of layers with biases."""
    tensors = embeddings(stem, position=0, **rows)
    for name in (f"{stem}.layers.{number}." for number in range(2)):
        layers_of_block = {f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"}
        layers_of_block |= {f"mlp.{part}_proj": (HIDDEN, INNER) for part in ("gate", "up")}
        for layer, sizes in (layers_of_block | {"mlp.down_proj": (INNER, HIDDEN)}).items():
            shapes = dense(name + layer, *sizes)
            tensors |= {
                path: shape
                for path, shape in shapes.items()
                if path.endswith(".weight") or any(part in layer for part in biased)
            }
        tensors |= norm(f"{name}post_attention_layernorm") | norm(f"{name}post_mlp_layernorm")
    return tensors


ALBERT_PREDICTIONS = dense("predictions.dense", HIDDEN, WIDTH) | norm("predictions.LayerNorm", WIDTH)
ALBERT_PREDICTIONS |= {"predictions.bias": (WORDS,)}
TWO_LAYERS = dense("classifier.dense", HIDDEN, HIDDEN) | dense("classifier.out_proj", HIDDEN, LABELS)
TENSORS = {
    ("roberta", "classification"): embeddings("roberta", position=POSITIONS + 2, token_type=1)
    | bert_layers("roberta")
    | TWO_LAYERS,
    ("distilbert", "masked_lm"): distilbert()
    | dense("vocab_transform", HIDDEN, HIDDEN)
    | norm("vocab_layer_norm")
    | {"vocab_projector.bias": (WORDS,)},
    ("distilbert", "classification"): distilbert()
    | dense("pre_classifier", HIDDEN, HIDDEN)
    | dense("classifier", HIDDEN, LABELS),
    ("distilbert", "question_answering"): distilbert() | dense("qa_outputs", HIDDEN, 2),
    ("electra", "replaced_token_detection"): electra()
    | dense("discriminator_predictions.dense", HIDDEN, HIDDEN)
    | dense("discriminator_predictions.dense_prediction", HIDDEN, 1),
    ("electra", "masked_lm"): electra()
    | dense("generator_predictions.dense", HIDDEN, WIDTH)
    | norm("generator_predictions.LayerNorm", WIDTH)
    | {"generator_lm_head.bias": (WORDS,)},
    ("electra", "classification"): electra() | TWO_LAYERS,
    ("electra", "multiple_choice"): electra()
    | dense("sequence_summary.summary", HIDDEN, HIDDEN)
    | dense("classifier", HIDDEN, 1),
    ("albert", "pretraining"): albert()
    | dense("albert.pooler", HIDDEN, HIDDEN)
    | ALBERT_PREDICTIONS
    | dense("sop_classifier.classifier", HIDDEN, 2),
    ("albert", "masked_lm"): albert() | ALBERT_PREDICTIONS,
    ("nomic_bert", "masked_lm"): rotary("nomic_bert", token_type=2)
    | dense("cls.predictions.transform.dense", HIDDEN, HIDDEN)
    | norm("cls.predictions.transform.layer_norm")
    | {"cls.predictions.bias": (WORDS,)},
    ("nomic_bert", "classification"): rotary("nomic_bert", token_type=2)
    | dense("nomic_bert.pooler.dense", HIDDEN, HIDDEN)
    | dense("classifier", HIDDEN, LABELS),
    ("gte", "masked_lm"): rotary("gte", ("self_attn", "down_proj"), token_type=1)
    | dense("lm_head.dense", HIDDEN, HIDDEN)
    | norm("lm_head.layer_norm")
    | {"lm_head.decoder.bias": (WORDS,)},
    ("gte", "tagging"): rotary("gte", ("self_attn", "down_proj"), token_type=1) | dense("classifier", HIDDEN, LABELS),
    ("albert", "tagging"): albert() | dense("classifier", HIDDEN, LABELS),
}


@pytest.mark.parametrize("family, head", TENSORS)
def test_the_tensors_are_those_of_transformers(tmp_path, family, head):
    checkpoint = small_checkpoint(head, **FAMILIES[family])
    checkpoint = dataclasses.replace(checkpoint, tokenizer=None)
    huggingface.write(checkpoint, str(tmp_path))
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert shapes == TENSORS[family, head]


SIZES = {
    "vocab_size": WORDS, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": INNER, "max_position_embeddings": POSITIONS, "type_vocab_size": 2,
}  # fmt: skip
SETTINGS = {
    "distilbert": {
        "vocab_size": WORDS, "dim": HIDDEN, "n_layers": 2, "n_heads": 4, "hidden_dim": INNER,
        "max_position_embeddings": POSITIONS, "activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1,
    },
    "electra": SIZES | {"embedding_size": WIDTH, "hidden_act": "gelu"},
    "albert": SIZES | {"embedding_size": WIDTH, "hidden_act": "gelu_new"},
}  # fmt: skip


@pytest.mark.parametrize("family", SETTINGS)
def test_the_settings_are_those_of_transformers(tmp_path, family):
    huggingface.write(small_checkpoint("masked_lm", **FAMILIES[family]), str(tmp_path))
    written = json.loads((tmp_path / "config.json").read_text())
    assert written | SETTINGS[family] == written
    assert family == "distilbert" or "dim" not in written
