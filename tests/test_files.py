import errno
import glob
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import TokenizerConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import (
    bundled,
    cause,
    check_output,
    check_own_directory,
    final_name,
    here_or_bundled,
    nan_for_null,
    numbers_of,
    parse_json,
    read_json,
    remove_abandoned,
    replacing,
    replacing_directory,
    require_space,
    write_json,
    write_text,
)
from tests.errors import raises


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
        with replacing(path, adding=True) as temporary, open(temporary, "a") as file:
            file.write(text)
    with pytest.raises(ZeroDivisionError), replacing(path, adding=True) as temporary:
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
    with replacing(path) as temporary:
        assert os.path.basename(temporary) == "file.json"
        Path(temporary).write_text("new")
        Path(temporary).with_suffix(".odds.json").write_text("other")
        assert not path.exists()
    assert names(path.parent) == ["file.json", "file.odds.json"]
    assert path.read_text() == "new"
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        Path(temporary).write_text("half")
        raise ZeroDivisionError
    assert (names(path.parent), path.read_text()) == (["file.json", "file.odds.json"], "new")
    with pytest.raises(OSError) as caught, replacing(path) as temporary:
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
    with raises(ConfigError, "already exists"), replacing_directory(tmp_path / "model"):
        pass
    assert names(tmp_path) == ["model"]


def test_a_dangling_link_is_not_replaced(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "gone")
    with raises(ConfigError, "already exists"), replacing_directory(tmp_path / "model"):
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
    with raises(ConfigError, "File name too long"), replacing_directory(path):
        pass


def test_json_is_restored_from_a_file(tmp_path):
    value = {"label": "긍정", "numbers": [1, 2.5, None], "nested": {"true": True}}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json", dict[str, Any]) == value


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
    with raises(DataError, "missing.json"):
        read_json(tmp_path / "missing.json", object)
    (tmp_path / "bad.json").write_text('{"a": ')
    with raises(DataError, "bad.json:1", "JSON", "column 7"):
        read_json(tmp_path / "bad.json", object)


class Part(TypedDict):
    name: str
    share: NotRequired[Annotated[float, {"at_least": 0, "at_most": 1}]]


class Content(TypedDict):
    step: int
    parts: NotRequired[list[Part] | None]
    sizes: NotRequired[dict[str, tuple[int, int]]]
    tokenizer: NotRequired[TokenizerConfig]
    rest: NotRequired[Any]


VALID = [
    '{"step": 1}',
    '\ufeff{"step": 1, "parts": null, "new": [{"deep": null}]}',
    '{"step": 1, "parts": [], "sizes": {"a": [1, 2]}, "tokenizer": {"strip_accents": null}}',
    '{"step": 1, "parts": [{"name": "\\ud83d\\ude00", "share": 1}], "rest": [[null, 1e9]]}',
]
INVALID = {
    "[1]": ": the content is [1]; expected an object",
    "5": ": the content is 5; expected an object",
    "{}": ": no 'step'",
    '{"step": "x"}': ': step is "x"; expected a whole number',
    '{"step": null}': ": step is null; expected a whole number",
    '{"step": true}': ": step is true; expected a whole number",
    '{"step": 1.0}': ": step is 1.0; expected a whole number",
    '{"step": 1, "parts": 5}': ": parts is 5; expected a list, each element an object or null",
    '{"step": 1, "parts": [{"name": "a"}, {}]}': ": no 'name' in parts[1]",
    '{"step": 1, "parts": [{"name": 5}]}': ": parts[0].name is 5; expected text",
    '{"step": 1, "parts": [{"name": "", "share": 2}]}': ": parts[0].share is 2; expected a number from 0 up to 1",
    '{"step": 1, "parts": [{"name": "", "share": NaN}]}': ": parts[0].share is NaN; expected a number from 0 up to 1",
    '{"step": 1, "sizes": {"a": [1]}}': ": sizes.a is [1]; expected a list, each element a whole number",
    '{"step": 1, "sizes": {"a": [1, {}]}}': ": sizes.a[1] is {}; expected a whole number",
    '{"step": 1, "tokenizer": 5}': ": tokenizer is 5; expected an object",
    '{"step": 1, "tokenizer": {"lower_case": 1}}': ": tokenizer.lower_case is 1; expected true or false or null",
    '{"step": 1, "tokenizer": {"lowercase": true}}': ": tokenizer has no field 'lowercase'; did you mean 'lower_case'?",
    '{"step": 1, "new": ["\\ud800"]}': ': new[0] has half of a surrogate pair, "\\ud800"; remove it',
    '{"step": 1, "rest": {"\\udfff": 1}}': ': rest has half of a surrogate pair, "\\udfff"; remove it',
    "[" * 100_000: ":1: JSON with lists or objects nested too deeply, or a number with thousands of digits; correct it",
    "9" * 10_000: ":1: JSON with lists or objects nested too deeply, or a number with thousands of digits; correct it",
    '{"step": 1,\n "parts": [}': ":2: not JSON (Expecting value at column 12)",
    b'{"step": "\xe9"}': ": byte 0xe9 at offset 10 is not UTF-8; expected JSON",
}


@pytest.mark.parametrize("text", VALID)
def test_json_may_have_other_keys_and_lack_optional_ones(text):
    assert parse_json(text.encode(), "file", Content) == json.loads(text.lstrip("\ufeff"))


@pytest.mark.parametrize("case", range(len(INVALID)))
def test_json_of_another_form_is_one_line_with_file_field_value_and_expectation(case, tmp_path):
    text, expected = list(INVALID.items())[case]
    (tmp_path / "a.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        read_json(tmp_path / "a.json", Content)
    assert str(caught.value) == f"{tmp_path / 'a.json'}{expected}"


def test_bundled_data_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert os.path.isfile(bundled("data/sotu/train.txt.gz"))
    with raises(DataError, "data/none"):
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


WRITER = """
import os, sys
from bert_tf.files import replacing, replacing_directory
folder = sys.argv[1]
with replacing_directory(f"{folder}/1") as version, replacing(f"{folder}/weights") as file:
    open(f"{version}/half", "w").close()
    open(file, "w").close()
    print(version, os.path.dirname(file), flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_at_once_and_not_what_a_living_one_writes(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)]
    try:
        left, written = ([Path(path).name for path in writer.stdout.readline().split()] for writer in writers)
        writers[0].kill()
        writers[0].wait()
        with replacing_directory(tmp_path / "2"):
            assert left[0] not in names(tmp_path) and {*written, left[1]} <= {*names(tmp_path)}
        remove_abandoned(tmp_path)
        assert names(tmp_path) == sorted(["2", *written])
        writers[1].communicate(timeout=60)
        assert names(tmp_path) == ["1", "2", "weights"] and names(tmp_path / "1") == ["half"]
    finally:
        for writer in writers:
            writer.kill()


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
    with raises(ConfigError, "another process"), writing:
        (tmp_path / "1").mkdir()
    assert names(tmp_path) == ["1"]


@pytest.mark.parametrize("name", ["pipe", "link", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/2"])
def test_a_pipe_or_an_open_file_is_refused_and_never_replaced(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    for write in (check_output, lambda path: write_text(path, "text")):
        with raises(ConfigError, name):
            write(name)
    assert names(tmp_path) == ["link", "pipe"] and Path("pipe").is_fifo()


def test_a_file_system_of_tensorflow_has_the_file_completely_or_not_at_all():
    path, files = "ram://files/deep/a.json", tf.io.gfile
    write_json(path, {"label": "긍정"}, indent=None)
    assert files.GFile(path).read() == '{"label": "긍정"}\n' and read_json(path, Any) == {"label": "긍정"}
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        files.GFile(temporary, "w").write("half")
        raise ZeroDivisionError
    write_json(path, 2)
    assert files.listdir("ram://files/deep") == ["a.json"] and read_json(path, Any) == 2
    with raises(DataError, "ram://files/none.json"):
        read_json("ram://files/none.json", Any)


def test_the_folder_of_a_killed_process_names_its_file(tmp_path):
    with replacing(tmp_path / "labels.jsonl"):
        (temporary,) = names(tmp_path)
    assert final_name(temporary) == final_name(f"{temporary}/") == "labels.jsonl"
    assert not any(map(final_name, ["labels.jsonl", "download.partial", ".partial", ".labels.jsonl.partial"]))


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path, exists):
    (tmp_path / "there").mkdir()
    if exists:
        (tmp_path / "there" / "file.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("there/file.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "there" / "file.txt").read_text() == "new"
    assert names(tmp_path / "there") == ["file.txt"]


@pytest.mark.parametrize("name", ["x" * 255, "가" * 85])
def test_a_name_of_255_bytes_can_be_written(tmp_path, name):
    write_text(tmp_path / name, "text")
    with replacing_directory(tmp_path / "in" / name):
        pass
    assert names(tmp_path) == sorted(["in", name]) and names(tmp_path / "in") == [name]


NODE = "{{function_node __wrapped__SaveV2_device_/job:localhost/replica:0/task:0/device:CPU:0}} "
GRAPH = "Graph execution error:\n\nDetected at\n  File\n"


@pytest.mark.parametrize(
    "before, after", [("", ""), (NODE, " [Op:SaveV2]"), (GRAPH, "\n\t [[{{node WriteFile}}]]\nHint")]
)
def test_a_full_disk_that_tensorflow_reports_is_an_error_of_the_final_file(tmp_path, before, after):
    for writing in (replacing, replacing_directory):
        path = str(tmp_path / ("x" * 250))
        with pytest.raises(OSError) as caught, writing(path) as temporary:
            message = f"{before}{temporary}/variables_temp/part; No space left on device{after}"
            raise tf.errors.ResourceExhaustedError(None, None, message)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, path)
        assert names(tmp_path) == []


@pytest.mark.parametrize("text", ["{{" * 500_000, "{{" + "}} " * 300_000, "; " * 500_000])
def test_a_message_of_any_length_is_searched_in_no_time(text):
    error = tf.errors.UnknownError(None, None, text)  # minutes, if all of it were searched
    assert len(cause(error)) <= 300


def test_the_cause_of_an_error_has_no_names_of_graph_nodes():
    text = f"{NODE}corrupted record at 12 [Op:RestoreV2] name: "
    assert cause(tf.errors.DataLossError(None, None, text)) == "corrupted record at 12"
    assert cause(tf.errors.NotFoundError(None, None, f"{NODE}m/x; No such file or directory [Op:A]")) == (
        "No such file or directory"
    )
    assert cause(OSError(28, "No space left on device", "m/x")) == "No space left on device"


UNWRITABLE = {
    "below a file": ("file/x", "Not a directory"),
    "too long": ("x" * 256, "File name too long"),
    "of a system": ("/proc/none/x", "cannot be written"),
    "a link to itself": ("loop", "Too many levels of symbolic links"),
    "remote": ("gs://bucket/x", "only local files are written"),
    "empty": ("", "is empty"),
}


@pytest.mark.parametrize("directory", [True, False])
@pytest.mark.parametrize("case", UNWRITABLE)
def test_an_output_that_cannot_be_written_is_refused_beforehand(tmp_path, monkeypatch, case, directory):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("loop").symlink_to("loop")
    path, message = UNWRITABLE[case]
    with pytest.raises(ConfigError, match="is not a directory" if path == "loop" and directory else message):
        check_output(path, directory=directory)
    assert names(tmp_path) == ["file", "loop"]


# A name of the input data/texts.txt -> (output, whether it is a directory).
SAME = {
    "the same name": ("data/texts.txt", False),
    "another way": ("data/../data/texts.txt", False),
    "a link": ("link.txt", False),
    "a hard link": ("hard.txt", False),
    "a link to the directory": ("linked/texts.txt", False),
    "its directory": ("data", True),
    "its directory, by a link": ("linked", True),
}


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("data/texts.txt")
    path.parent.mkdir()
    path.write_text("a")
    Path("link.txt").symlink_to(path)
    Path("hard.txt").hardlink_to(path)
    Path("linked").symlink_to("data")
    return path


@pytest.mark.parametrize("case", SAME)
def test_an_output_that_is_an_input_under_any_name_is_refused(texts, case):
    output, directory = SAME[case]
    with raises(ConfigError, output, "data/texts.txt"):
        check_output(output, directory=directory, inputs=["-", "none.txt", texts])
    if not directory:  # the other way round
        with pytest.raises(ConfigError):
            check_output(texts, inputs=[output])


def test_an_output_beside_its_input_is_accepted(texts):
    for output in ("data/labels.txt", "texts.txt", "link.txt.new"):
        check_output(output, inputs=[texts])
    for output in (".", "data/new", "new"):
        check_output(output, directory=True, inputs=[texts])


def test_a_directory_with_files_of_somebody_else_is_refused(tmp_path):
    folder = tmp_path / "a"
    check_own_directory(folder, ["run.json"], "model")
    folder.mkdir()
    (folder / ".hidden").write_text("")
    check_own_directory(folder, ["run.json"], "model")
    (folder / "notes.txt").write_text("")
    with raises(ConfigError, "'notes.txt'", "bert_tf"):
        check_own_directory(folder, ["run.json"], "model")
    (folder / "part").mkdir()
    (folder / "part/run.json").write_text("")
    check_own_directory(folder, ["*/run.json"], "model")


def test_outputs_that_can_be_written_are_accepted_and_not_made(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for name, target in (("link", "folder"), ("dangling", "nowhere"), ("file_link", "file")):
        (tmp_path / name).symlink_to(target)
    before = names(tmp_path)
    for name in ("new", "deep/new", "folder", "link", "link/new", "folder/.."):
        check_output(tmp_path / name, directory=True)
    for name in ("new", "deep/new", "file", "file_link", "dangling"):
        check_output(tmp_path / name)
    assert names(tmp_path) == before
    for name in ("folder", "link"):
        with raises(ConfigError, "is a directory"):
            check_output(tmp_path / name)
    for name in ("file", "dangling", "file_link"):
        with raises(ConfigError, "is not a directory"):
            check_output(tmp_path / name, directory=True)
    with raises(ConfigError, "No such file or directory"):
        check_output(tmp_path / "dangling" / "new", directory=True)


def test_too_little_free_space_is_an_error_with_both_numbers(tmp_path):
    require_space(tmp_path / "new" / "model", 1, "the model")
    with raises(DataError, "1,000,000,000,000,000,000"):
        require_space(tmp_path / "new", 1e18, "the model")


def test_a_directory_that_appears_at_the_last_moment_is_an_error_in_words(tmp_path, monkeypatch):
    def replace(source, target, replace=os.replace):
        (tmp_path / "1" / "of another process").mkdir(parents=True)
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with (
        raises(ConfigError, "/1"),
        replacing_directory(tmp_path / "1"),
    ):
        pass
    assert names(tmp_path) == ["1"]


def test_the_numbers_of_files_are_those_of_whole_names(tmp_path):
    folder = tmp_path / "a[b]"
    assert numbers_of(folder, "step-", ".index") == []
    folder.mkdir()
    for name in ("step-20.index", "step-3.index", "step-x.index", "step-4.data", "a-step-5.index", "step-6-7.index"):
        (folder / name).touch()
    assert numbers_of(folder, "step-", ".index") == [3, 20]


def test_what_is_here_comes_before_what_is_bundled(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pattern = "data/korean/*_train.txt.gz"
    assert here_or_bundled("configs/pretrain/tiny.py") == bundled("configs/pretrain/tiny.py")
    assert len(glob.glob(here_or_bundled(pattern))) == 2
    assert here_or_bundled("pretrain/tiny.py", "configs") == bundled("configs/pretrain/tiny.py")
    errors = capsys.readouterr().err
    assert (
        errors.count("reading the one that ships with bert_tf") == 3 and bundled("configs/pretrain/tiny.py") in errors
    )

    for path in ("configs/pretrain/tiny.py", "data/korean/my_train.txt.gz"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    # Nor is anything else replaced, above all no name that the project does not have.
    others = [
        "",
        "-",
        "data/mine",
        "configs/../data",
        bundled("data/reviews"),
        "gs://bucket/data/reviews",
        "elsewhere/data",
    ]
    for path in ["configs/pretrain/tiny.py", pattern, *others]:
        assert here_or_bundled(path) == path
    for path in ["", "finetune", "finetune/mine.py", "/pretrain/tiny.py", "../configs/pretrain/tiny.py", "README.md"]:
        assert here_or_bundled(path, "configs") == path
    assert capsys.readouterr().err == ""
