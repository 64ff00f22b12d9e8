"""bert_config.json and albert_config.json of google-research's formats: Google's settings, and a part of our own."""

import os

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.checkpoints import directory
from bert_tf.checkpoints.formats.google_families import BERT, Family
from bert_tf.checkpoints.stored_model import Checkpoint, check_width, foreign_config
from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.files import MOST_GRAPH, read_bytes
from bert_tf.types import Json

FILE = BERT.config
# The key of bert_config.json under which `to_settings` keeps everything that has no key of Google's;
# BertConfig.from_dict of modeling.py accepts unknown keys.
OURS = "bert_tf"
_ACTIVATIONS = {"tanh_gelu": "gelu", "erf_gelu": "gelu", "relu": "relu"}
_GROUPS = ("num_hidden_groups", "inner_group_num")  # of ALBERT's layers: each has weights of its own


def read_description(settings: Json, file: str) -> Checkpoint:
    """A Checkpoint without tensors from a bert_config.json that `to_settings` made; `file` is for errors."""
    location = f"{file}, {OURS!r}"
    if not isinstance(settings[OURS], dict):
        raise DataError(f"{location}: a JSON {type(settings[OURS]).__name__}; expected an object, {{...}}")
    described = directory.from_description(settings[OURS], location)
    for field, value in _settings(described.config).items():
        if settings.get(field) != value:
            raise DataError(
                f"{file}: {field} is {settings.get(field)!r}, but the part {OURS!r} makes it {value!r}; restore "
                "the one that was edited, or change both"
            )
    return directory.with_tokenizer(described, settings[OURS], file)


def read_config(settings: Json, file: str, family: Family, meta: str, warnings: list[str]) -> BertConfig:
    """BertConfig of a file that Google's code wrote; only the variables tell whether there is a pooler.

    Args:
        settings: the content of the file.
        file: its path, for errors.
        family: of the model.
        meta: path of the graph that training saved with the checkpoint; it need not exist.
        warnings: guesses are appended to it.
    """
    if "vocab_size" not in settings:
        raise DataError(f"{file}: no 'vocab_size'; expected the {family.config} of a model of google-research")
    for name in _GROUPS:
        if settings.get(name, 1) != 1:
            raise DataError(
                f"{file}: {name} {settings[name]!r}; expected 1: only one block for all layers is supported"
            )
    values = {ours: settings[theirs] for ours, theirs in family.fields.items() if theirs in settings}
    values = dict(family.defaults) | values
    if "embedding_size" in values:
        check_width(values, file)
        if values["embedding_size"] == values["hidden_size"]:
            values["embedding_size"] = 0  # no projection
    activation = settings.get("hidden_act", "gelu")
    if str(activation).lower() not in _ACTIVATIONS.values():
        raise DataError(f"{file}: hidden_act {activation!r}; expected gelu or relu")
    values["activation"] = family.gelu if activation.lower() == "gelu" else "relu"
    if not values["activation"]:
        values["activation"], note = _gelu(meta)
        warnings.append(note)
    return foreign_config(values, family.fields, file)


def other_settings(settings: Json) -> Json:
    """The settings in bert_config.json to write back unchanged: all that `to_settings` does not generate."""
    return {name: value for name, value in settings.items() if name not in (*BERT.fields.values(), "hidden_act", OURS)}


def to_settings(checkpoint: Checkpoint, others: Json) -> Json:
    """The content of bert_config.json: Google's settings and `others`, sorted by name, then our part."""
    settings = _settings(checkpoint.config) | others
    return dict(sorted(settings.items())) | {OURS: directory.description(checkpoint)}


def _settings(config: BertConfig) -> Json:
    """A BertConfig as Google's settings."""
    return {theirs: getattr(config, ours) for ours, theirs in BERT.fields.items()} | {
        "hidden_act": _ACTIVATIONS[config.activation]
    }


def _gelu(meta: str) -> tuple[str, str]:
    """The activation called "gelu", by the graph that training saved with a checkpoint, and a warning.

    google-research/bert changed it from erf to tanh (commit bee6030), and its config has one name for both.
    """
    if not os.path.exists(meta):
        return "tanh_gelu", "gelu: assumed to be by tanh, as in google-research/bert since 2019; before, it was by erf"
    content = read_bytes(meta, most=MOST_GRAPH)
    try:
        nodes = tf.compat.v1.MetaGraphDef.FromString(content).graph_def.node
    except DecodeError:
        raise DataError(
            f"{meta}: not a graph, or truncated; copy it again: it tells which gelu the model has, which is taken to "
            "be by tanh without it"
        ) from None
    erf = any(node.op in ("Erf", "Erfc") for node in nodes if "/intermediate/" in node.name)
    kind = "erf" if erf else "tanh"
    return f"{kind}_gelu", f"gelu: computed by {kind}, as in {meta}"
