"""Vocabularies of every kind from text to a served answer: pre-training, fine-tuning, export, prediction."""

import json

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.bundled import bundled
from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.inference.card import task_of_export
from bert_tf.text import open_tokenizer
from bert_tf.training.runs import pretraining
from tests.learned import TOKENIZERS

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
TEXTS = ["A fine film.", "한국어 영화, 좋아요 😀", "dull"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pairs", "masking"),
    [("byte_bpe", "nsp", "whole_word"), ("unigram", "none", "span")],
)
def test_text_becomes_an_answer_with_each_kind(kind, pairs, masking, tmp_path):
    tokenizer = TOKENIZERS[kind]()
    (tmp_path / "vocabulary").mkdir()
    tokenizer.save(tmp_path / "vocabulary")
    vocab = TokenizerConfig(vocab=str(tmp_path / "vocabulary" / tokenizer.FILES[0]))
    model = BertConfig(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=0)
    data = PretrainingData(max_length=32, max_predictions=3, pairs=pairs, masking=masking)
    train = TrainConfig(batch_size=4, steps=2, dtype="float32", log_every=1)
    config = PretrainConfig(bundled("data/sotu/train.txt.gz"), tokenizer=vocab, model=model, data=data, train=train)
    pretrained = tmp_path / "pretrained"
    pretraining.pretrain(config, str(pretrained), STRATEGY)
    assert {*tokenizer.FILES} < {file.name for file in pretrained.iterdir()}
    assert "vocab.txt" not in {file.name for file in pretrained.iterdir()}

    classifier = bert_tf.TextClassifier.from_pretrained(pretrained, max_length=32)
    classifier.fit([*TEXTS, "bad", "good"], ["a", "b", "a", "a", "b"], epochs=1, batch_size=4, dtype="float32")
    assert (type(classifier.tokenizer), classifier.tokenizer.vocab) == (type(tokenizer), tokenizer.vocab)
    version = classifier.export(tmp_path / "exported").path
    answers = tf.saved_model.load(version).signatures["serving_default"](text=tf.constant(TEXTS))
    expected = [[*prediction["probabilities"].values()] for prediction in classifier.predict(TEXTS)]
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)
    assert task_of_export(version).tokenizer.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()
    card = json.loads((tmp_path / "exported/1/assets.extra/model_card.json").read_text(encoding="utf-8"))
    assert card["tokenizer"] == tokenizer.description

    classifier.save(tmp_path / "saved")
    again = bert_tf.TextClassifier.from_pretrained(tmp_path / "saved")
    assert again.predict(TEXTS) == classifier.predict(TEXTS)
    assert type(open_tokenizer(tmp_path / "saved" / tokenizer.FILES[0], vocab)) is type(tokenizer)
