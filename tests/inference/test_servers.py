"""Every kind of export, queried as TF Serving does: by a session on the graph, in Python and in C++, new and old.

The slow tests need other versions of TensorFlow, installed by `make test-servers`: the Python executables of these
environments are in BERT_TF_TEST_TF_2_20_PYTHON and so on. TF Serving 2.12.1 to 2.19.1 have TF Text's kernels of 2.12.1,
and TensorFlow's of their own version.
"""

import functools
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

from bert_tf.inference.check import _ops, check_ops, compare, difference, rest_body
from bert_tf.inference.samples import Request
from tests.inference import kinds, runtimes

TOKENS = ("input_word_ids", "input_mask", "input_type_ids")
ROOT = str(pathlib.Path(__file__).parents[2])


# Answers for rows and words (vectors: test_extraction.py); tests/tasks/test_every_task.py asks an export of each task.
PAIRS = "classification of pairs"
QUICK = (PAIRS,)
every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in kinds.KINDS]
)


@pytest.fixture(scope="module")
def cases(request):
    """Kind -> Case, for the kinds that are tested."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    tested = {item.callspec.params.get("kind") for item in items}
    return {kind: kinds.case(kind) for kind in kinds.KINDS if kind == PAIRS or kind in tested}


@pytest.fixture(scope="module")
def answered(cases):
    """Kind -> answers of a session in another process."""
    sessions = runtimes.Sessions()
    for case in cases.values():
        sessions.ask(case.path, [rest_body(request) for request in case.requests])
    return dict(zip(cases, sessions.answers(), strict=True))


@pytest.mark.slow  # test_export.py checks an export by a session in another process
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_session_gives_the_models_answers(cases, answered, kind):
    case = cases[kind]
    assert compare(case.requests, case.expected, answered[kind]) < 1e-5
    signatures = {request.signature for request in case.requests}
    assert {"serving_default", "tokens"} <= signatures
    each = 8 if kind in kinds.LARGE else 6  # short, long, full, empty, broken, no rows; 100 kB, 10,000 rows
    assert len(case.requests) == each * len(signatures)


@every_kind
def test_graphs_have_only_ops_of_tf_serving(cases, kind):
    assert check_ops(cases[kind].path) > 60


def ids(*rows):
    return np.array(rows, np.int32)


def strings(*values):
    return np.array(values, object)


BAD = {
    "wrong rank": ("serving_default", {"text": strings([b"a"]), "second_text": strings(b"a")},
                   "[1,1] is not compatible with expected shape [?]"),
    "unequal rows": ("serving_default", {"text": strings(b"a", b"b"), "second_text": strings(b"a")},
                     "second_text has a different number of rows than text"),
    "too many tokens": ("tokens", dict.fromkeys(TOKENS, np.ones([1, 33], np.int32)),
                        "input_word_ids: a row has more than 32 tokens, the most that the model takes"),
    "another shape": ("tokens", dict(zip(TOKENS, (ids([2, 3]), ids([1]), ids([0, 0])), strict=True)),
                      "input_mask: its shape differs from that of input_word_ids"),
    "an id beyond the vocabulary": ("tokens", dict(zip(TOKENS, (ids([99]), ids([1]), ids([0])), strict=True)),
                                    "input_word_ids: a value is not from 0 to 76"),
    "another mask": (
        "tokens",
        dict(zip(TOKENS, (ids([2]), ids([2]), ids([0])), strict=True)),
        "input_mask: a value is not from 0 to 1",
    ),
    "an unknown segment": (
        "tokens",
        dict(zip(TOKENS, (ids([2]), ids([1]), ids([7])), strict=True)),
        "input_type_ids: a value is not from 0 to 1",
    ),
    "a row that is all padding": (
        "tokens",
        dict(zip(TOKENS, (ids([2], [2]), ids([1], [0]), ids([0], [0])), strict=True)),
        "input_mask: a row has no token",
    ),
    "no Example": ("classify", {"inputs": strings(b"text")}, "Could not parse example input, value: 'text'"),
    "no features": ("classify", {"inputs": strings(b"")},
                    "Feature: second_text (data type: string) is required but could not be found"),
}  # fmt: skip


def test_invalid_requests_get_an_error_message_from_the_graph(cases):
    """A server passes tensors of any shape to the graph; Python's session would check them first."""
    requests = [Request(signature, kind, inputs) for kind, (signature, inputs, _) in BAD.items()]
    (answers,) = runtimes.by_c_api([(cases[PAIRS].path, requests)])
    for answer, (_, _, message) in zip(answers, BAD.values(), strict=True):
        code, found = answer["error"]
        assert code == 3 and message in found  # INVALID_ARGUMENT


@pytest.mark.slow
def test_the_kinds_that_another_version_exports_have_every_op():
    ops = {kind: _ops(kinds.case(kind).path)[0] for kind in kinds.KINDS}
    assert set().union(*ops.values()) == set().union(*(ops[kind] for kind in kinds.EVERY_OP))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Function from a version of TensorFlow to the Cases exported with it: all kinds by this one."""

    @functools.cache
    def by(version):
        if runtimes.python(version) == sys.executable:
            return [kinds.case(kind) for kind in kinds.KINDS]
        folder = tmp_path_factory.mktemp(f"exported_by_{version}")
        command = [runtimes.python(version), "-m", "tests.inference.kinds", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": ROOT})
        assert done.returncode == 0, done.stderr[-3000:]
        return pickle.loads((folder / "cases.pickle").read_bytes())

    return by


@pytest.mark.slow
@pytest.mark.parametrize("loading", ["2.21", "2.20", "2.12"])
@pytest.mark.parametrize("exporting", ["2.21", "2.20"])
def test_the_c_api_of_each_version_gives_the_models_answers(written, exporting, loading):
    cases = written(exporting)
    found = runtimes.by_c_api([(case.path, case.requests) for case in cases], runtimes.python(loading))
    for case, answers in zip(cases, found, strict=True):
        for request, expected, answer in zip(case.requests, case.expected, answers, strict=True):
            assert answer.keys() == {"outputs"}, (case.path, request.signature, request.kind, answer)
            assert answer["outputs"].keys() == expected.keys()
            for name, values in expected.items():
                where = (case.path, request.signature, request.kind, name)
                assert answer["outputs"][name].shape == values.shape, where
                assert difference(name, answer["outputs"][name], values) < 1e-5, where
