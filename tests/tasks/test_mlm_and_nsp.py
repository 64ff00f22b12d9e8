"""The metrics of the pre-training tasks by hand, and the filling of [MASK] tokens."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

from bert_tf import BertEncoder
from bert_tf.checkpoints import directory
from bert_tf.tasks import MaskedLM, Pretraining
from bert_tf.text import Tokenizer
from tests.checkpoints.small import model_of, small_checkpoint
from tests.model.numpy_bert import encode, masked_lm_logits, softmax, tensors_of
from tests.model.small import PIECES, randomize, small_config

MASK = PIECES.index("[MASK]")


@pytest.fixture(scope="module")
def task():
    return Pretraining(Tokenizer(PIECES), max_length=12)


@pytest.fixture(scope="module")
def model(task):
    return randomize(task.build(BertEncoder(small_config())))


@pytest.fixture(scope="module")
def fill(task, model):
    return task.signatures(model)["serving_default"]


@pytest.mark.parametrize("kind", [Pretraining, MaskedLM])
def test_metrics_count_masked_tokens_and_pairs(kind):
    task = kind(Tokenizer(PIECES), max_length=12)
    rng = np.random.default_rng(0)
    masked, following = rng.normal(size=(3, 4, 50)), rng.normal(size=(3, 2))
    ids = rng.integers(0, 50, (3, 4))
    ids[0, 0], ids[1, 2] = masked[0, 0].argmax(), masked[1, 2].argmax()  # one correct with weight, one without
    weights = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    labels = np.array([0, 1, 1])
    features = {
        # [CLS], [SEP], [MASK] and padding are not counted: 2 of 6 pieces are [UNK].
        "input_word_ids": tf.constant([[2, 1, 3, 0, 0], [2, 5, MASK, 1, 3], [6, 7, 8, 3, 0]]),
        "input_mask": tf.constant([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 2, 2, 3, 0]]),  # packed rows count sequences
        "masked_lm_ids": tf.constant(ids, tf.int32),
        "masked_lm_weights": tf.constant(weights, tf.float32),
        "next_sentence_labels": tf.constant(labels, tf.int32),
    }
    outputs = {"mlm_logits": tf.constant(masked, tf.float32), "nsp_logits": tf.constant(following, tf.float32)}
    metrics = task.objective.loss_and_metrics(features, outputs)
    entropies = -np.take_along_axis(log_softmax(masked, -1), ids[..., None], -1)[..., 0]
    expected = {
        "mlm_loss": ((entropies * weights).sum(), 4),
        "nsp_loss": (-log_softmax(following, -1)[range(3), labels].sum(), 3),
        "mlm_accuracy": (((masked.argmax(-1) == ids) * weights).sum(), 4),
        "nsp_accuracy": ((following.argmax(-1) == labels).sum(), 3),
        "padding_share": (3, 15),
        "unknown_share": (2, 6),
    }
    assert expected["mlm_accuracy"][0] >= 1
    assert metrics.keys() == {*task.objective.losses, *task.objective.metric_names}
    assert len(metrics) == {Pretraining: 6, MaskedLM: 4}[kind]
    for name in metrics:
        np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-5, err_msg=name)
    assert task.objective.weights(features).keys() == set(task.objective.losses)
    for name, weight in task.objective.weights(features).items():
        np.testing.assert_allclose(weight, expected[name][1], atol=2e-5)


def test_the_sequences_of_packed_rows_are_counted_one_by_one():
    task = Pretraining(Tokenizer(PIECES), max_length=12)
    features = {
        "input_word_ids": tf.ones([2, 3], tf.int32),
        "input_mask": tf.constant([[1, 2, 3], [1, 1, 1]]),
        "masked_lm_ids": tf.zeros([2, 1], tf.int32),
        "masked_lm_weights": tf.ones([2, 1]),
        "next_sentence_labels": tf.constant([[1, 0, 1], [0, 0, 0]]),
        "next_sentence_weights": tf.constant([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]),
    }
    logits = np.array([[[0, 1], [0, 2], [0, 3]], [[4, 0], [5, 0], [6, 0]]], np.float32)
    metrics = task.objective.loss_and_metrics(
        features, {"mlm_logits": tf.zeros([2, 1, 9]), "nsp_logits": tf.constant(logits)}
    )
    entropies = -log_softmax(logits, -1)
    expected = entropies[0, 0, 1] + entropies[0, 1, 0] + entropies[0, 2, 1] + entropies[1, 0, 0]
    np.testing.assert_allclose(metrics["nsp_loss"], (expected, 4), rtol=1e-6)
    np.testing.assert_allclose(metrics["nsp_accuracy"], (3, 4))
    assert float(task.objective.weights(features)["nsp_loss"]) == 4


@pytest.mark.parametrize("packed", [False, True])
def test_each_language_has_the_metrics_of_its_own_tokens_and_pairs(packed):
    task = Pretraining(Tokenizer(PIECES), max_length=12, languages=("en", "ko", "xx"))
    rng = np.random.default_rng(0)
    languages = np.array([[0] * 6, [1] * 6, [0] * 4 + [1] * 2 if packed else [0] * 6])
    firsts = np.array([[0, 0], [0, 0], [0, 4]])[:, : 1 + packed]
    mask = np.array([[1] * 4 + [0] * 2, [1] * 6, [1] * 4 + [1 + packed] * 2])
    positions, weights = rng.integers(0, 6, (3, 4)), rng.integers(0, 2, (3, 4))
    ids, masked = rng.integers(0, 9, (3, 4)), rng.normal(size=(3, 4, 9))
    labels, following = rng.integers(0, 2, firsts.shape), rng.normal(size=(*firsts.shape, 2))
    pairs = np.array([[1, 0], [1, 0], [1, 1]])[:, : 1 + packed]
    features = {
        "input_word_ids": mask,
        "input_mask": mask,
        "language_ids": languages,
        "masked_lm_ids": ids,
        "masked_lm_positions": positions,
        "next_sentence_labels": labels if packed else labels[:, 0],
    }
    features = {name: tf.constant(value, tf.int32) for name, value in features.items()}
    features["masked_lm_weights"] = tf.constant(weights, tf.float32)
    if packed:
        features["first_token_positions"] = tf.constant(firsts, tf.int32)
        features["next_sentence_weights"] = tf.constant(pairs, tf.float32)
    logits = {"mlm_logits": masked, "nsp_logits": following if packed else following[:, 0]}
    metrics = task.objective.loss_and_metrics(
        features, {name: tf.constant(value, tf.float32) for name, value in logits.items()}
    )
    assert metrics.keys() == {*task.objective.losses, *task.objective.metric_names}
    rows = np.arange(3)[:, np.newaxis]
    for number, language in enumerate(("en", "ko", "xx")):
        own = weights * (languages[rows, positions] == number)
        entropies = -np.take_along_axis(log_softmax(masked, -1), ids[..., None], -1)[..., 0]
        own_pairs = pairs * (languages[rows, firsts] == number)
        losses = -np.take_along_axis(log_softmax(following, -1), labels[..., None], -1)[..., 0]
        expected = {
            "mlm_loss": ((entropies * own).sum(), own.sum()),
            "mlm_accuracy": (((masked.argmax(-1) == ids) * own).sum(), own.sum()),
            "nsp_loss": ((losses * own_pairs).sum(), own_pairs.sum()),
            "nsp_accuracy": (((following.argmax(-1) == labels) * own_pairs).sum(), own_pairs.sum()),
        }
        for name, pair in expected.items():
            np.testing.assert_allclose(metrics[f"{language}/{name}"], pair, rtol=1e-5, err_msg=f"{language} {name}")
        assert float(metrics[f"{language}/tokens"][0]) == ((mask > 0) & (languages == number)).sum()
    assert task.objective.totals == ("en/tokens", "ko/tokens", "xx/tokens")
    plain = Pretraining(Tokenizer(PIECES), max_length=12).objective.loss_and_metrics(
        features, {name: tf.constant(value, tf.float32) for name, value in logits.items()}
    )
    assert all(np.array_equal(plain[name], metrics[name]) for name in plain)


def test_a_batch_without_masks_divides_by_more_than_zero():
    features = {"masked_lm_weights": tf.zeros([2, 3]), "next_sentence_labels": tf.zeros([2], tf.int32)}
    assert float(Pretraining(Tokenizer(PIECES), 12).objective.weights(features)["mlm_loss"]) > 0


def expected_fillings(model, words):
    """Wordpieces and probabilities by NumPy for one text given as wordpieces."""
    ids = np.array([[2, *map(PIECES.index, words), 3]])
    ones = np.ones_like(ids)
    tensors = tensors_of(model, 32)
    inputs = {"input_word_ids": ids, "input_mask": ones, "input_type_ids": 0 * ones}
    sequence, _, _ = encode(tensors, inputs, layers=2, heads=4, activation="tanh_gelu")
    positions = np.flatnonzero(ids[0] == MASK)[None]
    logits = masked_lm_logits(tensors, sequence, positions, activation="tanh_gelu")
    probabilities = softmax(logits[0])
    best = np.argsort(-probabilities, -1)[:, :5]
    return [[PIECES[i] for i in row] for row in best], np.take_along_axis(probabilities, best, -1)


def fillings(answer, row):
    """The tokens for each mask of a row, as wordpieces."""
    count = int(answer["mask_count"][row])
    columns = (np.array(answer[name])[row, :count].tolist() for name in ("tokens", "continues"))
    return [
        ["##" * continues + token.decode() for token, continues in zip(*one, strict=True)]
        for one in zip(*columns, strict=True)
    ]


def test_masks_are_filled_in_the_order_of_the_text(model, fill):
    texts = ["a [MASK] b", "[MASK] the [MASK] good[MASK]!", "no mask here", "[MASK]"]
    pieces = [["a", "[MASK]", "b"], ["[MASK]", "the", "[MASK]", "good", "[MASK]", "!"], None, ["[MASK]"]]
    answer = {name: value.numpy() for name, value in fill(tf.constant(texts)).items()}
    assert answer["tokens"].shape == answer["probabilities"].shape == (4, 3, 5)
    for row, words in enumerate(pieces):
        masks = words.count("[MASK]") if words else 0
        if masks:
            tokens, probabilities = expected_fillings(model, words)
            assert fillings(answer, row) == tokens
            np.testing.assert_allclose(answer["probabilities"][row, :masks], probabilities, atol=1e-5)
        assert not any(any(places) for places in answer["tokens"][row, masks:].tolist())
        assert not answer["probabilities"][row, masks:].any() and not answer["continues"][row, masks:].any()


@pytest.mark.parametrize("texts", [[], [""], ["", "a b"]])
def test_texts_without_a_mask_have_no_answers(fill, texts):
    answer = fill(tf.constant(texts, tf.string))
    assert answer["tokens"].shape == answer["probabilities"].shape == (len(texts), 0, 5)


def test_a_mask_beyond_the_longest_input_has_no_answer(model, fill):
    # 12 tokens, two of them [CLS] and [SEP]: ten wordpieces are kept.
    kept, cut = "a " * 9 + "[MASK] b b", "a " * 10 + "[MASK]"
    answer = fill(tf.constant([kept, cut]))
    assert answer["tokens"].shape == (2, 1, 5)
    assert fillings(answer, 0) == expected_fillings(model, ["a"] * 9 + ["[MASK]"])[0]
    assert answer["tokens"].numpy()[1].tolist() == [[b""] * 5]


def test_the_task_is_restored_from_its_settings(task):
    assert Pretraining.from_settings(task.settings(), task.tokenizer).settings() == {"max_length": 12}


def test_a_masked_language_model_that_was_loaded_gives_numpys_answers(tmp_path):
    # Without the pooler, which only a next-sentence head needs.
    checkpoint = small_checkpoint("masked_lm", pooler=False)
    model = model_of(checkpoint)
    directory.write(checkpoint, str(tmp_path / "model"))
    task, again = directory.load_task(str(tmp_path / "model"))
    assert (type(task), task.max_length) == (MaskedLM, 20)
    answer = task.signatures(again)["serving_default"].python_function(tf.constant(["the good [MASK]!"]))
    tokens, probabilities = expected_fillings(model, ["the", "good", "[MASK]", "!"])
    assert fillings(answer, 0) == tokens
    np.testing.assert_allclose(answer["probabilities"][0], probabilities, atol=1e-5)


def test_lengths_and_masks_are_counted_for_each_sequence_of_a_row():
    task = MaskedLM(Tokenizer(PIECES), 12)
    packed = {
        "input_mask": [[1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0], [1] * 12, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]],
        "masked_lm_positions": [[1, 5, 8, 9], [1, 2, 3, 0], [1, 0, 0, 0]],
        "masked_lm_weights": [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]],
    }
    counts = task.objective.counts({name: tf.constant(value) for name, value in packed.items()})
    lengths, masks = [counts[name].numpy().tolist() for name in ("sequence_length", "masks_a_sequence")]
    assert lengths == [{3: 2, 4: 2, 12: 1}.get(length, 0) for length in range(13)]
    assert masks == [{1: 3, 2: 1, 3: 1}.get(number, 0) for number in range(13)]
