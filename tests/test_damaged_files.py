"""Damaged files: whatever happened to a file, reading it gives a result, or one line that names the file.

Each reader gets valid files, made by the project's own writers where there are any; hypothesis damages one of them.
Pickled weights are left out: PyTorch, which reads them, is an extra.
"""

import dataclasses
import functools
import gzip
import io
import json
import math
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bert_tf
from bert_tf import app
from bert_tf.checkpoints import directory, run_files
from bert_tf.checkpoints.formats import google, huggingface, open_checkpoint
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor_files.safetensors import open_tensors
from bert_tf.config import ExampleData, PretrainingData, TrainConfig
from bert_tf.errors import BertTfError, DataError
from bert_tf.files import bundled, write_json
from bert_tf.inference import ask, card, prediction_shards
from bert_tf.inference.extraction import read_texts
from bert_tf.inputs.batching import stream
from bert_tf.inputs.corpus.corpus import Corpus, find_corpus
from bert_tf.inputs.corpus.dataset import reading
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
from bert_tf.inputs.datasets.formats import FORMATS
from bert_tf.inputs.datasets.sources import Source
from bert_tf.tasks import TASKS
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import write_vocabulary
from bert_tf.training.runs.stage import results_of
from bert_tf.training.state.best_weights import BestWeights
from bert_tf.training.state.checkpoints import Checkpoints
from bert_tf.training.state.history import History, by_phase
from bert_tf.training.state.input_state import InputState
from bert_tf.training.state.run_manifest import RunManifest
from tests.checkpoints.formats import test_model_garden as garden
from tests.checkpoints.small import small_checkpoint
from tests.inference.test_ask import Echo
from tests.learned import TOKENIZERS
from tests.model.numpy_bert import random_tensors
from tests.model.small import PIECES

STEPS = (5, 10)  # of the checkpoints of a run
RUN = {"program": "finetune", "config": {"task": {"max_length": 8}}, "computes_in": "float32", "inputs": {"train": "a"}}
TEXT = "a good text. the end.\n가나 the\n\nanother good one\nthe sentence, again\n\n" * 4
NLI = [{"guid": f"n{number}", "premise": "a", "hypothesis": "b", "gold_label": "neutral"} for number in range(2)]
STS = [{"guid": f"s{number}", "sentence1": "a", "sentence2": "b", "labels": {"real-label": 2.5}} for number in range(2)]
QUESTION = {"id": "q1", "question": "the?", "answers": [{"text": "good", "answer_start": 2}]}
SQUAD = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "a good end", "qas": [QUESTION]}]}]}
EXAMPLES = [TextExample(str(number), ("the", "b"), None, f"a:{number}") for number in range(20)]
ITEM = '<item id="{}" asks-for="cause" most-plausible-alternative="1"><p>a</p><a1>b</a1><a2>c</a2></item>'
# Name of a format, and more where it has several kinds of files -> name and content of a file.
DATA = {
    "table": ("train.tsv", "sentence\tlabel\nthe good\tyes\nan end\tno\n"),
    "table, csv": ("train.csv", 'sentence,label\n"the, good",yes\n"an ""end""\n",no\n'),
    "table, jsonl": (
        "train.jsonl",
        '{"sentence": "a", "label": "a"}\n{"id": 7, "sentence": "b", "label": ["a", "b"]}\n',
    ),
    "sst": ("train.tsv", "the good\t1\nan end\t0\n"),
    "glue/stsb": ("train.tsv", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n1\tc\td\t5\n"),
    "glue/qqp": ("train.tsv", "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\n1\tc\td\t0\n"),
    "klue/nli": ("klue-nli-v1.1_train.json", json.dumps(NLI)),
    "klue/sts": ("klue-sts-v1.1_train.json", json.dumps(STS)),
    "klue/ner": ("klue-ner-v1.1_train.tsv", "## comment\n## n1\t<가:PS> b\n가\tB-PS\n \tO\nb\tO\n\n## n2\tc\nc\tO\n"),
    "clinc150": ("data_full.json", json.dumps({"train": [["a", "x"], ["b", "y"]], "oos_train": [["c", "oos"]]})),
    "conll": ("train.txt", "-DOCSTART- -X- O\n\nAda NNP B-PER\nran VBD O\n\nBonn NNP B-LOC\n"),
    "conll, jsonl": ("train.jsonl", '{"words": ["Ada", "ran"], "tags": ["B-PER", "O"]}\n'),
    "conllu": ("train.conllu", "# newdoc\n# sent_id = a\n1\tAda\tada\tPROPN\tNNP\t_\t0\troot\t_\t_\n\n"),
    "squad": ("train-v1.1.json", json.dumps(SQUAD)),
    "squad2, jsonl": ("train.jsonl", '{"question": "a?", "context": "a b", "answers": [{"text": "b", "start": 2}]}\n'),
    "swag": ("train.csv", "sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,2\ng,h,i,j,k,l,0\n"),
    "copa": ("copa-dev.xml", f"<copa-corpus>{ITEM.format(1)}{ITEM.format(2)}</copa-corpus>"),
    "choices": ("train.jsonl", '{"context": "a", "question": "b", "choices": ["c", "d"], "label": 1}\n'),
}


def make_own(folder):
    checkpoint = small_checkpoint("classification")
    checkpoint = dataclasses.replace(
        checkpoint, moments={f"{name}/{slot}": tensor for name, tensor in checkpoint.tensors.items() for slot in "mv"}
    )
    checkpoint = dataclasses.replace(checkpoint, step=3)
    directory.write(checkpoint, folder)


def make_kind(kind, folder):
    tokenizer = TOKENIZERS[kind]()
    checkpoint = small_checkpoint(vocab_size=tokenizer.vocab_size)
    checkpoint = dataclasses.replace(checkpoint, tokenizer=tokenizer)
    directory.write(checkpoint, folder)


def make_unfinished(folder):
    """A model beside the checkpoints of its run, which hold the optimizer's slots."""
    checkpoint = small_checkpoint("masked_lm")
    directory.write(checkpoint, folder)
    weights = {name: tensor.read() for name, tensor in checkpoint.tensors.items()}
    slots = {f"slots/{name}/{slot}": value for name, value in weights.items() for slot in "mv"}
    values = {f"weights/{name}": value for name, value in weights.items()} | slots | {"state": np.array([5])}
    with Checkpoints(
        str(folder / "checkpoints"), {name: tf.Variable(value) for name, value in values.items()}, 2
    ) as to:
        to.save(5)


def make_original_google(folder):
    """As Google's code writes it, without our part of bert_config.json."""
    google.write(small_checkpoint("pretraining"), folder)
    file = folder / "bert_config.json"
    write_json(file, {name: value for name, value in json.loads(file.read_text()).items() if name != "bert_tf"})


def make_huggingface(folder):
    huggingface.write(small_checkpoint("tagging"), folder)
    library = {
        "model": {"type": "WordPiece", "vocab": {piece: number for number, piece in enumerate(PIECES)}},
        "normalizer": {"type": "BertNormalizer", "lowercase": False, "strip_accents": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "added_tokens": [{"id": 0, "content": "[PAD]"}],
    }
    write_json(folder / "tokenizer.json", library)
    write_json(folder / "added_tokens.json", {"[MASK]": 4})


def make_sharded(folder):
    make_huggingface(folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    names = open_tensors(str(folder / "model-1.safetensors"))
    write_json(folder / "model.safetensors.index.json", {"weight_map": dict.fromkeys(names, "model-1.safetensors")})


def make_garden(folder):
    sizes = {"layers": garden.LAYERS, "hidden": garden.HIDDEN, "inner": 48, "vocab": len(PIECES), "positions": 24}
    garden.write_checkpoint(folder, garden.variables(random_tensors(np.random.default_rng(0), **sizes)))
    (folder / "params.yaml").write_text(garden.PARAMS)


def make_foreign(kind, folder):
    """Files of Transformers with another tokenizer, as RoBERTa and XLM-R have them."""
    tokenizer = TOKENIZERS[kind]()
    checkpoint = small_checkpoint(vocab_size=tokenizer.vocab_size)
    checkpoint = dataclasses.replace(checkpoint, tokenizer=tokenizer)
    huggingface.write(checkpoint, folder)


def make_pickled(folder):
    huggingface.write(small_checkpoint(), folder)
    tensors = open_tensors(str(folder / "model.safetensors"))
    torch = pytest.importorskip("torch", reason="needs pip install 'bert_tf[torch]'")
    weights = {name: torch.from_numpy(tensor.read()) for name, tensor in tensors.items()}
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def make_modules(folder):
    """An encoder in sentence-transformers' layout."""
    huggingface.write(small_checkpoint(), folder)
    parts = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{name}"} for name, path in parts.items()]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 20})
    write_json(folder / "config_sentence_transformers.json", {"prompts": {}})
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})


def read_model(path, **options):
    checkpoint = open_checkpoint(path, **options)
    for tensor in [*checkpoint.tensors.values(), *checkpoint.moments.values()]:
        tensor.read()
    if checkpoint.task and checkpoint.tokenizer:
        with mock.patch.object(Checkpoint, "model"):
            directory.task_and_model(checkpoint, path)


def variables_of_run():
    return {"weights/w": tf.Variable(tf.range(300.0)), "state": tf.Variable([0])}


def best_of(path):
    model = SimpleNamespace(layers=[], weights=[keras.Variable(np.ones(30), name="w")])
    return BestWeights(f"{path}/checkpoints", model, "loss", "min", TrainConfig(keep_best=True))


def batches(epoch):
    return tf.data.Dataset.range(6).map(lambda number: {"x": number + 10 * epoch})


def input_state(path):
    return InputState(f"{path}/checkpoints", tf.distribute.OneDeviceStrategy("/cpu:0"), 2)


def make_run(folder):
    RunManifest(str(folder), RUN).write(0)
    variables, history, best = variables_of_run(), History(str(folder), 0), best_of(folder)
    rates = {"sequences_per_second": 3.0, "training_seconds": 2.0, "padding_share": 0.5}
    with Checkpoints(str(folder / "checkpoints"), variables, 2) as checkpoints, redirect_stdout(io.StringIO()):
        for step in STEPS:
            variables["state"].assign([step])
            checkpoints.save(step)
            history.point(step, 0, {"loss": 1 / step, "accuracy": math.nan}, 1e-4, rates)
            best.update(history.evaluations, step, {"loss": 1 / step}, STEPS)
            history.evaluation(step, {"loss": 1 / step})
    results = {"task": "classification", "measure": ["loss", "min"], "steps": 10, "final": {"loss": 0.1}}
    write_json(folder / "results.json", RUN | results | {"evaluations": history.evaluations, "seconds": 1.5})
    iterator = iter(stream(batches))
    next(iterator)
    input_state(folder).save(iterator, 5)


def read_history(path):
    history = History(path, 100)
    by_phase(history.points)
    best_of(path).step(history.evaluations)


def read_run(path):
    RunManifest(path, RUN, accept=True).write(5)


def read_results(path):
    results_of(path, "final")
    card._training(run_files.read_results(path))


def read_state(path):
    variables = variables_of_run()
    variables["weights/w"].assign(tf.zeros([300]))
    with Checkpoints(f"{path}/checkpoints", variables, 2) as checkpoints:
        assert checkpoints.restore(lambda line: None, lambda: int(variables["state"][0]))
        assert checkpoints.steps
    assert np.array_equal(variables["weights/w"], np.arange(300.0))


def read_best(path):
    best_of(path).restore([{"step": step, "loss": 1 / step} for step in STEPS])


def read_input_state(path):
    iterator = input_state(path).open(batches, (0, 1), 5)
    assert [int(next(iterator)[0]["x"]) for _ in range(7)] == [1, 2, 3, 4, 5, 10, 11]


def make_corpus(folder):
    for number in range(2):
        (folder / f"{number}.txt").write_text(TEXT)
    with gzip.open(folder / "2.txt.gz", "wt") as file:
        file.write(TEXT)


def make_prepared(folder):
    pytest.importorskip("apache_beam", reason="needs pip install 'bert_tf[beam]'")
    from bert_tf.inputs.corpus.preparation import plan, prepare

    (folder / "text").mkdir()
    make_corpus(folder / "text")
    tokenizer = bert_tf.Tokenizer(PIECES)
    prepare(plan(find_corpus(f"{folder}/text/*"), "sentences", tokenizer, 2), tokenizer, str(folder / "shards"))


def read_corpus(pattern, path):
    corpus = Corpus(find_corpus(f"{path}/{pattern}"), Tokenizer(PIECES), PretrainingData())
    corpus.check()
    with reading(", ".join(corpus.files)):
        return [block.to_list() for block in corpus.documents([0, 0])]


def read_data(name, path):
    data, report = ExampleData(format=name.split(",")[0], train=DATA[name][0] if "," in name else ""), ReadReport()
    source = Source(data, path, FORMATS[data.format].example)
    source.labels()
    list(source.examples(report, "train"))


def make_texts(folder):
    for name in ("train.tsv", "train.csv"):
        (folder / name).write_text(next(text for file, text in DATA.values() if file == name))
    (folder / "a.jsonl").write_text('{"sentence": "a"}\n{"sentence": "b"}\n')
    (folder / "a.txt").write_text(TEXT)


def make_card(folder):
    task = TASKS["tagging"]
    settings = {"labels": ["O", "B-X"], "max_length": 9}
    (folder / card.EXTRA).mkdir()
    write_json(folder / card.EXTRA / card.CARD, {"task": {"name": task.name, "settings": settings}, "tokenizer": {}})
    write_vocabulary(folder / card.EXTRA / "vocab.txt", PIECES)


def predictions_of(path, made_of):
    return prediction_shards.Shards(f"{path}/out.jsonl", TextExample, [prediction_shards.Shard(20, made_of)])


def make_predictions(folder):
    made = prediction_shards.stage(f"{folder}/out.jsonl", EXAMPLES, TextExample, {}, lambda examples: None)
    made.write(0, [{}] * 20, lambda path, rows: write_json(path, [str(row) for row in rows]))
    (folder / "made_of").write_text(json.loads((folder / "out.jsonl.shards/00000.json").read_text())["made_of"])


def read_predictions(path):
    with open(f"{path}/made_of") as file:
        made = predictions_of(path, file.read())
    assert made.examples(0) == EXAMPLES
    made.begin()


def make_ask(folder):
    module = Echo({"context": 1, "choices": 2, "question": 1})
    tf.saved_model.save(module, str(folder / "model"), signatures={"serving_default": module.serve})
    body = {"signature_name": "serving_default", "inputs": {"context": ["a"], "question": ["b"], "choices": [["c"]]}}
    lines = [{"context": "a", "question": "b", "choices": ["c", "d"]}, body]
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_ask(path):
    with (
        open(f"{path}/lines.jsonl", "rb") as lines,
        mock.patch.object(sys, "stdin", SimpleNamespace(buffer=lines)),
        redirect_stdout(io.TextIOWrapper(io.BytesIO())),
        redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            ask.main(f"{path}/model")
        except SystemExit:  # it knows nothing of BertTfError, and standard input has no name
            raise DataError(errors.getvalue().rstrip("\n").replace("line ", f"{path}: line ")) from None


def make_config(folder):
    shutil.copy(bundled("configs/finetune/reviews.py"), folder / "config.py")


class Reader(NamedTuple):
    make: Callable  # writes valid files into a folder
    files: tuple[str, ...]  # patterns of those to damage
    read: Callable  # reads the folder


READERS = {
    "own model": Reader(make_own, ("config.json", "*.safetensors", "vocab.txt"), read_model),
    "own model, byte_bpe": Reader(functools.partial(make_kind, "byte_bpe"), ("vocab.json", "merges.txt"), read_model),
    "own model, unigram": Reader(functools.partial(make_kind, "unigram"), ("*.model",), read_model),
    "own model, unfinished": Reader(make_unfinished, ("checkpoints/*",), read_model),
    "google": Reader(lambda to: google.write(small_checkpoint("classification"), to), ("*",), read_model),
    "google's own": Reader(make_original_google, ("*",), read_model),
    "huggingface": Reader(make_huggingface, ("*.json", "*.txt"), read_model),
    "huggingface, sharded": Reader(make_sharded, ("model*",), read_model),
    "model garden": Reader(make_garden, ("*",), read_model),
    "history": Reader(make_run, ("history.jsonl",), read_history),
    "run.json": Reader(make_run, ("run.json",), read_run),
    "results": Reader(make_run, ("results.json",), read_results),
    "checkpoints": Reader(make_run, ("checkpoints/step-10.*",), read_state),
    "best weights": Reader(make_run, ("checkpoints/best*",), read_best),
    "input state": Reader(make_run, ("checkpoints/input*",), read_input_state),
    "corpus": Reader(make_corpus, ("0.txt",), functools.partial(read_corpus, "*.txt")),
    "corpus, compressed": Reader(make_corpus, ("*.gz",), functools.partial(read_corpus, "*.gz")),
    "corpus, prepared": Reader(make_prepared, ("shards/*",), functools.partial(read_corpus, "shards")),
    "texts, tsv": Reader(make_texts, ("train.tsv",), lambda path: list(read_texts(f"{path}/train.tsv", "sentence"))),
    "texts, csv": Reader(make_texts, ("train.csv",), lambda path: list(read_texts(f"{path}/train.csv", "sentence"))),
    "texts, jsonl": Reader(make_texts, ("a.jsonl",), lambda path: list(read_texts(f"{path}/a.jsonl", "sentence"))),
    "texts, txt": Reader(make_texts, ("a.txt",), lambda path: list(read_texts(f"{path}/a.txt"))),
    "card": Reader(make_card, ("assets.extra/*",), card.task_of_export),
    "predictions": Reader(make_predictions, ("out*/*",), read_predictions),
    "ask": Reader(make_ask, ("lines.jsonl", "model/saved_model.pb"), read_ask),
    "config": Reader(make_config, ("config.py",), lambda path: app._ConfigFile().parse(f"{path}/config.py")),
} | {
    f"data, {name}": Reader(
        lambda folder, file=file, text=text: (folder / file).write_text(text),
        (file,),
        functools.partial(read_data, name),
    )
    for name, (file, text) in DATA.items()
}

DEEP, DIGITS = "@deep", "@digits"  # stand for what Python's json cannot write
VALUES = [
    None,
    True,
    0,
    -1,
    0.5,
    2**31,
    2**63,
    10**30,
    10**400,
    1e308,
    math.inf,
    math.nan,
    "",
    " ",
    "7",
    "\ud800",
    "a\nb",
    "\0",
]
VALUES += ["x" * 3000, [], {}, [[]], [None], {"": 0}, ["x"] * 2000, DEEP, DIGITS]
BYTES = [b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"\n\n"]
BYTES += [
    b"9" * 5000,
    b"-" * 20000,
    b"\0" * 300,
    b"NaN",
    b"1e999",
    b"&a;",
    b": ",
    *(bytes([at]) for at in b'\n\r\t",{*'),
]


def places(value):
    """(container, key) of everything in a value from JSON."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def damaged_json(draw, text):
    value = json.loads(text)
    for _ in range(draw(st.integers(1, 2), label="changes")):
        if found := list(places(value)):
            container, key = found[draw(st.integers(0, len(found) - 1), label="place")]
            others = [container[key] for container, key in found[:50]]
            other = draw(st.sampled_from(VALUES) | st.integers(0, len(others) - 1).map(others.__getitem__), label="to")
            other = json.loads(json.dumps(other))  # a copy: else a list could contain itself
            change = draw(st.sampled_from(["replace", "remove", "add"]), label="change")
            if change == "remove":
                del container[key]
            elif isinstance(container, list) and change == "add":
                container.insert(key, other)
            else:
                container[f"{key} 2" if change == "add" else key] = other
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 100_000).replace(f'"{DIGITS}"', "9" * 5000).encode()


def damaged_bytes(draw, content):
    for _ in range(draw(st.integers(1, 2), label="changes")):
        position = st.integers(0, min(len(content), 100)) | st.integers(0, len(content))
        start = draw(position, label="start")
        end = min(len(content), start + draw(st.integers(1, 8) | st.integers(1, 1000), label="length"))
        before, block, after = content[:start], content[start:end], content[end:]
        change = draw(
            st.sampled_from(["flip", "cut", "double", "remove", "zero", "insert", "overwrite"]), label="change"
        )
        bit = bytes([block[0] ^ 1 << draw(st.integers(0, 7), label="bit")]) + block[1:] if block else b""
        new = draw(st.sampled_from(BYTES), label="new") if change in ("insert", "overwrite") else b""
        content = {
            "flip": before + bit + after,
            "cut": before,
            "double": before + block + block + after,
            "remove": before + after,
            "zero": before + bytes(len(block)) + after,
            "insert": before + new + block + after,
            "overwrite": before + new + content[start + len(new) :],
        }[change]
    return content


def damaged(draw, name, content):
    if not name.endswith((".json", ".jsonl")) or draw(st.integers(0, 3), label="bytes if 0") == 0:
        return damaged_bytes(draw, content)
    if name.endswith(".json"):
        return damaged_json(draw, content)
    lines = content.splitlines(keepends=True)
    number = draw(st.integers(0, len(lines) - 1), label="line")
    lines[number] = damaged_json(draw, lines[number]) + b"\n"
    return b"".join(lines)


def hangs(*_):
    raise AssertionError("no answer")


def assert_a_result_or_one_line(read, path):
    memory, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, signal.signal(signal.SIGALRM, hangs)
    signal.alarm(30)
    try:
        read(path)
    except BertTfError as error:
        message = str(error)
        assert path in message and len(message.splitlines()) == 1 and len(message) < 1000 + len(path), message
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < memory + 1_000_000  # kB


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A function that returns a folder of valid files."""

    @functools.cache
    def make(maker):
        folder = tmp_path_factory.mktemp("valid")
        maker(folder)
        return folder

    return make


def check(name, made, tmp_path, **options):
    reader = READERS[name]
    valid, folder = made(reader.make), tmp_path / "files"
    files = sorted({path.relative_to(valid) for pattern in reader.files for path in valid.glob(pattern)})
    shutil.copytree(valid, folder)
    reader.read(str(folder))

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False, **options)
    @given(st.data())
    def every_example(data):
        file = data.draw(st.sampled_from(files), label="file")
        content = damaged(data.draw, file.name, (valid / file).read_bytes())
        shutil.rmtree(folder)
        shutil.copytree(valid, folder)
        (folder / file).write_bytes(content)
        assert_a_result_or_one_line(reader.read, str(folder))

    every_example()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_gives_a_result_or_one_line(name, made, tmp_path, capfd):
    check(name, made, tmp_path, max_examples=2 if name.startswith("corpus") else 5, derandomize=True)


KNOWN = [  # found by the test below: reader, file, and its damage
    ("own model, unfinished", "checkpoints/checkpoint", lambda content: b"\xff"),
    ("own model, unfinished", "checkpoints/checkpoint", lambda content: b""),
    ("input state", "checkpoints/input*.index", lambda content: content[:214] + content[221:]),
    ("predictions", "out*/*.rows", lambda content: b"x"),
    ("data, klue/sts", "*.json", lambda content: content.replace(b"2.5", b"9" * 400)),
    ("model garden", "params.yaml", lambda content: b"a: 2001-99-99"),
    ("history", "history.jsonl", lambda content: content.replace(b'"training_seconds": 2.0', b'"training_seconds": 0')),
]


@pytest.mark.parametrize("name, pattern, damage", KNOWN)
def test_known_damage_gives_a_result_or_one_line(name, pattern, damage, made, tmp_path):
    shutil.copytree(made(READERS[name].make), tmp_path / "files")
    (file,) = (tmp_path / "files").glob(pattern)
    content = file.read_bytes()
    file.write_bytes(damage(content))
    assert file.read_bytes() != content
    assert_a_result_or_one_line(READERS[name].read, str(tmp_path / "files"))


FINETUNE = """
from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TrainConfig

def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(max_length=16),
        data=ExampleData(train="train.tsv", validation="train.tsv"),
        train=TrainConfig(batch_size=2, steps=1, dtype="float32"),
    )
"""
# Programs that read a model of ours and write another one: arguments that read {0}, and the one that writes.
WRITE_ANOTHER = {
    "convert": ("--input={0}/model --format=huggingface", "--output"),
    "export": ("--model_dir={0}/model", "--export_dir"),
    "finetune": ("--config={0}/finetune.py --data_dir={0} --init={0}/model", "--model_dir"),
}


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
@pytest.mark.parametrize("program", WRITE_ANOTHER)
def test_one_flipped_bit_ends_a_program_with_one_line_before_it_writes(programs, program, name, made, tmp_path):
    shutil.copytree(made(make_own), tmp_path / "model")
    (tmp_path / "finetune.py").write_text(FINETUNE)
    (tmp_path / "train.tsv").write_text(DATA["table"][1])
    file = tmp_path / "model" / name
    content = bytearray(file.read_bytes())
    content[-3] ^= 1  # of a value of the last tensor, and of a piece
    file.write_bytes(content)
    arguments, output = WRITE_ANOTHER[program]
    before = sorted(tmp_path.iterdir())
    done = programs(program, *arguments.format(tmp_path).split(), f"{output}={tmp_path}/new")
    assert done.status == 1, done.errors
    assert str(file) in done.error_line and "CRC-32" in done.error_line
    assert sorted(tmp_path.iterdir()) == before


# Readers of files that are only replaced as a whole.
FOREIGN = {
    "roberta": Reader(functools.partial(make_foreign, "byte_bpe"), ("merges.txt", "*.json"), read_model),
    "xlm-r": Reader(functools.partial(make_foreign, "unigram"), ("*.model",), read_model),
    "pytorch": Reader(make_pickled, ("pytorch_model.bin",), functools.partial(read_model, allow_pickle=True)),
    "sentence-transformers": Reader(make_modules, ("*.json", "1_Pooling/*"), read_model),
}
WHOLE = ["own model", "own model, byte_bpe", "own model, unigram", "google's own", "huggingface"]
WHOLE += ["huggingface, sharded", "model garden", "best weights", "card", "texts, tsv", *FOREIGN]


@pytest.mark.parametrize("name", WHOLE)
def test_a_pipe_or_a_device_in_place_of_a_file_is_one_line(name, made, tmp_path):
    reader = (READERS | FOREIGN)[name]
    valid = made(reader.make)
    reader.read(str(valid))
    for number, path in enumerate(path for pattern in reader.files for path in sorted(valid.glob(pattern))):
        folder = tmp_path / str(number)
        shutil.copytree(valid, folder)
        file = folder / path.relative_to(valid)
        file.unlink()
        os.mkfifo(file)
        assert_a_result_or_one_line(reader.read, str(folder))
        file.unlink()
        file.symlink_to("/dev/zero")
        assert_a_result_or_one_line(reader.read, str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files_give_a_result_or_one_line(name, made, tmp_path, capfd):
    check(name, made, tmp_path, max_examples=60 if name.startswith("corpus") else 500)  # a corpus takes a second
