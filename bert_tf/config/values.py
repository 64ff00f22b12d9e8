"""Settings as dataclasses: the check of their values, and their conversion from and to dicts."""

import dataclasses
import difflib
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

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
_NOUNS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    types.NoneType: "None",
}
_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "at_least": (operator.ge, "from"),
    "above": (operator.gt, "above"),
    "at_most": (operator.le, "up to"),
    "below": (operator.lt, "but below"),
}


class Rule(TypedDict, total=False):
    """Limits of a number, or the values of a text, for each element of a tuple; and the end of the error message."""

    at_least: float
    above: float
    at_most: float
    below: float
    choices: tuple[str, ...]
    hint: str


def setting(default: Any, **rule: Unpack[Rule]) -> Any:
    """A field of a dataclass of settings, whose values `check_fields` restricts by `rule`."""
    return dataclasses.field(default=default, metadata=rule)


def check_fields(config: "DataclassInstance", where: str = "") -> None:
    """Raises ConfigError for the first field whose value does not have its type, or is outside its limits.

    Numbers must be finite. Nested dataclasses are checked by their own `check`.

    Args:
        config: the settings.
        where: their path in the whole config, such as "train"; "" for the whole.
    """
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{where}.{field.name}".lstrip(".")
        if _fits(value, field.type, field.metadata):
            continue
        old = _OLD_VALUES.get(type(config).__name__, {}).get(field.name, {})
        if isinstance(value, str) and value in old:
            raise ConfigError(f"{name}={value!r} has been renamed; use {old[value]!r}")
        expected = "; ".join([_expected(field.type, field.metadata), *filter(None, [field.metadata.get("hint")])])
        raise ConfigError(f"{name} is {repr(value)[:80]}; expected {expected}")


def _fits(value: Any, kind: Any, rule: Mapping[str, Any]) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_fits(value, one, rule) for one in typing.get_args(kind))
    if value is None:
        return kind in (types.NoneType, object)
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        return isinstance(value, tuple | list) and all(_fits(one, element, rule) for one in value)
    # To Python, True is a whole number.
    if isinstance(value, bool) and kind in (int, float):
        return False
    if not isinstance(value, (int, float) if kind is float else kind):
        return False
    if kind is float and not abs(value) <= sys.float_info.max:  # NaN is neither below nor above
        return False
    inside = all(test(value, rule[name]) for name, (test, _) in _LIMITS.items() if name in rule)
    return inside and value in rule.get("choices", (value,))


def _expected(kind: Any, rule: Mapping[str, Any]) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(_expected(one, rule) for one in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"a tuple, each element {_expected(typing.get_args(kind)[0], rule)}"
    if kind is types.NoneType:
        return "None"
    if "choices" in rule:
        return f"one of {', '.join(filter(None, rule['choices']))}"
    limits = [f"{words} {rule[name]:,}" for name, (_, words) in _LIMITS.items() if name in rule]
    return " ".join([_NOUNS.get(kind) or f"a {kind.__name__}", *limits])


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
