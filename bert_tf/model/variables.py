"""Names and shapes of a model's variables without building it; checkpoint formats map to them.

They repeat what the layers do, because a layer of Keras knows the shapes of its variables only once it has created
them, 1.3 GB for a large model. `tests/model/test_build.py` compares both for every head.
"""

import re
from typing import Any

from bert_tf.config import BertConfig, FeatureConfig
from bert_tf.types import Shapes

# Heads, and whether their output size is a free number of labels.
HEADS = {
    "pretraining": False,  # masked language model and next-sentence prediction
    "masked_lm": False,
    "next_sentence": False,
    "replaced_token_detection": False,  # whether each token was replaced (ELECTRA)
    "classification": True,  # on the pooled output
    "tagging": True,  # on every token
    "question_answering": False,  # start and end of the answer span
    "multiple_choice": False,  # one score per choice, on its pooled output
    "cosine": False,  # of two texts encoded separately; has no weights
    "classification_bilstm": True,  # this and the next: on a BiLSTM over all tokens
    "tagging_bilstm": True,
    "intent_and_slots": True,  # on the pooled output and on every token
}
# The layers of a BiLSTM, in the names of its variables.
BILSTM_LAYERS = 2
BILSTM_DIRECTIONS = ("forward", "backward")
# Heads that need a pooler.
ON_POOLED = ("pretraining", "next_sentence", "classification", "multiple_choice", "intent_and_slots")


def variable_shapes(
    config: BertConfig,
    head: str | None = None,
    labels: int | tuple[int, int] | None = None,
    features: FeatureConfig | None = None,
) -> dict[str, tuple[int, ...]]:
    """Shapes of the variables of an encoder, or of a model with a head.

    Args:
        config: shape of the encoder.
        head: a key of `HEADS`, or None for the bare encoder.
        labels: output size, for heads with labels; of "intent_and_slots" those of both outputs.
        features: layers that a BiLSTM reads; None for the last layer.

    Returns:
        Shape by variable path, in the order of the computation.
    """
    return _encoder_shapes(config) | (_head_shapes(config, head, labels, features) if head else {})


def range_shapes(shapes: Shapes) -> Shapes:
    """Shapes of the ranges of an encoder that was fine-tuned for int8 (`ranges.Ranges`), by path.

    Args:
        shapes: of the encoder's variables by path, possibly among others.
    """
    kernels = {name: shape for name, shape in shapes.items() if re.fullmatch(r"layer_\d+/.*/kernel", name)}
    return {f"{name.removesuffix('kernel')}range": shape[:1] for name, shape in kernels.items()}


def _encoder_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    hidden, width = config.hidden_size, config.embedding_width
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings/word_embeddings": (config.vocab_size, width),
        "embeddings/position_embeddings": (config.position_offset + config.max_position_embeddings, width),
    }
    if config.type_vocab_size:
        shapes["embeddings/type_embeddings"] = (config.type_vocab_size, width)
    shapes |= _norm("embeddings/norm", width)
    if config.embedding_size:
        shapes |= _dense("embeddings/projection", width, hidden)
    for index in range(config.num_blocks):
        layer, inner = f"layer_{index}", config.layer_intermediates[index]
        attended = config.layer_heads[index] * config.head_size
        shapes |= _dense(f"{layer}/attention/qkv", hidden, 3 * attended)
        shapes |= _dense(f"{layer}/attention/output", attended, hidden)
        shapes |= _norm(f"{layer}/attention_norm", hidden)
        shapes |= _dense(f"{layer}/intermediate", hidden, inner)
        shapes |= _dense(f"{layer}/output", inner, hidden)
        shapes |= _norm(f"{layer}/output_norm", hidden)
    if config.norm == "pre":
        shapes |= _norm("final_norm", hidden)
    return shapes | (_dense("pooler", hidden, hidden) if config.pooler else {})


def _head_shapes(
    config: BertConfig, head: str, labels: int | tuple[int, int] | None, features: FeatureConfig | None
) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    if isinstance(labels, tuple):
        return _dense("intent", hidden, labels[0]) | _dense("slots", hidden, labels[1])
    outputs: Any = labels  # None only where `head` has no labels, and its shapes do not depend on them
    masked_lm = {
        **_dense("masked_lm/transform", hidden, config.embedding_width),
        **_norm("masked_lm/norm", config.embedding_width),
        "masked_lm/bias": (config.vocab_size,),
    }
    next_sentence = _dense("next_sentence", hidden, 2)
    width = features.width if features else 1
    bilstm = {
        f"bilstm_{layer}_{direction}/lstm_cell/{name}": shape
        for layer in range(BILSTM_LAYERS)
        for direction in BILSTM_DIRECTIONS
        for name, shape in {
            "kernel": (2 * hidden if layer else width * hidden, 4 * hidden),
            "recurrent_kernel": (hidden, 4 * hidden),
            "bias": (4 * hidden,),
        }.items()
    } | _dense("classifier", 2 * hidden, outputs)
    return {
        "pretraining": masked_lm | next_sentence,
        "masked_lm": masked_lm,
        "next_sentence": next_sentence,
        "replaced_token_detection": _dense("detector/transform", hidden, hidden) | _dense("detector/output", hidden, 1),
        "classification": _dense("classifier", hidden, outputs),
        "tagging": _dense("classifier", hidden, outputs),
        "question_answering": _dense("span", hidden, 2),
        "multiple_choice": _dense("classifier", hidden, 1),
        "cosine": {},
        "classification_bilstm": bilstm,
        "tagging_bilstm": bilstm,
    }[head]


def _dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (size,), f"{name}/beta": (size,)}
