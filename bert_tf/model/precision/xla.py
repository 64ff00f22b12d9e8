"""Encoders that XLA compiles in an export, a program for each of a few numbers of rows and lengths: for GPUs, where
single operations take several times as long.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.model import fused
from bert_tf.model.long_rows import UNCUT
from bert_tf.model.mode import Inference
from bert_tf.types import Tensors

# Batches are filled up to one of these numbers of rows, and to one of these lengths or the model's longest.
_ROWS = (1, 8, 32, 128, 512, 2048, 8192, 16384)
_LENGTHS = (32, 64, 128, 256, 512)
_COMPILED_ROWS = 32  # of the largest program that a server compiles before it answers


class Programs(NamedTuple):
    """The sizes of the programs that a server compiles before it answers."""

    rows: list[int]
    lengths: list[int]


class XlaDispatch:
    """A `Dispatch` of `model.mode` to programs of XLA, of batches that are filled up.

    Args:
        longest: tokens that the model takes.
    """

    def __init__(self, longest: int) -> None:
        if longest > UNCUT:
            raise ConfigError(
                f"optimize is 'xla', which is for models of up to {UNCUT} tokens, and this one has {longest}; use "
                "'bfloat16'"
            )
        self._lengths = [*(length for length in _LENGTHS if length < longest), longest]
        self._functions: dict[Inference, fused.Compiled] = {}

    @property
    def programs(self) -> Programs:
        """Those that a server compiles before it answers."""
        return Programs([rows for rows in _ROWS if rows <= _COMPILED_ROWS], self._lengths)

    def __call__(self, inference: Inference, features: Tensors) -> Any:
        inputs = {tensor.name: features[tensor.name] for tensor in inference.model.inputs}
        if inputs["input_word_ids"].shape.rank != 2:
            raise ConfigError(
                "optimize is 'xla', which is for models of one text or pair, and this one takes several; use 'bfloat16'"
            )
        rows, length = tf.unstack(tf.shape(inputs["input_word_ids"]))
        more_rows, more_length = _filled(rows, _ROWS) - rows, _filled(length, self._lengths) - length

        def filled(name: str, value: tf.Tensor) -> tf.Tensor:
            # The encoder's inputs have a column for each token.
            columns = more_length if name.startswith("input_") else 0
            return tf.pad(value, [[0, more_rows], [0, columns], *[[0, 0]] * (value.shape.rank - 2)][: value.shape.rank])

        if inference not in self._functions:
            self._functions[inference] = fused.Compiled(inference._replace(skip_padding=False).__call__)
        outputs = self._functions[inference].fused({name: filled(name, value) for name, value in inputs.items()})
        return tf.nest.map_structure(lambda output: _cut(output, rows, length), outputs)


def _filled(number: tf.Tensor, sizes: tuple[int, ...] | list[int]) -> tf.Tensor:
    """The smallest size that is not below the number, int32; the number itself above all of them."""
    index = tf.searchsorted(tf.constant(sizes), [number])[0]
    return tf.maximum(tf.gather(tf.constant(sizes), tf.minimum(index, len(sizes) - 1)), number)


def _cut(output: tf.Tensor, rows: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Without the rows and tokens that were added. Dimensions of unknown size are those of some or all tokens."""
    return output[(slice(rows), *(slice(length) if size is None else slice(None) for size in output.shape[1:]))]
