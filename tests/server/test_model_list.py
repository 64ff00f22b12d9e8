"""Lists of models to serve, from folders of exports."""

import os

import pytest

from bert_tf.errors import ConfigError
from bert_tf.server import model_list


def test_the_folder_of_one_model_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for base_path, expected in (("m", f"{tmp_path}/m"), ("/m", "/m"), ("gs://bucket/m", "gs://bucket/m")):
        made = model_list.one_model("m", base_path)
        assert made.model_config_list.config[0].base_path == expected
        model_list.check_models(made)


def test_an_export_folder_is_of_a_model_or_of_models_or_of_a_version(tmp_path):
    for model, version in (("a", "1"), ("a", "2"), ("b", "7")):
        (tmp_path / model / version).mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "lost+found").mkdir(mode=0)  # as root owns it in a volume
    (tmp_path / "a" / "1" / "saved_model.pb").touch()

    def models(path):
        return {one.name: one.base_path for one in model_list.models_in(str(path)).model_config_list.config}

    both = {name: str(tmp_path / name) for name in "ab"}
    assert models(tmp_path) == both
    assert models(tmp_path / "a") == {"a": both["a"]}
    one = model_list.models_in(str(tmp_path / "a" / "1")).model_config_list.config[0]
    assert one.name == "a" and list(one.model_version_policy.specific.versions) == [1]
    with pytest.raises(ConfigError, match="no exported model; expected folders named by numbers"):
        models(tmp_path / "notes")
    with pytest.raises(ConfigError, match="no such folder"):
        models(tmp_path / "c")
    with pytest.raises(ConfigError, match="a file; expected the folder of an exported model"):
        models(tmp_path / "a" / "1" / "saved_model.pb")
    (tmp_path / "a" / "1").rename(tmp_path / "notes" / "model")
    with pytest.raises(ConfigError, match="not named by a number; move what is in it to"):
        models(tmp_path / "notes" / "model")


def test_folders_that_are_hidden_unreadable_or_no_int64_are_not_served(tmp_path, monkeypatch):
    for name in ("reviews/007", ".hidden/1", "large/9223372036854775808", "lost+found/1"):
        (tmp_path / name).mkdir(parents=True)
    listdir = os.listdir

    def listed(path):
        if "lost+found" in path:
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", listed)
    assert [one.name for one in model_list.models_in(str(tmp_path)).model_config_list.config] == ["reviews"]
