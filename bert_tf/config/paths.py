"""Paths of settings, such as train.phases[0].share: which there are, and what is meant by others."""

import dataclasses
import difflib
import re
from typing import Any

from bert_tf.errors import ConfigError

_LISTED = 20  # most names that a message lists
# What settings are called in Keras and Transformers.
OTHER_NAMES = {
    "lr": "learning_rate",
    "nb_epoch": "epochs",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "train_batch_size": "batch_size",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "gradient_checkpointing": "remat",
    "warmup_ratio": "warmup",
    "max_grad_norm": "clip_norm",
    "early_stopping_patience": "patience",
    "load_best_model_at_end": "keep_best",
    "steps_per_execution": "steps_per_call",
    "validation_freq": "evaluate_every",
    "eval_steps": "evaluate_every",
    "save_steps": "save_every",
    "logging_steps": "log_every",
    "mixed_precision": "dtype",
    "fp16": "dtype",
    "bf16": "dtype",
    "max_seq_length": "max_length",
    "class_weight": "class_weights",
}


def path_of(where: str, name: str) -> str:
    """The path of a field in what has the path `where`, "" for a whole config."""
    return f"{where}.{name}" if where else name


def unknown_field(cls: type[Any], name: str, where: str = "") -> str:
    """The error message for a field that the dataclass `cls` lacks, with the closest match.

    Args:
        cls: the dataclass.
        name: the unknown field.
        where: path of the dataclass in its config, such as "train"; "" for the name of the class.
    """
    return f"{where or cls.__name__} has no field {name!r}; {hint_at_field(cls, name)}"


def hint_at_field(cls: type[Any], name: str) -> str:
    """The end of an error message for a field that the dataclass `cls` lacks: what was meant, or what there is."""
    fields = [field.name for field in dataclasses.fields(cls)]
    near = [one for one in (OTHER_NAMES.get(name),) if one in fields] or difflib.get_close_matches(name, fields, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(fields)}" if len(fields) <= _LISTED else f"see bert_tf.config.{cls.__name__}"


def paths_to(config: object, name: str, path: str) -> list[str]:
    """The paths of the fields with this name, or one that other libraries give them, in a dataclass."""
    if not dataclasses.is_dataclass(config):
        return []
    fields = [field.name for field in dataclasses.fields(config)]
    own = [f"{path}.{one}" for one in (name, OTHER_NAMES.get(name)) if one in fields]
    return own + [inner for one in fields for inner in paths_to(getattr(config, one), name, f"{path}.{one}")]


def check_path(config: Any, path: str, flag: str) -> None:
    """Raises ConfigError unless a path such as "train.phases[0].share" leads to a field that can be set."""
    if not re.fullmatch(r"\w+(?:\.\w+|\[-?\d{1,9}\])*", path):
        raise ConfigError(f"expected the name of a field, such as {flag}{first_field(config)}")
    value, where = config, ""
    for part in re.findall(r"\w+|\[-?\d+\]", path):
        if part.startswith("["):
            if not isinstance(value, list | tuple):
                raise ConfigError(f"{where} has no entries")
            number = int(part[1:-1])
            if not -len(value) <= number < len(value):
                raise ConfigError(f"{where}{part}: out of range; the config file has fewer entries (the first is [0])")
            value, where = value[number], where + part
        elif not dataclasses.is_dataclass(value):
            raise ConfigError(f"{where} has no fields")
        elif part not in {field.name for field in dataclasses.fields(value)}:
            raise ConfigError(unknown_field(type(value), part, where))
        else:
            value, where = getattr(value, part), path_of(where, part)
    if dataclasses.is_dataclass(value):
        raise ConfigError(f"expected one of its fields, such as {flag}{where}.{first_field(value)}")
    if path.endswith("]"):
        raise ConfigError(f"expected the whole tuple: {flag}{where.rpartition('[')[0]}")


def first_field(config: Any) -> str:
    """The name of the first field of a dataclass, as an example."""
    return dataclasses.fields(config)[0].name
