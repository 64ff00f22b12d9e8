"""Conversion of dataclasses from and to dicts, with errors that name the field."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from bert_tf.errors import ConfigError
from bert_tf.types import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Config = TypeVar("_Config", bound="DataclassInstance")

# Names and values up to version 0.1, by dataclass: files from that time can still be read.
_OLD_NAMES = {
    "ExampleData": {"evaluation": "validation"},
    "PretrainConfig": {"heldout": "validation"},
    "TrainConfig": {"max_bad_steps": "max_nonfinite_steps"},
}
_OLD_VALUES = {
    "BertConfig": {"attention": {"both": "bidirectional", "left": "causal"}},
    "PretrainingData": {"masking": {"next_token": "causal_lm"}},
}


def to_dict(config: "DataclassInstance") -> Json:
    """Converts a dataclass to a dict of JSON-ready values."""
    return dataclasses.asdict(config)


def unknown_field(cls: type[Any], name: str, where: str = "") -> str:
    """The error message for a field that the dataclass `cls` lacks, with its new name or the closest match.

    Args:
        cls: the dataclass.
        name: the unknown field.
        where: path of the dataclass in its config, such as "train"; "" for the name of the class.
    """
    if new := _OLD_NAMES.get(cls.__name__, {}).get(name):
        return f"{where or cls.__name__} no longer has a field {name!r}; use {new!r}"
    fields = [field.name for field in dataclasses.fields(cls)]
    near = difflib.get_close_matches(name, fields, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(fields)}"
    return f"{where or cls.__name__} has no field {name!r}; {hint}"


def check_renamed(config: object, name: str) -> None:
    """Raises ConfigError if the value of a field has been renamed."""
    value = getattr(config, name)
    if new := _OLD_VALUES.get(type(config).__name__, {}).get(name, {}).get(value):
        raise ConfigError(f"{name}={value!r} has been renamed; use {new!r}")


def with_new_names(cls: type[Any], values: Json) -> Json:
    """Replaces old names of fields and values in a dict of the dataclass `cls` that version 0.1 or later saved."""
    values = {_OLD_NAMES.get(cls.__name__, {}).get(name, name): value for name, value in values.items()}
    for name, new in _OLD_VALUES.get(cls.__name__, {}).items():
        if name in values:
            values[name] = new.get(values[name], values[name])
    for field in dataclasses.fields(cls):
        kind = field.type
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(values.get(field.name), dict):
            values[field.name] = with_new_names(kind, values[field.name])
    return values


def from_dict(cls: type[_Config], values: Mapping[str, Any], where: str = "") -> _Config:
    """Builds the dataclass `cls` from a dict, and nested dataclasses from nested dicts.

    Args:
        cls: the dataclass.
        values: its fields by name.
        where: path of `values` in the whole config for error messages, such as "train."; "" for the whole.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    arguments = {}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(unknown_field(cls, name, where.rstrip(".")))
        kind = fields[name].type
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
            value = from_dict(kind, value, f"{where}{name}.")
        arguments[name] = value
    return cls(**arguments)
