"""Structured pruning: encoders with fewer layers, attention heads and feed-forward columns, and so smaller matrices."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.config.model import has_bias
from bert_tf.model.variables import encoder_shapes
from bert_tf.types import Array

_LAYER = "layer_"  # start of the paths of the variables of a layer


class Kept(NamedTuple):
    """The parts of a layer that remain.

    Attributes:
        layer: index of the layer, from 0.
        heads: indices of its attention heads, ascending; at least one.
        columns: indices of its feed-forward columns, ascending; at least one.
    """

    layer: int
    heads: tuple[int, ...]
    columns: tuple[int, ...]


def all_parts(config: BertConfig) -> list[Kept]:
    """All layers with all of their heads and columns."""
    sizes = zip(config.layer_heads, config.layer_intermediates, strict=True)
    return [Kept(index, tuple(range(heads)), tuple(range(inner))) for index, (heads, inner) in enumerate(sizes)]


def layer_weights(config: BertConfig) -> int:
    """Number of weights of all transformer layers: kernels, biases and LayerNorms."""
    return sum(math.prod(shape) for path, shape in encoder_shapes(config).items() if path.startswith(_LAYER))


def part_weights(config: BertConfig) -> tuple[int, int]:
    """Number of weights of a head, and of a feed-forward column."""
    hidden, matrices = config.hidden_size, config.feed_forward_matrices
    head = config.head_size * (4 * hidden + (3 if has_bias(config, "attention/qkv") else 0))
    return head, matrices * hidden + (matrices - 1 if has_bias(config, "intermediate") else 0)


def pruned_config(config: BertConfig, kept: Sequence[Kept]) -> BertConfig:
    """The architecture with these parts only; of equal sizes in all layers, it is one without sizes per layer."""
    heads, inner = (tuple(map(len, sizes)) for sizes in zip(*((one.heads, one.columns) for one in kept), strict=True))
    alike = len(set(inner)) == 1
    return dataclasses.replace(
        config,
        num_layers=len(kept),
        heads_per_layer=() if set(heads) == {config.num_heads} else heads,
        intermediate_size=inner[0] if alike else config.intermediate_size,
        intermediate_sizes=() if alike else inner,
        local_layers=tuple(index for index, one in enumerate(kept) if one.layer in config.local_layers),
        first_norm=config.first_norm or kept[0].layer > 0,
    ).check()


def pruned_weights(config: BertConfig, weights: Mapping[str, Array], kept: Sequence[Kept]) -> dict[str, Array]:
    """The weights of the model with these parts only.

    Args:
        config: of the whole encoder, whose layers do not share weights.
        weights: by variable path, those of heads on the encoder included.
        kept: the layers that remain, in their order.
    """
    made = {path: values for path, values in weights.items() if not path.startswith(_LAYER)}
    for index, one in enumerate(kept):
        before = f"{_LAYER}{one.layer}/"
        size, width = config.head_size, config.layer_heads[one.layer] * config.head_size
        attended = np.concatenate([np.arange(head * size, (head + 1) * size) for head in one.heads])
        columns, inner = np.array(one.columns), config.layer_intermediates[one.layer]
        halves = np.concatenate([part * inner + columns for part in range(config.feed_forward_matrices - 1)])
        selected = {
            "attention/qkv": (-1, np.concatenate([part * width + attended for part in range(3)])),
            "attention/output/kernel": (0, attended),
            "intermediate": (-1, halves),
            "output/kernel": (0, columns),
        }
        for path, values in weights.items():
            if path.startswith(before):
                name = path.removeprefix(before)
                axis, indices = selected.get(name) or selected.get(name.rpartition("/")[0]) or (0, None)
                made[f"{_LAYER}{index}/{name}"] = values if indices is None else np.take(values, indices, axis)
    return made
