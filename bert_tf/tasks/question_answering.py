"""Questions that a span of a text answers, or nothing does (paper, sections 4.2, 4.3 and figure 4c)."""

import contextlib
import dataclasses
import json
import os
import types

import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import QuestionExample
from bert_tf.inputs.packing import pack
from bert_tf.inputs.windows import cut, most_context, windows
from bert_tf.metrics.squad import (
    best_threshold,
    korquad_scores,
    squad_1_scores,
    squad_2_question_scores,
    squad_2_scores,
)
from bert_tf.tasks.fine_tuning_task import FineTuningTask, TaskConfig, strings, truncated_share
from bert_tf.tasks.question_errors import by_id, question_errors
from bert_tf.text.words import pieces_with_accents, spans

NOT_LEARNED = "left out of the loss: question whose answers have no index in its context"
_SPECIALS = 3  # [CLS] question [SEP] context [SEP]
_NOWHERE = -1  # the byte where an answer begins that is not there
# Added to the logits of padding, so that a row's loss does not depend on what it is padded to.
_PADDING = -1e9


@dataclasses.dataclass
class QuestionAnsweringConfig(TaskConfig):
    """Questions about texts; the numbers are those of google-research/bert's run_squad.py.

    Attributes:
        max_length: tokens of a window: question, a part of the context and three specials.
        stride: tokens from the beginning of a window of the context to that of the next.
        max_question_length: tokens of a question that are kept, its first; never more than half of a window.
        n_best: answers that are given with their probabilities, at most.
        max_answer_length: tokens of an answer, at most.
        unanswerable: whether there may be no answer, as in SQuAD 2.0.
    """

    max_length: int = 384
    stride: int = 128
    max_question_length: int = 64
    n_best: int = 20
    max_answer_length: int = 30
    unanswerable: bool = False

    def check(self):
        super().check()
        for field in ("stride", "max_question_length", "n_best", "max_answer_length"):
            if getattr(self, field) < 1:
                raise ConfigError(f"task.{field} is {getattr(self, field)}; it must be at least 1")
        room = self.max_length - _SPECIALS - self.kept_of_question
        if self.stride > room:
            raise ConfigError(
                f"task.stride is {self.stride}; it must be at most {room}, the tokens that a window has beside the "
                "longest question, so that windows leave nothing out"
            )
        return self

    @property
    def kept_of_question(self):
        """Tokens of a question that are kept, at most."""
        return min(self.max_question_length, (self.max_length - _SPECIALS) // 2)


class QuestionAnswering(FineTuningTask):
    """Questions about texts of any length: a context becomes windows, of which the best span is the answer.

    The exported model takes `question` and `context`, string [batch], and returns `aggregate_windows`'s dict.

    Attributes:
        null_threshold: there is no answer where the null odds are above it: the score of having none (in the window
            where it is smallest) less that of the best span, both sums of two logits.
    """

    name = "question_answering"
    Config = QuestionAnsweringConfig
    example = QuestionExample
    state = ("null_threshold",)
    null_threshold = 0.0
    losses = ("loss",)
    metric_names = ("span_accuracy", "truncated_share")
    monitor = "f1"
    windows = True
    counted = types.MappingProxyType({
        "nbest_count": ("nbest_answers", "nbest_starts", "nbest_ends", "nbest_scores", "nbest_probabilities")
    })  # fmt: skip

    @classmethod
    def create(cls, tokenizer, config, data, examples, labels):
        if not any(map(_is_learned, examples)):
            raise DataError(
                f"{examples[0].location}: neither this question nor any other has an answer that stands in its context; "
                "expected one at least, to learn from"
            )
        return cls(tokenizer, config, data)

    def check(self, examples, read_report):
        for example in examples:
            if not _is_learned(example):
                read_report.add(NOT_LEARNED, example.location)

    def build(self, encoder):
        if self.config.unanswerable and encoder.config.attention == "causal":
            raise ConfigError(
                "task.unanswerable is True, and then [CLS] says whether there is an answer, but in this model it sees "
                "no other token (model.attention is causal); train on questions that all have one"
            )
        return super().build(encoder)

    def inputs(self):
        return tuple(tf.TensorSpec([None], tf.string, name=name) for name in ("question", "context"))

    def to_tensors(self, examples, *, labelled):
        """Learned is the first answer that the context holds, as in google-research/bert.

        `answer` int32 [examples, 2] says where it begins and ends, in bytes, -1 for none; `weight` float32 [examples]
        is 0 where there are answers, but none of them in the context.

        Raises:
            ConfigError: an example has no answer, and the task does not take such questions.
        """
        without = next((one for one in examples if labelled and not one.answers), None)
        if without and not self.config.unanswerable:
            raise ConfigError(
                f"{without.location}: no answer, but task.unanswerable is False; train with True, or leave such questions "
                "out"
            )
        columns = {name: tf.constant([getattr(one, name) for one in examples]) for name in ("question", "context")}
        if labelled:
            columns["answer"] = tf.constant([_bytes(example) for example in examples], tf.int32)
            columns["weight"] = tf.constant([_is_learned(example) for example in examples], tf.float32)
        return columns

    def preprocess(self, columns):
        tokenizer, config = self.tokenizer, self.config
        questions = tokenizer.tokenize(columns["question"])
        most = config.kept_of_question
        truncated = questions.row_lengths() > most
        questions = questions[:, :most]
        # Several questions are asked about one text, mostly: it is cut into pieces once.
        texts, of_question = tf.unique(columns["context"])
        ids, starts, ends = (tf.gather(value, of_question) for value in pieces_with_accents(tokenizer, texts))
        budget = config.max_length - _SPECIALS - questions.row_lengths()
        # A converted model's windows can be shorter than the stride that settings have where none is given.
        spans = windows(ids.row_lengths(), budget, tf.minimum(tf.cast(config.stride, tf.int64), budget))
        rows = spans[0]
        questions, context = tf.gather(questions, rows), cut(ids, *spans)
        packed, types = pack(questions, context, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id)
        before = questions.row_lengths() + 2  # [CLS] and [SEP]
        window = context.value_rowids()
        indices = tf.gather(packed.row_starts() + before - context.row_starts(), window)
        indices += tf.range(tf.size(context.values, tf.int64))
        chosen = tf.cast(most_context(*spans).values, tf.int32)
        of_piece = tf.stack([cut(starts, *spans).values, cut(ends, *spans).values, chosen], axis=1)
        of_token = tf.scatter_nd(indices[:, tf.newaxis], of_piece, [tf.size(packed.values, tf.int64), 3])
        starts_of_token, ends_of_token, may_start = tf.unstack(of_token, axis=1)
        features = {
            "input_word_ids": packed,
            "input_type_ids": types,
            "row": rows,
            "starts": packed.with_values(starts_of_token),
            "ends": packed.with_values(ends_of_token),
            "may_start": packed.with_values(may_start),
            "truncated": tf.gather(truncated, rows),
        }
        if "answer" in columns:
            features["positions"] = _positions(columns["answer"], starts, ends, spans, before)
            features["weight"] = tf.gather(columns["weight"], rows)
        return features

    def weights(self, features):
        return {"loss": tf.reduce_sum(features["weight"])}

    def loss_and_metrics(self, features, outputs):
        padding = _PADDING * tf.cast(features["input_mask"] == 0, tf.float32)
        loss, right = 0.0, True
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

    def postprocess(self, features, outputs):
        """The best spans of each row, best first; google-research/bert looks at its 20 best starts and ends only.

        Returns:
            scores float32 (-inf where the row has no further span), starts and ends int32 (bytes of the context), each
            [rows, n_best]; null_scores float32 [rows].
        """
        most, wanted = self.config.max_answer_length, self.config.n_best
        start = tf.where(features["may_start"] > 0, outputs["start_logits"], -np.inf)
        end = tf.where(features["ends"] > 0, outputs["end_logits"], -np.inf)
        length = tf.shape(start)[1]
        # A span is its first token and how many follow.
        following = tf.range(length)[:, tf.newaxis] + tf.range(most)
        end = tf.gather(tf.pad(end, [[0, 0], [0, most]], constant_values=-np.inf), following, axis=1)
        spans = tf.reshape(start[:, :, tf.newaxis] + end, [-1, length * most])  # [rows, length * most]
        spans = tf.pad(spans, [[0, 0], [0, wanted]], constant_values=-np.inf)
        scores, best = tf.math.top_k(spans, wanted)
        best = tf.where(scores > -np.inf, best, 0)
        return {
            "scores": scores,
            "starts": tf.gather(features["starts"], best // most, batch_dims=1),
            "ends": tf.gather(features["ends"], best // most + best % most, batch_dims=1),
            "null_scores": outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0],
        }

    def aggregate_windows(self, columns, rows, decoded):
        """The answers.

        Returns:
            dict of [examples]: answer string, "" where there is none; start and end int32, where it stands in the
            context, in characters, 0 and 0 for none; probability float32, among the answers that follow; with
            `unanswerable` null_odds float32 (float32's largest where no span can be an answer). And of [examples,
            None], best first, each text once: nbest_answers string, nbest_starts, nbest_ends int32, nbest_scores
            (sums of two logits), nbest_probabilities float32, the share of "" among them left out.
        """
        contexts = columns["context"]
        starts, lengths = decoded["starts"], decoded["ends"] - decoded["starts"]
        lengths = tf.where(decoded["scores"] > -np.inf, lengths, 0)
        starts, lengths, scores = (tf.reshape(value, [-1]) for value in (starts, lengths, decoded["scores"]))
        of_spans = tf.repeat(rows, tf.shape(decoded["scores"])[1])
        found = spans(contexts, of_spans, starts, starts + lengths)
        texts, starts, scores = self._best_of_each(
            of_spans, found["text"], found["start"], scores, tf.size(contexts, tf.int64)
        )
        ends = starts + tf.strings.length(texts, unit="UTF8_CHAR")
        there = scores > -np.inf  # [examples, n_best], as all of these
        best, shares = scores[:, :1], scores
        if self.config.unanswerable:
            null = tf.math.unsorted_segment_min(decoded["null_scores"], rows, tf.size(contexts))[:, tf.newaxis]
            shares = tf.concat([scores, null], 1)
        shares = tf.where(shares > -np.inf, tf.nn.softmax(shares), 0.0)  # without any, softmax is not a number
        first = [value[:, :1] for value in (texts, starts, ends, shares)]
        answers = {}
        if self.config.unanswerable:
            odds = tf.where(there[:, :1], null - best, tf.float32.max)
            none = odds > self.null_threshold
            first = [
                tf.where(none, other, value) for value, other in zip(first, ("", 0, 0, shares[:, -1:]), strict=True)
            ]
            answers["null_odds"] = odds[:, 0]
        answers |= {
            name: value[:, 0] for name, value in zip(("answer", "start", "end", "probability"), first, strict=True)
        }
        counts = tf.reduce_sum(tf.cast(there, tf.int64), 1)
        lists = {"answers": texts, "starts": starts, "ends": ends, "scores": scores}
        lists["probabilities"] = shares[:, : self.config.n_best]
        return answers | {
            f"nbest_{name}": tf.RaggedTensor.from_tensor(value, lengths=counts) for name, value in lists.items()
        }

    def _best_of_each(self, rows, texts, starts, scores, examples):
        """Of all windows of an example the best spans, equal texts once.

        Args:
            rows, texts, starts, scores: [spans]; rows is int64, the example of each.
            examples: int64, how many.

        Returns:
            The three as [examples, n_best], best first; "", 0 and -inf where there are no more.
        """
        order = tf.where(scores > -np.inf)[:, 0]
        order = tf.gather(order, tf.argsort(tf.gather(scores, order), direction="DESCENDING", stable=True))
        order = tf.gather(order, tf.argsort(tf.gather(rows, order), stable=True))
        _, same = tf.unique(tf.strings.join([tf.as_string(tf.gather(rows, order)), tf.gather(texts, order)], " "))
        # What is unique is numbered as it comes: the first, and best, of each number is kept.
        firsts = tf.math.unsorted_segment_min(
            tf.range(tf.size(same)), same, tf.reduce_max(tf.concat([same, [-1]], 0)) + 1
        )
        order = tf.gather(order, firsts)
        rows = tf.gather(rows, order)

        def dense(values, missing):
            ragged = tf.RaggedTensor.from_value_rowids(tf.gather(values, order), rows, examples, validate=False)
            return ragged.to_tensor(missing, shape=[None, self.config.n_best])

        return dense(texts, ""), dense(starts, 0), dense(scores, -np.inf)

    def answer_tokens(self, features, outputs):
        """`start_logits` and `end_logits`, float32 [rows, length], as the model gives them."""
        return {name: outputs[name] for name in ("start_logits", "end_logits")}

    def predictions(self, examples, answers):
        lists = [answers[f"nbest_{name}"] for name in ("answers", "starts", "ends", "scores", "probabilities")]
        found = zip(*(answers[name].tolist() for name in ("start", "end", "probability")), strict=True)
        predictions = []
        for index, (example, text, (start, end, share)) in enumerate(
            zip(examples, strings(answers["answer"]), found, strict=True)
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

    def tune(self, examples, predictions):
        """The null threshold that gives the best F1 on these examples."""
        if not self.config.unanswerable:
            return
        gold, found, odds = by_id(examples, predictions)
        _, f1 = squad_2_question_scores(gold, found)
        score, self.null_threshold = best_threshold(gold, found, f1, odds)
        if score == np.mean([not answers for answers in gold.values()]):
            # No answer helps. The official search then says 0, which is right for probabilities, but not for odds.
            self.null_threshold = min(odds.values()) - 1.0

    def official_metrics(self, examples, predictions):
        gold, found, odds = by_id(examples, predictions)
        if self.config.unanswerable:
            return squad_2_scores(gold, found, odds, self.null_threshold)
        return (korquad_scores if self.data.format == "korquad" else squad_1_scores)(gold, found)

    def baseline(self, examples):
        """What "" scores where there may be no answer, else what the whole context does."""
        if self.config.unanswerable:
            nothing = {"nbest": [], "null_odds": float(np.finfo(np.float32).max)}
            return self.official_metrics(examples, [{"id": one.id} | nothing for one in examples])
        return self.official_metrics(examples, [{"id": one.id, "nbest": [{"answer": one.context}]} for one in examples])

    def error_analysis(self, examples, predictions):
        threshold = self.null_threshold if self.config.unanswerable else None
        return question_errors(examples, predictions, threshold, korean=self.data.format == "korquad")

    def writers(self):
        return super().writers() | {".json": self._write_official}

    def _write_official(self, path, predicted):
        """The file that the official script scores: an object from each id to its answer.

        With `unanswerable`, NAME.nbest.json has each question's best answers with their probabilities and
        NAME.null_odds.json what the script's --na-prob-file takes, both beside NAME.json.
        """
        stem = os.path.splitext(path)[0]
        files = {path: lambda prediction: prediction["answer"]}
        if self.config.unanswerable:
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


def _is_learned(example):
    """Whether it is known where the answer stands, or that there is none."""
    return not example.answers or example.placed is not None


def _bytes(example):
    """Where the answer that is learned begins and ends in its context, in bytes."""
    answer = example.placed
    if answer is None:
        return _NOWHERE, _NOWHERE
    start = len(example.context[: answer.start].encode())
    return start, start + len(answer.text.encode())


def _positions(answers, starts, ends, spans, before):
    """Where in each row the answer's first and last token are; [CLS], 0, where the window has not all of them.

    Args:
        answers: int32 [examples, 2], its first and past its last byte.
        starts, ends: RaggedTensors int32 [examples, None], of the context's pieces.
        spans: of the windows, as `windows` gives.
        before: int64 [rows], tokens before the context.

    Returns:
        int32 [rows, 2].
    """
    inside = (ends > answers[:, :1]) & (starts < answers[:, 1:])
    example = tf.boolean_mask(starts.value_rowids(), inside.values)
    piece = tf.boolean_mask(tf.ragged.range(starts.row_lengths()).values, inside.values)
    examples = starts.nrows()
    first = tf.math.unsorted_segment_min(piece, example, examples)  # without pieces the largest number there is
    last = tf.math.unsorted_segment_max(piece, example, examples)
    rows, begin, end = spans
    first, last = tf.gather(first, rows), tf.gather(last, rows)
    whole = (first >= begin) & (last < end) & (first <= last)
    indices = tf.stack([first, last], 1) + (before - begin)[:, tf.newaxis]
    return tf.cast(tf.where(whole[:, tf.newaxis], indices, 0), tf.int32)
