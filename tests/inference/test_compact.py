"""The graph of an export is smaller than TensorFlow writes it, and answers the same."""

import functools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.inference import ask, saved_model
from bert_tf.inference.saved_model import export
from bert_tf.text import Tokenizer
from tests.inference.exports import TASKS, VOCABULARY, exported

TEXTS = ["A film to remember.", "the good " * 40, "", "café 😀"]


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Paths of a version, and of the same as TensorFlow writes it; the graph has loops, conditions and assertions."""
    folder = tmp_path_factory.mktemp("compact")
    task = TASKS["pairs in windows"](Tokenizer(VOCABULARY))
    task.signatures = functools.cache(task.signatures)  # traced once
    compacted = exported(task, folder / "compact")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(saved_model, "compact", lambda path: None)
        plain = export(compacted.task, compacted.model, str(folder / "plain"), check=False).path
    return compacted.path, plain


def graph_of(path):
    (meta_graph,) = saved_model_pb2.SavedModel.FromString(pathlib.Path(path, "saved_model.pb").read_bytes()).meta_graphs
    return meta_graph.graph_def


def test_it_answers_bit_for_bit_the_same(versions):
    ids = np.array([[2, 7, 8, 3, 9, 3], [2, 7, 3, 9, 3, 0]], np.int32)
    requests = {
        "serving_default": {"text": TEXTS, "second_text": TEXTS[::-1]},
        "tokens": {"input_word_ids": ids, "input_mask": np.sign(ids), "input_type_ids": np.zeros_like(ids)},
    }
    compact, plain = map(ask.Model, versions)
    for signature, inputs in requests.items():
        found, expected = compact.run(inputs, signature), plain.run(inputs, signature)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_python_loads_it_with_the_same_names_and_shapes(versions):
    compact, plain = (tf.saved_model.load(path) for path in versions)
    assert compact.signatures.keys() == plain.signatures.keys()
    for name, function in plain.signatures.items():
        found = compact.signatures[name]
        assert found.structured_input_signature == function.structured_input_signature
        assert found.structured_outputs == function.structured_outputs
    inputs = {"text": tf.constant(TEXTS), "second_text": tf.constant(TEXTS)}
    answers = (one.signatures["serving_default"](**inputs)["probabilities"].numpy() for one in (compact, plain))
    np.testing.assert_array_equal(*answers)


def test_its_functions_are_smaller_and_none_saves_variables(versions):
    compact, plain = map(graph_of, versions)
    assert compact.library.ByteSize() < 0.6 * plain.library.ByteSize()
    saving = [
        sum(node.op == "SaveV2" for function in graph.library.function for node in function.node_def)
        for graph in (compact, plain)
    ]
    assert saving == [0, 1]
