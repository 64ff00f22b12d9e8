"""This project's own format: config.json, model.safetensors, vocab.txt in one directory.

config.json names the format and its version, the BertConfig, the tokenizer's settings and the task with its labels;
the tensors are named by the paths of the Keras variables, so an encoder is read from any task's file.
"""

import os

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bert_tf.checkpoints.weights import assign
from bert_tf.config import BertConfig, from_dict, to_dict
from bert_tf.errors import DataError
from bert_tf.files import read_json, replacing, write_json
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks import TASKS
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import check_size, write_vocabulary

FORMAT = "bert_tf"
VERSION = 1


def save(path, model, encoder, task):
    """Writes a task's model; config.json last, so a directory that has one is whole.

    Args:
        path: directory, made if it is not there.
        model: what `task.build` made on `encoder`.
        encoder: BertEncoder.
        task: Task.
    """
    os.makedirs(path, exist_ok=True)
    with replacing(os.path.join(path, "model.safetensors")) as temporary:
        save_file({variable.path: variable.numpy() for variable in model.weights}, temporary)
    write_vocabulary(os.path.join(path, "vocab.txt"), task.tokenizer.vocab)
    config = {
        "format": FORMAT,
        "version": VERSION,
        "model": to_dict(encoder.config),
        "tokenizer": task.tokenizer.get_config(),
        "task": {"name": task.name, "settings": task.settings()},
    }
    write_json(os.path.join(path, "config.json"), config)


def read_config(path):
    """The dict in a directory's config.json, of whatever layout."""
    config = read_json(os.path.join(path, "config.json"))
    if not isinstance(config, dict):
        raise DataError(f"{path}/config.json: a JSON {type(config).__name__}; expected an object, {{...}}")
    return config


def load(path, config, dtype=None):
    """BertEncoder and Tokenizer; see `bert_tf.load`."""
    encoder, tokenizer = _empty(path, config, dtype)
    _read_weights(path, encoder)
    return encoder, tokenizer


def load_task(path, dtype=None):
    """A task and its model.

    Returns:
        Task, keras.Model.

    Raises:
        DataError: if the directory was not written by `save`, or by a later version of it.
    """
    config = read_config(path)
    if config.get("format") != FORMAT:
        raise DataError(f'{path}: not a model of this project\'s; expected config.json with "format": "{FORMAT}"')
    encoder, tokenizer = _empty(path, config, dtype)
    name = _part(path, _part(path, config, "task"), "name")
    if name not in TASKS:
        raise DataError(f"{path}: the task {name!r} is unknown; expected one of {', '.join(TASKS)}")
    task = TASKS[name].from_settings(_part(path, _part(path, config, "task"), "settings"), tokenizer)
    model = task.build(encoder)
    _read_weights(path, model)
    return task, model


def _empty(path, config, dtype):
    if _part(path, config, "version") > VERSION:
        raise DataError(
            f"{path}: format version {config['version']}; this program reads up to {VERSION}: update bert_tf"
        )
    model_config = from_dict(BertConfig, _part(path, config, "model"))
    tokenizer = Tokenizer(os.path.join(path, "vocab.txt"), **_part(path, config, "tokenizer"))
    check_size(tokenizer.vocab, model_config.vocab_size)
    return BertEncoder(model_config, dtype=dtype), tokenizer


def _part(path, config, key):
    if key not in config:
        raise DataError(f"{path}/config.json: no {key!r}; expected the file as bert_tf wrote it")
    return config[key]


def _read_weights(path, model):
    file = os.path.join(path, "model.safetensors")
    try:
        with safe_open(file, framework="numpy") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
            assign(model.weights, shapes, tensors.get_tensor, file)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{file} can not be read: {error}; expected a safetensors file") from None
