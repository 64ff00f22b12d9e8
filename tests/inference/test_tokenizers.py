"""Tokenizers inside SavedModels, run by the C API of each TensorFlow that servers have."""

import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.inference.check import check_ops
from bert_tf.inference.samples import Request
from tests.inference import runtimes
from tests.learned import TOKENIZERS

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
    """Kind -> folder of a version, texts, and what Python's TensorFlow gives for them."""
    choice = random.Random(0)
    characters = [*" \t\n\u3000'the.fim<>19", "é", "가", "日", "😀", "½", "\0"]
    texts = ["".join(choice.choices(characters, k=choice.randrange(20))).encode() for _ in range(2000)]
    texts += [bytes(choice.randrange(256) for _ in range(choice.randrange(20))) for _ in range(2000)]
    texts += [b"", b"\xff", b"a <mask> and <s>b</s>", b"x" * 50_000, "한국어 텍스트 ".encode() * 2000]
    found = {}
    for kind, make in TOKENIZERS.items():
        model, path = Tokenized(make()), str(tmp_path_factory.mktemp(kind) / "1")
        tf.saved_model.save(model, path, signatures=model.run)
        found[kind] = path, texts, {name: value.numpy() for name, value in model.run(tf.constant(texts)).items()}
    return found


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_graphs_have_only_ops_of_tf_serving(exported, kind):
    assert check_ops(exported[kind][0])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.21", "2.20", "2.17", "2.12"])
def test_the_c_api_of_each_version_gives_the_same_tokens(exported, version):
    python = runtimes.python(version)
    for path, texts, expected in exported.values():
        request = Request("serving_default", "texts", {"text": np.array(texts, object)})
        ((answer,),) = runtimes.by_c_api([(path, [request])], python, log=(log := []))
        assert not any("charsmap" in line for line in log)  # what SentencePiece says of a model without one
        assert answer.keys() == {"outputs"}, answer
        for name, values in expected.items():
            assert np.array_equal(answer["outputs"][name], values), (path, name)
