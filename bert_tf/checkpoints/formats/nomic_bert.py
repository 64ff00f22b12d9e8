"""nomic_bert's first config.json, in the keys of GPT-2 (nomic-ai/contrastors, models/huggingface)."""

from typing import Any

from bert_tf.errors import DataError
from bert_tf.types import Json

# Their key -> today's.
_RENAMED = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
}
_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu"}
# Key -> what the code took it to be if it was missing, and what it must be.
_EXPECTED: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (True, False)),
    **dict.fromkeys(("prenorm", "parallel_block", "use_rms_norm", "causal", "rotary_emb_interleaved"), (False, False)),
    **dict.fromkeys(("rotary_emb_scale_base", "num_experts"), (None, None)),
    "rotary_emb_fraction": (0.0, 1.0),
}
KEYS = (*_RENAMED, *_EXPECTED, "activation_function", "embd_pdrop", "rotary_scaling_factor", "max_trained_positions")


def todays_settings(settings: Json, file: str) -> Json:
    """The settings in today's keys; DataError, which names `file`, for what nothing here computes."""
    if "n_embd" not in settings:
        return settings
    for name, (missing, expected) in _EXPECTED.items():
        if settings.get(name, missing) != expected:
            found = repr(settings[name]) if name in settings else f"is missing, so {missing!r}"
            raise DataError(f"{file}: {name} {found}; expected {expected!r}: nothing else is supported")
    activation = settings.get("activation_function")
    if activation not in _ACTIVATIONS:
        choices = " or ".join(map(repr, _ACTIVATIONS))
        raise DataError(f"{file}: activation_function {activation!r}; expected {choices}: nothing else is supported")
    made = {today: settings[old] for old, today in _RENAMED.items() if settings.get(old) is not None}
    made["hidden_act"] = _ACTIVATIONS[activation]
    if settings.get("rotary_scaling_factor") is not None:
        # Longer texts would be rotated by another base.
        made["max_position_embeddings"] = settings.get("max_trained_positions", 2048)
    return settings | made
