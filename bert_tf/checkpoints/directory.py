"""This project's own format: a directory with config.json, model.safetensors and the files of the tokenizer.

config.json holds the format and its version, the BertConfig, the tokenizer's settings and the task with its labels; the
tensors are named by the paths of the Keras variables. optimizer.safetensors is written if the checkpoint has Adam's
moments. Under "crc32", config.json lists the checksums of the other files, of .safetensors those of their headers,
which have the checksums of the tensors; and that of its own other content.
"""

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import keras
import numpy as np
from absl import logging

from bert_tf.checkpoints import run_files
from bert_tf.checkpoints.stored_model import Checkpoint, Written, head_of
from bert_tf.checkpoints.tensor import Tensor, number, tensor_of, tensor_of_variable
from bert_tf.checkpoints.tensor_files.safetensors import header_of, open_tensors, write_tensors
from bert_tf.checkpoints.weight_map import TensorMapping, first_names, read_mapped
from bert_tf.config import BertConfig, EmbeddingConfig, to_dict
from bert_tf.config.data import SavedTokenizer
from bert_tf.config.values import Rule, restored
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import (
    check_output,
    check_own_directory,
    check_unchanged,
    checked,
    checksum,
    read_json,
    remove_abandoned,
    to_json,
    write_json,
)
from bert_tf.model.encoder import BertEncoder, ranges_of
from bert_tf.model.head_table import HEADS
from bert_tf.model.variables import range_shapes
from bert_tf.tasks import TASKS, FineTuningTask
from bert_tf.tasks.task import Task, TaskDescription
from bert_tf.text import saved_tokenizer
from bert_tf.text.kinds import FILES as VOCABULARIES
from bert_tf.text.vocabulary import check_size
from bert_tf.types import Json, Shapes

FORMAT = "bert_tf"
VERSION = 1
_STEP = "step"
_CONFIG, _WEIGHTS, _OPTIMIZER = "config.json", "model.safetensors", "optimizer.safetensors"
_CHECKSUMS = "crc32"
# What may be in the directory of a model, and of its run.
FILES = (_CONFIG, _WEIGHTS, *VOCABULARIES, _OPTIMIZER, "conversion.json", *run_files.FILES)


class _Origin(TypedDict, total=False):
    format: str
    model_type: str
    settings: Json
    config: Json
    tokenizer_config: Json


class _Description(TypedDict):
    """What `description` returns. Other keys are ignored, but not in its parts, as a model may depend on them."""

    version: Annotated[int, Rule(at_least=1)]
    model: Json
    tokenizer: Json
    task: TaskDescription | None
    vectors: NotRequired[Json]
    origin: NotRequired[_Origin]
    crc32: NotRequired[dict[str, str]]  # by name of a file; earlier versions wrote none


def recognises(path: str) -> bool:
    """Whether `path` is a directory of this format."""
    file = os.path.join(path, "config.json")
    return os.path.exists(file) and read_json(file, Json).get("format") == FORMAT


def read(path: str, allow_pickle: bool = False) -> Checkpoint:
    """Opens a directory that `write` wrote."""
    file = os.path.join(path, "config.json")
    if not os.path.exists(file):
        raise DataError(f"{path or repr(path)}: no config.json; expected a directory that pretrain or finetune wrote")
    config = read_json(file, Json)
    if config.get("format") != FORMAT:
        raise DataError(
            f'{path}: not a bert_tf model; expected config.json with "format": "{FORMAT}"; convert other models with '
            f"python -m bert_tf.convert --format={FORMAT}"
        )
    checkpoint = with_tokenizer(from_description(config, file), config, file)
    weights = os.path.join(path, _WEIGHTS)
    checksums = config.get(_CHECKSUMS, {})
    for name in checksums.keys() & {_WEIGHTS, _OPTIMIZER}:
        part = os.path.join(path, name)
        if os.path.exists(part):  # people remove the optimizer's
            check_unchanged(part, header_of(part), checksums[name], file)
    if checksums.get(_CONFIG, content := _content_checksum(config)) != content:
        # Not an error: people rename labels in it, and what is read of it is checked.
        logging.warning("%s was changed after the model was written", file)
    store, shapes = open_tensors(weights), checkpoint.shapes()
    ranges = range_shapes(shapes)
    extra = sorted(store.keys() - shapes.keys() - ranges.keys())
    if checkpoint.task and not checkpoint.head:
        why = f"of the task {checkpoint.task['name']!r}, which this version does not have"
        checkpoint = checkpoint.reported(unused_tensors=dict.fromkeys(extra, why))
        extra = []
    checkpoint = dataclasses.replace(
        checkpoint,
        tensors=_same_names(shapes, store, weights),
        ranges=_same_names(ranges, store, weights) if store.keys() & ranges.keys() else {},
    )
    if extra:
        raise DataError(f"{weights} does not hold the model that config.json describes: unknown {first_names(extra)}")
    return _with_optimizer(path, checkpoint)


def _same_names(shapes: Shapes, store: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    """The tensors with these shapes by path, which is their name in the file."""
    return read_mapped({name: TensorMapping((name,)) for name in shapes}, shapes, store, file)


def _with_optimizer(path: str, checkpoint: Checkpoint) -> Checkpoint:
    """With Adam's moments and the number of updates, if they were saved."""
    shapes = {f"{name}/{moment}": tensor.shape for name, tensor in checkpoint.tensors.items() for moment in "mv"}
    file = os.path.join(path, _OPTIMIZER)
    if os.path.exists(file):
        store = open_tensors(file)
        saved = {name: shape for name, shape in shapes.items() if name in store}
        step = number(store[_STEP], file) if _STEP in store else None
        return dataclasses.replace(checkpoint, moments=_same_names(saved, store, file), step=step)
    try:
        moments, step = run_files.read_optimizer(path, shapes, checkpoint.tensors)
    except DataError as error:  # the model itself is complete
        return checkpoint.reported(f"optimizer state not read: {error}")
    return dataclasses.replace(checkpoint, moments=moments, step=step)


def write(checkpoint: Checkpoint, path: str) -> Written:
    """Writes a Checkpoint into the directory `path`; config.json comes last, so a directory that has it is complete.

    Files of an earlier model in this directory that the present one lacks are removed: they would be read as its own.
    """
    os.makedirs(path, exist_ok=True)
    remove_abandoned(path)
    write_tensors(os.path.join(path, _WEIGHTS), checkpoint.tensors | checkpoint.ranges)
    has_optimizer = bool(checkpoint.moments) or checkpoint.step is not None
    if has_optimizer:
        step = {} if checkpoint.step is None else {_STEP: tensor_of(np.array([checkpoint.step]), _STEP)}
        write_tensors(os.path.join(path, _OPTIMIZER), checkpoint.moments | step)
    if checkpoint.tokenizer:
        checkpoint.tokenizer.save(path)
    checksums = dict(checkpoint.tokenizer.checksums) if checkpoint.tokenizer else {}
    for name in (_WEIGHTS, *([_OPTIMIZER] if has_optimizer else [])):
        checksums[name] = checksum(header_of(os.path.join(path, name)))
    for name in {*VOCABULARIES, _OPTIMIZER, "conversion.json"}.difference(checksums):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(path, name))
    config = {"format": FORMAT} | description(checkpoint)
    checksums[_CONFIG] = _content_checksum(config)
    write_json(os.path.join(path, _CONFIG), config | {_CHECKSUMS: checksums})
    return Written({name: name for name in [*checkpoint.tensors, *checkpoint.moments]})


def _content_checksum(config: Json) -> str:
    """The checksum of config.json without the checksums, however it is laid out."""
    return checksum(to_json({name: value for name, value in config.items() if name != _CHECKSUMS}).encode())


def description(checkpoint: Checkpoint) -> Json:
    """A Checkpoint without tensors and files of the tokenizer, JSON-ready; google's bert_config.json embeds it too."""
    return {
        "version": VERSION,
        "model": to_dict(checkpoint.config),
        "tokenizer": checkpoint.tokenizer.description if checkpoint.tokenizer else {},
        "task": checkpoint.task,
        **({"vectors": to_dict(checkpoint.vectors)} if checkpoint.vectors else {}),
    } | ({"origin": checkpoint.source_metadata} if checkpoint.source_metadata else {})


def with_tokenizer(checkpoint: Checkpoint, described: Json, file: str) -> Checkpoint:
    """The result of `from_description` with the tokenizer, if any, of the files beside `file`."""
    if not described["tokenizer"]:
        return checkpoint
    folder = os.path.dirname(file)
    tokenizer = saved_tokenizer(folder, described["tokenizer"], described.get(_CHECKSUMS, {}), file)
    check_size(tokenizer.vocab, checkpoint.config.vocab_size, os.path.join(folder, tokenizer.FILES[0]))
    return dataclasses.replace(checkpoint, tokenizer=tokenizer)


def from_description(config: Mapping[str, Any], location: str) -> Checkpoint:
    """The inverse of `description`: a Checkpoint without tensors and tokenizer. `location` is its file, for errors."""
    version = config.get("version")
    if isinstance(version, int) and version > VERSION:
        raise DataError(f"{location}: format version {version}; this program reads up to {VERSION}: update bert_tf")
    described = checked(config, _Description, location)
    task = described["task"]
    try:
        model = restored(BertConfig, described["model"], "model").check()
        restored(SavedTokenizer, described["tokenizer"], "tokenizer")
        vectors = restored(EmbeddingConfig, described["vectors"], "vectors").check() if "vectors" in described else None
        if task and task["name"] in TASKS:
            TASKS[task["name"]].arguments(task["settings"])
    except ConfigError as error:
        raise DataError(f"{location}: {error}") from None
    head = HEADS.get(head_of(task) or "") if task else None
    if task and head and (missing := [name for name in head.labels if name not in task["settings"]]):
        raise DataError(f"{location}: no {missing[0]!r} in task.settings")
    length = task["settings"].get("max_length", 0) if task and task["name"] in TASKS else 0
    if length > model.max_position_embeddings:
        raise DataError(
            f"{location}: task.settings.max_length is {length}; expected up to the {model.max_position_embeddings} of "
            "model.max_position_embeddings"
        )
    if task and head and head.pooled and not model.pooler:
        raise DataError(f"{location}: model.pooler is false, but the task {task['name']!r} reads the pooled output")
    return Checkpoint(
        config=model,
        tensors={},
        task=dict(task) if task else None,
        vectors=vectors,
        source_metadata=dict(described.get("origin", {})),
    )


def save(path: str, model: keras.Model, encoder: BertEncoder, task: Task) -> None:
    """Writes a task's model into a directory, which is created if it does not exist; and others that it has trained.

    Args:
        path: directory.
        model, encoder, task: as for `stored`.

    Raises:
        ConfigError: as for `save_checkpoint`.
    """
    save_all(stored(model, encoder, task), path)


def stored(model: keras.Model, encoder: BertEncoder, task: Task) -> dict[str, Checkpoint]:
    """A task's model, and others that it has trained, as they are saved: by folder, "" for its own.

    Args:
        model: the result of `task.build(encoder)`, whose variables the tensors read.
        encoder: its encoder, for the config.
        task: its task, for settings and tokenizer.
    """
    tensors = {variable.path: tensor_of_variable(variable) for variable in model.weights}
    ranges = {path: tensor_of_variable(variable) for path, variable in ranges_of(model).by_path.items()}
    found = {}
    for folder, (own, config) in task.saved(encoder.config).items():
        checkpoint = Checkpoint(
            config=config,
            tensors=tensors,
            task={"name": own.name, "settings": own.settings()} if own else None,
            tokenizer=task.tokenizer,
            ranges={} if folder else ranges,
            vectors=task.vectors if not own else None,
        )
        if checkpoint.head or not own:  # not a task that this version does not know
            names = {name: f"{folder}/{name}" if folder else name for name in checkpoint.shapes()}
            own_tensors = {name: tensors[full if full in tensors else name] for name, full in names.items()}
            checkpoint = dataclasses.replace(checkpoint, tensors=own_tensors)
        found[folder] = checkpoint
    return found


def save_all(models: Mapping[str, Checkpoint], path: str) -> None:
    """Writes the result of `stored` into a directory; raises as `save_checkpoint`."""
    for folder, checkpoint in models.items():
        save_checkpoint(checkpoint, os.path.join(path, folder) if folder else path)  # without "/": it may be a file


def save_checkpoint(checkpoint: Checkpoint, path: str) -> None:
    """As `write`, for a directory that a user names.

    Raises:
        ConfigError: the directory has files, but neither a model of ours nor the run of one.
    """
    check_place(path)
    write(checkpoint, path)


def check_place(path: str) -> None:
    """Raises the errors of `save_checkpoint`, which writes to `path` later."""
    check_output(path, directory=True)
    check_own_directory(path, [run_files.RUN, *([_CONFIG] if _is_ours(path) else [])], "model")


def _is_ours(path: str) -> bool:
    try:
        return recognises(path)
    except DataError:  # a config.json of another kind, or a damaged one
        return False


def files_of(path: str) -> list[str]:
    """Paths of the files that a model directory has of its model and its run."""
    return [file for file in (os.path.join(path, name) for name in FILES) if os.path.exists(file)]


def load_task(path: str) -> tuple[Task, keras.Model]:
    """Loads a task and its model."""
    return task_and_model(read(path), path)


def task_and_model(checkpoint: Checkpoint, path: str) -> tuple[Task, keras.Model]:
    """The task of a checkpoint and its model, in float32; `path` is its name in errors."""
    if not checkpoint.task:
        vectors = f", or export its vectors: python -m bert_tf.extract --init={path}" if checkpoint.vectors else ""
        raise DataError(f"{path}: an encoder without a task; fine-tune it: python -m bert_tf.finetune{vectors}")
    name = checkpoint.task["name"]
    if name not in TASKS:
        raise DataError(f"{path}: unknown task {name!r}; this version has {', '.join(TASKS)}")
    tokenizer = checkpoint.tokenizer_of_text(path)
    try:
        return TASKS[name].from_settings(checkpoint.task["settings"], tokenizer), checkpoint.model("float32")
    except ConfigError as error:  # in the settings that a converted directory keeps for us, or features of a layer
        raise DataError(f"{path}: {error}") from None


def load_fine_tuned(path: str) -> tuple[FineTuningTask, keras.Model]:
    """Loads a fine-tuned task and its model; DataError for a model that was only pre-trained."""
    task, model = load_task(path)
    if not isinstance(task, FineTuningTask):
        raise DataError(f"{path}: a {task.name} model, not fine-tuned; fine-tune it: python -m bert_tf.finetune")
    return task, model
