"""Each row of the harness from a teacher to a student: from a new encoder, with and without labels, and resumed."""

import dataclasses
import hashlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.config import BertConfig, ClassificationConfig, ExampleData, FinetuneConfig, TaskDistillation, TrainConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.sources import InMemory
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.training import teacher
from bert_tf.training.runs import finetuning
from bert_tf.training.runs.distillation import Distillation
from tests import zoo
from tests.errors import raises
from tests.learned import learned
from tests.model.small import small_config
from tests.tasks import harness
from tests.training.interrupted import stopped

QUICK = {"classification", "multiple choice"}
ROWS = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in harness.ROWS]
STUDENT = small_config(
    vocab_size=0, num_layers=1, hidden_size=8, num_heads=2, intermediate_size=16, max_position_embeddings=zoo.LENGTH
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
    assert getattr(student.task.state, "labels", None) == getattr(taught.model.task.state, "labels", None)
    resumed = stopped(tmp_path / "run", tmp_path / "stopped")
    distill(taught, resumed)
    for file in ("model.safetensors", "config.json"):
        assert (resumed / file).read_bytes() == (tmp_path / "run" / file).read_bytes()


def test_a_student_that_only_reads_texts_comes_closer_to_its_teacher(taught):
    student = distill(taught, texts=taught.row.x, epochs=40, learning_rate=3e-3, save_every=0)
    first, *_, last = (point["loss"] for point in student._results["history"])
    assert last < max(first, 1e-4)  # untrained students and teachers may agree that all choices are as likely


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return harness.fit(harness.ROWS["classification"], "wordpiece", tmp_path_factory.mktemp("classifier"))


def learn(teacher, answers, folder, *, texts=harness.TEXTS, student=STUDENT, **settings):
    """A run of the library on examples in memory; `settings` of TaskDistillation."""
    lines = [(f"texts[{row}]", {"text": text}) for row, text in enumerate(texts)]
    data = ExampleData(text="text")
    config = FinetuneConfig(
        ClassificationConfig(max_length=zoo.LENGTH),
        data,
        TrainConfig(epochs=1, batch_size=4, dtype="float32"),
        distillation=TaskDistillation(weight=1.0, student=student, answers=str(answers), **settings),
    )
    given = InMemory(data, TextExample, {"train": lines})
    return finetuning.finetune(config, given, "", str(folder), tf.distribute.get_strategy(), teacher=str(teacher))


def test_a_new_student_starts_with_the_words_of_its_teacher(classifier):
    teacher = classifier.model.encoder
    config = FinetuneConfig(
        ClassificationConfig(max_length=zoo.LENGTH),
        distillation=TaskDistillation(student=dataclasses.replace(teacher.config, vocab_size=0, num_layers=1)),
    )
    student = Distillation(config, str(classifier.folder)).new_student(True, "float32")[0]
    np.testing.assert_array_equal(student.embeddings.word_embeddings, teacher.embeddings.word_embeddings)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


@pytest.fixture
def answered(classifier, tmp_path, monkeypatch):
    """The folder of answers of a run, in three shards, and the run's folder."""
    monkeypatch.setattr(teacher, "_SHARD", 2)
    learn(classifier.folder, tmp_path / "answers", tmp_path / "first")
    return tmp_path / "answers", tmp_path / "first"


def test_a_later_run_reads_the_answers_of_an_earlier_one(classifier, answered, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher.Teacher, "_compute", None)
    learn(classifier.folder, answered[0], tmp_path / "second")
    assert digests(tmp_path / "second") == digests(answered[1]) and len(digests(answered[0])) == 3


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_only_a_damaged_shard_is_answered_again_and_becomes_the_same(
    classifier, answered, tmp_path, monkeypatch, damage
):
    before, shard = digests(answered[0]), answered[0] / "00001.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    if damage != "missing":
        shard.write_bytes(content[:-4] + (b"\0\0\0\x40" if damage == "changed" else b""))
    compute, locations = teacher.Teacher._compute, []
    monkeypatch.setattr(
        teacher.Teacher, "_compute", lambda *arguments: locations.extend(arguments[2]) or compute(*arguments)
    )
    learn(classifier.folder, answered[0], tmp_path / "second")
    assert locations == ["texts[2]", "texts[3]"]
    assert digests(answered[0]) == before and digests(tmp_path / "second") == digests(answered[1])


def test_a_run_killed_while_its_teacher_answers_goes_on_with_the_shards_that_there_are(
    classifier, answered, tmp_path, monkeypatch
):
    class Killed(Exception):
        pass

    compute, locations = teacher.Teacher._compute, []

    def killed(self, columns, where, strategy):
        if where[0] == "texts[4]" and len(locations) == 2:
            raise Killed
        locations.append(where[0])
        return compute(self, columns, where, strategy)

    monkeypatch.setattr(teacher.Teacher, "_compute", killed)
    with pytest.raises(Killed):
        learn(classifier.folder, "", tmp_path / "run")
    locations.append("again")
    learn(classifier.folder, "", tmp_path / "run")
    assert locations == ["texts[0]", "texts[2]", "again", "texts[4]"]
    assert digests(tmp_path / "run") == digests(answered[1])
    assert digests(tmp_path / "run" / "teacher_answers") == digests(answered[0])


def test_answers_to_other_texts_and_of_other_teachers_are_refused(classifier, answered, tmp_path):
    with raises(ConfigError, answered[0], "texts", "distillation.answers"):
        learn(classifier.folder, answered[0], tmp_path / "second", texts=[*harness.TEXTS[1:], "other"])
    row = harness.ROWS["classification"]._replace(y=["y", "x", "z", "x", "y", "x"])
    other = harness.fit(row, "wordpiece", tmp_path / "other")
    with raises(ConfigError, answered[0], "weights", "distillation.answers"):
        learn(other.folder, answered[0], tmp_path / "third")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with raises(ConfigError, tmp_path / "mine", "thesis.txt"):
        learn(classifier.folder, tmp_path / "mine", tmp_path / "fourth")
    assert not list(tmp_path.glob("*/model.safetensors*.partial"))


def test_a_student_larger_than_its_teacher_is_refused(classifier, tmp_path):
    with raises(ConfigError, classifier.folder, "weights", "larger"):
        learn(classifier.folder, "", tmp_path / "run", student=dataclasses.replace(STUDENT, hidden_size=64))
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_another_task_and_one_that_knows_none_are_refused(classifier, tmp_path):
    tagger = harness.fit(harness.ROWS["words"], "wordpiece", tmp_path / "tagger")
    with raises(ConfigError, tagger.folder, "tagging", "ClassificationConfig"):
        learn(tagger.folder, "", tmp_path / "run")
    pretrained = zoo.pretrained()
    with raises(DataError, pretrained, "fine-tuned"):
        learn(pretrained, "", tmp_path / "run")
    with raises(DataError, pretrained, "fine-tuned"):
        bert_tf.distill(pretrained, STUDENT, harness.TEXTS)
    with raises(DataError, tmp_path / "none"):
        learn(tmp_path / "none", "", tmp_path / "run")


def test_labels_that_the_teacher_does_not_know_are_refused(classifier):
    with raises(DataError, "labelled x[1]", "'unseen'", "'x'"):
        distill(classifier, labelled_data=(harness.TEXTS, ["x", "unseen", "y", "x", "y", "x"]))


def test_tags_that_the_teacher_does_not_know_are_refused(tmp_path):
    tagger = harness.fit(harness.ROWS["words"], "wordpiece", tmp_path / "tagger")
    with raises(ConfigError, "'B-NEW'", "'B-X'"):
        distill(tagger, labelled_data=([["a", "b"], ["c"]], [["O", "B-NEW"], ["O"]]))


def test_positions_of_tokens_need_the_tokenizer_of_the_teacher(tmp_path):
    reader = harness.fit(harness.ROWS["questions"], "wordpiece", tmp_path / "reader")
    student = small_student("byte_bpe", tmp_path / "student")
    with raises(ConfigError, "tokenizer", "question_answering"):
        distill(reader, student=student)


@pytest.mark.parametrize("name", ["words", "classification"])
def test_a_student_may_have_its_own_tokenizer(name, tmp_path):
    taught = harness.fit(harness.ROWS[name], "wordpiece", tmp_path / "teacher")
    student = small_student("byte_bpe", tmp_path / "student")
    model = distill(taught, student=student)
    assert model.tokenizer.vocab_size != taught.model.tokenizer.vocab_size
    for value, prediction in zip(taught.row.x, model.predict(taught.row.x), strict=True):
        taught.row.check(value, prediction)


def small_student(kind, folder):
    """A pre-trained encoder with a tokenizer of this kind; narrow, as its vocabulary is larger than the teacher's."""
    keras.utils.set_random_seed(0)
    tokenizer = learned(kind).tokenizer
    config = dataclasses.replace(STUDENT, vocab_size=tokenizer.vocab_size, hidden_size=4)
    encoder = bert_tf.BertEncoder(config)
    task = MaskedLM(tokenizer, zoo.LENGTH)
    directory.save(folder, task.build(encoder), encoder, task)
    return folder


def test_a_run_without_a_teacher_or_with_two_students_is_refused(classifier, tmp_path):
    with raises(ConfigError, "distillation", "--teacher"):
        learn("", "", tmp_path / "run")
    config = FinetuneConfig(ClassificationConfig(), distillation=TaskDistillation(student=STUDENT))
    given = InMemory(ExampleData(text="text"), TextExample, {"train": [("x", {"text": "a", "label": "x"})]})
    strategy = tf.distribute.get_strategy()
    with raises(ConfigError, "--init", "distillation.student"):
        finetuning.finetune(config, given, str(classifier.folder), str(tmp_path / "run"), strategy,
                            teacher=str(classifier.folder))  # fmt: skip
    config.distillation.student = None
    with raises(ConfigError, "--init", "distillation.layers", "distillation.size"):
        finetuning.finetune(config, given, "", str(tmp_path / "run"), strategy, teacher=str(classifier.folder))


@pytest.mark.parametrize(
    "field, value", [("temperature", 0), ("weight", 0), ("weight", 1.5), ("texts", 3), ("student", 4)]
)
def test_a_bad_setting_is_named(field, value):
    with raises(ConfigError, f"distillation.{field}", value):
        FinetuneConfig(ClassificationConfig(), distillation=TaskDistillation(**{field: value})).check()


def test_the_function_and_the_program_of_the_same_name_do_not_hide_each_other():
    script = "import bert_tf.distill as program; print(callable(program.main)); bert_tf.distill('nowhere', None)"
    done = subprocess.run([sys.executable, "-c", "import bert_tf; " + script], capture_output=True, text=True)
    assert done.stdout.strip() == "True" and "ConfigError: student is None" in done.stderr


def test_a_student_starts_with_layers_of_its_teacher(classifier):
    student = distill(classifier, student=1, learning_rate=1e-9, epochs=1, save_every=0)
    assert student.encoder.config.num_layers == 1
    weights = {variable.path: variable.numpy() for variable in classifier.model.encoder.weights}
    for variable in student.encoder.weights:
        np.testing.assert_allclose(variable.numpy(), weights[variable.path], atol=1e-6, err_msg=variable.path)
    with raises(ConfigError, "distillation.layers is 9"):
        distill(classifier, student=9)
    with raises(ConfigError, "distillation.layers", "distillation.student"):
        TaskDistillation(student=STUDENT, layers=1).check()


def test_a_student_is_named_and_fits_the_text_of_its_teacher():
    like = small_config(vocab_size=60, max_position_embeddings=40, type_vocab_size=1, position_offset=2)
    student = TaskDistillation(size="tiny").check().student_config(like, 50)
    assert student == BertConfig.from_name(
        "tiny", vocab_size=50, max_position_embeddings=40, type_vocab_size=1, position_offset=2
    )
    with raises(ConfigError, "'tinny'", "tiny, mini"):
        TaskDistillation(size="tinny").check()
