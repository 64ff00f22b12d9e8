"""Inputs, targets and answers with each kind of tokenizer, in English and Korean, against Hugging Face's tokenizers.

The answers are those of outputs that a model would have that had learned the examples by heart: exactly what they say,
unless special tokens, offsets or words are not where the tokenizer has them. What needs a model is in
test_every_task.py, for each task, and in tests/inference/kinds.py.
"""

import pytest
import tensorflow as tf

from bert_tf.config import (
    ClassificationConfig,
    ExampleData,
    MultipleChoiceConfig,
    QuestionAnsweringConfig,
    TaggingConfig,
)
from bert_tf.inputs.datasets.examples import Answer, ChoiceExample, QuestionExample, TaggedExample, TextExample
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.multiple_choice import MultipleChoice
from bert_tf.tasks.question_answering import QuestionAnswering
from bert_tf.tasks.tagging import Tagging
from tests.learned import KINDS, learned
from tests.text.test_words import by_rule

LENGTH = 128
TEXTS = (
    "The committee met in Geneva on Tuesday.",
    "오늘 본 영화는 정말 재미있었다.",
    'He said: "well-known  words, isn\'t it (really)?"',
    "서울에서 부산까지 기차로 두 시간 반쯤 걸린다!",
    "집 앞 café (2,500원) 😀.",
    " 앞뒤 공백과 New\u00a0York ",
)
OTHERS = ("Nobody came.", "아무도 오지 않았다.", "Yes, it is.", "기차는 빠르다.", "커피 한 잔", "Spaces around.")
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


def texts(pair=False):
    return [
        TextExample(str(row), (TEXTS[row], OTHERS[row]) if pair else (TEXTS[row],), "xy"[row % 2], f"x:{row}")
        for row in range(len(TEXTS))
    ]


def choices():
    return [
        ChoiceExample(str(row), OTHERS[row], "", (text, TEXTS[row - 1]), 0, f"x:{row}")
        for row, text in enumerate(TEXTS)
    ]


def tagged(unit="words"):
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
        examples.append(TaggedExample(str(row), text, words, tuple(starts), tags, None, f"x:{row}"))
    return examples


def bare(example):
    """A text without its words and tags."""
    return example._replace(words=None, starts=None, tags=None)


def questions():
    return [
        QuestionExample(str(row), question, context, (Answer(answer, context.index(answer)),), f"x:{row}")
        for row, (question, context, answer) in enumerate(QUESTIONS)
    ]


def task_of(task, config, kind, examples, data=None):
    return task.learn(learned(kind).tokenizer, config, data or ExampleData(), examples, None)


def tokens_of(kind, text):
    """[first, last) characters of Hugging Face's tokens, without white space around them; white space is empty."""
    spans = []
    for first, last in learned(kind).reference.encode(text, add_special_tokens=False).offsets:
        part = text[first:last]
        first += len(part) - len(part.lstrip())
        spans.append((first, first + len(part.strip())))
    return spans


def answered(task, examples, asked, outputs_of):
    """Predictions for `asked`, from the outputs of their rows that `outputs_of` makes of the features of `examples`."""
    targets = task.codec.pad(task.codec.preprocess(task.codec.to_tensors(examples, labelled=True)))
    columns = task.codec.to_tensors(asked, labelled=False)
    features = task.codec.preprocess(columns)
    rows, features = features["row"], task.codec.pad(features)
    merged = task.codec.aggregate_windows(columns, rows, task.codec.postprocess(features, outputs_of(targets)))
    return task.codec.predictions(asked, {name: value.numpy() for name, value in merged.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_hugging_face(kind):
    reference, pairs = learned(kind).reference, ExampleData(second_text="other")
    for examples, data in ((texts(), None), (texts(pair=True), pairs)):
        task = task_of(Classification, ClassificationConfig(max_length=LENGTH), kind, examples, data)
        features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=False))
        for row, example in enumerate(examples):
            expected = reference.encode(*example.texts)
            assert features["input_word_ids"][row].numpy().tolist() == expected.ids
            assert features["input_type_ids"][row].numpy().tolist() == expected.type_ids
    task = task_of(MultipleChoice, MultipleChoiceConfig(max_length=LENGTH), kind, choices())
    features = task.codec.preprocess(task.codec.to_tensors(choices(), labelled=False))
    expected = [[reference.encode(one.context, choice).ids for choice in one.choices] for one in choices()]
    assert features["input_word_ids"].to_list() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_answers_to_questions_are_the_tokens_of_hugging_face(kind):
    reference = learned(kind).reference
    task = task_of(QuestionAnswering, QuestionAnsweringConfig(max_length=LENGTH), kind, questions())
    features = task.codec.preprocess(task.codec.to_tensors(questions(), labelled=True))
    answers = []
    for row, example in enumerate(questions()):
        encoded = reference.encode(example.question, example.context)
        assert features["input_word_ids"][row].numpy().tolist() == encoded.ids
        (answer,), spans = example.answers, tokens_of(kind, example.context)
        end = answer.start + len(answer.text)
        inside = [at for at, (first, last) in enumerate(spans) if first < end and last > answer.start]
        before = encoded.sequence_ids.index(1)
        assert features["positions"][row].numpy().tolist() == [before + inside[0], before + inside[-1]]
        answers.append((spans[inside[0]][0], spans[inside[-1]][1]))

    def outputs_of(features):
        logits = tf.one_hot(features["positions"], tf.shape(features["input_word_ids"])[1], 9.0, 0.0)
        return {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}

    windows = QuestionAnsweringConfig(max_length=48, stride=16, n_best=3)
    for config in (windows, QuestionAnsweringConfig(max_length=LENGTH)):
        task = task_of(QuestionAnswering, config, kind, questions())
        found = answered(task, questions(), questions(), outputs_of)
        assert [(one["start"], one["end"]) for one in found] == answers
        for example, one in zip(questions(), found, strict=True):
            for other in one["nbest"]:
                assert other["answer"] == example.context[other["start"] : other["end"]].strip() != ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_is_read_at_its_first_token_and_has_its_tag(kind):
    task = task_of(Tagging, TaggingConfig(max_length=LENGTH), kind, tagged())
    for examples in (tagged(), [bare(one) for one in tagged()]):
        features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=False))
        for row, example in enumerate(tagged()):
            ends = [start + len(word) for start, word in zip(example.starts, example.words, strict=True)]
            # White space belongs to the next word.
            numbers = [sum(end <= first for end in ends) + 1 for first, _ in tokens_of(kind, example.text)]
            numbers = [min(number, len(ends)) for number in numbers]
            expected = [0 if number in numbers[:at] else number for at, number in enumerate(numbers)]
            assert features["word"][row].numpy().tolist() == [0, *expected, 0]

    # Texts without words: the model finds those that it was trained on.
    for unit in ("words", "characters"):
        examples = tagged(unit)
        task = task_of(Tagging, TaggingConfig(max_length=32), kind, examples)
        found = answered(
            task,
            examples,
            [bare(one) for one in examples],
            lambda features: {"logits": tf.one_hot(features["target"] - 1, len(TAGS) + 1)},
        )
        for example, one in zip(examples, found, strict=True):
            assert tuple(one["words"]) == example.words
            assert unit == "characters" or tuple(one["tags"]) == example.tags
            for span in one["spans"]:
                assert span["text"] == example.text[span["start"] : span["end"]].strip() != ""
