"""The codec of question answering: windows of a context, the training target in each, and the best spans."""

import dataclasses
import types
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.config import QuestionAnsweringConfig
from bert_tf.errors import ConfigError
from bert_tf.inputs.datasets.examples import Answer, QuestionExample
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.model.positions import MASKED_SCORE
from bert_tf.tasks.codec import Codec, strings
from bert_tf.tasks.task import State
from bert_tf.text.words import quotable_pieces, spans
from bert_tf.types import Array, Json, Tensors

_MISSING = -1  # start and end of an answer that is not in the context


@dataclasses.dataclass
class QuestionState(State):
    """State of question answering.

    Attributes:
        null_threshold: the answer is "" if the null odds are above it. The null odds are the null score (the smallest
            of the windows) minus the score of the best span, both sums of two logits.
    """

    null_threshold: float = 0.0


class QuestionCodec(Codec):
    """Of texts of any length: a context is cut into windows, and the answer is their best span.

    The exported model takes `question` and `context`, string [batch], and returns the dict of `aggregate_windows`.
    """

    config: QuestionAnsweringConfig
    state: QuestionState
    windows = True
    compared_by_token = True
    compared_settings = ("max_length", "stride", "max_question_length")
    counted = types.MappingProxyType({
        "nbest_count": ("nbest_answers", "nbest_starts", "nbest_ends", "nbest_scores", "nbest_probabilities")
    })  # fmt: skip

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return tuple(tf.TensorSpec([None], tf.string, name=name) for name in ("question", "context"))

    def to_tensors(self, examples: list[QuestionExample], *, labelled: bool) -> Tensors:
        """The target is the first answer that is in the context, as in google-research/bert.

        `answer` int32 [examples, 2] is its start and end in bytes, -1 for none; `weight` float32 [examples] is 0 if
        there are answers but none is in the context.
        """
        without = next((one for one in examples if labelled and not one.answers), None)
        if without and not self.config.unanswerable:
            raise ConfigError(
                f"{without.location}: no answer, but task.unanswerable is False; train with True, or leave such "
                "questions out"
            )
        columns = {name: tf.constant([getattr(one, name) for one in examples]) for name in ("question", "context")}
        if labelled:
            columns["answer"] = tf.constant([byte_span(example) for example in examples], tf.int32)
            columns["weight"] = tf.constant([is_learned(example) for example in examples], tf.float32)
        return columns

    def unlabelled(self, examples: list[QuestionExample]) -> list[QuestionExample]:
        return [example._replace(answers=(Answer("", 0),)) for example in examples]

    def preprocess(self, columns: Tensors) -> Tensors:
        tokenizer, config = self.tokenizer, self.config
        questions = tokenizer.tokenize(columns["question"])
        added = tokenizer.specials(pairs=True)
        most = config.kept_of_question(added)
        truncated = questions.row_lengths() > most
        questions = questions[:, :most]
        # Usually there are several questions about one text: it is tokenized once.
        texts, of_question = tf.unique(columns["context"])
        ids, starts, ends = (tf.gather(value, of_question) for value in quotable_pieces(tokenizer, texts))
        budget = config.max_length - added - questions.row_lengths()
        # A converted model's windows can be shorter than the default stride.
        spans = windows(ids.row_lengths(), budget, tf.minimum(tf.cast(config.stride, tf.int64), budget))
        rows = spans[0]
        questions = tf.gather(questions, rows)
        packed, types = tokenizer.pack(questions, cut(ids, *spans))
        zero = tf.zeros([tf.size(rows), 1], tf.int32)
        separators = [zero] * (added - 2)  # between question and context

        def of_tokens(of_context: tf.RaggedTensor) -> tf.RaggedTensor:
            return tf.concat([zero, tf.zeros_like(questions), *separators, of_context, zero], 1)  # as packed

        features = {
            "input_word_ids": packed,
            "input_type_ids": types,
            "row": rows,
            "starts": of_tokens(cut(starts, *spans)),
            "ends": of_tokens(cut(ends, *spans)),
            "may_start": of_tokens(tf.cast(most_context(*spans), tf.int32)),
            "truncated": tf.gather(truncated, rows),
        }
        if "answer" in columns:
            before = questions.row_lengths() + 1 + len(separators)
            features["positions"] = answer_positions(columns["answer"], starts, ends, spans, before)
            features["weight"] = tf.gather(columns["weight"], rows)
        return features

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        """The best spans of each row, best first; google-research/bert considers only the 20 best starts and ends.

        Returns:
            scores float32 (-inf if the row has no more spans), starts and ends int32 (byte offsets in the context),
            each [rows, n_best]; null_scores float32 [rows].
        """
        most, wanted = self.config.max_answer_length, self.config.n_best
        start = tf.where(features["may_start"] > 0, outputs["start_logits"], -np.inf)
        # Special tokens and white space are empty.
        end = tf.where(features["ends"] > features["starts"], outputs["end_logits"], -np.inf)
        length = tf.shape(start)[1]
        # A span is its first token and the number of tokens that follow.
        following = tf.range(length)[:, tf.newaxis] + tf.range(most)
        end = tf.gather(tf.pad(end, [[0, 0], [0, most]], constant_values=-np.inf), following, axis=1)
        spans = tf.reshape(start[:, :, tf.newaxis] + end, [-1, length * most])  # [rows, length * most]
        spans = tf.pad(spans, [[0, 0], [0, wanted]], constant_values=-np.inf)
        scores, best = tf.math.top_k(spans, wanted)
        null_scores = outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
        # NaN has no order: without this, a damaged model would seem to find no answer.
        finite = (null_scores > -np.inf) & (null_scores < np.inf)
        scores = tf.where(finite[:, tf.newaxis], scores, np.nan)
        best = tf.where(scores > -np.inf, best, 0)
        return {
            "scores": scores,
            "starts": tf.gather(features["starts"], best // most, batch_dims=1),
            "ends": tf.gather(features["ends"], best // most + best % most, batch_dims=1),
            "null_scores": null_scores,
        }

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        """The answers.

        Returns:
            [examples]: answer string, "" for none; start and end int32, character offsets in the context, 0 and 0 for
            none; probability float32, relative to the n best answers; with `unanswerable` null_odds float32 (float32's
            largest value if no span can be an answer). And [examples, None], best first, each text once: nbest_answers
            string, nbest_starts, nbest_ends int32, nbest_scores (sums of two logits), nbest_probabilities float32,
            which leave out the probability of "".
        """
        contexts = columns["context"]
        starts, lengths = decoded["starts"], decoded["ends"] - decoded["starts"]
        lengths = tf.where(decoded["scores"] != -np.inf, lengths, 0)
        starts, lengths, scores = (tf.reshape(value, [-1]) for value in (starts, lengths, decoded["scores"]))
        of_spans = tf.repeat(rows, tf.shape(decoded["scores"])[1])
        parts = spans(contexts, of_spans, starts, starts + lengths)
        texts, starts, scores = self._best_of_each(
            of_spans, parts["text"], parts["start"], scores, tf.size(contexts, tf.int64)
        )
        ends = starts + tf.strings.length(texts, unit="UTF8_CHAR")
        is_span = scores != -np.inf  # [examples, n_best], like all of these
        best, shares = scores[:, :1], scores
        if self.config.unanswerable:
            null = tf.math.unsorted_segment_min(decoded["null_scores"], rows, tf.size(contexts))[:, tf.newaxis]
            shares = tf.concat([scores, null], 1)
        shares = tf.where(shares != -np.inf, tf.nn.softmax(shares), 0.0)  # without any span, softmax is nan
        first = [value[:, :1] for value in (texts, starts, ends, shares)]
        answers = {}
        if self.config.unanswerable:
            odds = tf.where(is_span[:, :1], null - best, tf.float32.max)
            none = odds > self.state.null_threshold
            first = [
                tf.where(none, other, value) for value, other in zip(first, ("", 0, 0, shares[:, -1:]), strict=True)
            ]
            answers["null_odds"] = odds[:, 0]
        answers |= {
            name: value[:, 0] for name, value in zip(("answer", "start", "end", "probability"), first, strict=True)
        }
        counts = tf.reduce_sum(tf.cast(is_span, tf.int64), 1)
        lists = {"answers": texts, "starts": starts, "ends": ends, "scores": scores}
        lists["probabilities"] = shares[:, : self.config.n_best]
        return answers | {
            f"nbest_{name}": tf.RaggedTensor.from_tensor(value, lengths=counts) for name, value in lists.items()
        }

    def _best_of_each(
        self, rows: tf.Tensor, texts: tf.Tensor, starts: tf.Tensor, scores: tf.Tensor, examples: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The best spans of all windows of each example, equal texts once.

        Args:
            rows: int64 [spans], the example of each span.
            texts, starts, scores: [spans].
            examples: int64 scalar, the number of examples.

        Returns:
            texts, starts, scores as [examples, n_best], best first, padded with "", 0 and -inf.
        """
        order = tf.where(scores != -np.inf)[:, 0]
        order = tf.gather(order, tf.argsort(tf.gather(scores, order), direction="DESCENDING", stable=True))
        order = tf.gather(order, tf.argsort(tf.gather(rows, order), stable=True))
        _, same = tf.unique(tf.strings.join([tf.as_string(tf.gather(rows, order)), tf.gather(texts, order)], " "))
        # tf.unique numbers texts in order of appearance: keep the first, which is the best, of each number.
        firsts = tf.math.unsorted_segment_min(
            tf.range(tf.size(same)), same, tf.reduce_max(tf.concat([same, [-1]], 0)) + 1
        )
        order = tf.gather(order, firsts)
        rows = tf.gather(rows, order)

        def dense(values: tf.Tensor, missing: Any) -> tf.Tensor:
            ragged = tf.RaggedTensor.from_value_rowids(tf.gather(values, order), rows, examples, validate=False)
            return ragged.to_tensor(missing, shape=[None, self.config.n_best])

        return dense(texts, ""), dense(starts, 0), dense(scores, -np.inf)

    def answer_tokens(self, features: Tensors, outputs: Tensors) -> Tensors:
        """`start_logits` and `end_logits`, float32 [rows, length]: as the model returns them, -10000 at padding."""
        is_token = features["input_mask"] > 0
        return {name: tf.where(is_token, outputs[name], MASKED_SCORE) for name in ("start_logits", "end_logits")}

    def _predictions(self, examples: list[QuestionExample], answers: dict[str, Array]) -> list[Json]:
        lists = [answers[f"nbest_{name}"] for name in ("answers", "starts", "ends", "scores", "probabilities")]
        columns = zip(*(answers[name].tolist() for name in ("start", "end", "probability")), strict=True)
        predictions = []
        for index, (example, text, (start, end, share)) in enumerate(
            zip(examples, strings(answers["answer"]), columns, strict=True)
        ):
            texts, *numbers = (value[index] for value in lists)
            nbest = [
                dict(zip(("answer", "start", "end", "score", "probability"), one, strict=True))
                for one in zip(strings(texts), *(values.tolist() for values in numbers), strict=True)
            ]
            prediction = {"id": example.id, "answer": text, "start": start, "end": end, "probability": share}
            if self.config.unanswerable:
                prediction["null_odds"] = float(answers["null_odds"][index])
            predictions.append(prediction | {"nbest": nbest})
        return predictions


def is_learned(example: QuestionExample) -> bool:
    """Whether the answer's position is known, or that there is none."""
    return not example.answers or example.placed is not None


def byte_span(example: QuestionExample) -> tuple[int, int]:
    """Start and end of the target answer in its context, in bytes."""
    answer = example.placed
    if answer is None or answer.start is None:
        return _MISSING, _MISSING
    end = answer.start + len(answer.text) if answer.end is None else answer.end
    return len(example.context[: answer.start].encode()), len(example.context[:end].encode())


def answer_positions(
    answers: tf.Tensor,
    starts: tf.RaggedTensor,
    ends: tf.RaggedTensor,
    spans: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
    before: tf.Tensor,
) -> tf.Tensor:
    """Positions of the answer's first and last token in each row; 0, the first, unless the window has all of it.

    Args:
        answers: int32 [examples, 2], start and end in bytes.
        starts, ends: RaggedTensors int32 [examples, None], of the context's wordpieces.
        spans: the windows, as `windows` returns them.
        before: int64 [rows], the number of tokens before the context.

    Returns:
        int32 [rows, 2].
    """
    inside = (ends > answers[:, :1]) & (starts < answers[:, 1:])
    example = tf.boolean_mask(starts.value_rowids(), inside.values)
    piece = tf.boolean_mask(tf.ragged.range(starts.row_lengths()).values, inside.values)
    examples = starts.nrows()
    first = tf.math.unsorted_segment_min(piece, example, examples)  # int64's largest value if there is none
    last = tf.math.unsorted_segment_max(piece, example, examples)
    rows, begin, end = spans
    first, last = tf.gather(first, rows), tf.gather(last, rows)
    whole = (first >= begin) & (last < end) & (first <= last)
    indices = tf.stack([first, last], 1) + (before - begin)[:, tf.newaxis]
    return tf.cast(tf.where(whole[:, tf.newaxis], indices, 0), tf.int32)
