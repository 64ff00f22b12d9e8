"""Tokenizers inside SavedModels, run by the C API of each TensorFlow that servers have."""

import functools
import random
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.inference.check import check_ops
from bert_tf.inference.samples import Request
from bert_tf.text import operations
from tests.inference import runtimes
from tests.learned import ALL_TOKENIZERS
from tests.pages import ROOT

SIGNATURE = tf.TensorSpec([None], tf.string, name="text")


class Tokenized(tf.Module):
    """What a tokenizer gives for `text`, in flat tensors."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    @tf.function(autograph=False, input_signature=[SIGNATURE])
    def run(self, text):
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(text, special_tokens=True)
        plain, begins = self.tokenizer.tokenize_with_words(text)
        outputs = {"ids": ids.values, "lengths": ids.row_lengths(), "starts": starts.values, "ends": ends.values}
        return outputs | {"plain": plain.values, "begins": tf.cast(begins.values, tf.int32)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Function from a kind to the folder of a version, and what it was made of."""

    @functools.cache
    def made(kind):
        model, path = Tokenized(ALL_TOKENIZERS[kind]()), str(tmp_path_factory.mktemp(kind) / "1")
        tf.saved_model.save(model, path, signatures=model.run)
        return path, model

    return made


@pytest.fixture(scope="module")
def texts():
    choice = random.Random(0)
    characters = [*" \t\n\u3000'the.fim<>19", "é", "가", "日", "😀", "½", "\0", "e\u0301", "\u0323", "  "]
    texts = ["".join(choice.choices(characters, k=choice.randrange(20))).encode() for _ in range(2000)]
    texts += [bytes(choice.randrange(256) for _ in range(choice.randrange(20))) for _ in range(2000)]
    texts += [f"a{first}{second}".encode() for first in "\u0301\u0323\u0316" for second in "\u0301\u0345\u1161가"]
    texts += [
        b"",
        b"\xff",
        b"|||IP_ADDRESS|||[unused0]",
        b"a <mask> and <s>b</s>",
        b"x" * 50_000,
        "한국어 텍스트 ".encode() * 2000,
    ]
    return texts


# Other kinds are made of the same ops as "unigram".
QUICK = ("wordpiece", "byte_bpe", "unigram", "albert", "modern")
each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in ALL_TOKENIZERS]
)


@each_kind
def test_graphs_have_only_ops_of_tf_serving(exported, kind):
    if kind != "wordpiece" and not operations.TF_TEXT:
        pytest.skip("needs TensorFlow Text")
    assert check_ops(exported(kind)[0])


class Plain(tf.Module):
    """What a tokenizer gives without offsets."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    @tf.function(autograph=False, input_signature=[SIGNATURE])
    def run(self, text):
        return {"ids": self.tokenizer.tokenize(text).values}


def of_tf_text(path):
    """The ops in the graph of a version that TensorFlow itself does not have."""
    with open(f"{path}/saved_model.pb", "rb") as file:
        (meta,) = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs
    functions = {function.signature.name: function for function in meta.graph_def.library.function}
    nodes = [*meta.graph_def.node, *(node for function in functions.values() for node in function.node_def)]
    return {node.op for node in nodes if node.op not in functions and not hasattr(tf.raw_ops, node.op)}


def documented():
    """Start of a row in the table of TF Serving's page -> the ops of TF Text, and more where offsets are needed."""
    page = (ROOT / "docs/serving/tf_serving.md").read_text(encoding="utf-8")
    table, found = page.partition("### Ops of TF Text")[2].partition("TF Serving links")[0], {}
    for name, text in re.findall(r"^\| ([A-Z]?[^|`]*?) \| ([^|]*`[^|]*) \|$", table, re.MULTILINE):
        plain, more = (set(re.findall(r"`(\w+)`", part)) for part in text.partition(";")[::2])
        if "the same and" in text:
            plain, more = plain | found["SentencePiece"][0], found["SentencePiece"][1]
        found[name.partition(" (")[0]] = plain, more
    return found


ROWS = {
    "wordpiece": "WordPiece",
    "byte_bpe": "byte-level BPE",
    "modern": "byte-level BPE with NFC",
    "albert": "SentencePiece of ALBERT",
}


@pytest.mark.skipif(not operations.TF_TEXT, reason="needs TensorFlow Text")
@each_kind
def test_the_documented_ops_of_tf_text_are_those_in_the_graphs(exported, kind, tmp_path):
    expected, more = documented()[ROWS.get(kind, "SentencePiece")]
    plain = Plain(ALL_TOKENIZERS[kind]())
    tf.saved_model.save(plain, str(tmp_path), signatures=plain.run)
    assert of_tf_text(tmp_path) == expected
    assert of_tf_text(exported(kind)[0]) == expected | more


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.21", "2.20", "2.17", "2.12"])
def test_the_c_api_of_each_version_gives_the_same_tokens(exported, texts, version):
    python, made = runtimes.python(version), {kind: exported(kind) for kind in ALL_TOKENIZERS}
    request = Request("serving_default", "texts", {"text": np.array(texts, object)})
    found = runtimes.by_c_api([(path, [request]) for path, _ in made.values()], python, log=(log := []))
    assert not any("charsmap" in line for line in log)  # what SentencePiece says of a model without one
    for (kind, (_, model)), (answer,) in zip(made.items(), found, strict=True):
        assert answer.keys() == {"outputs"}, (kind, answer)
        for name, values in model.run(tf.constant(texts)).items():
            assert np.array_equal(answer["outputs"][name], values), (kind, name)
