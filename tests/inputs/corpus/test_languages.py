"""Mixtures of languages: shares, passes, masks, resuming, shards, vocabularies and bad input."""

import collections
import functools
import gzip
import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import PretrainConfig, PretrainingData
from bert_tf.config.data import corpora, named_corpora
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.batching import stream
from bert_tf.inputs.corpus.corpus import Corpus, find_corpus
from bert_tf.inputs.corpus.dataset import checked_corpus, pretraining_dataset, reading
from bert_tf.inputs.corpus.languages import mixed_lines, passes, smoothed
from bert_tf.inputs.corpus.readers import check_text_files
from bert_tf.text import Tokenizer
from bert_tf.text.learning import read_lines
from tests.errors import raises

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = {"en": 12_000, "ko": 1_000}  # words of the text; each occurs once
FIRST = {"en": len(SPECIALS), "ko": len(SPECIALS) + WORDS["en"]}  # id of the first word
DOCUMENT = {"en": 50, "ko": 10}  # words, five a sentence; in Korean so few that sequences are a third as long
LENGTH, BATCH, EXPONENT = 32, 8, 0.3


def documents_of(name):
    words = [f"{name}{number:06d}" for number in range(WORDS[name])]
    return [
        "\n".join(" ".join(words[start : start + 5]) for start in range(first, first + DOCUMENT[name], 5))
        for first in range(0, WORDS[name], DOCUMENT[name])
    ]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Files by language, one of each compressed; a tokenizer whose ids tell the language and the place of a word."""
    folder, files = tmp_path_factory.mktemp("languages"), {}
    for name in WORDS:
        first, second = (
            "\n\n".join(part) + "\n" for part in np.array_split(np.array(documents_of(name), dtype=object), 2)
        )
        files[name] = [str(folder / f"{name}.txt"), str(folder / f"{name}.txt.gz")]
        (folder / f"{name}.txt").write_text(first)
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress(second.encode()))
    return files, Tokenizer([*SPECIALS, *(f"{name}{number:06d}" for name in WORDS for number in range(WORDS[name]))])


def data_of(**fields):
    options = {"max_length": LENGTH, "max_predictions": 5, "group_size": 50, "language_exponent": EXPONENT}
    return PretrainingData(**options | fields).check()


@pytest.fixture(scope="module")
def corpus(text):
    files, tokenizer = text
    sizes = {name: Corpus(own, tokenizer, data_of()).check() for name, own in files.items()}
    return Corpus([*itertools.chain(*files.values())], tokenizer, data_of(), smoothed(files, sizes, EXPONENT))


@pytest.fixture(scope="module")
def stream_of(corpus):
    """Function from a kind to the stream of its batches."""

    @functools.cache
    def stream_of(kind):
        of_kind = corpus._replace(data=data_of(**KINDS[kind]))
        return stream(lambda epoch: pretraining_dataset(of_kind, seed=1, epoch=epoch, batch_size=BATCH))

    return stream_of


@pytest.fixture(scope="module")
def epoch_of(stream_of):
    """Function from a kind to the batches of the first epoch."""

    @functools.cache
    def epoch_of(kind):
        elements = stream_of(kind).as_numpy_iterator()
        return [features for features, _ in itertools.takewhile(lambda element: element[1][0] == 0, elements)]

    return epoch_of


def unmasked(batch):
    """Ids with the labels in the masked positions, 0 at special tokens."""
    ids = batch["input_word_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    return np.where(ids >= len(SPECIALS), ids, 0)


KINDS = {"pairs": {}, "sentences": {"pairs": "none"}, "packed": {"pack": True}}
# Packed rows are rows of pairs.
each_kind = pytest.mark.parametrize("kind", [pytest.param("pairs", marks=pytest.mark.slow), "sentences", "packed"])


def test_shares_are_the_sizes_to_the_power_of_the_exponent_renormalized():
    # google-research/bert, multilingual.md: with 1000 times as much text, English is sampled about 100 times as often.
    english, icelandic = smoothed({"en": [], "is": []}, {"en": 1000, "is": 1}, 0.7)
    assert english.share / icelandic.share == pytest.approx(1000**0.7) and english.share + icelandic.share == 1.0
    assert [language.share for language in smoothed({"a": [], "b": []}, {"a": 3, "b": 1}, 1.0)] == [0.75, 0.25]
    assert [language.text_share for language in (english, icelandic)] == [1000 / 1001, 1 / 1001]


@each_kind
def test_the_shares_are_those_of_the_tokens_even_if_one_language_has_shorter_sequences(corpus, epoch_of, kind):
    expected = [language.share for language in corpus.languages]
    assert 0.3 < expected[1] < 0.4  # of 8% of the text
    tokens = np.zeros(2)
    for batch in epoch_of(kind):
        tokens += np.bincount(batch["language_ids"][batch["input_mask"] > 0], minlength=2)
    draws = tokens.sum() / LENGTH
    assert draws > 400
    # Each draw takes `LENGTH` tokens on average, so the error is that of a binomial distribution.
    assert abs(tokens[1] / tokens.sum() - expected[1]) < 3 * np.sqrt(expected[0] * expected[1] / draws)


@each_kind
def test_batches_have_all_languages_but_no_sequence_has_two(epoch_of, kind):
    mixed = 0
    for batch in epoch_of(kind):
        ids, languages = unmasked(batch), batch["language_ids"]
        assert ((ids >= FIRST["ko"]) == languages)[ids > 0].all()
        for numbers, row in zip(batch["input_mask"], languages, strict=True):
            for number in range(1, numbers.max() + 1):
                assert len(set(row[numbers == number])) == 1
        mixed += len(set(languages[batch["input_mask"] > 0])) == 2
    assert mixed > 0.9 * len(epoch_of(kind))


def test_an_epoch_is_one_pass_over_the_largest_language_in_which_others_are_repeated_in_another_order(corpus, epoch_of):
    counts, sequences = collections.Counter(), []
    for batch in epoch_of("sentences"):
        ids = unmasked(batch)
        counts.update(ids[ids > 0].tolist())
        sequences += [row.tobytes() for row in ids[batch["language_ids"][:, 0] == 1]]
    english = [counts[word] for word in range(FIRST["en"], FIRST["ko"])]
    # A last batch that is not full is dropped, and the few words with it.
    assert max(english) == 1 and np.mean(english) > 0.97
    korean = [counts[word] for word in range(FIRST["ko"], FIRST["ko"] + WORDS["ko"])]
    # Words of Korean have shorter names, but take as many bytes: the only difference are the blank lines.
    assert np.mean(korean) == pytest.approx(passes(corpus.languages[1], corpus.languages), rel=0.15)
    assert max(korean) - min(korean) <= 1  # each pass reads everything before the next one begins
    assert len(set(sequences)) > 0.9 * len(sequences)


@pytest.mark.slow  # a mixture has no state beside that of TensorFlow's Datasets
def test_a_mixture_resumes_from_the_state_of_its_iterator(stream_of, epoch_of, tmp_path):
    batches = stream_of("sentences")
    used = len(epoch_of("sentences")) - 2  # so that the next epoch follows
    iterator, restored = iter(batches), iter(batches)
    for _ in range(used):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "state"))
    tf.train.Checkpoint(iterator=restored).read(path).assert_nontrivial_match()
    ends = [[0, used + 1], [0, used + 2], [1, 1], [1, 2]]
    for number in range(4):
        (features, position), (again, place) = next(iterator), next(restored)
        assert position.numpy().tolist() == place.numpy().tolist() == ends[number]
        twins = [again, epoch_of("sentences")[used + number]] if number < 2 else [again]
        assert all(np.array_equal(features[name], twin[name]) for twin in twins for name in features)


@pytest.fixture(scope="module")
def shards(text, tmp_path_factory):
    """The text by language, prepared."""
    pytest.importorskip("apache_beam", reason="needs pip install 'bert_tf[beam]'")
    from bert_tf.inputs.corpus.preparation import plan, prepare

    folder, (files, tokenizer) = tmp_path_factory.mktemp("shards"), text
    for name, own in files.items():
        prepare(plan(own, "sentences", tokenizer), tokenizer, str(folder / name))
    return {name: find_corpus(str(folder / name)) for name in files}


@pytest.mark.slow  # test_preparation.py has the size of the text
def test_prepared_languages_have_the_shares_of_their_text(corpus, shards):
    found = {name: Corpus(own, corpus.tokenizer, corpus.data).check() for name, own in shards.items()}
    assert found == {language.name: sum(check_text_files(language.files)) for language in corpus.languages}
    shares = [found[language.name] / sum(found.values()) for language in corpus.languages]
    assert shares == [language.text_share for language in corpus.languages]


@pytest.mark.slow
def test_prepared_languages_give_the_same_batches_as_their_text(corpus, shards, epoch_of):
    prepared, _ = checked_corpus(shards, corpus.tokenizer, corpus.data)
    made = list(pretraining_dataset(prepared, seed=1, epoch=0, batch_size=BATCH).as_numpy_iterator())
    for batch, expected in zip(made, epoch_of("pairs"), strict=True):
        assert all(np.array_equal(batch[name], expected[name]) for name in expected)


@pytest.mark.parametrize("exponent", [1.0, 0.7, 0.3])
def test_lines_for_a_vocabulary_have_the_same_shares_and_are_always_the_same(text, exponent):
    languages = smoothed(text[0], {name: sum(check_text_files(files)) for name, files in text[0].items()}, exponent)
    lines = list(mixed_lines(languages, read_lines))
    assert lines == list(mixed_lines(languages, read_lines))
    size = {name: sum(len(line) for line in lines if line.startswith(name.encode())) for name in WORDS}
    assert size["ko"] / sum(size.values()) == pytest.approx(languages[1].share, rel=0.02)
    counts = collections.Counter(line for line in lines if line.strip())
    assert {counts[line] for line in counts if line.startswith(b"en")} == {1}
    korean = [counts[line.encode() + b"\n"] for document in documents_of("ko") for line in document.splitlines()]
    assert len(set(korean)) <= 2 and min(korean) >= 1  # nothing is left out


NAMES = {
    "no name": ("a.txt", "'a.txt'"),
    "a name for the second only": ("a.txt,ko:b.txt", "'a.txt,ko:b.txt'"),
    "a name twice": ("en:a.txt,ko:b.txt,en:c.txt", "has 'en' twice"),
    "no path": ("en:,ko:b.txt", "empty path for 'en'"),
    "no last path": ("en:a.txt,ko:", "empty path for 'ko'"),
    "a comma too many": ("en:a.txt,,ko:b.txt", "empty path for 'en'"),
}


@pytest.mark.parametrize("case", NAMES)
def test_wrong_names_are_one_line(case):
    value, named = NAMES[case]
    with raises(ConfigError, named):
        PretrainingData(languages=value).check()
    with raises(ConfigError, "validation"):
        PretrainConfig(input="x", validation=value, data=PretrainingData(languages="en:a,ko:b")).check()


def test_names_hold_up_to_the_next_one_and_their_order_does_not_matter(tmp_path):
    assert named_corpora("ko:k.txt,en:a.txt,gs://b/*.gz", "x") == {"en": "a.txt,gs://b/*.gz", "ko": "k.txt"}
    assert named_corpora("en:gs://a/b,zh-Hant:c", "x") == {"en": "gs://a/b", "zh-Hant": "c"}
    assert corpora("a.txt,b.txt", "x") == {"": "a.txt,b.txt"} and corpora("gs://a", "x") == {"": "gs://a"}
    (tmp_path / "en:a.txt").touch()
    assert corpora("en:a.txt", "x") == {"en": "a.txt"}


@pytest.mark.parametrize("exponent", [0, -0.5, 1.1, float("nan"), "0.7"])
def test_an_exponent_out_of_range_is_refused(exponent):
    with raises(ConfigError, "data.language_exponent"):
        PretrainingData(language_exponent=exponent).check()


def test_validation_in_an_unknown_language_is_refused():
    with raises(ConfigError, "'fr'"):
        PretrainConfig(validation="en:a,fr:b", data=PretrainingData(languages="en:a,ko:b")).check()


def test_errors_in_the_text_name_the_language(text, tmp_path):
    (tmp_path / "blank.txt").write_text("\n\n\n")
    (tmp_path / "empty.txt").touch()
    for name, found in (("blank", "no text"), ("empty", "empty.txt")):
        with raises(DataError, "language xx", found):
            checked_corpus({"xx": [str(tmp_path / f"{name}.txt")]}, text[1], data_of())


def test_a_language_without_a_sequence_is_an_error_instead_of_an_endless_loop(text, tmp_path):
    # Two documents without a token: what only the tokenizer sees.
    path = tmp_path / "marks.txt"
    path.write_text("\u0301\n\n\u0301\n")
    corpus = Corpus([str(path)], text[1], data_of(pairs="none"), smoothed({"xx": [str(path)]}, {"xx": 1}, EXPONENT))
    with raises(DataError, "language xx"), reading("corpus"):
        list(pretraining_dataset(corpus, seed=1, epoch=0, batch_size=BATCH))
