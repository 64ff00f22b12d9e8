"""Writes SavedModels in TF Serving's layout: a folder a model, in it a folder a version."""

import contextlib
import errno
import os
import re
from typing import NamedTuple

import keras
import tensorflow as tf

from bert_tf.checkpoints.directory import load_task, read_results
from bert_tf.errors import ConfigError
from bert_tf.files import replacing_directory
from bert_tf.model.encoder import encoder_of
from bert_tf.serving.card import CARD, EXTRA, write_card, write_operations
from bert_tf.serving.check import NotServable, ask_session, check_ops, compare
from bert_tf.serving.samples import sample_requests
from bert_tf.tasks.signatures import ATTENTION, attention_signature

_LARGEST_VERSION = 2**63 - 1
# An op in the graphs that this program wrote before versions had a card.
_OUR_OP = b"FastWordpieceTokenizeWithOffsets"


class Exported(NamedTuple):
    """A version that was written.

    Attributes:
        path: of its folder.
        task: name of the task.
        signatures: their names.
        checked: what was compared with the model in memory, in words; "" for nothing.
    """

    path: str
    task: str
    signatures: tuple[str, ...]
    checked: str


def export_run(model_dir, directory, *, attention=False, check=True):
    """Exports the model that a run of `pretrain` or `finetune` wrote, with the run's metrics in its card.

    Args:
        model_dir: folder of the run.
        directory, attention, check: as of `export`.

    Returns:
        Exported.

    Raises:
        DataError: `model_dir` has no model with a task.
        ConfigError, NotServable: as `export`.
    """
    with on_cpu():
        task, model = load_task(model_dir)
    return export(task, model, directory, attention=attention, check=check, results=read_results(model_dir))


def export(task, model, directory, *, attention=False, check=True, results=None):
    """Writes a model as the next version below `directory`.

    Vocabulary and tables are inside; nothing outside the folder is needed to load it but the ops of TF Text, which TF
    Serving has built in and Python gets from `import tensorflow_text`. A new process runs requests on it as TF Serving
    does (`serving.check`), and only if it answers as the model in memory does, the version's folder appears.

    Args:
        task: Task, or an Embedder.
        model: its trained keras.Model.
        directory: of the exported model, as TF Serving's --model_base_path.
        attention: whether to add the signature `attention`.
        check: whether to ask the new process.
        results: dict, what results.json of the training holds, for the model card.

    Returns:
        Exported.

    Raises:
        ConfigError: `directory` is no folder that TF Serving can serve a model of this program's from, or the model
            does not compute in float32.
        NotServable: the check failed.
    """
    policy = encoder_of(model).policy
    if policy.compute_dtype != "float32":  # fusions differ from processor to processor, and so do labels then
        raise ConfigError(f"the model computes in {policy.name}, and an export in float32; save it and export the "
                          "saved one (python -m bert_tf.export)")  # fmt: skip
    path = _next_version(directory)
    name = os.path.basename(os.path.dirname(path))
    for layer in model.layers:
        if isinstance(layer, keras.layers.LSTM):
            layer.use_cudnn = False  # on a GPU its graph would run on no other device
    signatures = task.signatures(model)
    if attention:
        signatures[ATTENTION] = attention_signature(task, model)
    signatures = {key: function.get_concrete_function() for key, function in signatures.items()}
    requests = sample_requests(task, signatures)
    with _naming_full_disk(path), replacing_directory(path) as temporary:
        _save(model, signatures, temporary)
        write_operations(temporary, name, requests)
        answers, checked = _checked(temporary, signatures, requests) if check else ([None] * len(requests), "")
        write_card(temporary, name, task, signatures, requests, answers, results or {}, checked)
    return Exported(path, task.name, tuple(signatures), checked)


def on_cpu():
    """Context in which a model is loaded to be exported: a GPU's answers have too few digits to compare."""
    return tf.device("/CPU:0")


@contextlib.contextmanager
def _naming_full_disk(path):
    """TensorFlow's error of a full disk as Python's, without the names of ops and of temporary files."""
    try:
        yield
    except tf.errors.OpError as error:
        if os.strerror(errno.ENOSPC) not in error.message:
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path) from error


def summary(exported):
    """The lines that a program prints about the version it wrote."""
    checked = f"checked: {exported.checked}" if exported.checked else "not checked"
    names = ", ".join(exported.signatures)
    return f"{exported.path}: {exported.task} SavedModel with the signatures {names}\n{checked}"


def _save(model, signatures, path):
    module = tf.Module()
    # Not the model: a Keras variable that a tf.Module reaches is written as a second variable, which a session restores
    # while the signatures read the first.
    module.variables_of_model = [variable.value for variable in model.variables]
    # Gradients would bring functions that must be compiled by XLA, which a server may lack and never needs.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, path, signatures=signatures, options=options)


def _checked(path, signatures, requests):
    """Answers of a new process, and in words what was compared.

    Raises:
        NotServable: they are not the model's.
    """
    try:
        answers = ask_session(path, requests)
        largest = compare(requests, [request.answered(signatures) for request in requests], answers)
        ops = check_ops(path)
    except NotServable as error:
        raise NotServable(f"{error}; nothing was exported (--nocheck exports it anyway)") from None
    alike = f"numbers to {largest:.0e}" if largest else "bit for bit"
    return answers, (
        f"{len(requests)} requests to {len(signatures)} signatures, answered by a session in a new process as by the "
        f"model ({alike}); {ops} kinds of ops, all in TF Serving from 2.12.1 on"
    )


def _next_version(directory):
    """Path of the version that comes after those in a folder.

    Raises:
        ConfigError: TF Serving would not read it, or would take it for another model.
    """
    if "://" in directory:
        raise ConfigError(f"--export_dir={directory}: exports are written to local folders; copy it there after")
    directory = os.path.abspath(directory)
    parent, name = os.path.split(directory)
    try:
        directory.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--export_dir={directory!a} is not UTF-8, as TF Serving's names are") from None
    if ":" in name:
        raise ConfigError(f"--export_dir={directory}: the last part is the model's name, and a ':' ends that "
                          "name in TF Serving's URLs; choose another one")  # fmt: skip
    if re.fullmatch("[0-9]+", name):
        raise ConfigError(f"--export_dir={directory} ends in a number, as versions do; give the model's folder, in "
                          f"which versions are numbered, such as {parent}")  # fmt: skip
    if not os.path.isdir(directory):
        return os.path.join(directory, "1")
    if os.path.exists(os.path.join(directory, "saved_model.pb")):
        raise ConfigError(f"--export_dir={directory} is a SavedModel itself; expected a folder with a folder a version")
    # As TF Serving reads them: also 007, but no digits of other scripts.
    versions = [found for found in os.listdir(directory) if re.fullmatch("[0-9]+", found)]
    for found in versions:
        _check_ours(os.path.join(directory, found))
    version = max(map(int, versions), default=0) + 1
    if version > _LARGEST_VERSION:
        raise ConfigError(
            f"{directory} has version {version - 1}, the last that TF Serving reads; choose another folder"
        )
    return os.path.join(directory, str(version))


def _check_ours(path):
    """Raises ConfigError for a version that another program wrote: a server would replace it by this model."""
    if os.path.exists(os.path.join(path, EXTRA, CARD)):
        return
    try:
        with open(os.path.join(path, "saved_model.pb"), "rb") as file:
            ours = _OUR_OP in file.read()
    except OSError:
        ours = False
    if not ours:
        raise ConfigError(f"{path} was not written by this program, and TF Serving would replace that model by the "
                          "new one; choose another --export_dir, or move it away")  # fmt: skip
