"""Number formats, more wordpieces, more positions: additions are reported, and the rest is unchanged."""

import dataclasses

import numpy as np
import pytest

from bert_tf.checkpoints import adapt
from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.errors import ConfigError, DataError
from tests.checkpoints.small import model_of, small_checkpoint
from tests.errors import raises
from tests.model.small import PIECES, inputs_for

NEW = ["covid", "##19", "[E1]"]


def with_slots(checkpoint):
    slots = {
        f"{path}/{slot}": tensor_of(tensor.read() + index, path)
        for path, tensor in checkpoint.tensors.items()
        for index, slot in enumerate("mv")
    }
    return dataclasses.replace(checkpoint, moments=slots, step=7)


def test_new_wordpieces_get_the_mean_of_the_old_ones():
    checkpoint = with_slots(small_checkpoint("pretraining"))
    changed = adapt.add_pieces(checkpoint, NEW)
    assert changed.tokenizer.vocab == PIECES + NEW
    assert changed.config.vocab_size == len(PIECES) + 3
    for path in ("embeddings/word_embeddings", "masked_lm/bias"):
        old, new = checkpoint.tensors[path].read(), changed.tensors[path].read()
        assert changed.tensors[path].shape == new.shape
        np.testing.assert_array_equal(new[: len(PIECES)], old)
        for row in new[len(PIECES) :]:
            np.testing.assert_allclose(row, old.mean(0), rtol=1e-5)
        for slot in "mv":
            slots = changed.moments[f"{path}/{slot}"].read()
            np.testing.assert_array_equal(slots[: len(PIECES)], checkpoint.moments[f"{path}/{slot}"].read())
            assert not slots[len(PIECES) :].any()
    assert changed.shapes() == {path: tensor.shape for path, tensor in changed.tensors.items()}


def test_outputs_for_old_wordpieces_are_unchanged_and_new_ones_are_known():
    checkpoint = small_checkpoint("masked_lm")
    model = model_of(checkpoint)
    changed = adapt.add_pieces(checkpoint, NEW)
    inputs = inputs_for("masked_lm")
    before, after = model(inputs)["mlm_logits"].numpy(), changed.model()(inputs)["mlm_logits"].numpy()
    np.testing.assert_allclose(after[..., : len(PIECES)], before, rtol=1e-5, atol=1e-5)
    # The mean of all rows gets the mean of all scores.
    np.testing.assert_allclose(after[..., len(PIECES)], before.mean(-1), rtol=1e-4, atol=1e-4)
    assert changed.tokenizer.tokenize("covid19").to_list() == [[len(PIECES), len(PIECES) + 1]]


def test_the_report_lists_added_wordpieces_and_those_that_no_text_can_produce():
    changed = adapt.add_pieces(small_checkpoint(), NEW)
    count = len(PIECES)
    assert any(f"3 added (ids {count} to {count + 2})" in note for note in changed.report.warnings)
    (unseen,) = [note for note in changed.report.warnings if "never produces" in note]
    assert "[E1]" in unseen and "covid" not in unseen


@pytest.mark.parametrize(
    "pieces, culprit", [(["the"], ("'the'",)), (["new", "new"], ("'new'",)), (["a" * 300], ("256 bytes",))]
)
def test_wordpieces_that_cannot_be_added_are_named(pieces, culprit):
    with raises(DataError, *culprit):
        adapt.add_pieces(small_checkpoint(), pieces)


def test_a_checkpoint_without_a_vocabulary_accepts_no_wordpieces():
    with raises(ConfigError, "WordPiece"):
        adapt.add_pieces(dataclasses.replace(small_checkpoint(), tokenizer=None), NEW)


@pytest.mark.parametrize("offset", [0, 2])
def test_longer_positions_repeat_the_learned_ones(offset):
    checkpoint = small_checkpoint(position_offset=offset)
    model = model_of(checkpoint)
    changed = adapt.resize_positions(with_slots(checkpoint), 60)
    path = "embeddings/position_embeddings"
    old, new = checkpoint.tensors[path].read(), changed.tensors[path].read()
    assert new.shape == changed.tensors[path].shape == (60 + offset, 32)
    np.testing.assert_array_equal(new[:offset], old[:offset])
    for position in range(60):
        np.testing.assert_array_equal(new[offset + position], old[offset + position % 24])
    inputs = inputs_for(None)
    np.testing.assert_array_equal(
        changed.encoder()(inputs)["sequence_output"], model(inputs)["sequence_output"].numpy()
    )
    assert changed.config.max_position_embeddings == 60
    assert any("from 24 to 60" in note for note in changed.report.warnings)


@pytest.mark.parametrize("offset", [0, 2])
def test_a_model_with_fewer_positions_computes_the_same(offset):
    checkpoint = small_checkpoint(position_offset=offset)
    model = model_of(checkpoint)
    changed = adapt.resize_positions(with_slots(checkpoint), 20)
    path, inputs = "embeddings/position_embeddings", {name: value[:, :20] for name, value in inputs_for(None).items()}
    assert changed.tensors[path].shape == changed.moments[f"{path}/m"].shape == (20 + offset, 32)
    assert changed.moments[f"{path}/m"].read().shape == (20 + offset, 32)
    np.testing.assert_array_equal(
        changed.encoder()(inputs)["sequence_output"], model(inputs)["sequence_output"].numpy()
    )
    assert changed.config.max_position_embeddings == 20 and not changed.report.warnings


def test_as_many_positions_and_fewer_than_the_task_reads_are_refused():
    checkpoint = small_checkpoint("classification")
    with raises(ConfigError, "max_position_embeddings", "the checkpoint has 24"):
        adapt.resize_positions(checkpoint, 24)
    longest = checkpoint.task["settings"]["max_length"]
    with raises(ConfigError, "max_position_embeddings", longest - 1, f"up to {longest} tokens"):
        adapt.resize_positions(checkpoint, longest - 1)


@pytest.mark.parametrize("dtype, error", [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_weights_are_rounded_to_the_nearest(dtype, error):
    checkpoint = with_slots(small_checkpoint("classification"))
    changed = adapt.cast(checkpoint, dtype)
    for path, tensor in changed.tensors.items():
        values = tensor.read()
        assert values.dtype.name == tensor.dtype == dtype
        np.testing.assert_allclose(values.astype(np.float32), checkpoint.tensors[path].read(), rtol=error, atol=1e-6)
    assert {tensor.dtype for tensor in changed.moments.values()} == {"float32"}


def test_a_value_out_of_range_of_a_number_format_is_named():
    checkpoint = small_checkpoint()
    checkpoint.tensors["pooler/bias"] = tensor_of(np.full(32, 1e6, np.float32), "pooler/bias")
    with raises(DataError, "pooler/bias", "1e+06", "float16"):
        adapt.cast(checkpoint, "float16").tensors["pooler/bias"].read()
    assert adapt.cast(checkpoint, "bfloat16").tensors["pooler/bias"].read().dtype.name == "bfloat16"
