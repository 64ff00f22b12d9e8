"""Asks an exported model from the command line; needs TensorFlow and TF Text, nothing of bert_tf.

    python ask.py EXPORT_DIR/1 "A text." "Another one."
    python ask.py EXPORT_DIR/1 --question="Who came?" --context="Ann came."
    python ask.py EXPORT_DIR/1 < questions.jsonl

The model is loaded and run as TF Serving does it: by a session on its signatures, without the Python objects that
`tf.saved_model.load` makes. Version 2.12 of TensorFlow is enough, with the TF Text of the same number.

The first way is for models that take one text, the second for all: one value for each of the model's inputs, several
(--choices=A --choices=B) where an input is a list. On standard input comes a JSON object a line with the same names.
Each is answered by a line: a JSON object of what was asked and what the model returns, which goes before where both
have a name (a "label" that was known is not kept).

A line can also be what TF Serving's REST API takes for `predict` by column, of any number of rows and signature:
{"signature_name": "tokens", "inputs": {"input_word_ids": [[101, 102]], ...}}. It is answered as there, by
{"outputs": {...}}, of a single output by {"outputs": [...]}, or by {"error": "..."}. Strings that are not UTF-8, and
outputs whose names end in _bytes, are {"b64": "..."}.

Exit status: 0; 1 for a model or a line that can not be used, 2 for wrong arguments, with one line that says which.
"""

import base64
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

# TensorFlow 2.21 greets with lines on standard error that no setting silences.
_kept, _nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(_nowhere, 2)
try:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the ops that turn text into ids
finally:
    os.dup2(_kept, 2)
    os.close(_kept)
    os.close(_nowhere)

DEFAULT = "serving_default"
# What JSON has for a kind of NumPy's.
_JSON_TYPES = {"O": (str, bytes), "i": int, "u": int, "b": bool, "f": (int, float)}


class Model:
    """An exported model.

    Args:
        path: folder of one of its versions.

    Raises:
        ValueError: there is none, or it can not be loaded.

    Attributes:
        signatures: dict name -> SignatureDef.
        ranks: dict name of an input of `serving_default` -> how deep its lists are nested, the batch counted: 1 for a
            text an example.
    """

    def __init__(self, path):
        tf.compat.v1.logging.set_verbosity("ERROR")  # that this loader is deprecated in Python is no news to a user
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        try:
            with self._session.graph.as_default():
                loaded = tf.compat.v1.saved_model.load(self._session, ["serve"], path)
            self.signatures = {name: value for name, value in loaded.signature_def.items() if name[:2] != "__"}
            inputs = self.signatures[DEFAULT].inputs
        except (OSError, KeyError, RuntimeError):
            raise ValueError(
                f"{path}: no model that text can be asked of; name the folder of a version, such as EXPORT_DIR/1"
            ) from None
        except tf.errors.OpError as error:
            raise ValueError(f"{path}: {reason(error)}") from None
        self.ranks = {name: len(inputs[name].tensor_shape.dim) for name in sorted(inputs)}

    def run(self, inputs, signature_name=DEFAULT):
        """What a signature returns.

        Args:
            inputs: dict name -> array, or nested list, of all rows.
            signature_name: of the signature.

        Returns:
            dict name -> array; strings are bytes in an array of objects.

        Raises:
            ValueError: the signature or an input is unknown or missing, or a value has another type or rank.
            tf.errors.OpError: the model failed.
        """
        if not isinstance(signature_name, str) or signature_name not in self.signatures:
            raise ValueError(f"no signature {signature_name!r}; the model has {', '.join(sorted(self.signatures))}")
        signature = self.signatures[signature_name]
        if inputs.keys() != signature.inputs.keys():
            raise ValueError(f"inputs {', '.join(sorted(inputs))}; expected {', '.join(sorted(signature.inputs))}")
        feed = {info.name: _array(name, inputs[name], info) for name, info in signature.inputs.items()}
        return self._session.run({name: info.name for name, info in signature.outputs.items()}, feed)

    def ask(self, question):
        """The answer to one question: dict of JSON-ready values.

        Args:
            question: dict name of an input -> a str, or lists of them as deep as `ranks` says; other keys are not used.

        Raises:
            ValueError: a name is missing, or a value is something else.
            tf.errors.OpError: the model failed.
        """
        missing = [name for name in self.ranks if name not in question]
        if missing:
            raise ValueError(f"no {missing[0]!r} in {_shown(question)}; the model takes {', '.join(self.ranks)}")
        for name, rank in self.ranks.items():
            if not _is_text(question[name], rank):
                found = f"{name!r} is {_shown(question[name])}"
                raise ValueError(f"{found}; expected {'a list of texts' if rank > 1 else 'one text'}")
        answer = self.run({name: [question[name]] for name in self.ranks})
        return {name: _plain(name, value[0]) for name, value in answer.items()}

    def predict(self, body):
        """The answer to the body of a REST request, dict: {"outputs": ...} or {"error": ...}."""
        try:
            found = self.run(body["inputs"], body.get("signature_name", DEFAULT))
        except (ValueError, tf.errors.OpError) as error:
            return {"error": reason(error)}
        outputs = {name: _plain(name, value, exact=True) for name, value in found.items()}
        return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}


def _array(name, value, info):
    """A value of a request as the array that the input takes."""
    dtype, rank = tf.as_dtype(info.dtype).as_numpy_dtype, len(info.tensor_shape.dim)
    try:
        array = value if isinstance(value, np.ndarray) else np.array(_decoded(value, dtype), dtype)
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is not None and rank > 1 and not array.size:
        array = array.reshape([0, *(max(size.size, 0) for size in info.tensor_shape.dim[1:])])  # JSON's [] has no rank
    if array is None or array.ndim != rank:
        raise ValueError(f"{name!r} is {_shown(value)}; expected rank {rank} of {tf.as_dtype(info.dtype).name}")
    return array


def _decoded(value, dtype):
    """Nested lists as JSON has them, of bytes or numbers; ValueError or TypeError for what is of another type."""
    if isinstance(value, list):
        return [_decoded(item, dtype) for item in value]
    if isinstance(value, dict) and value.keys() == {"b64"}:
        value = base64.b64decode(value["b64"], validate=True)
    if not isinstance(value, _JSON_TYPES[np.dtype(dtype).kind]) or isinstance(value, bool) is not (dtype is np.bool_):
        raise TypeError
    return value.encode() if isinstance(value, str) else value


def _is_text(value, rank):
    if rank > 1:
        return isinstance(value, list) and all(_is_text(item, rank - 1) for item in value)
    return isinstance(value, str)


def _shown(value):
    return json.dumps(value, default=repr)[:200]


def reason(error):
    """What an error says, in one line; one of TensorFlow's without the names of the nodes that it went through."""
    message = error.message.split("[[{{")[0] if isinstance(error, tf.errors.OpError) else str(error)
    return " ".join(message.split())[:500]


def _fail(message, status=1):
    print(f"ask.py: {message}", file=sys.stderr, flush=True)
    sys.exit(status)


def _plain(name, value, exact=False):
    if isinstance(value, np.ndarray) and value.ndim:
        return [_plain(name, item, exact) for item in value]
    if not isinstance(value, bytes):
        return value.item()
    try:
        if not name.endswith("_bytes"):
            return value.decode("utf-8", "strict" if exact else "replace")
    except UnicodeDecodeError:
        pass
    return {"b64": base64.b64encode(value).decode()}


def _lines():
    """The objects on standard input."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            try:
                question = json.loads(line.decode("utf-8-sig"))
                json.dumps(question, ensure_ascii=False).encode()  # JSON can write half of a surrogate pair
            except ValueError as error:
                _fail(f"line {number}: not JSON in UTF-8 ({error})")
            if not isinstance(question, dict):
                _fail(f"line {number}: {_shown(question)}; expected an object with the names of the model's inputs")
            yield question


def _questions(arguments, ranks):
    """dicts as `Model.ask` takes them, from the command line or standard input."""
    if not arguments:
        return _lines()
    if len(ranks) == 1 and not arguments[0].startswith("--"):
        return ({name: text} for text in arguments for name in ranks)
    question = {}
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in ranks:
            _fail(f"unexpected {argument!r}; the model takes {', '.join(f'--{name}=...' for name in ranks)}", 2)
        question.setdefault(name, []).append(value)
    missing = [name for name in ranks if name not in question]
    if missing:
        _fail(f"no --{missing[0]}=...; the model takes {', '.join(ranks)}", 2)
    return [{name: values if ranks[name] > 1 else values[-1] for name, values in question.items()}]


def main(*arguments):
    if not arguments:
        _fail("no model; name the folder of an exported version, such as EXPORT_DIR/1, then what to ask", 2)
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        model = Model(arguments[0])
        for question in _questions(arguments[1:], model.ranks):
            is_body = isinstance(question.get("inputs"), dict)
            answer = model.predict(question) if is_body else question | model.ask(question)
            print(json.dumps(answer, ensure_ascii=False), flush=True)
    except (ValueError, tf.errors.OpError) as error:
        _fail(reason(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
    assert "bert_tf" not in sys.modules
