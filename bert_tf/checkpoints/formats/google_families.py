"""The models of google-research that are read here: names of their variables and settings."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.weight_map import TENSORFLOW, WeightMap, expand
from bert_tf.errors import DataError
from bert_tf.types import Json

# Field of BertConfig -> its name in bert_config.json, and in the formats that followed it.
FIELDS = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
}
GENERATOR = "generator"  # the scope of ELECTRA's second model, and its path below that of the checkpoint
HEAD_COLUMNS = 64  # of each attention head, in all models of google-research/electra


@dataclasses.dataclass(frozen=True)
class Family:
    """Models with the same names of variables and settings.

    Attributes:
        name: of the project, google-research/NAME.
        config: file with the settings; "" if there is none, so that the variables tell the sizes.
        names: of the layers of the encoder and of heads, as for `weight_map.expand`.
        heads: scopes of the heads whose variables are no layers of tf.layers, by layer.
        scope: start of the names of the encoder's variables, all of which are known here.
        head_scopes: starts of those of heads.
        fields: field of BertConfig -> its name in `config`.
        defaults: values of fields that `config` lacks or has no name for, where they are not those of BertConfig.
        gelu: the activation called gelu; "" if the graph saved with a checkpoint tells which one it is.
        sentence_piece: whether the vocabulary may be a SentencePiece model.
        others: start of the names of variables of another model -> a description of it.
    """

    name: str
    config: str
    names: Mapping[str, str]
    heads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scope: str = "bert/"
    head_scopes: tuple[str, ...] = ("cls/",)
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gelu: str = ""
    sentence_piece: bool = False
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def weight_map(self, layers: int) -> WeightMap:
        """The weight map of the encoder, of this many layers, and of all heads."""
        return expand(self.names, TENSORFLOW, layers) | expand(self.heads, HEAD_VARIABLES)

    @property
    def parts(self) -> set[str]:
        """The first part of the paths of all variables of ours that have a name here."""
        return {path.partition("/")[0] for path in self.weight_map(1)}

    def sizes(self, store: Mapping[str, Tensor], prefix: str) -> Json:
        """The sizes of a model by the shapes of its variables, as a config file would have them.

        Args:
            store: variables by name.
            prefix: of the checkpoint, for errors.
        """
        layer = re.compile(self.names["layer_*/output"].replace("*", r"(\d{1,4})") + "/kernel")
        layers = [int(found[1]) for found in map(layer.fullmatch, store) if found]
        table = self.weight_map(1)

        def shape(path: str) -> tuple[int, ...]:
            [name] = table[path].names
            found = store[name].shape if name in store else ()
            if len(found) != 2:
                raise DataError(f"{prefix}: no matrix {name}; expected a checkpoint of google-research/{self.name}")
            return found

        (vocab_size, embedding_size), hidden_size = (
            shape("embeddings/word_embeddings"),
            shape("layer_0/output/kernel")[1],
        )
        return {
            "vocab_size": vocab_size,
            "embedding_size": embedding_size,
            "num_hidden_layers": max(layers, default=0) + 1,
            "hidden_size": hidden_size,
            "num_attention_heads": max(1, hidden_size // HEAD_COLUMNS),
            "intermediate_size": shape("layer_0/intermediate/kernel")[1],
            "max_position_embeddings": shape("embeddings/position_embeddings")[0],
            "type_vocab_size": shape("embeddings/type_embeddings")[0],
        }


def _encoder(embeddings: str, scope: str) -> dict[str, str]:
    """Names of BERT's encoder, without the pooler, in these scopes."""
    return {
        "embeddings/word_embeddings": f"{embeddings}/embeddings/word_embeddings",
        "embeddings/position_embeddings": f"{embeddings}/embeddings/position_embeddings",
        "embeddings/type_embeddings": f"{embeddings}/embeddings/token_type_embeddings",
        "embeddings/norm": f"{embeddings}/embeddings/LayerNorm",
        "layer_*/attention/qkv": f"{scope}/encoder/layer_*/attention/self/{{query,key,value}}",
        "layer_*/attention/output": f"{scope}/encoder/layer_*/attention/output/dense",
        "layer_*/attention_norm": f"{scope}/encoder/layer_*/attention/output/LayerNorm",
        "layer_*/intermediate": f"{scope}/encoder/layer_*/intermediate/dense",
        "layer_*/output": f"{scope}/encoder/layer_*/output/dense",
        "layer_*/output_norm": f"{scope}/encoder/layer_*/output/LayerNorm",
    }


_POOLER = {"pooler": "bert/pooler/dense"}
_MASKED_LM = {
    "masked_lm/transform": "cls/predictions/transform/dense",
    "masked_lm/norm": "cls/predictions/transform/LayerNorm",
    "masked_lm/bias": "cls/predictions/output_bias",
}
# The scripts create the variables of these heads themselves; run_classifier.py opens no scope.
_HEADS = {"next_sentence": "cls/seq_relationship/", "span": "cls/squad/", "classifier": ""}
HEAD_VARIABLES = {"kernel": "output_weights", "bias": "output_bias"}

BERT = Family(
    name="bert",
    config="bert_config.json",
    names=_encoder("bert", "bert") | _POOLER | _MASKED_LM,
    heads=_HEADS,
    fields=FIELDS,
    defaults={"type_vocab_size": 16},  # modeling.py's
)

_BLOCK = "bert/encoder/transformer/group_0/inner_group_0"
_ALBERT = Family(
    name="albert",
    config="albert_config.json",
    names={name: theirs for name, theirs in _encoder("bert", "bert").items() if "*" not in name}
    | {
        "embeddings/projection": "bert/encoder/embedding_hidden_mapping_in",
        "layer_0/attention/qkv": f"{_BLOCK}/attention_1/self/{{query,key,value}}",
        "layer_0/attention/output": f"{_BLOCK}/attention_1/output/dense",
        "layer_0/attention_norm": f"{_BLOCK}/LayerNorm",
        "layer_0/intermediate": f"{_BLOCK}/ffn_1/intermediate/dense",
        "layer_0/output": f"{_BLOCK}/ffn_1/intermediate/output/dense",
        "layer_0/output_norm": f"{_BLOCK}/LayerNorm_1",
    }
    | _POOLER
    | _MASKED_LM,
    heads=_HEADS,
    fields=FIELDS | {"embedding_size": "embedding_size"},
    defaults={  # modeling.py's
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_heads": 64,
        "intermediate_size": 16384,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "shared_layers": True,
    },
    gelu="tanh_gelu",
    sentence_piece=True,
)

_PREDICTIONS = {
    "masked_lm/transform": "generator_predictions/dense",
    "masked_lm/norm": "generator_predictions/LayerNorm",
    "masked_lm/bias": "generator_predictions/output_bias",
}
# Of the model to fine-tune.
_ELECTRA = Family(
    name="electra",
    config="",
    names=_encoder("electra", "electra")
    | {
        "embeddings/projection": "electra/embeddings_project",
        "detector/transform": "discriminator_predictions/dense",
        "detector/output": "discriminator_predictions/dense_1",
    },
    scope="electra/",
    head_scopes=("discriminator_predictions/",),
    fields=FIELDS | {"embedding_size": "embedding_size"},
    defaults={"pooler_activation": "erf_gelu"},
    gelu="erf_gelu",
    others=dict.fromkeys(("generator/", "generator_predictions/"), f"the generator's; load it as .../{GENERATOR}"),
)
# The two models share the tables of the embeddings and their LayerNorm.
_ELECTRA_GENERATOR = dataclasses.replace(
    _ELECTRA,
    names=_encoder("electra", GENERATOR) | {"embeddings/projection": "generator/embeddings_project"} | _PREDICTIONS,
    scope=f"{GENERATOR}/",
    head_scopes=("generator_predictions/",),
    others=dict.fromkeys(("electra/", "discriminator_predictions/"), "the discriminator's"),
)
# Without a generator: pre-trained for masked tokens, the baseline of the paper; or fine-tuned.
_ELECTRA_MASKED_LM = dataclasses.replace(
    _ELECTRA,
    names={**_ELECTRA.names, **_PREDICTIONS},
    head_scopes=("discriminator_predictions/", "generator_predictions/"),
    others={"task_specific/": "a fine-tuned head of google-research/electra"},
)

CONFIGS = tuple(family.config for family in (BERT, _ALBERT))


def family_of(names: Collection[str], generator: bool = False) -> Family:
    """The family of a checkpoint.

    Args:
        names: of its variables.
        generator: whether to read the generator of an ELECTRA, if it has one.
    """
    if any(name.startswith("electra/") for name in names):
        if not any(name.startswith(_ELECTRA_GENERATOR.scope) for name in names):
            return _ELECTRA_MASKED_LM
        return _ELECTRA_GENERATOR if generator else _ELECTRA
    return _ALBERT if any(name.startswith("bert/encoder/transformer/") for name in names) else BERT
