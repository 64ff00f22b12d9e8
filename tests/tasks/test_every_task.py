"""Each row of the harness through fit, evaluate, predict, save, load, export and resume."""

import json
import math
import types

import pytest
import tensorflow as tf
from safetensors.numpy import load_file

import bert_tf
from bert_tf.config import TaskConfig
from bert_tf.errors import DataError
from bert_tf.inference import predictions
from bert_tf.inference.samples import Request
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.report.pages import evaluation_page
from bert_tf.tasks import TASKS, FineTuningTask
from bert_tf.tasks.embeddings import Embeddings
from tests.errors import raises
from tests.inference.exports import check_same
from tests.tasks import harness
from tests.training.interrupted import stopped

# Further ways through a task, and two whose codecs are parts of others'.
SLOW = {
    "classification",
    "several labels",
    "regression by cosine",
    "words",
    "characters on a frozen encoder",
    "questions without answer",
}
# Where tokens matter most: words, spans, windows and lists.
OTHER_KINDS = [
    ("classification of pairs in windows", "unigram"),
    ("words", "byte_bpe"),
    ("characters on a frozen encoder", "unigram"),
    ("questions", "byte_bpe"),
    ("questions without answer", "unigram"),
    ("multiple choice", "byte_bpe"),
]


def rows(*quick):
    """All rows, those of other kinds of tokenizers and all but `quick` as slow ones."""
    names = [(name, "wordpiece") for name in harness.ROWS]
    return [
        pytest.param(row, marks=[pytest.mark.slow] * (row[0] not in quick or row[1] != "wordpiece"))
        for row in [*names, *OTHER_KINDS]
    ]


@pytest.fixture(scope="module", params=rows(*harness.ROWS.keys() - SLOW), ids="-".join)
def fitted(request):
    return harness.fitted(*request.param)


@pytest.fixture(scope="module")
def asked(fitted):
    """The row's inputs, with the unusual ones, and the predictions of the model in memory for them."""
    return [*fitted.row.x, *fitted.row.unusual], fitted.asked


def test_every_task_has_a_row():
    fine_tuned = {task for task in TASKS.values() if issubclass(task, FineTuningTask)}
    # A sentence encoder is saved without a task: tests/tasks/test_embeddings.py.
    assert {row.api._kind for row in harness.ROWS.values()} == fine_tuned - {Embeddings}


def test_the_config_of_a_task_names_its_class_in_the_python_api():
    named = {getattr(bert_tf, name): config for name, config in TaskConfig.of_tasks.items()}
    rows = {row.api: row.api._kind.Config for row in harness.ROWS.values()}
    assert named == rows | {bert_tf.SentenceEncoder: Embeddings.Config}


def test_predictions_are_in_the_order_of_the_inputs(fitted, asked):
    assert len(asked[1]) == len(asked[0])
    for value, prediction in zip(*asked, strict=True):
        fitted.row.check(value, prediction)
    assert len({json.dumps(one) for one in asked[1][: len(fitted.row.x)]}) == len(fitted.row.x)  # depend on the input


def test_a_run_is_loaded_and_predicts_the_same_whatever_else_is_in_the_batch(fitted, asked):
    check_same(fitted.model.predict(asked[0], batch_size=1), asked[1])


def test_metrics_equal_those_of_the_predictions(fitted, asked):
    found = fitted.model.evaluate(fitted.row.x, fitted.row.y)
    expected = fitted.row.metrics(fitted.row.y, asked[1][: len(fitted.row.x)])
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert fitted.model.task.monitor in found


def test_a_saved_model_has_the_weights_of_its_run(fitted, tmp_path):
    fitted.model.save(tmp_path)
    saved, run = (load_file(folder / "model.safetensors") for folder in (tmp_path, fitted.folder))
    assert saved.keys() == run.keys() and all((saved[name] == run[name]).all() for name in run)


@pytest.mark.parametrize("fitted", rows("questions"), indirect=True, ids="-".join)
def test_an_export_gives_the_same_predictions(fitted, asked, tmp_path):
    exported = predictions.load(fitted.model.export(tmp_path, check=False).path)
    found = exported.predictions(harness.examples_of(fitted.model, asked[0]))
    check_same([fitted.model._answer(one) for one in found], asked[1])


def test_examples_without_labels_have_the_columns_of_those_with_labels(fitted):
    codec, row = fitted.model.task.codec, fitted.row
    unlabelled = codec.unlabelled(harness.examples_of(fitted.model, row.x))
    expected = codec.to_tensors(harness.examples_of(fitted.model, row.x, row.y), labelled=True)
    found = codec.to_tensors(unlabelled, labelled=True)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape[0]) == (value.dtype, value.shape[0])


@pytest.mark.parametrize("fitted", rows("multiple choice"), indirect=True, ids="-".join)
def test_the_signatures_in_memory_give_the_same_predictions(fitted, asked):
    task, model = fitted.model.task, fitted.model.model
    functions = {name: one.get_concrete_function() for name, one in task.signatures(model).items()}
    memory = types.SimpleNamespace(run=lambda inputs, name: Request(name, "", inputs).answered(functions))
    found = predictions.Predictor(task, memory).predictions(harness.examples_of(fitted.model, asked[0]))
    check_same([fitted.model._answer(one) for one in found], asked[1])


# One is quick in tests/training/runs/test_int8_training.py, one with a teacher in test_distillation.py beside it.
@pytest.mark.parametrize("fitted", rows(), indirect=True, ids="-".join)
def test_an_interrupted_run_ends_with_the_same_weights(fitted, tmp_path):
    resumed = harness.fit(fitted.row, fitted.kind, stopped(fitted.folder, tmp_path / "stopped"))
    for file in ("model.safetensors", "config.json"):
        assert (resumed.folder / file).read_bytes() == (fitted.folder / file).read_bytes()


def page_of(task, examples, predictions, **metrics):
    task.benchmark.tune(examples, predictions)
    metrics |= task.benchmark.official_metrics(examples, predictions)
    split = types.SimpleNamespace(where="x", examples=examples, read_report=ReadReport())
    return evaluation_page(task, split, predictions, metrics)


def test_the_page_of_an_evaluation_shows_text_instead_of_pieces_and_answers_that_are_not_finite(fitted):
    task, examples = fitted.model.task, harness.examples_of(fitted.model, fitted.row.x, fitted.row.y)
    columns = task.codec.to_tensors(examples, labelled=False)
    features = task.codec.pad(task.codec.preprocess(columns))
    outputs = dict(fitted.model.model({name: features[name] for name in fitted.model.model.input}))

    def predicted(**how):
        decoded = task.codec.postprocess(features, outputs)
        answers = task.codec.aggregate_windows(columns, features["row"], decoded)
        return task.codec.predictions(examples, {name: answer.numpy() for name, answer in answers.items()}, **how)

    page = page_of(task, examples, predicted())
    assert "good" in page and not [mark for mark in ("Ġ", "▁", "##", "[SEP]", "/s&gt;") if mark in page]
    of_last = features["row"] == len(examples) - 1
    for name, output in outputs.items():
        outputs[name] = tf.where(tf.reshape(of_last, [-1] + [1] * (len(output.shape) - 1)), math.nan, output)
    with raises(DataError, "x[5]", "NaN"):
        predicted()
    found = predicted(finite=False)
    page = page_of(task, examples, found, loss=math.nan)
    confidences = task.benchmark.error_analysis(examples, found).confidences
    assert ("because confidences are NaN" in page) == any(map(math.isnan, confidences))
