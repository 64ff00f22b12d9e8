"""Text processing: tokenizers and vocabularies."""

from bert_tf.text.base import BaseTokenizer
from bert_tf.text.kinds import open_tokenizer, saved_tokenizer
from bert_tf.text.learning import learn_byte_pairs, learn_unigram, learn_vocabulary
from bert_tf.text.vocabulary import read_vocabulary, write_vocabulary
from bert_tf.text.wordpiece import Tokenizer

__all__ = [
    "BaseTokenizer",
    "Tokenizer",
    "learn_byte_pairs",
    "learn_unigram",
    "learn_vocabulary",
    "open_tokenizer",
    "read_vocabulary",
    "saved_tokenizer",
    "write_vocabulary",
]
