"""The families of models in Transformers that this project's encoder computes: their classes, tensors and settings."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from bert_tf.checkpoints.formats import modernbert
from bert_tf.checkpoints.formats.google_families import FIELDS
from bert_tf.checkpoints.weight_map import PYTORCH, WeightMap, expand, names_of
from bert_tf.config import BertConfig
from bert_tf.model.head_table import HEADS
from bert_tf.types import Json


@dataclasses.dataclass(frozen=True)
class Layers:
    """What the class of a head has besides the encoder.

    Attributes:
        names: of its layers, as for `weight_map.expand`. A classifier of two layers on the first token is a pooler and
            a classifier.
        settings: values in config.json with which the class computes what this project's head does.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Parts(Protocol):
    """Fields of BertConfig that config.json describes in its own way.

    Attributes:
        fields: their names.
        settings: keys of config.json that `write` makes.
    """

    fields: tuple[str, ...]
    settings: tuple[str, ...]

    def read(self, settings: Json, file: str) -> dict[str, Any]:
        """The values of `fields`; DataError, which names `file`, for what nothing here computes."""

    def write(self, config: BertConfig) -> Json:
        """The settings of a model."""


@dataclasses.dataclass(frozen=True)
class Family:
    """Models with the same names of classes, tensors and settings (transformers, models/*).

    Attributes:
        model_type: its name in config.json.
        stem: start of the names of its classes.
        prefix: start of the names of the encoder's tensors in a model with a head.
        names: of the encoder's layers, as for `weight_map.expand`.
        heads: by head, a key of HEADS, or None for the encoder alone; if tensors of several are there, the first has
            them.
        decoder: the layer with the output matrix of the masked language model, which is the word embedding.
        fields: field of BertConfig -> its name in config.json. For `position_offset`, that is "pad_token_id": positions
            start after the row of the padding token.
        constants: fields of BertConfig that have one value in all models. The pooler's activation is also that of the
            first of two layers of a classifier.
        defaults: values of the fields that config.json may lack.
        parts: the parts of a block that config.json describes; None for those of BERT.
        always_projects: whether there is a projection even if the embeddings are as wide as the hidden states.
        tokenizer: class that Transformers takes if none is named, where not the files decide.
    """

    model_type: str
    stem: str
    prefix: str
    names: Mapping[str, str]
    heads: Mapping[str | None, Layers]
    decoder: str
    fields: Mapping[str, str]
    constants: Mapping[str, Any]
    defaults: Mapping[str, Any]
    parts: Parts | None = None
    always_projects: bool = False
    tokenizer: str | None = None

    @property
    def counts_padding(self) -> bool:
        """Whether positions start after the row of the padding token."""
        return "position_offset" in self.fields

    def embedding_size(self, width: int, hidden_size: int) -> int:
        """BertConfig's `embedding_size` of a model with embeddings of this width: 0 if there is no projection."""
        return width if "embedding_size" in self.fields and (self.always_projects or width != hidden_size) else 0

    def has_pooler(self, head: str | None) -> bool:
        """Whether the class for a head has a pooler, or two layers on the first token."""
        return reads_pooled(head) or (head is None and "pooler" in self.names)

    @property
    def beginnings(self) -> set[str]:
        """The parts of the encoder, the pooler aside: each is the start of tensor names, up to the first dot."""
        return {name.partition(".")[0] for ours, name in self.names.items() if ours != "pooler"}

    def layer_in(self, tensors: Collection[str], prefix: str = "") -> str | None:
        """The name of a matrix of the first layer if all of them are among these names after a prefix, else None."""
        layer = {ours: prefix + theirs for ours, theirs in self.names.items() if ours.startswith("layer_")}
        table = expand(layer, PYTORCH, 1)
        names = names_of(table, [path for path in table if path.endswith("/kernel")])
        return min(names) if names <= {*tensors} else None

    def class_name(self, head: str | None) -> str:
        """The class for a head, a key of `heads`."""
        return self.stem + (HEADS[head].transformers if head else "Model")

    def weight_map(self, config: BertConfig, head: str | None, prefix: str = "") -> WeightMap:
        """The weight map of the encoder, its names starting with `prefix`, and a head."""
        names = {ours: prefix + theirs for ours, theirs in self.names.items()} | dict(self.heads[head].names)
        return expand(names, PYTORCH, config.num_blocks)

    def copies(self, head: str | None) -> dict[str, str]:
        """Tensors that copy others, with the originals: the output matrix, and where it has the bias a second time."""
        names = self.heads[head].names
        if "masked_lm/bias" not in names:
            return {}
        words, bias = self.names["embeddings/word_embeddings"], names["masked_lm/bias"]
        copies = {f"{self.decoder}.weight": words, f"{self.decoder}.bias": bias}
        return {copy: original for copy, original in copies.items() if copy != original}

    def find_head(self, tensors: Collection[str]) -> str | None:
        """The first head of which each part has tensors; None if there is none.

        Args:
            tensors: names, without the encoder's prefix.
        """
        for head, its in self.heads.items():
            pooler = {"pooler": self.names["pooler"]} if reads_pooled(head) and "pooler" in self.names else {}
            layers = [(ours.partition("/")[0], theirs) for ours, theirs in (pooler | dict(its.names)).items()]
            found = {part for part, layer in layers if any(f"{name}.".startswith(f"{layer}.") for name in tensors)}
            if its.names and found == {part for part, _ in layers}:
                return head
        return None


_EMBEDDINGS = {
    "embeddings/word_embeddings": "embeddings.word_embeddings.weight",
    "embeddings/position_embeddings": "embeddings.position_embeddings.weight",
    "embeddings/norm": "embeddings.LayerNorm",
}
_TYPES = {"embeddings/type_embeddings": "embeddings.token_type_embeddings.weight"}
_LAYERS = {
    "layer_*/attention/qkv": "encoder.layer.*.attention.self.{query,key,value}",
    "layer_*/attention/output": "encoder.layer.*.attention.output.dense",
    "layer_*/attention_norm": "encoder.layer.*.attention.output.LayerNorm",
    "layer_*/intermediate": "encoder.layer.*.intermediate.dense",
    "layer_*/output": "encoder.layer.*.output.dense",
    "layer_*/output_norm": "encoder.layer.*.output.LayerNorm",
}
_POOLER = {"pooler": "pooler.dense"}
_MASKED_LM = {
    "masked_lm/transform": "cls.predictions.transform.dense",
    "masked_lm/norm": "cls.predictions.transform.LayerNorm",
    "masked_lm/bias": "cls.predictions.bias",
}
_NEXT_SENTENCE = {"next_sentence": "cls.seq_relationship"}
# On the last layer or BERT's pooler; the names are the same in all families.
_TASK_HEADS: dict[str | None, Layers] = {
    name: Layers(head.transformers_names) for name, head in HEADS.items() if head.transformers_names
}
_FIELDS = FIELDS | {"activation": "hidden_act", "layer_norm_epsilon": "layer_norm_eps"}
_TWO_LAYERS = Layers({"pooler": "classifier.dense", "classifier": "classifier.out_proj"})
_WIDTH = {"embedding_size": "embedding_size"}
_CONSTANTS = {"position_offset": 0, "shared_layers": False, "pooler_activation": "tanh"}
_DEFAULTS = {
    "type_vocab_size": 2,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation": "gelu",
    "layer_norm_epsilon": 1e-12,
    "initializer_range": 0.02,
}

_BERT = Family(
    model_type="bert",
    stem="Bert",
    prefix="bert.",
    names=_EMBEDDINGS | _TYPES | _LAYERS | _POOLER,
    heads={
        None: Layers(),
        "pretraining": Layers(_MASKED_LM | _NEXT_SENTENCE),
        "masked_lm": Layers(_MASKED_LM),
        "next_sentence": Layers(_NEXT_SENTENCE),
        **_TASK_HEADS,
    },
    decoder="cls.predictions.decoder",
    fields=_FIELDS,
    constants=_CONSTANTS,
    defaults=_DEFAULTS,
)

_ROBERTA = Family(
    model_type="roberta",
    stem="Roberta",
    prefix="roberta.",
    names=_EMBEDDINGS | _TYPES | _LAYERS | _POOLER,
    heads={
        None: Layers(),
        # Its activation is always gelu, whatever the encoder uses.
        "masked_lm": Layers(
            {
                "masked_lm/transform": "lm_head.dense",
                "masked_lm/norm": "lm_head.layer_norm",
                "masked_lm/bias": "lm_head.bias",
            },
            {"hidden_act": "gelu"},
        ),
        **_TASK_HEADS,
        "classification": _TWO_LAYERS,
    },
    decoder="lm_head.decoder",
    fields=_FIELDS | {"position_offset": "pad_token_id"},
    constants={"shared_layers": False, "pooler_activation": "tanh"},
    defaults=_DEFAULTS | {"position_offset": 1},
)

_DISTILBERT = Family(
    model_type="distilbert",
    stem="DistilBert",
    prefix="distilbert.",
    names=_EMBEDDINGS
    | {
        "layer_*/attention/qkv": "transformer.layer.*.attention.{q_lin,k_lin,v_lin}",
        "layer_*/attention/output": "transformer.layer.*.attention.out_lin",
        "layer_*/attention_norm": "transformer.layer.*.sa_layer_norm",
        "layer_*/intermediate": "transformer.layer.*.ffn.lin1",
        "layer_*/output": "transformer.layer.*.ffn.lin2",
        "layer_*/output_norm": "transformer.layer.*.output_layer_norm",
    },
    heads={
        None: Layers(),
        "masked_lm": Layers(
            {
                "masked_lm/transform": "vocab_transform",
                "masked_lm/norm": "vocab_layer_norm",
                "masked_lm/bias": "vocab_projector.bias",
            },
        ),
        **_TASK_HEADS,
        "classification": Layers({"pooler": "pre_classifier", "classifier": "classifier"}),
        "multiple_choice": Layers({"pooler": "pre_classifier", "classifier": "classifier"}),
    },
    decoder="vocab_projector",
    fields={
        "vocab_size": "vocab_size",
        "num_layers": "n_layers",
        "hidden_size": "dim",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_position_embeddings": "max_position_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation": "activation",
        "initializer_range": "initializer_range",
    },
    constants=_CONSTANTS | {"type_vocab_size": 0, "layer_norm_epsilon": 1e-12, "pooler_activation": "relu"},
    defaults=_DEFAULTS,
)

_ELECTRA = Family(
    model_type="electra",
    stem="Electra",
    prefix="electra.",
    names=_EMBEDDINGS | _TYPES | {"embeddings/projection": "embeddings_project"} | _LAYERS,
    heads={
        None: Layers(),
        "replaced_token_detection": Layers(
            {
                "detector/transform": "discriminator_predictions.dense",
                "detector/output": "discriminator_predictions.dense_prediction",
            },
        ),
        "masked_lm": Layers(
            {
                "masked_lm/transform": "generator_predictions.dense",
                "masked_lm/norm": "generator_predictions.LayerNorm",
                "masked_lm/bias": "generator_lm_head.bias",
            },
            {"hidden_act": "gelu"},
        ),
        "question_answering": _TASK_HEADS["question_answering"],
        "classification": _TWO_LAYERS,
        "multiple_choice": Layers(
            {"pooler": "sequence_summary.summary", "classifier": "classifier"},
            {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
        ),
        "tagging": _TASK_HEADS["tagging"],
    },
    decoder="generator_lm_head",
    fields=_FIELDS | _WIDTH,
    constants=_CONSTANTS | {"pooler_activation": "erf_gelu"},
    defaults=_DEFAULTS,
)

_ALBERT_MASKED_LM = {
    "masked_lm/transform": "predictions.dense",
    "masked_lm/norm": "predictions.LayerNorm",
    "masked_lm/bias": "predictions.bias",
}
_ALBERT_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
_ALBERT = Family(
    model_type="albert",
    stem="Albert",
    prefix="albert.",
    names=_EMBEDDINGS
    | _TYPES
    | {
        "embeddings/projection": "encoder.embedding_hidden_mapping_in",
        "layer_0/attention/qkv": f"{_ALBERT_LAYER}.attention.{{query,key,value}}",
        "layer_0/attention/output": f"{_ALBERT_LAYER}.attention.dense",
        "layer_0/attention_norm": f"{_ALBERT_LAYER}.attention.LayerNorm",
        "layer_0/intermediate": f"{_ALBERT_LAYER}.ffn",
        "layer_0/output": f"{_ALBERT_LAYER}.ffn_output",
        "layer_0/output_norm": f"{_ALBERT_LAYER}.full_layer_layer_norm",
        "pooler": "pooler",
    },
    heads={
        None: Layers(),
        # The order of two sentences in place of the next sentence; 0 is the order of the text in both.
        "pretraining": Layers(_ALBERT_MASKED_LM | {"next_sentence": "sop_classifier.classifier"}),
        "masked_lm": Layers(_ALBERT_MASKED_LM),
        **_TASK_HEADS,
    },
    decoder="predictions.decoder",
    fields=_FIELDS | _WIDTH,
    constants=_CONSTANTS | {"shared_layers": True},
    defaults=_DEFAULTS | {"dropout": 0.0, "attention_dropout": 0.0, "activation": "gelu_new"},
    always_projects=True,
    tokenizer="AlbertTokenizer",
)

_HEAD = "head.dense", "head.norm"
_POOLED = dict(zip(("pooler/dense", "pooler/norm"), _HEAD, strict=True))
_OF_TOKENS = dict(zip(("transform/dense", "transform/norm"), _HEAD, strict=True))
_MODERNBERT = Family(
    model_type="modernbert",
    stem="ModernBert",
    prefix="model.",
    names={
        "embeddings/word_embeddings": "embeddings.tok_embeddings.weight",
        "embeddings/norm": "embeddings.norm",
        "layer_*/attention_norm": "layers.*.attn_norm",
        "layer_*/attention/qkv": "layers.*.attn.Wqkv",
        "layer_*/attention/output": "layers.*.attn.Wo",
        "layer_*/output_norm": "layers.*.mlp_norm",
        "layer_*/intermediate": "layers.*.mlp.Wi",
        "layer_*/output": "layers.*.mlp.Wo",
        "final_norm": "final_norm",
    },
    heads={
        None: Layers(),
        "classification": Layers(_POOLED | {"classifier": "classifier"}),
        "tagging": Layers(_OF_TOKENS | {"classifier": "classifier"}),
        "question_answering": Layers(_OF_TOKENS | {"span": "classifier"}),
        "multiple_choice": Layers(_POOLED | {"classifier": "classifier"}),
        # Last, as its first layer is that of all heads.
        "masked_lm": Layers(
            {
                **dict(zip(("masked_lm/transform", "masked_lm/norm"), _HEAD, strict=True)),
                "masked_lm/bias": "decoder.bias",
            }
        ),
    },
    decoder="decoder",
    fields={name: theirs for name, theirs in _FIELDS.items() if name != "type_vocab_size"}
    | {"activation": "hidden_activation", "layer_norm_epsilon": "norm_eps", "dropout": "embedding_dropout"}
    | {"attention_dropout": "attention_dropout"},
    constants=_CONSTANTS | modernbert.CONSTANTS,
    defaults=_DEFAULTS | {"dropout": 0.0, "attention_dropout": 0.0, "layer_norm_epsilon": 1e-5},
    parts=modernbert.Parts(),
)

# By model_type. A model of no family here is written as the first that can hold it.
FAMILIES = {
    family.model_type: family
    for family in (
        _BERT,
        _ROBERTA,
        dataclasses.replace(_ROBERTA, model_type="xlm-roberta", stem="XLMRoberta", tokenizer="XLMRobertaTokenizer"),
        dataclasses.replace(_ROBERTA, model_type="camembert", stem="Camembert", tokenizer="CamembertTokenizer"),
        _DISTILBERT,
        _ELECTRA,
        _ALBERT,
        _MODERNBERT,
    )
}


def reads_pooled(head: str | None) -> bool:
    """Whether a head, a key of HEADS, or None for none, reads the pooled output."""
    return head is not None and HEADS[head].pooled


def other_family(family: Family, tensors: Collection[str]) -> tuple[Family, str] | None:
    """Another family that tensors belong to, and the name of one of them; None if they may be those of `family`."""
    if any(family.layer_in(tensors, prefix) for prefix in (family.prefix, "")):
        return None
    named = [(other, other.layer_in(tensors, other.prefix)) for other in FAMILIES.values()]
    plain = [(other, other.layer_in(tensors)) for other in FAMILIES.values()]
    return next(((other, name) for other, name in named + plain if name), None)
