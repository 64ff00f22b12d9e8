"""Type aliases shared by several modules."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:  # config, errors and flags are imported without TensorFlow
    import tensorflow as tf

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensors: TypeAlias = "dict[str, tf.Tensor | tf.RaggedTensor]"  # features, outputs or answers by name
Json: TypeAlias = dict[str, Any]  # a JSON object
Metrics: TypeAlias = dict[str, float]
# Writes predictions, given a path and (example, prediction) pairs; may return a line for the user.
Writer: TypeAlias = "Callable[[str, Iterable[tuple[Any, Json]]], str | None]"
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
TfFunction: TypeAlias = "tf.types.experimental.PolymorphicFunction"  # what tf.function returns
StrPath: TypeAlias = str | os.PathLike[str]
Strings: TypeAlias = "tf.Tensor | Sequence[str] | str"  # texts as the tokenizer takes them
TokenIds: TypeAlias = "tf.Tensor | tf.RaggedTensor | Sequence[Sequence[int]]"  # ids [batch, length] as it takes them
ConcreteFunction: TypeAlias = "tf.types.experimental.ConcreteFunction"  # what get_concrete_function returns
# ids int32 [pieces], row_splits int64 [batch + 1], starts and ends int64 [pieces] in bytes of their texts.
WordPieces: TypeAlias = "tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]"
