"""google-research/bert's format: a real checkpoint in its own graph, our files read by Google's code, and bad files."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import open_checkpoint
from bert_tf.checkpoints.formats import google
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.tensor_files import bundles
from bert_tf.errors import ConfigError, DataError
from tests import packages
from tests.checkpoints.google_modeling import LABELS as GOOGLE_LABELS
from tests.checkpoints.small import LABELS, TASKS, assert_same, assert_same_tokenizer, model_of, small_checkpoint
from tests.errors import raises
from tests.model.numpy_bert import softmax
from tests.model.small import PIECES, inputs_for
from tests.programs import peak_memory

ROOT = Path(__file__).parents[3]


def arrays_of(prefix):
    """dict name -> array of a checkpoint, read by TensorFlow."""
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: np.asarray(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}


def save(prefix, arrays):
    """Writes a checkpoint of named arrays as TensorFlow 1's Saver does."""
    names = list(arrays)
    values = [tf.constant(arrays[name]) for name in names]
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)


def with_moments(checkpoint, paths=None):
    """With random moments of Adam for the variables of these paths (None: all), and a step."""
    rng = np.random.default_rng(1)
    for path in paths or list(checkpoint.tensors):
        shape = checkpoint.tensors[path].shape
        for slot in "mv":
            value = rng.normal(size=shape).astype(np.float32)
            checkpoint.moments[f"{path}/{slot}"] = Tensor(shape, "float32", lambda value=value: value, path)
    return dataclasses.replace(checkpoint, step=2**40)


def written(path, checkpoint):
    path.mkdir(exist_ok=True)
    google.write(checkpoint, str(path))
    return path


def warnings_of(checkpoint, path):
    """Of writing a checkpoint into a new directory."""
    path.mkdir()
    return google.write(checkpoint, str(path)).report.warnings


@pytest.fixture
def directory(tmp_path):
    """Makes a directory as Google's own programs leave it, without our key in bert_config.json."""

    def make(head=None, *, changes=None, settings=None, **config):
        path = written(tmp_path / "google", small_checkpoint(head, **config))
        arrays = arrays_of(path / "bert_model.ckpt") | (changes or {})
        for file in path.glob("bert_model.ckpt.*"):
            file.unlink()
        save(path / "bert_model.ckpt", {name: value for name, value in arrays.items() if value is not None})
        edit(path, bert_tf=None, **(settings or {}))
        return path

    return make


def edit(path, **changes):
    """Changes keys of bert_config.json; None removes one."""
    file = path / "bert_config.json"
    settings = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


def error_of(path):
    """The one-line error of loading with the head."""
    with pytest.raises(DataError) as raised:
        checkpoint = open_checkpoint(path)
        checkpoint.model()
        for tensor in checkpoint.moments.values():
            tensor.read()
    assert "\n" not in str(raised.value)
    return str(raised.value)


# A checkpoint written by google-research/bert, and the graph saved with it.


@pytest.fixture(scope="module")
def tiny():
    return packages.shared("checkpoints/google_tf1_tiny")


@pytest.fixture(scope="module")
def loud(tiny, tmp_path_factory):
    """The same with random weights: its own are so small that little but the embeddings affects the logits."""
    path = tmp_path_factory.mktemp("loud")
    rng = np.random.default_rng(0)
    arrays = arrays_of(tiny / "bert_model.ckpt")
    save(path / "bert_model.ckpt", {name: rng.normal(size=one.shape).astype(one.dtype) for name, one in arrays.items()})
    for name in ("bert_config.json", "vocab.txt", "bert_model.ckpt.meta"):
        shutil.copy(tiny / name, path)
    return path


@pytest.fixture(scope="module")
def by_the_graph(tiny, loud, tmp_path_factory):
    """Features, and the graph's outputs for them: dict of the two and of what we wrote of each -> dict of arrays."""
    folder = tmp_path_factory.mktemp("graph")
    paths = {"tiny": tiny, "loud": loud}
    paths |= {f"{name} written": written(folder / name, open_checkpoint(path)) for name, path in paths.items()}
    rng = np.random.default_rng(0)
    mask = np.arange(16) < rng.integers(1, 17, (32, 1))
    mask[0] = True
    features = {
        "input_ids": rng.integers(0, 15, (32, 16)),
        "input_mask": mask,
        "segment_ids": rng.integers(0, 2, (32, 16)),
        "masked_lm_positions": rng.integers(0, 16, (32, 20)),
    }
    features = {name: value.astype(np.int32) for name, value in features.items()}
    np.savez(folder / "features.npz", **features)
    command = [sys.executable, "-m", "tests.checkpoints.google_graph", tiny / "bert_model.ckpt.meta"]
    runs = [part for name, path in paths.items() for part in (path / "bert_model.ckpt", folder / f"{name}.npz")]
    done = subprocess.run([*command, folder / "features.npz", *runs], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    inputs = {
        "input_word_ids": features["input_ids"],
        "input_mask": features["input_mask"],
        "input_type_ids": features["segment_ids"],
        "masked_lm_positions": features["masked_lm_positions"],
    }
    return inputs, {name: dict(np.load(folder / f"{name}.npz")) for name in paths}


def test_every_tensor_of_a_real_checkpoint_is_mapped(tiny):
    checkpoint = open_checkpoint(tiny)
    sources = [tensor.source for tensor in (checkpoint.tensors | checkpoint.moments).values()]
    names = [name for source in sources for name in source.split(" + ")]
    assert sorted([*names, "global_step"]) == sorted(
        name for name, _ in tf.train.list_variables(str(tiny / "bert_model.ckpt"))
    )
    assert (checkpoint.report.unused_tensors, checkpoint.head, checkpoint.step) == ({}, "pretraining", 20)


@pytest.mark.parametrize("name", ["tiny", "loud"])
def test_a_real_checkpoint_gives_the_outputs_of_its_own_graph(by_the_graph, name, request):
    inputs, theirs = by_the_graph
    checkpoint = open_checkpoint(request.getfixturevalue(name))
    outputs = checkpoint.model()(inputs)
    encoded = checkpoint.encoder()({one: value for one, value in inputs.items() if one != "masked_lm_positions"})
    found = {
        "mlm_logits": outputs["mlm_logits"],
        "nsp_logits": outputs["nsp_logits"],
        "pooled": encoded["pooled_output"],
        "layer_0": encoded["encoder_outputs"][0],
        "layer_1": encoded["encoder_outputs"][1],
    }
    for key, value in found.items():
        expected = theirs[name][key]
        np.testing.assert_allclose(np.reshape(value, expected.shape), expected, atol=1e-5, err_msg=key)


def test_the_graph_of_a_checkpoint_determines_its_gelu_variant(by_the_graph, loud, tmp_path):
    assert open_checkpoint(loud).config.activation == "erf_gelu"
    without = shutil.copytree(loud, tmp_path / "without")
    (without / "bert_model.ckpt.meta").unlink()
    checkpoint = open_checkpoint(without)
    assert checkpoint.config.activation == "tanh_gelu"
    assert any("gelu" in note and "tanh" in note and "erf" in note for note in checkpoint.report.warnings)
    inputs, theirs = by_the_graph
    logits = np.reshape(checkpoint.model()(inputs)["mlm_logits"], theirs["loud"]["mlm_logits"].shape)
    assert np.abs(logits - theirs["loud"]["mlm_logits"]).max() > 1e-4  # the variant matters


def test_a_truncated_graph_is_named(tiny, tmp_path):
    copied = shutil.copytree(tiny, tmp_path / "copied")
    file = copied / "bert_model.ckpt.meta"
    file.write_bytes(file.read_bytes()[:-10])
    assert "bert_model.ckpt.meta: not a graph" in error_of(copied)


def test_a_real_checkpoint_is_written_back_bit_for_bit(tiny, tmp_path):
    path = written(tmp_path / "back", open_checkpoint(tiny))
    theirs, ours = arrays_of(tiny / "bert_model.ckpt"), arrays_of(path / "bert_model.ckpt")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (value.dtype, value.shape), name
        assert ours[name].tobytes() == value.tobytes(), name
    assert (path / "vocab.txt").read_text().split() == (tiny / "vocab.txt").read_text().split()
    settings = json.loads((path / "bert_config.json").read_text())
    assert settings.pop("bert_tf")
    assert settings == json.loads((tiny / "bert_config.json").read_text())
    files = ["bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "vocab.txt"]
    assert sorted(os.listdir(path)) == files


@pytest.mark.parametrize("name", ["tiny", "loud"])
def test_its_own_saver_restores_the_written_checkpoint(by_the_graph, name):
    _, results = by_the_graph
    for key, value in results[name].items():
        np.testing.assert_array_equal(results[f"{name} written"][key], value, err_msg=key)


# Our files in Google's own Python code.


@pytest.mark.slow
def test_google_research_bert_restores_every_variable_and_computes_the_same(tmp_path):
    folder = packages.package("bert", "bert-tensorflow==1.0.4")
    assert len(LABELS) == GOOGLE_LABELS
    tasks = {task or "encoder": task for task in (None, "pretraining", "classification", "question_answering")}
    checkpoints = {name: small_checkpoint(head) for name, head in tasks.items()}
    checkpoints["pretraining"] = with_moments(checkpoints["pretraining"])
    paths = {name: written(tmp_path / name, checkpoint) for name, checkpoint in checkpoints.items()}
    inputs = inputs_for("pretraining")
    np.savez(tmp_path / "inputs.npz", **inputs)
    command = [sys.executable, "-m", "tests.checkpoints.google_modeling", folder, tmp_path / "inputs.npz"]
    pairs = [part for pair in paths.items() for part in pair]
    done = subprocess.run([*command, *pairs], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, path in paths.items():
        theirs = dict(np.load(path / "outputs.npz"))
        # Their Saver needs every variable of their graph; we wrote no others.
        assert sorted(theirs.pop("names")) == sorted(arrays_of(path / "bert_model.ckpt"))
        model = model_of(checkpoints[name])
        ours = dict(model({one: inputs[one] for one in ("masked_lm_positions", *inputs) if one in model_inputs(model)}))
        if name == "pretraining":
            ours = {
                f"{kind}_log_probabilities": np.log(softmax(np.asarray(ours[f"{kind}_logits"], np.float64)))
                for kind in ("mlm", "nsp")
            }
        for key, value in theirs.items():
            found = np.reshape(np.stack(ours[key]), value.shape)
            np.testing.assert_allclose(found, value, atol=1e-5, err_msg=f"{name} {key}")


def model_inputs(model):
    return {one.name for one in model.inputs}


@pytest.mark.parametrize("head", TASKS)
def test_a_model_is_restored_bit_for_bit(tmp_path, head):
    checkpoint = small_checkpoint(head)
    model = model_of(checkpoint)
    checkpoint = with_moments(checkpoint)
    back = open_checkpoint(written(tmp_path / "google", checkpoint))
    assert_same(checkpoint, back)
    assert (back.task, back.step) == (checkpoint.task, checkpoint.step)
    assert back.moments.keys() == checkpoint.moments.keys()
    for path, slot in checkpoint.moments.items():
        np.testing.assert_array_equal(back.moments[path].read(), slot.read(), err_msg=path)
    inputs = inputs_for(head)
    for one, other in zip(tf.nest.flatten(model(inputs)), tf.nest.flatten(back.model()(inputs)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_variables_without_a_gradient_have_no_slots(tmp_path):
    checkpoint = small_checkpoint("question_answering")
    checkpoint = with_moments(checkpoint, [path for path in checkpoint.tensors if not path.startswith("pooler/")])
    path = written(tmp_path / "google", checkpoint)
    assert "bert/pooler/dense/bias/adam_m" not in arrays_of(path / "bert_model.ckpt")
    assert open_checkpoint(path).moments.keys() == checkpoint.moments.keys()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_kept(tmp_path, dtype):
    checkpoint = small_checkpoint("classification")
    halved = {
        path: Tensor(one.shape, dtype, lambda one=one: one.read().astype(np.dtype(dtype)), path)
        for path, one in checkpoint.tensors.items()
    }
    checkpoint = dataclasses.replace(checkpoint, tensors=halved)
    path = written(tmp_path / "google", checkpoint)
    assert arrays_of(path / "bert_model.ckpt")["output_weights"].dtype == {"bfloat16": ml_dtypes.bfloat16}.get(
        dtype, np.float16
    )
    assert_same(checkpoint, open_checkpoint(path))
    assert any(dtype in note and "float32" in note for note in warnings_of(checkpoint, tmp_path / "again"))


def test_the_report_gives_both_names_of_every_variable(tmp_path):
    checkpoint = with_moments(small_checkpoint("pretraining"))
    names, _ = google.write(checkpoint, str(tmp_path))
    assert names.keys() == (checkpoint.tensors | checkpoint.moments).keys()
    everything = {name for joined in names.values() for name in joined.split(" + ")}
    assert everything | {"global_step"} == arrays_of(tmp_path / "bert_model.ckpt").keys()
    assert names["layer_1/attention/qkv/bias/v"] == " + ".join(
        f"bert/encoder/layer_1/attention/self/{part}/bias/adam_v" for part in ("query", "key", "value")
    )


# What bert_config.json cannot express.


@pytest.mark.parametrize("head", [None, "masked_lm", "tagging", "question_answering"])
def test_a_missing_pooler_is_added_for_google_and_dropped_when_read_again(tmp_path, head):
    checkpoint = small_checkpoint(head, pooler=False)
    path = written(tmp_path / "google", checkpoint)
    assert not arrays_of(path / "bert_model.ckpt")["bert/pooler/dense/kernel"].any()
    notes = warnings_of(checkpoint, tmp_path / "again")
    assert any("bert/pooler/dense" in note and "made up" in note for note in notes)
    back = open_checkpoint(path)
    assert_same(checkpoint, back)
    assert set(back.report.unused_tensors) == {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}


@pytest.mark.parametrize(
    "config, words",
    [
        ({"activation": "erf_gelu"}, ["erf", "tanh"]),
        ({"layer_norm_epsilon": 1e-5}, ["1e-05", "1e-12"]),
    ],
)
def test_settings_that_google_computes_differently_are_kept_with_a_warning(tmp_path, config, words):
    checkpoint = small_checkpoint(**config)
    assert_same(checkpoint, open_checkpoint(written(tmp_path / "google", checkpoint)))
    assert any(all(word in note for word in words) for note in warnings_of(checkpoint, tmp_path / "again"))


def test_a_model_like_googles_has_no_warnings(tmp_path):
    checkpoint = small_checkpoint("pretraining")
    checkpoint = dataclasses.replace(checkpoint, tokenizer=bert_tf.Tokenizer(checkpoint.tokenizer.vocab))
    assert google.write(checkpoint, str(tmp_path)).report.warnings == ()


@pytest.mark.parametrize(
    "config",
    [
        {"norm": "pre"},
        {"position_offset": 2},
        {"type_vocab_size": 0},
        {"heads_per_layer": (4, 2)},
        {"heads_per_layer": (3, 3)},  # equal in all layers, but google-research/bert's heads would be larger
        {"intermediate_sizes": (64, 32)},
    ],
)
def test_a_model_that_google_cannot_represent_is_refused_before_a_file_is_written(tmp_path, config):
    checkpoint = small_checkpoint(**config)
    (field,) = config
    with raises(ConfigError, f"model.{field}", "bert_tf"):
        google.write(checkpoint, str(tmp_path))
    assert not os.listdir(tmp_path)


def test_settings_of_another_format_are_restored(tmp_path):
    checkpoint = small_checkpoint()
    checkpoint = dataclasses.replace(
        checkpoint, source_metadata={"format": "huggingface", "config": {"gradient_checkpointing": False}}
    )
    path = written(tmp_path / "google", checkpoint)
    assert "gradient_checkpointing" not in json.loads((path / "bert_config.json").read_text())
    assert open_checkpoint(path).source_metadata == checkpoint.source_metadata


@pytest.mark.parametrize(
    "field, value", [("num_attention_heads", 2), ("hidden_act", "relu"), ("type_vocab_size", None)]
)
def test_a_contradictory_edited_config_is_refused(tmp_path, field, value):
    path = written(tmp_path / "google", small_checkpoint())
    edit(path, **{field: value})
    message = error_of(path)
    assert "bert_config.json" in message and f"{field} is {value!r}" in message


@pytest.mark.parametrize("change", [None, np.zeros(3, np.float32)])
def test_a_damaged_head_does_not_keep_the_encoder_from_loading(directory, change):
    path = directory("pretraining", changes={"cls/predictions/output_bias": change})
    checkpoint = open_checkpoint(path)
    expected = small_checkpoint().tensors
    assert (checkpoint.head, checkpoint.tensors.keys()) == (None, expected.keys())
    assert any("only the encoder is read" in note and "cls/predictions/" in note for note in checkpoint.report.warnings)
    checkpoint.encoder()
    with raises(DataError, "cls/predictions/output_bias"):
        checkpoint.model()


def test_a_head_that_differs_from_its_description_is_refused(tmp_path):
    path = written(tmp_path / "google", small_checkpoint("pretraining"))
    other = written(tmp_path / "other", small_checkpoint("classification"))
    shutil.copy(path / "bert_config.json", other)
    assert "does not hold the model that its config describes: missing cls/predictions/" in error_of(other)


def test_a_bare_encoder_fine_tuned_by_google_has_the_new_head(tmp_path):
    encoder = written(tmp_path / "google", small_checkpoint(pooler=False))
    tuned = written(tmp_path / "tuned", small_checkpoint("classification"))
    shutil.copy(encoder / "bert_config.json", tuned)
    checkpoint = open_checkpoint(tuned)
    assert (checkpoint.head, checkpoint.config.pooler) == ("classification", True)
    assert_same_tokenizer(checkpoint.tokenizer, small_checkpoint().tokenizer)  # of the description
    checkpoint.model()


# Files left by Google's own programs.


@pytest.mark.parametrize(
    "head, task",
    [
        (None, None),
        ("pretraining", "pretraining"),
        ("masked_lm", "masked_lm"),
        ("next_sentence", "next_sentence"),
        ("question_answering", "question_answering"),
        ("classification", "classification"),
        ("multiple_choice", "regression"),  # one output, and nothing indicates its task
    ],
)
def test_the_head_is_recognised_by_its_variable_names(directory, head, task):
    checkpoint = open_checkpoint(directory(head))
    assert (checkpoint.task and checkpoint.task["name"]) == task
    if task == "classification":
        assert checkpoint.labels == checkpoint.task["settings"]["labels"] == ["0", "1", "2"]
    expected = small_checkpoint(head).tensors
    assert checkpoint.tensors.keys() == expected.keys()
    for path, tensor in expected.items():
        np.testing.assert_array_equal(checkpoint.tensors[path].read(), tensor.read(), err_msg=path)


@pytest.mark.parametrize("head, pooler", [(None, False), ("masked_lm", False), ("question_answering", False)])
def test_an_unneeded_pooler_may_be_missing(directory, head, pooler):
    names = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
    checkpoint = open_checkpoint(directory(head, changes=dict.fromkeys(names)))
    assert checkpoint.config.pooler is pooler
    checkpoint.model()


def test_lower_casing_is_guessed_from_the_vocabulary_and_reported(directory):
    path = directory()
    checkpoint = open_checkpoint(path)
    assert checkpoint.tokenizer.get_config() == {"lower_case": True, "strip_accents": True, "split_cjk": True}
    (path / "vocab.txt").write_text("\n".join([*PIECES[:-1], "Good"]))
    checkpoint = open_checkpoint(path)
    assert checkpoint.tokenizer.get_config() == {"lower_case": False, "strip_accents": False, "split_cjk": True}
    assert any("keeps case" in note and "'Good'" in note for note in checkpoint.report.warnings)


def test_missing_settings_have_googles_defaults(directory):
    # 16 token types, although all published files have 2.
    path = directory(type_vocab_size=16, settings={"type_vocab_size": None, "hidden_act": None})
    config = open_checkpoint(path).config
    assert (config.type_vocab_size, config.activation) == (16, "tanh_gelu")


def test_training_state_of_other_programs_is_listed_as_unused(directory):
    kernel = "bert/encoder/layer_0/output/dense/kernel"
    leftovers = {
        "beta1_power": np.float32(0.9),
        "loss_scale": np.float32(2),
        f"{kernel}/Adam": np.zeros((64, 32), np.float32),
        f"{kernel}/lamb_m": np.zeros((64, 32), np.float32),
    }
    checkpoint = open_checkpoint(directory("pretraining", changes=leftovers))
    assert checkpoint.report.unused_tensors.keys() == leftovers.keys()
    assert (checkpoint.head, checkpoint.moments) == ("pretraining", {})


def test_an_unknown_head_does_not_keep_the_encoder_from_loading(directory):
    crf = {"crf/transitions": np.zeros((3, 3), np.float32)}
    for head, kept in (("classification", None), ("masked_lm", "masked_lm"), (None, None)):
        checkpoint = open_checkpoint(directory(head, changes=crf))
        assert checkpoint.head == kept
        assert checkpoint.report.unused_tensors["crf/transitions"] == "the head of another project"
        assert (head == kept) != any(
            note.startswith("head: only the encoder is read") for note in checkpoint.report.warnings
        )


def test_a_second_head_beside_a_fine_tuned_one_is_ignored(directory):
    others = {"cls/seq_relationship/output_bias": np.zeros(2, np.float32)}
    slots = {"cls/seq_relationship/output_bias/adam_m": np.zeros(2, np.float32)}
    checkpoint = open_checkpoint(directory("question_answering", changes=others | slots))
    assert checkpoint.head == "question_answering"
    assert checkpoint.report.unused_tensors.keys() == (others | slots).keys()


# Which checkpoint of a directory is read.


@pytest.fixture
def output_dir(directory):
    """Files of a fine-tuning run: model.ckpt-0 and -10, a state file; and the config's files, copied to it."""
    path = directory("classification")
    arrays = arrays_of(path / "bert_model.ckpt")
    for step in (0, 10):
        save(path / f"model.ckpt-{step}", arrays | {"global_step": np.int64(step)})
    for file in path.glob("bert_model.ckpt.*"):
        file.unlink()
    return path


def test_several_checkpoints_are_listed(output_dir):
    message = error_of(output_dir)
    assert "model.ckpt-0, model.ckpt-10" in message and "name one" in message


@pytest.mark.parametrize("suffix", ["", ".index"])
def test_a_prefix_selects_a_checkpoint(output_dir, suffix):
    assert open_checkpoint(output_dir / f"model.ckpt-0{suffix}").step == 0


@pytest.mark.parametrize("folder", ["", "/gone/since/"])
def test_the_state_file_selects_the_newest(output_dir, folder):
    (output_dir / "checkpoint").write_text(f'model_checkpoint_path: "{folder}model.ckpt-10"\n')
    checkpoint = open_checkpoint(output_dir)
    assert checkpoint.step == 10
    assert any("model.ckpt-10" in note for note in checkpoint.report.warnings)


def test_bert_model_ckpt_is_preferred(output_dir):
    save(output_dir / "bert_model.ckpt", arrays_of(output_dir / "model.ckpt-0") | {"global_step": np.int64(3)})
    assert open_checkpoint(output_dir).step == 3


def test_the_error_of_a_fine_tuning_directory_without_a_config_says_what_to_copy(output_dir):
    (output_dir / "bert_config.json").unlink()
    message = error_of(output_dir / "model.ckpt-10")
    assert "no bert_config.json" in message and "copy" in message and "vocab.txt" in message


def test_the_error_of_a_config_without_a_checkpoint_names_what_is_missing(directory):
    path = directory()
    for file in path.glob("bert_model.ckpt.*"):
        file.unlink()
    assert "no checkpoint; expected bert_model.ckpt.index" in error_of(path)


def test_object_based_checkpoints_and_saved_models_are_not_read_as_this_format(directory, tmp_path):
    path = directory()
    assert google.recognises(str(path)) and google.recognises(str(path / "bert_model.ckpt"))
    (path / "saved_model.pb").touch()
    assert not google.recognises(str(path))
    other = tf.train.Checkpoint(variable=tf.Variable(1.0)).save(str(tmp_path / "objects" / "bert_model.ckpt"))
    shutil.copy(path / "bert_config.json", tmp_path / "objects")
    assert not google.recognises(other) and not google.recognises(str(tmp_path / "objects"))
    assert not google.recognises(str(tmp_path / "nothing"))


def test_another_file_called_index_does_not_make_a_directory_a_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "passages.index").write_bytes(b"vectors")
    assert not google.recognises(str(tmp_path))


# Bad files.

QUERY = "bert/encoder/layer_1/attention/self/query/kernel"


@pytest.mark.parametrize(
    "changes, culprits",
    [
        ({QUERY: None, "bert/embeddings/LayerNorm/beta": None}, ["missing", QUERY, "bert/embeddings/LayerNorm/beta"]),
        ({QUERY: np.zeros((32, 31), np.float32)}, [f"{QUERY} is [32, 31], not [32, 32]"]),
        ({"bert/encoder/layer_2/output/dense/bias": np.zeros(32)}, ["unknown bert/encoder/layer_2/output/dense/bias"]),
        ({"cls/predictions/extra": np.zeros(3)}, ["unknown cls/predictions/extra"]),
        ({"cls/predictions/output_bias": None}, ["missing cls/predictions/output_bias"]),
        ({"bert/pooler/dense/bias": None}, ["missing bert/pooler/dense/bias"]),
        ({"bert/embeddings/word_embeddings": np.zeros((7, 32), np.float32)}, ["is [7, 32]", f"[{len(PIECES)}, 32]"]),
        ({f"{QUERY}/adam_m": np.zeros((32, 32), np.float32)}, [f"missing {QUERY.replace('query', 'key')}/adam_m"]),
        ({"global_step": np.zeros(2, np.int64)}, ["global_step is int64 [2]; expected one integer"]),
    ],
)
def test_a_mismatched_tensor_is_named(directory, changes, culprits):
    path = directory("pretraining", changes=changes)
    message = error_of(path)
    assert message.startswith(str(path / "bert_model.ckpt"))
    assert all(culprit in message for culprit in culprits), message


@pytest.mark.parametrize(
    "settings, culprits",
    [
        ({"hidden_act": "swish"}, ["hidden_act 'swish'", "gelu"]),
        ({"num_attention_heads": 5}, ["num_attention_heads 5"]),
        ({"num_hidden_layers": "2"}, ["num_hidden_layers is '2'", "a whole number"]),
        ({"vocab_size": None}, ["'vocab_size'"]),
        ({"vocab_size": len(PIECES) + 1}, ["vocab.txt", f"{len(PIECES)} pieces", f"{len(PIECES) + 1}"]),
    ],
)
def test_an_invalid_config_is_refused(directory, settings, culprits):
    message = error_of(directory(settings=settings))
    assert all(culprit in message for culprit in culprits), message


@pytest.mark.parametrize("name", ["bert_config.json", "vocab.txt", "bert_model.ckpt.data-00000-of-00001"])
def test_a_missing_file_is_named(directory, name):
    path = directory()
    (path / name).unlink()
    assert name.replace("00000-of-00001", "*") in error_of(path)


@pytest.mark.parametrize("part, keep", [("index", 0), ("index", 30), ("index", -1), ("data-00000-of-00001", -1)])
def test_a_truncated_file_is_detected_when_opened(directory, part, keep):
    path = directory()
    file = path / f"bert_model.ckpt.{part}"
    file.write_bytes(file.read_bytes()[:keep])
    with raises(DataError, "bert_model.ckpt"):
        google.read(str(path))
    assert google.recognises(str(path))  # so that the test sees the message that users see


def test_a_damaged_tensor_is_named_when_read(directory):
    path = directory()
    file = path / "bert_model.ckpt.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    message = error_of(path)
    assert "bert/" in message and "cannot be read" in message and "Checksum" in message


# Size.


def test_a_large_model_is_written_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "_SHARD_BYTES", 20_000)
    checkpoint = small_checkpoint("pretraining")
    path = written(tmp_path / "google", checkpoint)
    parts = sorted(path.glob("bert_model.ckpt.data-*"))
    assert len(parts) > 2 and max(part.stat().st_size for part in parts) <= 20_000
    assert not [file for file in os.listdir(path) if file.startswith(".")]
    assert_same(checkpoint, open_checkpoint(path))


# Writes a checkpoint with tensors drawn at random on demand, then reads every tensor of it.
LARGE = """
import sys
import numpy as np
import bert_tf
from bert_tf.checkpoints.formats import google
from bert_tf.checkpoints.stored_model import Checkpoint, Tensor
from bert_tf.model.head_table import variable_shapes

def random(shape):
    return Tensor(shape, "float32", lambda: np.random.default_rng(0).random(shape, np.float32), "")

config = bert_tf.BertConfig.from_name("large")
tensors = {path: random(shape) for path, shape in variable_shapes(config).items()}
pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(config.vocab_size - 5))]
if sys.argv[1] == "write":
    google.write(Checkpoint(config, tensors, tokenizer=bert_tf.Tokenizer(pieces)), sys.argv[2])
else:
    for tensor in google.read(sys.argv[2]).tensors.values():
        tensor.read()
"""


@pytest.mark.slow
def test_bert_large_is_written_and_read_within_1_3_times_its_size(tmp_path):
    for what in ("write", "read"):
        peak = peak_memory(sys.executable, "-c", LARGE, what, tmp_path)
        size = sum(part.stat().st_size for part in tmp_path.glob("bert_model.ckpt.data-*"))
        assert size > 1.3e9
        assert peak < 1.3 * size, f"{what}: {peak:,} bytes"
