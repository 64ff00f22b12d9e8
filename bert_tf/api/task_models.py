"""The models of the Python API: a class per task, and one for vectors of texts."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from bert_tf.api.base import FineTuned, Lines, Model, absolute
from bert_tf.api.plain_values import (
    Values,
    column_names,
    fields_of,
    group_label,
    group_of,
    integer,
    plain,
    texts_of,
)
from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.adapt import as_reranker
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import ExampleData
from bert_tf.config.train import BatchSize, InferenceDtype
from bert_tf.config.values import checked_arguments, shown
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Cell
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.codec import check_finite
from bert_tf.tasks.intent_and_slots import IntentAndSlots as IntentAndSlotsTask
from bert_tf.tasks.masked_lm import MaskedLM as MaskedLMTask
from bert_tf.tasks.multi_label import MultiLabel
from bert_tf.tasks.multiple_choice import MultipleChoice as MultipleChoiceTask
from bert_tf.tasks.question_answering import QuestionAnswering
from bert_tf.tasks.regression import Regression
from bert_tf.tasks.replaced_tokens import DISCRIMINATOR
from bert_tf.tasks.reranking import Reranking
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.tagging import Tagging
from bert_tf.types import Json, StrPath, TfFunction

_FEW_STEPS = 60


class _TextModel(FineTuned):
    """A model of texts or pairs of texts."""

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        texts = tuple(value) if isinstance(value, tuple | list) else (value,)
        if not 1 <= len(texts) <= 2 or isinstance(value, Mapping):
            raise DataError(f"{location} is {shown(value)}; expected a text, or a pair of texts")
        return dict(zip(("text", "second_text"), texts, strict=False))

    def _lines(self, inputs: list[Any], labels: list[Any] | None, name: str) -> Lines:
        lines = super()._lines(inputs, labels, name)
        for location, line in lines:
            if ("second_text" in line) != ("second_text" in lines[0][1]):
                raise DataError(f"{location} and {lines[0][0]}: one is a text, the other a pair; expected one kind")
        return lines

    def _format_of(self, lines: Lines) -> ExampleData:
        second = "second_text" if "second_text" in lines[0][1] else ""
        return ExampleData(text="text", second_text=second, label="label")


@checked_arguments
class TextClassifier(_TextModel):
    """Classifies texts, or pairs of texts given as tuples.

    Labels are strings or integers. Floats without a fraction count as integers, because pandas stores an integer column
    with missing values as floats. `predict` returns the label and the probability of each label; the labels are
    integers if those of the training data were.

    Examples:
        >>> classifier = bert_tf.TextClassifier.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> texts, labels = ["A film to remember.", "Two lost hours."], ["positive", "negative"]
        >>> history = classifier.fit(texts, labels, epochs=1)
        >>> classifier.predict(["A quiet, moving film."])
        [{'label': ..., 'probabilities': {'negative': ..., 'positive': ...}}]
        >>> sorted(classifier.evaluate(texts, labels))
        ['accuracy', 'loss', 'macro_f1', 'truncated_share']
    """

    _kind = Classification

    def fit(self, x: Values, y: Values = None, *, few_labels: bool = False, **settings: Any) -> keras.callbacks.History:
        """Fine-tunes the pre-trained model.

        Args:
            x: inputs; see `Trainable.fit`.
            y: their labels.
            few_labels: learns from few examples per class, about 4 to 64, best from a sentence encoder: vectors of
                texts of a class get near each other, and a logistic regression on the vectors gives the class (SetFit;
                `head="vector"` in a config). By default it then takes 60 updates of 32 examples, and is evaluated at
                the end.
            **settings: as for `Trainable.fit`.
        """
        if not few_labels:
            return super().fit(x, y, **settings)
        if not {"epochs", "steps"} & settings.keys():
            settings["steps"] = _FEW_STEPS
        if "steps" in settings:
            settings.setdefault("evaluate_every", settings["steps"])
        with self._configured(head="vector"):
            return super().fit(x, y, **settings)

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        return {"label": integer(label)}

    def _answer(self, prediction: Json) -> Json:
        task: Any = self.task
        if not task.state.has_integers:
            return super()._answer(prediction)
        shares = {int(label): share for label, share in prediction["probabilities"].items()}
        return {"label": int(prediction["label"]), "probabilities": shares}


@checked_arguments
class MultiLabelClassifier(_TextModel):
    """Predicts any number of labels for a text or a pair of texts.

    The labels of a text are a list of strings. The labels of all texts can also be a matrix of 0 and 1 (a NumPy array
    or a data frame) with a column per label, named by the setting `labels`, else by the data frame, else by its number.
    `predict` returns the labels above the threshold and the probability of each label.

    Examples:
        >>> model = bert_tf.MultiLabelClassifier.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> texts = ["The plot is thin but the music is lovely.", "Great music.", "I fell asleep."]
        >>> history = model.fit(texts, [["plot", "music"], ["music"], []], epochs=1)
        >>> model.predict(["What a soundtrack!"])
        [{'labels': [...], 'probabilities': {'music': ..., 'plot': ...}}]
    """

    _kind = MultiLabel

    def fit(self, x: Values, y: Values = None, **settings: Any) -> keras.callbacks.History:
        """As `TextClassifier.fit`."""
        columns = column_names(y)
        # All of them: a label may have no example.
        with self._configured(labels=self._config.labels or tuple(columns)):
            return super().fit(x, y, **settings)

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        if isinstance(label, Cell):  # from a table that `bert_tf.read` has read
            return {"label": label}
        if not isinstance(label, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in label):
            raise DataError(
                f"{location} is {shown(label)}; expected a list of strings, or all labels as a NumPy matrix of 0 and 1"
            )
        return {"label": sorted(label)}

    def _listed_labels(self, y: Values, name: str) -> list[Any]:
        columns = column_names(y)
        if not columns:
            return super()._listed_labels(y, name)
        labels = tuple(self._config.labels or (self.task.state.labels if self._loaded else columns))
        matrix = y.to_numpy() if hasattr(y, "columns") else np.asarray(y)
        if hasattr(y, "columns") and sorted(columns) == sorted(labels):
            matrix = matrix[:, [columns.index(label) for label in labels]]
        elif hasattr(y, "columns") or matrix.shape[1] != len(labels):
            found = ", ".join(columns) if hasattr(y, "columns") else f"{len(columns)} columns"
            raise DataError(f"the labels of {name} are {found}; expected {', '.join(labels)}")
        wrong = np.argwhere(~np.isin(matrix, (0, 1)))
        if len(wrong):
            row, column = wrong[0]
            raise DataError(f"the labels of {name}[{row}] hold {shown(plain(matrix[row, column]))}; expected 0 and 1")
        return [tuple(itertools.compress(labels, row)) for row in matrix]


class TextRegressor(_TextModel):
    """Predicts a number for a text or a pair of texts; `predict` returns it as `value`.

    Examples:
        >>> model = bert_tf.TextRegressor.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> pairs = [("A man plays.", "Someone plays."), ("A cat sleeps.", "The market fell.")]
        >>> history = model.fit(pairs, [4.2, 0.3], epochs=1)
        >>> model.predict([("A dog runs.", "A dog is running.")])
        [{'value': ...}]
    """

    _kind = Regression


class TokenClassifier(FineTuned):
    """Tags words, or characters: named entities, parts of speech.

    An input is a list of words, and its label a list with one tag per word. Or an input is a text, and its label has
    one tag per character, spaces included, as in KLUE's named entities. Tags such as B-PER and I-PER form entities.

    `predict` also takes texts, which a model of words splits into words. It returns `text`, `words` (or characters),
    one of `tags` and one of `scores` for each of them (0 where there is no wordpiece), and for entities `spans`: text,
    label, start and end in characters of the text, and score.

    Examples:
        >>> tagger = bert_tf.TokenClassifier.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> sentences = [["Ada", "lived", "in", "London", "."], ["Seoul", "is", "large", "."]]
        >>> tags = [["B-PER", "O", "O", "B-LOC", "O"], ["B-LOC", "O", "O", "O"]]
        >>> history = tagger.fit(sentences, tags, epochs=1)
        >>> tagger.predict(["She was born in Seoul."])[0]["words"]
        ['She', 'was', 'born', 'in', 'Seoul', '.']
    """

    _kind = Tagging
    _inputs = "lists of words, or texts with a tag for each character,"
    _element_rank = 1

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        if isinstance(value, str):
            return {"text": value}
        if not isinstance(value, list | tuple) or not value:
            raise DataError(f"{location} is {shown(value)}; expected a list of words, or a text")
        return {"words": list(value)}

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        if not isinstance(label, list | tuple):
            unit, parts = ("character", line["text"]) if "text" in line else ("word", line["words"])
            raise DataError(f"{location} is {shown(label)}; expected {len(parts)} tags, one per {unit}")
        if any(isinstance(tag, list | tuple) for tag in label):
            raise DataError(f"{location} is {shown(label)}; expected tags: IntentAndSlots has intents beside them")
        return {"tags": list(label)}

    def _format_of(self, lines: Lines) -> ExampleData:
        return ExampleData(format="klue/ner" if any("text" in line for _, line in lines) else "conll")


class IntentAndSlots(TokenClassifier):
    """Predicts the intent of a text and tags its words, for dialogue systems.

    Inputs are those of `TokenClassifier`, and a label is a pair: the intent, a string, and the list of tags. `predict`
    adds `intent` and `intent_probabilities` to the answer of `TokenClassifier`.

    Examples:
        >>> assistant = bert_tf.IntentAndSlots.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> requests = [["play", "some", "jazz"], ["weather", "in", "Oslo"]]
        >>> labels = [("PlayMusic", ["O", "O", "B-genre"]), ("GetWeather", ["O", "O", "B-city"])]
        >>> history = assistant.fit(requests, labels, epochs=1)
        >>> assistant.predict(["play folk"])[0]["intent_probabilities"]
        {'GetWeather': ..., 'PlayMusic': ...}
    """

    _kind = IntentAndSlotsTask

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        intent, tags = fields_of(label, ("intent", "tags"), location)
        return {"label": intent} | super()._gold(tags, line, location)


class QuestionAnswerer(FineTuned):
    """Answers questions with a part of a text, as in SQuAD.

    An input is a pair (question, context) or a dict with these keys. A label is the text of the answer, meaning its
    first occurrence in the context; or a list of dicts with `text` and `answer_start`, or a dict with a list of
    each, as in SQuAD; or None if the question has no answer (with the setting unanswerable=True). `predict` returns
    `answer`, its `start` and `end` in characters of the context, its `probability`, and the best candidates as `nbest`.

    Examples:
        >>> reader = bert_tf.QuestionAnswerer.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> pair = ("When was Mozart born?", "Mozart was born in Salzburg in 1756.")
        >>> history = reader.fit([pair], ["1756"], epochs=1)
        >>> answer = reader.predict([pair])[0]
        >>> pair[1][answer["start"] : answer["end"]] == answer["answer"]
        True
    """

    _kind = QuestionAnswering

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        line = dict(zip(("question", "context"), fields_of(value, ("question", "context"), location), strict=True))
        return line | ({"answers": []} if labelled else {})

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        if isinstance(label, Mapping):
            return {
                "answers": {name: list(value) if isinstance(value, tuple) else value for name, value in label.items()}
            }
        if isinstance(label, list | tuple):
            return {"answers": list(label)}
        if not isinstance(label, str):
            raise DataError(f"{location} is {shown(label)}; expected a text, None, or a dict or list as in SQuAD")
        # Its first occurrence; a text that does not occur is not at 0 either, which the reader counts.
        start = max(0, line["context"].find(label)) if isinstance(line["context"], str) else 0
        return {"answers": [{"text": label, "start": start}] if label else []}

    def _format_of(self, lines: Lines) -> ExampleData:
        return ExampleData(format="squad2" if self._config.unanswerable else "squad")


@checked_arguments
class Reranker(FineTuned):
    """Scores texts for a query, which it reads together; for the best ones that a `SentenceEncoder` has found.

    An input is a tuple: a query, and one or several texts. In `fit` and `evaluate` the first text belongs to the query
    and the others do not, unless there are labels: a number for a pair, or a list with a score for each text. `predict`
    returns the `scores` of the texts. CrossEncoders of sentence-transformers are opened and written, too.

    Examples:
        >>> reranker = bert_tf.Reranker.from_pretrained("hf://cross-encoder/ms-marco-MiniLM-L6-v2")
        >>> groups = [("Who wrote Faust?", "Goethe wrote Faust.", "Oslo lies in Norway.")]
        >>> history = reranker.fit(groups, epochs=1)
        >>> reranker.predict(groups)
        [{'scores': [..., ...]}]
        >>> reranker.rank("Where is Oslo?", ["Goethe wrote Faust.", "Oslo lies in Norway."])[0]
        {'index': ..., 'text': ..., 'score': ...}
    """

    _kind = Reranking
    _format = ExampleData(format="groups")
    _inputs = "tuples of a query and texts,"
    _needs_labels = False

    def __init__(self, path: str, checkpoint: Checkpoint, dtype: InferenceDtype, settings: Json) -> None:
        super().__init__(path, as_reranker(checkpoint), dtype, settings)
        # `fit` does not take the objective of an earlier training, which may not fit its examples.
        self._config = dataclasses.replace(self._config, objective=settings.get("objective", ""))

    def rank(self, query: str, texts: Values, *, batch_size: BatchSize = 32) -> list[Json]:
        """Sorts texts by their scores for a query.

        Returns:
            For each text, the best first, a dict of its index in `texts`, text and score.
        """
        listed = texts_of(texts)
        if not listed:
            return []
        scores = self.predict([(query, *listed)], batch_size=batch_size)[0]["scores"]
        order = sorted(range(len(listed)), key=lambda index: -scores[index])
        return [{"index": index, "text": listed[index], "score": scores[index]} for index in order]

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        return group_of(value, location, least=2)

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        return group_label(label, line, location)


class MultipleChoice(FineTuned):
    """Chooses the text that fits a context.

    An input is a tuple (context, choices) or (context, question, choices), or a dict with these keys. A label is the
    index of the right choice. `predict` returns `choice` (its index), `label` (its text) and the `probabilities` of all
    choices.

    Examples:
        >>> model = bert_tf.MultipleChoice.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> questions = [("The vase fell.", ["It broke.", "It sang."])]
        >>> history = model.fit(questions, [0], epochs=1)
        >>> model.predict(questions)
        [{'choice': ..., 'label': ..., 'probabilities': [..., ...]}]
    """

    _kind = MultipleChoiceTask
    _format = ExampleData(format="choices")

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        if isinstance(value, Mapping):
            value = {"question": ""} | dict(value)
        elif isinstance(value, list | tuple) and len(value) == 2:
            value = (value[0], "", value[1])
        names = ("context", "question", "choices")
        context, question, choices = fields_of(value, names, location)
        choices = list(choices) if isinstance(choices, tuple) else choices
        return dict(zip(names, (context, question, choices), strict=True))


@checked_arguments
class MaskedLM(Model[MaskedLMTask]):
    """A pre-trained masked language model, which fills in the mask tokens of a text: [MASK] or <mask>.

    Examples:
        >>> model = bert_tf.MaskedLM.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> model.predict(["Paris is the [MASK] of France."])
        [[[{'token': ..., 'continues': ..., 'probability': ...}, ...]]]
    """

    _kind = MaskedLMTask

    @classmethod
    def from_pretrained(cls, path: StrPath, *, dtype: InferenceDtype = "float32") -> Self:
        """Opens a model that has its masked-language-model head.

        Args:
            path: a model in any format that `bert_tf.load` reads, or "hf://OWNER/NAME".
            dtype: as for `TextClassifier.from_pretrained`.
        """
        path = absolute(path)
        checkpoint = open_with_warnings(path)
        if checkpoint.head == "replaced_token_detection":
            raise DataError(f"{path}: {DISCRIMINATOR}")
        model = cls(path, checkpoint, dtype)
        if model._loaded is None:
            lacks = model._lacks or "no masked-language-model head"
            raise DataError(f"{path}: {lacks}; expected a pre-trained model that kept its head")
        return model

    def predict(self, texts: Values, *, batch_size: BatchSize = 32) -> list[list[list[Json]]]:
        """Predicts the token of each mask within the model's maximum length.

        Returns:
            A list per text and, in it, a list per mask: dicts of token (its text), continues (whether it joins the text
            before the mask without a space) and probability, the best first.
        """
        listed = texts_of(texts)
        predictions: list[list[list[Json]]] = []
        for first in range(0, len(listed), batch_size):
            outputs = self._predict(tf.constant(listed[first : first + batch_size]))
            columns = [outputs[name].numpy() for name in ("tokens", "continues", "probabilities", "mask_count")]
            check_finite({"probabilities": columns[2]}, [f"texts[{first + row}]" for row in range(len(columns[2]))])
            for *best, masks in zip(*columns, strict=True):
                predictions.append(
                    [
                        [
                            {"token": token.decode(), "continues": continues, "probability": share}
                            for token, continues, share in zip(*(column[mask].tolist() for column in best), strict=True)
                        ]
                        for mask in range(masks)
                    ]
                )
        return predictions

    @functools.cached_property
    def _predict(self) -> TfFunction:
        task, model = self._trained()
        return task.signatures(model)[DEFAULT]
