"""Tokenizers inside SavedModels, run by the C API of each TensorFlow that servers have."""

import io
import json
import random

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import tokenizers

from bert_tf.bundled import bundled
from bert_tf.inference.check import check_ops
from bert_tf.inference.samples import Request
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer, with_fairseq_ids
from tests.inference import runtimes

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SIGNATURE = tf.TensorSpec([None], tf.string, name="text")


def byte_pair():
    learner = tokenizers.ByteLevelBPETokenizer()
    learner.train([bundled("data/reviews/train.tsv")], vocab_size=2000, special_tokens=SPECIALS, show_progress=False)
    state = json.loads(learner.to_str())["model"]
    return BytePairTokenizer(state["vocab"], [" ".join(merge) for merge in state["merges"]])


def sentence_piece(**settings):
    model = io.BytesIO()
    with open(bundled("data/reviews/train.tsv"), encoding="utf-8") as text:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text, model_writer=model, vocab_size=1000, minloglevel=2, **settings
        )
    return SentencePieceTokenizer(with_fairseq_ids(model.getvalue()))


KINDS = {
    "byte_bpe": byte_pair,
    "unigram": sentence_piece,
    "bpe": lambda: sentence_piece(model_type="bpe"),
    "bytes": lambda: sentence_piece(byte_fallback=True),
}


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
    for kind, make in KINDS.items():
        model, path = Tokenized(make()), str(tmp_path_factory.mktemp(kind) / "1")
        tf.saved_model.save(model, path, signatures=model.run)
        found[kind] = path, texts, {name: value.numpy() for name, value in model.run(tf.constant(texts)).items()}
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_have_only_ops_of_tf_serving(exported, kind):
    assert check_ops(exported[kind][0])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.21", "2.20", "2.17", "2.12"])
def test_the_c_api_of_each_version_gives_the_same_tokens(exported, version):
    python = runtimes.python(version)
    for path, texts, expected in exported.values():
        request = Request("serving_default", "texts", {"text": np.array(texts, object)})
        ((answer,),) = runtimes.by_c_api([(path, [request])], python)
        assert answer.keys() == {"outputs"}, answer
        for name, values in expected.items():
            assert np.array_equal(answer["outputs"][name], values), (path, name)
