"""Asks an exported model from the command line; needs TensorFlow and TF Text, and nothing of bert_tf.

    python ask.py EXPORT_DIR/1 "A text." "Another one."
    python ask.py EXPORT_DIR/1 --question="Who came?" --context="Ann came."
    python ask.py EXPORT_DIR/1 --words=Ada --words=Lovelace
    python ask.py EXPORT_DIR/1 < questions.jsonl

The model is loaded and run as TF Serving does it: by a session on its signatures, without the Python objects that
`tf.saved_model.load` creates. TensorFlow 2.12 is enough, with the TF Text of the same version.

The first form is for models that take one text, the second for all models: one value for each input, or several
(--choices=A --choices=B) where an input is a list. A tagger takes a text, or words that are not split again (--words).
Choices may come without a question. In the last form each line of standard input is a JSON object with the same names.
Each question is answered by one line: a JSON object with the question and what the model returns, whose names win
("label" is the model's, not one that was known before).

A line can also be the body of TF Serving's REST API for `predict` in column format, with any number of rows and any
signature: {"signature_name": "tokens", "inputs": {"input_word_ids": [[101, 102]], ...}}. The answer is that of the API:
{"outputs": {...}}, for a single output {"outputs": [...]}, or {"error": "..."}. Strings that are not UTF-8, and outputs
whose names end in _bytes, are {"b64": "..."}.

Exit status: 0; 1 for a model or a line that cannot be used, 2 for wrong arguments, with one line that names the cause.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NoReturn

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C and a closed pipe end the program without a stack trace
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

# TensorFlow 2.21 prints greetings to standard error that no setting silences.
_stderr, _devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(_devnull, 2)
try:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the ops that turn text into ids
finally:
    os.dup2(_stderr, 2)
    os.close(_stderr)
    os.close(_devnull)

DEFAULT, WORDS = "serving_default", "words"
# The types that JSON has for a kind of NumPy's.
_JSON_TYPES: dict[str, Any] = {"O": (str, bytes), "i": int, "u": int, "b": bool, "f": (int, float)}


class Model:
    """An exported model.

    Args:
        path: folder of one of its versions.

    Raises:
        ValueError: there is none, or it cannot be loaded.

    Attributes:
        signatures: SignatureDefs by name.
        ranks: by input of `serving_default`, how deep its lists are nested, the batch included: 1 for one text per
            example.
        optional: names of the inputs that may be left out.
    """

    def __init__(self, path: str) -> None:
        tf.compat.v1.logging.set_verbosity("ERROR")  # that this loader is deprecated in Python does not concern users
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        try:
            with self._session.graph.as_default():
                loaded = tf.compat.v1.saved_model.load(self._session, ["serve"], path)
            self.signatures = {name: value for name, value in loaded.signature_def.items() if name[:2] != "__"}
            self.ranks = _ranks(self.signatures[DEFAULT])
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            if os.path.exists(os.path.join(path, "saved_model.pb")):
                raise ValueError(f"{path}: damaged, or not a model that takes text ({reason(error)})") from None
            raise ValueError(
                f"{path or repr(path)}: no exported model; name the folder of a version, such as EXPORT_DIR/1"
            ) from None
        except tf.errors.OpError as error:
            raise ValueError(f"{path}: damaged: {reason(error)}") from None
        self.optional = {"question"} if "choices" in self.ranks else set()
        self.ranks |= dict.fromkeys(self.optional, 1)  # older exports have no such input; see `run`

    def form(self, names: Collection[str]) -> tuple[str, dict[str, int]]:
        """The signature for a question with these names, and the ranks of its inputs."""
        given = WORDS if WORDS in self.signatures and WORDS in names else DEFAULT
        return given, self.ranks if given == DEFAULT else _ranks(self.signatures[given])

    def run(self, inputs: dict[str, Any], signature_name: Any = DEFAULT) -> dict[str, Any]:
        """What a signature returns.

        Args:
            inputs: by name, arrays or nested lists of all rows.
            signature_name: of the signature.

        Returns:
            Arrays by name; strings are bytes in an array of objects.

        Raises:
            ValueError: the signature or an input is unknown or missing, or a value has another type or rank.
            tf.errors.OpError: the model failed.
        """
        if not isinstance(signature_name, str) or signature_name not in self.signatures:
            raise ValueError(f"no signature {signature_name!r}; the model has {', '.join(sorted(self.signatures))}")
        signature = self.signatures[signature_name]
        if "question" in inputs and signature.inputs.keys() == {"choices", "context"}:
            # An export in which the question was a part of the context.
            info = signature.inputs["context"]
            pairs = zip(*(_array(name, inputs.get(name), info) for name in ("context", "question")), strict=True)
            context = np.array([b" ".join(filter(None, pair)) for pair in pairs], object)
            inputs = {name: value for name, value in inputs.items() if name != "question"} | {"context": context}
        if inputs.keys() != signature.inputs.keys():
            raise ValueError(
                f"inputs named {', '.join(sorted(map(repr, inputs))) or 'nothing'}; the signature {signature_name!r} "
                f"takes {', '.join(sorted(map(repr, signature.inputs)))}"
            )
        feed = {info.name: _array(name, inputs[name], info) for name, info in signature.inputs.items()}
        return self._session.run({name: signature.outputs[name].name for name in sorted(signature.outputs)}, feed)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question, JSON-ready.

        Args:
            question: by input, a str, or lists of them as deep as its rank says; other keys are not used.

        Raises:
            ValueError: a name is missing, a value is something else, or the model answers NaN or infinity.
            tf.errors.OpError: the model failed.
        """
        signature, ranks = self.form(question)
        question = dict.fromkeys(self.optional, "") | question
        missing = [name for name in ranks if name not in question]
        if missing and {"instances", "examples"} & question.keys():
            raise ValueError("a body in row format; expected column format: {'inputs': {NAME: [...], ...}}")
        if missing:
            raise ValueError(f"no {missing[0]!r} in {_shown(question)}; the model takes {', '.join(ranks)}")
        if "signature_name" in question and "signature_name" not in self.ranks:
            raise ValueError("'signature_name' is for bodies with 'inputs'; this question has none")
        for name, rank in ranks.items():
            if not _is_text(question[name], rank):
                found = f"{name!r} is {_shown(question[name])}"
                raise ValueError(f"{found}; expected {'a list of texts' if rank > 1 else 'one text'} in UTF-8")
        answer = self.run({name: [question[name]] for name in ranks}, signature)
        return {name: _plain(name, value[0]) for name, value in answer.items()}

    def predict(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to the body of a REST request: {"outputs": ...} or {"error": ...}."""
        try:
            answer = self.run(body["inputs"], body.get("signature_name", DEFAULT))
            outputs = {name: _plain(name, value, exact=True) for name, value in answer.items()}
        except (ValueError, tf.errors.OpError) as error:
            return {"error": reason(error)}
        return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}


def _ranks(signature: Any) -> dict[str, int]:
    return {name: len(signature.inputs[name].tensor_shape.dim) for name in sorted(signature.inputs)}


def _array(name: str, value: Any, info: Any) -> np.ndarray[Any, Any]:
    """A value of a request as the array that the input takes."""
    dtype, rank = tf.as_dtype(info.dtype).as_numpy_dtype, len(info.tensor_shape.dim)
    try:
        array = value if isinstance(value, np.ndarray) else np.array(_decoded(value, dtype), dtype)
    except (TypeError, ValueError, OverflowError, RecursionError):
        array = None
    if array is not None and array.dtype == object and any(isinstance(item, list) for item in array.flat):
        array = None
    if array is not None and array.ndim < rank and not array.size:
        array = array.reshape([0, *(max(size.size, 0) for size in info.tensor_shape.dim[1:])])  # JSON's [] has no rank
    if array is None or array.ndim != rank:
        expected = f"{'a list of lists' if rank == 2 else 'a list' if rank == 1 else f'lists nested {rank} deep'}"
        kind = tf.as_dtype(info.dtype).name
        raise ValueError(f"{name!r} is {_shown(value)}; expected {expected} of {kind} values, one for each row")
    return array


def _decoded(value: Any, dtype: Any) -> Any:
    """Nested lists from JSON, of bytes or numbers; ValueError or TypeError for another type."""
    if isinstance(value, list):
        return [_decoded(item, dtype) for item in value]
    if isinstance(value, dict) and value.keys() == {"b64"}:
        value = base64.b64decode(value["b64"], validate=True)
    if not isinstance(value, _JSON_TYPES[np.dtype(dtype).kind]) or isinstance(value, bool) is not (dtype is np.bool_):
        raise TypeError
    return value.encode() if isinstance(value, str) else value


def _is_text(value: Any, rank: int) -> bool:
    if rank > 1:
        return isinstance(value, list) and value != [] and all(_is_text(item, rank - 1) for item in value)
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:  # an argument that is not UTF-8
        return False


def _shown(value: Any) -> str:
    return json.dumps(value, default=repr)[:200]


def reason(error: Exception) -> str:
    """The message of an error in one line; TensorFlow's without the names of the nodes that it passed."""
    message = error.message.split("[[{{")[0] if isinstance(error, tf.errors.OpError) else str(error)
    return " ".join(message.replace("Graph execution error:", "").split())[:500]


def _fail(message: str, status: int = 1) -> NoReturn:
    print(f"ask.py: {message}", file=sys.stderr, flush=True)
    sys.exit(status)


def _plain(name: str, value: Any, exact: bool = False) -> Any:
    if isinstance(value, np.ndarray) and value.ndim:
        return [_plain(name, item, exact) for item in value]
    if not isinstance(value, bytes):
        if not np.isfinite(value):
            raise ValueError(f"the model answers {value} in {name!r}; its weights are damaged, export others")
        return value.item()
    try:
        if not name.endswith("_bytes"):
            return value.decode("utf-8", "strict" if exact else "replace")
    except UnicodeDecodeError:
        pass
    return {"b64": base64.b64encode(value).decode()}


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
                _fail(f"line {number}: {_shown(question)}; expected an object with the names of the model's inputs")
            yield f"line {number}: ", question


def _questions(arguments: tuple[str, ...], model: Model) -> Iterable[tuple[str, dict[str, Any]]]:
    """(Location, question as `Model.ask` takes it), from the command line or standard input."""
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
        _fail("no model; name the folder of an exported version, such as EXPORT_DIR/1, then what to ask", 2)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    location = ""
    try:
        model = Model(arguments[0])
        for where, question in _questions(arguments[1:], model):
            location = where
            is_body = isinstance(question.get("inputs"), dict)
            answer = model.predict(question) if is_body else {**question, **model.ask(question)}
            _print(answer)
    except (ValueError, tf.errors.OpError) as error:
        _fail(f"{location}{reason(error)}")
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
    assert "bert_tf" not in sys.modules
