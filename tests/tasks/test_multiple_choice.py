"""Multiple choice: any number of choices, and results that do not depend on padded choices."""

import json

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax, softmax

from bert_tf import BertEncoder
from bert_tf.errors import ConfigError
from bert_tf.inputs.datasets.copa import read_copa
from bert_tf.inputs.datasets.examples import ChoiceExample
from bert_tf.tasks.multiple_choice import MultipleChoice, MultipleChoiceConfig
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import DistributedPredictor
from tests.errors import raises
from tests.model.small import PIECES, randomize, small_config
from tests.packages import shared

LETTERS = "abcdefgh"
STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(PIECES)


@pytest.fixture(scope="module")
def task(tokenizer):
    return MultipleChoice(tokenizer, MultipleChoiceConfig(max_length=20))


@pytest.fixture(scope="module")
def model(task):
    return randomize(task.build(BertEncoder(small_config(num_layers=1))), scale=0.5)


@pytest.fixture(scope="module")
def signatures(task, model):
    return task.signatures(model)


def random_examples(count, seed=0):
    """Examples of two to five choices."""
    rng = np.random.default_rng(seed)

    def text(most):
        return " ".join(rng.choice(list(LETTERS), rng.integers(1, most)))

    counts = rng.integers(2, 6, count)
    return [
        ChoiceExample(str(n), text(9), "", tuple(text(9) for _ in range(k)), int(rng.integers(k)), f"file:{n}")
        for n, k in enumerate(counts)
    ]


def ids_of(context, choice, budget=17):
    """[CLS] context [SEP] choice [SEP], truncated by the original's loop: the longer text, on a tie the second."""
    first, second = ([PIECES.index(letter) for letter in text.split()] for text in (context, choice))
    while len(first) + len(second) > budget:
        (first if len(first) > len(second) else second).pop()
    return [2, *first, 3, *second, 3], [0] * (len(first) + 2) + [1] * (len(second) + 1)


def logits_by_hand(model, example):
    """The score of each choice, predicted alone and without padding."""
    logits = []
    for choice in example.choices:
        ids, types = ids_of(example.context, choice)
        inputs = {"input_word_ids": ids, "input_type_ids": types, "input_mask": [1] * len(ids)}
        outputs = model({name: tf.constant([[value]]) for name, value in inputs.items()})
        logits.append(float(outputs["logits"][0, 0]))
    return np.array(logits)


def test_a_row_is_the_context_with_each_choice_and_a_question_follows_the_context(task):
    examples = [
        ChoiceExample("0", "a b", "c?", ("d", "e f"), 1, ""),
        ChoiceExample("1", "a " * 15, "", ("b " * 9, "c", "d e"), 0, ""),
        ChoiceExample("2", "", "c?", ("d", "e"), 0, ""),
    ]
    features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=True))
    expected = [[ids_of("a b c ?", "d"), ids_of("a b c ?", "e f")],
                [ids_of("a " * 15, choice) for choice in examples[1].choices],
                [ids_of("c ?", "d"), ids_of("c ?", "e")]]  # fmt: skip
    assert features["input_word_ids"].to_list() == [[ids for ids, _ in rows] for rows in expected]
    assert features["input_type_ids"].to_list() == [[types for _, types in rows] for rows in expected]
    assert features["labels"].numpy().tolist() == [1, 0, 0]
    assert features["truncated"].numpy().tolist() == [False, True, False]


def test_a_context_or_choice_that_is_too_long_is_cut_and_the_question_is_not(task):
    long = " ".join(LETTERS * 9)
    cases = [("a", "b c d ?", long), (long, "b c d ?", "e f"), (long, "b c d ?", long), (long, long, long)]
    examples = [ChoiceExample("", *texts[:2], (texts[2], "a"), 0, "") for texts in cases]
    features = task.codec.preprocess(task.codec.to_tensors(examples, labelled=True))
    rows = [[PIECES[piece] for piece in row[0]] for row in features["input_word_ids"].to_list()]
    assert {len(row) for row in rows} == {20} and all(features["truncated"].numpy())
    segments = [" ".join(row).removeprefix("[CLS] ").split(" [SEP]")[:2] for row in rows]
    assert all(first.endswith("b c d ?") for first, _ in segments[:3])
    assert [len(first.split()) for first, _ in segments] == [5, 15, 11, 13]
    assert segments[3][0].endswith(" ".join(LETTERS))  # of a question without end a half stays


def test_long_contexts_keep_the_configured_part(tokenizer):
    example = ChoiceExample("0", "a b c d e f g h", "", ("i", "j"), 0, "")
    for kept, expected in (("head", "a b c d"), ("tail", "e f g h"), ("head_tail", "a b g h")):
        task = MultipleChoice(tokenizer, MultipleChoiceConfig(max_length=8, long_texts=kept).check())
        (row,) = task.codec.preprocess(task.codec.to_tensors([example], labelled=True))["input_word_ids"].to_list()
        assert [PIECES[piece] for piece in row[0]] == ["[CLS]", *expected.split(), "[SEP]", "i", "[SEP]"]
        asked = example._replace(question="z y", choices=("i", "j"))
        (row,) = task.codec.preprocess(task.codec.to_tensors([asked], labelled=True))["input_word_ids"].to_list()
        half = {"head": "a b", "tail": "g h", "head_tail": "a h"}[kept]
        assert [PIECES[piece] for piece in row[0]] == ["[CLS]", *half.split(), "z", "y", "[SEP]", "i", "[SEP]"]
    with raises(ConfigError, "'window'", "head_tail"):
        MultipleChoiceConfig(long_texts="window").check()


def test_each_example_occurs_once_with_its_own_choices(task):
    examples = random_examples(330)
    columns = task.codec.to_tensors(examples, labelled=True)
    seen = []
    for batch in task.codec.rows.batches(columns, 10, seed=tf.constant([3, 4], tf.int64)):
        batch = {name: value.numpy() for name, value in batch.items()}
        for row, ids, mask, there, label in zip(
            *(batch[name] for name in ("row", "input_word_ids", "input_mask", "is_choice", "labels")), strict=True
        ):
            example = examples[row]
            assert there.tolist() == [place < len(example.choices) for place in range(len(there))]
            assert label == example.label
            assert mask.shape == ids.shape
            found = [one[: real.sum()].tolist() for one, real in zip(ids, mask, strict=True)]
            choices = [ids_of(example.context, choice)[0] for choice in example.choices]
            assert found == choices + [[]] * (len(there) - len(choices))
            seen.append(row)
    assert sorted(seen) == list(range(330))


def test_loss_and_answers_equal_those_of_each_example_alone(task, model):
    examples = random_examples(14)
    columns = task.codec.to_tensors(examples, labelled=True)
    predict = DistributedPredictor(task, model, STRATEGY, labelled=True)
    found, measured = predict(columns, task.codec.rows.batches(columns, 4))
    predictions = task.codec.predictions(examples, found)
    logits = [logits_by_hand(model, example) for example in examples]
    losses = [-log_softmax(scores)[example.label] for scores, example in zip(logits, examples, strict=True)]
    right = [scores.argmax() == example.label for scores, example in zip(logits, examples, strict=True)]
    assert measured["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert measured["accuracy"] == pytest.approx(np.mean(right))
    assert task.benchmark.official_metrics(examples, predictions)["accuracy"] == pytest.approx(np.mean(right))
    assert len({one.argmax() for one in logits}) > 2  # the model's answers depend on the choices
    for example, scores, prediction in zip(examples, logits, predictions, strict=True):
        np.testing.assert_allclose(prediction["probabilities"], softmax(scores), atol=1e-5)
        assert prediction["id"] == example.id
        assert scores[prediction["choice"]] == pytest.approx(scores.max(), abs=1e-5)  # equal texts differ by rounding
        assert prediction["label"] == example.choices[scores.argmax()]
        assert json.dumps(prediction)


def test_an_empty_text_in_a_request_is_not_a_choice_at_any_position(model, signatures):
    example = random_examples(1)[0]
    serve = signatures["serving_default"]
    expected = softmax(logits_by_hand(model, example))
    choices = ["", example.choices[0], "", *example.choices[1:], "", ""]
    padded = tf.constant([choices, [*example.choices, "", "", "", ""]])
    answer = serve(tf.constant([example.context] * 2), padded, tf.constant(["", ""]))
    first, second = answer["probabilities"].numpy()
    np.testing.assert_allclose(first[[place for place, text in enumerate(choices) if text]], expected, atol=1e-5)
    assert first.sum() == pytest.approx(1)
    np.testing.assert_allclose(second, [*expected, 0, 0, 0, 0], atol=1e-5)
    assert choices[answer["choice"][0]].encode() == answer["label"][0].numpy()
    assert example.choices[answer["choice"][1]].encode() == answer["label"][1].numpy() == answer["label"][0].numpy()
    nothing = serve(tf.constant([], tf.string), tf.zeros([0, 3], tf.string), tf.constant([], tf.string))
    assert {int(value.shape[0]) for value in nothing.values()} == {0}
    assert serve(tf.constant(["a"]), tf.constant([["", ""]]), tf.constant([""]))["probabilities"].numpy().tolist() == [
        [0, 0]
    ]


def test_the_padding_of_shorter_lists_by_a_server_changes_no_answer(signatures):
    # TF Serving pads with the first element of a request's own tensor (batching_util.cc, PadTensor).
    def serve(contexts, choices):
        return signatures["serving_default"](contexts, choices, tf.zeros_like(contexts))

    alone = serve(tf.constant(["the good"]), tf.constant([["a", "b c"]]))
    filled = serve(tf.constant(["the good", "x"]), tf.constant([["a", "b c", "a", "a"], ["d", "e", "d", "g"]]))
    np.testing.assert_allclose(filled["probabilities"][0], [*alone["probabilities"][0], 0, 0], atol=1e-6)
    assert filled["choice"][0] == alone["choice"][0]
    assert filled["choice_count"].numpy().tolist() == [2, 4]
    first, _, third, _ = filled["probabilities"][1].numpy()
    assert first == pytest.approx(third, abs=1e-6) and first > 0  # not at the end: sent by the client
    same = serve(tf.constant(["a"]), tf.constant([["b", "b", "b"]]))
    assert same["probabilities"].numpy().tolist() == [[1, 0, 0]]
    # A request of several rows has the same element in all; "" as the first choice makes it "".
    several = serve(tf.constant(["the", "the good"]), tf.constant([["", "b", "c", ""], ["", "a", "b c", ""]]))
    np.testing.assert_allclose(several["probabilities"][1], [0, *alone["probabilities"][0], 0], atol=1e-6)


def test_examples_of_a_request_may_have_any_number_of_choices(signatures):
    texts = tf.constant(["a", "the good"]), tf.constant([["b", "c", "d"], ["a", "b c", ""]])
    expected = signatures["serving_default"](*texts, tf.constant(["", "c ?"]))
    examples = []
    for context, choices in (("a", ["b", "c", "d"]), ("the good", ["a", "b c"])):
        example = tf.train.Example()
        example.features.feature["context"].bytes_list.value.append(context.encode())
        example.features.feature["choices"].bytes_list.value.extend(choice.encode() for choice in choices)
        if examples:  # the first has no question
            example.features.feature["question"].bytes_list.value.append(b"c ?")
        examples.append(example.SerializeToString())
    answer = signatures["classify"](tf.constant(examples))
    assert answer["classes"].numpy().tolist() == [[b"b", b"c", b"d"], [b"a", b"b c", b""]]
    np.testing.assert_array_equal(answer["scores"], expected["probabilities"])


def test_the_baseline_is_the_accuracy_of_random_choices(task):
    examples = random_examples(2)[:1] * 3 + [ChoiceExample("x", "a", "", tuple("abcd"), 0, "")]
    assert task.benchmark.baseline(examples)["accuracy"] == pytest.approx((3 / len(examples[0].choices) + 1 / 4) / 4)
    copa = list(read_copa(shared("english/copa/copa-test.xml")))
    assert (len(copa), task.benchmark.baseline(copa)) == (500, {"accuracy": 0.5})


def test_the_task_is_restored_from_its_settings(task, tokenizer):
    again = MultipleChoice.from_settings(json.loads(json.dumps(task.settings())), tokenizer)
    assert (again.config, again.data) == (task.config, task.data)
    assert MultipleChoice.from_settings({"max_length": 24}, tokenizer).config.max_length == 24
