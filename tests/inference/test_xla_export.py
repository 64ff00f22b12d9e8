"""Exports that XLA compiles, for a server on a GPU; here XLA compiles them for the CPU."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.inference.saved_model import export
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.mode import Mode, computing, infer
from bert_tf.model.precision.xla import XlaDispatch, _filled
from bert_tf.server.monitoring import Metrics
from bert_tf.server.servable import RunOptions, Runtime, Servable, _programs
from bert_tf.tasks import TASKS
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import PIECES, features, multiplies_bfloat16, randomize, small_config

SETTINGS = {"max_length": 20, "labels": ("bad", "good"), "pair": False}
TEXTS = ["the good", "a", "the good e s good the good a good good", "good"]


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Paths of exports of the same model: by XLA, and in float32."""
    task = TASKS["classification"].from_settings(SETTINGS, Tokenizer(PIECES))
    model = randomize(task.build(BertEncoder(small_config(num_layers=1), dtype="float32")))
    folder = tmp_path_factory.mktemp("exports")
    return {mode: export(task, model, str(folder / mode), check=False, optimize=mode).path for mode in ("xla", "none")}


@pytest.fixture
def runtime():
    made = Runtime(RunOptions(), Metrics())
    yield made
    made.close()


def test_filled_batches_have_the_outputs_of_the_model():
    encoder = randomize(BertEncoder(small_config(num_layers=1, max_position_embeddings=40), dtype="float32"))
    inputs = features(lengths=(24, 7), width=24)
    expected = infer(encoder, inputs, skip_padding=False)

    def compute(inputs):
        with computing(Mode(dispatch=XlaDispatch(40))):
            return infer(encoder, inputs)

    specs = [{name: tf.TensorSpec([None, None], tf.int32) for name in inputs}]
    found = tf.function(compute, input_signature=specs, autograph=False)(inputs)
    for name in ("sequence_output", "pooled_output"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4)


def test_models_of_several_sequences_are_refused():
    task = TASKS["multiple_choice"].from_settings({"max_length": 20}, Tokenizer(PIECES))
    model = task.build(BertEncoder(small_config(num_layers=1), dtype="float32"))
    ids = tf.ones([1, 2, 8], tf.int32)
    inputs = {tensor.name: ids for tensor in model.inputs}
    with computing(Mode(dispatch=XlaDispatch(24))), raises(ConfigError, "one text or pair", "use 'bfloat16'"):
        infer(model, inputs)


@pytest.mark.slow  # XLA compiles a dozen programs
@multiplies_bfloat16
def test_a_server_on_a_gpu_compiles_an_export_when_it_loads_it_and_answers_the_same(
    versions, runtime, monkeypatch, caplog
):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU"])
    ran = []
    run = Servable.run
    monkeypatch.setattr(
        Servable, "run", lambda self, name, inputs, *rest, **options: ran.append(
            (name, next(iter(inputs.values())).shape)) or run(self, name, inputs, *rest, **options)
    )  # fmt: skip
    answers = {}
    with caplog.at_level(logging.INFO, "bert_tf.server"):
        for mode, path in versions.items():
            servable = Servable(mode, 1, path, runtime)
            answers[mode] = run(servable, "serving_default", {"text": np.array(TEXTS, object)})
            servable.close()
    assert [shape for name, shape in ran if name == "tokens"][:3] == [(1, 24), (8, 24), (32, 24)]
    assert "xla: version 1: XLA compiled 3 programs, up to 32 x 24 tokens, in " in caplog.text
    assert "none: version 1: XLA" not in caplog.text
    np.testing.assert_allclose(answers["xla"]["probabilities"], answers["none"]["probabilities"], atol=0.03)


@pytest.mark.slow
@multiplies_bfloat16
def test_a_server_without_a_gpu_says_so_and_compiles_when_requests_come(versions, runtime, caplog):
    servable = Servable("m", 1, versions["xla"], runtime)
    servable.close()
    assert "m: version 1 is compiled when requests come: there is no GPU" in caplog.text


@pytest.mark.parametrize("number, expected", [(1, 1), (2, 8), (8, 8), (9, 32), (16384, 16384), (16385, 16385)])
def test_rows_are_filled_up_to_one_of_few_numbers(number, expected):
    sizes = (1, 8, 32, 128, 512, 2048, 8192, 16384)
    assert int(_filled(tf.constant(number), sizes)) == expected


def test_lengths_end_at_the_longest_that_the_model_takes():
    assert XlaDispatch(100).programs.lengths == [32, 64, 100]
    assert XlaDispatch(24).programs.lengths == [24]
    assert XlaDispatch(512).programs == ([1, 8, 32], [32, 64, 128, 256, 512])
    with raises(ConfigError, "models of up to 512 tokens", "8192", "use 'bfloat16'"):
        XlaDispatch(8192)


@pytest.mark.parametrize(
    "card",
    [
        None,
        {},
        *(
            {"programs": programs}
            for programs in (
                None,
                3,
                {"rows": [1]},
                {"rows": [0], "lengths": [1]},
                {"rows": [True], "lengths": [8]},
                {"rows": [1], "lengths": [10**9]},
            )
        ),
    ],
)
def test_a_card_without_sensible_programs_names_none(card):
    assert _programs(card) == []


def test_a_card_names_at_most_64_programs():
    assert len(_programs({"programs": {"rows": [1] * 100, "lengths": [8] * 100}})) == 64
