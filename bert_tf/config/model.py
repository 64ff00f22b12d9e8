"""BertConfig: the architecture of an encoder."""

import dataclasses
import math
from typing import Any, Self

from bert_tf.config.values import check_renamed, from_dict
from bert_tf.errors import ConfigError

ACTIVATIONS = ("tanh_gelu", "erf_gelu", "relu")

# name: (layers, hidden size). All have heads of size 64 and a feed-forward layer of four times the hidden size
# (paper, section 3; the four small ones: Turc et al., 2019, arXiv:1908.08962).
_SIZES = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


@dataclasses.dataclass
class BertConfig:
    """The architecture of an encoder; the defaults are BERT-base uncased.

    Attributes:
        vocab_size: rows of the word embedding.
        num_layers, hidden_size, num_heads, intermediate_size: L, H, A and the feed-forward size of the paper.
        max_position_embeddings: longest input in tokens.
        position_offset: row of the position embedding that the first token uses: 0 in BERT, 2 in RoBERTa.
        type_vocab_size: number of segment types; 0 for none. With 1, every token has that type.
        pooler: whether there is a pooled output; checkpoints of masked language models, taggers and the like lack it.
        dropout: rate for embeddings, sublayer outputs and the classifier's input.
        attention_dropout: rate for attention probabilities.
        activation: "tanh_gelu" (google-research/bert), "erf_gelu" (most Hugging Face checkpoints) or "relu".
        attention: "bidirectional" (BERT: each token attends to its whole row) or "causal" (to itself and the tokens
            before it, as in the ablation of section 5.1; the pooled output is then that of the last token, which
            attends to all).
        norm: "post" (BERT) or "pre" (LayerNorm before each sublayer and once at the end).
        layer_norm_epsilon: added to the variance.
        initializer_range: standard deviation of the truncated normal.
    """

    vocab_size: int = 30522
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    position_offset: int = 0
    type_vocab_size: int = 2
    pooler: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = "tanh_gelu"
    attention: str = "bidirectional"
    norm: str = "post"
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02

    @classmethod
    def from_name(cls, name: str, **overrides: Any) -> Self:
        """One of the six published sizes: tiny, mini, small, medium, base, large.

        Args:
            name: of the size.
            **overrides: fields with other values.
        """
        if name not in _SIZES:
            raise ConfigError(f"model size {name!r} is unknown; choose one of {', '.join(_SIZES)}")
        layers, hidden = _SIZES[name]
        shape = {
            "num_layers": layers,
            "hidden_size": hidden,
            "num_heads": hidden // 64,
            "intermediate_size": 4 * hidden,
        }
        return from_dict(cls, shape | overrides)

    def check(self) -> Self:
        """Raises ConfigError for invalid values and combinations."""
        for attribute in dataclasses.fields(self):
            value, kind = getattr(self, attribute.name), attribute.type
            if type(value) not in ((int, float) if kind is float else (kind,)):
                expected = kind.__name__ if isinstance(kind, type) else kind
                raise ConfigError(f"model.{attribute.name} is {value!r}; expected {expected}")
        for field in (
            "vocab_size",
            "num_layers",
            "hidden_size",
            "num_heads",
            "intermediate_size",
            "max_position_embeddings",
        ):
            if getattr(self, field) < 1:
                raise ConfigError(f"model.{field} is {getattr(self, field)}; it must be at least 1")
        for field in ("position_offset", "type_vocab_size"):
            if getattr(self, field) < 0:
                raise ConfigError(f"model.{field} is {getattr(self, field)}; it must not be negative")
        for field in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, field) < 1:
                raise ConfigError(f"model.{field} is {getattr(self, field)}; it must be in [0, 1)")
        for field in ("layer_norm_epsilon", "initializer_range"):
            if not 0 < getattr(self, field) < math.inf:
                raise ConfigError(f"model.{field} is {getattr(self, field)}; it must be above 0")
        if self.hidden_size % self.num_heads:
            raise ConfigError(f"model.hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"model.activation {self.activation!r} is unknown; choose one of {', '.join(ACTIVATIONS)}"
            )
        check_renamed(self, "attention")
        if self.attention not in ("bidirectional", "causal"):
            raise ConfigError(f"model.attention {self.attention!r} is unknown; choose 'bidirectional' or 'causal'")
        if self.norm not in ("post", "pre"):
            raise ConfigError(f"model.norm {self.norm!r} is unknown; choose 'post' or 'pre'")
        return self
