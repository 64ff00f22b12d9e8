"""Layers of a teacher with which a student starts."""

import numpy as np
import pytest

from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.student import check_copy, copied_layers, copy_layers, with_layers
from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.errors import ConfigError
from bert_tf.model.encoder import BertEncoder
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
