"""The program that queries exported models, on models that only echo their inputs."""

import importlib.util
import io
import json
import pathlib
import sys

import pytest
import tensorflow as tf

from bert_tf.serving import ask

INPUTS = {"one": {"text": 1}, "pair": {"text": 1, "second_text": 1}, "choices": {"context": 1, "choices": 2}}


class Echo(tf.Module):
    """Joins its inputs.

    Args:
        ranks: dict name of an input -> its rank.
    """

    def __init__(self, ranks):
        super().__init__()

        def serve(*values):
            flat = [
                tf.strings.reduce_join(value, 1, separator=",") if value.shape.rank > 1 else value for value in values
            ]
            return {"joined": tf.strings.join(flat, "|"), "count": tf.fill([tf.size(flat[0])], len(flat))}

        specs = [tf.TensorSpec([None] * rank, tf.string, name=name) for name, rank in ranks.items()]
        self.serve = tf.function(serve, input_signature=specs)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Dict name -> folder of an exported model."""
    paths = {name: str(tmp_path_factory.mktemp(name)) for name in INPUTS}
    for name, ranks in INPUTS.items():
        module = Echo(ranks)
        tf.saved_model.save(module, paths[name], signatures={"serving_default": module.serve})
    return paths


@pytest.fixture
def run_ask(monkeypatch, capsys):
    """A function that runs the program and returns its answers, one dict per line."""

    def run(*arguments, given=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        ask.main(*arguments)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_texts_are_passed_to_a_model_of_one_text(run_ask, models):
    answers = run_ask(models["one"], "a b", "가")
    assert answers == [{"text": text, "joined": text, "count": 1} for text in ("a b", "가")]


def test_inputs_are_passed_by_name_and_lists_element_by_element(run_ask, models):
    (answer,) = run_ask(models["pair"], "--text=a b", "--second_text=c=d")
    assert answer["joined"] == "a b|c=d"
    (answer,) = run_ask(models["choices"], "--choices=x", "--context=a", "--choices=y")
    assert (answer["joined"], answer["choices"]) == ("a|x,y", ["x", "y"])


def test_json_lines_are_answered_with_their_other_fields(run_ask, models):
    given = '\ufeff{"text": "a", "second_text": "", "id": 7}\n\n{"second_text": "c", "text": "가"}\n'
    answers = run_ask(models["pair"], given=given.encode())
    assert [answer["joined"] for answer in answers] == ["a|", "가|c"]
    assert (answers[0]["id"], answers[0]["second_text"]) == (7, "")


WRONG = {
    "nothing": ([], b"", 2, "no model; name the folder of an exported version"),
    "no such folder": (["/nowhere/1", "a"], b"", 1, "/nowhere/1: no exported model"),
    "an unknown name": (
        ["pair", "--text=a", "c"],
        b"",
        2,
        "unexpected 'c'; the model takes --second_text=..., --text=",
    ),
    "a name too few": (["pair", "--text=a"], b"", 2, "no --second_text=...; the model takes second_text, text"),
    "a name twice": (["one", "--text=a", "--text=b"], b"", 2, "--text is given 2 times; the model takes one text"),
    "a text and a name": (["one", "a", "--text=b"], b"", 2, "unexpected 'a'; the model takes --text=..."),
    "a field too few": (
        ["pair"],
        b'\n{"text": "a"}\n',
        1,
        'line 2: no \'second_text\' in {"text": "a"}; the model takes',
    ),
    "a body by row": (["one"], b'{"instances": [{"text": "a"}]}\n', 1, "line 1: a body in row format; expected column"),
    "a signature": (
        ["one"],
        b'{"text": "a", "signature_name": "tokens"}\n',
        1,
        "line 1: 'signature_name' is for bodies",
    ),
    "no JSON": (["one"], b'{"text": "a"}\na\n', 1, "line 2: not JSON in UTF-8 (Expecting value"),
    "no UTF-8": (["one"], b'{"text": "\xff"}\n', 1, "line 1: not JSON in UTF-8 ('utf-8' codec"),
    "no object": (["one"], b'["a"]\n', 1, 'line 1: ["a"]; expected an object'),
    "a number": (["one"], b'{"text": 5}\n', 1, "line 1: 'text' is 5; expected one text"),
    "a list": (["one"], b'{"text": ["a"]}\n', 1, "line 1: 'text' is [\"a\"]; expected one text"),
    "no list": (
        ["choices"],
        b'{"context": "a", "choices": "b"}\n',
        1,
        "line 1: 'choices' is \"b\"; expected a list of texts",
    ),
    "half a character": (["one"], b'{"text": "a", "id": "\\ud800"}\n', 1, "line 1: not JSON in UTF-8 ('utf-8' codec"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_requests_are_one_line_errors(run_ask, models, capsys, case):
    arguments, given, status, message = WRONG[case]
    with pytest.raises(SystemExit) as ended:
        run_ask(*(models.get(argument, argument) for argument in arguments), given=given)
    errors = capsys.readouterr().err
    assert ended.value.code == status
    assert errors.startswith(f"ask.py: {message}") and errors.count("\n") == 1


def test_no_module_next_to_the_program_shadows_an_import_of_tensorflow():
    # A program run by its path has its folder first on sys.path.
    folder = pathlib.Path(ask.__file__).parent
    names = {path.stem for path in folder.iterdir()} - {"__init__", "__pycache__"}
    assert "ask" in names
    assert not [name for name in names if importlib.util.find_spec(name)]
