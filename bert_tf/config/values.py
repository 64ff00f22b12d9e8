"""Dataclasses from dicts and back, with errors that name the field."""

import dataclasses
import difflib

from bert_tf.errors import ConfigError


def to_dict(config):
    """A dataclass as plain, JSON-ready values."""
    return dataclasses.asdict(config)


def unknown_field(cls, name, where=""):
    """What an error says of a field that the dataclass `cls` lacks, with the nearest one it has."""
    fields = [field.name for field in dataclasses.fields(cls)]
    near = difflib.get_close_matches(name, fields, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(fields)}"
    return f"{where or cls.__name__} has no field {name!r}; {hint}"


def from_dict(cls, values, where=""):
    """The dataclass `cls` from a dict; nested dataclasses from nested dicts.

    Raises:
        ConfigError: for a key that `cls` lacks, with the nearest one it has.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    arguments = {}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(unknown_field(cls, name, where.rstrip(".")))
        kind = fields[name].type
        nested = dataclasses.is_dataclass(kind) and isinstance(value, dict)
        arguments[name] = from_dict(kind, value, f"{where}{name}.") if nested else value
    return cls(**arguments)
