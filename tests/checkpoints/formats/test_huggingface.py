"""Hugging Face's format: real and random weights against NumPy, and clear errors for everything unsupported."""

import dataclasses
import json
import logging
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bert_tf
from bert_tf.checkpoints import load_model
from bert_tf.checkpoints.conversion import convert
from bert_tf.checkpoints.formats import huggingface
from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.checkpoints.tensor_files import safetensors
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.model.head_table import HEADS
from tests import packages
from tests.checkpoints.small import FAMILIES, HEADS_OF, LABELS, TASKS, assert_same, model_of, small_checkpoint
from tests.errors import raises
from tests.model.numpy_bert import encode, random_tensors, tensors_of
from tests.model.small import PIECES, features, inputs_for


@pytest.fixture(scope="module")
def minilm():
    return str(packages.minilm())


@pytest.mark.slow
def test_real_weights_and_settings_are_kept(minilm, tmp_path):
    checkpoint = huggingface.read(minilm)
    assert (checkpoint.report.warnings, checkpoint.report.unused_tensors) == ((), {})
    huggingface.write(checkpoint, str(tmp_path))
    before, after = (load_file(os.path.join(path, "model.safetensors")) for path in (minilm, tmp_path))
    assert before.keys() - after.keys() <= {"embeddings.position_ids"}
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    for file in ("config.json", "tokenizer_config.json"):
        with open(os.path.join(minilm, file)) as one, open(tmp_path / file) as other:
            settings, again = json.load(one), json.load(other)
        made = {"_name_or_path", "transformers_version", "name_or_path", "tokenizer_file"}
        lost = {name for name, value in settings.items() if again.get(name) != value} - made
        assert not lost, (file, {name: (settings[name], again.get(name)) for name in lost})
    with open(os.path.join(minilm, "vocab.txt"), "rb") as file:
        assert file.read().split() == (tmp_path / "vocab.txt").read_bytes().split()


CONFIG = {
    "model_type": "bert",
    "vocab_size": len(PIECES),
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
}


@pytest.fixture
def tensors():
    shape = {"layers": 2, "hidden": 32, "inner": 48, "vocab": len(PIECES), "positions": 24}
    return random_tensors(np.random.default_rng(0), **shape)


def write(path, tensors, config=None, pieces=PIECES, **overrides):
    """Writes a Hugging Face directory; returns its path as str."""
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps((CONFIG if config is None else config) | overrides))
    (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return str(path)


def assert_holds(encoder, tensors, activation="erf_gelu"):
    inputs = features()
    sequence, pooled, _ = encode(tensors, inputs, layers=2, heads=4, activation=activation, epsilon=1e-5)
    outputs, tokens = encoder(inputs), inputs["input_mask"] == 1
    np.testing.assert_allclose(outputs["sequence_output"].numpy()[tokens], sequence[tokens], atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=1e-5)


def gamma_beta(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize(
    "rename",
    [lambda name: name, lambda name: f"bert.{name}", gamma_beta, lambda name: f"bert.{gamma_beta(name)}"],
    ids=["plain", "prefix", "gamma", "prefix_gamma"],
)
def test_tensors_are_found_under_each_of_their_names(tmp_path, tensors, rename):
    encoder, _ = bert_tf.load(write(tmp_path, {rename(name): value for name, value in tensors.items()}))
    assert_holds(encoder, tensors)


@pytest.mark.parametrize(
    "theirs, ours",
    [("gelu", "erf_gelu"), ("gelu_new", "tanh_gelu"), ("gelu_pytorch_tanh", "tanh_gelu"), ("relu", "relu")],
)
def test_activations_have_their_hugging_face_names(tmp_path, tensors, theirs, ours):
    encoder, _ = bert_tf.load(write(tmp_path, tensors, hidden_act=theirs))
    assert_holds(encoder, tensors, ours)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_tensors_of_another_float_type_are_converted(tmp_path, tensors, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    stored = {name: value.astype(dtype) for name, value in tensors.items()}
    encoder, _ = bert_tf.load(write(tmp_path, stored))
    assert_holds(encoder, {name: value.astype(np.float32) for name, value in stored.items()})


def test_the_tokenizer_follows_tokenizer_config(tmp_path, tensors):
    path = write(tmp_path, tensors)
    _, tokenizer = bert_tf.load(path)
    assert (tokenizer.lower_case, tokenizer.strip_accents, tokenizer.split_cjk) == (True, True, True)
    settings = {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    _, tokenizer = bert_tf.load(path)
    assert (tokenizer.lower_case, tokenizer.strip_accents, tokenizer.split_cjk) == (False, False, False)


@pytest.mark.parametrize("architecture", ["BertModel", "BertForPoetry"])
def test_tensors_that_the_class_lacks_are_listed_in_a_warning(tmp_path, tensors, caplog, architecture):
    extra = {"cls.predictions.bias": np.zeros(3), "classifier.weight": np.zeros(3), "qa_outputs.bias": np.zeros(2)}
    buffers = {"bert.embeddings.position_ids": np.arange(24)[None], "bert.embeddings.token_type_ids": np.zeros((1, 24))}
    prefixed = {f"bert.{name}": value for name, value in tensors.items()}
    path = write(tmp_path, prefixed | extra | buffers, architectures=[architecture])
    with caplog.at_level(logging.WARNING, logger="absl"):
        encoder, _ = bert_tf.load(path)
    assert_holds(encoder, tensors)
    (record,) = [record for record in caplog.records if "tensors not used" in record.getMessage()]
    assert all(name in record.getMessage() for name in extra)
    assert "_ids" not in record.getMessage()
    assert set(huggingface.read(path).report.unused_tensors) == set(extra)


def test_a_custom_class_may_give_its_head_any_name(tmp_path, tensors):
    extra = {"crf.transitions": np.zeros((3, 3))}
    prefixed = {f"bert.{name}": value for name, value in tensors.items()}
    path = write(tmp_path, prefixed | extra, architectures=["BertCrf"])
    assert huggingface.read(path).report.unused_tensors == {
        "crf.transitions": "the head of BertCrf, which bert_tf does not have"
    }
    path = write(tmp_path, prefixed | extra, architectures=["BertModel"])
    assert huggingface.read(path).report.unused_tensors == {"crf.transitions": "not part of a model of this class"}
    # Beside an encoder with the prefix, another part may be called encoder; within it, every tensor must be known.
    path = write(tmp_path, prefixed | extra | {"encoder.weight_ih_l0": np.zeros(3)}, architectures=["BertCrf"])
    assert set(huggingface.read(path).report.unused_tensors) == {"crf.transitions", "encoder.weight_ih_l0"}
    path = write(tmp_path, prefixed | {"bert.encoder.gate": np.zeros(3)}, architectures=["BertCrf"])
    with raises(DataError, "bert.encoder.gate"):
        huggingface.read(path)


@pytest.mark.parametrize("head", ["masked_lm", "classification", "tagging", "question_answering"])
def test_the_head_of_an_unknown_class_is_recognised_by_its_tensors(tmp_path, head):
    checkpoint = small(head)
    huggingface.write(checkpoint, str(tmp_path))
    edit(tmp_path, architectures=["AntiBERTy"])
    again = huggingface.read(str(tmp_path))
    assert_same(checkpoint, again)
    [note] = [note for note in again.report.warnings if note.startswith("head: ")]
    assert "config.json names AntiBERTy, which bert_tf does not have" in note and note.endswith(head)
    # The names of a classifier's tensors do not tell what it reads: with others beside it, it is not used.
    edit_tensors(tmp_path, **{"cls.species.weight": np.zeros((2, 32), np.float32)})
    again = huggingface.read(str(tmp_path))
    assert again.head == (None if HEADS[head].labels else head)
    why = again.report.unused_tensors["cls.species.weight"]
    assert why.endswith("the head of AntiBERTy, which bert_tf does not have")


@pytest.mark.parametrize(
    "changes",
    [
        {"classifier.weight": None},
        {"classifier.weight": np.zeros((3, 31), np.float32)},
        {"classifier.weight": np.zeros((5, 32), np.float32), "classifier.bias": np.zeros(5, np.float32)},
    ],
)
@pytest.mark.parametrize("classes", [None, ["BertPoet"]])
def test_an_unknown_head_does_not_keep_the_encoder_from_loading(tmp_path, changes, classes):
    checkpoint = small("classification")
    huggingface.write(checkpoint, str(tmp_path))
    edit(tmp_path, architectures=classes)
    edit_tensors(tmp_path, **changes)
    again = huggingface.read(str(tmp_path))
    assert again.head is None and again.tensors.keys() == small().tensors.keys()
    assert any("only the encoder is read: " in note for note in again.report.warnings)
    assert "classifier.bias" in again.report.unused_tensors


def test_a_bare_encoder_loads_without_a_warning(tmp_path, tensors, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        bert_tf.load(write(tmp_path, tensors))
    assert not caplog.records


QUERY = "encoder.layer.1.attention.self.query"


def changed(tensors, **changes):
    """`tensors` with some replaced, or removed if the value is None; "__" in a name stands for a dot."""
    result = tensors | {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in result.items() if value is not None}


@pytest.mark.parametrize(
    "changes, culprits",
    [
        ({"pooler.dense.bias": None, f"{QUERY}.weight": None}, ["missing", "pooler.dense.bias", f"{QUERY}.weight"]),
        ({"encoder.layer.2.output.dense.bias": np.zeros(32)}, ["unknown", "encoder.layer.2.output.dense.bias"]),
        ({"embeddings.LayerNorm.weight": np.zeros(31)}, ["embeddings.LayerNorm.weight is [31], not [32]"]),
        (
            {"encoder.layer.0.output.dense.weight": np.zeros((48, 32))},
            ["encoder.layer.0.output.dense.weight is [48, 32], not [32, 48]"],
        ),
        ({f"{QUERY}.weight": np.zeros((31, 32))}, [f"{QUERY}.weight is [31, 32]"]),
        ({f"{QUERY}.weight": np.zeros((32, 31))}, [f"{QUERY}.weight is [32, 31]"]),
        ({"embeddings.word_embeddings.weight": np.zeros((7, 32))}, ["word_embeddings", f"[{len(PIECES)}, 32]"]),
        ({"embeddings.word_embeddings.weight": np.zeros(7)}, ["word_embeddings", "[7]"]),
    ],
)
def test_a_mismatched_tensor_is_named(tmp_path, tensors, changes, culprits):
    path = write(tmp_path, changed(tensors, **changes))
    with pytest.raises(DataError) as raised:
        bert_tf.load(path)
    message = str(raised.value)
    assert message.startswith(os.path.join(path, "model.safetensors"))
    assert all(culprit in message for culprit in culprits), message
    assert "\n" not in message


def test_qkv_tensors_of_wrong_sizes_with_the_right_sum_are_refused(tmp_path, tensors):
    sizes = {"query": 31, "key": 33}
    wrong = {f"encoder.layer.1.attention.self.{part}.weight": np.zeros((n, 32)) for part, n in sizes.items()}
    with raises(DataError, "layer.1.attention.self.query.weight", "[31, 32]"):
        bert_tf.load(write(tmp_path, tensors | wrong))


@pytest.mark.parametrize(
    "overrides, culprits",
    [
        ({"model_type": "gpt2"}, ["model_type 'gpt2'; expected 'bert', 'roberta'", "'electra', 'albert'"]),
        ({"model_type": "deberta-v2"}, ["model_type 'deberta-v2', which needs attention with disentangled positions"]),
        ({"model_type": "eurobert"}, ["model_type 'eurobert', which needs RMSNorm, and heads that share keys"]),
        ({"model_type": "jina_embeddings_v3"}, ["model_type 'jina_embeddings_v3', which needs adapters for its tasks"]),
        ({"model_type": "neobert"}, ["model_type 'neobert', which needs RMSNorm; expected"]),
        ({"model_type": "new"}, ["model_type 'new', which needs the config.json of Transformers' own class (gte)"]),
        ({"num_hidden_groups": 2}, ["num_hidden_groups 2", "expected 1"]),
        ({"inner_group_num": 2}, ["inner_group_num 2", "expected 1"]),
        ({"model_type": "albert", "embedding_size": "8"}, ["embedding_size is '8'; expected a whole number"]),
        *(
            (
                {"model_type": name, "embedding_size": 0},
                ["config.json: embedding_size is 0; expected a whole number from 1"],
            )
            for name in ("albert", "electra")
        ),
        ({"is_decoder": True}, ["is_decoder True", "expected False"]),
        ({"add_cross_attention": True}, ["add_cross_attention True", "expected False"]),
        ({"hidden_size": "32"}, ["config.json"]),
        ({"hidden_act": "mish"}, ["hidden_act 'mish'", "gelu"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type 'relative_key'", "absolute"]),
        ({"num_attention_heads": 5}, ["not a multiple of num_attention_heads 5"]),
        ({"vocab_size": len(PIECES) + 1}, [f"{len(PIECES)} pieces", f"{len(PIECES) + 1}"]),
        (
            {"num_hidden_layers": 10**9},
            ["config.json: num_hidden_layers is 1000000000; expected a whole number"],
        ),
        ({"max_position_embeddings": 10**12}, ["config.json: max_position_embeddings is 1000000000000; expected"]),
        ({"vocab_size": 0}, ["config.json: vocab_size is 0; expected a whole number from 1"]),
        ({"intermediate_size": 48.0}, ["config.json: intermediate_size is 48.0; expected a whole number"]),
        ({"type_vocab_size": True}, ["config.json: type_vocab_size is True; expected a whole number"]),
        ({"model_type": "roberta", "pad_token_id": -1}, ["config.json: pad_token_id is -1; expected a whole number"]),
        (
            {"model_type": "roberta", "pad_token_id": 23},
            ["max_position_embeddings is 24; expected more than pad"],
        ),
    ],
)
def test_an_invalid_config_is_refused(tmp_path, tensors, overrides, culprits):
    path = write(tmp_path, tensors, **overrides)
    with pytest.raises(bert_tf.errors.BertTfError) as raised:
        bert_tf.load(path)
    assert all(culprit in str(raised.value) for culprit in culprits), raised.value


@pytest.mark.parametrize(
    "family, head, claimed, named",
    [
        ("albert", "masked_lm", "electra", "Albert models, such as albert.encoder."),
        ("albert", None, "electra", "Albert models, such as encoder.albert_layer_groups."),
        ("albert", "classification", "bert", "Albert models, such as albert.encoder."),
        ("electra", "masked_lm", "albert", "Electra models, such as electra.encoder."),
        ("bert", "masked_lm", "roberta", "Bert models, such as bert.encoder."),
        ("bert", None, "albert", "Bert models, such as encoder.layer.0."),
    ],
)
def test_weights_of_another_family_than_config_json_says_are_called_by_its_name(tmp_path, family, head, claimed, named):
    huggingface.write(member(family, head), str(tmp_path))
    edit(tmp_path, model_type=claimed, embedding_size=16, pad_token_id=1)
    with raises(DataError, "model.safetensors", named, f"model_type in config.json is '{claimed}'"):
        bert_tf.load(str(tmp_path))


def test_the_missing_size_of_a_config_is_named(tmp_path, tensors):
    config = {name: value for name, value in CONFIG.items() if name != "num_hidden_layers"}
    with raises(DataError, "config.json", "'num_hidden_layers'", "Hugging Face's Bert models"):
        bert_tf.load(write(tmp_path, tensors, config))


@pytest.mark.parametrize("keep", [0, 5, 1000, -10])
def test_a_truncated_file_is_reported_as_unreadable(tmp_path, tensors, keep):
    path = write(tmp_path, tensors)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with raises(DataError, "model.safetensors"):
        bert_tf.load(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_a_missing_file_is_named(tmp_path, tensors, name):
    path = write(tmp_path, tensors)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=name):
        bert_tf.load(path)


def test_a_config_that_is_not_an_object_is_refused(tmp_path, tensors):
    path = write(tmp_path, tensors)
    (tmp_path / "config.json").write_text("[1]")
    with raises(DataError, "config.json"):
        bert_tf.load(path)


def test_a_missing_directory_is_named(tmp_path):
    with raises(DataError, "nowhere"):
        bert_tf.load(str(tmp_path / "nowhere"))


# Heads

NO_POOLER = ("masked_lm", "tagging", "question_answering")  # heads whose classes in Transformers have no pooler


def small(head=None, **config):
    """A small Checkpoint that the format can store unchanged."""
    return small_checkpoint(head, **({"pooler": head not in NO_POOLER} | config))


def member(family, head=None, **config):
    """The same in the layout of a family; of RoBERTa's: [PAD] has id 1, positions start at 2, one token type."""
    no_pooler = (
        *NO_POOLER,
        "replaced_token_detection",
        None if family in ("distilbert", "electra", "modernbert") else "none",
    )
    checkpoint = small(head, **({"pooler": head not in no_pooler} | FAMILIES[family] | config))
    if family == "roberta":
        pieces = [PIECES[1], PIECES[0], *PIECES[2:]]
        checkpoint = dataclasses.replace(checkpoint, tokenizer=bert_tf.Tokenizer(pieces, lower_case=False))
    return checkpoint


def edit(path, file="config.json", **changes):
    """Changes keys of a JSON file; None removes one."""
    settings = json.loads((path / file).read_text()) | changes
    (path / file).write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


def edit_tensors(path, **changes):
    """Changes tensors of the file like `changed`."""
    save_file(changed(load_file(path / "model.safetensors"), **changes), path / "model.safetensors")


def assert_round_trip(checkpoint, path):
    names, _ = huggingface.write(checkpoint, str(path))
    again = huggingface.read(str(path))
    assert_same(checkpoint, again)
    assert names == {name: tensor.source for name, tensor in again.tensors.items()}
    assert again.task == checkpoint.task
    assert not again.report.unused_tensors
    return again


@pytest.mark.parametrize("head", TASKS)
def test_every_head_is_restored_bit_for_bit(tmp_path, head):
    checkpoint = small(head)
    model = model_of(checkpoint)
    assert_round_trip(checkpoint, tmp_path)
    again, tokenizer, labels = load_model(str(tmp_path))
    assert labels == (LABELS if head in ("classification", "tagging") else None)
    assert tokenizer.vocab == PIECES
    inputs = inputs_for(head)
    ours, theirs = model(inputs), again(inputs)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(theirs[name]))


@pytest.mark.parametrize("family, head", [(family, head) for family in FAMILIES for head in HEADS_OF[family]])
def test_every_head_of_every_family_is_restored_bit_for_bit(tmp_path, family, head):
    checkpoint = member(family, head)
    again = assert_round_trip(checkpoint, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["model_type"] == again.source_metadata["model_type"] == family
    if family == "roberta":
        assert (settings["pad_token_id"], settings["max_position_embeddings"]) == (1, 26)
    edit(tmp_path, architectures=None)
    if family == "modernbert" and head in ("tagging", "question_answering"):  # the same tensors for all
        head = "classification"
    if head == "multiple_choice":  # what has the same tensors
        head = {"roberta": "tagging", "electra": "multiple_choice"}.get(family, "classification")
    assert huggingface.read(str(tmp_path)).head == head


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "change",
    [lambda one: None, lambda one: one[..., :-1], lambda one: one.astype(np.int32)],
    ids=["missing", "misshapen", "mistyped"],
)
def test_a_damaged_head_only_matters_where_it_is_needed(tmp_path, caplog, family, change):
    checkpoint = member(family, "masked_lm")
    huggingface.write(checkpoint, str(tmp_path))
    bias = checkpoint.tensors["masked_lm/bias"].read()
    names, _ = huggingface.write(checkpoint, str(tmp_path))
    edit_tensors(tmp_path, **{names["masked_lm/bias"]: change(bias)})
    encoder, _ = bert_tf.load(str(tmp_path))
    for variable in encoder.weights:
        np.testing.assert_array_equal(variable, checkpoint.tensors[variable.path].read(), err_msg=variable.path)
    assert "head: only the encoder is read: " in caplog.text and names["masked_lm/bias"] in caplog.text
    for needs_it in (
        load_model,
        bert_tf.MaskedLM.from_pretrained,
        lambda path: convert(path, "bert_tf", str(tmp_path / "converted")),
    ):
        with raises(DataError, names["masked_lm/bias"]):
            needs_it(str(tmp_path))
    with raises(BertTfError, names["masked_lm/bias"], "call fit"):
        bert_tf.TextClassifier.from_pretrained(str(tmp_path)).predict(["a"])


def test_a_model_is_written_as_a_family_that_has_its_head(tmp_path):
    # Without types and with a head that DistilBERT has no class for.
    checkpoint = member("distilbert", "next_sentence", pooler_activation="tanh")
    model = model_of(checkpoint)
    checkpoint = dataclasses.replace(checkpoint, source_metadata={"format": "huggingface", "model_type": "distilbert"})
    huggingface.write(checkpoint, str(tmp_path))
    again = huggingface.read(str(tmp_path))
    assert again.source_metadata["model_type"] == "bert"
    ours, theirs = model(features())["nsp_logits"], again.model()(features())["nsp_logits"]
    np.testing.assert_array_equal(ours, theirs)


def test_the_family_that_a_model_was_read_from_comes_first(tmp_path):
    for family in ("bert", "electra"):  # both can hold it
        checkpoint = member("electra", "masked_lm", embedding_size=0)
        checkpoint = dataclasses.replace(checkpoint, source_metadata={"format": "huggingface", "model_type": family})
        (tmp_path / family).mkdir()
        huggingface.write(checkpoint, str(tmp_path / family))
        assert huggingface.read(str(tmp_path / family)).source_metadata["model_type"] == family


def test_electras_summary_other_than_of_the_first_token_is_not_read_as_a_head(tmp_path):
    huggingface.write(member("electra", "multiple_choice"), str(tmp_path))
    edit(tmp_path, summary_type="mean")
    checkpoint = huggingface.read(str(tmp_path))
    assert checkpoint.head is None
    assert all("summary_type 'mean', not 'first'" in why for why in checkpoint.report.unused_tensors.values())


def test_written_files_have_pytorchs_names_and_layout(tmp_path):
    checkpoint = small("pretraining")
    model = model_of(checkpoint)
    huggingface.write(checkpoint, str(tmp_path))
    expected = {
        name if name.startswith("cls.") else f"bert.{name}": value
        for name, value in tensors_of(model, checkpoint.config.hidden_size).items()
    }
    written = load_file(tmp_path / "model.safetensors")
    assert written.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(written[name], value, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_kept(tmp_path, dtype):
    checkpoint = small("classification")
    halves = {name: tensor_of(one.read().astype(dtype), name) for name, one in checkpoint.tensors.items()}
    assert_round_trip(dataclasses.replace(checkpoint, tensors=halves), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype


@pytest.mark.parametrize("head", TASKS)
def test_without_architectures_the_head_is_recognised_by_the_tensors(tmp_path, head):
    huggingface.write(small(head), str(tmp_path))
    edit(tmp_path, architectures=None)
    again = huggingface.read(str(tmp_path))
    if head == "multiple_choice":  # is a classifier with one output
        assert (again.head, again.labels, again.task["name"]) == ("classification", ["LABEL_0"], "regression")
    else:
        assert again.head == head
    assert bool(head) == any("names no architecture" in note for note in again.report.warnings)


def test_a_masked_lm_with_a_next_sentence_head_is_read_with_both(tmp_path):
    checkpoint = small("pretraining")
    huggingface.write(checkpoint, str(tmp_path))
    edit(tmp_path, architectures=["BertForMaskedLM"])
    again = huggingface.read(str(tmp_path))
    assert_same(checkpoint, again)
    assert any("next-sentence head" in note for note in again.report.warnings)


TIED = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}
TIED |= {"cls.predictions.decoder.bias": "cls.predictions.bias"}


def test_copies_of_tied_tensors_are_compared_and_reported(tmp_path):
    checkpoint = small("masked_lm")
    huggingface.write(checkpoint, str(tmp_path))
    stored = load_file(tmp_path / "model.safetensors")
    assert not TIED.keys() & stored.keys()
    edit_tensors(tmp_path, **{copy: stored[original] for copy, original in TIED.items()})
    again = huggingface.read(str(tmp_path))
    assert_same(checkpoint, again)
    assert not again.report.unused_tensors
    assert all(any(note.startswith(copy) for note in again.report.warnings) for copy in TIED)


@pytest.mark.parametrize("copy", TIED)
def test_an_untied_output_layer_is_refused(tmp_path, copy):
    huggingface.write(small("masked_lm"), str(tmp_path))
    different = load_file(tmp_path / "model.safetensors")[TIED[copy]] + np.float32(1e-6)
    edit_tensors(tmp_path, **{copy: different})
    with raises(DataError, copy, TIED[copy]):
        load_model(str(tmp_path))


def test_a_bias_stored_only_as_the_decoders_is_read(tmp_path):
    checkpoint = small("masked_lm")
    huggingface.write(checkpoint, str(tmp_path))
    bias = load_file(tmp_path / "model.safetensors")["cls.predictions.bias"]
    edit_tensors(tmp_path, **{"cls.predictions.bias": None, "cls.predictions.decoder.bias": bias})
    assert_same(checkpoint, huggingface.read(str(tmp_path)))


# Labels and tasks


def write_classifier(path, problem=None, **changes):
    """Writes a classifier as Transformers would, without our own key; changes these keys of config.json."""
    huggingface.write(small("classification"), str(path))
    edit(path, bert_tf=None, problem_type=problem, **changes)
    return str(path)


def test_labels_are_in_the_order_of_their_ids(tmp_path):
    path = write_classifier(tmp_path, id2label={"2": "c", "0": "a", "1": "b"})
    checkpoint = huggingface.read(path)
    assert checkpoint.labels == ["a", "b", "c"]
    assert checkpoint.task == {"name": "classification", "settings": {"labels": ["a", "b", "c"], "max_length": 24}}


@pytest.mark.parametrize("changes", [{"num_labels": 3}, {}])
def test_labels_without_names_are_numbered(tmp_path, changes):
    path = write_classifier(tmp_path, id2label=None, **changes)
    assert huggingface.read(path).labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_the_two_default_names_are_no_names(tmp_path):
    path = write_classifier(tmp_path, id2label={"0": "LABEL_0", "1": "LABEL_1"})
    checkpoint = huggingface.read(path)
    assert checkpoint.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    note = "labels: numbered LABEL_0 to LABEL_2, as config.json has only the 2 default names"
    assert note in checkpoint.report.warnings


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"id2label": {"0": "a", "1": "b"}}, ("id2label", "2 labels", "3 outputs")),
        ({"id2label": {"0": "a", "1": "b", "3": "c"}}, ("id2label", "0", "1")),
        ({"id2label": ["a", "b", "c"]}, ("id2label", "0", "1")),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, ("'a'", "'b'")),
        ({"id2label": {"0": "a", "1": "b", "2": ""}}, ("'a'", "'b'", "''")),
        ({"id2label": 3}, ("id2label", "0", "1")),
        ({"id2label": None, "num_labels": 10**12}, ("num_labels", "1000000000000")),
        ({"id2label": None, "num_labels": "3"}, ("num_labels", '"3"')),
        ({"id2label": None, "num_labels": 4}, ("num_labels", "4 labels", "3 outputs")),
    ],
)
def test_labels_that_do_not_match_the_classifier_are_refused(tmp_path, changes, line):
    path = write_classifier(tmp_path, **changes)
    with raises(DataError, *line):
        load_model(path)


@pytest.mark.parametrize("name", ["regression", "multi_label_classification"])
def test_the_problem_type_determines_the_task(tmp_path, name):
    assert huggingface.read(write_classifier(tmp_path, name)).task["name"] == name
    checkpoint = small("classification")
    checkpoint.task["name"] = name
    assert_round_trip(checkpoint, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["problem_type"] == name


def test_the_settings_of_a_task_are_restored_unless_its_labels_were_changed(tmp_path):
    checkpoint = small("classification")
    checkpoint.task["settings"] |= {"text": "a", "second_text": "b", "max_length": 17}
    assert_round_trip(checkpoint, tmp_path)
    edit(tmp_path, id2label={"0": "a", "1": "b", "2": "c"})
    again = huggingface.read(str(tmp_path))
    assert again.task["settings"] == {"labels": ["a", "b", "c"], "max_length": 24}
    assert any("no longer fits this model" in note for note in again.report.warnings)


@pytest.mark.parametrize("limit, length", [(17, 17), (24, 24), (512, 24), (int(1e30), 24), (None, 24)])
def test_max_length_is_limited_by_the_tokenizer_and_the_positions(tmp_path, limit, length):
    path = write_classifier(tmp_path)
    edit(tmp_path, "tokenizer_config.json", model_max_length=limit)
    assert huggingface.read(path).task["settings"]["max_length"] == length


def test_the_padding_token_is_that_of_the_vocabulary(tmp_path):
    checkpoint = small()
    pieces = [PIECES[1], PIECES[0], *PIECES[2:]]
    huggingface.write(dataclasses.replace(checkpoint, tokenizer=bert_tf.Tokenizer(pieces)), str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == 1


@pytest.mark.parametrize(("family", "padding"), [("bert", 0), ("roberta", 1)])
def test_another_padding_token_than_the_tokenizers_is_reported(tmp_path, family, padding):
    checkpoint = member(family, "masked_lm")
    huggingface.write(checkpoint, str(tmp_path))
    assert not any("pad_token_id" in note for note in huggingface.read(str(tmp_path)).report.warnings)
    edit(tmp_path, "config.json", pad_token_id=1 - padding)
    [note] = [note for note in huggingface.read(str(tmp_path)).report.warnings if "pad_token_id" in note]
    assert f"is {1 - padding}, and the tokenizer pads with {padding} ([PAD])" in note
    assert ("positions count from" in note) == (family == "roberta")


@pytest.mark.parametrize("mark", ["tokenizer", "wordpiece"])
def test_a_bert_written_without_a_tokenizer_is_read_without_one(tmp_path, mark):
    huggingface.write(dataclasses.replace(small(), tokenizer=None), str(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["bert_tf"] == {"tokenizer": False}
    edit(tmp_path, bert_tf={mark: False})
    assert huggingface.read(str(tmp_path)).tokenizer is None
    edit(tmp_path, bert_tf={})
    with raises(DataError, "vocab.txt"):
        huggingface.read(str(tmp_path))


# RoBERTa


def test_a_roberta_without_a_vocabulary_is_read_without_a_tokenizer(tmp_path):
    checkpoint = member("roberta", "masked_lm")
    model = model_of(checkpoint)
    checkpoint = dataclasses.replace(checkpoint, tokenizer=None)
    assert_round_trip(checkpoint, tmp_path)
    again, tokenizer, _ = load_model(str(tmp_path))
    assert tokenizer is None
    inputs = inputs_for("masked_lm")
    np.testing.assert_array_equal(again(inputs)["mlm_logits"], model(inputs)["mlm_logits"])
    assert any("the directory has none" in note for note in huggingface.read(str(tmp_path)).report.warnings)


def test_robertas_masked_lm_head_has_its_own_activation(tmp_path):
    huggingface.write(member("roberta", "masked_lm"), str(tmp_path))
    edit(tmp_path, hidden_act="relu")
    checkpoint = huggingface.read(str(tmp_path))
    assert checkpoint.head is None
    assert set(checkpoint.report.unused_tensors) == {
        f"lm_head.{name}" for name in ("bias", "dense.bias", "dense.weight", "layer_norm.bias", "layer_norm.weight")
    }
    assert all("'relu'" in why for why in checkpoint.report.unused_tensors.values())


# Files


def test_opening_reads_no_values_but_copies_of_tied_tensors(tmp_path, monkeypatch):
    huggingface.write(small("masked_lm"), str(tmp_path))
    edit_tensors(tmp_path, **{"cls.predictions.decoder.bias": np.zeros(len(PIECES), np.float32)})
    edit_tensors(tmp_path, **{"cls.predictions.bias": np.zeros(len(PIECES), np.float32)})
    opened, read = [], safetensors._read
    monkeypatch.setattr(safetensors, "_read", lambda file, name, *more: opened.append(name) or read(file, name, *more))
    checkpoint = huggingface.read(str(tmp_path))
    assert sorted(opened) == ["cls.predictions.bias", "cls.predictions.decoder.bias"]
    checkpoint.tensors["masked_lm/transform/kernel"].read()
    assert opened[2:] == ["cls.predictions.transform.dense.weight"]


def shard(path):
    """Splits the model.safetensors of a directory into two files with an index."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    places = {name: files[number % 2] for number, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name in tensors if places[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return files


def test_shards_are_read_as_one_model(tmp_path):
    checkpoint = small("classification")
    huggingface.write(checkpoint, str(tmp_path))
    shard(tmp_path)
    assert_same(checkpoint, huggingface.read(str(tmp_path)))


def test_an_index_that_lists_no_files_is_named(tmp_path):
    huggingface.write(small(), str(tmp_path))
    shard(tmp_path)
    for content, found in (("[]", "[]"), ("{}", "'weight_map'")):
        (tmp_path / "model.safetensors.index.json").write_text(content)
        with raises(DataError, "model.safetensors.index.json", found):
            huggingface.read(str(tmp_path))


def test_a_missing_or_truncated_shard_is_named(tmp_path):
    huggingface.write(small("classification"), str(tmp_path))
    _, second = shard(tmp_path)
    (tmp_path / second).write_bytes((tmp_path / second).read_bytes()[:-4])
    with raises(DataError, second):
        huggingface.read(str(tmp_path))
    (tmp_path / second).unlink()
    with raises(DataError, "index.json", f"'{second}'"):
        huggingface.read(str(tmp_path))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "", ".", "a\0b", "\ud800"])
def test_an_index_may_only_list_files_beside_it(tmp_path, name):
    huggingface.write(small(), str(tmp_path))
    shard(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"pooler.dense.bias": name}}))
    with raises(DataError, "index.json"):
        huggingface.read(str(tmp_path))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_pickle_is_not_opened_unless_allowed(tmp_path, tensors, name):
    path = write(tmp_path, tensors)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with raises(DataError, name, "allow_pickle"):
        bert_tf.load(path)


@pytest.mark.parametrize("name", ["tf_model.h5", "flax_model.msgpack"])
def test_weights_of_another_library_are_named(tmp_path, tensors, name):
    path = write(tmp_path, tensors)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with raises(DataError, name):
        bert_tf.load(path)


def test_one_tensor_under_two_names_is_refused_only_if_the_two_differ(tmp_path, tensors):
    name = "embeddings.LayerNorm"
    encoder, _ = bert_tf.load(write(tmp_path, tensors | {f"{name}.gamma": tensors[f"{name}.weight"]}))
    assert_holds(encoder, tensors)
    with raises(DataError, "same tensor"):
        bert_tf.load(write(tmp_path, tensors | {f"{name}.gamma": tensors[f"{name}.weight"] + 1}))


def test_unused_settings_are_written_back(tmp_path, tensors):
    path = write(tmp_path, tensors, hidden_act="gelu_pytorch_tanh", classifier_dropout=0.3, pad_token_id=0, custom=[1])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 17, "padding_side": "left"}))
    target = tmp_path / "again"
    target.mkdir()
    huggingface.write(huggingface.read(path), str(target))
    settings = json.loads((target / "config.json").read_text())
    kept = {"classifier_dropout": 0.3, "pad_token_id": 0, "custom": [1], "hidden_act": "gelu_pytorch_tanh"}
    assert settings | CONFIG | kept == settings  # all of them are kept
    tokenizer = json.loads((target / "tokenizer_config.json").read_text())
    assert (tokenizer["model_max_length"], tokenizer["padding_side"]) == (17, "left")


def test_an_untied_setting_is_not_written_back(tmp_path, tensors):
    path = write(tmp_path, tensors, tie_word_embeddings=False, auto_map={"AutoModel": "code.Model"})
    huggingface.write(huggingface.read(path), path)
    assert not {"tie_word_embeddings", "auto_map"} & json.loads((tmp_path / "config.json").read_text()).keys()


# What the format cannot represent


@pytest.mark.parametrize("head", NO_POOLER)
def test_a_pooler_that_the_class_lacks_is_not_written(tmp_path, head):
    checkpoint = small(head, pooler=True)
    names, report = huggingface.write(checkpoint, str(tmp_path))
    assert report.unused_tensors.keys() == {"pooler/kernel", "pooler/bias"} == checkpoint.tensors.keys() - names.keys()
    again = huggingface.read(str(tmp_path))
    assert not again.config.pooler
    assert again.tensors.keys() == names.keys()


def test_the_report_of_an_encoder_without_pooler_says_how_to_open_it(tmp_path):
    checkpoint = small(pooler=False)
    _, report = huggingface.write(checkpoint, str(tmp_path))
    assert any("add_pooling_layer=False" in note for note in report.warnings)


def test_a_model_without_token_types_gets_a_row_of_zeros(tmp_path):
    checkpoint = small(type_vocab_size=0)
    model = model_of(checkpoint)
    names, report = huggingface.write(checkpoint, str(tmp_path))
    assert names.keys() == checkpoint.tensors.keys()
    assert any("one row of zeros" in note for note in report.warnings)
    again = huggingface.read(str(tmp_path))
    assert again.config.type_vocab_size == 1
    assert not again.tensors["embeddings/type_embeddings"].read().any()
    inputs = features()
    ours, theirs = model(inputs)["sequence_output"], again.model()(inputs)["sequence_output"]
    np.testing.assert_array_equal(ours, theirs)


def test_optimizer_state_is_not_written(tmp_path):
    checkpoint = small()
    checkpoint = dataclasses.replace(checkpoint, moments={"pooler/bias/m": checkpoint.tensors["pooler/bias"]}, step=7)
    names, report = huggingface.write(checkpoint, str(tmp_path))
    assert report.unused_tensors.keys() == {"pooler/bias/m", "step"}
    assert "pooler/bias/m" not in names


@pytest.mark.parametrize(
    "make, culprit",
    [
        (lambda: small(norm="pre"), "model.norm"),
        (lambda: small("cosine"), "cosine"),
        (lambda: small(heads_per_layer=(4, 1)), "model.heads_per_layer is (4, 1), and in Transformers"),
        (lambda: small(intermediate_sizes=(8, 8)), "model.intermediate_sizes"),
        (lambda: member("roberta", "pretraining"), "model.position_offset is 2, not 0"),
        (lambda: member("roberta", "masked_lm", activation="relu"), "model.activation is 'relu'"),
        (lambda: member("electra", "masked_lm", activation="tanh_gelu"), "model.activation is 'tanh_gelu'"),
        (lambda: member("electra", "classification", pooler_activation="tanh"), "model.pooler_activation is 'tanh'"),
        (lambda: member("distilbert", "classification", type_vocab_size=2), "model.type_vocab_size is 2, not 0"),
        (lambda: member("albert", "next_sentence"), "for albert, it has no class for the head 'next_sentence'"),
        (lambda: member("albert", embedding_size=0), "model.embedding_size is 0, not 32"),
        (lambda: small(position_offset=2), "[PAD]"),
    ],
)
def test_a_model_without_a_class_in_transformers_is_refused(tmp_path, make, culprit):
    with raises(ConfigError, culprit, "--format=bert_tf"):
        huggingface.write(make(), str(tmp_path))
    assert not list(tmp_path.iterdir())


# The tokenizer


def fast_tokenizer(path, pieces=PIECES, added=(), model=None, **normalizer):
    """Writes a tokenizer.json."""
    settings = {"lowercase": True, "strip_accents": None, "handle_chinese_chars": True} | normalizer
    content = {
        "added_tokens": [{"id": number, "content": token, "special": False} for number, token in added],
        "normalizer": {"type": "BertNormalizer", "clean_text": True} | settings,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": model or {"type": "WordPiece", "vocab": {piece: number for number, piece in enumerate(pieces)}},
    }
    (path / "tokenizer.json").write_text(json.dumps(content))


def tokenizer_config(path, **settings):
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def test_the_vocabulary_is_found_in_tokenizer_json(tmp_path, tensors):
    path = write(tmp_path, tensors)
    (tmp_path / "vocab.txt").unlink()
    fast_tokenizer(tmp_path, lowercase=False, strip_accents=True, handle_chinese_chars=False)
    tokenizer_config(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    checkpoint = huggingface.read(path)
    assert checkpoint.tokenizer.vocab == PIECES
    settings = {"lower_case": False, "strip_accents": True, "split_cjk": False, "max_input_chars_per_word": 100}
    assert checkpoint.tokenizer.get_config() == settings


@pytest.mark.parametrize(
    "name, lower_case",
    [(None, True), ("BertTokenizer", True), ("BertTokenizerFast", True), ("PreTrainedTokenizerFast", False)],
)
def test_if_the_files_disagree_the_class_decides_as_in_transformers(tmp_path, tensors, name, lower_case):
    path = write(tmp_path, tensors)
    fast_tokenizer(tmp_path, lowercase=False)
    tokenizer_config(tmp_path, do_lower_case=True, **({"tokenizer_class": name} if name else {}))
    checkpoint = huggingface.read(path)
    assert checkpoint.tokenizer.lower_case == lower_case
    assert any(
        note.startswith("tokenizer: lower_case is True in tokenizer_config.json and False")
        for note in checkpoint.report.warnings
    )


def test_tokenizer_json_is_preferred_to_vocab_txt(tmp_path, tensors):
    path = write(tmp_path, tensors, pieces=PIECES[:-2] + PIECES[:-3:-1])
    fast_tokenizer(tmp_path)
    checkpoint = huggingface.read(path)
    assert checkpoint.tokenizer.vocab == PIECES
    assert any("different pieces" in note for note in checkpoint.report.warnings)


@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json", "tokenizer.json"])
def test_added_tokens_complete_the_vocabulary(tmp_path, tensors, where):
    path = write(tmp_path, tensors, pieces=PIECES[:-2])
    added = list(enumerate(PIECES))[-2:]
    if where == "added_tokens.json":
        (tmp_path / where).write_text(json.dumps({token: number for number, token in reversed(added)}))
    elif where == "tokenizer_config.json":
        tokenizer_config(tmp_path, added_tokens_decoder={str(number): {"content": token} for number, token in added})
    else:
        fast_tokenizer(tmp_path, PIECES[:-2], added=added)
    checkpoint = huggingface.read(path)
    assert checkpoint.tokenizer.vocab == PIECES
    assert any("added tokens" in note for note in checkpoint.report.warnings)


def test_added_tokens_with_a_gap_are_refused(tmp_path, tensors):
    path = write(tmp_path, tensors, pieces=PIECES[:-2])
    (tmp_path / "added_tokens.json").write_text(json.dumps({"the": len(PIECES)}))
    with raises(DataError, len(PIECES), len(PIECES) - 2):
        huggingface.read(path)


@pytest.mark.parametrize(
    "kind, reason",
    [
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "splits text by BertPreTokenizer"),
        ({"model": {"type": "Unigram", "vocab": []}}, "splits text by BertPreTokenizer"),
        ({"model": {"type": "WordLevel", "vocab": {}}}, "'WordLevel', not WordPiece, BPE or Unigram"),
    ],
)
def test_a_model_with_an_unsupported_tokenizer_is_read_without_one(tmp_path, tensors, kind, reason):
    path = write(tmp_path, tensors)
    (tmp_path / "vocab.txt").unlink()
    fast_tokenizer(tmp_path, **kind)
    checkpoint = huggingface.read(path)
    assert checkpoint.tokenizer is None
    assert any(reason in note for note in checkpoint.report.warnings)
    with raises(DataError, path, reason, "the .model file", "vocab.txt"):
        checkpoint.tokenizer_of_text(path)


def test_a_model_whose_tokenizer_class_splits_words_differently_is_read_without_one(tmp_path, tensors):
    path = write(tmp_path, tensors)
    tokenizer_config(tmp_path, tokenizer_class="BertJapaneseTokenizer")
    checkpoint = huggingface.read(path)
    assert checkpoint.tokenizer is None
    notes = checkpoint.report.warnings
    assert any("BertJapaneseTokenizer needs a tokenizer.json or a .model" in note for note in notes)


def test_a_tokenizer_json_of_another_length_is_refused(tmp_path, tensors):
    path = write(tmp_path, tensors)
    (tmp_path / "vocab.txt").unlink()
    fast_tokenizer(tmp_path, [*PIECES, "another"])
    with raises(DataError, "tokenizer.json", len(PIECES) + 1, len(PIECES)):
        huggingface.read(path)


@pytest.mark.parametrize(
    "file, content, line",
    [
        ("tokenizer_config.json", {"tokenizer_class": 5}, ("tokenizer_class", "5")),
        ("tokenizer_config.json", {"do_lower_case": "no"}, ("do_lower_case", '"no"')),
        ("tokenizer_config.json", {"added_tokens_decoder": {"40": {}}}, ("'content'", "added_tokens_decoder.40")),
        ("tokenizer.json", {"model": "WordPiece"}, ('"WordPiece"',)),
        ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": ["a"]}}, ("vocab",)),
        ("added_tokens.json", {"x": "y"}, ('"y"',)),
        ("config.json", {"architectures": "BertModel"}, ('"BertModel"',)),
        ("config.json", {"hidden_act": ["gelu"]}, ("hidden_act", '["gelu"]')),
    ],
)
def test_an_unsupported_component_is_named(tmp_path, tensors, file, content, line):
    path = write(tmp_path, tensors)
    settings = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    (tmp_path / file).write_text(json.dumps(settings | content))
    with raises(DataError, *line):
        bert_tf.load(path)


def test_a_config_of_another_project_is_recognised_by_its_keys(tmp_path, tensors):
    path = write(tmp_path, tensors)
    (tmp_path / "config.json").write_text('{"module": "keras_hub.src.models.bert", "class_name": "BertBackbone"}')
    with raises(DataError, "'vocab_size'", "class_name"):
        bert_tf.load(path)


def test_of_many_missing_tensors_the_first_are_named(tmp_path, tensors):
    path = write(tmp_path, tensors, num_hidden_layers=50)
    with raises(DataError, "encoder.layer") as caught:
        bert_tf.load(path)
    assert len(str(caught.value)) < 1000


LIBRARY = {
    "model": {"type": "WordPiece", "vocab": {piece: number for number, piece in enumerate(PIECES)}},
    "normalizer": {"type": "BertNormalizer", "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}


@pytest.mark.parametrize(
    "file, content, line",
    [
        ("adapter_config.json", {"peft_type": "LORA"}, "unread: adapter_config.json holds an adapter, which is not"),
        ("config.json", CONFIG | {"quantization_config": {"bits": 8}}, "unread: quantization_config in config.json"),
        ("config.json", CONFIG | {"auto_map": {"AutoModel": "a.B"}}, "unread: auto_map in config.json names code"),
        ("special_tokens_map.json", {"cls_token": "the"}, "tokenizer: cls_token is 'the' in special_tokens_map.json"),
        ("tokenizer_config.json", {"sep_token": {"content": "a"}}, "tokenizer: sep_token is 'a' in tokenizer_config"),
        (
            "tokenizer_config.json",
            {"do_basic_tokenize": False},
            "tokenizer: do_basic_tokenize is false in tokenizer_con",
        ),
        ("tokenizer_config.json", {"never_split": ["a-b"]}, "tokenizer: never_split in tokenizer_config.json is not"),
        ("tokenizer.json", LIBRARY | {"post_processor": {"type": "ByteLevel"}}, "tokenizer: the post_processor of tok"),
        (
            "tokenizer.json",
            LIBRARY | {"normalizer": LIBRARY["normalizer"] | {"clean_text": False}},
            "tokenizer: clean_text is false in tokenizer.json",
        ),
        (
            "added_tokens.json",
            {"[X]": len(PIECES)},
            "tokenizer: added tokens ([X]) are ordinary pieces here",
        ),
    ],
)
def test_a_file_that_changes_the_result_and_is_not_applied_has_a_line(tmp_path, tensors, caplog, file, content, line):
    extra = file == "added_tokens.json"
    words = "embeddings.word_embeddings.weight"
    if extra:
        tensors = tensors | {words: np.pad(tensors[words], [(0, 1), (0, 0)])}
    path = write(tmp_path, tensors, vocab_size=len(PIECES) + extra)
    (tmp_path / file).write_text(json.dumps(content))
    bert_tf.load(path)
    assert line in caplog.text


def test_files_that_say_the_same_as_the_vocabulary_have_no_line(tmp_path, tensors, caplog):
    path = write(tmp_path, tensors)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), PIECES[:5], strict=True))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "do_basic_tokenize": True}))
    parts = [("SpecialToken", "[CLS]"), ("Sequence", "A"), ("SpecialToken", "[SEP]")]
    template = {"type": "TemplateProcessing", "single": [{kind: {"id": name, "type_id": 0}} for kind, name in parts]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(LIBRARY | {"post_processor": template}))
    bert_tf.load(path)
    assert caplog.text == ""


def test_a_vocabulary_whose_special_tokens_have_moved_is_refused(tmp_path, tensors):
    decoder = {str(number): {"content": piece} for number, piece in enumerate(PIECES[:5])}
    moved = ["0", *PIECES[:-1]]
    path = write(tmp_path, tensors, pieces=moved)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    with raises(DataError, "[PAD]", "id 0", "'0'"):
        bert_tf.load(path)
