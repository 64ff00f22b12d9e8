"""Ranges of the inputs of an encoder's int8 products: what calibration finds, and variables that keep it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from bert_tf.model.layers import Dense, TransformerBlock


class Largest(NamedTuple):
    """Largest absolute values of the inputs of a block's products, by channel; of `output` the largest values.

    Each is float32 [inputs]: an array, a tensor or a variable.
    """

    qkv: Any
    attention_output: Any
    intermediate: Any
    output: Any


def products(block: TransformerBlock) -> dict[str, Dense]:
    """The dense layers of a block, by their names in `Largest`."""
    attention = block.attention
    return dict(zip(Largest._fields, (attention.qkv, attention.output_projection, block.intermediate,
                                      block.output_projection), strict=True))  # fmt: skip


class Ranges:
    """The ranges with which an encoder was fine-tuned for int8; exports use them instead of calibrating.

    Attributes:
        variables: `Largest` of keras.Variables for each block; 1 until they are assigned.
        by_path: the same by names like "layer_0/attention/qkv/range", as `variables.range_shapes` has them.
    """

    def __init__(self, blocks: Sequence[TransformerBlock]) -> None:
        self.by_path: dict[str, keras.Variable] = {}
        self.variables: list[Largest] = []
        for block in blocks:
            own = {}
            for name, layer in products(block).items():
                own[name] = keras.Variable("ones", (layer.kernel.shape[0],), "float32", trainable=False, name="range")
                self.by_path[f"{layer.kernel.path.removesuffix('kernel')}range"] = own[name]
            self.variables.append(Largest(**own))

    @property
    def values(self) -> list[Largest]:
        """The present ranges of each block, as arrays."""
        return [Largest(*(variable.numpy() for variable in own)) for own in self.variables]

    def assign(self, found: Sequence[Largest]) -> None:
        """Sets the ranges to those of `int8.calibrate`."""
        for own, values in zip(self.variables, found, strict=True):
            for variable, value in zip(own, values, strict=True):
                variable.assign(value)
