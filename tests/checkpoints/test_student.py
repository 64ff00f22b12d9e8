"""Layers and words of a teacher with which a student starts."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.student import check_copy, copied_layers, copy_layers, copy_words, with_layers
from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.errors import ConfigError
from bert_tf.model.encoder import BertEncoder
from bert_tf.text import Tokenizer, learn_byte_pairs
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.codepoints import SPECIAL_PIECES
from tests.errors import raises
from tests.model.small import randomize, small_config

SIZES = {
    "alike": {},
    "pruned": {"heads_per_layer": (4, 1, 2, 3), "intermediate_sizes": (64, 16, 48, 32)},
    "shared": {"shared_layers": True, "embedding_size": 16},
}


@pytest.mark.parametrize("name", SIZES)
def test_a_student_has_evenly_spaced_layers_of_its_teacher_with_their_sizes_and_weights(name):
    teacher = randomize(BertEncoder(small_config(num_layers=4, **SIZES[name])), scale=0.3)
    values = {variable.path: variable.numpy() for variable in teacher.weights}
    tensors = {path: tensor_of(value, path) for path, value in values.items()}
    student = BertEncoder(with_layers(teacher.config, 2))
    copy_layers(Checkpoint(teacher.config, tensors), student)
    assert student.config.num_layers == 2
    assert student.config.layer_heads == tuple(teacher.config.layer_heads[layer] for layer in (0, 3))
    for variable in student.weights:
        path = variable.path.replace("layer_1/", "layer_3/")
        np.testing.assert_array_equal(variable.numpy(), values[path], err_msg=path)


def test_the_layers_are_those_of_distilbert():
    assert copied_layers(6, 12) == [0, 2, 4, 7, 9, 11]  # `huggingface/transformers`, extract_distilbert.py
    assert copied_layers(1, 12) == [0] and copied_layers(5, 5) == list(range(5))


def test_more_layers_than_the_teacher_has_are_refused():
    with raises(ConfigError, "distillation.layers is 5", "teacher has 4"):
        with_layers(small_config(num_layers=4), 5)


@pytest.mark.parametrize(
    "teacher, named",
    [
        ({"hidden_size": 48}, ["word_embeddings", "48"]),
        ({"num_heads": 2}, ["num_heads is 4", "2"]),
        ({"activation": "erf_gelu"}, ["activation is 'tanh_gelu'", "'erf_gelu'"]),
        ({"norm": "pre"}, ["norm is 'post'", "'pre'"]),
    ],
)
def test_layers_that_would_compute_something_else_are_not_copied(teacher, named):
    with raises(ConfigError, *named):
        check_copy(small_config(num_layers=2), small_config(**{"num_layers": 4} | teacher))


def teacher_of(pieces, width):
    """A checkpoint with a random table of words and these pieces, and the table."""
    tokenizer = Tokenizer([*SPECIAL_PIECES, *pieces])
    config = small_config(vocab_size=tokenizer.vocab_size, hidden_size=width)
    encoder = randomize(BertEncoder(config), scale=0.3)
    tensors = {variable.path: tensor_of(variable.numpy(), variable.path) for variable in encoder.weights}
    return Checkpoint(config, tensors, tokenizer=tokenizer), encoder.embeddings.word_embeddings.numpy()


def words_of(checkpoint, tokenizer, width):
    student = BertEncoder(small_config(vocab_size=tokenizer.vocab_size, hidden_size=width, num_layers=1))
    before = student.embeddings.word_embeddings.numpy()
    copy_words(checkpoint, student, tokenizer)
    return before, student.embeddings.word_embeddings.numpy()


def test_a_narrower_student_starts_with_the_principal_components_of_its_teachers_words():
    checkpoint, table = teacher_of([f"word{number}" for number in range(75)], 32)
    found = words_of(checkpoint, checkpoint.tokenizer, 16)[1]
    expected = PCA(16, svd_solver="full").fit_transform(table.astype(np.float64))
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found, expected * signs, atol=1e-5)


def test_a_student_with_a_vocabulary_of_its_own_starts_with_the_means_of_its_teachers_pieces():
    checkpoint, table = teacher_of(["film", "##s", "a", "good", "!"], 32)
    rows = dict(zip(checkpoint.tokenizer.vocab, table, strict=True))
    pieces = ["good", "films", "##s", "zzz", "[MASK]", "[CLS]"]
    student = Tokenizer([*SPECIAL_PIECES[:1], *pieces, "[UNK]", "[SEP]"])
    before, found = words_of(checkpoint, student, 64)
    mean = (rows["film"] + rows["##s"]) / 2
    expected = [rows["good"], mean, rows["##s"], rows["[UNK]"], rows["[MASK]"], rows["[CLS]"]]
    np.testing.assert_allclose(found[1:7, :32], expected, rtol=1e-6)
    np.testing.assert_array_equal(found[:, 32:], before[:, 32:])  # what the teacher does not have is random


def test_a_student_with_another_kind_of_tokenizer_starts_with_its_teachers_words():
    checkpoint, table = teacher_of(["film", "##s", "good"], 32)
    rows = dict(zip(checkpoint.tokenizer.vocab, table, strict=True))
    student = BytePairTokenizer(*learn_byte_pairs(["good films", "good films"], 300))
    found = words_of(checkpoint, student, 32)[1]
    of = dict(zip(student.vocab, found, strict=True))
    np.testing.assert_allclose(of["\u0120films"], (rows["film"] + rows["##s"]) / 2, rtol=1e-6)
    np.testing.assert_array_equal(of["<s>"], rows["[CLS]"])
