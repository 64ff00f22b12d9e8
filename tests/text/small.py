"""Small tokenizers of every kind, learned from the bundled reviews by the libraries that they are compared with."""

import functools
import io
import json

import sentencepiece
import tokenizers

from bert_tf.bundled import bundled
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.learning import learn_vocabulary
from bert_tf.text.sentence_piece import SentencePieceTokenizer, with_fairseq_ids
from bert_tf.text.tokenizer import Tokenizer

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_TEXT = bundled("data/reviews/train.tsv")


@functools.cache
def wordpiece():
    with open(_TEXT, encoding="utf-8") as lines:
        return Tokenizer(learn_vocabulary(lines, 1000))


@functools.cache
def byte_pair():
    learner = tokenizers.ByteLevelBPETokenizer()
    learner.train([_TEXT], vocab_size=2000, special_tokens=SPECIALS, show_progress=False)
    state = json.loads(learner.to_str())["model"]
    return BytePairTokenizer(state["vocab"], [" ".join(merge) for merge in state["merges"]])


@functools.cache
def sentence_piece(**settings):
    model = io.BytesIO()
    with open(_TEXT, encoding="utf-8") as text:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text, model_writer=model, vocab_size=1000, minloglevel=2, **settings
        )
    return SentencePieceTokenizer(with_fairseq_ids(model.getvalue()))


KINDS = {
    "wordpiece": wordpiece,
    "byte_bpe": byte_pair,
    "unigram": sentence_piece,
    "bpe": lambda: sentence_piece(model_type="bpe"),
    "bytes": lambda: sentence_piece(byte_fallback=True),
}
