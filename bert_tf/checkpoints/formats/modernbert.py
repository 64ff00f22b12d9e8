"""The parts of a ModernBERT's blocks in config.json (transformers, models/modernbert), in its old and its new keys."""

from typing import Any

from bert_tf.checkpoints.formats.rotary import base_of
from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.types import Json

# Fields of BertConfig that have one value in all models.
CONSTANTS: Json = {
    "type_vocab_size": 0,
    "positions": "rotary",
    "feed_forward": "gated",
    "norm": "pre",
    "first_norm": False,
    "head_transform": True,
    "activation": "erf_gelu",
    "pooler_activation": "erf_gelu",
}
_FULL, _LOCAL = "full_attention", "sliding_attention"
_POOLING = {"cls": "first", "mean": "mean"}
_BIASES = ("attention_bias", "mlp_bias", "classifier_bias")


class Parts:
    """Reads and writes the fields of BertConfig in which these models differ, besides sizes."""

    fields: tuple[str, ...] = (
        "biases",
        "norm_offset",
        "rotary_base",
        "local_rotary_base",
        "local_layers",
        "local_distance",
        "pooling",
    )
    settings: tuple[str, ...] = (
        *_BIASES,
        *("norm_bias", "decoder_bias", "layer_types", "rope_parameters", "rope_scaling", "local_attention"),
        *("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "sliding_window"),
        *("classifier_pooling", "classifier_activation"),
    )

    def read(self, settings: Json, file: str) -> dict[str, Any]:
        """The values of `fields`; DataError, which names `file`, for what nothing here computes."""

        def value(name: str, default: Any, *expected: Any) -> Any:
            found = settings.get(name, default)
            if found not in expected:
                listed = ", ".join(map(repr, expected))
                raise DataError(f"{file}: {name} {found!r}; expected {listed}: nothing else is supported")
            return found

        biases = [value(name, False, False, True) for name in _BIASES]
        if len({*biases}) > 1:
            found = ", ".join(f"{name} {bias}" for name, bias in zip(_BIASES, biases, strict=True))
            raise DataError(f"{file}: {found}; expected one value for all: nothing else is supported")
        value("decoder_bias", True, True)
        value("hidden_activation", "gelu", "gelu")
        value("classifier_activation", "gelu", "gelu")
        rotary = settings.get("rope_parameters") or {}
        base_of(settings.get("rope_scaling") or {}, None, 0.0, file)  # which changes more
        layers = int(settings["num_hidden_layers"])
        types = settings.get("layer_types")
        if types is None:
            every = settings.get("global_attn_every_n_layers", 3)
            if type(every) is not int or every < 1:
                raise DataError(f"{file}: global_attn_every_n_layers {every!r}; expected a whole number from 1")
            types = [_LOCAL if layer % every else _FULL for layer in range(layers)]
        if len(types) != layers:
            raise DataError(f"{file}: layer_types has {len(types)} entries; expected the {layers} of num_hidden_layers")
        if unknown := {*types} - {_FULL, _LOCAL}:
            raise DataError(f"{file}: layer_types has {min(unknown)!r}; expected {_FULL!r} or {_LOCAL!r}")
        return {
            "biases": biases[0],
            "norm_offset": value("norm_bias", False, False, True),
            "rotary_base": base_of(rotary.get(_FULL) or {}, settings.get("global_rope_theta"), 160_000.0, file),
            "local_rotary_base": base_of(rotary.get(_LOCAL) or {}, settings.get("local_rope_theta"), 10_000.0, file),
            "local_layers": tuple(layer for layer, kind in enumerate(types) if kind == _LOCAL),
            "local_distance": settings.get("local_attention", 128) // 2,
            "pooling": _POOLING[value("classifier_pooling", "cls", *_POOLING)],
        }

    def write(self, config: BertConfig) -> Json:
        """The settings of a model, in both kinds of keys where the old ones can say it."""
        local = [layer in config.local_layers for layer in range(config.num_layers)]
        every = next((layer for layer in range(1, len(local)) if not local[layer]), max(len(local), 1))
        regular = local == [bool(layer % every) for layer in range(len(local))]
        bases = {_FULL: config.rotary_base, _LOCAL: config.local_rotary_base}
        return {
            **dict.fromkeys(_BIASES, config.biases),
            "norm_bias": config.norm_offset,
            "decoder_bias": True,
            "layer_types": [_LOCAL if is_local else _FULL for is_local in local],
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
            **({"global_attn_every_n_layers": every} if regular else {}),
            "global_rope_theta": config.rotary_base,
            "local_rope_theta": config.local_rotary_base,
            "local_attention": 2 * config.local_distance,
            "classifier_pooling": next(theirs for theirs, ours in _POOLING.items() if ours == config.pooling),
            "classifier_activation": "gelu",
        }
