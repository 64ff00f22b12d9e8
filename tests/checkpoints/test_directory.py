"""This project's own format: saved models are restored bit for bit, and no other files are read as models."""

import dataclasses
import itertools
import json
import shutil
import zlib

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.config import ExampleData, to_dict
from bert_tf.errors import ConfigError, DataError
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training.state.checkpoints import Checkpoints
from tests.checkpoints.small import small_checkpoint
from tests.errors import raises
from tests.learned import KINDS, TOKENIZERS
from tests.model.small import PIECES, PRUNED, features, randomize, small_config


def make(name, **config):
    tokenizer = Tokenizer(PIECES, lower_case=False, strip_accents=True)
    encoder = bert_tf.BertEncoder(small_config(**config))
    if name == "pretraining":
        task = Pretraining(tokenizer, max_length=20)
    else:
        config, labels = ClassificationConfig(max_length=21), ("no", "ja", "vielleicht é")
        task = Classification(tokenizer, config, ExampleData(text="a"), labels=labels, pair=True)
    return task, randomize(task.build(encoder)), encoder


OTHERS = {
    "a folder of data": {"train.tsv": "a"},
    "a model of another library": {"config.json": '{"model_type": "bert"}', "model.safetensors": "w"},
    "a config of another program": {"config.json": "port = 80"},
    "TF 1's files": {"bert_config.json": "{}", "vocab.txt": "a"},
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_folder_with_files_of_somebody_else_stays_as_it_is(tmp_path, case):
    for name, content in OTHERS[case].items():
        (tmp_path / name).write_text(content)
    task, model, encoder = make("classification")
    with raises(ConfigError, "bert_tf"):
        directory.save(str(tmp_path), model, encoder, task)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == OTHERS[case]


@pytest.fixture(scope="module", params=["pretraining", "classification"])
def made(request):
    """A task, its model and the encoder; their weights are those that the last test gave them."""
    return make(request.param, norm="pre", activation="relu", dropout=0.2, **PRUNED)


@pytest.fixture
def saved(made, tmp_path):
    task, model, encoder = made
    directory.save(str(tmp_path), model, encoder, task)
    return tmp_path, task, model, encoder


def inputs_of(task):
    extra = {"masked_lm_positions": np.array([[1, 2]] * 4, np.int32)} if task.name == "pretraining" else {}
    return features() | extra


def test_a_saved_task_is_restored_bit_for_bit(saved):
    path, task, model, _ = saved
    again, model_again = directory.load_task(str(path))
    assert type(again) is type(task)
    assert again.settings() == task.settings()
    assert again.tokenizer.vocab == task.tokenizer.vocab
    assert again.tokenizer.get_config() == task.tokenizer.get_config()
    assert len(model.weights) == len(model_again.weights)
    for one, other in zip(model.weights, model_again.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    inputs = inputs_of(task)
    tf.nest.map_structure(np.testing.assert_array_equal, model(inputs), model_again(inputs))


def test_the_encoder_is_loaded_from_any_tasks_directory(saved):
    path, _, _, encoder = saved
    again, tokenizer = bert_tf.load(str(path))
    assert again.config == encoder.config
    assert tokenizer.vocab == PIECES
    tf.nest.map_structure(np.testing.assert_array_equal, encoder(features()), again(features()))


def test_a_model_can_be_loaded_to_compute_in_bfloat16(saved):
    path, *_ = saved
    encoder, _ = bert_tf.load(str(path), dtype="mixed_bfloat16")
    assert encoder(features())["pooled_output"].dtype == tf.bfloat16
    assert encoder.weights[0].dtype == "float32"


def test_saving_again_replaces_the_model(saved):
    path, task, model, encoder = saved
    randomize(model, seed=9)
    directory.save(str(path), model, encoder, task)
    _, again = directory.load_task(str(path))
    np.testing.assert_array_equal(again.weights[0].numpy(), model.weights[0].numpy())
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors", "vocab.txt"]


def test_files_of_an_earlier_model_do_not_stay_beside_the_next(saved):
    path, task, model, encoder = saved
    for name in ("optimizer.safetensors", "conversion.json"):
        (path / name).write_text("of a converted model")
    directory.save(str(path), model, encoder, task)
    assert {file.name for file in path.iterdir()} == {"config.json", "model.safetensors", "vocab.txt"}


def edit(path, change):
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def unlisted(config):
    """Removes the checksums, as in the directories of earlier versions."""
    del config["crc32"]


@pytest.mark.parametrize("load", [directory.load_task, bert_tf.load])
def test_the_error_for_a_newer_format_says_what_to_do(saved, load):
    path, *_ = saved
    edit(path, lambda config: config.update(version=2))
    with raises(DataError, "version 2", "1", "bert_tf"):
        load(str(path))


def test_an_unknown_task_is_named(saved):
    path, *_ = saved
    edit(path, lambda config: config["task"].update(name="poetry"))
    with raises(DataError, "'poetry'"):
        directory.load_task(str(path))
    encoder, _ = bert_tf.load(str(path))
    np.testing.assert_array_equal(encoder.weights[0].numpy(), saved[2].weights[0].numpy())


def described(**changes):
    """The content of a classifier's config.json with other values at these dotted paths; None removes one."""
    task = {"name": "classification", "settings": {"labels": ["no", "ja"], "max_length": 21, "data": {"text": "a"}}}
    tokenizer = {"lower_case": False, "strip_accents": None, "split_cjk": True}
    content = {"version": 1, "model": to_dict(small_config()), "tokenizer": tokenizer, "task": task, "origin": {}}
    for path, value in changes.items():
        *parents, name = path.split(".")
        part = content
        for parent in parents:
            part = part[parent]
        part[name] = value
    return content


WRONG = {
    "version": ("x", 'version is "x"; expected a whole number from 1'),
    "model": (5, "model is 5; expected an object"),
    "model.attention": (["left"], 'model.attention is ["left"]; expected one of bidirectional, causal'),
    "model.pooler": (1, "model.pooler is 1; expected true or false"),
    "model.num_layers": (10**9, "model.num_layers is 1000000000; expected a whole number from 1 up to 1,000"),
    "model.num_heads": (5, "model.hidden_size 32 is not a multiple of num_heads 5"),
    "model.hiden_size": (5, "model has no field 'hiden_size'; did you mean 'hidden_size'?"),
    "tokenizer": (5, "tokenizer is 5; expected an object"),
    "tokenizer.lower_case": ("no", 'tokenizer.lower_case is "no"; expected true or false'),
    "tokenizer.lowercase": (True, "tokenizer has no field 'lowercase'; did you mean 'lower_case'?"),
    "tokenizer.vocab": ("v", "tokenizer has no field 'vocab'; known: lower_case, strip_accents, split_cjk"),
    "task": (5, "task is 5; expected an object or null"),
    "task.name": (5, "task.name is 5; expected text"),
    "task.settings": ([], "task.settings is []; expected an object"),
    "task.settings.labels": (None, "task.settings.labels is null; expected a list, each element text"),
    "task.settings.labels ": (["a", 5], "task.settings.labels[1] is 5; expected text"),
    "task.settings.labels  ": (["a", "a"], "task.labels has a label twice: 'a', 'a'; one or more, each once"),
    "task.settings.labels   ": (["a", ""], "task.labels is ['a', '']; expected names: one or more, each once"),
    "task.settings.labels    ": ([], "task.labels is ['']; expected names: one or more, each once"),
    "task.settings.class_weights": ([1], "task.class_weights has 1 weights for 2 task.labels"),
    "task.settings.class_weights ": ([1, -1], "task.settings.class_weights[1] is -1; expected a number above 0"),
    "task.settings.pair": ("x", 'task.settings.pair is "x"; expected true or false or null'),
    "task.settings.max_length": ("x", 'task.settings.max_length is "x"; expected a whole number from 8'),
    "task.settings.max_length ": (-1, "task.settings.max_length is -1; expected a whole number from 8"),
    "task.settings.max_length  ": (25, "task.settings.max_length is 25; expected up to the 24 of model.max_position"),
    "task.settings.head": (5, "task.settings.head is 5; expected one of pooled, bilstm, vector"),
    "task.settings.maxlength": (5, "task.settings has no field 'maxlength'; did you mean 'max_length'?"),
    "task.settings.data": (5, "task.settings.data is 5; expected an object"),
    "task.settings.data.text": (5, "task.settings.data.text is 5; expected text"),
    "origin": (5, "origin is 5; expected an object"),
    "origin.config": ("x", 'origin.config is "x"; expected an object'),
}


@pytest.mark.parametrize("path", WRONG)
def test_a_wrong_value_in_a_config_is_one_line_with_file_field_value_and_expectation(path):
    value, message = WRONG[path]
    with pytest.raises(DataError) as caught:
        directory.from_description(described(**{path.strip(): value}), "m/config.json")
    assert str(caught.value).startswith(f"m/config.json: {message}")
    assert "\n" not in str(caught.value)


def test_a_task_without_the_pooler_that_it_reads_is_named(saved):
    path, *_ = saved
    edit(path, lambda config: config["model"].update(pooler=False))
    with raises(DataError, "config.json", "model.pooler"):
        bert_tf.load(str(path))


@pytest.mark.parametrize("key", ["version", "model", "tokenizer", "task"])
def test_a_missing_part_of_a_config_is_named(key):
    content = described()
    del content[key]
    with raises(DataError, "m/config.json", f"'{key}'"):
        directory.from_description(content, "m/config.json")


FITTED = {  # task: labels, a fitted value
    "tagging": (["O", "B-X"], "unit"),
    "regression": (["x"], "scale"),
    "question_answering": (None, "null_threshold"),
}


@pytest.mark.parametrize("name", FITTED)
def test_the_fitted_values_of_every_task_are_checked(name):
    labels, state = FITTED[name]
    task = {"name": name, "settings": {"labels": labels} if labels else {}}
    assert directory.from_description(described(task=task), "m/config.json").task == task
    task["settings"][state] = {}
    with raises(DataError, "m/config.json", f"task.settings.{state}"):
        directory.from_description(described(task=task), "m/config.json")


def test_other_keys_are_ignored():
    assert directory.from_description(described(made_by="later"), "m/config.json").config == small_config()


def test_a_directory_of_another_format_is_not_read_as_a_task(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with raises(DataError, "bert_tf", "bert_tf.convert", "--format=bert_tf"):
        directory.load_task(str(tmp_path))


def test_a_missing_config_is_named(saved):
    path, *_ = saved
    (path / "config.json").unlink()
    for load in (directory.load_task, bert_tf.load):
        with raises(DataError, "config.json"):
            load(str(path))


def test_a_vocabulary_of_another_length_is_refused(saved):
    path, *_ = saved
    edit(path, unlisted)
    with open(path / "vocab.txt", "a") as file:
        file.write("extra\n")
    with raises(DataError, len(PIECES) + 1, len(PIECES)):
        bert_tf.load(str(path))


def test_missing_and_misshapen_variables_are_listed_together(saved):
    path, *_ = saved
    edit(path, unlisted)
    tensors = load_file(path / "model.safetensors")
    del tensors["layer_0/attention/qkv/bias"]
    tensors["pooler/kernel"] = tensors["pooler/kernel"][:, :5].copy()
    save_file(tensors, path / "model.safetensors")
    expected = r"missing layer_0/attention/qkv/bias; misshapen pooler/kernel is \[32, 5\], not \[32, 32\]"
    with pytest.raises(DataError, match=expected):
        directory.load_task(str(path))


def test_a_tensor_without_a_variable_is_named(saved):
    path, *_ = saved
    edit(path, unlisted)
    tensors = load_file(path / "model.safetensors") | {"layer_7/output/bias": np.zeros(3, np.float32)}
    save_file(tensors, path / "model.safetensors")
    with raises(DataError, "config.json", "layer_7/output/bias"):
        bert_tf.load(str(path))


def test_a_truncated_file_is_reported_as_unreadable(saved):
    path, *_ = saved
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with raises(DataError, "model.safetensors"):
        bert_tf.load(str(path))


def test_a_failed_write_keeps_the_previous_model(saved):
    path, *_ = saved
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    checkpoint = directory.read(str(path))

    def full():
        raise OSError(28, "No space left on device")

    name = "pooler/kernel"
    checkpoint.tensors[name] = dataclasses.replace(checkpoint.tensors[name], read=full)
    with pytest.raises(OSError, match="No space left"):
        directory.write(checkpoint, str(path))
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def save_state(folder, variables):
    with Checkpoints(str(folder / "checkpoints"), variables, keep=1) as checkpoints:
        checkpoints.save(7)


def test_the_optimizer_state_of_a_run_is_read_and_written_with_its_model(tmp_path):
    task, model, encoder = make("classification")
    directory.save(str(tmp_path), model, encoder, task)
    slots = {
        f"slots/{one.path}/{slot}": tf.Variable(one + index) for one in model.weights for index, slot in enumerate("mv")
    }
    state = {"state": tf.Variable([7, 0, 0, 0], dtype=tf.int64)}
    weights = {f"weights/{one.path}": one.value for one in model.weights}
    save_state(tmp_path, weights | slots | state)
    checkpoint = directory.read(str(tmp_path))
    assert checkpoint.step == 7
    assert len(checkpoint.moments) == 2 * len(checkpoint.tensors)
    for path, tensor in checkpoint.tensors.items():
        for index, slot in enumerate("mv"):
            np.testing.assert_array_equal(checkpoint.moments[f"{path}/{slot}"].read(), tensor.read() + index)
    directory.write(checkpoint, str(tmp_path / "copy"))
    copy = directory.read(str(tmp_path / "copy"))
    assert copy.step == 7
    for name, tensor in checkpoint.moments.items():
        np.testing.assert_array_equal(copy.moments[name].read(), tensor.read())


@pytest.mark.parametrize("damage", ["went on", "cut short"])
def test_a_model_is_read_without_the_optimizer_state_of_another_model(tmp_path, damage):
    task, model, encoder = make("pretraining")
    directory.save(str(tmp_path), model, encoder, task)
    randomize(model, seed=9)
    weights = {f"weights/{one.path}": one.value for one in model.weights}
    state = {"state": tf.Variable([7, 0, 0, 0], dtype=tf.int64)}
    save_state(tmp_path, weights | state)
    if damage == "cut short":
        (index,) = (tmp_path / "checkpoints").glob("*.index")
        index.write_bytes(index.read_bytes()[:50])
    checkpoint = directory.read(str(tmp_path))
    assert (checkpoint.moments, checkpoint.step) == ({}, None)
    assert "optimizer state not read" in checkpoint.report.warnings[0]


def read_all(path):
    checkpoint = directory.read(str(path))
    for tensor in [*checkpoint.tensors.values(), *checkpoint.moments.values()]:
        tensor.read()
    return checkpoint


@pytest.fixture(scope="module")
def of_all_kinds(tmp_path_factory):
    """Kind of tokenizer -> a directory with all files that a model can have."""
    made = {}
    for kind, tokenizer in TOKENIZERS.items():
        checkpoint = small_checkpoint("classification", vocab_size=tokenizer().vocab_size)
        checkpoint = dataclasses.replace(checkpoint, tokenizer=tokenizer(), step=3)
        checkpoint = dataclasses.replace(
            checkpoint,
            moments={f"{name}/{slot}": tensor for name, tensor in checkpoint.tensors.items() for slot in "mv"},
        )
        made[kind] = tmp_path_factory.mktemp(kind)
        directory.write(checkpoint, str(made[kind]))
    return made


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_file_is_listed_with_its_checksum(of_all_kinds, kind):
    folder = of_all_kinds[kind]
    listed = json.loads((folder / "config.json").read_text())["crc32"]
    assert listed.keys() == {file.name for file in folder.iterdir()}
    for name, expected in listed.items():
        content = (folder / name).read_bytes()
        if name.endswith(".safetensors"):
            content = content[: 8 + int.from_bytes(content[:8], "little")]  # the header, by the format's definition
        if name != "config.json":
            assert f"{zlib.crc32(content):08x}" == expected


@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_bit_in_any_file_is_an_error_that_names_the_file(of_all_kinds, kind, tmp_path):
    names = [path.name for path in of_all_kinds[kind].iterdir() if path.name != "config.json"]
    for name, place in itertools.product(names, [0.001, 0.5, 0.999]):
        folder = tmp_path / f"{name} {place}"
        shutil.copytree(of_all_kinds[kind], folder)
        content = bytearray((folder / name).read_bytes())
        content[int(place * len(content))] ^= 1
        (folder / name).write_bytes(content)
        with raises(DataError, folder / name):
            read_all(folder)


def test_a_vocabulary_that_was_edited_is_an_error_that_says_how_to_keep_it(saved):
    path, task, *_ = saved
    lines = (path / "vocab.txt").read_text().splitlines()
    lines[-1], lines[-2] = lines[-2], lines[-1]
    (path / "vocab.txt").write_text("\n".join(lines) + "\n")
    with raises(DataError, path / "vocab.txt", "CRC-32", "'vocab.txt'", path / "config.json"):
        directory.load_task(str(path))
    edit(path, lambda config: config["crc32"].pop("vocab.txt"))
    assert directory.load_task(str(path))[0].tokenizer.vocab == lines != task.tokenizer.vocab


def test_an_edited_config_is_read_with_a_warning_and_another_layout_without(saved, caplog):
    path, *_ = saved
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()), indent=7))
    directory.load_task(str(path))
    assert not caplog.records
    edit(path, lambda config: config["model"].update(dropout=0.25))
    directory.load_task(str(path))
    (record,) = caplog.records
    assert "config.json" in record.getMessage() and "changed" in record.getMessage()


def test_weights_beside_the_config_of_another_model_are_refused(saved, tmp_path_factory):
    path, task, model, encoder = saved
    other = tmp_path_factory.mktemp("other")
    directory.save(str(other), randomize(model, seed=10), encoder, task)
    shutil.copy(other / "model.safetensors", path)  # as after a kill between the two
    with raises(DataError, path / "model.safetensors", path / "config.json"):
        directory.load_task(str(path))


def test_a_directory_of_an_earlier_version_opens_without_checksums(saved):
    path, task, model, _ = saved
    edit(path, unlisted)
    weights = load_file(path / "model.safetensors")
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    again, model_again = directory.load_task(str(path))
    assert again.tokenizer.vocab == task.tokenizer.vocab
    np.testing.assert_array_equal(model_again.weights[0].numpy(), model.weights[0].numpy())


def test_a_byte_pair_vocabulary_of_an_earlier_version_may_lack_few_merges(of_all_kinds, tmp_path):
    shutil.copytree(of_all_kinds["byte_bpe"], tmp_path, dirs_exist_ok=True)
    edit(tmp_path, unlisted)
    lines = (tmp_path / "merges.txt").read_text().splitlines(keepends=True)
    (tmp_path / "merges.txt").write_text("".join(lines[:-10]))  # as if ten pieces had been added
    read_all(tmp_path)
    (tmp_path / "merges.txt").write_text("".join(lines[: len(lines) // 2]))
    with raises(DataError, "merges.txt", "no merge"):
        read_all(tmp_path)
