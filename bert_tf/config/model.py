"""BertConfig: the architecture of an encoder; FeatureConfig: which of its hidden states another model reads."""

import dataclasses
from typing import Any, Self

from bert_tf.config.values import check_fields, checked_arguments, from_dict, setting, shown
from bert_tf.errors import ConfigError
from bert_tf.types import Json


def _shape(num_layers: int, hidden_size: int, **fields: Any) -> Json:
    """Fields of a model with heads of size 64 and a feed-forward layer of four times the hidden size."""
    sizes = {"num_layers": num_layers, "hidden_size": hidden_size}
    return sizes | {"num_heads": hidden_size // 64, "intermediate_size": 4 * hidden_size} | fields


_ROBERTA: Json = {
    "vocab_size": 50265, "position_offset": 2, "type_vocab_size": 1, "activation": "erf_gelu",
    "layer_norm_epsilon": 1e-5,
}  # fmt: skip
_XLM_R: Json = _ROBERTA | {"vocab_size": 250002}
_ALBERT: Json = {
    "vocab_size": 30000, "embedding_size": 128, "shared_layers": True, "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
_ELECTRA: Json = {"activation": "erf_gelu", "pooler_activation": "erf_gelu"}


def _modern(num_layers: int, hidden_size: int, intermediate_size: int, vocab_size: int, **fields: Any) -> Json:
    """Fields of a ModernBERT: every third layer attends to the whole row, the others to 64 tokens on both sides."""
    return (
        _shape(
            num_layers,
            hidden_size,
            intermediate_size=intermediate_size,
            vocab_size=vocab_size,
            max_position_embeddings=8192,
            type_vocab_size=0,
            dropout=0.0,
            attention_dropout=0.0,
            activation="erf_gelu",
            pooler_activation="erf_gelu",
            head_transform=True,
            norm="pre",
            first_norm=False,
            norm_offset=False,
            biases=False,
            layer_norm_epsilon=1e-5,
            feed_forward="gated",
            positions="rotary",
            rotary_base=160_000.0,
            local_layers=tuple(layer for layer in range(num_layers) if layer % 3),
        )
        | fields
    )


# Published models and the fields in which they differ from the defaults.
_MODELS = {
    # Devlin et al., 2019, section 3; the four small ones: Turc et al., 2019, arXiv:1908.08962.
    "tiny": _shape(2, 128),
    "mini": _shape(4, 256),
    "small": _shape(4, 512),
    "medium": _shape(8, 512),
    "base": _shape(12, 768),
    "large": _shape(24, 1024),
    # Liu et al., 2019, arXiv:1907.11692.
    "roberta_base": _shape(12, 768, **_ROBERTA),
    "roberta_large": _shape(24, 1024, **_ROBERTA),
    # Conneau et al., 2019, arXiv:1911.02116.
    "xlm_roberta_base": _shape(12, 768, **_XLM_R),
    "xlm_roberta_large": _shape(24, 1024, **_XLM_R),
    # Sanh et al., 2019, arXiv:1910.01108.
    "distilbert": _shape(6, 768, type_vocab_size=0, activation="erf_gelu", pooler_activation="relu"),
    # Lan et al., 2019, arXiv:1909.11942, table 1; without dropout, as published in version 2.
    "albert_base": _shape(12, 768, **_ALBERT),
    "albert_large": _shape(24, 1024, **_ALBERT),
    "albert_xlarge": _shape(24, 2048, **_ALBERT, num_heads=16),
    "albert_xxlarge": _shape(12, 4096, **_ALBERT),
    # Clark et al., 2020, arXiv:2003.10555, table 6; the discriminators.
    "electra_small": _shape(12, 256, **_ELECTRA, embedding_size=128),
    "electra_base": _shape(12, 768, **_ELECTRA),
    "electra_large": _shape(24, 1024, **_ELECTRA),
    # Warner et al., 2024, arXiv:2412.13663, table 4; Marone et al., 2025, arXiv:2509.06888.
    "modernbert_base": _modern(22, 768, 1152, 50368),
    "modernbert_large": _modern(28, 1024, 2624, 50368),
    "mmbert_small": _modern(22, 384, 1152, 256000, local_rotary_base=160_000.0),
    "mmbert_base": _modern(22, 768, 1152, 256000, local_rotary_base=160_000.0),
}
# The dense layers of a block, by their paths.
DENSE_LAYERS = ("attention/qkv", "attention/output", "intermediate", "output")
# Fields that change how a block is trained, not what it computes.
_OF_TRAINING = {"attention_output_dropout", "initializer_by_depth"}
# 300 times BERT-large, and 400 GB in float32: each field may be plausible, but not all of them together.
_MOST_WEIGHTS = 100_000_000_000


@dataclasses.dataclass
class BertConfig:
    """The architecture of an encoder; the defaults are BERT-base uncased.

    Attributes:
        vocab_size: rows of the word embedding.
        embedding_size: columns of the word, position and type embeddings and of their LayerNorm, whose output a dense
            layer then projects to hidden_size (ALBERT, even where both sizes are equal; small ELECTRA models); 0 for
            hidden_size without a projection (BERT).
        num_layers, hidden_size, num_heads, intermediate_size: L, H, A and the feed-forward size of the paper.
        heads_per_layer: number of heads of each layer, where some were pruned; () for num_heads in each. A head has
            hidden_size / num_heads columns in any case.
        intermediate_sizes: feed-forward size of each layer, where columns were pruned; () for intermediate_size in
            each.
        shared_layers: whether all layers have the same weights, those of a single block (ALBERT).
        max_position_embeddings: longest input in tokens.
        position_offset: row of the position embedding that the first token uses: 0 in BERT, 2 in RoBERTa.
        type_vocab_size: number of segment types; 0 for none. With 1, every token has that type.
        pooler: whether there is a pooled output; checkpoints of masked language models, taggers and the like lack it.
        pooler_activation: "tanh" (BERT, RoBERTa, ALBERT), "relu" (DistilBERT) or "erf_gelu" (ELECTRA, ModernBERT).
        dropout: rate for embeddings, sublayer outputs and the classifier's input.
        attention_dropout: rate for attention probabilities.
        attention_output_dropout: rate for the output of the attention; None for `dropout`.
        activation: "tanh_gelu" (google-research/bert), "erf_gelu" (most Hugging Face checkpoints), "relu" or "silu"
            (gated: SwiGLU).
        attention: "bidirectional" (BERT: each token attends to its whole row) or "causal" (to itself and the tokens
            before it, as in the ablation of section 5.1; the pooled output is then that of the last token, which
            attends to all).
        norm: "post" (BERT) or "pre" (LayerNorm before each sublayer and once at the end).
        layer_norm_epsilon: added to the variance.
        initializer_range: standard deviation of the truncated normal.
        initializer_by_depth: whether the last dense layers of attention and feed-forward network, whose outputs are
            added up over all layers, start with initializer_range / sqrt(2 * num_layers) (ModernBERT; Radford et al.,
            2019, section 2.3).
        positions: "table" (BERT: learned embeddings, added to those of the words) or "rotary" (queries and keys are
            rotated by their positions: Su et al., 2021, arXiv:2104.09864).
        rotary_base: base of the wavelengths of rotary positions, in layers that attend to the whole row.
        local_rotary_base: the same, in local_layers.
        local_layers: numbers, from 0, of the layers in which a token attends only to tokens near it.
        local_distance: how many positions before and after a token these layers reach.
        feed_forward: "plain" (BERT) or "gated": the first of two projections, after the activation, is multiplied by
            the second (Shazeer, 2020, arXiv:2002.05202). intermediate_size is that of each.
        biases: whether dense layers have biases, the last ones of heads aside.
        unbiased_layers: with biases, the dense layers of a block that have none nevertheless: "intermediate" in GTE,
            whose gate has none, and all four in nomic_bert, where only heads have biases.
        norm_offset: whether LayerNorms add a vector after they scale by one.
        first_norm: with norm "pre", whether the attention of the first layer has a LayerNorm before it; False leaves it
            to the one of the embeddings.
        head_transform: whether the pooler ends with a LayerNorm, and taggers and span heads begin with a layer like
            the pooler, as the masked language model does (ModernBERT).
        pooling: what the pooler reads: the "first" position (BERT) or the "mean" of all tokens.

    Examples:
        >>> bert_tf.BertConfig().num_layers
        12
        >>> config = bert_tf.BertConfig.from_name("tiny", vocab_size=8000)
        >>> config.num_layers, config.hidden_size, config.vocab_size
        (2, 128, 8000)
    """

    # The upper limits are far beyond any published model: a mistyped number would build for hours or fill the memory.
    vocab_size: int = setting(30522, at_least=1, at_most=10_000_000)
    num_layers: int = setting(12, at_least=1, at_most=1000)
    hidden_size: int = setting(768, at_least=1, at_most=100_000)
    num_heads: int = setting(12, at_least=1, at_most=10_000)
    intermediate_size: int = setting(3072, at_least=1, at_most=1_000_000)
    max_position_embeddings: int = setting(512, at_least=1, at_most=1_000_000)
    position_offset: int = setting(0, at_least=0, at_most=1_000_000)
    type_vocab_size: int = setting(2, at_least=0, at_most=100_000)
    pooler: bool = True
    dropout: float = setting(0.1, at_least=0, below=1)
    attention_dropout: float = setting(0.1, at_least=0, below=1)
    activation: str = setting("tanh_gelu", choices=("tanh_gelu", "erf_gelu", "relu", "silu"))
    attention: str = setting("bidirectional", choices=("bidirectional", "causal"))
    norm: str = setting("post", choices=("post", "pre"))
    layer_norm_epsilon: float = setting(1e-12, at_least=1e-30, at_most=1)  # still above 0 in float32
    initializer_range: float = setting(0.02, above=0, at_most=100)
    embedding_size: int = setting(0, at_least=0, at_most=100_000)
    shared_layers: bool = False
    pooler_activation: str = setting("tanh", choices=("tanh", "relu", "erf_gelu"))
    heads_per_layer: tuple[int, ...] = setting((), at_least=1, at_most=10_000)
    intermediate_sizes: tuple[int, ...] = setting((), at_least=1, at_most=1_000_000)
    positions: str = setting("table", choices=("table", "rotary"), sparse=True)
    rotary_base: float = setting(10_000.0, above=1, at_most=1e12, sparse=True)
    local_rotary_base: float = setting(10_000.0, above=1, at_most=1e12, sparse=True)
    local_layers: tuple[int, ...] = setting((), at_least=0, at_most=999, sparse=True)
    local_distance: int = setting(64, at_least=1, at_most=1_000_000, sparse=True)
    feed_forward: str = setting("plain", choices=("plain", "gated"), sparse=True)
    biases: bool = setting(True, sparse=True)
    unbiased_layers: tuple[str, ...] = setting((), choices=DENSE_LAYERS, sparse=True)
    norm_offset: bool = setting(True, sparse=True)
    first_norm: bool = setting(True, sparse=True)
    head_transform: bool = setting(False, sparse=True)
    pooling: str = setting("first", choices=("first", "mean"), sparse=True)
    attention_output_dropout: float | None = setting(None, at_least=0, below=1, sparse=True)
    initializer_by_depth: bool = setting(False, sparse=True)

    @classmethod
    @checked_arguments
    def from_name(cls, name: str, **overrides: Any) -> Self:
        """The architecture of a published model.

        Args:
            name: tiny, mini, small, medium, base or large (BERT); roberta_base or roberta_large; xlm_roberta_base or
                xlm_roberta_large; distilbert; albert_base, albert_large, albert_xlarge or albert_xxlarge;
                electra_small, electra_base or electra_large; modernbert_base or modernbert_large; mmbert_small or
                mmbert_base.
            **overrides: fields with other values.
        """
        if name not in _MODELS:
            raise ConfigError(f"model {shown(name)} is unknown; choose one of {', '.join(_MODELS)}")
        return from_dict(cls, _MODELS[name] | overrides)

    @property
    def embedding_width(self) -> int:
        """Columns of the embeddings, and the size of the states that predict masked words by the word embedding."""
        return self.embedding_size or self.hidden_size

    @property
    def num_blocks(self) -> int:
        """Number of layers with weights of their own."""
        return 1 if self.shared_layers else self.num_layers

    @property
    def head_size(self) -> int:
        """Columns of query, key and value of a head."""
        return self.hidden_size // self.num_heads

    @property
    def layer_heads(self) -> tuple[int, ...]:
        """Number of heads of each layer."""
        return tuple(self.heads_per_layer) or (self.num_heads,) * self.num_layers

    @property
    def layer_intermediates(self) -> tuple[int, ...]:
        """Feed-forward size of each layer."""
        return tuple(self.intermediate_sizes) or (self.intermediate_size,) * self.num_layers

    @property
    def feed_forward_matrices(self) -> int:
        """Number of matrices [hidden_size, intermediate_size] of a layer."""
        return 3 if self.feed_forward == "gated" else 2

    @property
    def position_rows(self) -> int:
        """Rows of the position embedding; 0 if there is none."""
        return self.position_offset + self.max_position_embeddings if self.positions == "table" else 0

    @property
    def parts(self) -> Json:
        """The fields that make a block unlike BERT's, except for sizes, with their values."""
        sparse = [field.name for field in dataclasses.fields(self) if field.metadata.get("sparse")]
        return {name: getattr(self, name) for name in ("attention", "norm", *sparse) if name not in _OF_TRAINING}

    @property
    def sizes(self) -> str:
        """The fields that decide on the number of weights, for errors."""
        names = ("hidden_size", "num_layers", "intermediate_size", "vocab_size", "max_position_embeddings")
        chosen = [*names, "embedding_size"] if self.embedding_size else names
        *first, last = (f"{name} {getattr(self, name)}" for name in chosen)
        return f"model.{', '.join(first)} or {last}"

    def check(self) -> Self:
        """Raises ConfigError for invalid values and combinations."""
        check_fields(self, "model")
        if self.hidden_size % self.num_heads:
            raise ConfigError(f"model.hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        for name in ("heads_per_layer", "intermediate_sizes"):
            count = len(getattr(self, name))
            if count and self.shared_layers:
                raise ConfigError(
                    f"model.{name} is set, but with shared_layers all layers have the same size; leave it out"
                )
            if count not in (0, self.num_layers):
                raise ConfigError(
                    f"model.{name} has {count} entries for num_layers {self.num_layers}; expected one each"
                )
        if max(self.layer_heads) > self.num_heads:
            raise ConfigError(
                f"model.heads_per_layer has {max(self.layer_heads)}; expected up to the {self.num_heads} of num_heads"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ConfigError(
                f"model.positions is 'rotary', and hidden_size / num_heads is {self.head_size}; expected an even number"
            )
        if self.local_layers and self.shared_layers:
            raise ConfigError("model.local_layers is set, but with shared_layers all layers are alike; leave it out")
        if list(self.local_layers) != sorted({*self.local_layers} & {*range(self.num_layers)}):
            raise ConfigError(
                f"model.local_layers is {shown(self.local_layers)}; expected ascending numbers from 0 to "
                f"{self.num_layers - 1}"
            )
        if self.unbiased_layers and not self.biases:
            raise ConfigError("model.unbiased_layers is set, but without biases no layer has one; leave it out")
        if not self.first_norm and self.norm == "post":
            raise ConfigError("model.first_norm is False, which needs model.norm 'pre'; set one of them")
        if self.pooling == "mean" and self.attention == "causal":
            raise ConfigError("model.pooling is 'mean' and model.attention 'causal', which pools the last token")
        rows = self.vocab_size + self.position_rows + self.type_vocab_size
        heads, inner = (sum(sizes[: self.num_blocks]) for sizes in (self.layer_heads, self.layer_intermediates))
        blocks = 4 * heads * self.head_size + self.feed_forward_matrices * inner
        weights = rows * self.embedding_width + (self.embedding_size + blocks) * self.hidden_size
        if weights > _MOST_WEIGHTS:
            raise ConfigError(
                f"the model has {weights:,} weights; expected up to {_MOST_WEIGHTS:,}: lower {self.sizes}"
            )
        return self


def has_bias(config: BertConfig, layer: str) -> bool:
    """Whether a dense layer of a block has a bias, one of DENSE_LAYERS."""
    return config.biases and layer not in config.unbiased_layers


@dataclasses.dataclass
class FeatureConfig:
    """Combines layers of the encoder into one vector per token (paper, table 7).

    The paper uses layers (0,), (-2,) and (-1,); (-4, -3, -2, -1) as a weighted sum or with "concat"; and all layers as
    a weighted sum. The last layer is what the heads read: in a pre-LayerNorm model, the output of the final LayerNorm.

    Attributes:
        layers: numbers from 1; 0 for the embeddings as the first layer reads them, so after a projection; negative
            numbers count from the end.
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
                raise ConfigError(
                    f"layer {layer}: the model has {-count} to {count}, 0 for the embeddings; set the layers to some of"
                    " these"
                )
        if self.weights and (self.combine != "sum" or len(self.weights) != len(self.layers)):
            found = f"{len(self.weights)} weights for {len(self.layers)} layers combined by {self.combine}"
            raise ConfigError(f"{found}; a sum has one weight per layer")
        return self
