"""Variable names of TF-Hub's and TF Model Garden's BERT encoders: four generations.

Sources: tf-models-official (official/nlp/modeling) 2.2.0 to 2.20.0, its tf1_checkpoint_converter_lib.py for earlier
models, and google-research/bert for TF 1 Hub modules.
"""

import collections
import dataclasses
import re
from collections.abc import Collection, Mapping

from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.weight_map import RESHAPED, TensorMapping, WeightMap, names_of, tf_dense, tf_norm


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of one generation's embedding tables and layers; the parts of a transformer layer are below `layer`."""

    words: str = "word_embeddings/embeddings"
    positions: str = "position_embedding/embeddings"
    types: str = "type_embeddings/embeddings"
    norm: str = "embeddings/layer_norm"
    layer: str = "transformer/layer_"  # followed by its number
    attention: str = "self_attention"  # of query, key and value
    attention_output: str = "self_attention/attention_output"
    attention_norm: str = "self_attention_layer_norm"
    intermediate: str = "intermediate"
    output: str = "output"
    output_norm: str = "output_layer_norm"
    pooler: str = "pooler_transform"
    bias: str = "cls/predictions/output_bias/bias"  # of the masked language model

    def below(self, scope: str) -> "Names":
        """The names of an encoder in a scope ("" or "SCOPE/"); the masked-LM bias is outside of it."""
        outer = ("words", "positions", "types", "norm", "layer", "pooler")
        return dataclasses.replace(self, **{field: scope + getattr(self, field) for field in outer})


GENERATIONS = (
    Names(),  # since 2.3.0; TF-Hub's BERT since version 3
    Names(attention_output="self_attention_output"),  # 2.2.0; TF-Hub's version 2
    Names(  # before 2.2.0; TF-Hub's version 1
        positions="embedding_postprocessor/position_embeddings",
        types="embedding_postprocessor/type_embeddings",
        norm="embedding_postprocessor/layer_norm",
        layer="encoder/layer_",
        attention_output="self_attention_output",
    ),
    Names(  # TF 1 Hub modules
        words="embeddings/word_embeddings",
        positions="embeddings/position_embeddings",
        types="embeddings/token_type_embeddings",
        norm="embeddings/LayerNorm",
        layer="encoder/layer_",
        attention="attention/self",
        attention_output="attention/output/dense",
        attention_norm="attention/output/LayerNorm",
        intermediate="intermediate/dense",
        output="output/dense",
        output_norm="output/LayerNorm",
        pooler="pooler/dense",
        bias="cls/predictions/output_bias",
    ),
)


def find(store: Mapping[str, Tensor]) -> Names | None:
    """The generation and scope that match the most variables in `store`; None if it holds no encoder."""
    found: collections.Counter[Names] = collections.Counter()
    for names in GENERATIONS:
        for end in (names.words, names.positions, names.types, f"{names.norm}/gamma"):  # any one of them may be missing
            for scope in [name.removesuffix(end) for name in store if f"/{name}".endswith(f"/{end}")]:
                scoped = names.below(scope)
                layers = num_layers(store, scoped)
                if layers:
                    table = encoder_weight_map(scoped, layers)
                    found[scoped] = len(names_of(table, table) & store.keys())
    return found.most_common(1)[0][0] if found else None


def num_layers(store: Collection[str], names: Names) -> int:
    """Number of transformer layers, up to the last one that has variables; 0 if there are none."""
    pattern = re.compile(re.escape(names.layer) + r"(\d+)/")
    return max((int(match[1]) + 1 for match in map(pattern.match, store) if match), default=0)


def encoder_weight_map(names: Names, layers: int) -> WeightMap:
    """The weight map of the encoder; arguments as `find` and `num_layers` return them.

    Attention kernels have an axis of heads: [hidden, heads, size] for query, key and value, [heads, size, hidden] for
    the output. In TF 1 they are matrices with the same values in the same order.
    """
    table = {
        "embeddings/word_embeddings": TensorMapping((names.words,)),
        "embeddings/position_embeddings": TensorMapping((names.positions,)),
        "embeddings/type_embeddings": TensorMapping((names.types,)),
        **tf_norm("embeddings/norm", names.norm),
        **tf_dense("pooler", names.pooler),
    }
    for index in range(layers):
        ours, theirs = f"layer_{index}", f"{names.layer}{index}"
        attention = [f"{theirs}/{names.attention}/{part}" for part in ("query", "key", "value")]
        table |= tf_dense(f"{ours}/attention/qkv", *attention, layout=RESHAPED)
        table |= tf_dense(f"{ours}/attention/output", f"{theirs}/{names.attention_output}", layout=RESHAPED)
        table |= tf_norm(f"{ours}/attention_norm", f"{theirs}/{names.attention_norm}")
        table |= tf_dense(f"{ours}/intermediate", f"{theirs}/{names.intermediate}")
        table |= tf_dense(f"{ours}/output", f"{theirs}/{names.output}")
        table |= tf_norm(f"{ours}/output_norm", f"{theirs}/{names.output_norm}")
    return table
