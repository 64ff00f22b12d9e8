"""The settings of models, data and training: typed, checked, written next to what they made."""

import dataclasses
import difflib
import math
import re

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
        position_offset: rows of the position embedding before that of the first token: 0 in BERT, 2 in RoBERTa.
        type_vocab_size: number of segment types; 0 for none. With 1, every token is of that type.
        pooler: whether there is a pooled output; checkpoints of masked language models, taggers and the like lack it.
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
    position_offset: int = 0
    type_vocab_size: int = 2
    pooler: bool = True
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
        """Raises ConfigError for a value, or a combination, that no model can have."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) not in ((int, float) if field.type is float else (field.type,)):
                raise ConfigError(f"model.{field.name} is {value!r}; expected {field.type.__name__}")
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
        if self.norm not in ("post", "pre"):
            raise ConfigError(f"model.norm {self.norm!r} is unknown; choose 'post' or 'pre'")
        return self


OPTIMIZERS = ("adamw", "lamb", "radam")
SCHEDULES = ("linear", "polynomial", "cosine", "noam", "constant")
NORMALIZATIONS = ("global", "replica_mean", "replica_sum")

# What a recipe decides where TrainConfig leaves it open. docs/pretraining.md has a line on each and its source.
RECIPES = {
    "google": {
        "bias_correction": False,
        "warmup_from_zero": True,
        "decay_from_start": True,
        "normalization": "replica_sum",
        "clip_on": "replica",
    },
    "modern": {
        "bias_correction": True,
        "warmup_from_zero": False,
        "decay_from_start": False,
        "normalization": "global",
        "clip_on": "global",
    },
}


@dataclasses.dataclass
class TrainConfig:
    """How the one training loop runs. None in a setting means: as the recipe says.

    Attributes:
        recipe: "modern", or "google": to the letter what google-research/bert's optimization.py does.
        batch_size: sequences an update, over all replicas and accumulated micro-batches.
        accumulation: micro-batches an update; a replica holds batch_size / replicas / accumulation sequences at once.
        steps: updates; 0 means `epochs` decides.
        epochs: passes over the data when `steps` is 0.
        optimizer: "adamw" (without bias correction: BERT's Adam), "lamb" or "radam".
        bias_correction: whether Adam's and LAMB's moments are corrected for having begun at 0; RAdam's always are.
        beta_1, beta_2, epsilon: of the moments; epsilon is added to the root of the second one.
        learning_rate: the peak, reached after warm-up.
        schedule: what the rate does after warm-up: "linear", "polynomial", "cosine", "noam" or "constant".
        power: of "polynomial".
        end_learning_rate: what "linear", "polynomial" and "cosine" come down to.
        warmup: share of the steps with a rising learning rate.
        warmup_steps: the same as a number, which then counts instead of the share.
        warmup_from_zero: whether the first update's rate is 0 instead of one warm-up step's.
        decay_from_start: whether the fall is counted from the first update on, so that the rate jumps down where the
            warm-up ends, instead of from that end.
        weight_decay: decoupled, not on biases and LayerNorm.
        layer_decay: factor of the learning rate from each depth to the next lower one; 1 is the same rate for all.
        clip_norm: gradients of a larger norm are scaled down to it; 0 turns clipping off.
        clip_on: "global", the reduced gradient, or "replica", that of each micro-batch before the reduction.
        normalization: what sums of losses are divided by: "global", the weight of the whole batch, or the weight of
            each micro-batch, whose gradients are then averaged ("replica_mean") or added up ("replica_sum").
        seed: of initial weights, data order, masks and dropout.
        dtype: what layers compute in: float32, bfloat16, float16, or auto (the faster of float32 and bfloat16 here).
        loss_scale_growth: updates without an overflow after which the loss scale of float16 is doubled.
        remat: computes the inside of each layer again in the backward pass instead of keeping it in memory.
        steps_per_call: updates in one call of the compiled function.
        log_every: updates between two points of the curves.
        evaluate_every: updates between two evaluations; 0: once an epoch in fine-tuning, at start and end else.
        save_every: updates between two checkpoints; 0: at evaluations, and after 1,000 updates at the latest.
        keep: checkpoints kept.
        max_bad_steps: updates in a row with a non-finite gradient, each skipped, before the run stops.
    """

    recipe: str = "modern"
    batch_size: int = 32
    accumulation: int = 1
    steps: int = 0
    epochs: float = 3.0
    optimizer: str = "adamw"
    bias_correction: bool | None = None
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    learning_rate: float = 5e-5
    schedule: str = "linear"
    power: float = 1.0
    end_learning_rate: float = 0.0
    warmup: float = 0.1
    warmup_steps: int | None = None
    warmup_from_zero: bool | None = None
    decay_from_start: bool | None = None
    weight_decay: float = 0.01
    layer_decay: float = 1.0
    clip_norm: float = 1.0
    clip_on: str | None = None
    normalization: str | None = None
    seed: int = 0
    dtype: str = "auto"
    loss_scale_growth: int = 2000
    remat: bool = False
    steps_per_call: int = 10
    log_every: int = 10
    evaluate_every: int = 0
    save_every: int = 0
    keep: int = 2
    max_bad_steps: int = 20

    def check(self):
        """Raises ConfigError for values that no run can have."""
        least_one = ("batch_size", "accumulation", "steps_per_call", "log_every", "keep", "max_bad_steps")
        for field in (*least_one, "loss_scale_growth"):
            if getattr(self, field) < 1:
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be at least 1")
        not_negative = ("learning_rate", "end_learning_rate", "weight_decay", "clip_norm", "warmup_steps", "epsilon")
        for field in (*not_negative, "evaluate_every", "save_every"):
            if (getattr(self, field) or 0) < 0:
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must not be negative")
        if self.steps < 0 or (self.steps == 0 and self.epochs <= 0):
            raise ConfigError(f"train.steps is {self.steps} and train.epochs {self.epochs}; one must be above 0")
        if not 0 <= self.warmup <= 1:
            raise ConfigError(f"train.warmup is {self.warmup}; it is the share of steps with a rising rate, in [0, 1]")
        if self.dtype not in ("float32", "bfloat16", "float16", "auto"):
            raise ConfigError(f"train.dtype {self.dtype!r} is unknown; choose float32, bfloat16, float16 or auto")
        self._check_optimisation()
        return self

    def _check_optimisation(self):
        choices = {"recipe": RECIPES, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
        choices |= {"clip_on": (None, "global", "replica"), "normalization": (None, *NORMALIZATIONS)}
        for field, known in choices.items():
            if getattr(self, field) not in known:
                listed = ", ".join(name for name in known if name)
                raise ConfigError(f"train.{field} {getattr(self, field)!r} is unknown; choose one of {listed}")
        for field in ("beta_1", "beta_2"):
            if not 0 < getattr(self, field) < 1:
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be above 0 and below 1")
        for field in ("layer_decay", "power"):
            if getattr(self, field) <= 0:
                raise ConfigError(f"train.{field} is {getattr(self, field)}; it must be above 0")
        if self.end_learning_rate > self.learning_rate:
            raise ConfigError(
                f"train.end_learning_rate {self.end_learning_rate} is above train.learning_rate {self.learning_rate}"
            )
        if self.end_learning_rate and self.schedule in ("noam", "constant"):
            raise ConfigError(
                f"train.end_learning_rate has no meaning in the schedule {self.schedule!r}; leave it at 0"
            )
        if self.power != 1.0 and self.schedule != "polynomial":
            raise ConfigError(f"train.power is {self.power}, but only the schedule 'polynomial' has one")
        if self.optimizer == "radam" and self.bias_correction is False:
            raise ConfigError(
                "train.bias_correction is false, but RAdam is built on it; choose another train.optimizer"
            )
        if self.clip_on == "replica" and self.normalization == "global":
            raise ConfigError(
                "train.clip_on is 'replica' where train.normalization is 'global': a micro-batch has no gradient of "
                "its own to clip; set train.clip_on to 'global' too"
            )

    def resolved(self):
        """The same with every setting that was left to the recipe filled in.

        Raises:
            ConfigError: as `check`, for what recipe and settings come to together.
        """
        decided = RECIPES[self.check().recipe]
        if self.optimizer == "radam":
            decided = decided | {"bias_correction": True}
        missing = {name: value for name, value in decided.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing).check()


@dataclasses.dataclass
class PretrainingData:
    """How text becomes examples; the defaults are google-research/bert's, but for its duplicates on disk.

    Attributes:
        layout: of text: "sentences" (one a line, blank lines between documents) or "documents" (one a line).
        max_bad_share: of the sentences (prepared shards: documents), that may be undecodable and so left out.
        service: address of the dispatcher of a tf.data service whose workers make the batches, e.g.
            "grpc://10.0.0.2:5000"; "" makes them in this process.
        service_workers: how many workers that service has.
        pairs: "nsp": two segments, the second from another document at even odds (BERT); "sop": two segments, swapped
            at even odds (ALBERT); "none": full sentences across documents, masked language model alone (RoBERTa).
        max_length: tokens of a sequence, at most, [CLS] and [SEP] counted.
        masking: "token" (BERT), "whole_word" (its later models) or "span" (SpanBERT): what is masked together.
        words: for the latter two, "pieces" (a piece without ## begins a word) or "spaces" (a word is what stands
            between white space, punctuation apart: for Korean with Chinese characters in it, or segmented text).
        mask_on: "host" (in the input pipeline) or "device" (in the training step); the same masks either way.
        max_predictions: masked tokens a sequence, at most.
        masking_rate: share of the tokens of a sequence that is masked; at least one is, where one can be.
        short_sequence_rate: share of documents that aim at shorter pairs; "none" makes no shorter sequences.
        group_size: documents that are shuffled together and lend each other random second parts.
        length_multiple: None pads every batch to max_length; a number puts pairs of similar length into a batch and
            pads it to a multiple of that number.
        pack: puts several short sequences into a row of max_length, each attending to itself only. batch_size then
            counts rows, and max_predictions is a row's limit, too.
    """

    layout: str = "sentences"
    max_bad_share: float = 0.01
    service: str = ""
    service_workers: int = 1
    pairs: str = "nsp"
    max_length: int = 128
    masking: str = "token"
    words: str = "pieces"
    mask_on: str = "host"
    max_predictions: int = 20
    masking_rate: float = 0.15
    short_sequence_rate: float = 0.1
    group_size: int = 1000
    length_multiple: int | None = None
    pack: bool = False

    def check(self):
        """Raises ConfigError for values that no run can have."""
        if self.layout not in ("sentences", "documents"):
            raise ConfigError(f"data.layout {self.layout!r} is unknown; choose sentences or documents")
        if self.pairs not in ("nsp", "sop", "none"):
            raise ConfigError(f"data.pairs {self.pairs!r} is unknown; choose nsp, sop or none")
        # Two tokens and the three specials are the shortest pair there is.
        for field, least in (("max_length", 5), ("max_predictions", 1), ("group_size", 2), ("service_workers", 1)):
            if getattr(self, field) < least:
                raise ConfigError(f"data.{field} is {getattr(self, field)}; it must be at least {least}")
        if self.service and not re.fullmatch(r"\w+://[^/]+:\d+", self.service):
            raise ConfigError(f"data.service is {self.service!r}; expected an address like grpc://10.0.0.2:5000")
        for field in ("masking_rate", "short_sequence_rate", "max_bad_share"):
            if not 0 <= getattr(self, field) <= 1:
                raise ConfigError(f"data.{field} is {getattr(self, field)}; it is a share, in [0, 1]")
        for field, choices in (
            ("masking", ("token", "whole_word", "span")),
            ("words", ("pieces", "spaces")),
            ("mask_on", ("host", "device")),
        ):
            if getattr(self, field) not in choices:
                raise ConfigError(
                    f"data.{field} {getattr(self, field)!r} is unknown; choose one of {', '.join(choices)}"
                )
        if self.masking == "token" and self.words != "pieces":
            raise ConfigError(
                f"data.words is {self.words!r}, but data.masking 'token' looks at no words; set data.masking to "
                "whole_word or span, or leave data.words out"
            )
        if self.length_multiple is not None and self.length_multiple < 1:
            raise ConfigError(f"data.length_multiple is {self.length_multiple}; it must be at least 1, or null")
        if self.pack and self.length_multiple is not None:
            raise ConfigError(
                f"data.length_multiple is {self.length_multiple}, but rows of data.pack are all of max_length; "
                "leave one of the two out"
            )
        if self.pack and self.mask_on == "device":
            raise ConfigError(
                "data.mask_on is 'device', where rows are masked, but data.pack needs each sequence in a row masked by "
                "itself; set data.mask_on=host"
            )
        return self


@dataclasses.dataclass
class TokenizerConfig:
    """How text becomes pieces.

    Attributes:
        vocab: path of vocab.txt.
        lower_case, strip_accents, split_cjk: as in `Tokenizer`; strip_accents None follows lower_case.
    """

    vocab: str = "vocab.txt"
    lower_case: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True


@dataclasses.dataclass
class PretrainConfig:
    """A pre-training run.

    Attributes:
        input: glob patterns of the text files, separated by commas.
        heldout: the same for text that is only evaluated on; "" for none.
        model: BertConfig; its vocab_size 0 means as many as the vocabulary has.
    """

    input: str = ""
    heldout: str = ""
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    model: BertConfig = dataclasses.field(default_factory=BertConfig)
    data: PretrainingData = dataclasses.field(default_factory=PretrainingData)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)


@dataclasses.dataclass
class ClassificationConfig:
    """A classification task on tables.

    Attributes:
        train, evaluation: file names in the data directory (.tsv, .csv, .jsonl).
        text, second_text, label: names of the columns; second_text "" where there is one text.
        max_length: tokens an input, specials counted.
    """

    train: str = "train.tsv"
    evaluation: str = "dev.tsv"
    text: str = "sentence"
    second_text: str = ""
    label: str = "label"
    max_length: int = 128


@dataclasses.dataclass
class FinetuneConfig:
    """A fine-tuning run."""

    task: ClassificationConfig = dataclasses.field(default_factory=ClassificationConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)


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
            raise ConfigError(f"{where.rstrip('.') or cls.__name__} has no field {name!r}{hint}")
        kind = fields[name].type
        nested = dataclasses.is_dataclass(kind) and isinstance(value, dict)
        arguments[name] = from_dict(kind, value, f"{where}{name}.") if nested else value
    return cls(**arguments)
