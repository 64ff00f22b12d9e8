"""EmbeddingConfig: which vectors of a text are computed, and how a sentence gets one from its tokens."""

import dataclasses
from typing import Self

from bert_tf.config.model import FeatureConfig
from bert_tf.config.values import check_fields, setting
from bert_tf.errors import ConfigError
from bert_tf.types import Shapes

# The unit that gets a vector -> the ways to pool token vectors, the default first.
POOLS: dict[str, tuple[str, ...]] = {
    "sentence": ("mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"),
    "word": ("first", "mean", "max"),
    "token": ("",),
}

# What a sentence encoder can learn, by the kind of its examples; the first is the default.
OBJECTIVES: dict[str, tuple[str, ...]] = {
    "pairs": ("in_batch",),  # texts that belong together, with or without texts that do not belong to the first
    "triplets": ("in_batch", "triplet"),
    "scored pairs": ("cosent", "cosine"),
    "scored texts": ("margin_mse", "kl"),  # a score for each text after the first
    "classes": ("batch_hard", "class_pairs"),
    "vectors": ("same_vectors",),  # of a teacher
}
# The same for a reranker.
SCORES: dict[str, tuple[str, ...]] = {
    "triplets": ("bce", "softmax"),
    "scored pairs": ("bce", "mse"),
    "scored texts": ("mse", "margin_mse", "kl"),
}

VECTORS = "vectors/"  # the start of the paths of the variables below


@dataclasses.dataclass
class DenseConfig:
    """A dense layer on the vector of a sentence.

    Attributes:
        units: size of its output.
        activation: "linear", "tanh", "relu", "sigmoid" or "erf_gelu".
        bias: whether it adds a bias.
    """

    units: int = setting(1, at_least=1, at_most=1_000_000)
    activation: str = setting("linear", choices=("linear", "tanh", "relu", "sigmoid", "erf_gelu"))
    bias: bool = True


@dataclasses.dataclass
class EmbeddingConfig:
    """Selects which vectors to compute.

    All attributes from `long_texts` on are for vectors of sentences.

    Attributes:
        per: unit that gets one vector: "sentence" (the whole text), "word" or "token".
        pool: how token vectors are pooled. For sentences "mean" (over all tokens, special tokens included), "cls" (the
            first), "max", "mean_sqrt_len" (the sum, divided by the square root of the number of tokens),
            "weightedmean" (token i has weight i, from 1), "lasttoken" (the separator), or several joined by "+", whose
            vectors are concatenated; for words "first" (the first piece, as in the paper's tagger), "mean" or "max"; ""
            for the first of these.
        features: the layers that make up a token's vector.
        max_length: tokens per window, special tokens included; 0 for the model's maximum.
        long_texts: how to handle longer texts. "window" splits them into overlapping windows; each token's vector comes
            from the window where it has the most context. "head" keeps the first `max_length` tokens.
        prompts: texts that can be put in front of each text, by name.
        prompt_name: the one in use; "" for none.
        include_prompt: whether the tokens of the prompt are pooled, too; if not, neither is the first token.
        dense: layers that follow pooling.
        size: number of values of a vector that are kept, the first ones (`EmbeddingsConfig.matryoshka`); 0 for all.
        normalize: whether vectors get length 1.
        values: number format of the vectors that an export returns: "float32"; "float16"; or "int8", each vector
            divided by its largest value and multiplied by 127, which leaves cosines nearly as they are.
    """

    per: str = "sentence"
    pool: str = ""
    features: FeatureConfig = dataclasses.field(default_factory=FeatureConfig)
    max_length: int = setting(0, at_least=0, at_most=1_000_000)
    long_texts: str = setting("window", choices=("window", "head"))
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    prompt_name: str = ""
    include_prompt: bool = True
    dense: tuple[DenseConfig, ...] = ()
    normalize: bool = False
    size: int = setting(0, at_least=0, at_most=1_000_000, sparse=True)
    values: str = setting("float32", choices=("float32", "float16", "int8"), sparse=True)

    @property
    def pools(self) -> tuple[str, ...]:
        """The ways to pool, one or several."""
        return tuple((self.pool or POOLS[self.per][0]).split("+"))

    @property
    def prompt(self) -> str:
        """The text in front of each text."""
        return self.prompts[self.prompt_name] if self.prompt_name else ""

    @property
    def query_name(self) -> str:
        """Name of the prompt in front of queries; "" for none."""
        return "query" if "query" in self.prompts else self.prompt_name

    @property
    def passage_name(self) -> str:
        """Name of the prompt in front of the texts that queries are to find; "" for none."""
        return next((name for name in ("passage", "document") if name in self.prompts), self.prompt_name)

    def check(self) -> Self:
        """Raises ConfigError for invalid values and combinations."""
        check_fields(self)
        if self.per not in POOLS:
            raise ConfigError(f"per {self.per!r} is unknown; choose one of {', '.join(POOLS)}")
        choices, several = POOLS[self.per], self.per == "sentence"
        if not set(self.pools) <= set(choices) or len(self.pools) > (len(choices) if several else 1):
            advice = f"choose one of {', '.join(choices)}" + (", or several joined by +" if several else "")
            if self.per == "token":
                advice = "leave it out, because token vectors are not pooled"
            raise ConfigError(f"pool {self.pool!r} does not apply to per {self.per!r}; {advice}")
        if self.per != "sentence" and self.long_texts != "window":
            raise ConfigError(f"long_texts {self.long_texts!r} is for vectors of sentences; leave it out")
        if self.prompt_name and self.prompt_name not in self.prompts:
            known = f"choose one of {', '.join(self.prompts)}" if self.prompts else "the model has none: leave it out"
            raise ConfigError(f"prompt_name {self.prompt_name!r} is unknown; {known}")
        if self.per != "sentence" and (self.size or self.values != "float32"):
            raise ConfigError("size and values are for vectors of sentences; leave them out")
        if not self.include_prompt and self.long_texts != "head":
            raise ConfigError(
                "this model does not pool its prompt, which needs long_texts 'head'; leave long_texts out"
            )
        for number, layer in enumerate(self.dense):
            check_fields(layer, f"dense[{number}]")
        return self

    def width(self, states: int) -> int:
        """Number of values of a vector of a sentence, for states of tokens of this width."""
        return self.size or (self.dense[-1].units if self.dense else len(self.pools) * states)

    def shapes(self, hidden: int) -> Shapes:
        """Shapes of the variables of `dense` by path, for an encoder of this hidden size."""
        width, shapes = len(self.pools) * self.features.width * hidden, dict[str, tuple[int, ...]]()
        for number, layer in enumerate(self.dense):
            shapes[f"{VECTORS}dense_{number}/kernel"] = (width, layer.units)
            if layer.bias:
                shapes[f"{VECTORS}dense_{number}/bias"] = (layer.units,)
            width = layer.units
        return shapes
