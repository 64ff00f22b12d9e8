"""Extractive question answering, with or without unanswerable questions (paper, sections 4.2, 4.3 and figure 4c)."""

import contextlib
import functools
import json
import math
import os
import types
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import QuestionAnsweringConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import Labels, QuestionExample, ReadReport
from bert_tf.metrics.answer_spans import (
    Squad2Questions,
    best_threshold,
    question_scores,
    squad_1_scores,
    squad_2_questions,
    squad_2_scores,
)
from bert_tf.metrics.statistics import bootstrap_intervals
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.benchmark import LISTED, Benchmark, ErrorAnalysis, ErrorExample
from bert_tf.tasks.objective import Objective, SoftOutput, truncated_share
from bert_tf.tasks.question_codec import QuestionCodec, QuestionState, is_learned
from bert_tf.tasks.task import FineTuningTask
from bert_tf.types import Json, Metrics, Tensors, Writer

NOT_LEARNED = "left out of the loss: question whose answers have no position in its context"
# Added to the logits of padding, so that a row's loss does not depend on its padding.
_PADDING = -1e9
# Of the examples shown: how many, the characters of context around the answer, and the text for "no answer".
_SHOWN, _AROUND, _NOTHING = 20, 200, "(no answer)"


class QuestionObjective(Objective):
    """Cross-entropy of the answer's start and end.

    Args:
        unanswerable: whether questions may have no answer.
        max_length: tokens of a window.
    """

    metric_names = ("span_accuracy", "truncated_share")
    soft_outputs = types.MappingProxyType(
        dict.fromkeys(("start_logits", "end_logits"), SoftOutput(weight=0.5, over_parts=True))
    )

    def __init__(self, *, unanswerable: bool, max_length: int) -> None:
        self._unanswerable, self._max_length = unanswerable, max_length

    def build(self, encoder: BertEncoder) -> keras.Model:
        if self._unanswerable and encoder.config.attention == "causal":
            raise ConfigError(
                "task.unanswerable is True, so the first token must predict whether there is an answer, but in this "
                "model it sees no other token (model.attention is causal); train on answerable questions only"
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

    def answered(self, features: Tensors) -> dict[str, tf.Tensor]:
        """As in Objective; the parts are the tokens of all windows."""
        mask = features["input_mask"]
        first = tf.cast(features["window"], tf.int32) * self._max_length
        tokens = tf.where(mask > 0, first[:, tf.newaxis] + tf.range(tf.shape(mask)[1]), -1)
        return dict.fromkeys(self.soft_outputs, tokens)


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
            squad_2_questions(*_scoring_inputs(examples, predictions), korean=self._korean),
        )
        best_f1, state.null_threshold = best_threshold(questions, questions.f1)
        if best_f1 == np.mean(~questions.has_answer):
            # No answer helps. The official search then returns 0, which is right for probabilities, but not for odds.
            state.null_threshold = float(questions.null_scores.min()) - 1.0

    def official_metrics(self, examples: list[QuestionExample], predictions: list[Json]) -> Metrics:
        gold, predicted, odds = _scoring_inputs(examples, predictions)
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
        gold, predicted, odds = _scoring_inputs(examples, predictions)
        if threshold is None:
            exact, f1 = question_scores(gold, predicted, korean=self._korean)
            intervals = bootstrap_intervals(squad_1_scores, exact, f1)
        else:
            questions = squad_2_questions(gold, predicted, odds, korean=self._korean)
            exact, f1 = np.where(questions.null_scores > threshold, ~questions.has_answer, questions[:2])
            intervals = bootstrap_intervals(
                lambda *columns: _shares(squad_2_scores(Squad2Questions(*columns), threshold)), *questions
            )
            predicted = ["" if null > threshold else text for text, null in zip(predicted, odds, strict=True)]
        answered = [index for index, text in enumerate(predicted) if text]
        confidences = [predictions[index]["nbest"][0]["probability"] for index in answered]

        def shown(index: int, confidence: float | None = None) -> ErrorExample:
            one = examples[index]
            texts = one.question, _excerpt(one)
            expected = " / ".join(dict.fromkeys(gold[index])) or _NOTHING
            return ErrorExample(texts, expected, predicted[index] or _NOTHING, one.location, confidence)

        # A wrong answer is worse than none, and a confident one is the worst.
        wrong = [(confidence, index) for confidence, index in zip(confidences, answered, strict=True) if not f1[index]]
        wrong.sort(key=lambda pair: -pair[0])
        sample = range(0, len(examples), max(1, len(examples) // _SHOWN))
        return ErrorAnalysis(
            intervals=intervals,
            confidences=confidences,
            correct=[bool(exact[index]) for index in answered],
            errors=[shown(index, confidence) for confidence, index in wrong[:LISTED]],
            examples=[shown(index) for index in sample][:_SHOWN],
        )

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
        objective = QuestionObjective(unanswerable=self.config.unanswerable, max_length=self.config.max_length)
        return codec, objective, QuestionBenchmark(codec, metrics)

    def _learn(self, examples: list[QuestionExample], labels: Labels | None) -> None:
        if not any(map(is_learned, examples)):
            raise DataError(
                f"{examples[0].location}: neither this question nor any other has an answer in its context; expected "
                "at least one to learn from"
            )

    def check(self, examples: list[QuestionExample], read_report: ReadReport) -> None:
        for example in examples:
            if not is_learned(example):
                read_report.add(NOT_LEARNED, example.location)


def _scoring_inputs(
    examples: list[QuestionExample], predictions: list[Json]
) -> tuple[list[list[str]], list[str], list[float]]:
    """Gold texts, text of the best span ("" if there is none) and null odds (if the task has them) of each question.

    A diverged model, whose odds are NaN, has no answer.
    """
    gold = [_gold(example) for example in examples]
    predicted = [one["nbest"][0]["answer"] if one["nbest"] else "" for one in predictions]
    odds = [one["null_odds"] for one in predictions if "null_odds" in one]
    return gold, predicted, [math.inf if value != value else value for value in odds]


def _gold(example: QuestionExample) -> list[str]:
    assert example.answers is not None  # labelled
    return [answer.text for answer in example.answers]


def _shares(metrics: Metrics) -> Metrics:
    """The metrics without counts and thresholds, whose intervals mean nothing."""
    return {name: value for name, value in metrics.items() if not name.endswith(("total", "thresh"))}


def _excerpt(example: QuestionExample) -> str:
    """The context around the first answer, or its beginning."""
    answer = example.placed
    first, last = 0, 2 * _AROUND
    if answer and answer.start is not None:
        first, last = max(0, answer.start - _AROUND), answer.start + len(answer.text) + _AROUND
    context = example.context
    return ("…" if first else "") + context[first:last] + ("…" if last < len(context) else "")


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
