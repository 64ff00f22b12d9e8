import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from bert_tf.config import (
    ClassificationConfig,
    EmbeddingsConfig,
    FinetuneConfig,
    GridConfig,
    PretrainConfig,
    TaskDistillation,
    TrainConfig,
    to_dict,
)
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import replacing
from bert_tf.training.runs.stage import results_of
from bert_tf.training.state.run_manifest import RESUMABLE_FIELDS, RunManifest, differences
from tests.errors import raises


class Killed(Exception):
    """Simulates kill -9."""


RUN = {
    "program": "pretrain",
    "config": {"train": {"batch_size": 8, "seed": 0, "keep": 2}, "input": "a.txt"},
    "inputs": {"input": {"bytes": 100}},
}


def other(**train):
    return RUN | {"config": RUN["config"] | {"train": RUN["config"]["train"] | train}}


def claimed(folder):
    RunManifest(str(folder), RUN).write(0)
    (folder / "checkpoints").mkdir()
    return folder


def on_disk(folder):
    return json.loads((folder / "run.json").read_text())


def test_a_new_directory_is_claimed_and_identifies_its_run(tmp_path):
    RunManifest(str(tmp_path / "a/b"), RUN).write(0)
    assert on_disk(tmp_path / "a/b") == RUN


def test_the_same_run_may_be_resumed(tmp_path):
    RunManifest(str(claimed(tmp_path / "run")), RUN).write(10)
    assert on_disk(tmp_path / "run") == RUN


def test_a_run_with_a_setting_that_is_gone_and_changed_no_result_may_be_resumed(tmp_path):
    folder = claimed(tmp_path / "run")
    (folder / "run.json").write_text(json.dumps(other(on_save_error="stop")))
    RunManifest(str(folder), RUN).write(10)
    assert on_disk(folder) == RUN


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"program": ["x"]}, 'program is ["x"]; expected text'),
        ({"config": 5}, "config is 5; expected an object"),
        ({"config": {"train": 5}, "inputs": []}, "inputs is []; expected an object"),
        ({"computes_in": "half"}, 'computes_in is "half"; expected one of float32, mixed_bfloat16, mixed_float16'),
        ({"changes": [{"changes": {}}]}, "no 'step' in changes[0]"),
        ({"changes": 5}, "changes is 5; expected a list, each element an object"),
    ],
)
def test_a_wrong_value_in_a_run_record_is_one_line(tmp_path, changes, message):
    folder = claimed(tmp_path / "run")
    (folder / "run.json").write_text(json.dumps(RUN | changes))
    with pytest.raises(DataError) as caught:
        RunManifest(str(folder), RUN)
    assert str(caught.value) == f"{folder / 'run.json'}: {message}"


def test_results_that_are_damaged_or_incomplete_are_those_of_an_unfinished_run(tmp_path):
    results = RUN | {"steps": 3, "final": {"kind": "evaluation", "step": 3, "loss": None}}
    for changes, found in (({}, True), ({"steps": "x"}, False), ({"final": 5}, False), ({"final": {"f1": {}}}, False)):
        (tmp_path / "results.json").write_text(json.dumps(results | changes))
        assert bool(results_of(str(tmp_path), "steps", "final")) == found
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert not results_of(str(tmp_path), "baseline")


def test_the_error_for_another_runs_directory_lists_the_differences(tmp_path):
    folder = claimed(tmp_path / "run")
    with pytest.raises(ConfigError) as caught:
        RunManifest(str(folder), other(batch_size=16, warmup=0.5))
    message = str(caught.value)
    assert "belongs to another run" in message and "--accept_config_change" in message
    assert "config.train.batch_size: 8 there, 16 now, config.train.warmup: None there, 0.5 now" in message
    assert "seed" not in message
    assert on_disk(folder) == RUN


def test_a_corpus_with_other_contents_is_refused(tmp_path):
    folder = claimed(tmp_path / "run")
    with raises(ConfigError, "inputs.input.bytes", "100", "101"):
        RunManifest(str(folder), RUN | {"inputs": {"input": {"bytes": 101}}})


def test_settings_that_do_not_affect_the_result_may_change(tmp_path):
    folder = claimed(tmp_path / "run")
    moved = other(keep=9)
    moved["config"]["input"] = "/elsewhere/a.txt"
    RunManifest(str(folder), moved).write(10)
    assert on_disk(folder) == moved


def test_the_evaluation_interval_may_change_unless_the_best_evaluation_is_kept(tmp_path):
    for keep_best in (False, True):
        before, now = (
            {"config": to_dict(PretrainConfig(train=TrainConfig(keep_best=keep_best, evaluate_every=every)))}
            for every in (8, 1)
        )
        assert list(differences(before, now)) == ["config.train.evaluate_every"] * keep_best


def test_the_grid_may_change_unless_it_is_searched(tmp_path):
    for search in (False, True):
        before, now = (
            {"config": to_dict(FinetuneConfig(task=ClassificationConfig(), search=search, grid=grid))}
            for grid in (GridConfig(), GridConfig(epochs=(1.0,)))
        )
        assert bool(differences(before, now)) == search


def test_an_accepted_change_is_recorded_with_its_step(tmp_path):
    folder = claimed(tmp_path / "run")
    RunManifest(str(folder), other(batch_size=16), accept=True).write(10)
    RunManifest(str(folder), other(batch_size=16)).write(20)
    RunManifest(str(folder), other(batch_size=16, seed=1), accept=True).write(30)
    assert on_disk(folder) == other(batch_size=16, seed=1) | {
        "changes": [
            {"step": 10, "changes": {"config.train.batch_size": [8, 16]}},
            {"step": 30, "changes": {"config.train.seed": [0, 1]}},
        ]
    }


def test_an_accepted_change_is_not_recorded_if_the_run_could_not_resume(tmp_path):
    folder = claimed(tmp_path / "run")
    RunManifest(str(folder), other(batch_size=16), accept=True)  # and no `write`, as if no checkpoint could be restored
    assert on_disk(folder) == RUN


def test_another_program_is_refused_even_if_changes_are_accepted(tmp_path):
    folder = claimed(tmp_path / "run")
    with raises(ConfigError, "pretrain", "finetune"):
        RunManifest(str(folder), RUN | {"program": "finetune"}, accept=True)


def test_the_settings_of_a_run_without_checkpoint_may_be_corrected(tmp_path):
    RunManifest(str(tmp_path / "run"), RUN).write(0)
    RunManifest(str(tmp_path / "run"), other(batch_size=4)).write(0)
    assert on_disk(tmp_path / "run") == other(batch_size=4)


@pytest.mark.parametrize("sign, begun", [("run.json", False), ("checkpoints", True), ("results.json", True)])
def test_the_settings_of_several_runs_may_be_corrected_until_one_has_a_checkpoint(tmp_path, sign, begun):
    folder = tmp_path / "run"
    RunManifest(str(folder), RUN).write(0)
    RunManifest(str(folder / "seed_0"), RUN).write(0)
    (folder / "seed_0" / sign).touch()
    with raises(ConfigError, "another run") if begun else contextlib.nullcontext():
        RunManifest(str(folder), other(batch_size=4)).write(0)
    assert on_disk(folder) == (RUN if begun else other(batch_size=4))


def test_partial_files_of_a_killed_run_are_removed(tmp_path):
    for name in ("run.json", "model.safetensors"):
        with contextlib.suppress(Killed), replacing(tmp_path / name) as temporary:
            Path(temporary).write_text("half")
            shutil.copytree(Path(temporary).parent, tmp_path / "kept")
            raise Killed
        (tmp_path / "kept").rename(Path(temporary).parent)
    assert len(list(tmp_path.iterdir())) == 2
    RunManifest(str(tmp_path), RUN).write(0)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("name", ["results.json", "curves.png", "history.jsonl", "tensorboard", "checkpoints"])
def test_a_place_that_the_run_could_not_write_is_named_before_it_starts(tmp_path, name):
    RunManifest(str(tmp_path), RUN).write(0)
    if "." in name:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("")
    with raises(ConfigError, name):
        RunManifest(str(tmp_path), RUN)


def test_a_model_whose_checkpoints_were_removed_is_not_replaced_by_another_run(tmp_path):
    RunManifest(str(tmp_path), RUN).write(0)
    (tmp_path / "config.json").write_text("{}")
    with raises(ConfigError, "another run"):
        RunManifest(str(tmp_path), other(seed=1))
    RunManifest(str(tmp_path), RUN)


def test_a_directory_with_other_files_is_refused_and_not_changed(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with raises(ConfigError, "'thesis.tex'"):
        RunManifest(str(tmp_path), RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def fields_of(config, prefix):
    """(name, value) of every setting, including nested ones."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields_of(value, f"{prefix}.{field.name}")
        else:
            yield f"{prefix}.{field.name}", value


@pytest.mark.parametrize("config", [PretrainConfig(), FinetuneConfig(task=ClassificationConfig(), search=True)])
def test_every_setting_not_listed_as_resumable_is_compared(config):
    for name, _ in fields_of(config, "config"):
        before, now = {"config": to_dict(config)}, {"config": to_dict(config)}
        *path, last = name.split(".")
        inner = now
        for part in path:
            inner = inner[part]
        inner[last] = "something else"
        found = {key for key in differences(before, now) if key.startswith(name)}
        assert bool(found) == (name not in RESUMABLE_FIELDS), name


def test_the_list_of_resumable_settings_names_existing_settings():
    known = {
        name
        for config in (
            PretrainConfig(),
            FinetuneConfig(task=ClassificationConfig(), distillation=TaskDistillation()),
            FinetuneConfig(task=EmbeddingsConfig()),
        )
        for name, _ in fields_of(config, "config")
    }
    gone = {"config.train.on_save_error"}  # in the run.json of earlier runs
    assert set(RESUMABLE_FIELDS) - known == {"data_dir", "init", "teacher"} | gone
