"""TF 1 checkpoints of google-research/electra and albert: their names of variables, against NumPy."""

import json
import re

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import load_model, open_checkpoint
from bert_tf.checkpoints.conversion import convert
from bert_tf.errors import DataError
from tests.errors import raises
from tests.learned import SIZE, albert_model
from tests.model.numpy_bert import ACTIVATIONS, encode, linear, pretraining_logits
from tests.model.small import PIECES, features

WORDS, POSITIONS, WIDTH, INNER, LAYERS = len(PIECES), 24, 16, 48, 3
# Variables of google-research/electra and albert -> tensors of `numpy_bert`.
NAMES = {
    r"(electra|bert)/embeddings/(\w+_embeddings)": r"embeddings.\2.weight",
    r"(electra|bert)/embeddings/LayerNorm": "embeddings.LayerNorm",
    r"(electra|generator)/embeddings_project|bert/encoder/embedding_hidden_mapping_in": "embeddings.projection",
    r"(?:electra|generator)/encoder/layer_(\d)/attention/self/(\w+)": r"encoder.layer.\1.attention.self.\2",
    r"(?:electra|generator)/encoder/layer_(\d)/attention/output/(\w+)": r"encoder.layer.\1.attention.output.\2",
    r"(?:electra|generator)/encoder/layer_(\d)/intermediate/dense": r"encoder.layer.\1.intermediate.dense",
    r"(?:electra|generator)/encoder/layer_(\d)/output/(\w+)": r"encoder.layer.\1.output.\2",
    r"\S+/inner_group_0/attention_1/self/(\w+)": r"encoder.layer.0.attention.self.\1",
    r"\S+/inner_group_0/attention_1/output/dense": "encoder.layer.0.attention.output.dense",
    r"\S+/inner_group_0/LayerNorm": "encoder.layer.0.attention.output.LayerNorm",
    r"\S+/inner_group_0/ffn_1/intermediate/dense": "encoder.layer.0.intermediate.dense",
    r"\S+/inner_group_0/ffn_1/intermediate/output/dense": "encoder.layer.0.output.dense",
    r"\S+/inner_group_0/LayerNorm_1": "encoder.layer.0.output.LayerNorm",
    r"bert/pooler/dense": "pooler.dense",
    r"(generator_predictions|cls/predictions/transform)/(dense|LayerNorm)": r"cls.predictions.transform.\2",
    r"(generator_predictions|cls/predictions)/output_bias": "cls.predictions.bias",
    r"discriminator_predictions/(\w+)": r"discriminator_predictions.\1",
    r"cls/seq_relationship": "cls.seq_relationship",
}
PARTS = {"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias", "output_weights": ".weight"}


def dense(name, inputs, outputs):
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm(name, size):
    return {f"{name}/gamma": (size,), f"{name}/beta": (size,)}


def embeddings(scope):
    rows = {"word": WORDS, "position": POSITIONS, "token_type": 2}
    tables = {f"{scope}/embeddings/{name}_embeddings": (count, WIDTH) for name, count in rows.items()}
    return tables | norm(f"{scope}/embeddings/LayerNorm", WIDTH)


def electra_encoder(scope, hidden):
    shapes = dense(f"{scope}/embeddings_project", WIDTH, hidden)
    for layer in [f"{scope}/encoder/layer_{number}" for number in range(LAYERS)]:
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            shapes |= dense(f"{layer}/attention/{part}", hidden, hidden)
        shapes |= dense(f"{layer}/intermediate/dense", hidden, INNER) | dense(f"{layer}/output/dense", INNER, hidden)
        shapes |= norm(f"{layer}/attention/output/LayerNorm", hidden) | norm(f"{layer}/output/LayerNorm", hidden)
    return shapes


ELECTRA = {
    **embeddings("electra"),
    **electra_encoder("electra", 128),  # 2 heads
    **electra_encoder("generator", 64),  # 1 head
    **dense("discriminator_predictions/dense", 128, 128),
    **dense("discriminator_predictions/dense_1", 128, 1),
    **dense("generator_predictions/dense", 64, WIDTH),
    **norm("generator_predictions/LayerNorm", WIDTH),
    "generator_predictions/output_bias": (WORDS,),
}
_GROUP = "bert/encoder/transformer/group_0/inner_group_0"
ALBERT = {
    **embeddings("bert"),
    **dense("bert/encoder/embedding_hidden_mapping_in", WIDTH, 32),
    **dense(f"{_GROUP}/attention_1/self/query", 32, 32),
    **dense(f"{_GROUP}/attention_1/self/key", 32, 32),
    **dense(f"{_GROUP}/attention_1/self/value", 32, 32),
    **dense(f"{_GROUP}/attention_1/output/dense", 32, 32),
    **norm(f"{_GROUP}/LayerNorm", 32),
    **dense(f"{_GROUP}/ffn_1/intermediate/dense", 32, INNER),
    **dense(f"{_GROUP}/ffn_1/intermediate/output/dense", INNER, 32),
    **norm(f"{_GROUP}/LayerNorm_1", 32),
    **dense("bert/pooler/dense", 32, 32),
    **dense("cls/predictions/transform/dense", 32, WIDTH),
    **norm("cls/predictions/transform/LayerNorm", WIDTH),
    "cls/predictions/output_bias": (WORDS,),
    "cls/seq_relationship/output_weights": (2, 32),
    "cls/seq_relationship/output_bias": (2,),
}
ALBERT_CONFIG = {  # the keys of albert_config.json of the published models
    "attention_probs_dropout_prob": 0, "hidden_act": "gelu", "hidden_dropout_prob": 0, "embedding_size": WIDTH,
    "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": INNER, "max_position_embeddings": POSITIONS,
    "num_attention_heads": 4, "num_hidden_layers": LAYERS, "num_hidden_groups": 1, "net_structure_type": 0,
    "gap_size": 0, "num_memory_blocks": 0, "inner_group_num": 1, "down_scale_factor": 1, "type_vocab_size": 2,
    "vocab_size": WORDS,
}  # fmt: skip


def saved(path, shapes, config=None, **changes):
    """Writes a checkpoint with random values, and slots of LAMB or Adam; returns the values."""
    path.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    values = {name: value for name, value in (values | changes).items() if value is not None}
    slots = {f"{name}/adam_{slot}": value for name, value in values.items() for slot in "mv"}
    stored = values | slots | {"global_step": np.int64(7)}
    tensors = [tf.constant(value) for value in stored.values()]
    prefix = str(path / "model.ckpt")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(stored), shape_and_slices=[""] * len(stored), tensors=tensors)
    (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    if config:
        (path / "albert_config.json").write_text(json.dumps(config))
    return values


def for_numpy(values, without=None):
    """Variables under the names of `numpy_bert`, except those that begin with `without`."""
    tensors = {}
    for name, value in values.items():
        if without and name.startswith(without):
            continue
        layer, _, part = name.rpartition("/")
        whole = name.endswith("_embeddings") or (name.endswith("output_bias") and "seq" not in name)
        pattern, found = next(
            (pattern, match) for pattern in NAMES if (match := re.fullmatch(pattern, name if whole else layer))
        )
        end = "" if whole else PARTS.get(part, ".bias")
        tensors[found.expand(NAMES[pattern]) + end] = value.T if part == "kernel" else value
    return tensors


def positions_of(inputs):
    rows, length = inputs["input_mask"].shape
    return np.tile(np.arange(length, dtype=np.int32), (rows, 1))


def assert_close(got, want, inputs):
    tokens = inputs["input_mask"] == 1
    np.testing.assert_allclose(np.asarray(got)[tokens], want[tokens], atol=1e-5, rtol=1e-5)


def test_an_electra_is_read_as_its_discriminator(tmp_path):
    values = saved(tmp_path / "electra", ELECTRA)
    model, tokenizer, _ = load_model(tmp_path / "electra")
    assert tokenizer.vocab == PIECES
    inputs = features()
    net = for_numpy(values, ("generator/", "generator_predictions/"))
    sequence, _, _ = encode(net, inputs, layers=LAYERS, heads=2, activation="erf_gelu")
    hidden = ACTIVATIONS["erf_gelu"](linear(net, sequence, "discriminator_predictions.dense"))
    assert_close(model(inputs)["rtd_logits"], linear(net, hidden, "discriminator_predictions.dense_1")[..., 0], inputs)

    checkpoint = open_checkpoint(tmp_path / "electra")
    assert (checkpoint.head, checkpoint.step) == ("replaced_token_detection", 7)
    assert checkpoint.config.pooler_activation == "erf_gelu"
    assert checkpoint.moments.keys() == {f"{name}/{slot}" for name in checkpoint.tensors for slot in "mv"}
    assert all(name.startswith("generator") for name in checkpoint.report.unused_tensors)
    assert any("attention: 2 heads" in note for note in checkpoint.report.warnings)


@pytest.mark.parametrize("name", ["electra/generator", "electra/model.ckpt/generator"])
def test_the_generator_of_an_electra_has_a_path_of_its_own(tmp_path, name):
    values = saved(tmp_path / "electra", ELECTRA)
    model, _, _ = load_model(tmp_path / name)
    inputs = features()
    net = for_numpy(values, ("electra/encoder/", "electra/embeddings_project", "discriminator_predictions"))
    sequence, _, _ = encode(net, inputs, layers=LAYERS, heads=1, activation="erf_gelu")
    positions = positions_of(inputs)
    net["cls.seq_relationship.weight"], net["cls.seq_relationship.bias"] = np.zeros((2, 64)), np.zeros(2)
    logits, _ = pretraining_logits(net, sequence, sequence[:, 0], positions, activation="erf_gelu")
    assert_close(model(inputs | {"masked_lm_positions": positions})["mlm_logits"], logits, inputs)


ENCODER = embeddings("electra") | electra_encoder("electra", 128)


@pytest.mark.parametrize("shapes", [ENCODER, ALBERT])
def test_a_generator_that_a_checkpoint_does_not_have_is_an_error(tmp_path, shapes):
    saved(tmp_path, shapes, ALBERT_CONFIG if shapes is ALBERT else None)
    with raises(DataError, f"{tmp_path / 'generator'}: no generator in this checkpoint; load {tmp_path}"):
        bert_tf.load(tmp_path / "generator")
    bert_tf.load(tmp_path)


def test_an_electra_that_was_fine_tuned_is_read_without_its_head(tmp_path):
    values = saved(tmp_path, ENCODER | dense("task_specific/mrpc/classify", 128, 2))
    checkpoint = open_checkpoint(tmp_path)
    heads = {name: why for name, why in checkpoint.report.unused_tensors.items() if name in values}
    assert heads.keys() == {f"task_specific/mrpc/classify/{part}" for part in ("kernel", "bias")}
    assert set(checkpoint.report.unused_tensors.values()) == {"a fine-tuned head of google-research/electra"}
    assert checkpoint.head is None


def test_an_electra_without_a_generator_may_be_a_masked_language_model(tmp_path):
    shapes = {name: shape for name, shape in ELECTRA.items() if not name.startswith(("generator/", "discriminator"))}
    shapes |= dense("generator_predictions/dense", 128, WIDTH)
    saved(tmp_path, shapes)
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.head, checkpoint.report.unused_tensors) == ("masked_lm", {})
    checkpoint.model()


def test_an_albert_is_read_with_both_heads(tmp_path):
    values = saved(tmp_path, ALBERT, ALBERT_CONFIG)
    model, _, _ = load_model(tmp_path)
    inputs = features()
    net = for_numpy(values)
    sequence, pooled, _ = encode(net, inputs, layers=LAYERS, heads=4, activation="tanh_gelu")
    positions = positions_of(inputs)
    masked, order = pretraining_logits(net, sequence, pooled, positions, activation="tanh_gelu")
    logits = model(inputs | {"masked_lm_positions": positions})
    assert_close(logits["mlm_logits"], masked, inputs)
    np.testing.assert_allclose(logits["nsp_logits"], order, atol=1e-5)
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.report.unused_tensors, checkpoint.config.dropout) == ({}, 0.0)


def test_the_vocabulary_of_an_albert_is_its_sentencepiece_model(tmp_path, monkeypatch):
    rows = {name: (SIZE, *shape[1:]) for name, shape in ALBERT.items() if WORDS in shape}
    saved(tmp_path, ALBERT | rows, ALBERT_CONFIG | {"vocab_size": SIZE})
    (tmp_path / "vocab.txt").unlink()
    with raises(DataError, f"{tmp_path}: no .model file", "vocab.txt"):
        open_checkpoint(tmp_path)
    monkeypatch.chdir(tmp_path)
    with raises(DataError, ".: no .model file"):
        open_checkpoint("model.ckpt")
    model = tmp_path / "30k-clean.model"
    model.write_bytes(albert_model()[:-100])
    with raises(DataError, f"{model}: no SentencePiece model"):
        open_checkpoint(tmp_path)
    model.write_bytes(albert_model())
    tokenizer = open_checkpoint(tmp_path).tokenizer
    text = "a film about the people"
    reference = sentencepiece.SentencePieceProcessor(model_proto=albert_model()).encode(text)
    assert tokenizer.tokenize([text, "A Fílm about the PEOPLE"]).to_list() == [reference] * 2


@pytest.mark.parametrize("shapes, model_type", [(ELECTRA, "electra"), (ALBERT, "albert")])
def test_they_are_converted_to_transformers_format(tmp_path, shapes, model_type):
    saved(tmp_path / "google", shapes, ALBERT_CONFIG if shapes is ALBERT else None)
    convert(str(tmp_path / "google"), "huggingface", str(tmp_path / "hf"))
    again, before = open_checkpoint(tmp_path / "hf"), open_checkpoint(tmp_path / "google")
    assert again.source_metadata["model_type"] == model_type
    assert (again.config, again.head) == (before.config, before.head)
    for path, tensor in before.tensors.items():
        np.testing.assert_array_equal(again.tensors[path].read(), tensor.read(), err_msg=path)
    with raises(bert_tf.errors.ConfigError, "google-research/bert"):
        convert(str(tmp_path / "google"), "google", str(tmp_path / "again"))


QUERY = f"{_GROUP}/attention_1/self/query/kernel"


@pytest.mark.parametrize(
    "shapes, config, changes, culprits",
    [
        (ALBERT, None, {}, ["model.ckpt", "no albert_config.json"]),
        (ALBERT, ALBERT_CONFIG | {"num_hidden_groups": 2}, {}, ["albert_config.json", "num_hidden_groups 2"]),
        (ALBERT, ALBERT_CONFIG | {"inner_group_num": 4}, {}, ["albert_config.json", "inner_group_num 4"]),
        (
            ALBERT,
            ALBERT_CONFIG | {"embedding_size": 0},
            {},
            ["albert_config.json: embedding_size is 0; expected a whole"],
        ),
        (ALBERT, ALBERT_CONFIG | {"hidden_size": 64}, {}, ["[32, 32]", "[64, 64]"]),
        (ALBERT, ALBERT_CONFIG, {QUERY: None}, ["missing", QUERY]),
        (ALBERT, ALBERT_CONFIG, {"bert/encoder/extra": np.zeros(3)}, ["albert_config.json", "bert/encoder/extra"]),
        (ELECTRA, None, {"electra/encoder/extra": np.zeros(3)}, ["ELECTRA", "unknown electra/encoder/extra"]),
        (ELECTRA, None, {"electra/embeddings/word_embeddings": None}, ["electra/embeddings/word_embeddings"]),
        (ELECTRA, None, {"electra/encoder/layer_1/output/dense/bias": None}, ["electra/encoder/layer_1/output"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path, shapes, config, changes, culprits):
    saved(tmp_path, shapes, config, **changes)
    with raises(DataError, *culprits):
        bert_tf.load(tmp_path)


@pytest.mark.parametrize("shapes", [ELECTRA, ALBERT])
def test_a_damaged_head_does_not_keep_the_encoder_from_loading(tmp_path, shapes):
    name = "discriminator_predictions/dense_1/bias" if shapes is ELECTRA else "cls/predictions/output_bias"
    saved(tmp_path, shapes, ALBERT_CONFIG, **{name: None})
    bert_tf.load(tmp_path)
    with raises(DataError, name):
        load_model(tmp_path)


def test_an_albert_config_without_a_checkpoint_is_recognised(tmp_path):
    (tmp_path / "albert_config.json").write_text(json.dumps(ALBERT_CONFIG))
    with raises(DataError, "no checkpoint"):
        bert_tf.load(tmp_path)
