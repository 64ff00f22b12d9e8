"""Errors for paths without a model or without a recognisable one."""

import shutil

import pytest

from bert_tf.checkpoints import directory
from bert_tf.checkpoints.formats import google, huggingface, open_checkpoint
from bert_tf.errors import ConfigError, DataError
from tests.checkpoints.small import assert_same, small_checkpoint


@pytest.fixture
def model(tmp_path):
    checkpoint, _ = small_checkpoint()
    path = tmp_path / "all" / "model"
    directory.write(checkpoint, str(path))
    return path


def test_the_error_for_a_file_of_a_model_names_its_directory(model):
    with pytest.raises(DataError, match=r"model.safetensors: a file; expected its directory"):
        open_checkpoint(model / "model.safetensors")


def test_models_one_level_below_are_named(model):
    with pytest.raises(DataError, match=f"not a model, but has models in model; name one of them: {model}"):
        open_checkpoint(model.parent)


def test_an_adapter_is_not_read_as_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match=r"an adapter .*merge it into its base model"):
        open_checkpoint(tmp_path)


def test_the_error_for_a_hub_name_gives_the_hf_scheme():
    with pytest.raises(DataError, match=r"klue/bert-base: no such directory; .* hf://OWNER/NAME"):
        open_checkpoint("klue/bert-base")


def test_the_error_for_a_directory_without_a_model_lists_the_expected_files(tmp_path):
    with pytest.raises(DataError, match=r"not a model of a known format; expected config.json"):
        open_checkpoint(tmp_path)


def test_paths_may_contain_hangul_and_spaces(model, tmp_path):
    path = shutil.copytree(model, tmp_path / "한글 폴더")
    assert_same(open_checkpoint(path), open_checkpoint(model))


def test_a_glob_pattern_in_the_path_of_googles_files_is_refused(tmp_path):
    path = tmp_path / "model [1]"
    path.mkdir()
    google.write(small_checkpoint()[0], str(path))
    with pytest.raises(DataError, match="pattern; rename"):
        open_checkpoint(path)


@pytest.mark.parametrize("write", [google.write, huggingface.write])
@pytest.mark.parametrize(
    "head, config, what",
    [
        (None, {"attention": "causal"}, "model.attention is 'causal'"),
        ("classification_bilstm", {}, "the head is classification_bilstm"),
    ],
)
def test_features_of_our_format_are_refused_by_the_others_and_restored_by_ours(tmp_path, write, head, config, what):
    checkpoint, _ = small_checkpoint(head, **config)
    if head:
        settings = checkpoint.task["settings"] | {"head": "bilstm"}
        checkpoint.task = {"name": head.removesuffix("_bilstm"), "settings": settings}
    with pytest.raises(ConfigError, match=what) as caught:
        write(checkpoint, str(tmp_path / "theirs"))
    assert "bert_tf" in str(caught.value) and "\n" not in str(caught.value)
    directory.write(checkpoint, str(tmp_path / "ours"))
    assert_same(directory.read(str(tmp_path / "ours")), checkpoint)
