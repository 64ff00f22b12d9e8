"""Exported taggers give the answers of `predict` on raw texts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.files import bundled
from bert_tf.inference import ask
from bert_tf.inference.check import check_ops
from bert_tf.inference.saved_model import export
from bert_tf.inputs.datasets.conll import read_conll
from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import predictor
from tests.model.small import PIECES, small_config

VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz")]
LABELS = ("O", "B-X", "I-X", "B-Y", "I-Y")


def made(task):
    """A random model whose answers depend on the word: large weights, the same for all tasks, and no biases.

    They are small enough that rounding, which depends on the batch, stays within the tolerance of 1e-5: with a
    standard deviation of 0.5 it is 4e-6 on some processors, with this one 5e-7.
    """
    keras.utils.set_random_seed(0)
    return task.build(BertEncoder(small_config(vocab_size=len(VOCABULARY), initializer_range=0.3, num_layers=1)))


@pytest.fixture(scope="module")
def texts():
    real = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:60]
    return [*real, "", " ", "\u200b", "  Ünï (code) 가나 😀, 北京! ", "the good " * 30, "e\u0301 नमस्ते"]


@pytest.fixture(scope="module")
def sentences(texts, tmp_path_factory):
    """Examples from a CoNLL file: words of which some would be split again, and some whose characters are deleted."""
    rows = [["the", "St.", "Louis", "(MO)", "can't"], ["\u200b"], ["a", "\ufffd", "b\u0301", "北京", "c"], ["a"] * 150]
    rows += [text.split() for text in texts[:40]]
    file = tmp_path_factory.mktemp("words") / "rows.conll"
    file.write_text("\n".join("".join(f"{word} O\n" for word in row) for row in rows))
    return list(read_conll(str(file), "-1"))


@pytest.fixture(scope="module")
def both_answers(texts, sentences, tmp_path_factory):
    """dict unit -> (answers of `predict`, answers of the exported model)."""
    folder, answers = tmp_path_factory.mktemp("taggers"), {}
    examples = [TaggedExample(str(row), text, None, None, None, None, f"-:{row}") for row, text in enumerate(texts)]
    for unit in ("words", "characters"):
        # Most reviews are longer than a window.
        task = Tagging(Tokenizer(VOCABULARY), TaggingConfig(max_length=24), labels=LABELS, unit=unit)
        model = made(task)
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        predicted = [prediction for _, prediction in predictor(task, model, strategy)(examples, 32)]
        path = export(task, model, str(folder / unit), check=False).path
        check_ops(path)
        exported = ask.Model(path)
        answers[unit] = predicted, [exported.ask({"text": text}) for text in texts]
        if unit == "words":
            predicted = [prediction for _, prediction in predictor(task, model, strategy)(sentences, 32)]
            answers["given words"] = predicted, [exported.ask({"words": list(one.words)}) for one in sentences]
            rows = [[*one.words, *[""] * (200 - len(one.words))] for one in sentences]
            answers["together"] = exported.run({"words": rows}, "words")
    return answers


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_entities_equal_those_of_predict_with_offsets_into_the_text(both_answers, texts, unit):
    found = 0
    for text, prediction, answer in zip(texts, *both_answers[unit], strict=True):
        spans = prediction["spans"]
        for name, served in (("text", "entity"), ("label", "label"), ("start", "start"), ("end", "end")):
            assert answer[served] == [span[name] for span in spans]
        np.testing.assert_allclose(answer["score"], [span["score"] for span in spans], atol=1e-5)
        assert answer["entity"] == [text[start:end] for start, end in zip(answer["start"], answer["end"], strict=True)]
        found += len(spans)
    assert found > 300


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_words_or_characters_and_their_tags_equal_those_of_predict(both_answers, texts, unit):
    for text, prediction, answer in zip(texts, *both_answers[unit], strict=True):
        assert (answer["word"], answer["tag"]) == (prediction["words"], prediction["tags"])
        places = zip(answer["word_start"], answer["word_end"], strict=True)
        assert [text[start:end] for start, end in places] == answer["word"]
        np.testing.assert_allclose(answer["word_score"], prediction["scores"], atol=1e-5)
        assert unit == "words" or answer["word"] == list(text)
    tags = [tag for answer in both_answers[unit][1] for tag in answer["tag"]]
    assert len(set(tags)) > 3  # the model's answers depend on the word


def test_given_words_get_the_tags_and_entities_of_predict(both_answers, sentences):
    assert len(sentences) == 44
    for example, prediction, answer in zip(sentences, *both_answers["given words"], strict=True):
        assert answer["word"] == list(example.words) == prediction["words"]
        assert answer["tag"] == prediction["tags"]
        assert answer["word_start"] == list(example.starts)
        assert answer["word_count"] == len(example.words)
        np.testing.assert_allclose(answer["word_score"], prediction["scores"], atol=1e-5)
        assert answer["entity"] == [span["text"] for span in prediction["spans"]]
        np.testing.assert_allclose(answer["score"], [span["score"] for span in prediction["spans"]], atol=1e-5)
    assert both_answers["given words"][1][1]["word_score"] == [0]  # a word whose characters are all deleted


def test_padding_after_given_words_changes_no_answer(both_answers, sentences):
    together = both_answers["together"]
    assert together["word_count"].tolist() == [len(one.words) for one in sentences]
    for row, (example, alone) in enumerate(zip(sentences, both_answers["given words"][1], strict=True)):
        assert [tag.decode() for tag in together["tag"][row, : len(example.words)]] == alone["tag"]


def test_shorter_rows_of_a_batch_are_padded_with_empty_values():
    task = Tagging(Tokenizer(VOCABULARY), TaggingConfig(max_length=24), labels=("NN", "VB"))
    serve = task.signatures(made(task))["serving_default"]
    answer = serve(tf.constant(["a b c", "a"]))
    assert answer["word"].numpy().tolist() == [[b"a", b"b", b"c"], [b"a", b"", b""]]
    assert answer["tag"].shape == (2, 3)
    assert "label" not in answer  # parts of speech are not entities
    assert answer["tag"].numpy()[1, 1:].tolist() == [b"", b""]
    assert answer["word_end"].numpy().tolist() == [[1, 3, 5], [1, 0, 0]]
