"""Tagging: targets and answers of wordpieces, windows, documents, schemes, and mapping of answers to the text."""

import functools
import itertools
import json
import re
import shutil
import subprocess
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

from bert_tf import BertEncoder
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.batching import Rows, padded_rows
from bert_tf.inputs.datasets.conll import read_conllu, read_klue_ner
from bert_tf.inputs.datasets.examples import ReadReport, TaggedExample, tagged
from bert_tf.inputs.datasets.json_lines import read_tagged_lines
from bert_tf.inputs.datasets.sources import Source
from bert_tf.metrics import entities as metrics
from bert_tf.tasks.tagging import BARE, LOOK_LIKE_ENTITIES, MAYBE_BARE, NUMBERS, RESPELT, Tagging, TaggingConfig
from bert_tf.tasks.tags import (
    are_entities,
    learned,
    look_like_entities,
    scheme_of,
    tagged_characters,
)
from bert_tf.text import Tokenizer
from tests import packages
from tests.errors import raises
from tests.model.small import PIECES, randomize, small_config

VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz")]
LABELS = ("O", "B-X", "I-X", "B-Y", "I-Y")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(VOCABULARY)


def make(tokenizer, labels=LABELS, unit="words", **config):
    data = ExampleData(format="klue/ner" if unit == "characters" else "conll")
    return Tagging(tokenizer, TaggingConfig(**config), data, labels=labels, unit=unit)


def sentence(text, tags=None, document=None, identity="0"):
    words = text.split()
    return tagged(identity, words, tags and tags.split(), document, f"file:{identity}")


def answer(task, examples, label_of):
    """Predictions, and the merged outputs they are made from, of a model that labels each wordpiece by its id."""
    columns = task.codec.to_tensors(examples, labelled=False)
    features = task.codec.preprocess(columns)
    rows, features = features["row"], task.codec.pad(features)
    labels = label_of(features["input_word_ids"].numpy())
    logits = tf.one_hot(labels, len(task.state.labels), 3.0, 0.0)
    merged = task.codec.aggregate_windows(columns, rows, task.codec.postprocess(features, {"logits": logits}))
    answers = {name: value.numpy() for name, value in merged.items()}
    return task.codec.predictions(examples, answers), merged


def by_remainder(ids):
    return ids % len(LABELS)


def random_sentences(count, seed=0, documents=False):
    """Words of 1 to 5 letters, so up to 5 wordpieces."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        words = ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 6))) for _ in range(rng.integers(1, 30))]
        tags = rng.choice(LABELS, len(words)).tolist()
        found.append(tagged(str(number), words, tags, number // 7 if documents else None, f"file:{number}"))
    return found


def expected_tags(tokenizer, example):
    """Tags of a sentence according to `by_remainder`, with each word tokenized alone."""
    ids = tokenizer.tokenize(list(example.words)).to_list()
    return [LABELS[pieces[0] % len(LABELS)] for pieces in ids]


def test_the_first_wordpiece_of_a_word_has_its_target_and_its_answer(tokenizer):
    task = make(tokenizer, max_length=12)
    # A zero-width space is deleted: its word has no wordpiece.
    example = sentence("the goods \u200b a, B", "O B-X I-X I-Z I-Y")
    features = task.codec.preprocess(task.codec.to_tensors([example], labelled=True))
    pieces = [VOCABULARY[number] for number in features["input_word_ids"].to_list()[0]]
    assert pieces == ["[CLS]", "the", "good", "##s", "a", ",", "b", "[SEP]"]
    assert features["word"].to_list() == [[0, 1, 2, 0, 4, 0, 5, 0]]
    # I-X belongs to its word; B-Z, to which the broken I-Z is repaired, is not a label of the task.
    assert features["target"].to_list() == [[0, 1, 2, 0, 0, 0, 4, 0]]
    assert features["start"].to_list() == [[0, 0, 4, 0, 14, 0, 17, 0]]
    assert features["end"].to_list() == [[0, 3, 9, 0, 16, 0, 18, 0]]


@pytest.mark.parametrize(
    "context, max_length, stride",
    [
        ("document", 8, 6),
        pytest.param("sentence", 8, 0, marks=pytest.mark.slow),
        pytest.param("document", 512, 0, marks=pytest.mark.slow),
    ],
)
def test_every_word_has_one_target_and_the_answer_of_its_first_wordpiece(tokenizer, context, max_length, stride):
    task = make(tokenizer, max_length=max_length, stride=stride, context=context)
    examples = random_sentences(60, documents=True)
    rows = task.codec.pad(task.codec.preprocess(task.codec.to_tensors(examples, labelled=True)))
    assert rows["input_word_ids"].shape[1] <= max_length
    mended = [tag for example in examples for tag in metrics.repair(example.tags)]
    counts = np.bincount(rows["target"].numpy().ravel(), minlength=len(LABELS) + 1)[1:]
    assert counts.tolist() == [mended.count(label) for label in LABELS]
    predictions, _ = answer(task, examples, by_remainder)
    assert [prediction["id"] for prediction in predictions] == [example.id for example in examples]
    for example, prediction in zip(examples, predictions, strict=True):
        assert prediction["tags"] == expected_tags(tokenizer, example)


def test_the_sentences_of_a_document_are_one_text(tokenizer):
    task = make(tokenizer, context="document")
    examples = [sentence("a b", "O O", document) for document in (0, 0, 1, None, None)]
    examples = [example._replace(location=f"file:{line}") for line, example in enumerate(examples)]
    columns = task.codec.to_tensors(examples, labelled=True)
    assert columns["text"].numpy().tolist() == [b"a b a b", b"a b", b"a b", b"a b"]
    assert columns["word_starts"].to_list() == [[0, 2, 4, 6], [0, 2], [0, 2], [0, 2]]


def test_windows_are_filled_with_neighbouring_sentences_of_the_document(tokenizer):
    sentences = [sentence("a b c", "O O O", 0), sentence("d e f", "O O O", 0)]
    task = make(tokenizer, max_length=6, context="document")
    ids = task.codec.preprocess(task.codec.to_tensors(sentences, labelled=True))["input_word_ids"].to_list()
    a = VOCABULARY.index("a")
    assert ids == [[2, a, a + 1, a + 2, a + 3, 3], [2, a + 2, a + 3, a + 4, a + 5, 3]]


def test_a_stream_is_not_split_inside_a_document(tokenizer):
    numbers = [0] * 3 + [1] * 4 + [None] * 2 + [2] * 11 + [3]
    examples = [sentence("a", "O", number)._replace(location=str(line)) for line, number in enumerate(numbers)]

    def sizes(context):
        return [len(chunk) for chunk in make(tokenizer, context=context).codec.chunks(iter(examples), 4)]

    # The third document has more sentences than two chunks: limiting memory is more important.
    assert sizes("document") == [7, 8, 5, 1]
    assert sizes("sentence") == [4, 4, 4, 4, 4, 1]


@pytest.mark.parametrize("labels", [LABELS, ("O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y")])
def test_the_graph_finds_the_same_entities_as_conlleval(tokenizer, labels):
    task, rng = make(tokenizer, labels), np.random.default_rng(0)
    examples = random_sentences(200)
    predictions, merged = answer(task, examples, lambda ids: rng.integers(0, len(labels), ids.shape))
    merged = {name: value.to_list() for name, value in merged.items()}
    total = 0
    for row, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        spans = metrics.entities(prediction["tags"])
        assert [kind.encode() for _, _, kind in spans] == merged["label"][row]
        assert [" ".join(example.words[start:end]).encode() for start, end, _ in spans] == merged["entity"][row]
        places = [
            (example.starts[start], example.starts[end - 1] + len(example.words[end - 1])) for start, end, _ in spans
        ]
        assert places == list(zip(merged["start"][row], merged["end"][row], strict=True))
        given = [(span["start"], span["end"], span["label"]) for span in prediction["spans"]]
        assert given == [(*place, kind) for place, (_, _, kind) in zip(places, spans, strict=True)]
        scores = [span["score"] for span in prediction["spans"]]
        np.testing.assert_allclose(scores, merged["score"][row], rtol=1e-6)
        total += len(spans)
    assert total > 1000


def test_offsets_are_characters_of_the_original_text(tokenizer):
    task = make(tokenizer)
    texts = ["  😀 the, Ünïcode (good) 가", "", "x"]
    examples = [TaggedExample(str(row), text, None, None, None, None, f"-:{row}") for row, text in enumerate(texts)]
    predictions, merged = answer(task, examples, lambda ids: np.ones_like(ids))  # B-X everywhere
    assert predictions[0]["words"] == ["😀", "the", ",", "Ünïcode", "(", "good", ")", "가"]
    for text, prediction in zip(texts, predictions, strict=True):
        assert [text[span["start"] : span["end"]] for span in prediction["spans"]] == prediction["words"]
        assert [span["text"] for span in prediction["spans"]] == prediction["words"]
    assert [word.decode() for word in merged["entity"].to_list()[0]] == predictions[0]["words"]


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_words_and_entities_include_the_combining_marks_of_their_last_letter(tokenizer, unit):
    task = make(tokenizer, unit=unit)
    words = [unicodedata.normalize("NFD", word) for word in ("Café", "Zoë", "नमस्ते", "שָׁלוֹםֹ", "한각")]
    example = TaggedExample("0", " ".join(words), None, None, None, None, "-:0")
    # B-X begins an entity at each word's first wordpiece: in characters the others, "##f" etc., continue it.
    continues = tokenizer.continues.numpy()
    (prediction,), merged = answer(task, [example], lambda ids: np.where(continues[ids], 2, 1))
    assert [span["text"] for span in prediction["spans"]] == words
    assert [text.decode() for text in merged["entity"].to_list()[0]] == words
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    assert [span["end"] for span in prediction["spans"]] == merged["end"].to_list()[0] == ends.tolist()
    if unit == "words":
        assert prediction["words"] == [word.decode() for word in merged["word"].to_list()[0]] == words
        given = sentence(example.text)
        assert answer(task, [given], lambda ids: np.where(continues[ids], 2, 1))[0][0]["spans"] == prediction["spans"]


def test_a_word_without_a_wordpiece_gets_the_most_frequent_label_and_is_counted(tokenizer):
    task, read_report = make(tokenizer), ReadReport()
    example = sentence("a \u200b b", "B-X I-X I-X")
    predictions, _ = answer(task, [example], lambda ids: np.ones_like(ids))
    assert predictions[0]["tags"] == ["B-X", "O", "B-X"]
    task.check([example], read_report)
    assert read_report.lines() == ["words without wordpieces, always tagged 'O': 1 (file:0)"]


def characters_of(text, tags):
    return tagged("0", list(text), tags.split(), None, "file:1", joiner="")


def test_wordpieces_have_the_target_of_their_first_character_and_tag_all_of_them():
    tokenizer = Tokenizer([*PIECES[:5], "서울", "##시", "청", "##장", "김", "##철수"], lower_case=False)
    example = characters_of("서울시 청장 김철수", "B-OG I-OG I-OG I-OG I-OG O O B-PS I-PS I-PS")
    create = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), [example], None)
    assert create.state.unit == "characters"
    features = create.codec.preprocess(create.codec.to_tensors([example], labelled=True))
    targets = [create.state.labels[target - 1] for target in features["target"].to_list()[0][1:-1]]
    assert targets == ["B-OG", "I-OG", "I-OG", "O", "B-PS", "I-PS"]
    labels = np.array([[0, *(create.state.labels.index(label) for label in targets), 0, 0]])  # padded to eight
    (prediction,), merged = answer(create, [example], lambda ids: labels[:, : ids.shape[1]])
    assert prediction["tags"] == list(example.tags)
    assert [(span["text"], span["label"]) for span in prediction["spans"]] == [("서울시 청", "OG"), ("김철수", "PS")]
    assert [text.decode() for text in merged["entity"].to_list()[0]] == ["서울시 청", "김철수"]
    # Every character has the score of its piece; the second space has no piece, and the first is inside an entity.
    assert [score > 0 for score in prediction["scores"]] == [character != " " for character in example.text]
    served = [[value.decode() for value in merged[name].to_list()[0]] for name in ("word", "tag")]
    assert served == [list(example.text), list(example.tags)]
    assert merged["word_start"].to_list() == [[*range(10)]] and merged["word_end"].to_list() == [[*range(1, 11)]]


def onto_characters(units, length, outside="O"):
    """Tags and scores of `length` characters from those of wordpieces, as KLUE's authors map them.

    The first character of a piece gets its tag, the others the I- tag of its entity, as does white space between two
    pieces of one entity. All other characters are `outside`. Characters without a piece have a score of 0.
    """
    tags, scores, last, reached = [outside] * length, [0.0] * length, outside, 0
    for start, end, tag, score in units:
        inside = f"I-{tag[2:]}" if tag.startswith("B-") else tag
        if tag.startswith("I-") and last[2:] == tag[2:]:
            tags[reached:start] = [tag] * (start - reached)
        tags[start:end] = [tag, *[inside] * (end - start - 1)]
        scores[start:end] = [score] * (end - start)
        last, reached = tag, end
    return tags, scores


def test_served_characters_have_the_tags_that_python_maps_onto_them():
    labels, rng = ("O", "B-X", "I-X", "B-Y", "I-Y"), np.random.default_rng(0)
    texts = ["", *("".join(rng.choice(list("aé가😀 "), length)) for length in rng.integers(1, 12, 60)), "", "a"]
    pieces, rows, expected = [], [], []
    for row, text in enumerate(texts):
        cuts = np.unique(rng.integers(0, len(text) + 1, rng.integers(0, 8)))
        units = [
            (int(start), int(end), int(rng.integers(5)), float(np.float32(rng.random())))
            for start, end in itertools.pairwise(cuts)
            if rng.random() < 0.7
        ]
        units = units if row % 3 else [unit for unit in units if unit[0]]
        expected.append(
            onto_characters([(start, end, labels[tag], score) for start, end, tag, score in units], len(text), "O")
        )
        pieces += [(len(text[:start].encode()), len(text[:end].encode()), *others) for start, end, *others in units]
        rows += [row] * len(units)
    start, end, label, score = zip(*pieces, strict=True)
    columns = {"start": start, "end": end, "label": label}
    columns = {name: tf.constant(value, tf.int32) for name, value in columns.items()} | {"score": tf.constant(score)}
    for chosen in (slice(None), slice(0, 0)):
        kept = {name: value[chosen] for name, value in columns.items()}
        found, row = tagged_characters(tf.constant(texts), tf.constant(rows, tf.int64)[chosen], kept, labels, "O")
        tags = tf.RaggedTensor.from_value_rowids(found["tag"], row, nrows=len(texts)).to_list()
        scores = tf.RaggedTensor.from_value_rowids(found["score"], row, nrows=len(texts)).to_list()
        answers = expected if kept["start"].shape[0] else [onto_characters([], len(text)) for text in texts]
        assert [[tag.decode() for tag in one] for one in tags] == [tags for tags, _ in answers]
        assert scores == [scores for _, scores in answers]
        sizes = [len(character.encode()) for text in texts for character in text]
        assert (found["end"] - found["start"]).numpy().tolist() == sizes
    assert {tag for tags, _ in expected for tag in tags} == set(labels)


def test_an_unknown_tag_in_an_evaluation_file_of_klue_counts_as_an_error(tokenizer):
    task = make(tokenizer, ("O", "B-PS", "I-PS"), unit="characters")
    validation = [characters_of("이순신 장군", "B-PS I-PS I-PS O B-AF I-AF")]
    scores = task.benchmark.official_metrics(validation, [{"tags": ["B-PS", "I-PS", "I-PS", "O", "O", "O"]}])
    assert (scores["entity_macro_f1"], scores["recall"]) == (0.5, 0.5)


@pytest.mark.parametrize("scheme", ["BIOES", "IOB1"])
def test_characters_can_only_be_tagged_in_bio(tokenizer, scheme):
    examples = [characters_of("가나 다라", "B-X I-X O B-X I-X")]
    assert Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), examples, None).codec.scheme == "BIO"
    with raises(ConfigError, scheme, "task.scheme", "BIO"):
        Tagging.learn(tokenizer, TaggingConfig(scheme=scheme), ExampleData(), examples, None)


def test_json_lines_of_texts_with_a_tag_per_character_are_those_of_klue(tmp_path):
    rows = [("서울 시", "B-LC I-LC O O"), ("김", "B-PS")]
    klue = "".join(
        f"## {index}\t{text}\n" + "".join(f"{one}\t{tag}\n" for one, tag in zip(text, tags.split(), strict=True)) + "\n"
        for index, (text, tags) in enumerate(rows)
    )
    (tmp_path / "a.tsv").write_text(klue)
    lines = "".join(json.dumps({"text": text, "tags": tags.split()}) + "\n" for text, tags in rows)
    (tmp_path / "a.jsonl").write_text(lines)
    read = (read_klue_ner(str(tmp_path / "a.tsv")), read_tagged_lines(str(tmp_path / "a.jsonl")))
    ours, klues = ([example._replace(location="") for example in examples] for examples in read)
    assert ours == klues


def test_words_are_refused_by_a_model_of_characters_and_characters_by_one_of_words(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "이순신 장군"}\n{"words": ["가"]}\n{"words": ["이순신", "장군"]}\n')
    text, single, words = read_tagged_lines(str(path))
    by_characters = make(tokenizer, unit="characters")
    predictions, _ = answer(by_characters, [text, single], lambda ids: np.ones_like(ids))
    assert [len(prediction["tags"]) for prediction in predictions] == [6, 1]
    with raises(DataError, "a.jsonl:3", "2 words", "6 characters"):
        by_characters.codec.to_tensors([text, words], labelled=False)
    characters = characters_of("이순신 장군", "B-X I-X I-X O O O")
    with raises(DataError, "file:1"):
        make(tokenizer).codec.to_tensors([words, characters], labelled=True)
    # Words that the model finds in a text may be adjacent.
    assert answer(make(tokenizer), [text._replace(text="(a)")], by_remainder)[0][0]["words"] == ["(", "a", ")"]


def test_perfect_predictions_have_perfect_klue_metrics():
    """Oracle tags on real sentences with one wordpiece per character, including white space inside entities."""
    path = packages.shared("korean/klue/klue-ner-v1.1_dev.tsv")
    examples = [example for example, _ in zip(read_klue_ner(str(path)), range(300), strict=False)]
    letters = sorted({char for example in examples for char in example.text if char.strip()})
    pieces = [*PIECES[:5], *letters, *(f"##{char}" for char in letters)]
    task = Tagging.learn(
        Tokenizer(pieces, lower_case=False),
        TaggingConfig(max_length=40),
        ExampleData(format="klue/ner"),
        examples,
        None,
    )
    columns = task.codec.to_tensors(examples, labelled=True)
    features = task.codec.preprocess(columns)
    rows, features = features["row"], task.codec.pad(features)
    logits = tf.one_hot(features["target"] - 1, len(task.state.labels), 9.0)
    merged = task.codec.aggregate_windows(columns, rows, task.codec.postprocess(features, {"logits": logits}))
    predictions = task.codec.predictions(examples, {name: value.numpy() for name, value in merged.items()})
    scores = task.benchmark.official_metrics(examples, predictions)
    assert scores["entity_macro_f1"] == scores["character_macro_f1"] == scores["f1"] == 1.0
    assert task.monitor == "entity_macro_f1"
    with_spaces = [prediction["tags"] for prediction in predictions]
    assert with_spaces == [list(example.tags) for example in examples]


def test_metrics_are_sums_over_the_words(tokenizer):
    task = make(tokenizer)
    features = task.codec.pad(task.codec.preprocess(task.codec.to_tensors(random_sentences(5), labelled=True)))
    logits = np.random.default_rng(0).normal(size=(*features["target"].shape, 5)).astype(np.float32)
    sums = task.objective.loss_and_metrics(features, {"logits": tf.constant(logits)})
    rows, places = np.nonzero(features["target"].numpy())
    labels = features["target"].numpy()[rows, places] - 1
    words = sum(len(example.words) for example in random_sentences(5))
    np.testing.assert_allclose(sums["loss"], [-log_softmax(logits, -1)[rows, places, labels].sum(), words], rtol=1e-5)
    np.testing.assert_allclose(sums["accuracy"], [(logits[rows, places].argmax(-1) == labels).sum(), words])
    assert float(task.objective.weights(features)["loss"]) == words
    assert set(sums) == {*task.objective.losses, *task.objective.metric_names}


@pytest.mark.parametrize(
    "tags, scheme",
    [
        ("O I-X I-X O I-Y B-Y", "IOB1"),
        ("O I-X I-Y", "IOB1"),
        ("O B-X I-X O B-Y B-Y I-X", "BIO"),
        ("S-X O B-Y E-Y", "BIOES"),
    ],
)
def test_the_scheme_is_inferred_from_the_tags(tags, scheme):
    assert scheme_of([["O"], tags.split()]) == scheme


@pytest.mark.parametrize(
    "scheme, expected",
    [
        ("", ("O", "I-X", "B-X", "I-Y", "B-Y")),
        ("BIO", ("O", "B-X", "B-Y", "I-X", "I-Y")),
        ("BIOES", ("O", "S-X", "B-X", "E-X", "I-X", "B-Y", "I-Y", "E-Y", "S-Y")),
    ],
)
def test_labels_are_ordered_by_frequency_and_every_type_has_all_prefixes(tokenizer, scheme, expected):
    examples = [sentence("a b c d e f g h", "O O O O I-X B-X I-X O"), sentence("a a b", "I-Y I-Y O")]
    task = Tagging.learn(tokenizer, TaggingConfig(scheme=scheme), ExampleData(), examples, None)
    assert set(task.state.labels) == set(expected)
    assert task.state.labels[0] == "O"
    assert task.codec.scheme == (scheme or "IOB1")
    counts = [tag for example in examples for tag in metrics.repair(example.tags, task.codec.scheme)]
    frequencies = [counts.count(label) for label in task.state.labels]
    assert frequencies == sorted(frequencies, reverse=True)


def test_broken_sequences_are_repaired_and_counted_and_unknown_tags_are_never_targets(tokenizer):
    train = [sentence("a b c", "O B-X I-X", identity="1")] * 3 + [sentence("a b c d", "I-X I-X O I-Y", identity="2")]
    task, read_report = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), train, None), ReadReport()
    task.check(train, read_report)
    assert read_report.lines() == ["repaired: tag of a broken entity sequence: 2 (file:2, file:2)"]
    validation, read_report = [sentence("a b c", "B-Z I-Z O", identity="9"), sentence("a b c", "B-X O O")], ReadReport()
    task.check(validation, read_report)
    assert read_report.counts == {"never predicted: tag 'B-Z', not in the training data": 1,
                            "never predicted: tag 'I-Z', not in the training data": 1}  # fmt: skip
    targets = task.codec.preprocess(task.codec.to_tensors(validation, labelled=True))["target"].to_list()
    assert targets[0] == [0, 0, 0, 1 + task.state.labels.index("O"), 0]
    predictions = [{"tags": ["B-X", "I-X", "O"]}, {"tags": ["B-X", "O", "O"]}]
    scores = task.benchmark.official_metrics(validation, predictions)
    assert (scores["precision"], scores["recall"], scores["Z/recall"]) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize(
    ("written", "scheme", "mended"),
    [
        ("O B-X I-X", "", 2),
        ("O B-X I-X", "BIOES", 2),
        ("O S-X S-X", "", 2),
        ("O I-X I-X", "", 0),
        ("O I-X I-X", "BIO", 0),
    ],
)
def test_a_file_without_b_tags_is_repaired_if_the_training_file_has_them(tokenizer, written, scheme, mended):
    config = TaggingConfig(scheme=scheme)
    task = Tagging.learn(tokenizer, config, ExampleData(), [sentence("a b c", written)], None)
    task = Tagging.from_settings(task.settings(), tokenizer)
    read_report = ReadReport()
    task.check([sentence("a b c", "O I-X O"), sentence("a", "I-X")], read_report)
    assert read_report.counts.total() == mended


def test_files_in_another_scheme_than_the_training_file_are_not_broken(tokenizer):
    for written in ("O I-X I-X", "O B-X I-X", "B-X E-X O"):
        task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), [sentence("a b c", written)], None)
        for tags in ("O B-X I-X", "O B-X E-X"):
            read_report = ReadReport()
            task.check([sentence("a b c", tags)], read_report)
            assert not read_report.counts


def test_old_settings_without_the_scheme_of_the_training_file_are_read(tokenizer):
    settings = make(tokenizer, scheme="BIO").settings()
    del settings["written"]
    read_report = ReadReport()
    Tagging.from_settings(settings, tokenizer).check([sentence("a", "I-X")], read_report)
    assert not read_report.counts  # the file may be in IOB1


def test_an_invalid_tag_is_reported_with_its_location(tokenizer):
    with raises(DataError, "file:0", "'B:X'"):
        Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), [sentence("a b c", "B-X B:X O")], None)
    with raises(DataError, "file:7", "'PER'"):  # as in evaluate
        make(tokenizer).check([sentence("a", "O"), sentence("a b", "O PER", identity="7")], ReadReport())


@pytest.mark.parametrize(
    "config, tags, message",
    [
        ({"stride": 127}, "O B-X", ("task.stride", "127", "126", "task.max_length", "2")),
        ({"context": "page"}, "O B-X", ("task.context", "'page'")),
        ({"scheme": "IOE"}, "O B-X", ("task.scheme", "'IOE'", "BIO", "BIOES", "IOB1")),
        ({"context": "document"}, "O B-X", ("the training file",)),
        ({"scheme": "BIO"}, "NN VB", ("task.scheme", "BIO")),
    ],
)
def test_inconsistent_settings_are_refused(tokenizer, config, tags, message):
    with raises(ConfigError, *message):
        Tagging.learn(tokenizer, TaggingConfig(**config).check(), ExampleData(), [sentence("a b", tags)], None)


@pytest.mark.parametrize(
    ("outside", "begin", "inside"),
    [
        ("O", "B-{}", "I-{}"),
        ("O", "{}-B", "{}-I"),
        ("-", "{}_B", "{}_I"),  # Naver
        ("O", "B_{}", "I"),  # kmounlp
        ("o", "b-{}", "i-{}"),
        ("_", "{}-b", "{}-i"),
    ],
)
def test_entity_tags_are_learned_and_scored_whatever_their_spelling(tokenizer, outside, begin, inside):
    tags = ["O", "B-PER", "I-PER", "B-PER", "O", "B-LOC", "I-LOC"]
    spelling = {"O": outside, "B": begin, "I": inside}
    written = [spelling[tag[0]].format(tag[2:]) for tag in tags]
    train = [sentence("a b c d e f g", " ".join(written))]
    task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), train, None)
    assert set(task.state.labels) == set(tags) and task.codec.scheme == "BIO" and task.monitor == "f1"
    targets = task.codec.preprocess(task.codec.to_tensors(train, labelled=True))["target"].to_list()
    assert [task.state.labels[number - 1] for number in targets[0][1:-1]] == tags
    # Three entities, one of them found: as conlleval counts the same tags in their usual spelling.
    predicted = [{"tags": ["O", "B-PER", "I-PER", "O", "O", "B-LOC", "O"]}]
    scores = task.benchmark.official_metrics(train, predicted)
    assert (scores["precision"], scores["recall"], scores["LOC/f1"], scores["PER/entities"]) == (1 / 2, 1 / 3, 0, 2)
    assert task.benchmark.baseline(train)["recall"] < 1 and "f1" in task.benchmark.baseline(train)
    read_report = ReadReport()
    task.check(train, read_report)
    assert read_report.counts == ({} if written == tags else {RESPELT: 1})


def test_bilou_and_bmewo_are_bioes(tokenizer):
    for written in ("B-X L-X O U-Y", "B-X M-X E-X W-Y", "X_B X_L O Y_U"):
        task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), [sentence("a b c d", written)], None)
        assert (
            task.codec.scheme == "BIOES"
            and "S-Y" in task.state.labels
            and not {"L-X", "U-Y", "M-X", "W-Y"} & {*task.state.labels}
        )


def test_an_untyped_i_continues_the_entity_before_it_and_is_o_without_one(tokenizer):
    train, read_report = [sentence("a b c d e", "B_DT I O I B_PS")], ReadReport()
    task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), train, None)
    task.check(train, read_report)
    assert learned(train[0], task.codec.scheme) == ["B-DT", "I-DT", "O", "O", "B-PS"]
    assert read_report.counts == {RESPELT: 1, "repaired: tag of a broken entity sequence": 1}


def test_the_labels_of_a_converted_model_are_understood_in_any_spelling(tokenizer):
    task = Tagging.from_settings({"labels": ["O", "PER-B", "PER-I", "LOC-B"], "max_length": 64}, tokenizer)
    assert (task.state.labels, task.codec.scheme) == (["O", "B-PER", "I-PER", "B-LOC"], "BIO")
    untyped = Tagging.from_settings({"labels": ["O", "B_PS", "I"], "max_length": 64}, tokenizer)
    assert untyped.codec.scheme == ""  # I may be of any type
    numbered = Tagging.from_settings({"labels": ["LABEL_0", "LABEL_1"], "max_length": 64}, tokenizer)
    assert (numbered.state.labels, numbered.codec.scheme) == (["LABEL_0", "LABEL_1"], "")


BRACKETS = [
    ("(PER* *) * (ORG) (LOC* * *)", "B-PER I-PER O B-ORG B-LOC I-LOC I-LOC"),
    ("* (PER*) (PER*) *", "O B-PER B-PER O"),
    ("(PER-X* *) (A_B*", "B-PER-X I-PER-X B-A_B"),
]


@pytest.mark.parametrize(("written", "usual"), BRACKETS)
def test_the_brackets_of_conll_2012_are_entities(tokenizer, written, usual):
    train, read_report = [sentence(" ".join("abcdefg"[: len(usual.split())]), written)], ReadReport()
    task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), train, None)
    task.check(train, read_report)
    assert (task.codec.scheme, learned(train[0], "BIO")) == ("BIO", usual.split())
    assert task.monitor == "f1" and read_report.counts == {RESPELT: 1}


def test_a_bracket_that_closes_nothing_is_refused(tokenizer):
    with raises(DataError, "file:0", "'*)'"):
        Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), [sentence("a b", "* *)")] * 2 + [
            sentence("a b", "(X* *)")], None)  # fmt: skip


IO = ["O person-actor person-actor O location", "O O location person-actor O", "O O O O art"]


def test_types_without_prefix_are_entities_if_most_words_are_outside(tokenizer):
    train, read_report = [sentence("a b c d e", tags) for tags in IO], ReadReport()
    task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), train, None)
    task.check(train, read_report)
    kinds = ("person-actor", "location", "art")
    assert (task.codec.scheme, task.monitor) == ("IO", "f1") and read_report.counts == {BARE: 3}
    assert set(task.state.labels) == {"O", *(f"I-{kind}" for kind in kinds)}
    spans = [span for example in train for span in metrics.entities(learned(example, "IO"))]
    assert spans == [(1, 3, kinds[0]), (4, 5, kinds[1]), (2, 3, kinds[1]), (3, 4, kinds[0]), (4, 5, kinds[2])]
    scores = task.benchmark.official_metrics(train, [{"tags": learned(one, "IO")} for one in train])
    assert (scores["f1"], scores["entities"]) == (1, 5)
    # A saved model reads the same file, and one with prefixes, in which two of one type may adjoin.
    again, other = Tagging.from_settings(task.settings(), tokenizer), ReadReport()
    again.check([sentence("a b c", "O B-location B-location")], other)
    assert not other.counts
    assert again.codec.scheme == "IO" and learned(sentence("a b", "B-art B-art"), "IO") == ["I-art", "I-art"]


def test_types_without_prefix_can_be_kept_as_plain_tags_or_named_as_entities(tokenizer):
    train = [sentence("a b c d e", tags) for tags in IO]
    plain = Tagging.learn(tokenizer, TaggingConfig(scheme="none"), ExampleData(), train, None)
    assert (plain.codec.scheme, plain.monitor, len(plain.state.labels)) == ("", "accuracy", 4)
    read_report = ReadReport()
    plain.check(train, read_report)
    assert not read_report.counts and Tagging.from_settings(plain.settings(), tokenizer).codec.scheme == ""
    with_prefix = [sentence("a b", "B-X O")]
    plain = Tagging.learn(tokenizer, TaggingConfig(scheme="none"), ExampleData(), with_prefix, None)
    assert (plain.codec.scheme, set(plain.state.labels)) == ("", {"B-X", "O"})
    # Few words are outside.
    street = [sentence("a b c", "street street O"), sentence("a b", "street city")]
    maybe, read_report = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), street, None), ReadReport()
    maybe.check(street, read_report)
    assert maybe.codec.scheme == "" and read_report.locations == {MAYBE_BARE: ["file:0"]}
    named = Tagging.learn(tokenizer, TaggingConfig(scheme="IO"), ExampleData(), street, None)
    assert named.codec.scheme == "IO" and set(named.state.labels) == {"O", "I-street", "I-city"}
    with raises(ConfigError, "task.scheme is BIO", "set it to IO"):
        Tagging.learn(tokenizer, TaggingConfig(scheme="BIO"), ExampleData(), train, None)


def test_parts_of_speech_among_which_is_o_are_no_entities(tokenizer):
    """Tags of tweets (Gimpel et al., 2011), O for pronouns; and numbers for names, as in Hugging Face's data sets."""
    for tags, expected in (("O V O N ,", {}), ("0 3 0 7 8", {NUMBERS: 1})):
        train, read_report = [sentence("a b c d e", tags)], ReadReport()
        task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), train, None)
        task.check(train, read_report)
        assert (task.codec.scheme, read_report.counts) == ("", expected)


@pytest.mark.parametrize(
    "tags",
    ["(NP(PP* *) *) O", "BPER IPER O O", "BPER IPER O", "B:PER I:PER OUT", "B I O", "PERB PERI O", "B_DT I_DT NNG JKB"],
)
def test_tags_that_only_look_like_entities_are_reported_in_one_line(tokenizer, tags):
    train, read_report = [sentence(" ".join("abcdefgh"[: len(tags.split())]), tags)], ReadReport()
    task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), train, None)
    task.check(train, read_report)
    assert task.codec.scheme == "" and read_report.locations == {LOOK_LIKE_ENTITIES: ["file:0"]}


@pytest.mark.parametrize(("read", "path"), [
    (lambda path: read_conllu(path, "xpos"), "english/ud_ewt/en_ewt-dev.conllu"),
    (lambda path: read_conllu(path, "upos"), "korean/ud_gsd/ko_gsd-dev.conllu"),
    (lambda path: read_conllu(path, "xpos"), "korean/ud_gsd/ko_gsd-dev.conllu"),
])  # fmt: skip
def test_parts_of_speech_are_no_entities_and_do_not_look_like_them(read, path):
    tags = {tag for example in read(str(packages.shared(path))) for tag in example.tags}
    assert not are_entities(tags) and not look_like_entities(tags)


def test_a_single_tag_is_refused(tokenizer):
    message = r"file:0 and all following: every tag is 'NN'; expected at least two: is data\.column \(now ''\) the"
    with pytest.raises(DataError, match=message):
        Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), [sentence("a b", "NN NN")], None)


def test_the_task_is_restored_from_its_settings_or_those_of_a_converted_model(tokenizer):
    task = make(tokenizer, max_length=9, context="document", unit="characters", scheme="BIO")
    again = Tagging.from_settings(json.loads(json.dumps(task.settings())), tokenizer)
    assert json.dumps(again.settings()) == json.dumps(task.settings())
    foreign = Tagging.from_settings({"labels": ["O", "B-PER", "E-PER"], "max_length": 64}, tokenizer)
    assert (foreign.state.unit, foreign.codec.scheme, foreign.config.max_length) == ("words", "BIOES", 64)


def test_parts_of_speech_are_scored_by_accuracy_and_have_no_entities(tokenizer):
    examples = [sentence("a b c", "NN VB NN"), sentence("a", "DT")]
    task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(), examples, None)
    assert task.state.labels == ("NN", "DT", "VB")
    assert task.benchmark.official_metrics(examples, [{"tags": ["NN", "NN", "NN"]}, {"tags": ["DT"]}]) == {
        "accuracy": 0.75
    }
    assert task.benchmark.baseline(examples) == {"accuracy": 0.5}
    assert (task.monitor, task.codec.scheme) == ("accuracy", "")
    (prediction, _), _ = answer(task, examples, lambda ids: ids % 3)
    assert prediction.keys() == {"id", "text", "words", "tags", "scores"}


def test_parts_of_speech_that_resemble_entity_tags_are_not_read_as_entities(tokenizer):
    examples = [sentence("a b c", "N------S1D S----3MS2- VP-A-3MS--")]  # from the Prague Arabic treebank
    task = Tagging.learn(tokenizer, TaggingConfig(), ExampleData(format="conllu", column="xpos"), examples, None)
    assert (task.monitor, task.codec.scheme, len(task.state.labels)) == ("accuracy", "", 3)


def test_one_long_text_does_not_mix_lengths_in_the_following_batches():
    def windows(columns):
        """Of 30 tokens."""
        lengths = columns["length"]
        counts = (lengths + 29) // 30
        window = tf.ragged.range(counts).flat_values
        row = tf.repeat(tf.range(tf.size(lengths)), counts)
        ids = tf.ragged.range(tf.minimum(30, tf.gather(lengths, row) - 30 * window))
        return {"row": tf.cast(row, tf.int64), "input_word_ids": ids, "input_type_ids": ids}

    rows = Rows(windows, functools.partial(padded_rows, max_length=32), windows=True)

    def padding(lengths):
        columns = {"length": tf.constant(lengths, tf.int32)}
        masks = [one["input_mask"].numpy() for one in rows.batches(columns, 4, seed=tf.constant([0, 1], tf.int64))]
        assert sum(mask.sum() for mask in masks) == sum(lengths)
        assert sum(len(mask) < 4 for mask in masks) <= 1
        return 1 - sum(lengths) / sum(mask.size for mask in masks)

    lengths = np.random.default_rng(0).integers(1, 30, 768).tolist()
    assert padding([80, *lengths]) < 1.2 * padding(lengths)


@pytest.mark.parametrize("labels", [LABELS, ("O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y")])
def test_conlleval_finds_the_same_scores_in_the_prediction_file(tokenizer, labels, tmp_path):
    script = packages.seqeval() / "tests/conlleval.pl"
    if not shutil.which("perl"):
        pytest.skip("conlleval.pl needs perl")
    task, rng = make(tokenizer, labels), np.random.default_rng(1)
    examples = random_sentences(100)
    predictions, _ = answer(task, examples, lambda ids: rng.choice(len(labels), ids.shape))
    path = tmp_path / "a.conll"
    task.writers()[".conll"](path, zip(examples, predictions, strict=True))
    done = subprocess.run(["perl", script], stdin=path.open(), capture_output=True, text=True, check=True)
    scores = task.benchmark.official_metrics(examples, predictions)
    overall = re.search(r"precision: +([\d.]+)%; recall: +([\d.]+)%; FB1: +([\d.]+)", done.stdout)
    expected = [scores[name] for name in ("precision", "recall", "f1")]
    np.testing.assert_allclose([float(value) / 100 for value in overall.groups()], expected, atol=5.1e-5)
    assert float(re.search(r"accuracy: +([\d.]+)%", done.stdout)[1]) > 0
    for kind in "XY":
        (f1,) = re.findall(rf" {kind}: .*FB1: +([\d.]+)", done.stdout)
        assert scores[f"{kind}/f1"] == pytest.approx(float(f1) / 100, abs=5.1e-5)


def test_predictions_of_sentences_without_tags_have_no_column_of_labels(tokenizer, tmp_path):
    task = make(tokenizer)
    examples = [TaggedExample("7", "a (b) .", None, None, None, None, "-:1")]
    predictions, _ = answer(task, examples, lambda ids: np.ones_like(ids))
    task.writers()[".conll"](tmp_path / "a.conll", zip(examples, predictions, strict=True))
    assert (tmp_path / "a.conll").read_text() == "a B-X\n( B-X\nb B-X\n) B-X\n. B-X\n\n"


def test_json_lines_contain_words_with_tags_or_words_or_a_text(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"words": ["a", "b"], "tags": ["O", "B-X"]}\n{"words": ["c"], "id": 5}\n{"text": "d e."}\n')
    first, second, third = read_tagged_lines(str(path))
    assert (first.text, first.words, first.starts, first.tags) == ("a b", ("a", "b"), (0, 2), ("O", "B-X"))
    assert (second.id, second.words, second.tags) == ("5", ("c",), None)
    assert (third.id, third.text, third.words, third.tags) == ("2", "d e.", None, None)
    predictions, _ = answer(make(tokenizer), [first, second, third], by_remainder)
    assert [prediction["words"] for prediction in predictions] == [["a", "b"], ["c"], ["d", "e", "."]]


def test_training_on_sentences_without_tags_is_refused_with_their_location(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"words": ["a"], "tags": ["O"]}\n{"words": ["b"]}\n')
    source = Source(ExampleData(format="conll"), str(path), TaggedExample)
    with raises(DataError, "a.jsonl:2"):
        list(source.examples(ReadReport(), "train"))


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"words": ["a"], "tags": []}', "1 words and 0 tags; expected one per word"),
        ('{"text": "a b", "tags": ["O", "O"]}', "3 characters and 2 tags; expected one per character"),
        ('{"words": ["a", " "]}', "words: ' '; expected text"),
        ('{"words": [1]}', "words[0] is 1; expected text"),
        ('{"sentence": "a"}', "no field 'words'; the fields are 'sentence'"),
        ('["a"]', "list; expected an object with the field 'words'"),
    ],
)
def test_invalid_json_lines_are_reported_with_their_location(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=re.escape(f"{path}:1: {message}")):
        list(read_tagged_lines(str(path)))


def test_every_word_of_real_sentences_gets_a_tag(tokenizer):
    """Universal Dependencies has words with spaces, emoticons and URLs; most sentences are longer than a window."""
    path = packages.shared("korean/ud_gsd/ko_gsd-dev.conllu")
    examples = list(read_conllu(str(path)))
    task = make(tokenizer, max_length=16)
    predictions, _ = answer(task, examples, by_remainder)
    for example, prediction in zip(examples, predictions, strict=True):
        assert prediction["tags"] == expected_tags(tokenizer, example)


@pytest.mark.parametrize(
    "unit, context",
    [
        ("words", "document"),
        ("characters", "sentence"),
        pytest.param("words", "sentence", marks=pytest.mark.slow),
        pytest.param("characters", "document", marks=pytest.mark.slow),
    ],
)
def test_a_sentence_without_words_has_no_tags_and_does_not_shift_others(tokenizer, unit, context):
    task = make(tokenizer, unit=unit, context=context, max_length=16)
    full = [tagged("0", "ab", None, 0, "", joiner="" if unit == "characters" else " ")]
    full.append(full[0]._replace(id="3", document=1))
    empty = [tagged("1", [], None, 0, ""), TaggedExample("2", "", None, None, None, 0, "")]
    predictions, _ = answer(task, [full[0], *empty, full[1]], by_remainder)
    for prediction in predictions[1:3]:
        assert (prediction["words"], prediction["tags"], prediction["spans"]) == ([], [], [])
    assert [predictions[0], predictions[3]] == answer(task, full, by_remainder)[0]
    assert answer(task, empty, by_remainder)[0] == predictions[1:3]


def test_shorter_rows_of_a_batch_are_padded_with_empty_values(tokenizer):
    task = make(tokenizer, ("NN", "VB"), max_length=24)
    serve = task.signatures(randomize(task.build(BertEncoder(small_config(num_layers=1)))))["serving_default"]
    answer = serve.python_function(tf.constant(["a b c", "a"]))
    assert answer["word"].numpy().tolist() == [[b"a", b"b", b"c"], [b"a", b"", b""]]
    assert answer["tag"].shape == (2, 3)
    assert "label" not in answer  # parts of speech are not entities
    assert answer["tag"].numpy()[1, 1:].tolist() == [b"", b""]
    assert answer["word_end"].numpy().tolist() == [[1, 3, 5], [1, 0, 0]]
