"""Data sets of TFDS: the features of its own builders, with synthetic examples."""

import contextlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import (
    Answer,
    ChoiceExample,
    QuestionExample,
    ReadReport,
    Scale,
    TaggedExample,
    TextExample,
)
from bert_tf.inputs.datasets.formats import GLUE
from bert_tf.inputs.datasets.squad import MOVED
from bert_tf.inputs.datasets.tfds_sets import (
    glue_of_tfds,
    read_tfds_choices,
    read_tfds_questions,
    read_tfds_tags,
    read_tfds_texts,
    tfds_labels,
)
from tests.errors import raises

tfds = pytest.importorskip("tensorflow_datasets", reason="needs pip install tensorflow-datasets")


@contextlib.contextmanager
def holding(*rows):
    """Replaces the examples of any data set by these, which must match the builder's features."""

    def as_dataset(self, **_):
        signature = self.info.features.get_tensor_spec()
        # Features that a row omits are irrelevant to the test.
        filled = [{name: _nothing(spec) for name, spec in signature.items()} | row for row in rows]
        return tf.data.Dataset.from_generator(lambda: iter(filled), output_signature=signature)

    with tfds.testing.mock_data(as_dataset_fn=as_dataset):
        yield


def _nothing(spec):
    if isinstance(spec, dict):
        return {name: _nothing(part) for name, part in spec.items()}
    return tf.zeros([0] * spec.shape.rank, spec.dtype)


@pytest.mark.parametrize("task", GLUE)
def test_glue_has_the_texts_in_tfds_order_and_the_leaderboards_labels(task):
    """TFDS' own class names must mean the same as the leaderboard's labels."""
    name = f"glue/{task}"
    meant = {"0": ("not", "un", "negative"), "1": ("equivalent", "duplicate", "acceptable", "positive", "entailment")}
    with tfds.testing.mock_data(num_examples=3):
        builder = tfds.builder(name)
        features, rows = builder.info.features, list(builder.as_dataset(split="train").as_numpy_iterator())
        examples = list(read_tfds_texts(name, "train"))
    labels = tfds_labels(name)
    texts = {text for text, feature in features.items() if isinstance(feature, tfds.features.Text)}
    if isinstance(labels, Scale):
        assert labels == (0.0, 5.0) and task == "stsb"
    else:
        assert len(features["label"].names) == len(labels)
        for label, theirs in zip(labels, features["label"].names, strict=True):
            assert label == theirs or theirs.startswith(meant[label])
    assert len(examples) == 3
    for example, row in zip(examples, rows, strict=True):
        assert example.texts == tuple(row[text].decode() for text in sorted(texts, key=_order))
        expected = row["label"].round(3) if task == "stsb" else labels[row["label"]]
        assert (example.id, example.label) == (str(row["idx"]), pytest.approx(expected))


def _order(text):
    """The premise comes before the hypothesis; all other pairs are in alphabetical order."""
    return {"premise": 0, "hypothesis": 1}.get(text, text)


def test_both_halves_of_mnli_are_read_as_mnli():
    assert glue_of_tfds("glue/mnli_matched") == glue_of_tfds("glue/mnli_mismatched") == glue_of_tfds("glue/mnli")
    assert glue_of_tfds("imdb_reviews") is None


def test_a_negative_label_is_none_and_scores_are_kept():
    rows = [{"sentence1": b"a", "sentence2": b"b", "label": score, "idx": n} for n, score in enumerate([3.8, -1.0])]
    with holding(*rows):
        labels = [e.label for e in read_tfds_texts("glue/stsb", "test")]
    assert labels == [3.8, None]
    with holding({"sentence1": b"a", "sentence2": b"b", "label": -1, "idx": 9}):
        (example,) = read_tfds_texts("glue/mrpc", "test")
    assert example == TextExample("9", ("a", "b"), None, "tfds:glue/mrpc: test[0]")


def test_other_sets_are_read_by_the_names_of_their_features():
    with holding({"text": "좋다".encode(), "label": 1}, {"text": b" ", "label": 0}):
        assert tfds_labels("imdb_reviews") == ("neg", "pos")
        assert list(read_tfds_texts("imdb_reviews", "train")) == [
            TextExample("0", ("좋다",), "pos", "tfds:imdb_reviews: train[0]"),
            TextExample("1", (" ",), "neg", "tfds:imdb_reviews: train[1]"),
        ]


class Ratings(tfds.core.GeneratorBasedBuilder):
    """A data set with every kind of label other than a single class."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        topic = tfds.features.ClassLabel(names=["fun", "sad", "long"])
        features = {
            "text": tfds.features.Text(),
            "score": tfds.features.Scalar(np.float32),
            "stars": tfds.features.Scalar(np.int64),
            "topics": tfds.features.Sequence(topic),
            "word": tfds.features.Text(),
            "words": tfds.features.Sequence(tfds.features.Text()),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        raise NotImplementedError

    def _generate_examples(self):
        raise NotImplementedError


def test_a_label_may_be_a_number_a_text_or_a_list():
    row = {"text": b"a", "score": 3.8, "stars": 4, "topics": [2, 0], "word": "좋다".encode(), "words": [b"x", b"y"]}
    expected = {"score": "3.8", "stars": "4", "topics": ("long", "fun"), "word": "좋다", "words": ("x", "y")}
    with holding(row, row | {"topics": []}):
        for label, value in expected.items():
            first, second = read_tfds_texts("ratings", "train", label=label)
            assert first.label == value and second.label == (() if label == "topics" else value)
            assert tfds_labels("ratings", label) == (("fun", "sad", "long") if label == "topics" else None)


def test_tags_are_read_by_class_or_by_text():
    with holding({"tokens": [b"EU", b"rejects"], "ner": [3, 0], "pos": [22, 42]}, {"tokens": [], "ner": []}):
        example, nothing = read_tfds_tags("conll2003", "train", "ner")
    assert (nothing.text, nothing.words, nothing.tags) == ("", (), ())
    place = "tfds:conll2003: train[0]"
    assert example == TaggedExample("0", "EU rejects", ("EU", "rejects"), (0, 3), ("B-ORG", "O"), None, place)
    with holding({"idx": b"weblog-1", "tokens": [b"I", b"know"], "xpos": [b"PRP", b"VBP"], "upos": [10, 15]}):
        (fine,) = read_tfds_tags("universal_dependencies/en_ewt", "dev", "xpos")
        (coarse,) = read_tfds_tags("universal_dependencies/en_ewt", "dev", "upos")
    assert (fine.id, fine.tags, coarse.tags) == ("weblog-1", ("PRP", "VBP"), ("PRON", "VERB"))
    with (
        holding({"tokens": [b"EU"], "ner": [3, 0]}),
        raises(DataError, "1 words", "2 tags"),
    ):
        list(read_tfds_tags("conll2003", "train", "ner"))


def question(identity, *answers):
    texts, starts = ([text for text, _ in answers], [start for _, start in answers]) if answers else ([], [])
    answers = {"text": tf.constant(texts, tf.string), "answer_start": tf.constant(starts, tf.int32)}
    return {"id": identity, "question": b"Who?", "context": "아 dog".encode(), "answers": answers}


def test_the_answers_of_questions_are_checked():
    read_report = ReadReport()
    with holding(question(b"a", (b"dog", 2), ("아".encode(), 0)), question(b"b", (b"dog", 4))):
        first, second = read_tfds_questions("squad/v1.1", "validation", read_report)
    place = "tfds:squad/v1.1: validation[0] (a)"
    assert first == QuestionExample("a", "Who?", "아 dog", (Answer("dog", 2), Answer("아", 0)), place)
    assert second.answers == (Answer("dog", 2),)
    assert read_report.counts == {MOVED: 1}


@pytest.mark.parametrize(
    "own, expected", [({"id": 7}, "7"), ({"guid": "klue-mrc-v1_dev_00001"}, "klue-mrc-v1_dev_00001"), ({}, "0")]
)
def test_the_ids_of_questions_are_texts_numbers_guids_or_their_own_number(monkeypatch, own, expected):
    row = question(b"a", (b"dog", 2))
    del row["id"]
    rows = tf.data.Dataset.from_tensors(row | own)
    builder = mock.Mock(**{"info.features": row | own, "as_dataset.return_value": rows})
    monkeypatch.setattr(tfds, "builder", lambda name: builder)
    (example,) = read_tfds_questions("huggingface:klue/mrc", "train", ReadReport())
    assert (example.id, example.answers) == (expected, (Answer("dog", 2),))


def test_questions_without_answer_are_read_as_those_of_squad_2():
    with holding(question(b"a") | {"is_impossible": True}):
        (example,) = read_tfds_questions("squad/v2.0", "train", ReadReport(), unanswerable=True)
        assert example.answers == ()
        with raises(DataError, "tfds:squad/v2.0", "train[0]", "squad2"):
            list(read_tfds_questions("squad/v2.0", "train", ReadReport()))
    with (
        holding(question(b"a"), question(b"a")),
        raises(DataError, "'a'"),
    ):
        list(read_tfds_questions("squad/v2.0", "train", ReadReport(), unanswerable=True))


def test_choices_are_the_two_of_copa_or_any_number_of_endings():
    row = {"premise": b"a", "question": b"effect", "choice1": b"b", "choice2": b"c", "idx": 4, "label": 1}
    with holding(row, row | {"label": -1, "question": b"cause"}):
        first, second = read_tfds_choices("super_glue/copa", "test")
    place = "tfds:super_glue/copa: test[0]"
    assert first == ChoiceExample("4", "a", "What happened as a RESULT?", ("b", "c"), 1, place)
    assert (second.question, second.label) == ("What was the CAUSE of this?", None)
    with holding({"context": b"a", "endings": [b"b", b"c", b"d"], "label": 2}):
        (example,) = read_tfds_choices("hellaswag", "train")
    assert example == ChoiceExample("0", "a", "", ("b", "c", "d"), 2, "tfds:hellaswag: train[0]")
    with (
        holding({"context": b"a", "endings": [b"b", b"c"], "label": 2}),
        raises(DataError, "label 2", "2 choices"),
    ):
        list(read_tfds_choices("hellaswag", "train"))


@pytest.mark.parametrize(
    "read, message",
    [
        (lambda: tfds_labels("no_such_set"), "tfds:no_such_set: Dataset no_such_set not found.; see tensorflow.org"),
        (lambda: tfds_labels("glue/sst"), 'unknown GLUE task "sst"; expected one of cola, '),
        (lambda: tfds_labels("squad/v1.1", "answers"), "tfds:squad/v1.1: the feature 'answers' is neither a class, a "),
        (lambda: read_tfds_texts("imdb_reviews", "train", texts=("a",)), "tfds:imdb_reviews: no feature 'a'"),
        (
            lambda: read_tfds_texts("imdb_reviews", "all", texts=("label",)),
            "tfds:imdb_reviews: all[0]: 1 is no",
        ),
        (
            lambda: read_tfds_tags("conll2003", "train", "upos"),
            "tfds:conll2003: no feature 'upos'; the data set has to",
        ),
        (
            lambda: read_tfds_questions("imdb_reviews", "train", ReadReport()),
            "tfds:imdb_reviews: no feature 'question'; the data",
        ),
    ],
)
def test_unknown_sets_and_features_are_config_errors(read, message):
    with holding({"label": 1}), pytest.raises(ConfigError) as raised:
        list(read())
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_invalid_bytes_are_reported_with_their_location():
    with (
        holding({"text": b"\xff", "label": 1}),
        raises(DataError, "tfds:imdb_reviews", "train[0]", "0xff"),
    ):
        list(read_tfds_texts("imdb_reviews", "train"))


def test_a_failed_download_is_a_one_line_error(monkeypatch):
    def fail(self):
        raise OSError("no route to host\nmore")

    with tfds.testing.mock_data():
        monkeypatch.setattr(tfds.builder_cls("imdb_reviews"), "download_and_prepare", fail)
        with raises(DataError, "tfds:imdb_reviews"):
            list(read_tfds_texts("imdb_reviews", "train"))


def test_a_package_that_tfds_lacks_is_named(monkeypatch):
    def fail(self):
        raise ModuleNotFoundError("No module named 'conllu'", name="conllu")

    with tfds.testing.mock_data():
        monkeypatch.setattr(tfds.builder_cls("imdb_reviews"), "download_and_prepare", fail)
        with raises(ConfigError, "tfds:imdb_reviews", "TFDS"):
            list(read_tfds_texts("imdb_reviews", "train"))


def test_without_tfds_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_datasets", None)
    with raises(ConfigError, "tfds:imdb_reviews", "TFDS", "'bert_tf[tfds]'"):
        tfds_labels("imdb_reviews")


class TwoReviews(tfds.core.GeneratorBasedBuilder):
    """A data set that TFDS writes to disk and reads back."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        labels = tfds.features.ClassLabel(names=["bad", "good"])
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": labels})
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"text": "좋다", "label": "good"}
        yield 1, {"text": "bad", "label": "bad"}


def test_a_set_prepared_by_tfds_is_read_and_an_unknown_split_is_a_config_error(tmp_path, monkeypatch):
    pytest.importorskip("importlib_resources", reason="TFDS prepares nothing without: pip install importlib_resources")
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    examples = list(read_tfds_texts("two_reviews", "train"))
    assert {(example.texts, example.label) for example in examples} == {(("좋다",), "good"), (("bad",), "bad")}
    assert (tmp_path / "two_reviews" / "1.0.0" / "dataset_info.json").is_file()
    with raises(ConfigError, "tfds:two_reviews", '"dev"'):
        list(read_tfds_texts("two_reviews", "dev"))
