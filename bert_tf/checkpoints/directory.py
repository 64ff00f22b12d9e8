"""This project's own format: config.json, model.safetensors, vocab.txt in one directory.

config.json names the format and its version, the BertConfig, the tokenizer's settings and the task with its labels;
the tensors are named by the paths of the Keras variables. optimizer.safetensors is there where a checkpoint came with
Adam's slots.
"""

import os

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.stored_model import Checkpoint, head_of
from bert_tf.checkpoints.tensor import tensor_of, tensor_of_variable
from bert_tf.checkpoints.tensor_files.bundles import open_bundle
from bert_tf.checkpoints.tensor_files.safetensors import open_tensors, write_tensors
from bert_tf.checkpoints.weight_map import TensorMapping, read_mapped
from bert_tf.config import BertConfig, from_dict, run_with_new_names, to_dict
from bert_tf.config.values import with_new_names
from bert_tf.errors import BertTfError, DataError
from bert_tf.files import read_json_object, write_json
from bert_tf.model.variables import HEADS
from bert_tf.tasks import TASKS, FineTuningTask
from bert_tf.text.vocabulary import check_size, read_vocabulary, write_vocabulary

FORMAT = "bert_tf"
VERSION = 1
_STEP = "step"
RESULTS = "results.json"  # what a run measured, beside its model


def recognises(path):
    """Whether `path` is a directory of this format."""
    file = os.path.join(path, "config.json")
    return os.path.exists(file) and read_json_object(file).get("format") == FORMAT


def read(path, allow_pickle=False):
    """Opens a directory.

    Returns:
        Checkpoint.

    Raises:
        DataError: if the directory was not written by `write`, by a later version of it, or its parts do not fit.
    """
    file = os.path.join(path, "config.json")
    config = read_json_object(file)
    if config.get("format") != FORMAT:
        raise DataError(
            f'{path}: not a model of this project\'s; expected config.json with "format": "{FORMAT}": bring another '
            f"model in by python -m bert_tf.convert --format={FORMAT}"
        )
    checkpoint = Checkpoint(tensors={}, **described(config, file))
    vocab = os.path.join(path, "vocab.txt")
    # A model whose pieces are not WordPiece has no vocabulary here, and says so by having no settings for one.
    if checkpoint.tokenizer_settings:
        checkpoint.pieces = read_vocabulary(vocab)
        check_size(checkpoint.pieces, checkpoint.config.vocab_size, vocab)
    weights = os.path.join(path, "model.safetensors")
    store, shapes = open_tensors(weights), checkpoint.shapes()
    checkpoint.tensors = read_mapped({name: TensorMapping((name,)) for name in shapes}, shapes, store, weights)
    extra = sorted(store.keys() - shapes.keys())
    if checkpoint.task and not checkpoint.head:
        task = checkpoint.task["name"]
        checkpoint.unused_tensors = dict.fromkeys(extra, f"of the task {task!r}, which this version does not know")
    elif extra:
        raise DataError(f"{weights} does not hold the model that config.json describes: unknown {', '.join(extra)}")
    checkpoint.slots, checkpoint.step = _optimizer(path, checkpoint)
    return checkpoint


def _optimizer(path, checkpoint):
    """Adam's slots (dict "PATH/m", "PATH/v" -> Tensor) and the number of updates; {} and None where there are none."""
    shapes = {f"{name}/{slot}": tensor.shape for name, tensor in checkpoint.tensors.items() for slot in "mv"}
    file = os.path.join(path, "optimizer.safetensors")
    if os.path.exists(file):
        store = open_tensors(file)
        there = {name: shape for name, shape in shapes.items() if name in store}
        slots = read_mapped({name: TensorMapping((name,)) for name in there}, there, store, file)
        return slots, int(store[_STEP].read()[0]) if _STEP in store else None
    prefix = tf.train.latest_checkpoint(os.path.join(path, "checkpoints"))
    if not prefix:
        return {}, None
    try:
        return _optimizer_of_run(prefix, shapes, checkpoint.tensors)
    except DataError as error:  # the model itself is whole
        checkpoint.warnings.append(f"without the optimizer's state: {error}")
        return {}, None


def _optimizer_of_run(prefix, shapes, tensors):
    """The same from a training run's newest checkpoint, if the model is of that step."""
    store = open_bundle(prefix)
    table = {name: TensorMapping((_in_run(f"slots/{name}"),)) for name in shapes}
    weight, step = "embeddings/norm/gamma", _in_run("state")
    same = read_mapped(
        {weight: TensorMapping((_in_run(f"weights/{weight}"),))}, {weight: tensors[weight].shape}, store, prefix
    )
    if step not in store or not np.array_equal(same[weight].read(), tensors[weight].read()):
        raise DataError(f"{prefix} is of another step than the model; let the run come to its end")
    return read_mapped(table, shapes, store, prefix), int(store[step].read()[0])


def _in_run(name):
    """What `training.state.checkpoints` calls a variable; tf.train.Checkpoint doubles its dots."""
    return f"{name.replace('/', '..')}/.ATTRIBUTES/VARIABLE_VALUE"


def write(checkpoint, path):
    """Writes a Checkpoint into the directory `path`; config.json last, so a directory that has one is whole.

    Returns:
        dict path of a variable or slot -> what it is called there: the same.
    """
    os.makedirs(path, exist_ok=True)
    write_tensors(os.path.join(path, "model.safetensors"), checkpoint.tensors)
    if checkpoint.slots or checkpoint.step is not None:
        step = {} if checkpoint.step is None else {_STEP: tensor_of(np.array([checkpoint.step]), _STEP)}
        write_tensors(os.path.join(path, "optimizer.safetensors"), checkpoint.slots | step)
    if checkpoint.pieces:
        write_vocabulary(os.path.join(path, "vocab.txt"), checkpoint.pieces)
    write_json(os.path.join(path, "config.json"), {"format": FORMAT} | description(checkpoint))
    return {name: name for name in [*checkpoint.tensors, *checkpoint.slots]}


def description(checkpoint):
    """All of a Checkpoint but tensors and vocabulary, JSON-ready; other formats keep it beside their own settings."""
    return {
        "version": VERSION,
        "model": to_dict(checkpoint.config),
        "tokenizer": checkpoint.tokenizer_settings,
        "task": checkpoint.task,
    } | ({"origin": checkpoint.source_metadata} if checkpoint.source_metadata else {})


def described(config, where):
    """The keyword arguments of Checkpoint that `description` wrote; `where` is its file, for errors."""
    version = _part(where, config, "version")
    if not isinstance(version, int) or version > VERSION:
        raise DataError(f"{where}: format version {version}; this program reads up to {VERSION}: update bert_tf")
    try:
        model = from_dict(BertConfig, with_new_names(BertConfig, _part(where, config, "model"))).check()
    except (BertTfError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: {error}") from None
    task = _part(where, config, "task")
    if task and _part(where, task, "name") and HEADS.get(head_of(task)):
        _part(where, _part(where, task, "settings"), "labels")
    return {
        "config": model,
        "tokenizer_settings": _part(where, config, "tokenizer"),
        "task": task,
        "source_metadata": config.get("origin", {}),
    }


def save(path, model, encoder, task):
    """Writes a task's model.

    Args:
        path: directory, made if it is not there.
        model: what `task.build` made on `encoder`.
        encoder: BertEncoder.
        task: Task.
    """
    checkpoint = Checkpoint(
        config=encoder.config,
        tensors={variable.path: tensor_of_variable(variable) for variable in model.weights},
        task={"name": task.name, "settings": task.settings()},
        pieces=task.tokenizer.vocab,
        tokenizer_settings=task.tokenizer.get_config(),
    )
    write(checkpoint, path)


def read_results(folder):
    """The results.json of a run's folder: a dict, empty if the run has not ended.

    Raises:
        DataError: the file is damaged.
    """
    path = os.path.join(folder, RESULTS)
    return run_with_new_names(read_json_object(path)) if os.path.exists(path) else {}


def load_task(path, dtype=None):
    """A task and its model.

    Returns:
        Task, keras.Model.

    Raises:
        DataError: as `read`, and where the model has no task that this program knows.
    """
    checkpoint = read(path)
    if not checkpoint.task:
        raise DataError(f"{path}: a bare encoder, which answers nothing yet; fine-tune it: python -m bert_tf.finetune")
    name = checkpoint.task["name"]
    if name not in TASKS:
        raise DataError(f"{path}: no program for the task {name!r} in this version; it has {', '.join(TASKS)}")
    if not checkpoint.pieces:
        raise DataError(f"{path}: no vocab.txt, so no text can go in; use bert_tf.checkpoints.load_model with ids")
    task = TASKS[name].from_settings(checkpoint.task["settings"], checkpoint.tokenizer())
    return task, checkpoint.model(dtype)


def load_fine_tuned(path):
    """The same, of a task that has been fine-tuned.

    Raises:
        DataError: as `load_task`, and for a model that was only pre-trained.
    """
    task, model = load_task(path)
    if not isinstance(task, FineTuningTask):
        raise DataError(f"{path}: a {task.name} model answers no examples; fine-tune it: python -m bert_tf.finetune")
    return task, model


def _part(where, config, key):
    if key not in config:
        raise DataError(f"{where}: no {key!r}; expected the file as bert_tf wrote it")
    return config[key]
