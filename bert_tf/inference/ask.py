"""Asks an exported model, or a server that runs it, from the command line, also where bert_tf is not installed.

    python ask.py EXPORT_DIR/1 "A text." "Another one."
    python ask.py http://localhost:8501/v1/models/NAME "A text."
    python ask.py EXPORT_DIR/1 --question="Who came?" --context="Ann came."
    python ask.py EXPORT_DIR/1 --words=Ada --words=Lovelace
    python ask.py EXPORT_DIR/1 < questions.jsonl

The model in a folder is loaded and run as TF Serving does it: by a session on its signatures, without the Python
objects that `tf.saved_model.load` creates. This needs TensorFlow, 2.12 or newer, with the TF Text of the same version
unless the model was exported without it.

Instead of a folder, all forms take the URL of a model in TF Serving or in `python -m bert_tf.serve`, which may end in
/versions/N or /labels/LABEL. This needs only Python. If the server wants a token, set the environment variable
BERT_TF_TOKEN; for https with a certificate of your own, SSL_CERT_FILE.

If you copy this file, copy bert_tf/inference/rest.py to the same folder, and bert_tf/processor_flags.py for models in
folders.

The first form is for models that take one text, the one with names for all models: one value for each input, or several
(--choices=A --choices=B) where an input is a list. A tagger takes a text, or words that are not split again (--words).
Choices may come without a question. In the last form each line of standard input is a JSON object with the same names.
Each question is answered by one line: a JSON object with the question and what the model returns, whose names win
("label" is the model's, not one that was known before).

A line can also be the body of TF Serving's REST API for `predict` in column format, with any number of rows and any
signature: {"signature_name": "tokens", "inputs": {"input_word_ids": [[101, 102]], ...}}. The answer is that of the API:
{"outputs": {...}}, for a single output {"outputs": [...]}, or {"error": "..."}. Strings that are not UTF-8, and outputs
whose names end in _bytes, are {"b64": "..."}.

Exit status: 0; 1 for a model, a server or a line that cannot be used, 2 for wrong arguments, with one line that names
the cause.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:  # imported only where a model in a folder needs them, because that takes seconds
    import numpy as np

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C and a closed pipe end the program without a stack trace
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _beside(name: str) -> Any:
    """A module of bert_tf that needs nothing else of it, as it lies in the package or beside a copy of this file."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = next(filter(os.path.isfile, (os.path.join(folder, name), os.path.join(folder, "..", name))), None)
    if path is None:
        sys.exit(f"ask.py: {folder}: no {name}; copy it to this folder, too")
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING or __package__:
    from bert_tf.inference import rest
else:  # run by its path, also where bert_tf is not installed
    rest = _beside("rest.py")


class Model(rest.Answerer):
    """An exported model, in a session.

    Args:
        path: folder of one of its versions.

    Raises:
        ValueError: there is none, or it cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        card = _card(path)
        flags = _processor_flags()
        variants = flags.variants_of(card)
        if problem := flags.unsuitable(variants) or flags.changed(card, _content(os.path.join(path, flags.GRAPH))):
            raise ValueError(f"{path}: {problem}")
        self.variant = flags.describe_variant(variants)
        tf = _tensorflow()
        tf.compat.v1.logging.set_verbosity("ERROR")  # that this loader is deprecated in Python does not concern users
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        try:
            with self._session.graph.as_default():
                loaded = tf.compat.v1.saved_model.load(self._session, ["serve"], path)
            self._definitions = {name: value for name, value in loaded.signature_def.items() if name[:2] != "__"}
            super().__init__(
                {
                    name: {key: len(info.tensor_shape.dim) for key, info in value.inputs.items()}
                    for name, value in self._definitions.items()
                }
            )
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            if os.path.exists(os.path.join(path, flags.GRAPH)):
                raise ValueError(f"{path}: damaged, or not a model that takes text ({rest.reason(error)})") from None
            raise ValueError(
                f"{path or repr(path)}: no exported model; name the folder of a version, such as EXPORT_DIR/1, or a URL"
            ) from None
        except tf.errors.OpError as error:
            if lacking := re.match("Op type not registered '([^']+)'", error.message):
                raise ValueError(
                    f"{path}: needs the operation {lacking[1]}; install the tensorflow-text of TensorFlow "
                    f"{tf.__version__}, or a TensorFlow that has one"
                ) from None
            raise ValueError(f"{path}: damaged: {rest.reason(error)}") from None

    def _run(self, inputs: dict[str, Any], signature_name: str) -> dict[str, Any]:
        signature = self._definitions[signature_name]
        feed = {info.name: _array(name, inputs[name], info) for name, info in signature.inputs.items()}
        try:
            return self._session.run({name: signature.outputs[name].name for name in sorted(signature.outputs)}, feed)
        except _tensorflow().errors.OpError as error:
            raise ValueError(rest.reason(error)) from None


def open_model(name: str) -> rest.Answerer:
    """The model in a folder or at a URL."""
    return rest.RemoteModel(name) if re.match("https?://", name) else Model(name)


def _processor_flags() -> Any:
    if __package__:
        from bert_tf import processor_flags

        return processor_flags
    return _beside("processor_flags.py")


def _card(path: str) -> Any:
    """The model card of a version in a folder; None if it has none."""
    try:
        return json.loads((_content(os.path.join(path, "assets.extra", "model_card.json")) or b"").decode())
    except (ValueError, RecursionError):
        return None


def _content(path: str) -> bytes | None:
    """The content of a file; None if it cannot be read. A pipe could be waited for, and a device read, for ever."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path}: a pipe, a device or a folder; expected a file")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


@functools.cache
def _tensorflow() -> Any:
    """TensorFlow, without the greetings that 2.21 prints to standard error and no setting silences.

    Looking for garbage in what is being imported takes a fifth of the time, so it waits; and at the end it is left out.
    """
    atexit.register(gc.freeze)
    collecting = gc.isenabled()
    gc.disable()
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":  # 1 and 2 show errors that are none
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        import tensorflow as tf

        # Registers the ops that turn text into ids; there are exports without them. It may be of another TensorFlow.
        with contextlib.suppress(Exception):
            import tensorflow_text  # noqa: F401
    finally:
        if collecting:
            gc.enable()
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
    return tf


def _array(name: str, value: Any, info: Any) -> np.ndarray[Any, Any]:
    """A value of a request as the array that the input takes."""
    import numpy as np

    tf = _tensorflow()
    dtype, rank = tf.as_dtype(info.dtype).as_numpy_dtype, len(info.tensor_shape.dim)
    try:
        array = value if isinstance(value, np.ndarray) else np.array(rest.decoded(value, np.dtype(dtype).kind), dtype)
    except (TypeError, ValueError, OverflowError, RecursionError):
        array = None
    if array is not None and array.dtype == object and any(isinstance(item, list) for item in array.flat):
        array = None
    if array is not None and array.ndim < rank and not array.size:
        array = array.reshape([0, *(max(size.size, 0) for size in info.tensor_shape.dim[1:])])  # JSON's [] has no rank
    if array is None or array.ndim != rank:
        expected = f"{'a list of lists' if rank == 2 else 'a list' if rank == 1 else f'lists nested {rank} deep'}"
        kind = tf.as_dtype(info.dtype).name
        raise ValueError(f"{name!r} is {rest.shown(value)}; expected {expected} of {kind} values, one for each row")
    return array


def _fail(message: str, status: int = 1) -> NoReturn:
    print(f"ask.py: {message}", file=sys.stderr, flush=True)
    sys.exit(status)


def _lines() -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects on standard input, each with its location for errors."""
    if sys.stdin is None:
        _fail("standard input: closed; give questions as arguments, or as JSON lines")
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            try:
                question = json.loads(line.decode("utf-8-sig"))
                # Python also reads half of a surrogate pair, NaN, and numbers that become infinite.
                json.dumps(question, ensure_ascii=False, allow_nan=False).encode()
            except (ValueError, RecursionError) as error:
                _fail(f"line {number}: not JSON in UTF-8 ({error})")
            if not isinstance(question, dict):
                _fail(f"line {number}: {rest.shown(question)}; expected an object with the names of the model's inputs")
            yield f"line {number}: ", question


def _questions(arguments: tuple[str, ...], model: rest.Answerer) -> Iterable[tuple[str, dict[str, Any]]]:
    """(Location, question as `Answerer.ask` takes it), from the command line or standard input."""
    if not arguments:
        return _lines()
    _, ranks = model.form([argument[2:].partition("=")[0] for argument in arguments if argument.startswith("--")])
    flags = [argument for argument in arguments if any(argument.startswith(f"--{name}=") for name in ranks)]
    if list(ranks.values()) == [1] and not flags and not arguments[0].startswith("--"):
        return [("", {name: text}) for text in arguments for name in ranks]
    values: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, value = argument[2:].partition("=")
        if argument not in flags:
            _fail(f"unexpected {argument!r}; the model takes {', '.join(f'--{name}=...' for name in ranks)}", 2)
        values.setdefault(name, []).append(value)
    missing = [name for name in ranks if name not in values and name not in model.optional]
    if missing:
        _fail(f"no --{missing[0]}=...; the model takes {', '.join(ranks)}", 2)
    twice = [name for name in values if ranks[name] == 1 and len(values[name]) > 1]
    if twice:
        _fail(f"--{twice[0]} is given {len(values[twice[0]])} times; the model takes one text", 2)
    return [("", {name: texts if ranks[name] > 1 else texts[0] for name, texts in values.items()})]


def main(*arguments: str) -> None:
    if arguments[:1] in (("--help",), ("-h",)):
        print(__doc__)
        return
    if not arguments:
        _fail("no model; name the folder of an exported version, such as EXPORT_DIR/1, or a URL, then what to ask", 2)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    location = ""
    try:
        model = open_model(arguments[0])
        if model.variant:
            print(f"ask.py: {model.variant}", file=sys.stderr)
        for where, question in _questions(arguments[1:], model):
            location = where
            is_body = isinstance(question.get("inputs"), dict)
            answer = model.predict(question) if is_body else {**question, **model.ask(question)}
            _print(answer)
    except (rest.ServerError, ValueError) as error:
        _fail(f"{location}{rest.reason(error)}")
    except OSError as error:
        _fail(f"standard input: {error.strerror}")


def _print(answer: dict[str, Any]) -> None:
    try:
        print(json.dumps(answer, ensure_ascii=False), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries to write there again when it ends
        _fail(f"standard output: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
