"""The share of unknown tokens in texts: many show a vocabulary of another language, or wrong settings."""

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.progress import MOST_UNKNOWN, log
from bert_tf.text.base import BaseTokenizer

_LEAST = 10  # fewer unknown tokens say nothing about the vocabulary
# Texts that are counted, and bytes of each: a tenth of a second.
_TEXTS, _BYTES = 1000, 2000
_EXAMPLES = 3


def report(tokenizer: BaseTokenizer, unknown: int, tokens: int, examples: Sequence[str] = ()) -> str:
    """A line on too many unknown tokens, with the cause if it is known; "" if they are few.

    Args:
        tokenizer: of the tokens.
        unknown, tokens: numbers of them.
        examples: words that are unknown.
    """
    if unknown < _LEAST or unknown < MOST_UNKNOWN * tokens:
        return ""
    shown = f", such as {', '.join(map(repr, examples))}" if examples else ""
    cause = tokenizer.unreachable() or "the vocabulary lacks these words; use one that was learned from such text"
    return f"{unknown / tokens:.1%} of the tokens are {tokenizer.special_names.unk}{shown}: {cause}"


class UnknownTokens:
    """Counts the unknown tokens of texts, a sample of the first ones, and logs once if they are too many.

    Args:
        tokenizer: of the texts.
        where: name of the texts, for the line.

    Attributes:
        share: of unknown tokens; 0 before the first text.
    """

    def __init__(self, tokenizer: BaseTokenizer, where: str = "the texts") -> None:
        self._tokenizer, self._where = tokenizer, where
        self._texts = self._unknown = self._tokens = 0
        self._reported = False

    @property
    def share(self) -> float:
        return self._unknown / max(self._tokens, 1)

    def read(self, texts: Sequence[tf.Tensor]) -> None:
        """Counts those of some texts, strings of any shape."""
        flat = tf.concat([tf.reshape(one, [-1]) for one in texts], 0)
        count = int(tf.size(flat))
        most = min(count, _TEXTS - self._texts)
        if not most:
            return
        self._texts += most
        sample = tf.gather(flat, np.linspace(0, count - 1, most).round().astype(np.int64))
        sample = tf.strings.substr(sample, 0, _BYTES)
        ids = self._tokenizer.tokenize(sample).values
        self._unknown += int(tf.math.count_nonzero(ids == self._tokenizer.unk_id))
        self._tokens += int(tf.size(ids))
        if not self._reported and report(self._tokenizer, self._unknown, self._tokens):
            self._reported = True
            log(f"{self._where}: {report(self._tokenizer, self._unknown, self._tokens, self._examples(sample))}")

    def _examples(self, texts: tf.Tensor) -> list[str]:
        """The most frequent unknown words."""
        ids, starts, ends = self._tokenizer.tokenize_with_offsets(texts)
        found, of_text = (ids.values == self._tokenizer.unk_id).numpy(), ids.value_rowids().numpy()
        given = texts.numpy()
        spans = zip(of_text[found], starts.values.numpy()[found], ends.values.numpy()[found], strict=True)
        words = collections.Counter(given[text][start:end].decode("utf-8", "ignore") for text, start, end in spans)
        return [word for word, _ in words.most_common(_EXAMPLES)]
