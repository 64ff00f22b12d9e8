"""Which of the encoder's states another model reads."""

import dataclasses

from bert_tf.errors import ConfigError


@dataclasses.dataclass
class FeatureConfig:
    """Layers of the encoder, made into one vector a token (paper, table 7).

    The paper's are layers (0,), (-2,), (-1,); (-4, -3, -2, -1) summed with weights of one's own, or with "concat"; and
    all layers with weights. The last layer is what heads see: of a model with LayerNorms before its blocks, what is
    behind the one at its end.

    Attributes:
        layers: numbers from 1; 0 for the embeddings; negative ones count from the end.
        combine: "sum", or "concat": side by side in the order of `layers`.
        weights: of a sum, one a layer, not normalised; () for 1 each.
    """

    layers: tuple[int, ...] = (-1,)
    combine: str = "sum"
    weights: tuple[float, ...] = ()

    @property
    def width(self):
        """How many hidden sizes a vector has."""
        return len(self.layers) if self.combine == "concat" else 1

    def check(self, count):
        """Raises ConfigError for what an encoder of `count` layers does not have."""
        if not self.layers:
            raise ConfigError(f"no layers; name some of {-count} to {count}, 0 for the embeddings")
        for layer in self.layers:
            if not -count <= layer <= count:
                raise ConfigError(f"layer {layer}: the model has {-count} to {count}, 0 for the embeddings")
        if self.combine not in ("sum", "concat"):
            raise ConfigError(f"combine {self.combine!r} is unknown; choose sum or concat")
        if self.weights and (self.combine != "sum" or len(self.weights) != len(self.layers)):
            found = f"{len(self.weights)} weights for {len(self.layers)} layers combined by {self.combine}"
            raise ConfigError(f"{found}; a sum has one a layer")
        return self
