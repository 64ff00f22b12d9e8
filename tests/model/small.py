"""A small model with random weights, and inputs for it."""

import numpy as np
import pytest

from bert_tf.config import BertConfig
from bert_tf.model.mode import Mode, Seeds, computing
from bert_tf.model.processors import fastest

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!?'", "##e", "##s", "the", "good"]

# TensorFlow 2.21 uses oneDNN for products in bfloat16 and float16 if the processor has instructions for them; if a
# setting forbids oneDNN to use these instructions, the process ends with a segmentation fault.
multiplies_bfloat16 = pytest.mark.skipif(
    "ONEDNN_MAX_CPU_ISA" in fastest()[1], reason=f"TensorFlow crashes in products of bfloat16: {fastest()[1]}"
)
multiplies_float16 = multiplies_bfloat16  # processors with instructions for float16 have those for bfloat16
MIXED_BFLOAT16 = pytest.param("mixed_bfloat16", marks=multiplies_bfloat16)
MIXED_FLOAT16 = pytest.param("mixed_float16", marks=multiplies_float16)


def small_config(**overrides):
    shape = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64}
    return BertConfig(**({"vocab_size": len(PIECES), "max_position_embeddings": 24} | shape | overrides))


# The architectures of the family in small.
FAMILY = {
    "albert": {"embedding_size": 16, "shared_layers": True},
    "electra": {"embedding_size": 16, "activation": "erf_gelu", "pooler_activation": "erf_gelu"},
    "distilbert": {"activation": "erf_gelu", "type_vocab_size": 0, "pooler_activation": "relu"},
}
MODERNBERT = {
    "positions": "rotary", "rotary_base": 160.0, "local_rotary_base": 10.0, "local_layers": (1,), "local_distance": 3,
    "feed_forward": "gated", "activation": "erf_gelu", "norm": "pre", "biases": False, "norm_offset": False,
    "first_norm": False, "head_transform": True, "pooler_activation": "erf_gelu", "type_vocab_size": 0,
    "layer_norm_epsilon": 1e-5,
}  # fmt: skip
# Rotary positions and a gate with BERT's norms, and with biases in heads only, or in all layers but the gate.
NOMIC_BERT = {
    "positions": "rotary", "rotary_base": 10.0, "feed_forward": "gated", "activation": "silu",
    "unbiased_layers": ("attention/qkv", "attention/output", "intermediate", "output"),
}  # fmt: skip
GTE = {
    "positions": "rotary", "rotary_base": 160.0, "feed_forward": "gated", "activation": "erf_gelu",
    "unbiased_layers": ("intermediate",), "type_vocab_size": 1,
}  # fmt: skip
# Layers of different sizes, for two layers; heads keep their size.
PRUNED = {"heads_per_layer": (3, 1), "intermediate_sizes": (48, 16)}


def seeded(seed, **fields):
    """A context in which models compute as in a training step with this dropout seed; `fields` of the `Mode`."""
    return computing(Mode(seeds=Seeds(seed), **fields))


def randomize(model, seed=0, scale=0.3):
    """Gives every weight a random value: zero biases and unit scales would hide wrong uses of them."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(0, scale, variable.shape))
    return model


def features(lengths=(24, 7, 1, 13), width=24, seed=0):
    """Random encoder inputs with rows of these lengths, padded to `width`."""
    rng = np.random.default_rng(seed)
    mask = np.arange(width) < np.array(lengths)[:, None]
    return {
        "input_word_ids": np.where(mask, rng.integers(5, len(PIECES), mask.shape), 0).astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "input_type_ids": np.where(mask, rng.integers(0, 2, mask.shape), 0).astype(np.int32),
    }


def inputs_for(head):
    """Features for a model with this head (None or a key of HEADS)."""
    if head in ("multiple_choice", "cosine"):
        return {name: value.reshape(2, 2, -1) for name, value in features().items()}
    if head in ("pretraining", "masked_lm"):
        return features() | {"masked_lm_positions": np.array([[1, 2]] * 4, np.int32)}
    return features()
