"""One object says how models compute, and nothing beside it."""

import pathlib
import re
import threading

import pytest
import tensorflow as tf

import bert_tf
from bert_tf import BertEncoder
from bert_tf.model.layers import Dense
from bert_tf.model.mode import Mode, Seeds, computing, current, infer
from tests.model.small import features, small_config


def test_no_other_module_keeps_state_of_a_thread_or_context():
    folder = pathlib.Path(bert_tf.__file__).parent
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"threading\.local|contextvars|ContextVar", path.read_text("utf-8"))
    }
    # The server knows the connection of a request; no model computes there.
    assert found - {"server/web.py"} == {"model/mode.py"}


def test_a_mode_ends_with_its_block_also_after_an_error():
    outer, inner = Mode(fusion="static"), Mode(seeds=Seeds(tf.constant([1, 2])), recompute=True)
    with computing(outer):
        with pytest.raises(ZeroDivisionError), computing(inner):
            assert current() is inner
            raise ZeroDivisionError
        assert current() is outer
    assert current() == Mode()


def test_a_mode_is_that_of_one_thread():
    seen = []
    with computing(Mode(fusion="every")):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
    assert seen == [Mode()]


def test_inference_changes_only_its_part_of_the_mode(monkeypatch):
    seen, call = set(), Dense.call
    monkeypatch.setattr(Dense, "call", lambda layer, x: seen.add(current()) or call(layer, x))
    kernels = frozenset({"int8"})
    with computing(Mode(kernels=kernels)):
        infer(BertEncoder(small_config()), features(), skip_padding=False)
    assert seen == {Mode(kernels=kernels, inference=True)}
