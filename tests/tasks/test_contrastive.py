"""Objectives of sentence encoders against formulas in NumPy (float64) and against sentence-transformers."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax, logsumexp, softmax

from bert_tf.config import EmbeddingsConfig
from bert_tf.tasks.contrastive import LOSSES, Groups, loss_of

ROWS, SIZE = 6, 8


def vectors_of(texts, seed=0):
    return np.random.default_rng(seed).normal(size=[ROWS, texts, SIZE]).astype("float32")


def groups_of(vectors, labels=None, text_ids=None):
    rows, texts = vectors.shape[:2]
    ids = np.arange(rows * texts).reshape(rows, texts) if text_ids is None else text_ids
    labels = np.zeros(rows) if labels is None else labels
    return Groups(tf.constant(vectors), tf.constant(ids, tf.int64), tf.constant(labels, tf.float32))


def loss(objective, vectors, labels=None, text_ids=None, **settings):
    return float(
        loss_of(
            groups_of(vectors, labels, text_ids), EmbeddingsConfig(objective=objective, **settings).published(None, 64)
        )
    )


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def ranking(queries, candidates, right, left_out=(), scale=20.0):
    scores = scale * unit(queries) @ unit(candidates).T
    for row, column in left_out:
        scores[row, column] = -np.inf
    return -np.mean([log_softmax(one)[at] for one, at in zip(scores, right, strict=True)])


RANDOM = np.random.default_rng(1)
NUMBERS, CLASSES = RANDOM.uniform(size=ROWS), np.array([0, 0, 1, 1, 2, 0])
SCORES = RANDOM.normal(size=[ROWS, 3])


def test_in_batch_negatives_are_the_second_and_further_texts_of_all_rows():
    for texts in (2, 3):
        vectors = vectors_of(texts)
        candidates = np.concatenate(np.float64(vectors[:, 1:].transpose(1, 0, 2)))
        expected = ranking(np.float64(vectors[:, 0]), candidates, range(ROWS), scale=7.0)
        assert loss("in_batch", vectors, scale=7.0) == pytest.approx(expected, rel=1e-5)


def test_both_directions_are_the_mean_of_finding_the_second_text_and_the_first():
    vectors = vectors_of(2)
    first, second = np.float64(vectors[:, 0]), np.float64(vectors[:, 1])
    expected = (ranking(first, second, range(ROWS)) + ranking(second, first, range(ROWS))) / 2
    assert loss("in_batch", vectors, both_directions=True) == pytest.approx(expected, rel=1e-5)


def test_texts_that_may_be_right_are_no_negatives():
    vectors = vectors_of(3)
    ids = np.arange(3 * ROWS).reshape(ROWS, 3)
    ids[1, 0] = ids[0, 0]  # two rows ask the same, so each one's second text is right for the other
    ids[3, 1] = ids[2, 1]  # two rows have the same second text
    ids[5, 2] = ids[4, 0]  # a negative of one row is what another row asks
    vectors[1, 0], vectors[3, 1], vectors[5, 2] = vectors[0, 0], vectors[2, 1], vectors[4, 0]
    candidates = np.concatenate(np.float64(vectors[:, 1:].transpose(1, 0, 2)))
    left_out = [(0, 1), (1, 0), (2, 3), (3, 2), (4, ROWS + 5)]
    expected = ranking(np.float64(vectors[:, 0]), candidates, range(ROWS), left_out)
    assert loss("in_batch", vectors, text_ids=ids) == pytest.approx(expected, rel=1e-5)


def test_examples_with_fewer_negatives_have_none_in_their_place():
    vectors = vectors_of(3)
    ids = np.arange(3 * ROWS).reshape(ROWS, 3)
    ids[2:, 2] = -1
    candidates = np.concatenate(np.float64(vectors[:, 1:].transpose(1, 0, 2)))
    left_out = [(row, ROWS + column) for row in range(ROWS) for column in range(2, ROWS)]
    assert loss("in_batch", vectors, text_ids=ids) == pytest.approx(
        ranking(np.float64(vectors[:, 0]), candidates, range(ROWS), left_out), rel=1e-5
    )
    few = np.float64(vectors[:2])
    cosines = np.einsum("rs,rts->rt", unit(few[:, 0]), unit(few[:, 1:]))
    expected = np.mean(np.maximum(cosines[:, 1] - cosines[:, 0] + 0.5, 0))
    assert loss("triplet", vectors, text_ids=ids) == pytest.approx(expected, rel=1e-5)


def test_a_single_pair_has_no_negative_and_no_loss():
    assert loss("in_batch", vectors_of(2)[:1]) == loss("cosent", vectors_of(2)[:1], NUMBERS[:1]) == 0.0


def test_objectives_of_numbers_equal_their_formulas():
    vectors = vectors_of(2)
    cosines = np.sum(unit(np.float64(vectors[:, 0])) * unit(np.float64(vectors[:, 1])), -1)
    wrong = [20 * (a - b) for a, i in zip(cosines, NUMBERS, strict=True) for b, j in zip(cosines, NUMBERS, strict=True)
             if i < j]  # fmt: skip
    assert loss("cosent", vectors, NUMBERS) == pytest.approx(logsumexp([0, *wrong]), rel=1e-5)
    assert loss("cosine", vectors, NUMBERS) == pytest.approx(np.mean((cosines - NUMBERS) ** 2), rel=1e-5)


def test_objectives_of_scores_equal_their_formulas():
    vectors = vectors_of(4)
    products = np.einsum("rs,rts->rt", np.float64(vectors[:, 0]), np.float64(vectors[:, 1:]))
    margins, expected = (values[:, :1] - values[:, 1:] for values in (products, SCORES))
    assert loss("margin_mse", vectors, SCORES) == pytest.approx(np.mean((margins - expected) ** 2), rel=1e-5)
    theirs = softmax(SCORES / 2, 1)
    divergence = np.sum(theirs * (np.log(theirs) - log_softmax(products / 2, 1)), 1)
    assert loss("kl", vectors, SCORES, temperature=2.0) == pytest.approx(4 * np.mean(divergence), rel=1e-4)


def test_the_hardest_texts_of_classes_are_compared():
    vectors = vectors_of(1)
    found = unit(np.float64(vectors[:, 0]))
    losses = []
    for row, own in enumerate(CLASSES):
        distances = 1 - found @ found[row]
        same = [distances[at] for at in range(ROWS) if CLASSES[at] == own and at != row]
        losses.append(max(0, max(same, default=0) - min(distances[own != CLASSES]) + 0.5))
    assert loss("batch_hard", vectors, CLASSES) == pytest.approx(np.mean(losses), rel=1e-5)


def test_cosines_of_all_pairs_are_those_of_their_classes():
    vectors = vectors_of(1)
    cosines = unit(np.float64(vectors[:, 0])) @ unit(np.float64(vectors[:, 0])).T
    pairs = [(i, j) for i in range(ROWS) for j in range(i)]
    same = [(1 - cosines[pair]) ** 2 for pair in pairs if CLASSES[pair[0]] == CLASSES[pair[1]]]
    others = [cosines[pair] ** 2 for pair in pairs if CLASSES[pair[0]] != CLASSES[pair[1]]]
    expected = (np.mean(same) + np.mean(others)) / 2
    assert loss("class_pairs", vectors, CLASSES) == pytest.approx(expected, rel=1e-5)


def test_all_texts_learn_the_vector_of_the_teacher():
    vectors, teacher = vectors_of(2), vectors_of(1, 5)[:, 0]
    expected = np.mean((np.float64(vectors) - teacher[:, np.newaxis]) ** 2)
    assert loss("same_vectors", vectors, teacher, teacher="x") == pytest.approx(expected, rel=1e-5)


def test_matryoshka_is_the_sum_over_cut_vectors():
    vectors = vectors_of(2)
    parts = [loss("in_batch", vectors[..., :size]) for size in (8, 3)]
    assert loss("in_batch", vectors, matryoshka=(8, 3)) == pytest.approx(sum(parts), rel=1e-5)


def test_every_objective_has_finite_gradients_for_equal_and_for_empty_vectors():
    for vectors in (np.ones([ROWS, 4, SIZE], "float32"), np.zeros([ROWS, 4, SIZE], "float32")):
        for objective in LOSSES:
            texts = {"in_batch": 3, "triplet": 3, "margin_mse": 4, "kl": 4}.get(objective, 2)
            labels = {"margin_mse": SCORES, "kl": SCORES, "same_vectors": np.zeros([ROWS, SIZE])}
            given = tf.constant(vectors[:, :texts])
            with tf.GradientTape() as tape:
                tape.watch(given)
                groups = groups_of(vectors[:, :texts], labels.get(objective, NUMBERS))._replace(vectors=given)
                teacher = "x" if objective == "same_vectors" else ""
                value = loss_of(groups, EmbeddingsConfig(objective=objective, teacher=teacher).published(None, 64))
            assert np.isfinite(value) and np.isfinite(tape.gradient(value, given)).all(), objective


# Objective, settings, number of texts, labels, and the class and arguments in sentence-transformers.
THEIRS = {
    "pairs": ("in_batch", {}, 2, None, "MultipleNegativesRankingLoss", {}),
    "triplets": ("in_batch", {"scale": 10.0}, 4, None, "MultipleNegativesRankingLoss", {"scale": 10.0}),
    "both directions": ("in_batch", {"both_directions": True}, 2, None, "MultipleNegativesSymmetricRankingLoss", {}),
    "cosent": ("cosent", {}, 2, NUMBERS, "CoSENTLoss", {}),
    "cosine": ("cosine", {}, 2, NUMBERS, "CosineSimilarityLoss", {}),
    "triplet": ("triplet", {"margin": 0.3}, 3, None, "TripletLoss",
                {"triplet_margin": 0.3, "distance_metric": "cosine"}),
    "batch hard": ("batch_hard", {"margin": 0.3}, 1, CLASSES, "BatchHardTripletLoss",
                   {"margin": 0.3, "distance_metric": "cosine"}),
    "margins": ("margin_mse", {}, 4, SCORES, "MarginMSELoss", {}),
    "kl": ("kl", {"temperature": 2.0}, 4, SCORES, "DistillKLDivLoss", {"temperature": 2.0}),
    "vectors": ("same_vectors", {"teacher": "x"}, 2, vectors_of(1, 5)[:, 0], "MSELoss", {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", THEIRS)
def test_losses_and_gradients_equal_those_of_sentence_transformers(case):
    sys.modules.setdefault("triton", None)  # PyTorch's would load the libraries of a GPU a second time
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.losses")
    objective, settings, texts, labels, name, arguments = THEIRS[case]
    if arguments.get("distance_metric") == "cosine":
        distances = {
            "TripletLoss": lambda: losses.TripletDistanceMetric.COSINE,
            "BatchHardTripletLoss": lambda: losses.BatchHardTripletLossDistanceFunction.cosine_distance,
        }
        arguments = arguments | {"distance_metric": distances[name]()}
    theirs = getattr(losses, name)(torch.nn.Identity(), **arguments)
    vectors = vectors_of(texts)
    columns = [torch.tensor(vectors[:, place], requires_grad=True) for place in range(texts)]
    given = (
        None if labels is None else torch.tensor(labels, dtype=torch.long if case == "batch hard" else torch.float32)
    )
    given = [given] * texts if case == "vectors" else given
    expected = theirs.compute_loss_from_embeddings(columns, given)
    expected.backward()

    ours = tf.constant(vectors)
    with tf.GradientTape() as tape:
        tape.watch(ours)
        groups = groups_of(vectors, labels)._replace(vectors=ours)
        found = loss_of(groups, EmbeddingsConfig(objective=objective, **settings).published(None, 64))
    assert float(found) == pytest.approx(float(expected), rel=1e-6, abs=1e-6)
    gradients = np.stack([column.grad.numpy() for column in columns], 1)
    np.testing.assert_allclose(tape.gradient(found, ours), gradients, rtol=1e-5, atol=1e-6)
