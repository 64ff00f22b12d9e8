"""The families of models in Transformers that this project's encoder computes: their classes, tensors and settings."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from bert_tf.checkpoints.formats import google_config
from bert_tf.checkpoints.weight_map import PYTORCH, WeightMap, expand
from bert_tf.config import BertConfig
from bert_tf.model.variables import ON_POOLED


@dataclasses.dataclass(frozen=True)
class Head:
    """A class of models: what it has besides the encoder.

    Attributes:
        suffix: end of the name of the class.
        names: of its layers, as for `weight_map.expand`. A classifier of two layers on the first token is a pooler and
            a classifier.
        settings: values in config.json with which the class computes what this project's head does.
    """

    suffix: str
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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
        constants: fields of BertConfig that have one value in all models. The pooler's activation only counts if there
            is a pooler.
        defaults: values of the fields that config.json may lack.
        tokenizer: class that Transformers takes if none is named, where not the files decide.
    """

    model_type: str
    stem: str
    prefix: str
    names: Mapping[str, str]
    heads: Mapping[str | None, Head]
    decoder: str
    fields: Mapping[str, str]
    constants: Mapping[str, Any]
    defaults: Mapping[str, Any]
    tokenizer: str | None = None

    @property
    def counts_padding(self) -> bool:
        """Whether positions start after the row of the padding token."""
        return "position_offset" in self.fields

    @property
    def parts(self) -> set[str]:
        """The parts of the encoder, the pooler aside: each is the start of tensor names, up to the first dot."""
        return {name.partition(".")[0] for ours, name in self.names.items() if ours != "pooler"}

    def class_name(self, head: str | None) -> str:
        """The class for a head, a key of `heads`."""
        return self.stem + self.heads[head].suffix

    def weight_map(self, config: BertConfig, head: str | None, prefix: str = "") -> WeightMap:
        """The weight map of the encoder, its names starting with `prefix`, and a head."""
        names = {ours: prefix + theirs for ours, theirs in self.names.items()} | dict(self.heads[head].names)
        return expand(names, PYTORCH, config.num_layers)

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
            pooler = {"pooler": self.names["pooler"]} if head in ON_POOLED and "pooler" in self.names else {}
            layers = [(ours.partition("/")[0], theirs) for ours, theirs in (pooler | dict(its.names)).items()]
            found = {part for part, layer in layers if any(f"{name}.".startswith(f"{layer}.") for name in tensors)}
            if its.names and found == {part for part, _ in layers}:
                return head
        return None


_NAMES = {
    "embeddings/word_embeddings": "embeddings.word_embeddings.weight",
    "embeddings/position_embeddings": "embeddings.position_embeddings.weight",
    "embeddings/type_embeddings": "embeddings.token_type_embeddings.weight",
    "embeddings/norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
    "layer_*/attention/qkv": "encoder.layer.*.attention.self.{query,key,value}",
    "layer_*/attention/output": "encoder.layer.*.attention.output.dense",
    "layer_*/attention_norm": "encoder.layer.*.attention.output.LayerNorm",
    "layer_*/intermediate": "encoder.layer.*.intermediate.dense",
    "layer_*/output": "encoder.layer.*.output.dense",
    "layer_*/output_norm": "encoder.layer.*.output.LayerNorm",
}
_MASKED_LM = {
    "masked_lm/transform": "cls.predictions.transform.dense",
    "masked_lm/norm": "cls.predictions.transform.LayerNorm",
    "masked_lm/bias": "cls.predictions.bias",
}
_NEXT_SENTENCE = {"next_sentence": "cls.seq_relationship"}
# On the last layer or BERT's pooler; the names are the same in all families.
_TASK_HEADS: dict[str | None, Head] = {
    "question_answering": Head("ForQuestionAnswering", {"span": "qa_outputs"}),
    "classification": Head("ForSequenceClassification", {"classifier": "classifier"}),
    "tagging": Head("ForTokenClassification", {"classifier": "classifier"}),
    "multiple_choice": Head("ForMultipleChoice", {"classifier": "classifier"}),
}
_FIELDS = google_config.FIELDS | {"activation": "hidden_act", "layer_norm_epsilon": "layer_norm_eps"}
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
    names=_NAMES,
    heads={
        None: Head("Model"),
        "pretraining": Head("ForPreTraining", _MASKED_LM | _NEXT_SENTENCE),
        "masked_lm": Head("ForMaskedLM", _MASKED_LM),
        "next_sentence": Head("ForNextSentencePrediction", _NEXT_SENTENCE),
        **_TASK_HEADS,
    },
    decoder="cls.predictions.decoder",
    fields=_FIELDS,
    constants={"position_offset": 0},
    defaults=_DEFAULTS,
)

_ROBERTA = Family(
    model_type="roberta",
    stem="Roberta",
    prefix="roberta.",
    names=_NAMES,
    heads={
        None: Head("Model"),
        # Its activation is always gelu, whatever the encoder uses.
        "masked_lm": Head(
            "ForMaskedLM",
            {
                "masked_lm/transform": "lm_head.dense",
                "masked_lm/norm": "lm_head.layer_norm",
                "masked_lm/bias": "lm_head.bias",
            },
            {"hidden_act": "gelu"},
        ),
        **_TASK_HEADS,
        "classification": Head(
            "ForSequenceClassification", {"pooler": "classifier.dense", "classifier": "classifier.out_proj"}
        ),
    },
    decoder="lm_head.decoder",
    fields=_FIELDS | {"position_offset": "pad_token_id"},
    constants={},
    defaults=_DEFAULTS | {"position_offset": 1},
)

# By model_type. A model of no family here is written as the first that can hold it.
FAMILIES = {
    family.model_type: family
    for family in (
        _BERT,
        _ROBERTA,
        dataclasses.replace(_ROBERTA, model_type="xlm-roberta", stem="XLMRoberta", tokenizer="XLMRobertaTokenizer"),
        dataclasses.replace(_ROBERTA, model_type="camembert", stem="Camembert", tokenizer="CamembertTokenizer"),
    )
}
