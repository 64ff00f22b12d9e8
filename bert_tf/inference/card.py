"""The files in assets.extra/ of an exported version: warm-up requests, batching parameters and a model card.

tf_serving_warmup_requests                requests that TF Serving runs before the version becomes available
batching_cpu.pbtxt, batching_gpu.pbtxt    starting values for --batching_parameters_file
README.md, model_card.json                description of the model, its metrics, and requests with their answers
vocab.txt                                 with model_card.json, the source of `task_of_export`
"""

import json
import os
import platform
import shlex
import shutil
import time
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import jinja2
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.files import MOST_GRAPH, bundled, checksum, read_bytes, read_json, write_json, write_text
from bert_tf.inference.check import rest_body
from bert_tf.inference.samples import WARM_UP, Request
from bert_tf.processor_flags import GRAPH, needed
from bert_tf.tasks import TASKS
from bert_tf.tasks.signatures import ATTENTION, CLASSIFY, DEFAULT, REGRESS
from bert_tf.tasks.task import Task, TaskDescription
from bert_tf.text import saved_tokenizer
from bert_tf.text.operations import versions
from bert_tf.types import ConcreteFunction, Json
from bert_tf.version import __version__

if TYPE_CHECKING:
    from tensorflow_serving.apis import prediction_log_pb2

EXTRA = "assets.extra"
CARD = "model_card.json"
# Longest answer on the page, in characters: nobody reads the attention of a long text, or a hundred vectors.
_LONGEST_ANSWER = 2000


class _Card(TypedDict):
    """The part of model_card.json that is read; the rest is for people."""

    task: TaskDescription
    tokenizer: Json
    crc32: NotRequired[dict[str, str]]  # of the graph and the vocabulary; earlier versions wrote none


def write_operations(path: str, name: str, requests: Sequence[Request]) -> None:
    """Writes the warm-up requests and the batching files.

    Args:
        path: directory of the version.
        name: name of the model in TF Serving.
        requests: those of the kinds `WARM_UP` are written.
    """
    # Imported here because it takes a second, also in programs that write no export.
    from tensorflow_serving.apis import prediction_log_pb2

    extra = os.path.join(path, EXTRA)
    os.makedirs(extra, exist_ok=True)
    with tf.io.TFRecordWriter(os.path.join(extra, "tf_serving_warmup_requests")) as file:
        for request in requests:
            if request.kind in WARM_UP:
                file.write(_logged(prediction_log_pb2.PredictionLog(), name, request).SerializeToString())
    for file in ("batching_cpu.pbtxt", "batching_gpu.pbtxt"):
        shutil.copyfile(bundled(f"inference/templates/{file}"), os.path.join(extra, file))


def _logged(log: "prediction_log_pb2.PredictionLog", name: str, request: Request) -> "prediction_log_pb2.PredictionLog":
    """Fills an empty PredictionLog with a request to the API that its signature belongs to."""
    logs = {CLASSIFY: log.classify_log, REGRESS: log.regress_log}
    message = logs.get(request.signature, log.predict_log).request
    message.model_spec.name, message.model_spec.signature_name = name, request.signature
    if request.signature in logs:
        for serialized in request.inputs["inputs"]:
            message.input.example_list.examples.append(tf.train.Example.FromString(serialized))
    else:
        for input_name, value in request.inputs.items():
            message.inputs[input_name].CopyFrom(tf.make_tensor_proto(value.tolist(), shape=value.shape))
    return log


def write_card(
    path: str,
    name: str,
    task: Task,
    signatures: Mapping[str, ConcreteFunction],
    requests: Sequence[Request],
    answers: Sequence[Json | None],
    results: Json,
    export: Json,
) -> None:
    """Writes the model card as JSON and as Markdown, and the vocabulary.

    Args:
        path: directory of the version.
        name: name of the model in TF Serving.
        task: its settings and its tokenizer are saved.
        signatures: by name.
        requests: those of the kind "short" become the card's examples.
        answers: the export's answer to each request, as from TF Serving's REST API; None if the export was not checked.
        results: the training's results.json; {} if there is none.
        export: what is known of the export: `checked`, the summary of the check, "" if there was none; `tf_serving`,
            the oldest version that has its ops, "" if not known; `approximation`, how far an optimized export is from
            the model, "" for one that computes the same; `variants` of the graph, of which it chooses one by the
            processor, [] for only one; `programs` of XLA that a server compiles, their `rows` and `lengths`, or None;
            `skips_padding`, whether only tokens are computed, so that batches may contain
            texts of different lengths.
    """
    extra = os.path.join(path, EXTRA)
    card = {
        "format": "bert_tf",
        "bert_tf": __version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "name": name,
        "task": {"name": task.name, "settings": task.settings()},
        "tokenizer": task.tokenizer.description,
        "crc32": {GRAPH: checksum(read_bytes(os.path.join(path, GRAPH), most=MOST_GRAPH))} | task.tokenizer.checksums,
        "mask_id": task.tokenizer.mask_id,  # for clients of the signature `tokens` that hide a token
        "special_tokens": task.tokenizer.special_names._asdict(),
        "versions": versions() | {"python": platform.python_version(), "unicode": unicodedata.unidata_version},
        "training": _training(results),
        "signatures": {
            # How wide attention is depends on the other rows, and no count says it for several sequences per example.
            key: _described(function, task.codec.counted if key != ATTENTION else None)
            for key, function in signatures.items()
        },
        "examples": [
            _example(request, answer)
            for request, answer in zip(requests, answers, strict=True)
            if request.kind == "short"
        ],
    } | export
    write_json(os.path.join(extra, CARD), card)
    task.tokenizer.save(extra)
    write_text(os.path.join(extra, "README.md"), page(card))


def task_of_export(path: str) -> Task:
    """Restores the task of an exported version, without its model.

    Args:
        path: directory of the version.
    """
    file = os.path.join(path, EXTRA, CARD)
    if not os.path.exists(file):
        raise DataError(f"{path}: no {EXTRA}/{CARD}; expected a version written by `python -m bert_tf.export`")
    card = read_json(file, _Card)
    name = card["task"]["name"]
    if name not in TASKS:
        raise DataError(f"{path}: a {name} model cannot be used to predict; expected one of {', '.join(TASKS)}")
    try:
        tokenizer = saved_tokenizer(os.path.join(path, EXTRA), card["tokenizer"], card.get("crc32", {}), file)
        return TASKS[name].from_settings(card["task"]["settings"], tokenizer)
    except ConfigError as error:
        raise DataError(f"{file}: {error}") from None


def _training(results: Json) -> Json:
    """The part of results.json that the card shows."""
    names = ("program", "init", "data_dir", "parameters", "steps", "computes_in", "final", "baseline")
    training = {name: results[name] for name in names if name in results}
    if isinstance(results.get("config"), dict):
        training["data"] = results["config"].get("data")
    return training


def _described(function: ConcreteFunction, counted: Mapping[str, Sequence[str]] | None) -> Json:
    """Inputs and outputs of a signature, JSON-ready, and `counted`: which outputs are padded, by that with the counts.

    Args:
        function: the signature.
        counted: of the task; None if the widths of answers are not known to be those of the row alone.
    """

    def described(specs: Mapping[str, tf.TensorSpec]) -> Json:
        return {name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for name, spec in sorted(specs.items())}

    outputs = function.structured_outputs
    return {
        "inputs": described({spec.name: spec for spec in function.structured_input_signature[0]}),
        "outputs": described(outputs),
        "counted": counted
        if counted is None
        else {
            count: [name for name in names if name in outputs] for count, names in counted.items() if count in outputs
        },
    }


def _example(request: Request, answer: Json | None) -> Json:
    """A request and its answer as in the REST API; the answer is None if there is none."""
    if request.signature not in (CLASSIFY, REGRESS):
        return {"api": "predict", "request": rest_body(request), "answer": answer}
    example = tf.train.Example.FromString(request.inputs["inputs"][0])
    features = {
        name: [value.decode() for value in feature.bytes_list.value]
        for name, feature in sorted(example.features.feature.items())
    }
    fields = {name: values[0] if len(values) == 1 else values for name, values in features.items()}
    body = {"signature_name": request.signature, "examples": [fields]}
    return {"api": request.signature, "request": body, "answer": answer and {"results": _results(answer["outputs"])}}


def _results(outputs: Any) -> Any:
    """Converts a signature's outputs as the Classify and Regress APIs do."""
    if not isinstance(outputs, dict):
        return outputs
    rows = zip(outputs["classes"], outputs["scores"], strict=True)
    return [[list(pair) for pair in zip(*row, strict=True)] for row in rows]


def page(card: Json) -> str:
    """The card as Markdown."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("bert_tf.inference"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.ChainableUndefined,  # results of training may be missing or damaged
    )
    templates.filters |= {
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "repr": repr,
        "shell": shlex.quote,
    }
    templates.filters["needed"] = needed
    inputs = next(row["request"]["inputs"] for row in card["examples"] if row["request"]["signature_name"] == DEFAULT)
    return templates.get_template("card.md.j2").render(card=card, inputs=inputs, longest=_LONGEST_ANSWER, file=CARD)
