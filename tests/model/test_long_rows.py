"""Attention of long rows in bands and parts, beside attention to whole rows and NumPy's."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.checkpoints import load
from bert_tf.model import long_rows
from bert_tf.model.mode import Mode, Seeds, computing, infer
from bert_tf.text import write_vocabulary
from tests.model.small import PIECES, randomize, small_config
from tests.model.test_parts import ALL, all_outputs, encoded, encoder_of, features

LONG = {"max_position_embeddings": 600}
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
SPECS = [{name: tf.TensorSpec([None, None], tf.int32) for name in features()}]


@pytest.fixture
def short_parts(monkeypatch):
    """Rows of more than 8 tokens are cut, into parts of a few queries."""
    for name, value in {"UNCUT": 8, "_SCORES": 600, "_FEWEST": 3}.items():
        monkeypatch.setattr(long_rows, name, value)


@pytest.mark.parametrize("parts", [ALL, {}], ids=["modern", "BERT"])
def test_long_rows_are_encoded_as_by_numpy(short_parts, parts):
    encoder = encoder_of(**parts | LONG)
    served = tf.function(lambda inputs: infer(encoder, inputs), input_signature=SPECS, autograph=False)
    for length in (1, 8, 9, 13, 29):  # bands have 6 tokens, and rows up to 12 are one
        inputs = features([length, max(1, length - 3), 1], length)
        expected, tokens = encoded(encoder, inputs), inputs["input_mask"] == 1
        for outputs in (encoder(inputs), served(inputs)):
            for found, exact in zip(all_outputs(outputs), expected, strict=True):
                np.testing.assert_allclose(found[tokens], exact[tokens], atol=2e-5)


def upstream(encoder):
    """By which each of the outputs is multiplied before they are added up."""
    return np.random.default_rng(1).normal(size=(1, 1, encoder.config.hidden_size)).astype(np.float32)


def gradients(encoder, training=False, **mode):
    """Function from inputs of any length to the gradients of a sum of the outputs at tokens, and that sum."""

    @tf.function(input_signature=SPECS, autograph=False)
    def run(inputs):
        mode["seeds"] = Seeds(tf.constant([3, 4])) if training else None
        with computing(Mode(**mode)), tf.GradientTape() as tape:
            states = encoder(inputs, training=training)["sequence_output"]
            loss = tf.reduce_sum(tf.where(inputs["input_mask"][..., tf.newaxis] > 0, states * upstream(encoder), 0.0))
        return [tf.convert_to_tensor(one) for one in tape.gradient(loss, encoder.trainable_weights)], loss

    def called(inputs):
        found, loss = run(inputs)
        return found, float(loss)

    return called


def assert_close(found, expected):
    for one, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, exact, atol=1e-5 * max(1, np.abs(exact).max()))


PACKED = np.array([[1] * 9 + [2] * 17 + [0] * 3, [1] * 29], np.int32)


@pytest.mark.parametrize("case", [slow("a pad"), "packed", slow("causal")])
def test_cut_rows_have_the_outputs_and_gradients_of_whole_ones(short_parts, monkeypatch, case):
    config = {"attention": "causal"} if case == "causal" else {}
    config = small_config(**{"dropout": 0.0, "attention_dropout": 0.0} | ALL | LONG | {"pooler": False} | config)
    encoder = randomize(BertEncoder(config, packed=case == "packed"))
    inputs = features([29, 20], 29)
    if case == "packed":
        inputs |= {"input_mask": PACKED}
    found = gradients(encoder)(inputs)
    monkeypatch.setattr(long_rows, "UNCUT", 99)
    monkeypatch.setattr(long_rows.Bands, "WHOLE", 99)
    expected = gradients(encoder)(inputs)
    assert_close(found[0], expected[0])
    assert found[1] == pytest.approx(expected[1], rel=1e-5)


@pytest.mark.parametrize("mode", [slow({}), {"fusion": "every"}, slow({"recompute": True})], ids=str)
def test_the_backward_pass_draws_the_dropout_masks_of_the_forward_pass(short_parts, mode):
    config = small_config(**LONG, dropout=0.0, attention_dropout=0.4, pooler=False)
    encoder = randomize(BertEncoder(config))
    inputs, rng = features([29, 20], 29), np.random.default_rng(2)
    run = gradients(encoder, training=True, **mode)
    found, _ = run(inputs)
    weights = encoder.get_weights()
    step = [rng.normal(size=one.shape).astype(np.float32) * 1e-3 for one in weights]
    losses = []
    for sign in (1, -1):
        encoder.set_weights([one + sign * change for one, change in zip(weights, step, strict=True)])
        losses.append(run(inputs)[1])
    expected = sum(np.sum(one * change) for one, change in zip(found, step, strict=True))
    assert (losses[0] - losses[1]) / 2 == pytest.approx(expected, rel=2e-2)


@pytest.mark.slow
def test_states_and_gradients_of_every_length_are_those_of_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    config = transformers.ModernBertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, **special
    )
    theirs = transformers.ModernBertModel(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)

    def ours_of(name):
        theirs.save_pretrained(tmp_path / name)
        write_vocabulary(tmp_path / name / "vocab.txt", [*PIECES, *map(str, range(64 - len(PIECES)))])
        return load(tmp_path / name)[0]

    encoder = ours_of("model")
    assert encoder.config.local_distance == 64 and encoder.config.max_position_embeddings == 8192
    # One token; both edges of a layer's reach; one band and two; whole rows and parts; the longest.
    for length in (1, 64, 65, 66, 256, 257, 512, 513, 1500, 8192):
        inputs = features([length, max(1, length - 70)], length)
        ids, mask = (torch.tensor(inputs[name]) for name in ("input_word_ids", "input_mask"))
        with torch.no_grad():
            expected = theirs(ids, mask, output_hidden_states=True)
        found, tokens = infer(encoder, inputs), inputs["input_mask"] == 1
        ours = [found["embedding_output"], *found["encoder_outputs"][:-1], found["sequence_output"]]
        for one, exact in zip(ours, [*expected.hidden_states[:4], expected.last_hidden_state], strict=True):
            np.testing.assert_allclose(one.numpy()[tokens], exact.numpy()[tokens], atol=1e-5, rtol=1e-5)

    inputs = features([600, 333], 600)
    found, _ = gradients(encoder, training=True)(inputs)
    ids, mask = (torch.tensor(inputs[name]) for name in ("input_word_ids", "input_mask"))
    states = theirs(ids, mask).last_hidden_state
    (states * torch.tensor(upstream(encoder)) * mask[..., None]).sum().backward()
    for parameter in theirs.parameters():  # their gradients, in the place of their weights
        parameter.data = parameter.grad
    assert_close(found, ours_of("gradients").get_weights())
