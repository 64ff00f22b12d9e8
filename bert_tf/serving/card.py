"""Files for operators in a version's assets.extra/: warm-up requests, batching parameters and a model card.

tf_serving_warmup_requests    what TF Serving runs before a version is available
batching_cpu.pbtxt, batching_gpu.pbtxt    values for --batching_parameters_file
README.md, model_card.json    what the model is, what it was measured at, and requests with their answers
vocab.txt                     with the card, all that `task_of_export` needs
"""

import importlib.metadata
import json
import os
import platform
import shlex
import time
import unicodedata
import urllib.parse

import tensorflow as tf

import bert_tf
from bert_tf.errors import DataError
from bert_tf.files import read_json_object, write_json, write_text
from bert_tf.serving.check import rest_body
from bert_tf.serving.samples import WARM_UP
from bert_tf.tasks import TASKS
from bert_tf.tasks.signatures import CLASSIFY, DEFAULT, REGRESS
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import read_vocabulary, write_vocabulary

EXTRA = "assets.extra"
CARD = "model_card.json"
_VOCABULARY = "vocab.txt"
_PACKAGES = ("tensorflow", "tensorflow-text", "keras")
# Attention of a long text, or a hundred vectors, is nothing to read.
_SHOWN_ANSWER = 2000

_CPU_BATCHING = """\
# For --enable_batching --batching_parameters_file on a CPU, to begin with: measure your own load. Requests that wait
# while all threads are busy go together; none waits for others (batch_timeout_micros), for a CPU gains little from
# larger batches. Threads: one a core, which is the default. A request of more rows than max_batch_size is refused.
max_batch_size { value: 128 }
batch_timeout_micros { value: 0 }
max_enqueued_batches { value: 100 }
"""
_GPU_BATCHING = """\
# For --enable_batching --batching_parameters_file on a GPU, to begin with: measure your own load. Requests wait up to
# 2 ms for others, for a GPU is used better by larger batches. Two threads: one batch is computed while the next is
# tokenized. A request of more rows than max_batch_size is refused.
max_batch_size { value: 512 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 2 }
"""


def write_operations(path, name, requests):
    """Writes the warm-up requests and the batching files.

    Args:
        path: folder of the version.
        name: of the model.
        requests: list of Request.
    """
    # Importing the messages takes a second, which every program that imports this module would pay.
    from tensorflow_serving.apis import prediction_log_pb2

    extra = os.path.join(path, EXTRA)
    os.makedirs(extra, exist_ok=True)
    with tf.io.TFRecordWriter(os.path.join(extra, "tf_serving_warmup_requests")) as file:
        for request in requests:
            if request.kind in WARM_UP:
                file.write(_logged(prediction_log_pb2.PredictionLog(), name, request).SerializeToString())
    write_text(os.path.join(extra, "batching_cpu.pbtxt"), _CPU_BATCHING)
    write_text(os.path.join(extra, "batching_gpu.pbtxt"), _GPU_BATCHING)


def _logged(log, name, request):
    """A PredictionLog of a Request, in the API that its signature is for."""
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


def write_card(path, name, task, signatures, requests, answers, results, checked):
    """Writes the model card, as JSON and to be read.

    Args:
        path: folder of the version.
        name: of the model.
        task: Task or Embedder.
        signatures: dict name -> concrete function.
        requests: list of Request.
        answers: list of what the exported model answered each, as TF Serving's REST API would; None where it was not
            asked.
        results: dict, what results.json of the training holds; {} where there is none.
        checked: str, what was compared; "" for nothing.
    """
    extra = os.path.join(path, EXTRA)
    card = {
        "format": "bert_tf",
        "bert_tf": bert_tf.__version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "name": name,
        "task": {"name": task.name, "settings": task.settings()},
        "tokenizer": task.tokenizer.get_config(),
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES}
        | {"python": platform.python_version(), "unicode": unicodedata.unidata_version, "tf_serving": ">=2.12.1"},
        "training": _training(results),
        "signatures": {key: _described(function) for key, function in signatures.items()},
        "examples": [
            _example(request, answer)
            for request, answer in zip(requests, answers, strict=True)
            if request.kind == "short"
        ],
        "checked": checked,
    }
    write_json(os.path.join(extra, CARD), card)
    write_vocabulary(os.path.join(extra, _VOCABULARY), task.tokenizer.vocab)
    write_text(os.path.join(extra, "README.md"), _page(card))


def task_of_export(path):
    """The Task that a version answers, without a model.

    Args:
        path: folder of the version.

    Raises:
        DataError: it was not written by this program, or is of no task that it knows.
    """
    file = os.path.join(path, EXTRA, CARD)
    if not os.path.exists(file):
        raise DataError(f"{path}: no {EXTRA}/{CARD}; expected a version that `python -m bert_tf.export` wrote")
    card = read_json_object(file)
    try:
        name, settings, tokenizer = card["task"]["name"], card["task"]["settings"], card["tokenizer"]
    except (KeyError, TypeError):
        raise DataError(f"{file}: no task or no tokenizer; expected the file as bert_tf.export wrote it") from None
    if name not in TASKS:
        raise DataError(f"{path}: a {name} model, which answers no examples; expected one of {', '.join(TASKS)}")
    tokenizer = Tokenizer(read_vocabulary(os.path.join(path, EXTRA, _VOCABULARY)), **tokenizer)
    return TASKS[name].from_settings(settings, tokenizer)


def _training(results):
    """What of results.json belongs into a card."""
    names = ("program", "init", "data_dir", "parameters", "steps", "computes_in", "final", "baseline")
    found = {name: results[name] for name in names if name in results}
    if isinstance(results.get("config"), dict):
        found["data"] = results["config"].get("data")
    return found


def _described(function):
    """Inputs and outputs of a concrete function, JSON-ready."""

    def described(specs):
        return {name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for name, spec in sorted(specs.items())}

    return {
        "inputs": described({spec.name: spec for spec in function.structured_input_signature[0]}),
        "outputs": described(function.structured_outputs),
    }


def _example(request, answer):
    """A request in the form of the REST API, and its answer there; None where there is none."""
    if request.signature not in (CLASSIFY, REGRESS):
        return {"api": "predict", "request": rest_body(request), "answer": answer}
    example = tf.train.Example.FromString(request.inputs["inputs"][0])
    features = {
        name: [value.decode() for value in feature.bytes_list.value]
        for name, feature in sorted(example.features.feature.items())
    }
    body = {name: values[0] if len(values) == 1 else values for name, values in features.items()}
    body = {"signature_name": request.signature, "examples": [body]}
    return {"api": request.signature, "request": body, "answer": answer and {"results": _results(answer["outputs"])}}


def _results(outputs):
    """What the Classify and Regress APIs make of a signature's outputs."""
    if not isinstance(outputs, dict):
        return outputs
    rows = zip(outputs["classes"], outputs["scores"], strict=True)
    return [[list(pair) for pair in zip(*row, strict=True)] for row in rows]


def _page(card):
    """The card as Markdown."""
    versions = card["versions"]
    lines = [
        f"# {card['name']}",
        "",
        f"A {card['task']['name'].replace('_', ' ')} model, exported by bert_tf {card['bert_tf']} on "
        f"{card['created'][:10]} with TensorFlow {versions['tensorflow']}, TF Text {versions['tensorflow-text']} and "
        f"Unicode {versions['unicode']}. It runs in TF Serving 2.12.1 or newer.",
        "",
    ]
    labels = card["task"]["settings"].get("labels")
    if labels:
        lines += [f"Labels: {', '.join(map(str, labels))}.", ""]
    lines += _training_lines(card["training"])
    lines += [f"Checked: {card['checked'] or 'nothing; it was exported with --nocheck'}.", ""]
    for name, described in card["signatures"].items():
        lines += [f"## Signature `{name}`", "", "| | name | type | shape |", "|---|---|---|---|"]
        for side, specs in described.items():
            lines += [
                f"| {side[:-1]} | `{key}` | {spec['dtype']} | {_shape(spec['shape'])} |" for key, spec in specs.items()
            ]
        lines.append("")
        lines += next((_asked(card["name"], one) for one in card["examples"]
                       if one["request"]["signature_name"] == name), [])  # fmt: skip
    lines += _grpc(card)
    name = shlex.quote(card["name"])
    lines += [
        "## Serving",
        "",
        f"    tensorflow_model_server --port=8500 --rest_api_port=8501 --model_name={name} \\",
        f"        --model_base_path=/models/{name}",
        "",
        "With `--enable_batching`, give the server a copy of `batching_cpu.pbtxt` or `batching_gpu.pbtxt` by "
        "`--batching_parameters_file`.",
    ]
    return "\n".join(lines) + "\n"


def _training_lines(training):
    if not training:
        return []
    data, final, baseline = (training.get(name) for name in ("data", "final", "baseline"))
    data, final, baseline = (value if isinstance(value, dict) else {} for value in (data, final, baseline))
    steps, parameters = (_number(training.get(name)) or 0 for name in ("steps", "parameters"))
    source = data.get("source") or training.get("data_dir") or ""
    lines = [
        f"Trained by `{training.get('program', '')}` from `{training.get('init', 'nothing')}`"
        + (f" on `{source}` (format {data.get('format')})" if source else "")
        + f": {steps:,} updates, {parameters:,} parameters.",
        "",
    ]
    rows = {name: value for name, value in final.items() if _number(value) is not None and name != "step"}
    if rows:
        lines += ["| metric | value | baseline |", "|---|---|---|"]
        lines += [
            f"| {name} | {value:.4g} | "
            + (f"{baseline[name]:.4g} |" if _number(baseline.get(name)) is not None else "|")
            for name, value in rows.items()
        ]
        lines.append("")
    return lines


def _number(value):
    """A value that is a number; None for all else, such as the null that stands for one that is not finite."""
    return value if isinstance(value, int | float) else None


def _shape(shape):
    return "[" + ", ".join("-" if size is None else str(size) for size in shape) + "]"


def _asked(name, example):
    """The lines that show a request."""
    body = shlex.quote(json.dumps(example["request"], ensure_ascii=False))
    answer = json.dumps(example["answer"], ensure_ascii=False)
    if len(answer) > _SHOWN_ANSWER:
        answer = answer[:_SHOWN_ANSWER] + " ..."
    url = f"http://localhost:8501/v1/models/{urllib.parse.quote(name)}:{example['api']}"
    return ["```", f"curl -d {body} {url}", *([answer] if example["answer"] else []), "```", ""]


def _grpc(card):
    """The lines that show the first request by gRPC."""
    example = next(one for one in card["examples"] if one["request"]["signature_name"] == DEFAULT)
    inputs = example["request"]["inputs"]
    return [
        "## gRPC",
        "",
        "    # pip install tensorflow-serving-api",
        "    import grpc, tensorflow as tf",
        "    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc",
        "",
        '    stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel("localhost:8500"))',
        "    request = predict_pb2.PredictRequest()",
        f"    request.model_spec.name = {card['name']!r}",
        *(f"    request.inputs[{name!r}].CopyFrom(tf.make_tensor_proto({value!r}))" for name, value in inputs.items()),
        "    answer = stub.Predict(request, timeout=30)",
        "    print({name: tf.make_ndarray(value) for name, value in answer.outputs.items()})",
        "",
    ]
