"""The public callables of bert_tf with hostile values for each of their parameters, generated from their signatures.

    python -m tests.public_api [NAME ...]

prints how many there are of each callable, and what became of them.
"""

import collections
import contextlib
import dataclasses
import inspect
import os
import re
import signal
import sys
import tempfile
import typing
from unittest import mock

import keras
import numpy as np

import bert_tf
from bert_tf.api import base, distill, sentence_encoder, sparse_encoder
from bert_tf.checkpoints import directory
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import BertConfig, TrainConfig
from bert_tf.config.values import shown, without_numpy
from bert_tf.errors import BertTfError, one_line
from bert_tf.inference import portable, static_vectors
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import InMemory
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.training.runs.run import Run
from tests import hostile, zoo
from tests.learned import learned, sentence_piece
from tests.model.small import randomize, small_config
from tests.zoo import LENGTH, VOCABULARY

SECONDS = 60  # of a call, at most
OUTPUT = object()  # stands for a new path
OF_KERAS = ("call", "get_config", "from_config")  # which Keras calls, with what it has checked or made
TEXTS = ["the good.", "a b c"]
PAIRS = [("the good.", "a b c"), ("b", "c the")]
WORDS, TAGS = [["the", "good"], ["a"]], [["B-X", "O"], ["O"]]
# Inputs and labels of each class.
DATA = {
    "TextClassifier": (TEXTS, [5, 1]),
    "MultiLabelClassifier": (TEXTS, [["a"], ["b"]]),
    "TextRegressor": (TEXTS, [1.0, 2.5]),
    "TokenClassifier": (WORDS, TAGS),
    "IntentAndSlots": (WORDS, [("p", TAGS[0]), ("q", TAGS[1])]),
    "QuestionAnswerer": ([("a?", "b c"), ("b?", "a c")], ["c", {"text": ["a"], "answer_start": [0]}]),
    "Reranker": ([("the good.", "a b c", "b"), ("b", "c the", "a")], [[1.0, 0.5], [0.0, 2.0]]),
    "MultipleChoice": ([("a", ["b", "c"]), {"context": "a", "question": "b", "choices": ["c", "a"]}], [0, 1]),
}


class Accepted(BaseException):
    """What was called checked its arguments, and began with the work that takes long."""


class Api:
    """Models, made once, and what the calls need.

    Args:
        folder: to write into.

    Attributes:
        seen: functions, or classes of settings, and parameters that were tried: several classes may have them. Only
            data is of another kind in each.
    """

    def __init__(self, folder):
        self.seen = set()
        self.folder, self.path, self.outputs = folder, os.path.join(folder, "model"), 0
        self.paths = hostile.paths(os.path.join(folder, "paths"))
        self.table = os.path.join(folder, "table.tsv")
        with open(self.table, "w") as file:
            file.write("sentence\tlabel\na\tb\n")
        encoder = zoo.encoder()
        task = MaskedLM(bert_tf.Tokenizer(VOCABULARY), LENGTH)
        self.masked = randomize(task.build(encoder))
        directory.save(self.path, self.masked, encoder, task)
        byte_pairs = learned("byte_bpe").tokenizer
        self.instances = {
            "BertConfig": small_config(),
            "BertEncoder": encoder,
            "BertPretrainer": self.masked,
            "Tokenizer": task.tokenizer,
            "BytePairTokenizer": byte_pairs,
            "SentencePieceTokenizer": sentence_piece(),
            "MaskedLM": bert_tf.MaskedLM.from_pretrained(self.path),
            "SentenceEncoder": bert_tf.SentenceEncoder.from_pretrained(self.path),
            "SparseEncoder": bert_tf.SparseEncoder.from_pretrained(self.path),
        }
        opened = Checkpoint(small_config(), {}, tokenizer=task.tokenizer)
        with working(encoder):
            for name in DATA:
                self.instances[name] = self._learned(name, encoder)
        ids, row = [[5, 6], [7]], np.ones([1, 2], np.int32)
        features = {"input_word_ids": row, "input_mask": row, "input_type_ids": row}
        # Valid values of parameters: of one callable, else of this name in any.
        self.valid = {
            "path": self.path, "filepath": OUTPUT, "folder": OUTPUT,
            "teacher": self.instances["TextClassifier"],
            "student": 1, "texts": TEXTS, "strings": TEXTS, "ids": ids, "used": [5], "piece": "[E1]", "first": ids,
            "checkpoint": opened, "dtype": "float32", "settings": {}, "name": "encoder", "encoder": encoder,
            "format": "saved_model", "inputs": features,
            "save.path": OUTPUT, "export.path": OUTPUT, "read.path": self.table, "read.format": "table",
            "distill.epochs": 1, "from_name.name": "base", "BertEncoder.config": small_config(num_layers=1),
            "BertPretrainer.inputs": features | {"masked_lm_positions": row}, "BertPretrainer.name": "pretrainer",
            "Tokenizer.subset.ids": range(len(VOCABULARY)),
            "BytePairTokenizer.subset.ids": range(byte_pairs.vocab_size),
            "SentencePieceTokenizer.subset.ids": range(sentence_piece().vocab_size),
            "Tokenizer.vocab": VOCABULARY, "BytePairTokenizer.vocab": byte_pairs.vocab,
            "merges": byte_pairs.merges, "model": sentence_piece().model,
            "static.size": 4, "fit.x": PAIRS, "fit.teacher": None, "SentenceEncoder.evaluate.x": PAIRS,
            "Reranker.rank.query": "a",
        }  # fmt: skip

    def _learned(self, name, encoder):
        """A model with a random head, whose task is learned from the data of its class."""
        short = {"stride": 8, "max_question_length": 8} if name == "QuestionAnswerer" else {}
        model = getattr(bert_tf, name).from_pretrained(self.path, max_length=LENGTH, **short)
        lines = model._labelled(*DATA[name], "x")
        data, kind = model._data(lines), model._kind
        examples = InMemory(data, kind.example, {"train": lines}).examples(ReadReport(), "train")
        task = kind.learn(model.tokenizer, model._config, data, list(examples), None)
        model._load(task, randomize(task.build(encoder)))
        return model

    @property
    def output(self):
        """A path that nothing was written to."""
        self.outputs += 1
        return os.path.join(self.folder, "outputs", str(self.outputs))

    def valid_value(self, callable_, parameter):
        """A value that fits a parameter, or KeyError: its default, an entry of `valid`, or data of the class."""
        owner, _, function = callable_.name.rpartition(".")
        names = (f"{callable_.name}.{parameter.name}", f"{owner}.{parameter.name}", f"{function}.{parameter.name}")
        found = next((name for name in (*names, parameter.name) if name in self.valid), None)
        if owner in DATA and parameter.name in ("x", "y"):
            return DATA[owner]["xy".index(parameter.name)]
        if owner in DATA and parameter.name == "validation_data":
            return DATA[owner]
        if callable_.name == "distill" and parameter.name in ("labelled_data", "validation_data"):
            return DATA["TextClassifier"]
        value = self.valid[found] if found else parameter.default
        return self.output if value is OUTPUT else value


@dataclasses.dataclass(frozen=True)
class Callable:
    """A public function, constructor or method.

    Attributes:
        name: such as "load" or "TextClassifier.fit".
        function: as it is defined, undecorated: one that several classes inherit is the same.
        call: calls it with arguments by name.
        parameters: without self.
        fields: dataclasses whose fields it takes as further arguments.
    """

    name: str
    function: typing.Any
    call: typing.Any
    parameters: tuple[inspect.Parameter, ...]
    fields: tuple[type, ...]


def callables(api):
    """All public callables of `bert_tf.__all__`; those that Keras and TensorFlow define are not ours."""
    for name in bert_tf.__all__:
        one = getattr(bert_tf, name)
        if inspect.ismodule(one):  # the program of this name, if something has imported it, can be called like it
            one = distill.distill
        if not inspect.isclass(one):
            yield _callable(name, one, one, None)
            continue
        for member in dir(one):
            static = inspect.getattr_static(one, member)
            function = getattr(static, "__func__", static)
            public = member in ("__init__", "__call__") or not member.startswith("_")
            ours = inspect.isfunction(function) and function.__module__.startswith("bert_tf")
            if public and ours and not (issubclass(one, keras.Model) and member in OF_KERAS):
                if member == "__init__":
                    yield _callable(f"{name}.__init__", function, one, one)
                else:
                    bound = getattr(one if isinstance(static, classmethod) else api.instances[name], member)
                    yield _callable(f"{name}.{member}", function, bound, one)


def _callable(name, function, call, owner):
    made = call
    parameters = list(inspect.signature(function).parameters.values())[owner is not None :]
    fields = []
    for one in parameters:
        if one.kind == one.VAR_KEYWORD and not name.startswith(("BertEncoder", "BertPretrainer")):  # Keras' own
            kinds = {
                "overrides": lambda: BertConfig,
                "train": lambda: TrainConfig,
                "settings": lambda: TrainConfig if name.endswith("fit") else owner._kind.Config,
            }
            fields.append(kinds[one.name]())
            if name in ("SentenceEncoder.fit", "SparseEncoder.fit"):
                fields.append(owner._kind.Config)
    named = tuple(one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))
    if owner is BertConfig and name != "BertConfig.check":  # settings are checked when they are used
        call = lambda **arguments: made(**arguments).check()  # noqa: E731
    return Callable(name, inspect.unwrap(function), call, named, tuple(fields))


def mutations(valid, value):
    """The values that have `value` in place of a valid one: as a whole, and in place of its first elements."""
    yield value
    if isinstance(valid, dict):
        for name, inner in valid.items():
            yield from (valid | {name: changed} for changed in mutations(inner, value))
    elif isinstance(valid, list | tuple) and valid and len(valid) < 50:
        for at in range(len(valid) if isinstance(valid, tuple) else 1):
            for changed in mutations(valid[at], value):
                yield type(valid)([*valid[:at], changed, *valid[at + 1 :]])


def numpy_forms(valid):
    """A valid number, text or list of these as NumPy has it: to be accepted, too."""
    if isinstance(valid, bool | int | float | str):
        yield np.array(valid)[()]
        yield np.array(valid)
    elif isinstance(valid, list | tuple) and valid and isinstance(valid[0], int | float | str):
        yield np.array(valid)
        yield type(valid)(np.array(valid))


def cells(api, one):
    """(name of the parameter, name of the value, arguments, whether they must be accepted) for one callable."""
    arguments = {}
    for parameter in one.parameters:
        value = api.valid_value(one, parameter)
        if value is inspect.Parameter.empty:
            raise KeyError(f"{one.name}: the parameter {parameter.name} is new: give it a value in Api.valid")
        arguments[parameter.name] = value
    yield "", "valid", arguments, True
    named = [(parameter.name, parameter.annotation, arguments[parameter.name]) for parameter in one.parameters]
    keys = {}
    for kind in one.fields:
        named += [(field.name, None, field.default) for field in dataclasses.fields(kind)]
        keys |= {field.name: kind for field in dataclasses.fields(kind)}
    for name, annotation, valid in named:
        if annotation is inspect.Parameter.empty:
            raise TypeError(f"{one.name}: the parameter {name} has no annotation")
        is_data = annotation is typing.Any
        # What is inside of data is read in the same way wherever it is given.
        inside = isinstance(valid, dict) or (
            is_data and not one.name.endswith("evaluate") and not name.endswith("_data")
        )
        key = keys.get(name, one.function), name
        if not is_data and key in api.seen:
            continue
        api.seen.add(key)
        values = dict(hostile.VALUES)
        if annotation is not None and "PathLike" in str(annotation):
            values |= api.paths
        for label, value in values.items():
            for changed in mutations(valid, value) if inside else [value]:
                yield name, label, arguments | {name: changed}, False
        for value in numpy_forms(valid):
            yield name, "NumPy", arguments | {name: value}, True


@contextlib.contextmanager
def working(encoder):
    """What loads, trains or exports a model is replaced: the encoder is there, the rest ends with `Accepted`."""

    def accepted(*args, **kwargs):
        raise Accepted

    with contextlib.ExitStack() as stack:
        ends = [(Run, "run"), (base, "Evaluation"), (keras.Model, "export")]
        ends += [(portable, "export_run"), (base, "export_run"), (sentence_encoder, "export")]
        ends += [(sentence_encoder, "export_embedder")]
        ends += [(sparse_encoder, "export"), (static_vectors, "_vectors")]
        for where, name in ends:
            stack.enter_context(mock.patch.object(where, name, accepted))
        stack.enter_context(mock.patch.object(Checkpoint, "encoder", lambda self, **options: encoder))
        yield


@contextlib.contextmanager
def limited():
    """Ends what takes longer than `SECONDS`."""

    def stop(*args):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(one, parameter, arguments, must_accept):
    """ "accepted", "refused", or what is wrong, in words."""
    value = arguments.get(parameter)
    try:
        with limited(), open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            one.call(**arguments)
        return "accepted"
    except Accepted:
        return "accepted"
    except BertTfError as error:
        message = str(error)
        if must_accept:
            return f"refused: {message}"
        # Data is named by the place in it.
        words = {parameter, parameter.removesuffix("s"), "path", "x", "label", "labels", "texts", "input_word_ids"}
        words |= {str(name) for name in value} if isinstance(value, dict) else set()
        forms = [shown(value), shown(without_numpy(value)), value if isinstance(value, str) else shown(value)]
        shows = any(one_line(form)[:20] in message for form in forms)
        found = re.findall(r"\w+", message)
        starts = any(word.startswith(parameter) for word in found)  # the vocabulary for vocab
        if "\n" in message or not (shows or starts or words & set(found)):
            return f"does not name it: {message}"
        return "refused"
    except BaseException as error:  # also what is no Exception: whatever a call raises is wrong
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {str(error)[:300]!r}"


def matrix(api, *chosen):
    """(callable, {outcome: count}, [wrong cells]) of each public callable, or of those whose names begin so."""
    with contextlib.chdir(api.folder), working(api.instances["BertEncoder"]):  # some values are names of files
        for one in (one for one in callables(api) if not chosen or one.name.startswith(chosen)):
            counts, wrong = collections.Counter(), []
            for parameter, label, arguments, must_accept in cells(api, one):
                found = outcome(one, parameter, arguments, must_accept)
                if found not in ("accepted", "refused"):
                    wrong.append(f"{one.name}({parameter}={label}): {found}")
                    found = "wrong"
                counts[found] += 1
            yield one, counts, wrong


def main():
    with tempfile.TemporaryDirectory() as folder:
        total = collections.Counter()
        for one, counts, wrong in matrix(Api(folder), *sys.argv[1:]):
            total += counts
            print(f"{one.name:45}{counts['accepted']:8}{counts['refused']:8}{counts['wrong']:8}", flush=True)
            print("\n".join(wrong), file=sys.stderr, flush=True)
        print(f"{'all':45}{total['accepted']:8}{total['refused']:8}{total['wrong']:8}")


if __name__ == "__main__":
    main()
