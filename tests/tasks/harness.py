"""Every task that an encoder is fine-tuned on, in small. A new task is covered by one row of ROWS.

`test_every_task.py` passes each row through fit, evaluate, predict, save, load, export and resume.
"""

import json
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import sklearn.metrics
from scipy import stats

import bert_tf
from bert_tf.config import FeatureConfig
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import InMemory
from tests.zoo import LENGTH, made, pretrained

# Three updates, with a checkpoint after each. The learning rate is large, so that answers depend on the text.
SETTINGS = {
    "epochs": 1,
    "batch_size": 2,
    "learning_rate": 1e-2,
    "dtype": "float32",
    "seed": 3,
    "save_every": 1,
    "verbose": False,
}


class Row(NamedTuple):
    """A task, examples, and what is known of its answers.

    Attributes:
        api: the task's class in `bert_tf`.
        settings: of the task.
        x: six inputs, among them long ones, in a batch with short ones.
        y: their labels.
        unusual: inputs without text, or with a part of it only.
        metrics: function of y and the predictions for x to some metrics of `evaluate`, computed in another way.
        check: function of an input and its prediction, which asserts what holds for each prediction.
        member: of the family, whose architecture the encoder has; "" for BERT's.
    """

    api: Any
    settings: dict[str, Any]
    x: list[Any]
    y: list[Any]
    unusual: list[Any]
    metrics: Callable[[list[Any], list[Any]], dict[str, float]]
    check: Callable[[Any, Any], None]
    member: str = ""


LONG = "a b the good c d " * 6
TEXTS = ["the good", "a b c", LONG, "good! the good?", "c, b, a", "É 가 " + LONG]
PAIRS = [*zip(TEXTS, TEXTS[2:] + TEXTS[:2], strict=True)]
HALVES = [("a", ""), ("", "a"), ("", "")]
WORDS = [["the", "good"], ["a", "b", "c"], LONG.split(), ["goods", "é", "x!"], ["b"], ["c", "\u200b", "d", "e"]]
SENTENCES = ["the a", "a b c d", LONG[:40], "goods", "b a", "x! é가"]
QUESTIONS = [(question, context) for question, context in zip(["the b?", "a", LONG] * 2, TEXTS, strict=True)]
UNASKED = [("a?", ""), ("a?", " "), ("", "a b")]
CHOICES = [(context, TEXTS[row : row + 2 + row % 3]) for row, context in enumerate(reversed(TEXTS[1:]))]
GROUPS = [*((context, *choices) for context, choices in CHOICES), (LONG, "what?", "a", LONG)]
CHOICES.append((LONG, "what?", ["a", LONG]))


def _classes(y, predictions):
    found = [one["label"] for one in predictions]
    return {
        "accuracy": sklearn.metrics.accuracy_score(y, found),
        "macro_f1": sklearn.metrics.f1_score(y, found, average="macro"),
    }


def _classes_and_loss(y, predictions):
    """The loss, too, which is that of the predicted probabilities where a text is one window."""
    shares = np.array(
        [list(one["probabilities"].values()) for one in predictions], np.float32
    )  # of which they sum to one
    loss = sklearn.metrics.log_loss(y, shares, labels=list(predictions[0]["probabilities"]))
    return {"loss": loss} | _classes(y, predictions)


def _check_class(_, prediction):
    shares = prediction["probabilities"]
    assert prediction["label"] == max(shares, key=shares.get) and math.isclose(sum(shares.values()), 1, rel_tol=1e-5)


def _numbers(y, predictions):
    found = [one["value"] for one in predictions]
    return {"pearson": stats.pearsonr(y, found)[0], "spearman": stats.spearmanr(y, found)[0]}


def _check_number(_, prediction):
    assert list(prediction) == ["value"] and type(prediction["value"]) is float


def _several(y, predictions):
    names = list(predictions[0]["probabilities"])
    gold, found = (
        np.array([[name in labels for name in names] for labels in rows])
        for rows in (y, [one["labels"] for one in predictions])
    )
    shares = np.array([list(one["probabilities"].values()) for one in predictions])
    return {
        "loss": np.mean([sklearn.metrics.log_loss(*one, labels=[0, 1]) for one in zip(gold.T, shares.T, strict=True)]),
        "exact_match": sklearn.metrics.accuracy_score(gold, found),
        "micro_f1": sklearn.metrics.f1_score(gold, found, average="micro", zero_division=0),
        "macro_f1": sklearn.metrics.f1_score(gold, found, average="macro", zero_division=0),
    }


def _check_labels(_, prediction):
    likely = [label for label, share in prediction["probabilities"].items() if share > 0.4]
    assert prediction["labels"] == likely


def _spans(tags):
    """The entities of tags in IOB2, of which those of a model are a sequence: (label, first word, end)."""
    spans = []
    for place, tag in enumerate(tags):
        if tag.startswith("B-") or (tag.startswith("I-") and (place == 0 or tags[place - 1][1:] != tag[1:])):
            spans.append((tag[2:], place, place + 1))
        elif tag.startswith("I-"):
            spans[-1] = (*spans[-1][:2], place + 1)
    return set(spans)


def _entities(y, predictions):
    gold, found = (
        [
            _spans([tag for tag, word in zip(tags, one["words"], strict=True) if word != " "])
            for tags, one in zip(rows, predictions, strict=True)
        ]
        for rows in (y, [one["tags"] for one in predictions])
    )
    right = sum(len(one & other) for one, other in zip(gold, found, strict=True))
    counts = [sum(map(len, spans)) for spans in (found, gold)]
    return {"precision": right / max(counts[0], 1), "recall": right / counts[1], "f1": 2 * right / sum(counts)}


def _check_tags(words, prediction):
    if not isinstance(words, str):
        assert prediction["words"] == words
    elif not words.strip():
        assert "".join(prediction["words"]) in ("", words)  # a model of characters tags spaces
    assert len(prediction["tags"]) == len(prediction["scores"]) == len(prediction["words"])
    for span in prediction["spans"]:
        assert prediction["text"][span["start"] : span["end"]] == span["text"]
    assert len(prediction["spans"]) == len(_spans(prediction["tags"]))


def _intents(y, predictions):
    intents = [intent for intent, _ in y]
    right = [intent == one["intent"] for intent, one in zip(intents, predictions, strict=True)]
    whole = [both and list(tags) == one["tags"] for both, (_, tags), one in zip(right, y, predictions, strict=True)]
    slots = _entities([tags for _, tags in y], predictions)
    found = {"intent_accuracy": np.mean(right), "sentence_accuracy": np.mean(whole)}
    return found | {f"slot_{name}": value for name, value in slots.items()}


def _check_intent(words, prediction):
    _check_tags(words, prediction)
    shares = prediction["intent_probabilities"]
    assert prediction["intent"] == max(shares, key=shares.get)


def _words(answer):
    """As SQuAD compares answers: without case, punctuation and articles."""
    return [word for word in re.sub(r"[^\w\s]", "", answer.lower()).split() if word not in ("a", "an", "the")]


def _answers(y, predictions):
    found = [_words(gold or "") == _words(one["answer"]) for gold, one in zip(y, predictions, strict=True)]
    return {"exact" if None in y else "exact_match": np.mean(found)}


def _check_answer(pair, prediction):
    assert pair[1][prediction["start"] : prediction["end"]] == prediction["answer"]
    assert bool(prediction["nbest"]) == bool(pair[1].strip())
    for one in prediction["nbest"]:
        assert pair[1][one["start"] : one["end"]] == one["answer"]


def _choices(y, predictions):
    return {"accuracy": np.mean([label == one["choice"] for label, one in zip(y, predictions, strict=True)])}


def _check_choice(value, prediction):
    choices, shares = value[-1], prediction["probabilities"]
    assert len(shares) == len(choices) and prediction["label"] == choices[prediction["choice"]]
    assert [share > 0 for share in shares] == [bool(choice) for choice in choices]  # an empty choice is none
    assert math.isclose(sum(shares), any(choices), rel_tol=1e-5) and prediction["choice"] == int(np.argmax(shares))


def _ranks(y, predictions):
    """Of the text with the highest number, among those of its query."""
    pairs = [(np.argmax(gold), np.array(one["scores"])) for gold, one in zip(y, predictions, strict=True)]
    ranks = np.array([1 + np.sum(scores > scores[right]) for right, scores in pairs])
    return {"mrr@10": np.mean(1 / ranks), "recall@1": np.mean(ranks == 1)}


def _check_scores(group, prediction):
    assert list(prediction) == ["scores"] and len(prediction["scores"]) == len(group) - 1


SCRIPTS = "  Ünï (code) 가나 😀, 北京! e\u0301 नमस्ते\u200b"
TAGS = [("O", "B-X", "I-X", "B-Y")[row % 4] for row in range(100)]
WORD_TAGS = [TAGS[row : row + len(words)] for row, words in enumerate(WORDS)]
CLASSES = ["x", "y", "x", "x", "y", "z"]
SCORES = [[float((place * 7 + row) % 5) for place in range(len(group) - 1)] for row, group in enumerate(GROUPS)]
NUMBERS = [0.5, 1, np.float32(2), 3, 4.5, 2.5]
WINDOWS = {"stride": 8, "max_question_length": 8, "n_best": 3}
ROWS = {
    "classification of pairs in windows": Row(
        bert_tf.TextClassifier, {"long_texts": "window"}, PAIRS, CLASSES, HALVES, _classes, _check_class
    ),
    "classification": Row(bert_tf.TextClassifier, {}, TEXTS, CLASSES, ["", " "], _classes_and_loss, _check_class),
    "regression": Row(bert_tf.TextRegressor, {}, TEXTS, NUMBERS, ["", " "], _numbers, _check_number),
    "regression by cosine": Row(
        bert_tf.TextRegressor, {"head": "cosine"}, PAIRS, NUMBERS, HALVES, _numbers, _check_number
    ),
    "several labels": Row(
        bert_tf.MultiLabelClassifier, {"threshold": 0.4, "long_texts": "head_tail"},
        *(TEXTS, [["p", "q"], [], ["q"], ("p",), ["q"], []], ["", " "], _several, _check_labels, "albert"),
    ),
    "words": Row(bert_tf.TokenClassifier, {}, WORDS, WORD_TAGS, ["", " ", SCRIPTS], _entities, _check_tags),
    "characters on a frozen encoder": Row(
        bert_tf.TokenClassifier, {"head": "bilstm", "features": FeatureConfig((0, -1)), "frozen": True},
        *(SENTENCES, [TAGS[: len(text)] for text in SENTENCES], ["", " ", SCRIPTS], _entities, _check_tags),
    ),
    "intent and slots": Row(
        bert_tf.IntentAndSlots, {},
        *(WORDS, list(zip(CLASSES, WORD_TAGS, strict=True)), ["", " ", SCRIPTS], _intents, _check_intent, "modernbert"),
    ),
    "questions": Row(
        bert_tf.QuestionAnswerer, WINDOWS, QUESTIONS, ["good", "b", "good c", "good", "a", "d"],
        *(UNASKED, _answers, _check_answer),
    ),
    "questions without answer": Row(
        bert_tf.QuestionAnswerer, WINDOWS | {"unanswerable": True},
        *(QUESTIONS, ["good", None, "good c", None, "b", None], UNASKED, _answers, _check_answer),
    ),
    "reranking": Row(
        bert_tf.Reranker, {"objective": "mse"},
        *(GROUPS, SCORES, [("", "a"), ("a", ""), ("", "")], _ranks, _check_scores),
    ),
    "multiple choice": Row(
        bert_tf.MultipleChoice, {}, CHOICES, [1, 0, 3, 1, 0, 0],
        *([("", ("a", "b")), ("a", ("", "b")), ("a", ("", ""))], _choices, _check_choice, "modernbert"),
    ),
}  # fmt: skip


class Fitted(NamedTuple):
    """A row's model with a kind of tokenizer after `fit`, which kept its run in `folder`.

    `asked` are its answers to the row's inputs and the unusual ones.
    """

    row: Row
    kind: str
    model: Any
    folder: pathlib.Path
    asked: list[Any] | None = None


def fit(row, kind, folder):
    """A fitted model, or that of the run in the folder, which this continues."""
    model = row.api.from_pretrained(pretrained(kind, row.member), max_length=LENGTH, **row.settings)
    model.fit(row.x, row.y, directory=folder, **SETTINGS)
    return Fitted(row, kind, model, folder)


def fitted(name, kind="wordpiece"):
    """The model of a key of ROWS, read from its run, which is made once for all tests and not for writing."""
    row = ROWS[name]

    def make(new):
        asked = fit(row, kind, new / "run").model.predict([*row.x, *row.unusual])
        (new / "asked.json").write_text(json.dumps(asked, allow_nan=False))
        assert json.loads((new / "asked.json").read_text()) == asked  # plain values

    path = made(f"fitted/{name}-{kind}", make)
    model = row.api.from_pretrained(path / "run")
    return Fitted(row, kind, model, path / "run", json.loads((path / "asked.json").read_text()))


def examples_of(model, x, y=None):
    """Inputs, labelled or not, as the examples that `model`'s task takes."""
    lines = model._lines(x, None, "x") if y is None else model._labelled(x, y, "x")
    source = InMemory(model._data(lines), model._kind.example, {"x": lines})
    return list(source.examples(ReadReport(), "x", labelled=y is not None))
