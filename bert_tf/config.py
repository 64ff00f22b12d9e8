"""The settings of models, data and training: typed, checked, written next to what they made."""

import dataclasses
import difflib

from bert_tf.errors import ConfigError

ACTIVATIONS = ("tanh_gelu", "erf_gelu", "relu")

# name: (layers, hidden size). Heads are 64 wide and the inner layer is four times the hidden size in all of them
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
    """The shape of an encoder; the defaults are BERT-base uncased.

    Attributes:
        vocab_size: rows of the word embedding.
        num_layers, hidden_size, num_heads, intermediate_size: L, H, A and the feed-forward width of the paper.
        max_position_embeddings: longest input in tokens.
        type_vocab_size: number of segment types.
        dropout: rate on embeddings, sublayer outputs and the classifier's input.
        attention_dropout: rate on attention probabilities.
        activation: "tanh_gelu" (google-research/bert), "erf_gelu" (most Hugging Face checkpoints) or "relu".
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
    type_vocab_size: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = "tanh_gelu"
    norm: str = "post"
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02

    @classmethod
    def from_name(cls, name, **overrides):
        """One of the six published sizes: tiny, mini, small, medium, base, large."""
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

    def check(self):
        """Raises ConfigError for a combination that no model can have."""
        for field in ("vocab_size", "num_layers", "hidden_size", "num_heads", "intermediate_size",
                      "max_position_embeddings", "type_vocab_size"):
            if getattr(self, field) < 1:
                raise ConfigError(f"model.{field} is {getattr(self, field)}; it must be at least 1")
        for field in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, field) < 1:
                raise ConfigError(f"model.{field} is {getattr(self, field)}; it must be in [0, 1)")
        if self.hidden_size % self.num_heads:
            raise ConfigError(f"model.hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"model.activation {self.activation!r} is unknown; choose one of {', '.join(ACTIVATIONS)}")
        if self.norm not in ("post", "pre"):
            raise ConfigError(f"model.norm {self.norm!r} is unknown; choose 'post' or 'pre'")
        return self


@dataclasses.dataclass
class TrainConfig:
    """How the one training loop runs.

    Attributes:
        batch_size: sequences an update, over all replicas and accumulated micro-batches.
        accumulation: micro-batches an update; each replica holds batch_size / replicas / accumulation sequences at once.
        steps: updates; 0 means `epochs` decides.
        epochs: passes over the data when `steps` is 0.
        learning_rate: the peak, reached after warm-up.
        warmup: share of the steps with a rising learning rate.
        weight_decay: decoupled, not on biases and LayerNorm.
        clip_norm: global gradient norm after the all-reduce; 0 turns clipping off.
        seed: of initial weights, data order, masks and dropout.
        dtype: what layers compute in: float32, bfloat16, float16, or auto (the faster of float32 and bfloat16 here).
        steps_per_call: updates in one call of the compiled function.
        log_every: updates between two points of the curves.
        evaluate_every: updates between two evaluations; 0: once an epoch if epochs are given, else at start and end.
        save_every: updates between two checkpoints; 0: at evaluations.
        keep: checkpoints kept.
        max_bad_steps: updates in a row with a non-finite gradient, each skipped, before the run stops.
    """

    batch_size: int = 32
    accumulation: int = 1
    steps: int = 0
    epochs: float = 3.0
    learning_rate: float = 5e-5
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    seed: int = 0
    dtype: str = "auto"
    steps_per_call: int = 10
    log_every: int = 10
    evaluate_every: int = 0
    save_every: int = 0
    keep: int = 2
    max_bad_steps: int = 20

    def check(self):
        """Raises ConfigError for values that no run can have."""
        for field in ("batch_size", "accumulation", "steps_per_call", "log_every", "keep", "max_bad_steps"):
            if getattr(self, field) < 1:
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be at least 1")
        if self.steps < 0 or (self.steps == 0 and self.epochs <= 0):
            raise ConfigError(f"train.steps is {self.steps} and train.epochs {self.epochs}; one must be above 0")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(f"train.warmup is {self.warmup}; it is the share of steps with a rising rate, in [0, 1]")
        if self.dtype not in ("float32", "bfloat16", "float16", "auto"):
            raise ConfigError(f"train.dtype {self.dtype!r} is unknown; choose float32, bfloat16, float16 or auto")
        return self


def to_dict(config):
    """A dataclass as plain, JSON-ready values."""
    return dataclasses.asdict(config)


def from_dict(cls, values, where=""):
    """The dataclass `cls` from a dict; nested dataclasses from nested dicts.

    Raises:
        ConfigError: for a key that `cls` lacks, with the nearest one it has.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    arguments = {}
    for name, value in values.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(fields)}"
            raise ConfigError(f"{where or cls.__name__} has no field {name!r}{hint}")
        kind = fields[name].type
        nested = dataclasses.is_dataclass(kind) and isinstance(value, dict)
        arguments[name] = from_dict(kind, value, f"{where}{name}.") if nested else value
    return cls(**arguments)
