"""Every setting of both training programs with values of every wrong kind, in the config file and as a flag."""

import ast
import dataclasses
import functools
import itertools
import math
import sys

import pytest
import tensorflow as tf
from absl import flags

from bert_tf import app
from bert_tf.config import FinetuneConfig, PhaseConfig, PretrainConfig, TrainConfig, tasks
from bert_tf.errors import ConfigError
from bert_tf.training import strategy
from tests.hostile import BIG, HALF, HUGE, Odd, nested

NAMES = [*(made.__name__ for made in tasks.TaskConfig.of_tasks.values()), "TagsConfig", "TaskConfig"]


def pretraining():
    return PretrainConfig(train=TrainConfig(phases=(PhaseConfig(share=0.5), PhaseConfig(share=0.5))))


def fine_tuning(name):
    return FinetuneConfig(task=getattr(tasks, name)())


MAKE = {"pretraining": pretraining} | {name: functools.partial(fine_tuning, name) for name in NAMES}


# Wrong for every field, whatever its type.
WRONG = [math.nan, math.inf, -math.inf, 1j, b"16", {}, Odd(), [None], ["16"], nested(100_000), "a\0b", HALF]
# Wrong for most.
DOUBTFUL = [0, -1, 1.5, "16", "", (), None, BIG, HUGE, True, "x" * 100_000]


def fields_of(value, path=""):
    """(path, its field) of every setting of a config, in nested ones and in tuples of them, too."""
    for field in dataclasses.fields(value):
        inner, where = getattr(value, field.name), f"{path}.{field.name}"
        yield where, field
        if dataclasses.is_dataclass(inner):
            yield from fields_of(inner, where)
        elif isinstance(inner, tuple) and inner and dataclasses.is_dataclass(inner[0]):
            yield from itertools.chain(*(fields_of(one, f"{where}[{number}]") for number, one in enumerate(inner)))


def with_value(made, path, value):
    """The config with another value of a setting, as a config file would assign it."""
    exec(f"made{path} = value", {"made": made, "value": value})
    return made


def computed(made):
    """What a program does with its settings first: they must have been checked by then."""
    return strategy.create("one_device", "", made.train)


@pytest.mark.parametrize("name", MAKE)
def test_any_value_of_any_setting_is_accepted_or_refused_in_one_line(name):
    tried = 0
    for path, field in fields_of(MAKE[name]()):
        for value in [*WRONG, *DOUBTFUL]:
            made = with_value(MAKE[name](), path, value)
            try:
                made.check()
                if name == "pretraining":
                    made.model.check()  # by the program, with the size of the vocabulary
            except ConfigError as error:
                assert "\n" not in str(error) and len(str(error)) < 1100
                continue
            finally:
                tried += 1
            # A list fits a tuple, a whole number a float; only a task may be anything.
            fits = any(value is wrong for wrong in DOUBTFUL) or (value == ["16"] and "tuple[str" in str(field.type))
            assert fits or path == ".task", (path, value)
            assert isinstance(computed(made), tf.distribute.Strategy)
    assert tried > 500


@pytest.fixture
def program(monkeypatch, tmp_path, capsys):
    """A function: the status and the line of a program with this config and these flags."""
    monkeypatch.setattr(app.app, "run", lambda guarded, flags_parser: guarded(flags_parser(sys.argv)))

    def run(made, *arguments):
        path = tmp_path / "config.py"
        monkeypatch.setitem(sys.modules, "made", made)
        path.write_text("import sys\ndef get_config():\n    return sys.modules['made']")
        monkeypatch.setattr(app.flags, "FLAGS", flags.FlagValues())
        monkeypatch.setattr(sys, "argv", ["program", f"--config={path}", *arguments])
        read = app.config_flag("help")
        try:
            app.run(lambda _: computed(read()))
            status = 0
        except SystemExit as done:
            status = done.code
        return status, capsys.readouterr().err

    return run


FLAGS = [
    "0",
    "-1",
    "1.5",
    "nan",
    "-inf",
    "16x",
    "",
    "[]",
    "()",
    "{}",
    "None",
    "True",
    "1" + "0" * 400,
    "1" + "0" * 5000,
]
FLAGS += ["x" * 100_000, "(" * 10_000, "[None]", "('16',)", "(-1,)", "(nan,)", "'", "a b", "build"]


@pytest.mark.parametrize("name", MAKE)
def test_any_flag_for_any_setting_is_accepted_or_one_line_with_status_2(program, name):
    for path, _ in fields_of(MAKE[name]()):
        if path.startswith(".task") or name in ("pretraining", NAMES[0]):
            for value in FLAGS:
                status, line = program(MAKE[name](), f"--config{path}={value}")
                if status:
                    assert status == 2 and line.startswith("bert_tf: error: ") and line.count("\n") == 1, (path, value)
                    assert len(line) < 1200


@pytest.mark.parametrize("name", MAKE)
def test_the_written_defaults_are_accepted_as_flags(program, name):
    for path, field in fields_of(MAKE[name]()):
        value = eval(f"made{path}", {"made": MAKE[name]()})
        if value is not None and not dataclasses.is_dataclass(value) and "[" not in path and path != ".train.phases":
            assert str(value) == value or ast.literal_eval(str(value)) == value
            assert program(MAKE[name](), f"--config{path}={value}") == (0, ""), (path, field)


PATHS = {
    "train.bach_size": "train has no field 'bach_size'; did you mean 'batch_size'?",
    "trian.steps": "PretrainConfig has no field 'trian'; did you mean 'train'?",
    "train.bach_siz.x": "train has no field 'bach_siz'; did you mean 'batch_size'?",
    "train": "expected one of its fields, such as --config.train.recipe",
    "model": "expected one of its fields, such as --config.model.vocab_size",
    "train.phases[0]": "expected one of its fields, such as --config.train.phases[0].share",
    "train.phases[0].shre": "train.phases[0] has no field 'shre'; did you mean 'share'?",
    "train.phases[7].share": "train.phases[7]: out of range; the config file has fewer entries (the first is [0])",
    "train.phases[x].share": "expected the name of a field, such as --config.input",
    "train.steps.x": "train.steps has no fields",
    "tokenizer.vocab[0]": "tokenizer.vocab has no entries",
    "": "expected the name of a field, such as --config.input",
    "train..steps": "expected the name of a field, such as --config.input",
}


@pytest.mark.parametrize("path", PATHS)
def test_a_flag_for_a_setting_that_is_not_there_gets_a_suggestion(program, path):
    status, line = program(pretraining(), f"--config.{path}=1")
    assert status == 2 and line.startswith(f"bert_tf: error: --config.{path}: {PATHS[path]}")
    assert "allowed are" not in line and "dataclass" not in line


def test_a_setting_that_computes_with_others_is_checked_before(program):
    for wrong in ("accumulation=0", "batch_size=-4", "phases=5", "phases=(1,2)"):
        status, line = program(pretraining(), f"--config.train.{wrong}")
        assert status == 2 and line.startswith(f"bert_tf: error: train.{wrong.split('=')[0]}")
    made = pretraining()
    made.train.batch_size = "16"
    status, line = program(made)
    assert status == 2 and line.startswith("bert_tf: error: train.batch_size is '16'; expected a whole number from 1")
    made = FinetuneConfig(task=tasks.ClassificationConfig(max_length="16"))
    assert program(made)[1].startswith("bert_tf: error: task.max_length is '16'; expected a whole number from 8")
