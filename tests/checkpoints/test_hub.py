"""hf:// names, with a local server as the Hub and with caches laid out as huggingface_hub does: no network."""

import hashlib
import http.server
import json
import os
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from bert_tf.checkpoints import directory, hub
from bert_tf.errors import ConfigError
from tests.checkpoints.hub_process import asking
from tests.checkpoints.small import small_checkpoint
from tests.errors import raises

pytest.importorskip("huggingface_hub")
SHA, TAGGED = "a" * 40, "b" * 40


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the Hub's protocol that downloads use: revisions, trees, files, and refusals."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.describe("/".join(parts[2:4]), *parts[4:6])
        else:
            self.give("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    do_HEAD = do_GET

    def describe(self, model, what, revision):
        if model == "secret/gated":
            return self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if model not in self.server.models:
            return self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        sha = {"main": SHA, "v1": TAGGED}.get(revision, revision)
        if sha not in (SHA, TAGGED):
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = self.server.models[model]
        if what == "revision":
            siblings = [{"rfilename": name} for name in files]
            described = {"id": model, "modelId": model, "sha": sha, "siblings": siblings, "tags": [], "private": False}
        else:
            described = [
                {"type": "file", "path": name, "size": len(data), "oid": self.etag(data)}
                for name, data in files.items()
            ]
        return self.answer(200, json.dumps(described).encode(), {"Content-Type": "application/json"})

    def give(self, model, sha, name):
        if model == "them/lost":
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = self.server.models[model][name]
        if self.command == "GET":
            self.server.given.append(name)
        self.answer(200, data, {"X-Repo-Commit": sha, "ETag": f'"{self.etag(data)}"'})

    def etag(self, data):
        return hashlib.sha1(data).hexdigest()

    def answer(self, status, data, headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(data), "Connection": "close", **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The files of a model of our own format: dict name -> bytes."""
    path = tmp_path_factory.mktemp("model")
    directory.write(small_checkpoint("masked_lm", pooler=False), str(path))
    return {file.name: file.read_bytes() for file in path.iterdir()}


GAMMA = small_checkpoint("masked_lm", pooler=False).tensors["embeddings/norm/gamma"]


@pytest.fixture(scope="module")
def server(model):
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    served.given = []
    bins = {"config.json": b"{}", "pytorch_model.bin": b"pickled", "vocab.txt": b"a\n"}
    served.models = {
        "us/ours": model | {"README.md": b"long", "onnx/model.onnx": b"large", "model.fp16.safetensors": b"half"},
        "them/both": bins | {"model.safetensors": b"plain"},
        "them/pickled": bins,
        "them/shards": {
            "config.json": b"{}",
            "model.safetensors.index.json": b"{}",
            "model-00001-of-00002.safetensors": b"1",
            "model-00002-of-00002.safetensors": b"2",
        },
        "them/sentences": {
            "modules.json": b"[]",
            "0_Transformer/config.json": b"{}",
            "0_Transformer/model.safetensors": b"x",
            "1_Pooling/config.json": b"{}",
            "2_Dense/pytorch_model.bin": b"pickled",
            "onnx/config.json": b"{}",
        },
        "them/lost": {"config.json": b"{}", "model.safetensors": b"x"},
        "them/flax": {"config.json": b"{}", "flax_model.msgpack": b"x"},
    }
    thread = threading.Thread(target=served.serve_forever, args=(0.05,))
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def online(server, cache):
    with asking(cache, HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}") as ask:
        yield ask


@pytest.fixture(scope="module")
def unreachable(cache):
    with asking(cache, HF_ENDPOINT="http://127.0.0.1:9") as ask:  # nobody listens on the port "discard"
        yield ask


def names_in(answer):
    return sorted(os.listdir(answer["path"]))


def lay_out(cache, model, files, revision="main", sha=SHA):
    """A cached snapshot as huggingface_hub lays it out: refs, snapshots of links, blobs."""
    folder = cache / f"models--{model.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / revision).write_text(sha)
    (folder / "snapshots" / sha).mkdir(parents=True)
    (folder / "blobs").mkdir()
    for index, (name, data) in enumerate(files.items()):
        (folder / "blobs" / f"{index:040}").write_bytes(data)
        (folder / "snapshots" / sha / name).symlink_to(f"../../blobs/{index:040}")
    return str(folder / "snapshots" / sha)


def test_a_model_is_downloaded_once(online, server):
    server.given.clear()
    answer = online("hf://us/ours", opened=True)
    np.testing.assert_array_equal(answer["first"], GAMMA.read())
    assert sorted(server.given) == ["config.json", "model.safetensors", "vocab.txt"]
    assert names_in(online("hf://us/ours")) == ["config.json", "model.safetensors", "vocab.txt"]
    assert len(server.given) == 3
    assert answer["log"] == []


def test_each_revision_has_its_own_folder(online):
    main, tagged, commit = (online(f"hf://us/ours{at}")["path"] for at in ("", "@v1", f"@{TAGGED}"))
    assert (os.path.basename(main), os.path.basename(tagged)) == (SHA, TAGGED)
    assert commit == tagged
    expected = "DataError: hf://us/ours@v9: the model has no revision 'v9'; name a branch, tag or commit"
    assert online("hf://us/ours@v9")["error"] == expected


def test_pickled_weights_are_downloaded_on_request_and_only_if_there_are_no_others(online):
    refused = online("hf://them/pickled")["error"]
    assert refused.startswith("DataError: hf://them/pickled, pytorch_model.bin: a pickled file, which is read only on")
    assert names_in(online("hf://them/pickled", True)) == ["config.json", "pytorch_model.bin", "vocab.txt"]
    for allow_pickle in (False, True):
        assert names_in(online("hf://them/both", allow_pickle)) == ["config.json", "model.safetensors", "vocab.txt"]


def test_the_modules_of_a_sentence_encoder_are_downloaded_with_it(online):
    for allow_pickle in (False, True):
        path = Path(online("hf://them/sentences", allow_pickle)["path"])
        found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
        encoder = {"0_Transformer/config.json", "0_Transformer/model.safetensors", "1_Pooling/config.json"}
        assert found == {"modules.json", *encoder} | ({"2_Dense/pytorch_model.bin"} if allow_pickle else set())


def test_shards_are_downloaded_with_their_index(online):
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert names_in(online("hf://them/shards")) == ["config.json", *shards, "model.safetensors.index.json"]


@pytest.mark.parametrize(
    "name, line",
    [
        ("them/flax", "no weights that bert_tf reads; expected model.safetensors in the repository"),
        ("no/such", "no such model on the Hub, or a private one: check the name, or run hf auth login"),
        (
            "secret/gated",
            "gated by its authors: accept their terms at https://huggingface.co/secret/gated, then run hf auth",
        ),
    ],
)
def test_each_refusal_has_its_own_error_line(online, name, line):
    error = online(f"hf://{name}")["error"]
    assert error.startswith(f"DataError: hf://{name}: {line}")
    assert "\n" not in error


def test_a_failed_download_is_a_one_line_error(online):
    error = online("hf://them/lost")["error"]
    assert error.startswith("DataError: hf://them/lost: ")
    assert "404" in error
    assert "\n" not in error


def test_without_a_network_the_cached_model_is_used_and_this_is_reported(online, unreachable):
    path = online("hf://us/ours")["path"]
    answer = unreachable("hf://us/ours")
    assert answer["path"] == path
    (line,) = answer["log"]
    assert line.startswith("hf://us/ours: using the cached copy, as the Hub was not reached (")
    assert line.endswith(f"): {path}")
    assert "first" in unreachable("hf://us/ours", opened=True)
    online("hf://them/pickled", True)
    assert "pytorch_model.bin" in names_in(unreachable("hf://them/pickled", True))


def test_without_a_network_a_model_that_is_not_cached_is_a_one_line_error(unreachable):
    error = unreachable("hf://no/where")["error"]
    expected = "DataError: hf://no/where: missing or incomplete in the cache, and the Hub does not answer ("
    assert error.startswith(expected)
    assert "\n" not in error


def test_a_cache_filled_by_huggingface_hub_is_read_offline(tmp_path, model):
    path = lay_out(tmp_path, "us/ours", model)
    lay_out(tmp_path, "us/tagged", model, "v1", TAGGED)
    with asking(tmp_path, HF_HUB_OFFLINE="1") as ask:
        answer = ask("hf://us/ours")
        assert answer["path"] == path
        assert len(answer["log"]) == 1
        np.testing.assert_array_equal(ask("hf://us/ours", opened=True)["first"], GAMMA.read())
        assert ask(f"hf://us/ours@{SHA}")["path"] == path
        assert os.path.basename(ask("hf://us/tagged@v1")["path"]) == TAGGED
        expected = "DataError: hf://us/tagged: missing or incomplete in the cache, and HF_HUB_OFFLINE forbids downloads"
        assert ask("hf://us/tagged")["error"].startswith(expected)


DAMAGED = {"not UTF-8": b"\xff" * 40, "nothing": b"", "zero bytes": bytes(40), "another path": b"../../x"}


def test_a_damaged_cache_is_one_line_with_its_folder(tmp_path, model):
    lay_out(tmp_path, "us/ours", model)
    reference = tmp_path / "models--us--ours/refs/main"
    with asking(tmp_path, HF_HUB_OFFLINE="1") as ask:
        for case, content in DAMAGED.items():
            reference.write_bytes(content)
            error = ask("hf://us/ours", opened=True)["error"]
            assert error.startswith("DataError: "), case
            assert "\n" not in error
            if case == "not UTF-8":
                assert f"its copy in the cache, {tmp_path}/models--us--ours, is damaged (" in error
        reference.unlink()
        reference.mkdir()
        assert ask("hf://us/ours")["error"].startswith("DataError: hf://us/ours: ")


@pytest.mark.parametrize(
    "name", ["hf://", "hf://bert", "hf://a/b/c", "hf://a/b@", "hf:///b", "hf://a/../../etc", "hf://a b/c"]
)
def test_other_names_are_refused(name):
    with raises(ConfigError, "hf://OWNER/NAME"):
        hub.fetch(name)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with raises(ConfigError, "'bert_tf[hub]'"):
        hub.fetch("hf://us/ours")


def test_a_name_that_the_library_refuses_is_a_one_line_error():
    with raises(ConfigError, "hf://../.."):
        hub.fetch("hf://../..")
