"""The program that queries exported models, on models that only echo their inputs."""

import importlib.util
import io
import itertools
import json
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.inference import ask, rest
from bert_tf.server.monitoring import Metrics
from bert_tf.server.servable import RunOptions, Runtime, Servable
from bert_tf.server.status import ServingError
from tests.errors import raises
from tests.inference.servers import sending, serving

INPUTS = {
    "one": {"text": 1},
    "pair": {"text": 1, "second_text": 1},
    "choices": {"context": 1, "choices": 2},
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


def test_an_operation_that_is_missing_is_named_by_the_program_and_the_server(models, tmp_path):
    shutil.copytree(models["one"], tmp_path / "1")
    graph = tmp_path / "1/saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(graph.read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            node.op = "OfAnotherTfText" if node.op == "StringJoin" else node.op
    graph.write_bytes(saved.SerializeToString())
    expected = "needs the operation OfAnotherTfText; install the tensorflow-text of TensorFlow"
    with raises(ValueError, tmp_path / "1", expected):
        ask.Model(str(tmp_path / "1"))
    with raises(ServingError, expected):
        Servable("m", 1, str(tmp_path / "1"), Runtime(RunOptions(), Metrics()))


def test_texts_are_passed_to_a_model_of_one_text(run_ask, models):
    answers = run_ask(models["one"], "a b", "가")
    assert answers == [{"text": text, "joined": text, "count": 1} for text in ("a b", "가")]


def test_inputs_are_passed_by_name_and_lists_element_by_element(run_ask, models):
    (answer,) = run_ask(models["pair"], "--text=a b", "--second_text=c=d")
    assert answer["joined"] == "a b|c=d"
    (answer,) = run_ask(models["choices"], "--choices=x", "--context=a", "--choices=y")
    assert (answer["joined"], answer["choices"]) == ("a|x,y", ["x", "y"])


def test_a_question_about_choices_may_be_left_out(run_ask, models):
    lines = b'{"context": "a b", "choices": ["c"], "question": "d?"}\n{"context": "a b", "choices": ["c"]}\n'
    asked = run_ask(models["asked choices"], given=lines)
    assert [answer["joined"] for answer in asked] == ["a b|c|d?", "a b|c|"]


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
        ["asked choices"],
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


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """Address of a server of the models, each as version 1 of a model whose name has no blank."""
    folder = tmp_path_factory.mktemp("served")
    for name, path in models.items():
        (folder / name.replace(" ", "_")).mkdir()
        (folder / name.replace(" ", "_") / "1").symlink_to(path)
    with serving(folder) as address:
        yield address


ASKED = {
    "texts": ("one", ["a b", "가"], b""),
    "values by name": ("choices", ["--choices=x", "--context=a", "--choices=y"], b""),
    "words": ("tagger", ["--words=st.", "--words=louis"], b""),
    "lines and bodies": (
        "pair",
        [],
        '{"text": "a", "second_text": "", "id": 7}\n{"inputs": {"text": ["가"], "second_text": ["b"]}}\n'
        '{"inputs": {"text": ["a", {"b64": "/w=="}], "second_text": [{"b64": "gA=="}, ""]}}\n'
        '{"inputs": {"texts": ["a"]}}\n{"inputs": {"text": ["a"]}, "signature_name": "x"}\n'.encode(),
    ),
    "digits of numbers": ("nan", ["0.1", "1e-7", "123456789", "3"], b""),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_server_answers_like_the_folder(run_ask, models, server, case):
    name, arguments, given = ASKED[case]
    answers = run_ask(f"{server}/v1/models/{name.replace(' ', '_')}", *arguments, given=given)
    assert answers == run_ask(models[name], *arguments, given=given) != []


def test_a_version_can_be_named(run_ask, server):
    assert run_ask(f"{server}/v1/models/one/versions/1/", "a") == [{"text": "a", "joined": "a", "count": 1}]


def error_of(run_ask, capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        run_ask(*arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 1 and error.count("\n") == 1
    return error


UNKNOWN = {
    "/v1/models/none": "Servable not found: model none; the server has asked_choices, choices, ",
    "/v1/models/one/versions/7": "Servable not found: version 7 of model one; the server has version 1 ",
    "/v1/models/one/labels/x": "model one has no label x",
    "": "not the URL of a model; expected http://HOST:PORT/v1/models/NAME, perhaps with /versions/N or /labels/LABEL",
    "/v1/models/one:predict": "not the URL of a model; expected",
    "/v1/models/one?x=1": "not the URL of a model; expected",
}


@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_model_of_a_server_is_a_line_with_those_that_exist(run_ask, server, capsys, path):
    assert error_of(run_ask, capsys, server + path, "a").startswith(f"ask.py: {server}{path}: {UNKNOWN[path]}")


@pytest.mark.parametrize("path", ["/v1/models/m", "/v1/models/m/labels/x", "", "/v1/models/m:predict"])
@pytest.mark.parametrize("secret", ["user:secret", "secret", "user:sec/ret@secret#", ":secret"])
def test_a_password_in_a_url_is_refused_and_not_shown(run_ask, capsys, secret, path):
    error = error_of(run_ask, capsys, f"http://{secret}@localhost:1{path}", "a")
    assert error.startswith(
        f"ask.py: http://***@localhost:1{path}: a URL with a user or password; expected http://HOST"
    )
    assert "sec" not in error


def test_the_name_of_a_model_may_have_an_at_sign(run_ask, capsys):
    assert "Connection refused" in error_of(run_ask, capsys, "http://127.0.0.1:1/v1/models/a@b", "a")


NAN = {"signature_def": {"serving_default": {
    "inputs": {"text": {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": "-1"}]}}},
    "outputs": {"share": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}]}}},
}}}  # fmt: skip
METADATA = 200, json.dumps({"model_spec": {"version": "1"}, "metadata": {"signature_def": NAN}}).encode()


def predicting(status, body):
    """Answers of a server of the model `m`, those to requests to predict given."""
    return {"/v1/models/m/metadata": METADATA, "/v1/models/m:predict": (status, body)}


FAILURES = {
    "no server": (
        {"/v1/models/m/metadata": None},
        "no answer in HTTP (RemoteDisconnected); REST usually has port 8501",
    ),
    "a token missing": ({"/v1/models/m/metadata": (401, b'{"error": "No token"}')}, "No token; set BERT_TF_TOKEN to"),
    "another server": (
        {"/v1/models/m/metadata": (200, b"<p>\n Hi \xe9")},
        "HTTP 200, '<p> Hi \ufffd'; expected",
    ),
    "another service": ({"/v1/models/m/metadata": (200, b'{"a": 1}')}, "no signatures as from TF Serving"),
    "moved": ({"/v1/models/m/metadata": (301, b"")}, "HTTP 301, ''; expected an answer as from TF Serving's REST API"),
    "busy": (predicting(503, b'{"error": "Too\\n many"}'), "Too many"),
    "an invalid request": (predicting(400, b'{"error": "Bad"}'), "Bad"),
    "a wrong answer": (
        predicting(200, b'{"outputs": {"x": 1}}'),
        'no answer as from TF Serving: {"outputs": {"x": 1}}',
    ),
    "NaN": (predicting(200, b'{"outputs": [NaN]}'), "the model answers nan in 'share'; its weights are damaged"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failing_server_is_a_one_line_error(run_ask, capsys, case):
    answers, message = FAILURES[case]
    with sending(answers) as address:
        error = error_of(run_ask, capsys, f"{address}/v1/models/m", "a")
    assert message in error and error.startswith(("ask.py: http://127.0.0.1", "ask.py: Bad", "ask.py: the model"))


ODD = ["null", "true", "5", '"x"', "[]", "{}", "[[]]", "[null]", '[{"b64": 5}]', "[[1], [1, 2]]", "1e400", "1" * 400]
ODD += ['["x"]', "[true]", "[1.5]", "[[1]]", '{"size": 5}', "[" * 500 + "]" * 500, "9" * 5000]


def parts(value, path=()):
    """Paths of everything in a value from JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from parts(inner, (*path, key))


def with_part(text, path, part):
    """JSON with another text at a path."""
    value = inner = [json.loads(text)]
    for key in (0, *path)[:-1]:
        inner = inner[key]
    inner[(0, *path)[-1]] = "@"
    return json.dumps(value[0]).replace('"@"', part).encode()


@pytest.mark.parametrize("dtype, answer", [("DT_FLOAT", [0.5]), ("DT_STRING", ["x"]), ("DT_INT64", [3])])
def test_no_answer_of_a_server_is_a_stack_trace(run_ask, capsys, monkeypatch, dtype, answer):
    metadata = METADATA[1].decode().replace("DT_FLOAT", dtype)
    bodies = {
        "/v1/models/m/metadata": metadata,
        "/v1/models/m:predict": json.dumps({"outputs": answer}),
        "/v1/models/m": json.dumps({"model_version_status": [{"version": "1", "state": "AVAILABLE"}]}),
        "/page/models.json": json.dumps({"models": [{"name": "m"}]}),
    }
    answers = {path: (200, body.encode()) for path, body in bodies.items()}

    def respond(self, url, body=None):
        return answers[url.removeprefix("http://server")]

    monkeypatch.setattr(rest.RemoteModel, "_response", respond)
    assert run_ask("http://server/v1/models/m", "a") == [{"text": "a", "share": answer[0]}]
    refused = 0
    for changed, body in bodies.items():
        missing = changed in ("/v1/models/m", "/page/models.json")
        for path, odd in itertools.product(parts(json.loads(body)), ODD):
            answers = {name: (200, content.encode()) for name, content in bodies.items()}
            answers[changed] = 200, with_part(body, path, odd)
            if missing:
                answers["/v1/models/m:predict"] = 404, b'{"error": "none"}'
            if changed == "/page/models.json":
                answers["/v1/models/m"] = 404, b'{"error": "none"}'
            try:
                run_ask("http://server/v1/models/m", "a")
            except SystemExit as ended:
                assert ended.code in (1, 2)  # 2 if the model seems to take something else than a text
                refused += 1
            assert capsys.readouterr().err.count("\n") <= 1
    assert refused > 300


def test_a_server_that_is_silent_or_gone_is_a_one_line_error(run_ask, capsys, monkeypatch):
    monkeypatch.setattr(rest, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/models/m"
        assert error_of(run_ask, capsys, address, "a") == f"ask.py: {address}: no answer in 0.1 s\n"
    assert error_of(run_ask, capsys, address, "a") == f"ask.py: {address}: Connection refused\n"


def test_the_token_is_sent_and_other_servers_do_not_get_it(run_ask, capsys, monkeypatch):
    seen = []

    def metadata(headers):
        seen.append(headers["Authorization"])
        return METADATA

    answers = predicting(200, b'{"outputs": [0.5]}') | {"/v1/models/m/metadata": metadata}
    monkeypatch.setenv(rest.TOKEN, "secret\n")
    with sending(answers) as address:
        assert run_ask(f"{address}/v1/models/m", "a") == [{"text": "a", "share": 0.5}]
    assert seen == ["Bearer secret"]
    monkeypatch.setenv(rest.TOKEN, "a\nb")
    assert "BERT_TF_TOKEN has a character" in error_of(run_ask, capsys, f"{address}/v1/models/m", "a")


@pytest.mark.parametrize("program", ["as a file", "copied", "as a module"])
def test_a_server_is_asked_without_tensorflow_or_numpy(tmp_path, program):
    path, unwanted = ask.__file__, {"bert_tf", "numpy", "tensorflow"}
    if program == "copied":
        path = shutil.copy(path, tmp_path)
        done = subprocess.run([sys.executable, "-I", path, "http://localhost:1"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"ask.py: {tmp_path}: no rest.py; copy it to this folder, too\n")
        shutil.copy(rest.__file__, tmp_path)
    run = f"runpy.run_path({path!r}"
    if program == "as a module":
        run, unwanted = f"runpy.run_module({ask.__name__!r}", {"numpy", "tensorflow"}
    program = f"import runpy, sys; {run}, run_name='__main__'); assert not {unwanted} & sys.modules.keys()"
    with sending(predicting(200, b'{"outputs": [0.5]}')) as address:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program, f"{address}/v1/models/m", "a"], capture_output=True, text=True
        )
    assert (done.returncode, done.stdout) == (0, '{"text": "a", "share": 0.5}\n'), done.stderr
