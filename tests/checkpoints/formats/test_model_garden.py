"""Encoders of TF-Hub and TF Model Garden: models of the library itself, and its names and layouts against NumPy."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints.conversion import convert
from bert_tf.checkpoints.formats import open_checkpoint
from bert_tf.errors import DataError
from tests.model.numpy_bert import encode, pretraining_logits, random_tensors
from tests.model.small import PIECES, features

HIDDEN, HEADS, LAYERS = 32, 4, 2
POSITIONS = np.array([[1, 2]] * 4, np.int32)
WITH_POSITIONS = features() | {"masked_lm_positions": POSITIONS}

# The names that tf-models-official 2.20.0 writes ("today", the same since 2.3.0), 2.2.0, and the models before it,
# by Hugging Face's names. TF-Hub's BERT uses them from version 3, in version 2 and in version 1. "#" is a layer number.
TODAY = {
    "embeddings.word_embeddings.weight": "word_embeddings/embeddings",
    "embeddings.position_embeddings.weight": "position_embedding/embeddings",
    "embeddings.token_type_embeddings.weight": "type_embeddings/embeddings",
    "embeddings.LayerNorm": "embeddings/layer_norm",
    "encoder.layer.#.attention.self.query": "transformer/layer_#/self_attention/query",
    "encoder.layer.#.attention.self.key": "transformer/layer_#/self_attention/key",
    "encoder.layer.#.attention.self.value": "transformer/layer_#/self_attention/value",
    "encoder.layer.#.attention.output.dense": "transformer/layer_#/self_attention/attention_output",
    "encoder.layer.#.attention.output.LayerNorm": "transformer/layer_#/self_attention_layer_norm",
    "encoder.layer.#.intermediate.dense": "transformer/layer_#/intermediate",
    "encoder.layer.#.output.dense": "transformer/layer_#/output",
    "encoder.layer.#.output.LayerNorm": "transformer/layer_#/output_layer_norm",
    "pooler.dense": "pooler_transform",
    "cls.predictions.transform.dense": "bert/cls/predictions/transform/dense",
    "cls.predictions.transform.LayerNorm": "bert/cls/predictions/transform/LayerNorm",
    "cls.predictions.bias": "bert/cls/predictions/output_bias/bias",
}
OUTPUT_APART = TODAY | {"encoder.layer.#.attention.output.dense": "transformer/layer_#/self_attention_output"}
FIRST = {ours: f"bert_model/{name.replace('transformer/', 'encoder/')}" for ours, name in OUTPUT_APART.items()} | {
    "embeddings.position_embeddings.weight": "bert_model/embedding_postprocessor/position_embeddings",
    "embeddings.token_type_embeddings.weight": "bert_model/embedding_postprocessor/type_embeddings",
    "embeddings.LayerNorm": "bert_model/embedding_postprocessor/layer_norm",
}
GENERATIONS = {
    "today": TODAY,
    "layer_in_a_model": {ours: f"bert_encoder_v2/{name}" for ours, name in TODAY.items()},  # BertEncoderV2
    "2.2.0": OUTPUT_APART,
    "first": FIRST,
}
QUERY = "transformer/layer_1/self_attention/query"
OUTPUT = "transformer/layer_1/self_attention/attention_output"


@pytest.fixture(scope="module")
def tensors():
    shape = {"layers": LAYERS, "hidden": HIDDEN, "inner": 48, "vocab": len(PIECES), "positions": 24}
    return random_tensors(np.random.default_rng(0), **shape)


@pytest.fixture
def head():
    """The tensors of the masked language model, by Hugging Face's names."""
    rng, name = np.random.default_rng(1), "cls.predictions.transform"
    shapes = {f"{name}.dense.weight": (HIDDEN, HIDDEN), f"{name}.dense.bias": (HIDDEN,)}
    shapes |= {f"{name}.LayerNorm.weight": (HIDDEN,), f"{name}.LayerNorm.bias": (HIDDEN,)}
    shapes["cls.predictions.bias"] = (len(PIECES),)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def variables(tensors, names=TODAY):
    """dict full name -> array, laid out as in Model Garden, made from Hugging Face's tensors."""
    result = {}
    for ours, value in tensors.items():
        parts = ours.split(".")
        number = parts[2] if parts[0] == "encoder" else ""
        key = ours if ours in names else ours.rpartition(".")[0]
        name = names[key.replace(f".{number}.", ".#.") if number else key].replace("#", number)
        if ours not in names:
            kind = {"LayerNorm": {"weight": "gamma", "bias": "beta"}}.get(parts[-2], {"weight": "kernel"})
            name = f"{name}/{kind.get(parts[-1], parts[-1])}"
        if name.endswith("/kernel"):
            value = value.T
        if ".attention.self." in ours:
            value = value.reshape(*value.shape[:-1], HEADS, HIDDEN // HEADS)
        elif ".attention.output.dense.weight" in ours:
            value = value.reshape(HEADS, HIDDEN // HEADS, HIDDEN)
        result[name] = value
    return result


def holder(values):
    module = tf.Module()
    module.weights = [tf.Variable(value, name=name) for name, value in values.items()]
    return module


def write_saved_model(path, values, pieces=PIECES, lower_case=None, asset="vocab.txt"):
    """Writes a SavedModel with variables of these full names and the other attributes of TF-Hub's; returns its path."""
    module = holder(values)
    if pieces:
        file = path.parent / asset
        file.write_text("".join(f"{piece}\n" for piece in pieces))
        module.vocab_file = tf.saved_model.Asset(str(file))
    if lower_case is not None:
        module.do_lower_case = tf.Variable(lower_case, trainable=False)
    tf.saved_model.save(module, str(path))
    return str(path)


def write_checkpoint(path, values, pieces=PIECES, **others):
    """Writes a directory with a checkpoint of variables of these full names, as tf.train.Checkpoint does."""
    tf.train.Checkpoint(model=holder(values), **others).save(str(path / "bert_model.ckpt"))
    if pieces:
        (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return str(path)


def write_tf1_hub_module(path, values):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = [tf.compat.v1.Variable(value, name=name) for name, value in values.items()]
        session.run([one.initializer for one in made])
        builder = tf.compat.v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, [])
        builder.save()
    return str(path)


def assert_holds(encoder, tensors, activation="tanh_gelu"):
    """The encoder gives the same outputs as NumPy with these tensors, in every layer."""
    inputs = features()
    sequence, pooled, layers = encode(tensors, inputs, layers=LAYERS, heads=HEADS, activation=activation)
    outputs, tokens = encoder(inputs), inputs["input_mask"] == 1
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=1e-5)
    np.testing.assert_allclose(outputs["sequence_output"].numpy()[tokens], sequence[tokens], atol=1e-5)
    for ours, theirs in zip(outputs["encoder_outputs"], layers, strict=True):
        np.testing.assert_allclose(ours.numpy()[tokens], theirs[tokens], atol=1e-5)


def message(path):
    """The one-line error that refuses a path."""
    with pytest.raises(DataError) as raised:
        open_checkpoint(path).model()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("write", [write_saved_model, write_checkpoint])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_each_generation_of_names_is_read_from_both_kinds_of_file(tmp_path, tensors, write, generation):
    (tmp_path / "model").mkdir()
    encoder, tokenizer = bert_tf.load(write(tmp_path / "model", variables(tensors, GENERATIONS[generation])))
    assert_holds(encoder, tensors)
    assert encoder.config.num_heads == HEADS
    assert tokenizer.vocab == PIECES


@pytest.mark.parametrize("scope", ["", "module/"])
def test_a_tf1_hub_module_is_read_with_its_settings(tmp_path, tensors, head, scope):
    google = {}
    for name, value in (tensors | head).items():
        name = name.replace("cls.predictions.bias", "cls.predictions.output_bias")
        ours = name.replace(".", "/").replace("encoder/layer/", "encoder/layer_").removesuffix("/weight")
        if "LayerNorm" in name:
            ours = f"{ours.removesuffix('/bias')}/{'gamma' if name.endswith('weight') else 'beta'}"
        elif name.endswith(".weight") and "_embeddings" not in name:
            ours, value = f"{ours}/kernel", value.T
        google[scope + (ours if ours.startswith("cls/") else f"bert/{ours}")] = value
    path = write_tf1_hub_module(tmp_path / "module", google)
    with open(os.path.join(path, "bert_config.json"), "w") as file:
        json.dump({"num_attention_heads": HEADS, "hidden_act": "relu"}, file)
    checkpoint = open_checkpoint(path)
    assert_holds(checkpoint.encoder(), tensors, "relu")
    assert checkpoint.head == "masked_lm"
    os.remove(os.path.join(path, "bert_config.json"))
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.num_heads == 1  # the divisor of 64 nearest to 32
    assert any("attention heads: assumed" in note for note in checkpoint.report.warnings)


def test_a_masked_language_model_is_read_with_its_head(tmp_path, tensors, head):
    checkpoint = open_checkpoint(write_saved_model(tmp_path / "model", variables(tensors | head)))
    assert checkpoint.task == {"name": "masked_lm", "settings": {"max_length": 24}}
    sequence, pooled, _ = encode(tensors, features(), layers=LAYERS, heads=HEADS, activation="tanh_gelu")
    zeros = {"cls.seq_relationship.weight": np.zeros((2, HIDDEN)), "cls.seq_relationship.bias": np.zeros(2)}
    expected, _ = pretraining_logits(tensors | head | zeros, sequence, pooled, POSITIONS, activation="tanh_gelu")
    logits = checkpoint.model()(WITH_POSITIONS)["mlm_logits"]
    kept = features()["input_mask"][:, :3].all(1)  # rows in which positions 1 and 2 are tokens
    np.testing.assert_allclose(logits.numpy()[kept], expected[kept], atol=2e-5)


@pytest.mark.parametrize("output", ["bert/next_sentence/logits", "predictions/transform/logits"])
def test_next_sentence_prediction_is_read_under_both_names_and_with_the_pooler_it_was_trained_on(
    tmp_path, tensors, head, output
):
    rng = np.random.default_rng(2)
    kernel, bias = rng.normal(0, 0.3, (HIDDEN, 2)).astype("float32"), np.float32([0.1, -0.2])
    values = variables(tensors | head) | {f"{output}/kernel": kernel, f"{output}/bias": bias}
    own = "next_sentence" in output
    if own:
        values |= {
            f"bert/next_sentence/pooler_dense/{part}": values[f"pooler_transform/{part}"] for part in ("kernel", "bias")
        }
        values |= {f"pooler_transform/{part}": 0 * values[f"pooler_transform/{part}"] for part in ("kernel", "bias")}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, values))
    assert checkpoint.head == "pretraining"
    logits = checkpoint.model()(WITH_POSITIONS)["nsp_logits"]
    _, pooled, _ = encode(tensors, features(), layers=LAYERS, heads=HEADS, activation="tanh_gelu")
    np.testing.assert_allclose(logits, pooled @ kernel + bias, atol=1e-5)
    assert ("pooler_transform/kernel" in checkpoint.report.unused_tensors) == own


def test_other_variables_are_listed_as_unused_with_reasons_and_the_step_is_kept(tmp_path, tensors):
    values = variables(tensors) | {
        "sentence_prediction/logits/kernel": np.zeros((HIDDEN, 3), "float32"),
        "sentence_prediction/logits/bias": np.zeros(3, "float32"),
    }
    model = holder(values)
    optimizer = tf.Module()
    optimizer.moments = [tf.Variable(one, name=f"m/{one.name}") for one in model.weights]
    step = tf.Variable(7, dtype=tf.int64)
    tf.train.Checkpoint(model=model, optimizer=optimizer, global_step=step).save(str(tmp_path / "ckpt"))
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.step == 7
    assert checkpoint.report.unused_tensors["optimizer/moments/0"] == "optimizer state"
    assert "not a weight" in checkpoint.report.unused_tensors["save_counter"]
    assert "fine-tuned head" in checkpoint.report.unused_tensors["sentence_prediction/logits/kernel"]
    assert len(checkpoint.report.unused_tensors) == len(values) + 3
    assert_holds(checkpoint.encoder(), tensors)


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_saved_model_determines_whether_its_tokenizer_lower_cases(tmp_path, tensors, lower_case):
    path = write_saved_model(tmp_path / "model", variables(tensors), lower_case=lower_case)
    tokenizer = open_checkpoint(path).tokenizer
    assert (tokenizer.lower_case, tokenizer.strip_accents) == (lower_case, lower_case)


def test_without_a_setting_the_vocabulary_determines_lower_casing(tmp_path, tensors):
    path = write_saved_model(tmp_path / "lower", variables(tensors))
    assert open_checkpoint(path).tokenizer.lower_case
    pieces = [piece.upper() if len(piece) == 1 else piece for piece in PIECES]
    path = write_saved_model(tmp_path / "upper", variables(tensors), pieces, asset="cased_vocab.txt")
    checkpoint = open_checkpoint(path)
    assert not checkpoint.tokenizer.lower_case
    assert any("guessed from the vocabulary" in note for note in checkpoint.report.warnings)


def test_a_model_without_a_vocabulary_is_read_with_a_warning(tmp_path, tensors):
    path = write_saved_model(tmp_path / "model", variables(tensors), pieces=None)
    checkpoint = open_checkpoint(path)
    assert checkpoint.tokenizer is None
    assert any(note.startswith("no vocabulary") for note in checkpoint.report.warnings)
    assert bert_tf.load(path)[1] is None


PARAMS = """
task:
  model:
    cls_heads: [{name: next_sentence, num_classes: 2}]
    encoder:
      bert: {hidden_activation: relu, dropout_rate: 0.2, attention_dropout_rate: 0, num_layers: 2, norm_first: false}
      type: bert
"""
JSON = '{"hidden_act": "relu", "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0, "num_hidden_layers": 2}'


@pytest.mark.parametrize("theirs, ours", [("gelu", "tanh_gelu"), ("relu", "relu")])
@pytest.mark.parametrize("name, text", [("params.yaml", PARAMS), ("bert_config.json", JSON)])
def test_settings_beside_a_checkpoint_are_used(tmp_path, tensors, name, text, theirs, ours):
    path = write_checkpoint(tmp_path, variables(tensors))
    (tmp_path / name).write_text(text.replace("relu", theirs))
    checkpoint = open_checkpoint(path)
    assert (checkpoint.config.dropout, checkpoint.config.attention_dropout) == (0.2, 0)
    assert not any("activation" in note for note in checkpoint.report.warnings)
    assert_holds(checkpoint.encoder(), tensors, ours)


def test_assumptions_are_reported(tmp_path, tensors):
    warnings = " ".join(open_checkpoint(write_checkpoint(tmp_path, variables(tensors))).report.warnings)
    assert "activation tanh_gelu: assumed" in warnings
    assert "dropout 0.1, attention_dropout 0.1, layer_norm_epsilon 1e-12" in warnings


@pytest.mark.parametrize(
    "function, activation",
    [
        (lambda x: tf.nn.gelu(x, approximate=True), "tanh_gelu"),
        (lambda x: tf.nn.gelu(x, approximate=False), "erf_gelu"),
        (tf.nn.relu, "relu"),
    ],
)
def test_the_graph_of_a_saved_model_determines_its_activation(tmp_path, tensors, function, activation):
    module = holder(variables(tensors))

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def call(x):
        with tf.name_scope("transformer/layer_0/intermediate"):
            y = function(x)
        with tf.name_scope("pooler_transform"):
            return tf.tanh(y)

    module.call = call
    tf.saved_model.save(module, str(tmp_path / "model"))
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    assert_holds(checkpoint.encoder(), tensors, activation)
    assert not any("activation" in note for note in checkpoint.report.warnings)


@pytest.mark.parametrize(
    "name, text, culprits",
    [
        ("bert_config.json", '{"hidden_act": "swish"}', ["hidden_act 'swish'", "gelu"]),
        ("bert_config.json", '{"num_hidden_layers": 3}', ["num_layers is 2 in its variables, but 3"]),
        ("bert_config.json", '{"hidden_dropout_prob": "0.1"}', ["hidden_dropout_prob is '0.1'; expected a number"]),
        ("bert_config.json", "[]", ["bert_config.json: the content is []; expected an object"]),
        ("params.yaml", PARAMS.replace("relu", "mish"), ["hidden_activation 'mish'"]),
        ("params.yaml", PARAMS.replace("norm_first: false", "norm_first: true"), ["params.yaml: norm_first"]),
        ("params.yaml", PARAMS.replace("type: bert", "type: albert"), ["type 'albert'; expected 'bert'"]),
        ("params.yaml", "task: {", ["params.yaml: not YAML"]),
    ],
)
def test_mismatched_settings_are_named(tmp_path, tensors, name, text, culprits):
    path = write_checkpoint(tmp_path, variables(tensors))
    (tmp_path / name).write_text(text)
    assert all(culprit in message(path) for culprit in culprits), message(path)


@pytest.mark.parametrize(
    "changes, culprits",
    [
        ({f"{QUERY}/kernel": None}, ["missing", f"{QUERY}/kernel"]),
        ({"pooler_transform/kernel": None}, ["missing pooler_transform/kernel"]),
        ({"word_embeddings/embeddings": None}, ["missing word_embeddings/embeddings"]),
        (
            {"transformer/layer_1/output/kernel": np.zeros((47, 32))},
            ["layer_1/output/kernel is [47, 32], not [48, 32]"],
        ),
        # The right number of values, but other axes.
        ({f"{QUERY}/kernel": np.zeros((HEADS, 8, HIDDEN))}, [f"{QUERY}/kernel is [4, 8, 32], not [32, 32]"]),
        ({f"{QUERY}/kernel": np.zeros((HIDDEN, 8, HEADS))}, [f"{QUERY}/kernel is [32, 8, 4], not [32, 32]"]),
        ({f"{OUTPUT}/kernel": np.zeros((HIDDEN, HEADS, 8))}, [f"{OUTPUT}/kernel is [32, 4, 8], not [32, 32]"]),
        ({"position_embedding/embeddings": np.zeros(24)}, ["position_embedding/embeddings is [24]; expected 2 axes"]),
        ({"transformer/layer_99999999999/output/bias": np.zeros(32)}, ["unknown transformer/layer_99999999999"]),
        ({"embedding_projection/kernel": np.zeros((32, 32))}, ["unknown embedding_projection/kernel"]),
        ({"word_embeddings/embeddings": np.zeros((40, 16))}, ["size 16 in a model of hidden size 32", "ALBERT"]),
    ],
)
def test_mismatched_variables_are_named(tmp_path, tensors, changes, culprits):
    values = {name: value for name, value in (variables(tensors) | changes).items() if value is not None}
    line = message(write_checkpoint(tmp_path, {name: np.float32(value) for name, value in values.items()}))
    assert line.startswith(str(tmp_path / "bert_model.ckpt-1"))
    assert all(culprit in line for culprit in culprits), line


def test_an_incomplete_head_is_refused_where_it_is_needed(tmp_path, tensors, head):
    values = variables(tensors | head)
    del values["bert/cls/predictions/transform/dense/bias"]
    path = write_checkpoint(tmp_path, values)
    assert "missing bert/cls/predictions/transform/dense/bias" in message(path)
    open_checkpoint(path).encoder()


def test_two_encoders_in_one_file_are_refused(tmp_path, tensors):
    path = write_checkpoint(tmp_path, variables(tensors), teacher=holder(variables(tensors)))
    line = message(path)
    assert "several variables with the same name" in line
    assert "word_embeddings/embeddings" in line


def test_a_vocabulary_of_another_length_is_refused(tmp_path, tensors):
    line = message(write_saved_model(tmp_path / "model", variables(tensors), [*PIECES, "more"]))
    assert f"{len(PIECES) + 1} pieces" in line


@pytest.mark.parametrize(
    "values",
    [
        # The first variables of tf-models-official's AlbertEncoder, whose layers share one set of weights.
        {"word_embeddings/embeddings": (40, 16), "transformer/self_attention/query/kernel": (32, 4, 8)},
        {"token_and_position_embedding/token_embedding/embeddings": (40, 32)},  # KerasHub
        {},
    ],
)
def test_another_kind_of_model_is_named(tmp_path, values):
    line = message(write_saved_model(tmp_path / "model", {name: np.zeros(shape) for name, shape in values.items()}))
    assert "expected a BERT encoder of TF-Hub or TF Model Garden" in line
    assert all(name in line for name in values)


def test_a_model_exported_by_keras_is_refused_as_another_kind(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.export(str(tmp_path / "model"), verbose=False)
    assert "kernel" in message(str(tmp_path / "model"))


def test_pre_norm_models_are_refused_by_their_metadata(tmp_path, tensors):
    path = write_saved_model(tmp_path / "model", variables(tensors))
    Path(path, "keras_metadata.pb").write_bytes(b'\x0a\x10{"norm_first": true, "num_layers": 2}')
    assert "keras_metadata.pb: norm_first" in message(path)


DATA = "variables/variables.data-00000-of-00001"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tensors):
    """A SavedModel, to be damaged in a copy."""
    return write_saved_model(tmp_path_factory.mktemp("whole") / "model", variables(tensors))


@pytest.mark.parametrize("part", ["saved_model.pb", "variables/variables.index", DATA])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path, whole, part, share):
    path = shutil.copytree(whole, str(tmp_path / "model"))
    file = Path(path, part)
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    assert message(path).startswith(f"{path}/{part.partition('.')[0]}")


@pytest.mark.parametrize("part", ["variables/variables.index", DATA])
def test_a_missing_file_is_named(tmp_path, whole, part):
    path = shutil.copytree(whole, str(tmp_path / "model"))
    Path(path, part).unlink()
    assert f"{path}/{part.removesuffix('-00000-of-00001')}" in message(path)


def test_several_checkpoints_need_a_state_file_that_names_the_one_to_read(tmp_path, tensors):
    later = {name: value + 1 for name, value in tensors.items()}
    for number, values in enumerate((tensors, later)):
        tf.train.Checkpoint(model=holder(variables(values))).write(str(tmp_path / f"ckpt-{number}"))
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/where/it/was/trained/ckpt-0"\n')
    for path, expected in ((tmp_path, tensors), (tmp_path / "ckpt-0", tensors), (tmp_path / "ckpt-1", later)):
        read = open_checkpoint(str(path)).tensors["embeddings/word_embeddings"].read()
        np.testing.assert_array_equal(read, expected["embeddings.word_embeddings.weight"])
    assert f"{tmp_path}/ckpt-0 was read: of 2 checkpoints" in open_checkpoint(str(tmp_path)).report.warnings[0]
    (tmp_path / "checkpoint").unlink()
    assert "several checkpoints: ckpt-0, ckpt-1" in message(str(tmp_path))


REFERENCE = Path(__file__).parents[1] / "model_garden_reference.py"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder of models written by TF Model Garden, and their outputs."""
    python = os.environ.get("BERT_TF_TEST_MODEL_GARDEN_PYTHON")
    if not python:
        pytest.skip(
            "needs BERT_TF_TEST_MODEL_GARDEN_PYTHON: the Python of a virtual environment after pip install tensorflow "
            "tf-keras gin-config scipy pyyaml and pip install --no-deps tf-models-official==2.20.0"
        )
    folder = tmp_path_factory.mktemp("model_garden")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    np.savez(folder / "features.npz", **WITH_POSITIONS)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    done = subprocess.run([python, str(REFERENCE), str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, head, lower_case",
    [
        ("BertEncoder", None, True),
        ("BertEncoderV2", None, True),
        ("pretrainer", "pretraining", True),
        ("saved_model", None, False),
        ("saved_model_with_mlm", "masked_lm", False),
    ],
)
def test_models_written_by_the_library_give_its_outputs(library, name, head, lower_case):
    checkpoint = open_checkpoint(str(library / name))
    assert checkpoint.head == head
    assert checkpoint.step == (12 if name == "pretrainer" else None)
    assert checkpoint.tokenizer.lower_case == lower_case
    assert checkpoint.config.activation == "tanh_gelu"
    theirs = dict(np.load(library / f"{name}.npz"))
    ours = dict(checkpoint.model()(WITH_POSITIONS if head else features()))
    encoder = checkpoint.encoder()(features())
    states = {f"encoder_outputs_{index}": value for index, value in enumerate(encoder["encoder_outputs"])}
    ours |= states | {key: encoder[key] for key in ("sequence_output", "pooled_output")}
    names = {"next_sentence": "nsp_logits"}
    tokens = features()["input_mask"] == 1
    for key, value in theirs.items():
        mine = np.asarray(ours[names.get(key, key)])
        if value.shape[:2] == tokens.shape:  # outputs at padding are meaningless
            mine, value = mine[tokens], value[tokens]
        np.testing.assert_allclose(mine, value, atol=1e-5, err_msg=key)


@pytest.mark.slow
def test_verification_compares_the_masked_language_model_of_a_saved_model(library, tmp_path):
    found = convert(str(library / "saved_model_with_mlm"), "bert_tf", str(tmp_path / "ours"), verify=True)
    found = found["verification"]
    assert found["source_run_by"].startswith("the SavedModel")
    assert found["differences"]["mlm_logits"]["of"] > 0.1
