"""GLUE: each task's own metrics, and the zip file for its leaderboard."""

import json
import zipfile

import numpy as np
import pytest
import sklearn.metrics

from bert_tf.config import ExampleData
from bert_tf.errors import DataError
from bert_tf.files import replacing
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.metrics.glue import GLUE_SETS
from bert_tf.tasks import TASKS
from bert_tf.tasks.benchmark import write_submission
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.model.small import PIECES

# The files listed at gluebenchmark.com/faq, with the number of rows of each test set.
FILES = {
    "CoLA.tsv": 1063, "SST-2.tsv": 1821, "MRPC.tsv": 1725, "STS-B.tsv": 1379, "QQP.tsv": 390965, "MNLI-m.tsv": 9796,
    "MNLI-mm.tsv": 9847, "QNLI.tsv": 5463, "RTE.tsv": 3000, "WNLI.tsv": 146, "AX.tsv": 1104,
}  # fmt: skip


def predicted(name, rows=None, seed=0):
    """(example, prediction) of a test set, not in the order of its index."""
    task, random = GLUE_SETS[name], np.random.default_rng(seed)
    count = task.test_rows if rows is None else rows
    field, values = (
        ("value", 5 * random.random(count)) if name == "stsb" else ("label", random.choice(task.labels, count))
    )
    for row, value in zip(random.permutation(count).tolist(), values.tolist(), strict=True):
        yield TextExample(str(row), ("a",), None, f"test.tsv:{row + 2}"), {field: value}


def submit(path, name, **how):
    with replacing(path, adding=True) as temporary:
        return write_submission(GLUE_SETS[name].task, temporary, predicted(name, **how))


def table(path, file):
    lines = zipfile.ZipFile(path).read(file).decode().split("\n")
    assert lines[0] == "index\tprediction" and lines.pop() == ""
    return [line.split("\t") for line in lines[1:]]


def test_a_submission_is_completed_one_model_after_the_other(tmp_path):
    path = tmp_path / "submission.zip"
    for name in GLUE_SETS:
        note = submit(path, name)
    assert note == "AX.tsv written, the zip is complete"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {file: archive.read(file).count(b"\n") - 1 for file in archive.namelist()} == FILES
    for name, of_task in GLUE_SETS.items():
        if name == "qqp":  # like mrpc, and longer than all others together
            continue
        rows = table(path, f"{of_task.file}.tsv")
        assert [row[0] for row in rows] == [str(index) for index in range(of_task.test_rows)]
        expected = {example.id: next(iter(prediction.values())) for example, prediction in predicted(name)}
        if name == "stsb":
            np.testing.assert_allclose([float(row[1]) for row in rows], [expected[row[0]] for row in rows], atol=5e-4)
        else:
            assert all(label == expected[index] for index, label in rows)


def test_a_rewritten_file_replaces_the_old_one_and_the_others_are_kept(tmp_path):
    path = tmp_path / "submission.zip"
    submit(path, "wnli")
    submit(path, "stsb")
    before = {name: table(path, f"{name}.tsv") for name in ("WNLI", "STS-B")}
    note = submit(path, "wnli", seed=1)
    assert table(path, "STS-B.tsv") == before["STS-B"] and table(path, "WNLI.tsv") != before["WNLI"]
    assert note.startswith("WNLI.tsv written, the zip lacks CoLA.tsv, SST-2.tsv, MRPC.tsv, QQP.tsv, MNLI-m.tsv, ")
    assert zipfile.ZipFile(path).namelist() == ["STS-B.tsv", "WNLI.tsv"]


@pytest.mark.parametrize(
    "name, rows, message",
    [
        ("wnli", 71, r"^71 predictions; a submission has 146 \(WNLI\): predict the whole test set$"),
        ("mnli_matched", 9815, r"^9815 predictions; a submission has 9796 \(MNLI-m\), 9847 \(MNLI-mm\), 1104 \(AX\): "),
    ],
)
def test_an_incomplete_test_set_is_refused_and_the_submission_kept(tmp_path, name, rows, message):
    path = tmp_path / "submission.zip"
    submit(path, "wnli")
    before = path.read_bytes()
    with pytest.raises(DataError, match=message):
        submit(path, name, rows=rows)
    assert path.read_bytes() == before


def test_other_labels_other_files_and_other_ids_are_refused(tmp_path):
    wrong = [(example, {"label": "entailment"}) for example, _ in predicted("wnli")]
    with raises(DataError, "1", "'entailment'", "'0'", "'1'"):
        write_submission("wnli", tmp_path / "a.zip", wrong)
    named = [(TextExample("dev-1", ("a",), None, "a.jsonl:1"), {"label": "0"})]
    with raises(DataError, "a.jsonl:1", "'dev-1'"):
        write_submission("wnli", tmp_path / "a.zip", named)
    (tmp_path / "a.zip").write_text("index\tprediction\n")
    with raises(DataError, "zip"):
        write_submission("wnli", tmp_path / "a.zip", predicted("wnli"))


def make(name, source=""):
    data = ExampleData(source=source) if source else ExampleData(format=f"glue/{name}")
    state = {"labels": ["value"]} if name == "stsb" else {"labels": GLUE_SETS[name].labels}
    kind = TASKS["regression" if name == "stsb" else "classification"]
    return kind(Tokenizer(PIECES), None, data, pair=name not in ("cola", "sst2"), **state)


@pytest.mark.parametrize(
    "name, source",
    [("cola", ""), ("mrpc", ""), ("qqp", "tfds:glue/qqp"), ("rte", ""), ("cola", "tfds:glue/cola")],
)
def test_metrics_are_those_of_the_glue_task_and_their_mean_selects_the_best_model(name, source):
    task, random = make(name, source), np.random.default_rng(0)
    gold, found = random.choice(task.state.labels, 80), random.choice(task.state.labels, 80, p=[0.3, 0.7])
    examples = [TextExample(str(row), ("a", "b"), str(label), f"file:{row}") for row, label in enumerate(gold)]
    predictions = [{"label": str(label), "probabilities": dict.fromkeys(task.state.labels, 0.5)} for label in found]
    expected = {
        "cola": {"matthews": sklearn.metrics.matthews_corrcoef(gold, found)},
        "rte": {"accuracy": np.mean(gold == found)},
    }.get(name) or {"accuracy": np.mean(gold == found), "f1": sklearn.metrics.f1_score(gold, found, pos_label="1")}
    scores = task.benchmark.official_metrics(examples, predictions)
    assert scores == pytest.approx(expected | {"score": np.mean(list(expected.values()))})
    assert task.monitor == "score"
    intervals = task.benchmark.error_analysis(examples, predictions).intervals
    assert intervals.keys() == scores.keys()
    assert all(low <= scores[name] <= high for name, (low, high) in intervals.items())
    json.dumps([scores, task.benchmark.baseline(examples)])


@pytest.mark.parametrize("data", [ExampleData(source="tfds:glue/ax"), ExampleData(format="glue/ax")])
def test_a_model_of_mnli_predicts_ax_and_is_scored_with_its_metric(tmp_path, data):
    task = make("mnli_matched")
    task = task.replaced(data=data)
    with replacing(tmp_path / "a.zip", adding=True) as temporary:
        note = task.writers()[".zip"](temporary, predicted("ax"))
    assert note.startswith("AX.tsv written")
    assert {index: label for index, label in table(tmp_path / "a.zip", "AX.tsv")} == {
        example.id: prediction["label"] for example, prediction in predicted("ax")
    }
    gold, found = ([*"aabbc"], [*"abbcc"])
    gold, found = ([task.state.labels["abc".index(letter)] for letter in letters] for letters in (gold, found))
    examples = [TextExample(str(row), ("a", "b"), label, f"file:{row}") for row, label in enumerate(gold)]
    scores = task.benchmark.official_metrics(examples, [{"label": label} for label in found])
    matthews = sklearn.metrics.matthews_corrcoef(gold, found)
    assert scores == pytest.approx({"matthews": matthews, "score": matthews})


def test_only_a_model_of_glue_writes_a_submission():
    assert set(make("rte").writers()) == {".jsonl", ".tsv", ".zip"}
    other = TASKS["classification"](Tokenizer(PIECES), labels=["a", "b"], pair=False)
    assert set(other.writers()) == {".jsonl", ".tsv"}
