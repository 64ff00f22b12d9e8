import numpy as np
import pytest
import sklearn.metrics
from scipy.special import log_softmax

from bert_tf.config import ExampleData, IntentAndSlotsConfig, TaggingConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.conll import read_intents
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.json_lines import read_tagged_lines
from bert_tf.tasks.intent_and_slots import IntentAndSlots
from bert_tf.tasks.tagging import Tagging
from bert_tf.text import Tokenizer
from tests import packages
from tests.errors import raises
from tests.model.small import PIECES

ROWS = [("the good a", "O B-X I-X", "play"), ("b the", "B-Y O", "book"), ("a b c d", "B-X B-X O O", "play")]


def write(folder, rows=ROWS):
    for name, column in zip(("seq.in", "seq.out", "label"), zip(*rows, strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in column))
    return str(folder / "seq.in")


@pytest.fixture
def examples(tmp_path):
    return list(read_intents(write(tmp_path)))


def learn(examples, **config):
    return IntentAndSlots.learn(
        Tokenizer(PIECES), IntentAndSlotsConfig(max_length=12, **config), ExampleData(format="snips"), examples, None
    )


def test_three_files_are_read_as_the_same_json_lines(tmp_path, examples):
    assert [(one.text, " ".join(one.tags), one.label) for one in examples] == ROWS
    lines = [
        (f"x[{index}]", {"words": text.split(), "tags": tags.split(), "label": label})
        for index, (text, tags, label) in enumerate(ROWS)
    ]
    assert [one._replace(location="") for one in read_tagged_lines(lines)] == [
        one._replace(location="") for one in examples
    ]


def test_an_intent_that_is_a_number_is_refused_as_it_would_come_back_as_text():
    with raises(DataError, "x[0]", "5"):
        list(read_tagged_lines([("x[0]", {"words": ["a"], "tags": ["O"], "label": 5})]))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("seq.out", "O B-X\nB-Y O\nO O O O\n", ("seq.in:1", "3 words", "2 tags", "seq.out")),
        ("label", "play\n\nplay\n", ("seq.in:2", "''")),
        ("label", "play\nbook\n", ("seq.in:3", "lines")),
        ("label", None, ("seq.out",)),
    ],
)
def test_files_that_do_not_belong_together_are_refused(tmp_path, name, text, message):
    path = write(tmp_path)
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    with raises(DataError, *message):
        list(read_intents(path))


def test_a_set_without_any_known_intent_is_refused(examples):
    task, read_report = learn(examples), ReadReport()
    task.check([examples[0]._replace(label="other"), examples[1]], read_report)
    assert read_report.counts == {"never predicted: intent 'other', not in the training data": 1}
    with raises(DataError, examples[0].location, "intent 'other'", "neither this intent", "'book', 'play'"):
        task.check([example._replace(label="other") for example in examples], read_report)


def test_texts_without_labels_are_read_for_prediction(tmp_path):
    (tmp_path / "seq.in").write_text("the good a\n")
    (one,) = read_intents(str(tmp_path / "seq.in"))
    assert (one.words, one.tags, one.label) == (("the", "good", "a"), None, None)


def test_the_published_files_have_seven_intents_and_39_kinds_of_slots():
    folder = packages.shared("english/snips")
    examples = list(read_intents(str(folder / "train" / "seq.in")))
    assert len(examples) == 13084 and len({one.label for one in examples}) == 7
    assert len({tag[2:] for one in examples for tag in one.tags if tag != "O"}) == 39
    assert not {one.label for one in read_intents(str(folder / "test" / "seq.in"))} - {one.label for one in examples}


def test_the_losses_are_the_cross_entropies_of_the_intent_and_of_the_slots(examples):
    task, random = learn(examples), np.random.default_rng(0)
    columns = task.codec.to_tensors(examples, labelled=True)
    features = task.codec.pad(task.codec.preprocess(columns))
    intents, tags = np.unique([one.label for one in examples]).tolist(), list(task.state.labels)
    assert list(task.state.intents) == intents
    length = features["input_word_ids"].shape[1]
    outputs = {
        "intent_logits": random.normal(size=(3, 2)).astype(np.float32),
        "slot_logits": random.normal(size=(3, length, len(tags))).astype(np.float32),
    }
    found = {name: float(a / b) for name, (a, b) in task.objective.loss_and_metrics(features, outputs).items()}
    own = log_softmax(outputs["intent_logits"], -1)[range(3), [intents.index(one.label) for one in examples]]
    assert found["intent_loss"] == pytest.approx(-own.mean(), rel=1e-5)
    # Each word is one wordpiece here, after [CLS].
    slots = [
        log_softmax(outputs["slot_logits"], -1)[row, 1 + place, tags.index(tag)]
        for row, one in enumerate(examples)
        for place, tag in enumerate(one.tags)
    ]
    assert found["slot_loss"] == pytest.approx(-np.mean(slots), rel=1e-5)
    assert task.objective.losses == ("intent_loss", "slot_loss")
    weights = {name: float(value) for name, value in task.objective.weights(features).items()}
    assert weights == {"intent_loss": 3.0, "slot_loss": 9.0}


def test_metrics_are_those_of_a_classifier_of_a_tagger_and_of_whole_texts(examples):
    task = learn(examples)
    predictions = [
        {"intent": "play", "tags": ["O", "B-X", "I-X"]},
        {"intent": "play", "tags": ["B-Y", "O"]},
        {"intent": "play", "tags": ["B-X", "O", "O", "O"]},
    ]
    found = task.benchmark.official_metrics(examples, predictions)
    gold, intents = [one.label for one in examples], [one["intent"] for one in predictions]
    assert found["intent_accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(gold, intents))
    assert found["sentence_accuracy"] == pytest.approx(1 / 3)
    tagger = Tagging.learn(task.tokenizer, TaggingConfig(), ExampleData(), examples, None)
    slots = tagger.benchmark.official_metrics(examples, predictions)
    assert slots["f1"] == pytest.approx(2 * 3 / (3 + 4))
    assert {name: value for name, value in found.items() if name.startswith("slot_")} == {
        f"slot_{name}": value for name, value in slots.items()
    }
    assert task.monitor in found and task.benchmark.baseline(examples)["intent_accuracy"] == pytest.approx(2 / 3)
    spans = [one | {"spans": []} for one in predictions]
    assert task.benchmark.error_analysis(examples, spans).intervals.keys() <= found.keys()


def test_a_text_without_intent_is_refused(examples):
    with raises(DataError, "seq.in:2"):
        learn([examples[0], examples[1]._replace(label=None)])
