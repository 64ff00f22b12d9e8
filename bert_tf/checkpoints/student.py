"""Students of a larger model: their size, and the layers or words that they start with."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TypeVar

import keras
import numpy as np

from bert_tf.checkpoints.stored_model import Checkpoint, assign
from bert_tf.checkpoints.tensor import as_dtype, first_rows
from bert_tf.config import BertConfig
from bert_tf.errors import ConfigError
from bert_tf.model.encoder import encoder_of
from bert_tf.model.pruning import all_parts, pruned_config
from bert_tf.model.variables import encoder_shapes
from bert_tf.text import BaseTokenizer
from bert_tf.types import Array, Shapes

_T = TypeVar("_T")
_WORDS, _POSITIONS = "embeddings/word_embeddings", "embeddings/position_embeddings"


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
    parts = [name for name in student.parts if name not in ("attention", "local_layers")]
    for field in ("num_heads", "position_offset", "activation", *parts):
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


def copy_words(teacher: Checkpoint, student: keras.Model, tokenizer: BaseTokenizer) -> None:
    """Starts the word embeddings of a new model with its teacher's.

    A piece that the teacher's vocabulary does not have gets the mean of the pieces into which the teacher splits it
    (Gee et al., 2022, arXiv:2402.09977). A narrower table gets the principal components of the rows; in a wider one,
    the other columns stay random.

    Args:
        teacher: with its tokenizer.
        student: a new model.
        tokenizer: of the student.
    """
    words = encoder_of(student).embeddings.word_embeddings
    rows = _rows_of(teacher, tokenizer)
    table = words.numpy()
    if rows.shape[1] > table.shape[1]:
        rows = _components(rows, table.shape[1])
    table[: len(rows), : rows.shape[1]] = rows
    words.assign(table)


def _rows_of(teacher: Checkpoint, tokenizer: BaseTokenizer) -> Array:
    """The teacher's word embedding of each piece of a tokenizer: float32 [pieces, width]."""
    table = as_dtype(teacher.tensors[_WORDS], "float32", _WORDS).read()
    theirs = teacher.tokenizer_of_text("the teacher")
    known = dict(zip(tokenizer.special_names, theirs.special_ids, strict=True))
    if type(theirs) is type(tokenizer):  # other kinds spell pieces differently: "##s", "\u2581house"
        known |= {piece: number for number, piece in enumerate(theirs.vocab)}
    rows = np.zeros([tokenizer.vocab_size, table.shape[1]], np.float32)
    vocabulary = tokenizer.vocab
    others = [number for number, piece in enumerate(vocabulary) if piece not in known]
    kept = [number for number, piece in enumerate(vocabulary) if piece in known]
    rows[kept] = table[[known[vocabulary[number]] for number in kept]]
    if others:
        texts = tokenizer.texts
        split = theirs.tokenize([texts[number] for number in others]).to_list()
        rows[others] = [table[ids or [theirs.unk_id]].mean(0) for ids in split]
    return rows


def _components(rows: Array, count: int) -> Array:
    """The first principal components of rows: float64 [rows, count], with a mean of 0.

    Each has the sign that makes its largest loading positive: libraries of linear algebra differ in it.
    """
    centred = rows - rows.mean(0, dtype=np.float64)
    vectors = np.linalg.eigh(centred.T @ centred)[1][:, : -count - 1 : -1]
    vectors *= np.sign(vectors[np.abs(vectors).argmax(0), np.arange(count)])
    return centred @ vectors


def _shapes(config: BertConfig) -> Shapes:
    return encoder_shapes(dataclasses.replace(config, pooler=False))


def _of_student(values: Mapping[str, _T], student: BertConfig, teacher: BertConfig) -> dict[str, _T]:
    """The teacher's values by the paths of the student's variables."""
    layers = enumerate(copied_layers(student.num_blocks, teacher.num_blocks))
    names = [(f"layer_{number}/", f"layer_{index}/") for index, number in layers]
    renamed = {path: value for path, value in values.items() if not path.startswith("layer_")}
    for old, new in names:
        renamed |= {path.replace(old, new, 1): value for path, value in values.items() if path.startswith(old)}
    return renamed
