"""Students of a larger model: their size, and the layers that they start with."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TypeVar

import keras

from bert_tf.checkpoints.stored_model import Checkpoint, assign
from bert_tf.checkpoints.tensor import first_rows
from bert_tf.config import BertConfig
from bert_tf.errors import ConfigError
from bert_tf.model.encoder import encoder_of
from bert_tf.model.pruning import all_parts, pruned_config
from bert_tf.model.variables import variable_shapes
from bert_tf.types import Shapes

_T = TypeVar("_T")
_POSITIONS = "embeddings/position_embeddings"


def check_smaller(student: BertConfig, teacher: BertConfig, path: str) -> None:
    """Raises ConfigError for an encoder with more weights than its teacher in `path`, poolers aside."""
    sizes = [sum(map(math.prod, _shapes(config).values())) for config in (student, teacher)]
    if sizes[0] > sizes[1]:
        raise ConfigError(
            f"the student has {sizes[0]:,} weights and its teacher {path} {sizes[1]:,}; choose a student that is not "
            "larger, with fewer layers or a smaller hidden size"
        )


def copied_layers(student: int, teacher: int) -> list[int]:
    """For each of so many layers of a student, the number, from 0, of the teacher's layer with which it starts.

    They are evenly spaced, from the first to the last: of 12 layers, a student with 6 gets 0, 2, 4, 7, 9 and 11, as in
    the program that trained DistilBERT.
    """
    return [round(index * (teacher - 1) / max(student - 1, 1)) for index in range(student)]


def with_layers(teacher: BertConfig, layers: int) -> BertConfig:
    """The architecture of a student with so many evenly spaced layers of its teacher."""
    if layers > teacher.num_layers:
        raise ConfigError(
            f"distillation.layers is {layers}, and the teacher has {teacher.num_layers}; expected no more"
        )
    if teacher.shared_layers:
        return dataclasses.replace(teacher, num_layers=layers)
    parts = all_parts(teacher)
    return pruned_config(teacher, [parts[layer] for layer in copied_layers(layers, teacher.num_layers)])


def check_copy(student: BertConfig, teacher: BertConfig) -> None:
    """Raises ConfigError unless `copy_layers` can copy from a teacher with this architecture."""
    theirs = _of_student(_shapes(teacher), student, teacher)
    for path, own in _shapes(student).items():
        found = theirs.get(path)
        fits = found and found[1:] == own[1:] and (found[0] >= own[0] if path == _POSITIONS else found[0] == own[0])
        if not fits:
            raise ConfigError(
                f"the student's {path} has the shape {own}, the teacher's {found or 'none'}; a student that starts "
                "with layers of its teacher needs the teacher's sizes"
            )
    for field in ("num_heads", "position_offset", "activation", "norm"):
        own, found = (getattr(config, field) for config in (student, teacher))
        if own != found:
            raise ConfigError(
                f"the student's {field} is {own!r}, the teacher's {found!r}; a student that starts with layers of its "
                "teacher needs the same"
            )


def copy_layers(teacher: Checkpoint, student: keras.Model) -> None:
    """Assigns the teacher's embeddings, evenly spaced layers, and head to the variables of a new model.

    Args:
        teacher: checked by `check_copy`.
        student: variables that the teacher does not have, such as those of another head, keep their values.
    """
    tensors = _of_student(teacher.tensors, encoder_of(student).config, teacher.config)
    variables = [variable for variable in student.weights if variable.path in tensors]
    for variable in variables:
        if variable.path == _POSITIONS:
            tensors[_POSITIONS] = first_rows(tensors[_POSITIONS], variable.shape[0])
    assign([variable for variable in variables if tuple(variable.shape) == tensors[variable.path].shape], tensors)


def _shapes(config: BertConfig) -> Shapes:
    return variable_shapes(dataclasses.replace(config, pooler=False))


def _of_student(values: Mapping[str, _T], student: BertConfig, teacher: BertConfig) -> dict[str, _T]:
    """The teacher's values by the paths of the student's variables."""
    layers = enumerate(copied_layers(student.num_blocks, teacher.num_blocks))
    names = [(f"layer_{number}/", f"layer_{index}/") for index, number in layers]
    renamed = {path: value for path, value in values.items() if not path.startswith("layer_")}
    for old, new in names:
        renamed |= {path.replace(old, new, 1): value for path, value in values.items() if path.startswith(old)}
    return renamed
