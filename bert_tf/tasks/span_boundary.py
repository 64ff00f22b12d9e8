"""Masked language model with the span boundary objective (SpanBERT: Joshi et al., 2020, arXiv:1907.10529)."""

import functools
from collections.abc import Sequence

import keras

from bert_tf.model.encoder import BertEncoder
from bert_tf.model.span_boundary import span_boundary
from bert_tf.tasks.masked_lm import MaskedLM, MaskedTokenObjective
from bert_tf.tasks.objective import Sum
from bert_tf.text.base import BaseTokenizer


class SpanBoundaryObjective(MaskedTokenObjective):
    """Cross-entropy of the masked tokens, predicted from the bounds of their spans (section 3.2).

    Args:
        longest: maximum number of masked tokens of a sequence.
        languages: as for `PredictionObjective`.
    """

    losses = ("sbo_loss",)
    metric_names = ("sbo_accuracy",)

    def __init__(self, longest: int, languages: Sequence[str] = ()) -> None:
        super().__init__(languages)
        self._longest = longest

    def build(self, encoder: BertEncoder) -> keras.Model:
        return span_boundary(encoder, self._longest)


class SpanBoundary(MaskedLM):
    """Both objectives of SpanBERT; when saved and served, the masked language model alone.

    Args:
        tokenizer, max_length, languages: as for `MaskedLM`.
        longest: as for `SpanBoundaryObjective`.
    """

    def __init__(
        self, tokenizer: BaseTokenizer, max_length: int, languages: Sequence[str] = (), *, longest: int
    ) -> None:
        super().__init__(tokenizer, max_length, languages)
        both = (self.objective, SpanBoundaryObjective(longest, languages))
        self.objective = Sum([("", part) for part in both], functools.partial(span_boundary, longest=longest))
