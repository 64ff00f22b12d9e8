"""Values of other libraries (NumPy, pandas, tf.data) as plain Python, and checked arguments."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.config.paths import hint_at_field
from bert_tf.config.values import misfit, shown, without_numpy
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import cause
from bert_tf.inputs.datasets.groups import LABELS
from bert_tf.types import Json

# Arguments of Keras' `fit` that are something else here.
_OF_KERAS = {
    "validation_split": "split the examples and give validation_data=(x, y)",
    "validation_batch_size": "evaluation takes batch_size",
    "validation_steps": "all of validation_data is evaluated",
    "steps_per_epoch": "an epoch is one pass over x; steps is the number of updates in all",
    "initial_epoch": "with directory, the same call goes on where it was interrupted",
    "shuffle": "examples are shuffled in every epoch",
    "class_weight": "give balanced=True, or labels and class_weights, to from_pretrained",
    "sample_weight": "give balanced=True, or labels and class_weights, to from_pretrained",
}
# Lists, NumPy arrays, pandas columns or data frames, tf.data datasets, or any other iterable.
Values: TypeAlias = Any


def listed(values: Values, name: str, element_rank: int = 0) -> list[Any]:
    """Values as a list of Python values; rows of a matrix and of a data frame become lists.

    Args:
        name: for errors.
        element_rank: of the tensors in an unbatched tf.data.Dataset.
    """
    if isinstance(values, set | frozenset):
        raise ConfigError(f"{name} is {shown(values)}, and a set has no order; expected a list")
    try:
        iter(values)
        is_list = not isinstance(values, str | bytes | Mapping)
    except (TypeError, NotImplementedError):  # also of arrays and tensors without dimensions, and of Keras' inputs
        is_list = False
    if not is_list:
        raise ConfigError(f"{name} is {type(values).__name__} {shown(values)}; expected a list")
    if isinstance(values, tf.data.Dataset):
        return _of_dataset(values, name, element_rank)
    try:
        return [_plain(value) for value in _unpacked(values)]
    except RecursionError:
        raise ConfigError(f"{name} has lists in lists without end; expected a list") from None


def _of_dataset(values: tf.data.Dataset, name: str, element_rank: int) -> list[Any]:
    if values.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ConfigError(f"{name} is an endless tf.data.Dataset; leave repeat() out")
    ranks = [getattr(getattr(spec, "shape", None), "rank", None) for spec in tf.nest.flatten(values.element_spec)]
    if any(rank is None for rank in ranks):
        raise ConfigError(
            f"{name} is a tf.data.Dataset of {values.element_spec}; expected tensors of known shape, such as "
            "tf.TensorSpec((), tf.string)"
        )
    batched = all(rank > element_rank for rank in ranks if rank is not None)
    try:
        return [plain(value) for value in (values.unbatch() if batched else values).as_numpy_iterator()]
    except tf.errors.OpError as error:
        raise DataError(f"{name}: the tf.data.Dataset cannot be read: {cause(error)}") from None


def _unpacked(values: Any) -> Any:
    """The values that another library's container holds, as lists or scalars; anything else unchanged."""
    if isinstance(values, tf.RaggedTensor):
        return values.to_list()
    if hasattr(values, "to_numpy"):  # pandas
        values = values.to_numpy()
    if isinstance(values, tf.Tensor) and hasattr(values, "numpy"):  # not in graphs
        values = values.numpy()
    return without_numpy(values)


def plain(value: Any) -> Any:
    """A value of another library, or a container of such values, as plain Python; one without end unchanged."""
    try:
        return _plain(value)
    except RecursionError:
        return value


def _plain(value: Any) -> Any:
    value = _unpacked(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value  # no text
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(_plain, value))
    return value


def column_names(labels: Values) -> tuple[str, ...]:
    """Names of the columns of a matrix (NumPy) or a data frame (pandas); () for anything else."""
    if hasattr(labels, "columns"):
        return tuple(map(str, labels.columns))
    matrix = isinstance(labels, np.ndarray) and labels.ndim == 2
    return tuple(map(str, range(labels.shape[1]))) if matrix else ()


def pair_of(validation_data: Any) -> tuple[Values, Values]:
    if not isinstance(validation_data, tuple | list) or len(validation_data) != 2:
        raise ConfigError("validation_data is no pair; expected (x, y) or a tf.data.Dataset")
    return validation_data[0], validation_data[1]


def texts_of(values: Values) -> list[str]:
    texts = listed(values, "texts")
    if wrong := misfit(texts, list[str], "texts", in_json=True):
        raise DataError(wrong)
    return texts


def group_of(value: Any, location: str, least: int = 1) -> Json:
    """An input of one or several texts as an object of JSON lines, as `datasets.groups` reads it, which it may be."""
    if isinstance(value, Mapping):
        return dict(value)
    texts = list(value) if isinstance(value, tuple | list) else [value]
    if len(texts) < least or not all(isinstance(text, str) for text in texts):
        expected = "a text, or a tuple of texts" if least == 1 else "a tuple of a query and texts"
        raise DataError(f"{location} is {shown(value)}; expected {expected}")
    return {"texts": texts}


def group_label(label: Any, line: Json, location: str) -> Json:
    """The field of JSON lines for the label of such an input: a number, a class, or a list of numbers."""
    if given := next((name for name in LABELS if name in line), ""):
        raise DataError(f"{location}: the input has {given!r} already; leave y out, or the field")
    return {"scores" if isinstance(label, list | tuple) else "label": label}


def is_missing(label: Any) -> bool:
    """Whether a label is None or, as pandas marks a missing value, NaN, NA or NaT."""
    if isinstance(label, float | np.datetime64 | np.timedelta64):  # the latter from NaT
        return bool(label != label)
    return label is None or type(label).__name__ == "NAType"


def integer(label: Any) -> Any:
    """True and False as 1 and 0; anything else unchanged."""
    return int(label) if isinstance(label, bool) else label


def fields_of(value: Any, names: Sequence[str], location: str) -> list[Any]:
    """The values of a dict with these keys, or of a tuple of this length."""
    if isinstance(value, Mapping) and set(names) <= value.keys():
        return [value[name] for name in names]
    if not isinstance(value, list | tuple) or len(value) != len(names):
        raise DataError(
            f"{location} is {shown(value)}; expected {', '.join(names)}: a tuple, or a dict with these keys"
        )
    return list(value)


def train_settings(values: Json) -> TrainConfig:
    """The settings of a run, from the keyword arguments of `fit`."""
    for name in values.keys() - {field.name for field in dataclasses.fields(TrainConfig)}:
        raise ConfigError(f"fit has no argument {name!r}; {_OF_KERAS.get(name) or hint_at_field(TrainConfig, name)}")
    return TrainConfig(**{name: plain(value) for name, value in values.items()}).check()
