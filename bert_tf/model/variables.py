"""Names and shapes of an encoder's variables without building it; checkpoint formats map to them.

They repeat what the layers do, because a layer of Keras knows the shapes of its variables only once it has created
them, 1.3 GB for a large model. `tests/model/test_build.py` compares both. Those of heads are in `head_table.py`.
"""

import re

from bert_tf.config import BertConfig
from bert_tf.types import Shapes


def range_shapes(shapes: Shapes) -> Shapes:
    """Shapes of the ranges of an encoder that was fine-tuned for int8 (`ranges.Ranges`), by path.

    Args:
        shapes: of the encoder's variables by path, possibly among others.
    """
    kernels = {name: shape for name, shape in shapes.items() if re.fullmatch(r"layer_\d+/.*/kernel", name)}
    return {f"{name.removesuffix('kernel')}range": shape[:1] for name, shape in kernels.items()}


def encoder_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables of an encoder by path, in the order of the computation."""
    hidden, width = config.hidden_size, config.embedding_width
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings/word_embeddings": (config.vocab_size, width),
        "embeddings/position_embeddings": (config.position_offset + config.max_position_embeddings, width),
    }
    if config.type_vocab_size:
        shapes["embeddings/type_embeddings"] = (config.type_vocab_size, width)
    shapes |= norm_shapes("embeddings/norm", width)
    if config.embedding_size:
        shapes |= dense_shapes("embeddings/projection", width, hidden)
    for index in range(config.num_blocks):
        layer, inner = f"layer_{index}", config.layer_intermediates[index]
        attended = config.layer_heads[index] * config.head_size
        shapes |= dense_shapes(f"{layer}/attention/qkv", hidden, 3 * attended)
        shapes |= dense_shapes(f"{layer}/attention/output", attended, hidden)
        shapes |= norm_shapes(f"{layer}/attention_norm", hidden)
        shapes |= dense_shapes(f"{layer}/intermediate", hidden, inner)
        shapes |= dense_shapes(f"{layer}/output", inner, hidden)
        shapes |= norm_shapes(f"{layer}/output_norm", hidden)
    if config.norm == "pre":
        shapes |= norm_shapes("final_norm", hidden)
    return shapes | (dense_shapes("pooler", hidden, hidden) if config.pooler else {})


def dense_shapes(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables of a dense layer by path."""
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm_shapes(name: str, size: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables of a LayerNorm by path."""
    return {f"{name}/gamma": (size,), f"{name}/beta": (size,)}
