import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from absl import flags

from bert_tf import app
from bert_tf.errors import BertTfError, ConfigError, DataError
from tests.errors import raises


def outcome(monkeypatch, capsys, error=None, argv=("program",)):
    """(exit status, standard error) of a program whose main raises `error`."""

    def main(_):
        if error:
            raise error

    # app.run of absl parses the process's flags, which are pytest's here.
    monkeypatch.setattr(app.app, "run", lambda guarded, flags_parser: guarded(list(argv)))
    try:
        app.run(main)
        status = 0
    except SystemExit as done:
        status = done.code
    return status, capsys.readouterr().err


CASES = {
    "config": (ConfigError("train.steps is 0"), 2, "train.steps is 0"),
    "data": (DataError("a.tsv:3: 1 columns;\n expected 2"), 1, "a.tsv:3: 1 columns; expected 2"),
    "other": (BertTfError("no"), 1, "no"),
    "full disk": (OSError(28, "No space left on device", "m/x"), 1, "m/x: No space left on device"),
    "full disk, no name": (OSError(28, "No space left on device"), 1, "system: No space left on device"),
    "missing": (FileNotFoundError(2, "No such file or directory", "x"), 1, "x: No such file or directory"),
    "TensorFlow, full disk": (tf.errors.ResourceExhaustedError(None, None, "m/y; disk full"), 1, "m/y; disk full"),
    "TensorFlow, full disk, long path": (
        tf.errors.ResourceExhaustedError(
            None, None, f"{{{{function_node __wrapped__SaveV2}}}} {'/d' * 300}; No space left on device [Op:SaveV2]"
        ),
        1,
        f"{'/d' * 300}: No space left on device",
    ),
    "TensorFlow, too large a file": (
        tf.errors.OutOfRangeError(None, None, "m/x; File too large"),
        1,
        "m/x: File too large",
    ),
    "TensorFlow, in a graph": (
        tf.errors.NotFoundError(
            None, None, "Graph execution error:\n\nDetected at\n  File\n m/z; no file\n\t [[{{node"
        ),
        1,
        "m/z; no file",
    ),
    "no memory": (
        MemoryError("cannot allocate 8 GiB"),
        1,
        "not enough memory (cannot allocate 8 GiB); use a smaller model, batch or length",
    ),
    "TensorFlow, damaged": (tf.errors.DataLossError(None, None, "corrupted"), 1, "corrupted"),
    "another worker was killed": (
        tf.errors.UnavailableError(None, None, "Collective ops is aborted by: recvmsg:reset\nMore:\n\t [[{{node"),
        1,
        "a worker of this run was lost (recvmsg:reset); start all of them again to resume",
    ),
    "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted"),
    "a name of bytes": (
        UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"),
        1,
        "'a\\udcff': not UTF-8; rename the file, or correct the text",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_of_the_user_becomes_one_line_and_a_status(monkeypatch, capsys, case):
    error, status, line = CASES[case]
    kind = "" if status == 130 else "error: "  # an interruption is not an error
    assert outcome(monkeypatch, capsys, error) == (status, f"bert_tf: {kind}{line}\n")


def test_a_defect_keeps_its_stack_trace(monkeypatch, capsys):
    with pytest.raises(ZeroDivisionError):
        outcome(monkeypatch, capsys, ZeroDivisionError())
    with pytest.raises(tf.errors.InvalidArgumentError):
        outcome(monkeypatch, capsys, tf.errors.InvalidArgumentError(None, None, "shapes"))


# What is imported first, and Ctrl-C in place of what takes seconds.
INTERRUPTED = """
from bert_tf import quiet
def import_tensorflow():
    raise KeyboardInterrupt
quiet.import_tensorflow = import_tensorflow
import bert_tf.app
"""


def test_ctrl_c_while_modules_are_imported_is_one_line():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT  # 130 in a shell
    assert done.stderr == "bert_tf: interrupted\n"


def test_success_is_silent(monkeypatch, capsys):
    assert outcome(monkeypatch, capsys) == (0, "")


def test_an_argument_that_is_not_a_flag_is_named(monkeypatch, capsys):
    status, line = outcome(monkeypatch, capsys, argv=("program", "train.txt"))
    assert status == 2
    assert line == "bert_tf: error: unexpected argument 'train.txt': all arguments are flags, --name=value\n"


def test_nan_and_names_of_any_length_are_refused_as_flags(monkeypatch, capsys):
    monkeypatch.setattr(app.flags, "FLAGS", values := flags.FlagValues())
    flags.DEFINE_float("share", 0.1, "", lower_bound=0.0, upper_bound=1.0, flag_values=values)
    expected = {
        "--share=nan": "--share=nan: expected a finite number",
        "--" + "x" * 100_000: f"--{'x' * 38}...: no flag has such a name; --help lists the flags",
    }
    for flag, line in expected.items():
        with pytest.raises(SystemExit, match="2"):
            app._parse(["program", flag])
        assert capsys.readouterr().err == f"bert_tf: error: {line}\n"


def test_a_tilde_in_a_flag_is_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(app.flags, "FLAGS", values := flags.FlagValues())
    for name in ("output", "text"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    app._parse(["program", "--output=~/models", "--text=a ~/b ~"])
    assert (values.output, values.text) == ("/home/me/models", "a ~/b ~")


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--epochs=3", "no flag is called --epochs; did you mean --config.train.epochs?"),
        ("--lr=1e-4", "no flag is called --lr; did you mean --config.train.learning_rate?"),
        ("--max_length=64", "no flag is called --max_length; did you mean --config.task.max_length?"),
        ("--gpu=0", "no flag is called --gpu; CUDA_VISIBLE_DEVICES=0 before the command chooses a GPU"),
        ("--nosuchthing=1", "Unknown command line flag 'nosuchthing'; --help lists the flags"),
        ("--config=b.py", "--config=configs/finetune/reviews.py and --config=b.py: expected one config"),
    ],
)
def test_a_flag_of_another_program_gets_a_hint(monkeypatch, capsys, flag, hint):
    argv = ["program", "--config=configs/finetune/reviews.py", flag]
    monkeypatch.chdir(Path(__file__).parents[1])
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(app.flags, "FLAGS", flags.FlagValues())
    app.config_flag("")
    with pytest.raises(SystemExit, match="2"):
        app._parse(argv)
    assert hint in capsys.readouterr().err


def test_strategy_flags_have_defaults():
    values = flags.FlagValues()
    with pytest.MonkeyPatch.context() as patch:
        define = flags.DEFINE_string
        patch.setattr(app.flags, "DEFINE_string", lambda *args: define(*args, flag_values=values))
        read = app.strategy_flags()
    values(["program", "--strategy=mirrored"])
    assert read() == ("mirrored", "")


def test_no_program_loads_tensorflow_before_silencing_its_startup_messages():
    files = Path(app.__file__).parent.glob("*.py")
    programs = [path for path in files if "from bert_tf.app import" in path.read_text()]
    assert len(programs) > 10
    light = ("bert_tf.errors", "bert_tf.inference.session")
    for path in programs:
        names = []
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names.append(node.module)
            elif isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
        # Without bert_tf.app at the top, a function imports it before the modules that it needs itself.
        before = names[: names.index("bert_tf.app")] if "bert_tf.app" in names else names
        packages = {name.partition(".")[0] for name in before if name not in light}
        assert packages <= {"absl", "ml_collections", *sys.stdlib_module_names}, path
    loaded = f"import sys, {', '.join(light)}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded]).returncode == 0


CONFIG_ERRORS = {
    "def get_config(:\n  pass": "1: SyntaxError: invalid syntax",
    "\n\nimport no_such_module": "3: ModuleNotFoundError: No module named 'no_such_module'",
    "def get_config():\n  x = {}\n  return x['k']": "3: KeyError: k",
    "def get_config():\n  return get_config()": "2: RecursionError: maximum recursion depth exceeded",
    "def get_config():\n  assert False": "2: AssertionError",
    "raise ValueError('one\\ntwo')": "1: ValueError: one two",
    "def get_config():\n  open('/no/such')": "2: FileNotFoundError: [Errno 2] No such file or directory: '/no/such'",
    "import sys\nsys.exit(3)": "2: SystemExit: 3",
    "class Own(BaseException): pass\nraise Own('a')": "2: Own: a",
    "raise GeneratorExit": "1: GeneratorExit",
    "raise SyntaxError": "1: SyntaxError",
    "class Own:\n  def __str__(self): return 1 / 0\nraise KeyError(Own())": "3: KeyError",
    "get_config = 1": " 'int' object is not callable",
    "class Own(Exception):\n  def __str__(self): return 1 / 0\nraise Own": "3: Own",
    "class Own:\n  def __repr__(self): return 1 / 0\ndef get_config(): return Own()": " get_config() returned an",
    "def get_config(size): pass": " its get_config takes an argument: --config={path}:ARGUMENT",
    "x = 1": " module 'config_file' has no attribute 'get_config'",
    "def get_config(): return {1: 2}": " get_config() returned {{1: 2}}; expected a PretrainConfig or a FinetuneConfig",
    "def get_config(): return None": " get_config() returned None; expected a PretrainConfig or a FinetuneConfig",
    "from bert_tf.config import *\ndef get_config():\n  return BertConfig.from_name('huge')": "3: model 'huge' is",
}


def test_the_message_of_an_error_may_be_long(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("raise ValueError('x' * 1_000_000)")  # where a search in it took quadratic time: hours
    with pytest.raises(ConfigError) as caught:
        app._ConfigFile().parse(str(path))
    assert str(caught.value).startswith(f"{path}:1: ValueError: xxx") and len(str(caught.value)) < 1100


@pytest.mark.parametrize("text", CONFIG_ERRORS)
def test_whatever_goes_wrong_in_a_config_file_is_one_line_with_the_line_of_the_file(tmp_path, text):
    path = tmp_path / "a.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        app._ConfigFile().parse(str(path))
    assert str(caught.value).replace("\n", " ").startswith(f"{path}:" + CONFIG_ERRORS[text].format(path=path))


def test_an_argument_that_a_config_file_does_not_take_is_refused(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("def get_config(): pass")
    with raises(ConfigError, "a.py", "get_config"):
        app._ConfigFile().parse(f"{path}:mrpc")
