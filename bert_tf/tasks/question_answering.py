"""Extractive question answering, with or without unanswerable questions (paper, sections 4.2, 4.3 and figure 4c)."""

import contextlib
import dataclasses
import functools
import json
import os
import types
from collections.abc import Callable, Iterable
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import ExampleData, QuestionAnsweringConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import Labels, QuestionExample, ReadReport
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.metrics.answer_spans import (
    best_threshold,
    question_scores,
    squad_1_scores,
    squad_2_questions,
    squad_2_scores,
)
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import build
from bert_tf.model.positions import MASKED_SCORE
from bert_tf.tasks.benchmark import Benchmark
from bert_tf.tasks.codec import Codec, strings
from bert_tf.tasks.error_analysis import ErrorAnalysis
from bert_tf.tasks.objective import Objective, truncated_share
from bert_tf.tasks.question_errors import question_errors, scoring_inputs
from bert_tf.tasks.question_targets import answer_positions, byte_span, is_learned
from bert_tf.tasks.task import FineTuningTask, State
from bert_tf.text.packing import pack
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.words import pieces_with_accents, spans
from bert_tf.types import Array, Json, Metrics, Tensors, Writer

NOT_LEARNED = "left out of the loss: question whose answers have no position in its context"
# Added to the logits of padding, so that a row's loss does not depend on its padding.
_PADDING = -1e9


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

    def preprocess(self, columns: Tensors) -> Tensors:
        tokenizer, config = self.tokenizer, self.config
        questions = tokenizer.tokenize(columns["question"])
        most = config.kept_of_question
        truncated = questions.row_lengths() > most
        questions = questions[:, :most]
        # Usually there are several questions about one text: it is tokenized once.
        texts, of_question = tf.unique(columns["context"])
        ids, starts, ends = (tf.gather(value, of_question) for value in pieces_with_accents(tokenizer, texts))
        budget = config.budget - questions.row_lengths()
        # A converted model's windows can be shorter than the default stride.
        spans = windows(ids.row_lengths(), budget, tf.minimum(tf.cast(config.stride, tf.int64), budget))
        rows = spans[0]
        questions = tf.gather(questions, rows)
        packed, types = pack(questions, cut(ids, *spans), cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id)
        zero = tf.zeros([tf.size(rows), 1], tf.int32)

        def of_tokens(of_context: tf.RaggedTensor) -> tf.RaggedTensor:
            return tf.concat([zero, tf.zeros_like(questions), zero, of_context, zero], 1)  # as packed

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
            before = questions.row_lengths() + 2  # [CLS] and [SEP]
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
        end = tf.where(features["ends"] > 0, outputs["end_logits"], -np.inf)
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


class QuestionObjective(Objective):
    """Cross-entropy of the answer's start and end.

    Args:
        unanswerable: whether questions may have no answer.
    """

    metric_names = ("span_accuracy", "truncated_share")

    def __init__(self, *, unanswerable: bool) -> None:
        self._unanswerable = unanswerable

    def build(self, encoder: BertEncoder) -> keras.Model:
        if self._unanswerable and encoder.config.attention == "causal":
            raise ConfigError(
                "task.unanswerable is True, so [CLS] must predict whether there is an answer, but in this model it "
                "sees no other token (model.attention is causal); train on answerable questions only"
            )
        return build(encoder, "question_answering")

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        return {"loss": tf.reduce_sum(features["weight"])}

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        padding = _PADDING * tf.cast(features["input_mask"] == 0, tf.float32)
        loss: tf.Tensor = 0.0
        right: tf.Tensor = True
        for index, name in enumerate(("start_logits", "end_logits")):
            logits, positions = outputs[name] + padding, features["positions"][:, index]
            loss += tf.nn.sparse_softmax_cross_entropy_with_logits(positions, logits) / 2
            right &= tf.argmax(logits, -1, tf.int32) == positions
        weight = features["weight"]
        counted = tf.reduce_sum(weight)
        return {
            "loss": (tf.reduce_sum(loss * weight), counted),
            "span_accuracy": (tf.reduce_sum(tf.cast(right, tf.float32) * weight), counted),
            "truncated_share": truncated_share(features),
        }


class QuestionBenchmark(Benchmark[QuestionCodec]):
    """The metrics of SQuAD 1.1, or 2.0 if questions may have no answer; KorQuAD's compare answers by its own rules."""

    monitor = "f1"

    def __init__(self, codec: QuestionCodec, metrics: str) -> None:
        super().__init__(codec, metrics)
        self._unanswerable, self._korean = codec.config.unanswerable, metrics == "korquad"

    def tune(self, examples: list[QuestionExample], predictions: list[Json]) -> None:
        """Sets the null threshold that maximizes F1 on these examples."""
        if not self._unanswerable:
            return
        state, questions = (
            self.codec.state,
            squad_2_questions(*scoring_inputs(examples, predictions), korean=self._korean),
        )
        best_f1, state.null_threshold = best_threshold(questions, questions.f1)
        if best_f1 == np.mean(~questions.has_answer):
            # No answer helps. The official search then returns 0, which is right for probabilities, but not for odds.
            state.null_threshold = float(questions.null_scores.min()) - 1.0

    def official_metrics(self, examples: list[QuestionExample], predictions: list[Json]) -> Metrics:
        gold, predicted, odds = scoring_inputs(examples, predictions)
        if self._unanswerable:
            return squad_2_scores(
                squad_2_questions(gold, predicted, odds, korean=self._korean), self.codec.state.null_threshold
            )
        return squad_1_scores(*question_scores(gold, predicted, korean=self._korean))

    def baseline(self, examples: list[QuestionExample]) -> Metrics:
        """Metrics of answering "" if questions may have no answer, else of answering the whole context."""
        if self._unanswerable:
            nothing = {"nbest": [], "null_odds": float(np.finfo(np.float32).max)}
            return self.official_metrics(examples, [nothing] * len(examples))
        return self.official_metrics(examples, [{"nbest": [{"answer": one.context}]} for one in examples])

    def error_analysis(self, examples: list[QuestionExample], predictions: list[Json]) -> ErrorAnalysis:
        threshold = self.codec.state.null_threshold if self._unanswerable else None
        return question_errors(examples, predictions, threshold, korean=self._korean)

    def writers(self) -> dict[str, Writer]:
        return {".json": functools.partial(_write_official, unanswerable=self._unanswerable)}


class QuestionAnswering(FineTuningTask):
    """Question answering."""

    name = "question_answering"
    Config = QuestionAnsweringConfig
    State = QuestionState
    example = QuestionExample

    def _parts(self, metrics: str) -> tuple[QuestionCodec, Objective, QuestionBenchmark]:
        codec = QuestionCodec(self.tokenizer, self.config, self.state)
        objective = QuestionObjective(unanswerable=self.config.unanswerable)
        return codec, objective, QuestionBenchmark(codec, metrics)

    @classmethod
    def learn(
        cls,
        tokenizer: Tokenizer,
        config: Any,
        data: ExampleData,
        examples: list[QuestionExample],
        labels: Labels | None,
    ) -> Self:
        if not any(map(is_learned, examples)):
            raise DataError(
                f"{examples[0].location}: neither this question nor any other has an answer in its context; expected "
                "at least one to learn from"
            )
        return cls(tokenizer, config, data)

    def check(self, examples: list[QuestionExample], read_report: ReadReport) -> None:
        for example in examples:
            if not is_learned(example):
                read_report.add(NOT_LEARNED, example.location)


def _write_official(path: str, predicted: Iterable[tuple[QuestionExample, Json]], *, unanswerable: bool) -> None:
    """Writes the file that the official script scores: an object from each id to its answer.

    With `unanswerable`, it also writes, beside NAME.json, NAME.nbest.json with the best answers to each question and
    their probabilities, and NAME.null_odds.json for the script's --na-prob-file.
    """
    stem = os.path.splitext(path)[0]
    files: dict[str, Callable[[Json], Any]] = {path: lambda prediction: prediction["answer"]}
    if unanswerable:
        files[f"{stem}.nbest.json"] = lambda prediction: prediction["nbest"]
        files[f"{stem}.null_odds.json"] = lambda prediction: prediction["null_odds"]
    with contextlib.ExitStack() as stack:
        opened = [(stack.enter_context(open(file, "w", encoding="utf-8")), part) for file, part in files.items()]
        for file, _ in opened:
            file.write("{")
        for number, (_, prediction) in enumerate(predicted):
            for file, part in opened:
                pair = (json.dumps(value, ensure_ascii=False) for value in (prediction["id"], part(prediction)))
                file.write((",\n" if number else "\n") + ": ".join(pair))
        for file, _ in opened:
            file.write("\n}\n")
