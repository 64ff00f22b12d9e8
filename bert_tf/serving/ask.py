"""Asks an exported model from the command line; needs TensorFlow and TF Text, nothing of bert_tf.

    python ask.py EXPORT_DIR/1 "A text." "Another one."
    python ask.py EXPORT_DIR/1 --question="Who came?" --context="Ann came."
    python ask.py EXPORT_DIR/1 < questions.jsonl

The first way is for models that take one text, the second for all: one value for each of the model's inputs, several
(--choices=A --choices=B) where an input is a list. On standard input comes a JSON object a line with the same names.
Each is answered by a line: a JSON object of what was asked and what the model returns, which goes before where both
have a name (a "label" that was known is not kept). Run by its path, in a process of
its own, it also shows that an export stands on its own feet.

Exit status: 0; 1 for a model or a line that can not be used, 2 for wrong arguments, with one line that says which.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the ops that turn text into ids


class Model:
    """An exported model.

    Args:
        path: folder of one of its versions; exits with status 1 if there is none.

    Attributes:
        ranks: dict name of an input -> how deep its lists are nested, the batch counted: 1 for a text an example.
    """

    def __init__(self, path):
        try:
            self._loaded = tf.saved_model.load(path)  # kept: the signature alone does not keep its variables
            self._serve = self._loaded.signatures["serving_default"]
        except (OSError, KeyError):
            _fail(f"{path}: no model that text can be asked of; name the folder of a version, such as EXPORT_DIR/1")
        specs = self._serve.structured_input_signature[1].values()  # in no order
        self.ranks = {spec.name: spec.shape.rank for spec in sorted(specs, key=lambda spec: spec.name)}

    def ask(self, question):
        """The answer to one question: dict of JSON-ready values.

        Args:
            question: dict name of an input -> a str, or lists of them as deep as `ranks` says; other keys are not used.
        """
        missing = [name for name in self.ranks if name not in question]
        if missing:
            _fail(f"no {missing[0]!r} in {_shown(question)}; the model takes {', '.join(self.ranks)}")
        answer = self._serve(**{name: _input(name, question[name], rank) for name, rank in self.ranks.items()})
        return {name: _plain(value[0].numpy()) for name, value in answer.items()}


def _input(name, value, rank):
    """A batch of one as a tensor of strings."""
    try:
        tensor = tf.constant([value], tf.string)
    except (TypeError, ValueError):  # among them half of a surrogate pair, which JSON can write
        tensor = None
    if tensor is None or tensor.shape.rank != rank:
        _fail(f"{name!r} is {_shown(value)}; expected {'a list of texts' if rank > 1 else 'one text'}")
    return tensor


def _shown(value):
    return json.dumps(value)[:200]


def _fail(message, status=1):
    print(f"ask.py: {message}", file=sys.stderr, flush=True)
    sys.exit(status)


def _plain(value):
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return [_plain(item) for item in value] if getattr(value, "ndim", 0) else value.item()


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
    model = Model(arguments[0])
    for question in _questions(arguments[1:], model.ranks):
        print(json.dumps(question | model.ask(question), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    assert "bert_tf" not in sys.modules
