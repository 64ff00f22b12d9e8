"""Errors for paths without a recognisable model, and for weights that are none."""

import dataclasses
import shutil

import numpy as np
import pytest

from bert_tf.checkpoints import directory, open_with_warnings
from bert_tf.checkpoints.formats import google, huggingface, open_checkpoint
from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.errors import ConfigError, DataError
from tests.checkpoints.small import assert_same, small_checkpoint
from tests.errors import raises


@pytest.fixture
def model(tmp_path):
    checkpoint = small_checkpoint()
    path = tmp_path / "all" / "model"
    directory.write(checkpoint, str(path))
    return path


def test_the_error_for_a_file_of_a_model_names_its_directory(model):
    with raises(DataError, "model.safetensors"):
        open_checkpoint(model / "model.safetensors")


def test_models_one_level_below_are_named(model):
    with raises(DataError, model):
        open_checkpoint(model.parent)


def test_an_adapter_is_not_read_as_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with raises(DataError, "adapter"):
        open_checkpoint(tmp_path)


def test_the_error_for_a_hub_name_gives_the_hf_scheme():
    with raises(DataError, "klue/bert-base", "hf://OWNER/NAME"):
        open_checkpoint("klue/bert-base")


def test_the_error_for_a_directory_without_a_model_lists_the_expected_files(tmp_path):
    with raises(DataError, "config.json"):
        open_checkpoint(tmp_path)


def test_paths_may_contain_hangul_and_spaces(model, tmp_path):
    path = shutil.copytree(model, tmp_path / "한글 폴더")
    assert_same(open_checkpoint(path), open_checkpoint(model))


def test_a_glob_pattern_in_the_path_of_googles_files_is_refused(tmp_path):
    path = tmp_path / "model [1]"
    path.mkdir()
    google.write(small_checkpoint(), str(path))
    with raises(DataError, "pattern; rename"):
        open_checkpoint(path)


@pytest.mark.parametrize("write", [google.write, huggingface.write])
@pytest.mark.parametrize(
    "head, config, what",
    [
        (None, {"attention": "causal"}, ("model.attention", "'causal'")),
        ("classification_bilstm", {}, ("classification_bilstm",)),
    ],
)
def test_features_of_our_format_are_refused_by_the_others_and_restored_by_ours(tmp_path, write, head, config, what):
    checkpoint = small_checkpoint(head, **config)
    if head:
        settings = checkpoint.task["settings"] | {"head": "bilstm"}
        checkpoint = dataclasses.replace(checkpoint, task={"name": head.removesuffix("_bilstm"), "settings": settings})
    with raises(ConfigError, *what) as caught:
        write(checkpoint, str(tmp_path / "theirs"))
    assert "bert_tf" in str(caught.value) and "\n" not in str(caught.value)
    directory.write(checkpoint, str(tmp_path / "ours"))
    assert_same(directory.read(str(tmp_path / "ours")), checkpoint)


def written(path, format, head, name, values):
    """Writes a model in a format, with one tensor replaced; returns its path."""
    checkpoint = small_checkpoint(head)
    checkpoint.tensors[name] = tensor_of(values, name)
    path.mkdir()
    format.write(checkpoint, str(path))
    return str(path)


@pytest.mark.parametrize("format", [directory, google, huggingface])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_when_read(tmp_path, format, value):
    values = np.zeros(32, np.float32)
    values[[3, 7]] = value
    path = written(tmp_path / "model", format, "classification", "pooler/bias", values)
    line = r"model.*pooler.* holds 2 values of 32 that are NaN or infinite; expected finite weights"
    with pytest.raises(DataError, match=line):
        open_checkpoint(path).tensors["pooler/bias"].read()


def test_no_program_answers_with_or_converts_weights_that_are_not_finite(programs, tmp_path):
    name, path = "bilstm_0_forward/lstm_cell/bias", str(tmp_path / "model")
    checkpoint = small_checkpoint("classification_bilstm")
    checkpoint = dataclasses.replace(
        checkpoint, task={"name": "classification", "settings": checkpoint.task["settings"] | {"head": "bilstm"}}
    )
    checkpoint.tensors[name] = tensor_of(np.full(4 * 32, np.nan, np.float32), name)
    directory.write(checkpoint, path)
    for program, flags in {
        "predict": [f"--model_dir={path}", "--data_dir=-", f"--output={tmp_path}/other.jsonl"],
        "convert": [f"--input={path}", "--format=bert_tf", f"--output={tmp_path}/other"],
    }.items():
        done = programs(program, *flags, stdin='{"text": "a"}\n')
        assert done.status == 1
        assert f"model.safetensors: {name} holds 128 values of 128 that are NaN or infinite" in done.error_line
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("format", [directory, google, huggingface])
def test_integers_are_not_taken_for_weights(tmp_path, format):
    path = written(tmp_path / "model", format, None, "pooler/bias", np.arange(32, dtype=np.int32))
    with raises(DataError, "int32", "float64", "float32"):
        open_checkpoint(path)


def test_a_weight_out_of_range_of_the_models_dtype_is_named():
    checkpoint = small_checkpoint()
    checkpoint.tensors["pooler/bias"] = tensor_of(np.full(32, 1e6, np.float32), "pooler/bias")
    with raises(DataError, "pooler/bias", "1e+06", "float16", "bfloat16"):
        checkpoint.encoder(dtype="float16")
    checkpoint.tensors["pooler/bias"] = tensor_of(np.full(32, 1e300), "pooler/bias")
    with raises(DataError, "pooler/bias", "1e+300", "float32"):
        checkpoint.encoder()


@pytest.mark.parametrize("format", [google, directory])
def test_a_file_of_another_program_that_is_not_read_has_a_line(tmp_path, caplog, format):
    format.write(small_checkpoint(), str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    open_with_warnings(tmp_path)
    for line in (
        "adapter_config.json holds an adapter, which is",
        "tokenizer_config.json holds settings of a tokenizer",
    ):
        assert f"unread: {line}" in caplog.text
