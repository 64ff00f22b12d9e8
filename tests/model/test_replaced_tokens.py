"""ELECTRA's training model: the samples of the generator, the corrupted text, and what is shared."""

import types

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert_tf import BertConfig, BertEncoder
from bert_tf.model.head_table import variable_shapes
from bert_tf.model.replaced_tokens import electra, generator_config, sample
from tests.model.numpy_bert import ACTIVATIONS, encode, linear, masked_lm_logits, softmax, tensors_of
from tests.model.small import PIECES, features, randomize, small_config

MASK = PIECES.index("[MASK]")
LABELS = np.array([[7, 8, 9], [11, 12, 0], [13, 0, 0], [0, 0, 0]], np.int32)
POSITIONS = np.array([[1, 2, 20], [3, 5, 0], [4, 0, 0], [0, 0, 0]], np.int32)
WEIGHTS = np.float32(LABELS > 0)


def seeds_of(rows, seed=0):
    return np.random.default_rng(seed).integers(-(2**31), 2**31, [rows, 2]).astype(np.int32)


def masked_features(lengths=(24, 9, 6, 5)):
    """Features as a `Masker` returns them for ELECTRA; rows with three, two, one and no masked tokens."""
    rows = features(lengths)
    for row, slot in np.argwhere(WEIGHTS):
        rows["input_word_ids"][row, POSITIONS[row, slot]] = MASK
    named = {"masked_lm_positions": POSITIONS, "masked_lm_ids": LABELS, "masked_lm_weights": WEIGHTS}
    return rows | named | {"mask_seed": seeds_of(len(lengths))}


def part_of(model, folder, config):
    """What numpy_bert reads of the generator or the discriminator, by the paths of its own model."""
    by_path = {variable.path: variable for variable in model.weights}
    head = "masked_lm" if folder else "replaced_token_detection"
    weights = [
        types.SimpleNamespace(path=path, numpy=by_path.get(f"{folder}/{path}", by_path.get(path)).numpy)
        for path in variable_shapes(config, head)
    ]
    return tensors_of(types.SimpleNamespace(weights=weights), config.hidden_size)


@pytest.mark.parametrize("size", [37, 1000])
def test_tokens_are_sampled_from_the_softmax(size):
    logits = np.random.default_rng(0).normal(0, 2, size)
    count = 30_000
    rows = np.broadcast_to(logits.astype(np.float32), [count // 10, 10, size])
    positions = np.tile(np.arange(10, dtype=np.int32), [count // 10, 1])
    parts = (np.array_split(values, 30) for values in (rows, seeds_of(count // 10), positions))
    tokens = np.concatenate([sample(*map(tf.constant, part)) for part in zip(*parts, strict=True)])
    counts, expected = np.bincount(tokens.ravel(), minlength=size), softmax(logits) * count
    frequent = expected >= 5  # below, the test's approximation fails
    counts, expected = (np.append(x[frequent], x[~frequent].sum() + 1e-9) for x in (counts, expected))
    assert stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > 0.01


def test_a_token_without_probability_is_never_sampled_and_a_certain_one_always():
    logits = np.full([500, 4, 30], -np.inf, np.float32)
    logits[:, 0, 29] = logits[:, 1, 0] = logits[:, 2, 17] = 3.0
    logits[:, 3, [4, 28]] = 0.0
    positions = np.tile(np.arange(4, dtype=np.int32), [500, 1])
    tokens = sample(tf.constant(logits), tf.constant(seeds_of(500)), tf.constant(positions)).numpy()
    assert [set(column) for column in tokens.T] == [{29}, {0}, {17}, {4, 28}]


def test_a_sample_depends_on_the_seed_of_its_row_and_its_position_alone():
    rng, seeds = np.random.default_rng(0), seeds_of(6)
    logits, positions = np.float32(rng.normal(size=[6, 5, 100])), np.int32([rng.permutation(50)[:5] for _ in range(6)])
    draw = tf.function(sample)
    whole = draw(logits, seeds, positions).numpy()
    compiled = tf.function(sample, jit_compile=True)(logits, seeds, positions).numpy()
    np.testing.assert_array_equal(compiled, whole)
    for row in range(6):
        order = rng.permutation(5)
        alone = draw(logits[row : row + 1, order], seeds[row : row + 1], positions[row : row + 1, order]).numpy()
        np.testing.assert_array_equal(alone[0], whole[row, order])
    others = draw(
        np.zeros([200, 5, 100], np.float32), seeds_of(200), np.tile(np.arange(5, dtype=np.int32), [200, 1])
    ).numpy()
    assert len(np.unique(others)) == 100  # neither rows nor positions share their numbers
    assert (
        max(np.abs(np.corrcoef(others.T) - np.eye(5)).max(), np.abs(np.corrcoef(others[:-1, 0], others[1:, 0])[0, 1]))
        < 0.25
    )


@pytest.mark.parametrize("embedding_size", [0, 24])
def test_both_models_equal_a_numpy_electra(embedding_size):
    config = small_config(pooler=False, embedding_size=embedding_size, activation="erf_gelu")
    model, rows = randomize(electra(BertEncoder(config), 0.5)), masked_features()
    outputs = {name: value.numpy() for name, value in model(rows).items()}
    own, shape = generator_config(config, 0.5), {"layers": 2, "activation": "erf_gelu"}
    tensors = part_of(model, "generator", own)
    states, _, _ = encode(tensors, rows, heads=own.num_heads, **shape)
    logits = masked_lm_logits(tensors, states, POSITIONS, activation="erf_gelu")
    np.testing.assert_allclose(outputs["mlm_logits"], logits, atol=2e-5)

    # The corrupted text, one token at a time.
    tokens = sample(tf.constant(outputs["mlm_logits"]), tf.constant(rows["mask_seed"]), tf.constant(POSITIONS)).numpy()
    ids, replaced = rows["input_word_ids"].copy(), np.zeros_like(rows["input_word_ids"])
    for row, slot in np.argwhere(WEIGHTS):
        ids[row, POSITIONS[row, slot]] = tokens[row, slot]
        replaced[row, POSITIONS[row, slot]] = tokens[row, slot] != LABELS[row, slot]
    np.testing.assert_array_equal(outputs["replaced"], replaced)
    assert 0 < replaced.sum() <= WEIGHTS.sum()

    tensors = part_of(model, "", config)
    states, _, _ = encode(tensors, rows | {"input_word_ids": ids}, heads=4, **shape)
    hidden = ACTIVATIONS["erf_gelu"](linear(tensors, states, "discriminator_predictions.dense"))
    logits = linear(tensors, hidden, "discriminator_predictions.dense_prediction")[..., 0]
    tokens = rows["input_mask"] == 1
    np.testing.assert_allclose(outputs["rtd_logits"][tokens], logits[tokens], atol=2e-5)


def test_a_sampled_token_that_equals_the_original_is_not_replaced():
    model, rows = electra(BertEncoder(small_config(pooler=False)), 0.5), masked_features()
    bias = next(variable for variable in model.weights if variable.path == "generator/masked_lm/bias")
    bias.assign(np.where(np.arange(len(PIECES)) == 7, 100.0, 0.0))  # always the first label of the first row
    replaced = model(rows)["replaced"].numpy()
    assert replaced[0].nonzero()[0].tolist() == [2, 20] and replaced.sum() == WEIGHTS.sum() - 1


def test_the_variables_are_those_of_the_discriminator_and_the_generators_own():
    config = small_config(pooler=False)
    model = electra(BertEncoder(config), 0.5)
    discriminator = variable_shapes(config, "replaced_token_detection")
    generator = variable_shapes(generator_config(config, 0.5), "masked_lm")
    shared = {path for path in discriminator if path.startswith("embeddings/")}
    assert shared < generator.keys() and all(generator[path] == discriminator[path] for path in shared)
    own = {f"generator/{path}": shape for path, shape in generator.items() if path not in shared}
    assert {variable.path: tuple(variable.shape) for variable in model.weights} == discriminator | own
    assert len(model.weights) == len(model.trainable_variables) == len(discriminator) + len(own)


def test_the_generator_has_the_papers_sizes():
    sizes = [  # table 6: layers, hidden size, embeddings, share; then hidden size, feed-forward size and heads
        (12, 256, 128, 1 / 4, 64, 256, 1),
        (12, 768, 0, 1 / 3, 256, 1024, 4),
        (24, 1024, 0, 1 / 4, 256, 1024, 4),
    ]
    for layers, hidden, embedding, share, *expected in sizes:
        config = BertConfig(
            num_layers=layers, hidden_size=hidden, num_heads=hidden // 64, intermediate_size=4 * hidden,
            embedding_size=embedding,
        )  # fmt: skip
        own = generator_config(config, share).check()
        assert [own.hidden_size, own.intermediate_size, own.num_heads] == expected
        assert (own.num_layers, own.embedding_width, own.pooler) == (layers, embedding or hidden, False)
    assert generator_config(small_config(), 0.01).num_heads == 1
    assert generator_config(small_config(), 1.0).hidden_size == small_config().hidden_size
