"""Text processing: normalizer, WordPiece tokenizer and vocabularies."""

from bert_tf.text.learning import learn_vocabulary
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.vocabulary import read_vocabulary, write_vocabulary

__all__ = ["Tokenizer", "learn_vocabulary", "read_vocabulary", "write_vocabulary"]
