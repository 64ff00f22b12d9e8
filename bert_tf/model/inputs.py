"""Checks of the inputs of models: what Keras would cut or broadcast, and what has no embedding, is named instead."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.config.values import shown
from bert_tf.errors import DataError

_OF_ENCODER = ("input_word_ids", "input_mask", "input_type_ids")  # of one shape
_MADE_BY = "as the tokenizer of bert_tf.load(...) returns them"


def checked_inputs(inputs: Any, names: Sequence[str], config: BertConfig, packed: bool) -> dict[str, Any]:
    """The inputs of a model from a dict that may have others; DataError for those that it cannot compute with.

    Symbolic tensors of Keras and, in graphs, values and unknown shapes are not looked at.

    Args:
        inputs: by name, int [batch, length]; other numbers if they are whole, and bool.
        names: of the inputs.
        config: of the encoder.
        packed: whether rows contain several sequences, and the mask their numbers.
    """
    if not isinstance(inputs, Mapping):
        raise DataError(f"the inputs are {shown(inputs)}; expected a dict of {', '.join(names)}")
    if missing := [name for name in names if name not in inputs]:
        raise DataError(f"the inputs lack {', '.join(missing)}; expected {', '.join(names)}")
    found = {name: inputs[name] for name in names}
    if any(keras.backend.is_keras_tensor(value) for value in found.values()):
        return found
    if not tf.executing_eagerly():
        _check_shapes({name: getattr(value, "shape", None) for name, value in found.items()})
        return found
    values = {name: _numbers(name, value) for name, value in found.items()}
    _check_shapes({name: value.shape for name, value in values.items()})
    length, positions = values["input_word_ids"].shape[1], config.max_position_embeddings
    if length > positions and not packed:  # where positions count from the start of each sequence
        raise DataError(
            f"input_word_ids: {length} tokens, {positions} positions; cut the texts, with "
            f"tokenizer.encode(texts, max_length={positions})"
        )
    limits = {"input_word_ids": config.vocab_size, "input_mask": length + 1 if packed else 2}
    limits |= {"input_type_ids": config.type_vocab_size}
    for name, value in values.items():
        size = limits.get(name, length)  # others are positions
        wrong = value[(value < 0) | (value >= size)]
        if wrong.size and size > 1:  # if there is one type, it is not read
            hint = f", {_MADE_BY}" if name in _OF_ENCODER else ""
            raise DataError(f"{name}: {wrong[0]}; expected 0 to {size - 1}{hint}")
    return {name: value if isinstance(value, tf.Tensor) else values[name] for name, value in found.items()}


def _numbers(name: str, value: Any) -> Any:
    """An array of the values, which are whole numbers."""
    try:
        array = np.asarray(value)
        is_float = array.dtype.kind == "f"
        fits = array.dtype.kind in "biu" or (is_float and np.isfinite(array).all() and (array == np.floor(array)).all())
    except Exception:  # lists of different lengths, or whatever an object raises that is no array
        fits = False
    if not fits:
        raise DataError(f"{name} is {shown(value)}; expected whole numbers [batch, length], {_MADE_BY}")
    return array


def _check_shapes(shapes: Mapping[str, Any]) -> None:
    """Raises DataError unless all are [batch, length], of one batch, and those of the encoder of one length.

    Only what is known of them counts.
    """
    first = tf.TensorShape(shapes["input_word_ids"])
    for name, shape in shapes.items():
        known, is_same = tf.TensorShape(shape), name in _OF_ENCODER
        if not known.is_compatible_with([None, None]):
            raise DataError(f"{name} has the shape {shape}; expected [batch, length]")
        if not (known if is_same else known[:1]).is_compatible_with(first if is_same else first[:1]):
            raise DataError(f"{name} has the shape {shape}; expected that of input_word_ids, {first}")
