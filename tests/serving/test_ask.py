"""The program that queries exported models, on models that only echo their inputs."""

import importlib.util
import io
import json
import pathlib
import sys

import pytest
import tensorflow as tf

from bert_tf.serving import ask

INPUTS = {
    "one": {"text": 1},
    "pair": {"text": 1, "second_text": 1},
    "choices": {"context": 1, "choices": 2},  # as in exports without questions
    "asked choices": {"context": 1, "choices": 2, "question": 1},
    "tagger": {"text": 1},
    "nan": {"text": 1},
}


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
        signatures = {"serving_default": module.serve}
        if name == "tagger":
            module.words = Echo({"words": 2}).serve
            signatures["words"] = module.words
        if name == "nan":
            module.share = tf.function(
                lambda text: {"share": tf.strings.to_number(text)}, [tf.TensorSpec([None], tf.string, name="text")]
            )
            signatures["serving_default"] = module.share
        tf.saved_model.save(module, paths[name], signatures=signatures)
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


def test_a_question_about_choices_may_be_left_out_and_older_exports_read_it_after_the_context(run_ask, models):
    lines = b'{"context": "a b", "choices": ["c"], "question": "d?"}\n{"context": "a b", "choices": ["c"]}\n'
    asked = run_ask(models["asked choices"], given=lines)
    assert [answer["joined"] for answer in asked] == ["a b|c|d?", "a b|c|"]
    older = run_ask(models["choices"], given=lines)
    assert [answer["joined"] for answer in older] == ["a b d?|c", "a b|c"]
    body = {"inputs": {"context": ["a", ""], "choices": [["c"], ["e"]], "question": ["d?", "f?"]}}
    (answer,) = run_ask(models["choices"], given=json.dumps(body).encode())
    assert answer["outputs"]["joined"] == ["a d?|c", "f?|e"]


def test_words_are_not_split_again(run_ask, models):
    (answer,) = run_ask(models["tagger"], "--words=st.", "--words=louis")
    assert (answer["joined"], answer["words"]) == ("st.,louis", ["st.", "louis"])
    given = b'{"text": "st. louis", "words": ["st.", "louis"]}\n{"text": "st. louis"}\n'
    assert [answer["joined"] for answer in run_ask(models["tagger"], given=given)] == ["st.,louis", "st. louis"]
    asked = run_ask(models["tagger"], "words", "words=a")  # texts
    assert [answer["joined"] for answer in asked] == ["words", "words=a"]


BAD_BODIES = {
    "a missing input": ({}, "inputs named nothing; the signature 'serving_default' takes 'text'"),
    "null": ({"text": None}, "'text' is null; expected a list of string values, one for each row"),
    "one text": ({"text": "a"}, "'text' is \"a\"; expected a list of string values"),
    "a number": ({"text": ["a", 5]}, "'text' is [\"a\", 5]; expected a list of string values"),
    "a list too deep": ({"text": [["a"], ["b"]]}, "expected a list of string values"),
    "lists of different lengths": ({"text": [["a"], ["b", "c"]]}, "expected a list of string values"),
    "no base64": ({"text": [{"b64": "?"}]}, "expected a list of string values"),
    "base64 of a number": ({"text": [{"b64": 5}]}, "expected a list of string values"),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_invalid_bodies_are_answered_with_an_error(run_ask, models, case):
    inputs, message = BAD_BODIES[case]
    (answer,) = run_ask(models["one"], given=json.dumps({"inputs": inputs}).encode())
    assert message in answer["error"] and "\n" not in answer["error"]


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
    "null": (["one"], b'{"text": null}\n', 1, "line 1: 'text' is null; expected one text in UTF-8"),
    "an object": (["one"], b'{"text": {"b64": "YQ=="}}\n', 1, "line 1: 'text' is {\"b64\""),
    "a list in a list": (
        ["choices"],
        b'{"context": "a", "choices": ["b", ["c"]]}\n',
        1,
        'line 1: \'choices\' is ["b", ["c"]]; expected a list of texts',
    ),
    "an empty list": (["choices"], b'{"context": "a", "choices": []}\n', 1, "line 1: 'choices' is []; expected a list"),
    "a question that is no text": (
        ["choices"],
        b'{"context": "a", "choices": ["b"], "question": null}\n',
        1,
        "line 1: 'question' is null; expected one text",
    ),
    "NaN": (["one"], b'{"text": "a", "id": NaN}\n', 1, "line 1: not JSON in UTF-8 (Out of range float values"),
    "an infinite number": (["one"], b'{"text": "a", "id": 1e999}\n', 1, "line 1: not JSON in UTF-8 (Out of range"),
    "a number of 5000 digits": (["one"], b'{"text": ' + b"1" * 5000 + b"}\n", 1, "line 1: not JSON in UTF-8 (Exceeds"),
    "lists nested too deep": (["one"], b"[" * 100_000, 1, "line 1: not JSON in UTF-8 ("),
    "a long line": (["one"], b'{"text": [' + b'"a", ' * 100_000 + b'"a"]}\n', 1, 'line 1: \'text\' is ["a", "a",'),
    "inputs that are no object": (["one"], b'{"inputs": ["a"]}\n', 1, 'line 1: no \'text\' in {"inputs": ["a"]}; the'),
    "an argument that is not UTF-8": (["one", "\udcff"], b"", 1, "'text' is \"\\udcff\"; expected one text in UTF-8"),
    "no words": (["tagger"], b'{"words": ["a", 5]}\n', 1, "line 1: 'words' is [\"a\", 5]; expected a list of texts"),
    "neither words nor text": (["tagger"], b'{"Words": ["a"]}\n', 1, 'line 1: no \'text\' in {"Words": ["a"]}; the'),
    "words that are also texts": (
        ["tagger", "--words=a", "--text=b"],
        b"",
        2,
        "unexpected '--text=b'; the model takes",
    ),
    "NaN as an answer": (["nan", "NaN"], b"", 1, "the model answers nan in 'share'; its weights are damaged"),
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
