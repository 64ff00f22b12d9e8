"""Writes SavedModels in TF Serving's layout: one folder per model, in it one folder per version."""

import concurrent.futures
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bert_tf import quiet
from bert_tf.checkpoints.directory import load_task
from bert_tf.checkpoints.run_files import read_results
from bert_tf.errors import ConfigError
from bert_tf.files import check_output, replacing_directory, require_space
from bert_tf.inference.card import CARD, EXTRA, write_card, write_operations
from bert_tf.inference.check import check_ops, compare, oldest_server, rest_body
from bert_tf.inference.compact import compact
from bert_tf.inference.samples import SENTENCES, Request, calibration_texts, sample_requests
from bert_tf.inference.session import ANSWER_TOLERANCES, TOLERANCES, NotServable, Session
from bert_tf.model.encoder import encoders_of
from bert_tf.model.precision.optimize import optimized
from bert_tf.tasks.signatures import ATTENTION, attention_signature
from bert_tf.tasks.task import Task
from bert_tf.text.subwords import check_in_graph
from bert_tf.types import ConcreteFunction, Json

_LARGEST_VERSION = 2**63 - 1


class Exported(NamedTuple):
    """A version that was written.

    Attributes:
        path: folder of the version.
        task: name of the task.
        signatures: their names.
        checked: what was compared with the model in memory, and how far an optimized one is from it, as text; "" if
            nothing was compared.
    """

    path: str
    task: str
    signatures: tuple[str, ...]
    checked: str


def export_run(
    model_dir: str,
    directory: str,
    *,
    attention: bool = False,
    check: bool | Session = True,
    optimize: str = "none",
) -> Exported:
    """Exports the model that a run of `pretrain` or `finetune` wrote, with the metrics of the run in its model card.

    Args:
        model_dir: folder of the run.
        directory, attention, check, optimize: as for `export`.
    """
    _next_version(directory)  # refuse a wrong folder before a large model is loaded
    # Started first: its imports take longer than loading the model.
    with Session() if check is True else contextlib.nullcontext(check) as session:
        with on_cpu():
            task, model = load_task(model_dir)
        results = read_results(model_dir)
        return export(task, model, directory, attention=attention, check=session, optimize=optimize, results=results)


def export(
    task: Task,
    model: keras.Model,
    directory: str,
    *,
    attention: bool = False,
    check: bool | Session = True,
    optimize: str = "none",
    results: Json | None = None,
) -> Exported:
    """Writes a model as the next version in `directory`.

    The SavedModel contains the vocabulary and all tables; loading it takes nothing but the ops of TF Text, which TF
    Serving has built in and Python gets from `import tensorflow_text`. Where TF Text cannot be imported, a graph with
    WordPiece has TensorFlow's own ops instead, and others are refused. A new process runs requests on it the way TF
    Serving does (`check.py`). The folder of the version appears only if its answers are those of the model in memory.

    Args:
        task: of the model.
        model: the trained model. It must compute in float32.
        directory: folder of the exported model, as for TF Serving's --model_base_path.
        attention: whether to add the signature `attention`.
        check: whether to compare the answers in a new process, or the process, if it waits already.
        optimize: a key of `TOLERANCES`.
        results: content of the results.json of the training, for the model card.

    Raises:
        ConfigError: TF Serving could not serve a model from `directory`, the model does not compute in float32, its
            tokenizer needs TF Text, or there is no such mode.
        NotServable: the check failed.
    """
    if optimize not in TOLERANCES:
        raise ConfigError(f"optimize is {optimize!r}; expected one of {', '.join(TOLERANCES)}")
    check_in_graph(task.tokenizer, "an export")
    encoder = next(encoders_of(model), None)
    if not encoder and optimize != "none":
        raise ConfigError(f"optimize is {optimize!r}, and a static model has no encoder to optimize; leave it out")
    policy = model.dtype_policy if encoder is None else encoder.dtype_policy
    if policy.compute_dtype != "float32":  # fused ops differ between processors, and then so do labels
        raise ConfigError(
            f"the model computes in {policy.name}, and an export in float32; save it and export the saved one "
            "(python -m bert_tf.export)"
        )
    path = _next_version(directory)
    name = os.path.basename(os.path.dirname(path))
    lstms = [layer for layer in model.layers if isinstance(layer, keras.layers.LSTM)]
    for layer in lstms:
        layer.use_cudnn = False  # a graph traced for cuDNN runs on no other device
    functions = task.signatures(model)
    if attention:
        if not task.codec.attends:
            raise ConfigError("the signature 'attention' is for models with a task, and this one gives vectors")
        functions[ATTENTION] = attention_signature(task.codec, model)
    require_space(path, 4 * model.count_params(), "the SavedModel")
    with (
        Session() if check is True else contextlib.nullcontext(check) as session,
        optimized(
            encoder,
            optimize,
            task.tokenizer,
            SENTENCES,
            TOLERANCES[optimize],
            calibration_texts() if optimize == "int8" else (),
        ) as optimization,
        replacing_directory(path) as temporary,
    ):
        signatures = {key: function.get_concrete_function() for key, function in functions.items()}
        requests = sample_requests(task.codec, signatures)
        save_graphs(signatures, temporary, optimization.resources)
        write_operations(temporary, name, requests)
        answers: Sequence[Json | None] = [None] * len(requests)
        checked = ""
        if session:
            answers, checked = _checked(session, temporary, signatures, requests, optimize)
        described = {
            "checked": checked,
            "tf_serving": "" if optimization.programs else oldest_server(temporary),
            "programs": optimization.programs and optimization.programs._asdict(),
            "approximation": optimization.approximation,
            "variants": [variant.described() for variant in optimization.variants],
            # Layers with recurrence, and XLA's programs, compute padding like tokens; a static model has none.
            "skips_padding": not encoder or (encoder.can_skip_padding and not lstms and not optimization.programs),
        }
        write_card(temporary, name, task, signatures, requests, answers, results or {}, described)
    if checked and optimization.approximation:
        checked += f"; {optimization.approximation}"
    return Exported(path, task.name, tuple(signatures), checked)


def on_cpu() -> contextlib.AbstractContextManager[None]:
    """Context in which to load a model for export: the answers of a GPU have too few digits to compare."""
    return tf.device("/CPU:0")


def summary(exported: Exported) -> str:
    """The lines that a program prints about the version it wrote."""
    checked = f"checked: {exported.checked}" if exported.checked else "not checked"
    names = ", ".join(exported.signatures)
    return f"{exported.path}: {exported.task} SavedModel with the signatures {names}\n{checked}"


def save_graphs(signatures: Mapping[str, ConcreteFunction], path: str, resources: Sequence[Any] = ()) -> None:
    """Writes a SavedModel.

    Args:
        signatures: by name.
        path: folder.
        resources: tables and other objects that they use, besides variables.
    """
    module = tf.Module()
    module.resources = list(resources)
    # Not the model: a Keras variable that a tf.Module reaches is saved as a second variable. A session would restore
    # that one, while the signatures read the first.
    used = {id(variable): variable for traced in signatures.values() for variable in traced.graph.variables}
    module.variables_of_model = list(used.values())
    # Gradients would bring functions that must be compiled by XLA, which a server may lack and never needs.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with quiet.warnings_only():
        tf.saved_model.save(module, path, signatures=signatures, options=options)
    compact(path)


def _checked(
    session: Session, path: str, signatures: dict[str, Any], requests: list[Request], optimize: str
) -> tuple[list[Json], str]:
    """The answers of a new process, and what was compared, as text."""
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            asked = thread.submit(session.ask, path, map(rest_body, requests))
            expected = [request.answered(signatures) for request in requests]
            answers = asked.result()
        largest = compare(requests, expected, answers, ANSWER_TOLERANCES[optimize])
        ops = check_ops(path, compiled=optimize == "xla")
    except NotServable as error:
        raise NotServable(f"{error}; nothing was exported (--nocheck exports it anyway)") from None
    alike = f"numbers to {largest:.0e}" if largest else "bit for bit"
    server = "for python -m bert_tf.serve" if optimize == "xla" else f"all in TF Serving since {oldest_server(path)}"
    return answers, (
        f"{len(requests)} requests to {len(signatures)} signatures, answered by a session in a new process as by the "
        f"model ({alike}); {ops} op types, {server}"
    )


def _next_version(directory: str) -> str:
    """Path of the version after those in a folder.

    Raises:
        ConfigError: TF Serving would not read it, or would take it for another model.
    """
    check_output(directory, directory=True)
    directory = os.path.abspath(directory)
    parent, name = os.path.split(directory)
    try:
        directory.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"--export_dir={directory!a} is not UTF-8, as TF Serving's names are") from None
    if ":" in name:
        raise ConfigError(
            f"--export_dir={directory}: the last part is the model's name, which ends at ':' in TF Serving's URLs; "
            "choose another one"
        )
    if re.fullmatch("[0-9]+", name):
        raise ConfigError(
            f"--export_dir={directory} ends in a number, as versions do; give the model's folder, in which versions "
            f"are numbered, such as {parent}"
        )
    if not os.path.exists(directory):
        return os.path.join(directory, "1")
    if os.path.exists(os.path.join(directory, "saved_model.pb")):
        raise ConfigError(
            f"--export_dir={directory} is a SavedModel itself; expected a folder with one folder per version"
        )
    if model := next((name for name in ("run.json", "config.json") if name in os.listdir(directory)), None):
        raise ConfigError(
            f"--export_dir={directory} is the folder of a model (it holds {model}); expected one for versions alone, "
            f"such as {os.path.join(directory, 'served')}"
        )
    # As TF Serving reads them: 007 counts, digits of other scripts do not.
    versions = [found for found in os.listdir(directory) if re.fullmatch("[0-9]+", found)]
    for found in versions:
        _check_ours(os.path.join(directory, found))
    version = max(map(int, versions), default=0) + 1
    if version > _LARGEST_VERSION:
        raise ConfigError(
            f"{directory} has version {version - 1}, the last that TF Serving reads; choose another folder"
        )
    return os.path.join(directory, str(version))


def _check_ours(path: str) -> None:
    """Raises ConfigError for a version that another program wrote: a server would replace it by this model."""
    if not os.path.exists(os.path.join(path, EXTRA, CARD)):
        raise ConfigError(
            f"{path} was not written by this program, and TF Serving would replace that model by the new one; choose "
            "another --export_dir, or move it away"
        )
