"""bert_config.json of a directory in google-research/bert's layout: its settings, and a part of ours."""

import dataclasses
import os

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.checkpoints import directory
from bert_tf.config import BertConfig
from bert_tf.errors import BertTfError, DataError

FILE = "bert_config.json"
# The key of bert_config.json under which `written` keeps what Google's own keys can not say; BertConfig.from_dict of
# modeling.py takes keys that it does not know.
OURS = "bert_tf"
_FIELDS = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
}
_DEFAULTS = {"type_vocab_size": 16}  # of modeling.py, where it is not BertConfig's here
_ACTIVATIONS = {"tanh_gelu": "gelu", "erf_gelu": "gelu", "relu": "relu"}


def read_described(settings, file):
    """Keyword arguments of Checkpoint from a bert_config.json that `written` made.

    Args:
        settings: dict.
        file: its path, for errors.

    Raises:
        DataError: our part is broken, or Google's was changed since.
    """
    where = f"{file}, {OURS!r}"
    if not isinstance(settings[OURS], dict):
        raise DataError(f"{where}: a JSON {type(settings[OURS]).__name__}; expected an object, {{...}}")
    described = directory.described(settings[OURS], where)
    for field, value in _settings(described["config"]).items():
        if settings.get(field) != value:
            raise DataError(
                f"{file}: {field} is {settings.get(field)!r}, but the part {OURS!r} makes it {value!r}; change both, "
                "or remove that part"
            )
    return described


def read_config(settings, file, meta, warnings):
    """BertConfig of one of Google's own; whether there is a pooler only the variables say.

    Args:
        settings: dict.
        file: its path, for errors.
        meta: path of the graph that training saved with the checkpoint; it need not be there.
        warnings: list that a guess is added to.

    Raises:
        DataError: a setting that is missing, of another type or unknown, by name; a graph that is broken.
    """
    if "vocab_size" not in settings:
        raise DataError(f"{file}: no 'vocab_size'; expected the {FILE} of a BERT model")
    values = _DEFAULTS | {ours: settings[theirs] for theirs, ours in _FIELDS.items() if theirs in settings}
    numbers = {field.name: field.type for field in dataclasses.fields(BertConfig)}
    for theirs, ours in _FIELDS.items():
        if ours in values and type(values[ours]) not in (int, numbers[ours]):
            raise DataError(f"{file}: {theirs} is {values[ours]!r}; expected {numbers[ours].__name__}")
    activation = settings.get("hidden_act", "gelu")
    if str(activation).lower() not in _ACTIVATIONS.values():
        raise DataError(f"{file}: hidden_act {activation!r}; expected gelu or relu")
    if activation.lower() == "gelu":
        values["activation"], note = _gelu(meta)
        warnings.append(note)
    else:
        values["activation"] = "relu"
    try:
        return BertConfig(**values).check()
    except BertTfError as error:
        raise DataError(f"{file}: {error}") from None


def kept(settings):
    """What of bert_config.json to write back: all but what `written` makes anew."""
    return {name: value for name, value in settings.items() if name not in (*_FIELDS, "hidden_act", OURS)}


def written(checkpoint, others):
    """The dict of bert_config.json: Google's settings and `others`, by name, and our part."""
    settings = _settings(checkpoint.config) | others
    return dict(sorted(settings.items())) | {OURS: directory.description(checkpoint)}


def _settings(config):
    """Google's settings of a BertConfig."""
    return {theirs: getattr(config, ours) for theirs, ours in _FIELDS.items()} | {
        "hidden_act": _ACTIVATIONS[config.activation]
    }


def _gelu(meta):
    """How "gelu" was computed, by the graph that training saved with a checkpoint: activation, and a note.

    google-research/bert changed it from erf to tanh (commit bee6030) and its config calls both by one name.
    """
    if not os.path.exists(meta):
        return "tanh_gelu", "gelu is taken as by tanh, as in google-research/bert since 2019; before, it was by erf"
    with open(meta, "rb") as file:
        try:
            nodes = tf.compat.v1.MetaGraphDef.FromString(file.read()).graph_def.node
        except DecodeError:
            raise DataError(f"{meta}: not a graph, or cut short; remove it: the weights do not need it") from None
    erf = any(node.op in ("Erf", "Erfc") for node in nodes if "/intermediate/" in node.name)
    kind = "erf" if erf else "tanh"
    return f"{kind}_gelu", f"gelu is by {kind}, as in {meta}"
