"""`predict --server`: rows through an exported model on a server."""

import json
import os

import pytest

from bert_tf.errors import DataError
from bert_tf.inference import predictions, rest
from bert_tf.inference.card import CARD, EXTRA
from bert_tf.inference.predictions import ServerClient
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from tests.errors import raises
from tests.inference.exports import (
    TASKS,
    by_predict,
    check_same,
    examples_of,
    of_kind,
    write_rows,
)
from tests.inference.servers import serving


@pytest.fixture(scope="module")
def single():
    """A classifier with its model directory, as version 1 of `served`."""
    return of_kind()


@pytest.fixture(scope="module")
def url(single):
    with serving(os.path.dirname(single.path)) as address:
        yield f"{address}/v1/models/served"


def read(task, path):
    """The examples of a file."""
    return Source(task.data, str(path), task.example).examples(ReadReport(), "test", labelled=False)


def predicted(programs, folder, name, *arguments):
    """Text of the file that predict writes with these arguments."""
    programs.succeed("predict", *arguments, f"--output={folder}/{name}")
    return (folder / name).read_text()


def test_the_files_equal_those_of_the_model_directory(programs, single, url, tmp_path):
    write_rows(tmp_path / "rows.jsonl", "one text", 60)
    data, folder = f"--data_dir={tmp_path}/rows.jsonl", os.path.dirname(single.path)
    server = [f"--server={url}", f"--export_dir={folder}", "--batch_size=9", data]
    model = [f"--model_dir={os.path.dirname(folder)}/model", data]
    found, expected = (
        [json.loads(line) for line in predicted(programs, tmp_path, f"{way[0][2]}.jsonl", *way).splitlines()]
        for way in (server, model)
    )
    assert len(expected) == 67 and len({str(one["probabilities"]) for one in expected}) > 40
    check_same(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_the_answers_of_every_task_equal_those_of_predict(kind, tmp_path):
    served = of_kind(kind)
    write_rows(tmp_path / "rows.jsonl", kind, 40)
    with serving(os.path.dirname(served.path)) as address:
        server = ServerClient(f"{address}/v1/models/served", served.path)
        server.task.data = served.task.data
        source = read(server.task, tmp_path / "rows.jsonl")
        found = [one for _, one in server.predicting(source, 16)]
    expected = by_predict(served, read(served.task, tmp_path / "rows.jsonl"))
    assert len(expected) == 47
    check_same(json.loads(json.dumps(found, default=dict)), json.loads(json.dumps(expected, default=dict)))


def test_rows_keep_their_order_in_windows_and_requests(single, url, monkeypatch):
    monkeypatch.setattr(predictions, "_WINDOW", 20)
    texts = ["the good " * (row * 7 % 10) + "a" * row for row in range(50)]
    pairs = list(ServerClient(url, single.path).predicting(iter(examples_of(texts)), 3))
    assert [example.texts[0] for example, _ in pairs] == texts
    check_same([one for _, one in pairs], by_predict(single, examples_of(texts)))


@pytest.fixture
def failing(monkeypatch):
    """Function that makes the next requests fail with the given errors."""
    answer = rest.RemoteModel._run

    def fail(*errors):
        left = list(errors)
        monkeypatch.setattr(
            rest.RemoteModel, "_run", lambda *arguments: throw(left.pop(0)) if left else answer(*arguments)
        )

    def throw(error):
        raise error

    monkeypatch.setattr(predictions, "_PAUSES", (0, 0))
    return fail


def test_a_server_that_is_busy_or_restarts_is_asked_again(single, url, failing):
    server, examples = ServerClient(url, single.path), examples_of(["a", "b"])
    failing(rest.ServerError("busy", True), rest.ServerError("gone", True))
    check_same([one for _, one in server.predicting(examples, 2)], by_predict(single, examples))


@pytest.mark.parametrize(
    "errors, message",
    [
        ([rest.ServerError("busy", True)] * 3, "^busy$"),
        ([rest.ServerError("no such version")], "^no such version$"),
        ([ValueError("Too many rows")], "^rows:1 and rows of similar length: the model failed: Too many rows$"),
    ],
)
def test_other_failures_end_it(single, url, failing, errors, message):
    failing(*errors)
    with pytest.raises(DataError, match=message):
        list(ServerClient(url, single.path).predicting(examples_of(["a", "b"]), 2))


def test_a_failure_leaves_no_file(programs, single, url, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"sentence": "a"}\n{"sentense": "b"}\n')
    done = programs(
        "predict",
        f"--server={url}",
        f"--export_dir={single.path}",
        f"--data_dir={tmp_path}/rows.jsonl",
        f"--output={tmp_path}/x.jsonl",
    )
    assert done.status == 1 and "rows.jsonl:2" in done.error_line
    assert os.listdir(tmp_path) == ["rows.jsonl"]


def test_all_requests_go_to_the_version_found_at_first(single, url, monkeypatch):
    seen, answer = [], rest.RemoteModel._response
    monkeypatch.setattr(
        rest.RemoteModel, "_response", lambda self, url, *body: seen.append(url) or answer(self, url, *body)
    )
    list(ServerClient(url, os.path.dirname(single.path)).predicting(examples_of(["a"]), 2))
    assert seen == [f"{url}/metadata", f"{url}/versions/1:predict"]


def folder_with(single, tmp_path, change):
    """A copy of the export's description, without the model, in which `change` was called with the card."""
    extra = tmp_path / "1" / EXTRA
    extra.mkdir(parents=True)
    for name in (CARD, "vocab.txt"):
        (extra / name).write_text(open(f"{single.path}/{EXTRA}/{name}").read())  # noqa: SIM115
    card = json.loads((extra / CARD).read_text())
    change(card)
    (extra / CARD).write_text(json.dumps(card))
    return str(tmp_path)


def test_the_folder_needs_no_model(single, url, tmp_path):
    folder = folder_with(single, tmp_path, lambda card: None)
    check_same(
        [one for _, one in ServerClient(url, folder).predicting(examples_of(["a"]), 2)],
        by_predict(single, examples_of(["a"])),
    )


OTHERS = {
    "inputs": (
        lambda card: card["signatures"]["serving_default"]["inputs"].update(second_text=0),
        "the server's model has the inputs text; expected those of --export_dir, second_text, text: the same model",
    ),
    "outputs": (
        lambda card: card["signatures"]["serving_default"]["outputs"].pop("label"),
        "the server's model has the outputs label, labels, probabilities; expected",
    ),
    "labels": (
        lambda card: card["task"]["settings"].update(labels=["positive", "negative"]),
        "the server's model has the labels negative, positive; expected those of --export_dir, positive, negative",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_the_export_of_another_model_is_refused(single, url, tmp_path, case):
    change, message = OTHERS[case]
    folder = folder_with(single, tmp_path, change)
    with pytest.raises(DataError, match=message):
        list(ServerClient(url, folder).predicting(examples_of(["a"]), 2))


def test_an_export_without_the_version_of_the_server_is_refused(url, tmp_path):
    with raises(DataError, f"{tmp_path}/1", "assets.extra/model_card.json", "version 1"):
        ServerClient(url, str(tmp_path))


FLAGS = {
    "no export": (["--server=URL"], 2, "--server needs --export_dir"),
    "both": (["--server=URL", "--export_dir=e", "--model_dir=m"], 2, "instead of --model_dir"),
    "two ways": (["--server=URL", "--export_dir=e", "--runner=DirectRunner"], 2, "leave one out"),
    "devices": (
        ["--server=URL", "--export_dir=e", "--strategy=tpu"],
        2,
        "--strategy, --tpu and --dtype do not work with --server",
    ),
    "a URL as folder": (
        ["--export_dir=http://h/v1/models/m"],
        2,
        "--export_dir=http://h/v1/models/m: a URL; give it as",
    ),
    "a password": (
        ["--server=http://me:secret@h:1/v1/models/m", "--export_dir=e"],
        2,
        "--server=http://***@h:1/v1/models/m: a URL with a user or password; expected http://HOST:PORT/v1/models/NAME",
    ),
    "a password as folder": (["--export_dir=http://me:secret@h/v1/models/m"], 2, "=http://***@h/v1/models/m: a URL;"),
    "no URL": (["--server=localhost:8501", "--export_dir=e"], 2, "--server=localhost:8501: not the URL of a model"),
    "no server": (["--server=http://127.0.0.1:1/v1/models/m", "--export_dir=e"], 1, "/m: Connection refused"),
    "unknown": (["--server=URL/labels/x", "--export_dir=e"], 1, "served/labels/x: "),
}


@pytest.mark.parametrize("case", FLAGS)
def test_inconsistent_flags_are_one_line_errors(programs, url, tmp_path, case):
    arguments, status, message = FLAGS[case]
    done = programs("predict", *(one.replace("URL", url) for one in arguments), f"--output={tmp_path}/x.jsonl")
    assert done.status == status and message in done.error_line
