"""Features: which hidden states of the encoder another model reads."""

import dataclasses
from typing import Self

from bert_tf.config.values import check_fields, setting
from bert_tf.errors import ConfigError


@dataclasses.dataclass
class FeatureConfig:
    """Combines layers of the encoder into one vector per token (paper, table 7).

    The paper uses layers (0,), (-2,) and (-1,); (-4, -3, -2, -1) as a weighted sum or with "concat"; and all layers as
    a weighted sum. The last layer is what the heads read: in a pre-LayerNorm model, the output of the final LayerNorm.

    Attributes:
        layers: numbers from 1; 0 for the embeddings; negative numbers count from the end.
        combine: "sum", or "concat" (in the order of `layers`).
        weights: for a sum, one per layer, not normalised; () for 1 each.
    """

    layers: tuple[int, ...] = (-1,)
    combine: str = setting("sum", choices=("sum", "concat"))
    weights: tuple[float, ...] = setting((), at_least=-1e6, at_most=1e6)

    @property
    def width(self) -> int:
        """Size of a vector, as a multiple of the hidden size."""
        return len(self.layers) if self.combine == "concat" else 1

    def check(self, count: int) -> Self:
        """Raises ConfigError unless an encoder with `count` layers has these."""
        check_fields(self)
        if not self.layers:
            raise ConfigError(f"no layers; choose from {-count} to {count}, 0 for the embeddings")
        for layer in self.layers:
            if not -count <= layer <= count:
                raise ConfigError(f"layer {layer}: the model has {-count} to {count}, 0 for the embeddings")
        if self.weights and (self.combine != "sum" or len(self.weights) != len(self.layers)):
            found = f"{len(self.weights)} weights for {len(self.layers)} layers combined by {self.combine}"
            raise ConfigError(f"{found}; a sum has one weight per layer")
        return self
