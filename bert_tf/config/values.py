"""Dataclasses from dicts and back, with errors that name the field."""

import dataclasses
import difflib

from bert_tf.errors import ConfigError

# Names and values until version 0.1, by dataclass: files that were written then are still read.
_OLD_NAMES = {
    "ExampleData": {"evaluation": "validation"},
    "PretrainConfig": {"heldout": "validation"},
    "TrainConfig": {"max_bad_steps": "max_nonfinite_steps"},
}
_OLD_VALUES = {
    "BertConfig": {"attention": {"both": "bidirectional", "left": "causal"}},
    "PretrainingData": {"masking": {"next_token": "causal_lm"}},
}


def to_dict(config):
    """A dataclass as plain, JSON-ready values."""
    return dataclasses.asdict(config)


def unknown_field(cls, name, where=""):
    """The error message for a field that the dataclass `cls` lacks, with its new name or the nearest one."""
    if new := _OLD_NAMES.get(cls.__name__, {}).get(name):
        return f"{where or cls.__name__} has no field {name!r} any more; it is called {new!r} now"
    fields = [field.name for field in dataclasses.fields(cls)]
    near = difflib.get_close_matches(name, fields, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(fields)}"
    return f"{where or cls.__name__} has no field {name!r}; {hint}"


def check_renamed(config, name):
    """Raises ConfigError if a field has the old name of a value."""
    value = getattr(config, name)
    if new := _OLD_VALUES[type(config).__name__][name].get(value):
        raise ConfigError(f"{name}={value!r} is called {new!r} now; use that")


def with_new_names(cls, values):
    """Values of the dataclass `cls` as version 0.1 or later saved them, with today's names: a dict."""
    values = {_OLD_NAMES.get(cls.__name__, {}).get(name, name): value for name, value in values.items()}
    for name, new in _OLD_VALUES.get(cls.__name__, {}).items():
        if name in values:
            values[name] = new.get(values[name], values[name])
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.type) and isinstance(values.get(field.name), dict):
            values[field.name] = with_new_names(field.type, values[field.name])
    return values


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
