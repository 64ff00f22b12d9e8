import json
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest

from bert_tf.errors import ConfigError, DataError
from bert_tf.files import (
    bundled,
    nan_for_null,
    read_json,
    replacing,
    replacing_directory,
    replacing_with_others,
    write_json,
    write_text,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_completely_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with replacing(path) as temporary:
        Path(temporary).write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert names(path.parent) == ["file.txt"]


def test_a_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        Path(temporary).write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_file_can_be_appended_to_and_a_failure_appends_nothing(tmp_path):
    path = tmp_path / "file.txt"
    for text in ("one ", "two"):
        with replacing_with_others(path, adding=True) as temporary, open(temporary, "a") as file:
            file.write(text)
    with pytest.raises(ZeroDivisionError), replacing_with_others(path, adding=True) as temporary:
        Path(temporary).write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "one two"
    assert names(tmp_path) == ["file.txt"]


def test_a_full_disk_is_reported_with_the_final_name_of_the_file(tmp_path):
    path = tmp_path / "file.txt"
    with pytest.raises(OSError) as caught, replacing(path):
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(path)


def test_the_name_of_another_file_in_an_error_is_kept(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "file.txt"):
        os.stat(tmp_path / "missing")
    assert caught.value.filename == str(tmp_path / "missing")


def test_a_written_file_can_be_read_by_others(tmp_path):
    write_text(tmp_path / "file.txt", "한글\n")
    assert (tmp_path / "file.txt").read_bytes() == "한글\n".encode()
    assert os.stat(tmp_path / "file.txt").st_mode & 0o777 == 0o644


def test_several_files_are_written_together_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.json"
    with replacing_with_others(path) as temporary:
        assert os.path.basename(temporary) == "file.json"
        Path(temporary).write_text("new")
        Path(temporary).with_suffix(".odds.json").write_text("other")
        assert not path.exists()
    assert names(path.parent) == ["file.json", "file.odds.json"]
    assert path.read_text() == "new"
    with pytest.raises(ZeroDivisionError), replacing_with_others(path) as temporary:
        Path(temporary).write_text("half")
        raise ZeroDivisionError
    assert (names(path.parent), path.read_text()) == (["file.json", "file.odds.json"], "new")
    with pytest.raises(OSError) as caught, replacing_with_others(path) as temporary:
        raise OSError(28, "No space left on device", temporary)
    assert caught.value.filename == str(path)


def test_a_directory_is_written_completely_or_not_at_all(tmp_path):
    with replacing_directory(tmp_path / "deep" / "model") as temporary:
        Path(temporary, "part").write_text("x")
        assert not (tmp_path / "deep" / "model").exists()
    assert names(tmp_path / "deep" / "model") == ["part"]
    assert names(tmp_path / "deep") == ["model"]


def test_a_failure_leaves_no_directory(tmp_path):
    with pytest.raises(ZeroDivisionError), replacing_directory(tmp_path / "model") as temporary:
        Path(temporary, "part").write_text("x")
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_an_existing_directory_is_not_changed(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="already exists"), replacing_directory(tmp_path / "model"):
        pass
    assert names(tmp_path) == ["model"]


def test_a_dangling_link_is_not_replaced(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="already exists"), replacing_directory(tmp_path / "model"):
        pass


@pytest.mark.parametrize(
    "make", [lambda path: DataError(f"{path}: bad"), lambda path: OSError(28, "No space left on device", path)]
)
def test_errors_give_the_final_name_of_the_directory(tmp_path, make):
    with pytest.raises((DataError, OSError)) as caught, replacing_directory(tmp_path / "model") as temporary:
        raise make(f"{temporary}/part")
    assert f"{tmp_path}/model/part" in str(caught.value)
    assert "/.model." not in str(caught.value)


def test_a_directory_that_cannot_be_created_is_named(tmp_path):
    path = tmp_path / ("x" * 300)
    with pytest.raises(OSError) as caught, replacing_directory(path):
        pass
    assert caught.value.filename == str(path)


def test_json_is_restored_from_a_file(tmp_path):
    value = {"label": "긍정", "numbers": [1, 2.5, None], "nested": {"true": True}}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


def no_json(constant):
    raise AssertionError(f"{constant} is not JSON")


def test_numbers_that_are_not_finite_are_null_in_files_and_nan_again_when_read(tmp_path):
    value = {"loss": math.nan, "rows": [{"step": 1, "f1": np.float64(-math.inf)}, (0.5, math.inf)], "name": "nan"}
    write_json(tmp_path / "a.json", value)
    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=no_json)
    assert read == {"loss": None, "rows": [{"step": 1, "f1": None}, [0.5, None]], "name": "nan"}
    again = nan_for_null(read)
    assert repr(again) == "{'loss': nan, 'rows': [{'step': 1, 'f1': nan}, [0.5, nan]], 'name': 'nan'}"


def test_a_missing_file_and_invalid_json_are_named(tmp_path):
    with pytest.raises(DataError, match=r"missing\.json: no such file"):
        read_json(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text('{"a": ')
    with pytest.raises(DataError, match=r"bad\.json: not JSON"):
        read_json(tmp_path / "bad.json")
    for content in (b'"\xe9"', b"[" * 100_000, b"9" * 10_000):
        (tmp_path / "odd.json").write_bytes(content)
        with pytest.raises(DataError, match=r"odd\.json: not JSON"):
            read_json(tmp_path / "odd.json")


def test_bundled_data_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert os.path.isfile(bundled("data/sotu/train.txt.gz"))
    with pytest.raises(DataError, match=r"data/none: not found next to the package"):
        bundled("data/none")


def test_the_temporary_directory_of_a_process_killed_long_ago_is_removed(tmp_path):
    left = ("model.k1lled_1", "model.l1ving_1", "other.k1lled_1")
    killed, living, other = (tmp_path / f".{name}.partial" for name in left)
    for folder in (killed, living, other):
        folder.mkdir()
        (folder / "half").write_text("half")
    for folder in (killed, other):
        os.utime(folder, (time.time() - 25 * 3600,) * 2)
    with replacing_directory(tmp_path / "model") as temporary:
        assert names(tmp_path) == sorted([Path(temporary).name, living.name, other.name])
    assert names(tmp_path) == sorted([living.name, other.name, "model"])


def test_the_next_version_removes_the_temporary_directories_of_all_versions(tmp_path):
    killed, mine = tmp_path / ".1.k1lled_1.partial", tmp_path / ".config.k1lled_1.partial"
    for folder in (killed, mine):
        folder.mkdir()
        os.utime(folder, (time.time() - 25 * 3600,) * 2)
    with replacing_directory(tmp_path / "2"):
        pass
    assert names(tmp_path) == sorted([mine.name, "2"])


def test_a_failure_leaves_no_new_parent_directory(tmp_path):
    with pytest.raises(ZeroDivisionError), replacing_directory(tmp_path / "new" / "1"):
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_the_later_of_two_writers_of_a_directory_gets_an_error(tmp_path):
    writing = replacing_directory(tmp_path / "1")
    with pytest.raises(ConfigError, match="was written by another process in the meantime"), writing:
        (tmp_path / "1").mkdir()
    assert names(tmp_path) == ["1"]


def test_a_directory_that_appears_at_the_last_moment_is_an_error_in_words(tmp_path, monkeypatch):
    def replace(source, target, replace=os.replace):
        (tmp_path / "1" / "of another process").mkdir(parents=True)
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with (
        pytest.raises(ConfigError, match="/1 was written by another process in the meantime; run the same"),
        replacing_directory(tmp_path / "1"),
    ):
        pass
    assert names(tmp_path) == ["1"]
