"""Variable names of TF-Hub's and TF Model Garden's BERT encoders: four generations.

Sources: tf-models-official (official/nlp/modeling) 2.2.0 to 2.20.0, its tf1_checkpoint_converter_lib.py for earlier
models, and google-research/bert for TF 1 Hub modules.
"""

import re
from collections.abc import Collection, Mapping

from bert_tf.checkpoints.formats.google import NAMES
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.weight_map import TENSORFLOW, WeightMap, expand, names_of

_NAMES = {  # since 2.3.0; TF-Hub's BERT since version 3
    "embeddings/word_embeddings": "word_embeddings/embeddings",
    "embeddings/position_embeddings": "position_embedding/embeddings",
    "embeddings/type_embeddings": "type_embeddings/embeddings",
    "embeddings/norm": "embeddings/layer_norm",
    "pooler": "pooler_transform",
    "layer_*/attention/qkv": "transformer/layer_*/self_attention/{query,key,value}",
    "layer_*/attention/output": "transformer/layer_*/self_attention/attention_output",
    "layer_*/attention_norm": "transformer/layer_*/self_attention_layer_norm",
    "layer_*/intermediate": "transformer/layer_*/intermediate",
    "layer_*/output": "transformer/layer_*/output",
    "layer_*/output_norm": "transformer/layer_*/output_layer_norm",
}
# 2.2.0; TF-Hub's version 2
_SECOND = _NAMES | {"layer_*/attention/output": "transformer/layer_*/self_attention_output"}
_FIRST = {  # before 2.2.0; TF-Hub's version 1
    **{ours: theirs.replace("transformer/", "encoder/") for ours, theirs in _SECOND.items()},
    "embeddings/position_embeddings": "embedding_postprocessor/position_embeddings",
    "embeddings/type_embeddings": "embedding_postprocessor/type_embeddings",
    "embeddings/norm": "embedding_postprocessor/layer_norm",
}
# TF 1 Hub modules: google-research/bert's in another scope
_TF1 = {ours: theirs.removeprefix("bert/") for ours, theirs in NAMES.items() if theirs.startswith("bert/")}


def find(store: Mapping[str, Tensor]) -> tuple[WeightMap, int] | None:
    """The weight map of the encoder in `store` and its number of layers; None if it holds no encoder.

    The generation and scope ("" or "SCOPE/") that match the most variables are used.
    """
    found: dict[int, tuple[WeightMap, int]] = {}
    for names in (_NAMES, _SECOND, _FIRST, _TF1):
        embeddings = [names[f"embeddings/{kind}_embeddings"] for kind in ("word", "position", "type")]
        for end in (*embeddings, f"{names['embeddings/norm']}/gamma"):  # any one of them may be missing
            for scope in [name.removesuffix(end) for name in store if f"/{name}".endswith(f"/{end}")]:
                scoped = {ours: f"{scope}{theirs}" for ours, theirs in names.items()}
                layers = _num_layers(store, scoped["layer_*/output"])
                if layers:
                    table = expand(scoped, TENSORFLOW, layers)
                    found.setdefault(len(names_of(table, table) & store.keys()), (table, layers))
    return found[max(found)] if found else None


def _num_layers(store: Collection[str], name: str) -> int:
    """Number of transformer layers, up to the last one that has variables; 0 if there are none."""
    pattern = re.compile(re.escape(name.partition("*")[0]) + r"(\d{1,4})/")  # a huge number would make a huge map
    return max((int(match[1]) + 1 for match in map(pattern.match, store) if match), default=0)
