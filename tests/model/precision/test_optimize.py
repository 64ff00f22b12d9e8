"""Exports in low precision of models whose layers share their weights and whose embeddings are projected."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.errors import DataError
from bert_tf.inference import ask
from bert_tf.inference.samples import SENTENCES
from bert_tf.inference.saved_model import export
from bert_tf.model.precision.optimize import optimized
from tests.errors import raises
from tests.inference.exports import LENGTH, VOCABULARY, classifier
from tests.model.precision.test_int8 import exports_int8
from tests.model.small import FAMILY, PRUNED, multiplies_bfloat16, randomize, small_config


@pytest.fixture(scope="module")
def albert():
    """A task, its encoder of three layers that share their weights, and the model."""
    task = classifier()
    config = small_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, num_layers=3, **FAMILY["albert"])
    encoder = BertEncoder(config)
    return task, encoder, randomize(task.build(encoder), scale=0.4)


@pytest.mark.parametrize(
    "mode, dtype, count",
    [
        # The word embeddings; kernel and bias of the projection, and of the four dense layers of the only block.
        pytest.param("bfloat16", tf.bfloat16, 1 + 2 + 2 * 4, marks=multiplies_bfloat16),
        pytest.param("int8", tf.int8, 1 + 4, marks=exports_int8),
    ],
)
def test_an_export_has_one_set_of_weights_for_all_layers(albert, tmp_path, mode, dtype, count):
    task, _, model = albert
    exported = export(task, model, str(tmp_path), optimize=mode)  # compared with the model in a session
    weights = tf.train.load_checkpoint(f"{exported.path}/variables/variables").get_variable_to_dtype_map()
    assert list(weights.values()).count(dtype) == count
    texts = ["A film to remember.", "the good " * 40, ""]
    features = task.codec.token_features({"text": tf.constant(texts)})
    logits = model({name: features[name] for name in model.input})["logits"]
    found = ask.Model(exported.path).run({"text": texts})["probabilities"]
    np.testing.assert_allclose(found, tf.nn.softmax(logits), atol=0.1)
    card = json.loads(pathlib.Path(exported.path, "assets.extra/model_card.json").read_text())
    assert card["approximation"].startswith(f"{mode}: the last layer differs by ")


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("bfloat16", marks=multiplies_bfloat16),
        pytest.param("int8", marks=[exports_int8, pytest.mark.slow]),
        pytest.param("none", marks=pytest.mark.slow),
    ],
)
def test_layers_of_different_sizes_are_exported(tmp_path, mode):
    task = classifier()
    config = small_config(vocab_size=len(VOCABULARY), max_position_embeddings=LENGTH, **PRUNED)
    model = randomize(task.build(BertEncoder(config)), scale=0.4)
    exported = export(task, model, str(tmp_path), optimize=mode, attention=True)  # compared with the model in a session
    texts = ["A film to remember.", "the good " * 40, ""]
    features = task.codec.token_features({"text": tf.constant(texts)})
    logits = model({name: features[name] for name in model.input})["logits"]
    found = ask.Model(exported.path).run({"text": texts})["probabilities"]
    np.testing.assert_allclose(found, tf.nn.softmax(logits), atol=1e-5 if mode == "none" else 0.1)
    attention = tf.saved_model.load(exported.path).signatures["attention"](text=tf.constant(texts))
    assert attention["attention_shape"][:, :2].numpy().tolist() == [[2, 3]] * 3  # zeros for heads that a layer lacks


@exports_int8
def test_a_shared_layer_is_not_kept_in_float32(albert):
    task, encoder, _ = albert
    with raises(DataError, "int8", "nothing was exported"), optimized(encoder, "int8", task.tokenizer, SENTENCES, 1e-7):
        pass
