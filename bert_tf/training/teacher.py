"""The teacher of a distillation, and its answers: computed once, written in shards, read by later runs.

A folder of answers holds answers.json, which says of what they are made, and shards NNNNN.safetensors of consecutive
examples: for each output that is learned its values and how many parts each example has (`tasks.soft_targets.Answers`).
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.directory import task_and_model
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor import tensor_of
from bert_tf.checkpoints.tensor_files.safetensors import open_tensors, write_tensors
from bert_tf.config import to_dict
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import check_own_directory, read_json, remove_leftovers, write_json
from bert_tf.inputs.identity import digest, tensors_identity, tokenizer_identity, weights_identity
from bert_tf.locks import locked
from bert_tf.model.encoder import encoder_of
from bert_tf.progress import bar, log
from bert_tf.tasks.soft_targets import Answers, collect
from bert_tf.tasks.task import FineTuningTask
from bert_tf.training.evaluation import Answering
from bert_tf.types import Array, Json, Tensors

INDEX = "answers.json"
_FORMAT = 1  # to be increased if the same teacher would answer otherwise
_SHARD = 1 << 14  # examples; what a kill costs at most
_BATCH = 32  # rows
_COUNTS = "/counts"  # after the name of an output


class _Index(TypedDict):
    made_of: dict[str, str | int]


class Teacher:
    """A model that was fine-tuned for a task; it computes in float32.

    Args:
        path: from which it was opened, for messages.
        checkpoint: the model.

    Attributes:
        path, checkpoint: as given.
        task, model: of the teacher.
        identity: JSON-ready: of everything that determines its answers.
    """

    def __init__(self, path: str, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        task, self.model = task_and_model(checkpoint, path)
        if not isinstance(task, FineTuningTask):
            raise DataError(f"{path}: a {task.name} model, not fine-tuned; expected a teacher that knows the task")
        self.path = path
        self._adopt(task)

    def _adopt(self, task: FineTuningTask) -> None:
        settings = {name: value for name, value in task.settings().items() if name != "data"}
        self.task = task
        self.identity: Json = {
            "task": digest([_FORMAT, task.name, settings]),
            "model": digest(to_dict(encoder_of(self.model).config)),
            "tokenizer": tokenizer_identity(task.tokenizer)["fingerprint"],
            "weights": weights_identity(self.model.weights),
        }

    def share_settings(self, task: FineTuningTask) -> None:
        """Takes the settings that it must share with a student's task (`Codec.compared_settings`)."""
        names = [name for name in task.codec.compared_settings if hasattr(task.config, name)]
        same = {name: getattr(task.config, name) for name in names}
        limit = encoder_of(self.model).config.max_position_embeddings
        if same.get("max_length", 0) > limit:
            raise ConfigError(f"task.max_length is {same['max_length']}; it must be at most the teacher's {limit}")
        self._adopt(self.task.replaced(config=dataclasses.replace(self.task.config, **same)))

    def answers(
        self,
        columns: Tensors,
        locations: Sequence[str],
        folder: str,
        strategy: tf.distribute.Strategy,
        *,
        write: bool = True,
    ) -> dict[str, Answers]:
        """The teacher's answers to examples, from the folder or else computed and written there.

        Args:
            columns: of the examples, without labels.
            locations: of the examples, for errors.
            folder: need not exist.
            write: whether this process writes.

        Raises:
            ConfigError: the folder holds other files, or the answers of another teacher or to other texts.
        """
        examples = len(locations)
        made_of = self.identity | {"texts": tensors_identity(columns), "examples": examples}
        with locked(folder) if write else contextlib.nullcontext():
            _claim(folder, made_of, write=write)
            shards, line = [], bar("teacher", examples, "example", leave=False)
            with line:
                for number, first in enumerate(range(0, examples, _SHARD)):
                    last = min(first + _SHARD, examples)
                    file = os.path.join(folder, f"{number:05d}.safetensors")
                    shard = _read(file, self.task.objective.soft_outputs, last - first)
                    if shard is None:
                        part = {name: value[first:last] for name, value in columns.items()}
                        shard = self._compute(part, locations[first:last], strategy)
                        if write:
                            _write(file, shard)
                    shards.append(shard)
                    line.update(last - first)
        return {
            name: Answers(*(np.concatenate([shard[name][index] for shard in shards]) for index in range(2)))
            for name in self.task.objective.soft_outputs
        }

    def _compute(
        self, columns: Tensors, locations: Sequence[str], strategy: tf.distribute.Strategy
    ) -> dict[str, Answers]:
        objective = self.task.objective

        def compute(features: Tensors, outputs: Tensors) -> tuple[dict[str, tuple[tf.Tensor, tf.Tensor]], tuple[()]]:
            about = objective.answered(features)
            return {name: (one.read(outputs[name]), about[name]) for name, one in objective.soft_outputs.items()}, ()

        parts: dict[str, list[tuple[Array, Array, Array]]] = {name: [] for name in objective.soft_outputs}
        answering = Answering(self.model, compute, strategy)
        for features, answered, _ in answering(self.task.codec.rows.batches(columns, _BATCH)):
            for name, (outputs, about) in answered.items():
                parts[name].append((outputs.numpy(), about.numpy(), features["row"].numpy()))
        return {name: collect(found, len(locations), locations.__getitem__) for name, found in parts.items()}


def _claim(folder: str, made_of: Json, *, write: bool) -> None:
    """Refuses a folder that is not for these answers; marks one that is new."""
    path = os.path.join(folder, INDEX)
    if os.path.exists(path):
        before = read_json(path, _Index)["made_of"]
        names = [name for name in made_of if before.get(name) != made_of[name]]
        if names:
            found = ", ".join(f"{name}: {before.get(name)} there, {made_of[name]} now" for name in names)
            raise ConfigError(
                f"{folder} holds the answers of another teacher or to other texts ({found}); choose another "
                "distillation.answers, or remove the folder"
            )
    elif write:
        check_own_directory(folder, [INDEX], "teacher's answers")
        write_json(path, {"made_of": made_of})
    if write:
        remove_leftovers(folder)


def _write(file: str, shard: dict[str, Answers]) -> None:
    tensors = {name: one.values for name, one in shard.items()}
    tensors |= {name + _COUNTS: one.counts for name, one in shard.items()}
    write_tensors(file, {name: tensor_of(one, name) for name, one in tensors.items()})


def _read(file: str, names: Iterable[str], examples: int) -> dict[str, Answers] | None:
    """The answers in a shard; None if it is missing or damaged."""
    if not os.path.exists(file):
        return None
    try:
        tensors = {name: tensor.read() for name, tensor in open_tensors(file).items()}
        return {name: Answers(tensors[name], tensors[name + _COUNTS]) for name in names}
    except (DataError, KeyError):  # a damaged name is another one
        log(f"{file}: damaged; the teacher answers these {examples:,} examples again")
    return None
