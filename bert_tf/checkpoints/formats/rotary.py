"""Rotary positions in config.json (transformers, modeling_rope_utils), and the blocks of nomic_bert and GTE."""

from collections.abc import Sequence
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.types import Json

# Fields of BertConfig that have one value in nomic_bert and GTE.
CONSTANTS: Json = {"positions": "rotary", "feed_forward": "gated"}


class Parts:
    """Reads and writes the base of rotary positions.

    Args:
        default: the base if config.json has none.
        older: other keys of config.json, which are not written.
    """

    fields: tuple[str, ...] = ("rotary_base",)

    def __init__(self, default: float, older: Sequence[str] = ()) -> None:
        self.settings = ("rope_parameters", "rope_theta", "rope_scaling", *older)
        self._default = default

    def read(self, settings: Json, file: str) -> dict[str, Any]:
        """The values of `fields`; DataError, which names `file`, for what nothing here computes."""
        rotary = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
        return {"rotary_base": base_of(rotary, settings.get("rope_theta"), self._default, file)}

    def write(self, config: BertConfig) -> Json:
        """The settings of a model, in today's key and the one before."""
        base = config.rotary_base
        return {"rope_parameters": {"rope_type": "default", "rope_theta": base}, "rope_theta": base}


def base_of(rotary: Json, old: float | None, default: float, file: str) -> float:
    """The base of rotary positions.

    Args:
        rotary: an object of `rope_parameters` or `rope_scaling`; DataError if it changes more than the base.
        old: from a key before `rope_parameters`, if there is one.
        default: if nothing names it.
        file: path of config.json, for errors.
    """
    if not isinstance(rotary, dict):
        raise DataError(f"{file}: rope_parameters has {rotary!r}; expected an object")
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind != "default":
        raise DataError(f"{file}: rope_type {kind!r}; expected 'default': nothing else is supported")
    found = next(value for value in (rotary.get("rope_theta"), old, default) if value is not None)
    if type(found) not in (int, float):
        raise DataError(f"{file}: rope_theta {found!r}; expected a number")
    return float(found)
