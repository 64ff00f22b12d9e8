"""Each fine-tuning task with each kind of tokenizer, in English and Korean, against Hugging Face's tokenizers.

A small model learns a few examples by heart. So it answers exactly what they say, unless special tokens, offsets or
words are not where the tokenizer has them.
"""

import functools
import json
from typing import Any, NamedTuple

import keras
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.config import (
    ClassificationConfig,
    ExampleData,
    IntentAndSlotsConfig,
    MultiLabelConfig,
    MultipleChoiceConfig,
    QuestionAnsweringConfig,
    RegressionConfig,
    TaggingConfig,
)
from bert_tf.inference.saved_model import export
from bert_tf.inputs.datasets.examples import Answer, ChoiceExample, QuestionExample, TaggedExample, TextExample
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.intent_and_slots import IntentAndSlots
from bert_tf.tasks.multi_label import MultiLabel
from bert_tf.tasks.multiple_choice import MultipleChoice
from bert_tf.tasks.question_answering import QuestionAnswering
from bert_tf.tasks.regression import Regression
from bert_tf.tasks.tagging import Tagging
from tests.inference.exports import Exported, by_predict, check_same
from tests.learned import KINDS, learned
from tests.model.small import small_config
from tests.text.test_words import by_rule

LENGTH = 96
TEXTS = (
    "The committee met in Geneva on Tuesday.",
    "오늘 본 영화는 정말 재미있었다.",
    'He said: "well-known  words, isn\'t it (really)?"',
    "서울에서 부산까지 기차로 두 시간 반쯤 걸린다!",
    "집 앞 café (2,500원) 😀.",
    " 앞뒤 공백과 New\u00a0York ",
)
OTHERS = ("Nobody came.", "아무도 오지 않았다.", "Yes, it is.", "기차는 빠르다.", "커피 한 잔", "Spaces around.")
CLASSES = ("x", "y", "y", "x", "z", "z")
NUMBERS = (0.0, 1.0, 0.5, 0.25, 0.75, 1.0)
TAGS = ("O", "B-X", "I-X", "B-Y")
# Questions about one text differ in pieces of each vocabulary, not only in unknown words.
QUESTIONS = (
    ("When did she come?", "She came to Geneva on Tuesday, in 1998.", "1998"),
    ("Where?", "She came to Geneva on Tuesday, in 1998.", "Geneva"),
    ("처음 어디에서 만났나?", "그들은 서울에서 처음 만났고, (부산에서) 헤어졌다.", "서울"),
    ("어디에서 헤어졌나?", "그들은 서울에서 처음 만났고, (부산에서) 헤어졌다.", "부산"),
    ("What is it?", "It's a  'well-known'  café: 집 앞 카페 😀!", "well-known"),
    ("어디?", "It's a  'well-known'  café: 집 앞 카페 😀!", "집 앞 카페"),
)


def texts_of(labels, pair=False):
    return [
        TextExample(str(row), (TEXTS[row], OTHERS[row]) if pair else (TEXTS[row],), label, f"x:{row}")
        for row, label in enumerate(labels)
    ]


def tagged(unit="words", label=False):
    examples = []
    for row, text in enumerate(TEXTS):
        words = tuple(by_rule(text)) if unit == "words" else tuple(text)
        text = " ".join(words) if unit == "words" else text
        starts, at = [], 0
        for word in words:
            starts.append(text.index(word, at))
            at = starts[-1] + len(word)
        first = (0, 1, 3)[row % 3]  # an I- tag in front would be repaired
        tags = tuple(TAGS[(first + number) % len(TAGS)] for number in range(len(words)))
        name = CLASSES[row] if label else None
        examples.append(TaggedExample(str(row), text, words, tuple(starts), tags, None, f"x:{row}", name))
    return examples


def bare(example):
    """A text without its words and tags."""
    return example._replace(words=None, starts=None, tags=None)


def questions():
    return [
        QuestionExample(str(row), question, context, (Answer(answer, context.index(answer)),), f"x:{row}")
        for row, (question, context, answer) in enumerate(QUESTIONS)
    ]


def choices():
    return [
        ChoiceExample(str(row), OTHERS[row], "", options, options.index(text), f"x:{row}")
        for row, text in enumerate(TEXTS)
        for options in [(text, TEXTS[row - 1], TEXTS[row - 2]) if row % 2 else (TEXTS[row - 1], text)]
    ]


class Case(NamedTuple):
    """A task's class, its config, its examples, and which of the predictions are the labels."""

    task: Any
    config: Any
    examples: Any
    learned: Any
    data: ExampleData = ExampleData()


PAIRS = ExampleData(second_text="other")
CASES = {
    "texts": Case(
        Classification, ClassificationConfig(max_length=LENGTH), functools.partial(texts_of, CLASSES),
        lambda example, found: found["label"] == example.label,
    ),
    "pairs": Case(
        Classification, ClassificationConfig(max_length=LENGTH), functools.partial(texts_of, CLASSES, True),
        lambda example, found: found["label"] == example.label, PAIRS,
    ),
    "numbers of pairs": Case(
        Regression, RegressionConfig(max_length=LENGTH), functools.partial(texts_of, NUMBERS, True),
        lambda example, found: abs(found["value"] - example.label) < 0.15, PAIRS,
    ),
    "several labels": Case(
        MultiLabel, MultiLabelConfig(max_length=LENGTH), functools.partial(texts_of, [tuple(one) for one in CLASSES]),
        lambda example, found: tuple(found["labels"]) == example.label,
    ),
    "words": Case(
        Tagging, TaggingConfig(max_length=48), tagged,
        lambda example, found: (tuple(found["words"]), tuple(found["tags"])) == (example.words, example.tags),
    ),
    "characters": Case(
        Tagging, TaggingConfig(max_length=32), functools.partial(tagged, "characters"),
        lambda example, found: tuple(found["words"]) == example.words,
    ),
    "intents": Case(
        IntentAndSlots, IntentAndSlotsConfig(max_length=LENGTH), functools.partial(tagged, label=True),
        lambda example, found: (found["intent"], tuple(found["tags"])) == (example.label, example.tags),
    ),
    "questions": Case(
        QuestionAnswering, QuestionAnsweringConfig(max_length=48, stride=16, n_best=3), questions,
        lambda example, found: found["answer"] == example.context[found["start"] : found["end"]] != "",
    ),
    "choices": Case(
        MultipleChoice, MultipleChoiceConfig(max_length=LENGTH), choices,
        lambda example, found: found["choice"] == example.label,
    ),
}  # fmt: skip
QUICK = {("questions", "byte_bpe")}
ALL = [
    pytest.param(name, kind, marks=[] if (name, kind) in QUICK else pytest.mark.slow)
    for name in CASES
    for kind in KINDS
]


def task_of(case, kind, examples):
    return case.task.learn(learned(kind).tokenizer, case.config, case.data, examples, None)


def trained(task, examples, steps=250):
    """A small model that has learned the examples by heart."""
    keras.utils.set_random_seed(0)
    size = {"vocab_size": task.tokenizer.vocab_size, "max_position_embeddings": LENGTH, "num_layers": 2}
    # 0.1: 0.02 at 768 units in proportion to 1 / sqrt(width). With 0.02, texts hardly differ for hundreds of steps.
    size |= {"initializer_range": 0.1, "dropout": 0.0, "attention_dropout": 0.0}
    model = task.build(BertEncoder(small_config(**size)))
    (features,) = task.codec.rows.batches(task.codec.to_tensors(examples, labelled=True), 64)
    optimizer = keras.optimizers.Adam(3e-3)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=True)
            metrics, weights = task.objective.loss_and_metrics(features, outputs), task.objective.weights(features)
            loss = sum(metrics[name][0] / weights[name] for name in task.objective.losses)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    optimizer.build(model.trainable_variables)
    for _ in range(steps):
        step()
    return model


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # for a pooler that the head does not read
@pytest.mark.parametrize(("name", "kind"), ALL)
def test_a_model_answers_what_it_has_learned_also_exported(name, kind, tmp_path):
    case = CASES[name]
    examples = case.examples()
    task = task_of(case, kind, examples)
    model = trained(task, examples)
    # Texts without words: the model finds those that it was trained on.
    asked = [
        one._replace(words=None, starts=None, tags=None) if isinstance(one, TaggedExample) else one for one in examples
    ]
    predicted = by_predict(Exported(task, model, ""), asked)
    for example, found in zip(examples, predicted, strict=True):
        assert case.learned(example, found), found
    check_spans(kind, examples, predicted)
    task.benchmark.error_analysis(examples, predicted)
    json.dumps(predicted, allow_nan=False, default=dict)

    signatures = tf.saved_model.load(export(task, model, str(tmp_path), check=False).path).signatures
    for rows, signature, inputs in task.codec.requests(asked):
        outputs = {key: value.numpy() for key, value in signatures[signature](**as_tensors(inputs)).items()}
        answers = task.codec.predictions([asked[row] for row in rows], task.codec.response(outputs))
        check_same(answers, [predicted[row] for row in rows])


def as_tensors(inputs):
    return {name: tf.constant(value, tf.string) for name, value in inputs.items()}


def check_spans(kind, examples, predicted):
    """Every span is the text there; answers and entities are those of Hugging Face's tokens."""
    for example, found in zip(examples, predicted, strict=True):
        for span in found.get("spans", ()):
            text = example.text[span["start"] : span["end"]]
            assert text == span["text"] == text.strip() != ""
        for one in found.get("nbest", ()):
            text = example.context[one["start"] : one["end"]]
            assert text == one["answer"] == text.strip() != ""
        if isinstance(example, QuestionExample):
            assert found["answer"] == answer_by_reference(kind, example)


def answer_by_reference(kind, example):
    """The part of the context that consists of the whole tokens of the answer."""
    (answer,) = example.answers
    end = answer.start + len(answer.text)
    tokens = tokens_of(kind, example.context)
    touched = [(first, last) for first, last in tokens if first < end and last > answer.start]
    return example.context[touched[0][0] : touched[-1][1]]


def tokens_of(kind, text):
    """[first, last) characters of Hugging Face's tokens, without white space around them; white space is empty."""
    spans = []
    for first, last in learned(kind).reference.encode(text, add_special_tokens=False).offsets:
        part = text[first:last]
        first += len(part) - len(part.lstrip())
        spans.append((first, first + len(part.strip())))
    return spans


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_hugging_face(kind):
    reference = learned(kind).reference
    for name, pair in (("texts", False), ("numbers of pairs", True)):
        case = CASES[name]
        examples = case.examples()
        task = task_of(case, kind, examples)
        features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=False))
        for row, example in enumerate(examples):
            expected = reference.encode(*example.texts)
            assert features["input_word_ids"][row].numpy().tolist() == expected.ids
            assert features["input_type_ids"][row].numpy().tolist() == expected.type_ids
        assert pair == (len(examples[0].texts) == 2)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_of_questions_are_the_tokens_of_hugging_face(kind):
    case = CASES["questions"]._replace(config=QuestionAnsweringConfig(max_length=128))
    task = task_of(case, kind, questions())
    features = task.codec.preprocess(task.codec.to_tensors(questions(), labelled=True))
    for row, example in enumerate(questions()):
        encoded = learned(kind).reference.encode(example.question, example.context)
        assert features["input_word_ids"][row].numpy().tolist() == encoded.ids
        (answer,) = example.answers
        before = encoded.sequence_ids.index(1)
        spans = tokens_of(kind, example.context)
        inside = [
            before + at
            for at, (first, last) in enumerate(spans)
            if first < answer.start + len(answer.text) and last > answer.start
        ]
        assert features["positions"][row].numpy().tolist() == [inside[0], inside[-1]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_is_read_at_its_first_token(kind):
    task = task_of(CASES["words"]._replace(config=TaggingConfig(max_length=128)), kind, tagged())
    for examples in (tagged(), [bare(one) for one in tagged()]):
        features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=False))
        for row, example in enumerate(tagged()):
            ends = [start + len(word) for start, word in zip(example.starts, example.words, strict=True)]
            # White space belongs to the next word.
            numbers = [sum(end <= first for end in ends) + 1 for first, _ in tokens_of(kind, example.text)]
            numbers = [min(number, len(ends)) for number in numbers]
            expected = [0 if number in numbers[:at] else number for at, number in enumerate(numbers)]
            assert features["word"][row].numpy().tolist() == [0, *expected, 0]
