"""Each row of the harness from a teacher to a student: from a new encoder, with and without labels, and resumed."""

import subprocess
import sys

import pytest

import bert_tf
from bert_tf.config import ClassificationConfig, FinetuneConfig, TaskDistillation
from bert_tf.errors import ConfigError
from tests.errors import raises
from tests.model.small import small_config
from tests.tasks import harness

QUICK = {"classification", "multiple choice"}
ROWS = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in harness.ROWS]
STUDENT = small_config(
    vocab_size=0, num_layers=1, hidden_size=8, num_heads=2, intermediate_size=16, max_position_embeddings=harness.LENGTH
)


@pytest.fixture(scope="module", params=ROWS)
def taught(request, tmp_path_factory):
    return harness.fit(harness.ROWS[request.param], "wordpiece", tmp_path_factory.mktemp("teacher"))


def distill(taught, folder=None, student=STUDENT, texts=None, **settings):
    """A student of a harness model that learns the first half of the examples with labels, the rest without."""
    row = taught.row
    given = {"labelled_data": (row.x[:4], row.y[:4])} if texts is None else {}
    settings = given | harness.SETTINGS | settings
    return bert_tf.distill(taught.model, student, texts or row.x[2:], directory=folder, **settings)


def test_a_student_answers_like_its_task_and_an_interrupted_run_ends_with_the_same_weights(taught, tmp_path):
    student = distill(taught, tmp_path / "run")
    for value, prediction in zip(taught.row.x, student.predict(taught.row.x), strict=True):
        taught.row.check(value, prediction)
    assert student.task.state.labels == taught.model.task.state.labels if hasattr(student.task.state, "labels") else 1
    run = harness.Fitted(taught.row, "wordpiece", student, tmp_path / "run")
    resumed = harness.stopped(run, tmp_path / "stopped")
    distill(taught, resumed)
    for file in ("model.safetensors", "config.json"):
        assert (resumed / file).read_bytes() == (tmp_path / "run" / file).read_bytes()


def test_a_student_that_only_reads_texts_comes_closer_to_its_teacher(taught):
    student = distill(taught, texts=taught.row.x, epochs=40, learning_rate=3e-3, save_every=0)
    losses = student._results["history"]
    assert losses[-1]["loss"] < losses[0]["loss"]


@pytest.mark.parametrize(
    "field, value", [("temperature", 0), ("weight", 0), ("weight", 1.5), ("texts", 3), ("student", 4)]
)
def test_a_bad_setting_is_named(field, value):
    with raises(ConfigError, f"distillation.{field}", value):
        FinetuneConfig(ClassificationConfig(), distillation=TaskDistillation(**{field: value})).check()


def test_the_function_and_the_program_of_the_same_name_do_not_hide_each_other():
    script = "import bert_tf.distill as program; print(callable(program.main)); bert_tf.distill('nowhere', None)"
    done = subprocess.run([sys.executable, "-c", "import bert_tf; " + script], capture_output=True, text=True)
    assert done.stdout.strip() == "True" and "DataError: " in done.stderr and "nowhere" in done.stderr
