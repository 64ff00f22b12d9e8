"""Names and shapes of an encoder's variables without building it; checkpoint formats map to them.

They repeat what the layers do, because a layer of Keras knows the shapes of its variables only once it has created
them, 1.3 GB for a large model. `tests/model/test_build.py` compares both. Those of heads are in `head_table.py`.
"""

import functools
import re

from bert_tf.config import BertConfig
from bert_tf.config.model import has_bias
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
    shapes: dict[str, tuple[int, ...]] = {"embeddings/word_embeddings": (config.vocab_size, width)}
    if config.position_rows:
        shapes["embeddings/position_embeddings"] = (config.position_rows, width)
    if config.type_vocab_size:
        shapes["embeddings/type_embeddings"] = (config.type_vocab_size, width)
    norm = functools.partial(norm_shapes, offset=config.norm_offset)
    shapes |= norm("embeddings/norm", width)
    if config.embedding_size:
        shapes |= dense_shapes("embeddings/projection", width, hidden)
    for index in range(config.num_blocks):
        layer, inner = f"layer_{index}", config.layer_intermediates[index]
        attended = config.layer_heads[index] * config.head_size
        sizes = {
            "attention/qkv": (hidden, 3 * attended),
            "attention/output": (attended, hidden),
            "intermediate": (hidden, (config.feed_forward_matrices - 1) * inner),
            "output": (inner, hidden),
        }
        dense = {name: dense_shapes(f"{layer}/{name}", *sizes[name], bias=has_bias(config, name)) for name in sizes}
        shapes |= dense["attention/qkv"] | dense["attention/output"]
        if index or config.first_norm:
            shapes |= norm(f"{layer}/attention_norm", hidden)
        shapes |= dense["intermediate"] | dense["output"]
        shapes |= norm(f"{layer}/output_norm", hidden)
    if config.norm == "pre":
        shapes |= norm("final_norm", hidden)
    if not config.pooler:
        return shapes
    if config.head_transform:
        return shapes | transform_shapes("pooler", config)
    return shapes | dense_shapes("pooler", hidden, hidden, bias=config.biases)


def transform_shapes(name: str, config: BertConfig, size: int = 0) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables of a dense layer and a LayerNorm before the last layer of a head, by path.

    Args:
        size: of the output; 0 for that of the hidden states.
    """
    size, is_masked_lm = size or config.hidden_size, name == "masked_lm"
    dense = f"{name}/{'transform' if is_masked_lm else 'dense'}"
    norm = norm_shapes(f"{name}/norm", size, offset=config.norm_offset)
    return dense_shapes(dense, config.hidden_size, size, bias=config.biases) | norm


def dense_shapes(name: str, inputs: int, outputs: int, *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables of a dense layer by path."""
    return {f"{name}/kernel": (inputs, outputs)} | ({f"{name}/bias": (outputs,)} if bias else {})


def norm_shapes(name: str, size: int, *, offset: bool = True) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables of a LayerNorm by path."""
    return {f"{name}/{vector}": (size,) for vector in ("gamma", "beta")[: 2 if offset else 1]}
