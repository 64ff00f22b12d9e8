"""Hidden layers of the encoder as features."""

import keras
import numpy as np
import pytest

from bert_tf import BertEncoder
from bert_tf.checkpoints import directory
from bert_tf.config import FeatureConfig
from bert_tf.errors import ConfigError
from bert_tf.model.encoder import feature_model
from bert_tf.model.head_table import build
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import FAMILY, PIECES, features, multiplies_bfloat16, randomize, small_config


@pytest.fixture(scope="module", params=[{}, {"norm": "pre"}, FAMILY["albert"]])
def encoder(request):
    return randomize(BertEncoder(small_config(num_layers=3, **request.param)))


def states(encoder):
    """Embeddings and the outputs of the three layers, arrays."""
    inputs, outputs = features(), encoder(features())
    embedded = encoder.embeddings(inputs["input_word_ids"], inputs["input_type_ids"])
    return [value.numpy() for value in (embedded, *outputs["encoder_outputs"][:2], outputs["sequence_output"])]


def test_layers_are_selected_summed_and_concatenated(encoder):
    embedded, first, second, last = states(encoder)

    def check(expected, *arguments):
        np.testing.assert_allclose(
            feature_model(encoder, FeatureConfig(*arguments))(features()), expected, rtol=1e-5, atol=1e-5
        )

    check(last)
    check(embedded, (0,))
    check(second, (-2,))
    check(second, (2,))
    check(first + last, (1, -1))
    check(0.5 * first - 2.0 * embedded, (1, 0), "sum", (0.5, -2.0))
    check(np.concatenate([last, first, second], -1), (3, 1, -2), "concat")


@multiplies_bfloat16
def test_half_precision_gives_float32():
    encoder = BertEncoder(small_config(), dtype="mixed_bfloat16")
    assert feature_model(encoder, FeatureConfig((0, 1, 2)))(features()).dtype == "float32"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (((4,),), ("4", "-3", "3", "0")),
        (((-4,),), ("-4", "-3", "3")),
        (((),), ("-3", "3")),
        (((1, 2), "mean"), ("'mean'",)),
        (((1, 2), "sum", (1.0,)), ("1 weights", "2 layers")),
        (((1, 2), "concat", (1.0, 1.0)), ("2 weights", "2 layers")),
    ],
)
def test_invalid_features_are_refused(encoder, arguments, message):
    with raises(ConfigError, *message):
        feature_model(encoder, FeatureConfig(*arguments))


@pytest.fixture(params=["tagging", pytest.param("tagging_bilstm", marks=pytest.mark.slow)])
def on_frozen(request):
    """Function from `frozen` to a model whose only dropout is in the encoder's attention."""
    encoder = BertEncoder(small_config(dropout=0.0, attention_dropout=0.5))
    return lambda frozen: randomize(build(encoder, request.param, 3, frozen=frozen))


def test_a_frozen_encoder_has_no_dropout_and_only_the_head_is_trained(on_frozen):
    free, inputs = on_frozen(False), features()
    assert np.abs(free(inputs, training=True)["logits"] - free(inputs)["logits"]).max() > 0.01
    frozen = on_frozen(True)
    np.testing.assert_array_equal(frozen(inputs, training=True)["logits"], frozen(inputs)["logits"])
    trained = {variable.path.split("/")[0] for variable in frozen.trainable_variables}
    assert trained <= {"classifier", *(f"bilstm_{layer}_{way}" for layer in (0, 1) for way in ("forward", "backward"))}
    assert len(frozen.weights) == len(free.weights)


def test_a_frozen_model_is_restored_from_a_keras_file(on_frozen, tmp_path):
    model = on_frozen(True)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(features())["logits"], model(features())["logits"])
    assert len(again.trainable_variables) == len(model.trainable_variables)


def test_a_bilstm_on_four_layers_is_saved_with_its_shapes(tmp_path):
    settings = FeatureConfig((-3, -2, -1, 0), "concat")
    encoder = BertEncoder(small_config(num_layers=3))
    config = TaggingConfig(head="bilstm", frozen=True, features=settings, max_length=24)
    task = Tagging(Tokenizer(PIECES), config, labels=("A", "B"), unit="words")
    model = randomize(task.build(encoder))
    directory.save(str(tmp_path / "model"), model, encoder, task)
    again_task, again = directory.load_task(str(tmp_path / "model"))
    assert again.get_layer("bilstm_0_forward").weights[0].shape == (4 * 32, 4 * 32)
    np.testing.assert_array_equal(again(features())["logits"], model(features())["logits"])
    assert again_task.settings() == task.settings()
