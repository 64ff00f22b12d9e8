"""Each row of the harness from a teacher to a student: from a new encoder, with and without labels, and resumed."""

import dataclasses
import hashlib
import importlib
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.config import BertConfig, ClassificationConfig, ExampleData, FinetuneConfig, TaskDistillation, TrainConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.sources import InMemory
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.training import teacher
from bert_tf.training.runs import finetuning
from bert_tf.training.runs.finetuning import Start
from bert_tf.training.runs.run import Place
from bert_tf.training.runs.task_distillation import TEXTS, TaskDistillationRun
from bert_tf.training.runs.task_distillation import distill as distill_task
from tests import zoo
from tests.errors import raises
from tests.learned import learned
from tests.model.small import MODERNBERT, small_config
from tests.tasks import harness
from tests.training.interrupted import stopped
from tests.training.small import eagerly

STRATEGY = tf.distribute.get_strategy()
STUDENT = small_config(
    vocab_size=0, num_layers=1, hidden_size=8, num_heads=2, intermediate_size=16, max_position_embeddings=zoo.LENGTH
)


def distill(taught, folder=None, student=STUDENT, texts=None, **settings):
    """A student of a harness model that learns the first half of the examples with labels, the rest without."""
    row = taught.row
    given = {"labelled_data": (row.x[:4], row.y[:4])} if texts is None else {}
    settings = given | harness.SETTINGS | settings
    return bert_tf.distill(taught.model, student, texts or row.x[2:], directory=folder, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", harness.ROWS)
def test_a_student_answers_like_its_task_and_an_interrupted_run_ends_with_the_same_weights(name, tmp_path):
    taught = harness.fitted(name)
    student = distill(taught, tmp_path / "run")
    for value, prediction in zip(taught.row.x, student.predict(taught.row.x), strict=True):
        taught.row.check(value, prediction)
    assert getattr(student.task.state, "labels", None) == getattr(taught.model.task.state, "labels", None)
    resumed = stopped(tmp_path / "run", tmp_path / "stopped")
    distill(taught, resumed)
    for file in ("model.safetensors", "config.json"):
        assert (resumed / file).read_bytes() == (tmp_path / "run" / file).read_bytes()


# Of the teachers in the harness, some are ModernBERT's.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "architecture"), [*((name, {}) for name in harness.ROWS), ("classification", MODERNBERT)]
)
def test_a_student_that_only_reads_texts_comes_closer_to_its_teacher(name, architecture):
    taught = harness.fitted(name)
    student = dataclasses.replace(STUDENT, **architecture, num_layers=2) if architecture else STUDENT
    student = distill(taught, student=student, texts=taught.row.x, epochs=40, learning_rate=3e-3, save_every=0)
    first, *_, last = (point["loss"] for point in student._results["history"])
    assert last < max(first, 1e-4)  # untrained students and teachers may agree that all choices are as likely


@pytest.fixture
def classifier():
    return harness.fitted("classification")


def learn(teacher, answers, folder, *, texts=harness.TEXTS, student=STUDENT, **settings):
    """A run of the library on examples in memory; `settings` of TaskDistillation."""
    lines = [(f"texts[{row}]", {"text": text}) for row, text in enumerate(texts)]
    data = ExampleData(text="text")
    config = FinetuneConfig(
        ClassificationConfig(max_length=zoo.LENGTH),
        data,
        TrainConfig(steps=40, batch_size=4, learning_rate=3e-3, log_every=5, save_every=20, dtype="float32"),
        distillation=TaskDistillation(weight=1.0, student=student, answers=str(answers), **settings),
    )
    given = InMemory(data, TextExample, {"train": lines})
    return distill_task(config, given, "", str(folder), STRATEGY, teacher=str(teacher))


def run_of(classifier, config, folder, data=None, validation=()):
    """A run that has not begun."""
    lines = [("x", {"text": "a", "label": label}) for label in classifier.model.task.state.labels]
    roles = {"train": lines} | ({"validation": validation} if validation else {})
    given = data or InMemory(ExampleData(text="text"), TextExample, roles)
    place = Place(str(folder), tf.distribute.OneDeviceStrategy("/cpu:0"))
    return TaskDistillationRun(config, given, None, place, teacher=Start.open(classifier.folder))


def test_a_new_student_starts_with_the_words_of_its_teacher(classifier, tmp_path):
    teacher = classifier.model.encoder
    config = FinetuneConfig(
        ClassificationConfig(max_length=zoo.LENGTH),
        distillation=TaskDistillation(student=dataclasses.replace(teacher.config, vocab_size=0, num_layers=1)),
    )
    student = run_of(classifier, config, tmp_path).encoder
    np.testing.assert_array_equal(student.embeddings.word_embeddings, teacher.embeddings.word_embeddings)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


def test_a_student_comes_closer_to_its_teacher_and_resumes_with_the_answers_of_an_earlier_run(
    classifier, tmp_path, monkeypatch
):
    first, *_, last = (point["loss"] for point in learn(classifier.folder, "", tmp_path / "first")["history"])
    assert last < first
    answers = tmp_path / "first/teacher_answers"
    assert len(digests(answers)) == 1
    shutil.rmtree(stopped(tmp_path / "first", tmp_path / "second") / "teacher_answers")
    monkeypatch.setattr(teacher.Teacher, "_compute", None)
    learn(classifier.folder, answers, tmp_path / "second")
    assert digests(tmp_path / "second") == digests(tmp_path / "first")


def test_the_texts_of_a_setting_are_read_without_labels(classifier, tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\nthe good\tx\n")
    (tmp_path / "more.tsv").write_text("sentence\na b\nc\n")
    for path in ("more.tsv", str(tmp_path / "more.tsv")):
        settings = TaskDistillation(student=STUDENT, texts=path)
        config = FinetuneConfig(ClassificationConfig(max_length=zoo.LENGTH), distillation=settings)
        run = run_of(classifier, config, tmp_path / "run", str(tmp_path))
        found = run.splits[TEXTS]
        assert [one.texts for one in found.examples] == [("a b",), ("c",)] and not found.labelled
        assert run.record["inputs"].keys() >= {"teacher", TEXTS}


def test_the_teachers_metrics_are_those_of_its_evaluation(classifier, eager, tmp_path):
    texts, labels = classifier.row.x, classifier.row.y
    lines = [(text, {"text": text, "label": label}) for text, label in zip(texts, labels, strict=True)]
    settings = TaskDistillation(student=STUDENT)
    config = FinetuneConfig(ClassificationConfig(max_length=zoo.LENGTH), distillation=settings)
    found = run_of(classifier, config, tmp_path, validation=lines).teacher_results()
    assert (found["path"], found["parameters"]) == (str(classifier.folder), classifier.model.model.count_params())
    expected = classifier.row.metrics(labels, classifier.asked[: len(texts)])
    assert {name: found["metrics"][name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)


class Asked:
    """The teacher of `classifier`, the columns of its texts, and the locations of the examples that it answers."""

    def __init__(self, path):
        self.teacher, self.computed = teacher.Teacher(*Start.open(path)), []
        compute, self.teacher._compute = self.teacher._compute, self._recorded
        self._compute = compute

    def _recorded(self, columns, where, strategy):
        self.computed += where
        return self._compute(columns, where, strategy)

    def __call__(self, folder, texts=harness.TEXTS):
        where = [f"texts[{row}]" for row in range(len(texts))]
        columns = {"text": tf.constant(texts)}
        (found,) = self.teacher.answers(columns, where, str(folder), STRATEGY).values()
        return found


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A folder with answers in three shards, and the answers; the tests of the module write such shards, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher, "_SHARD", 2)
        folder = tmp_path_factory.mktemp("answers")
        with eagerly():
            found = Asked(harness.fitted("classification").folder)(folder)
        yield folder, found


@pytest.fixture
def asked(answered, classifier, eager):
    return Asked(classifier.folder)


@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_only_a_damaged_shard_is_answered_again_and_becomes_the_same(asked, answered, tmp_path, damage):
    folder = shutil.copytree(answered[0], tmp_path / "answers")
    before, shard = digests(folder), folder / "00001.safetensors"
    content = shard.read_bytes()
    shard.unlink()
    if damage != "missing":
        shard.write_bytes(content[:-4] + (b"\0\0\0\x40" if damage == "changed" else b""))
    found = asked(folder)
    assert asked.computed == ["texts[2]", "texts[3]"] and len(before) == 3
    assert digests(folder) == before
    np.testing.assert_array_equal(found.values, answered[1].values)


def test_a_teacher_that_was_killed_goes_on_with_the_shards_that_there_are(asked, answered, tmp_path):
    class Killed(Exception):
        pass

    compute = asked._compute

    def killed(columns, where, strategy):
        if where[0] == "texts[4]":
            raise Killed
        return compute(columns, where, strategy)

    asked._compute = killed
    with pytest.raises(Killed):
        asked(tmp_path / "answers")
    asked._compute = compute
    asked(tmp_path / "answers")
    assert asked.computed == [f"texts[{row}]" for row in (0, 1, 2, 3, 4, 5, 4, 5)]
    assert digests(tmp_path / "answers") == digests(answered[0])


def test_answers_to_other_texts_and_of_other_teachers_are_refused(asked, answered, tmp_path):
    with raises(ConfigError, answered[0], "texts", "distillation.answers"):
        asked(answered[0], [*harness.TEXTS[1:], "other"])
    weight = asked.teacher.model.weights[0]
    weight.assign(weight + 1)
    asked.teacher._adopt(asked.teacher.task)
    with raises(ConfigError, answered[0], "weights", "distillation.answers"):
        asked(answered[0])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with raises(ConfigError, tmp_path / "mine", "thesis.txt"):
        asked(tmp_path / "mine")
    assert not asked.computed


def test_a_student_larger_than_its_teacher_is_refused(classifier, tmp_path):
    with raises(ConfigError, classifier.folder, "weights", "larger"):
        learn(classifier.folder, "", tmp_path / "run", student=dataclasses.replace(STUDENT, hidden_size=64))
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_another_task_and_one_that_knows_none_are_refused(classifier, tmp_path):
    chooser = harness.fitted("multiple choice")
    with raises(ConfigError, chooser.folder, "multiple_choice", "ClassificationConfig"):
        learn(chooser.folder, "", tmp_path / "run")
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


def test_tags_that_the_teacher_does_not_know_are_refused():
    tagger = harness.fitted("intent and slots")
    with raises(ConfigError, "'B-NEW'", "'B-X'"):
        distill(tagger, labelled_data=([["a", "b"], ["c"]], [("x", ["O", "B-NEW"]), ("y", ["O"])]))


def test_positions_of_tokens_need_the_tokenizer_of_the_teacher(tmp_path):
    reader = harness.fitted("questions")
    student = small_student("byte_bpe", tmp_path / "student")
    with raises(ConfigError, "tokenizer", "question_answering"):
        distill(reader, student=student)


@pytest.mark.parametrize("name", [pytest.param("words", marks=pytest.mark.slow), "classification"])
def test_a_student_may_have_its_own_tokenizer(name, tmp_path, eager):
    taught = harness.fitted(name)
    student = small_student("byte_bpe", tmp_path / "student")
    model = distill(taught, student=student)
    assert model.tokenizer.vocab_size != taught.model.tokenizer.vocab_size
    assert model.task.state.labels == taught.model.task.state.labels
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
        finetuning.check(FinetuneConfig(ClassificationConfig(), distillation=TaskDistillation(student=STUDENT)))
    config = FinetuneConfig(ClassificationConfig(), distillation=TaskDistillation(student=STUDENT))
    given = InMemory(ExampleData(text="text"), TextExample, {"train": [("x", {"text": "a", "label": "x"})]})
    with raises(ConfigError, "--init", "distillation.student"):
        folder = str(classifier.folder)
        distill_task(config, given, folder, str(tmp_path / "run"), STRATEGY, teacher=folder)
    config.distillation.student = None
    with raises(ConfigError, "--init", "distillation.layers", "distillation.size"):
        distill_task(config, given, "", str(tmp_path / "run"), STRATEGY, teacher=folder)


@pytest.mark.parametrize(
    "field, value", [("temperature", 0), ("weight", 0), ("weight", 1.5), ("texts", 3), ("student", 4)]
)
def test_a_bad_setting_is_named(field, value):
    with raises(ConfigError, f"distillation.{field}", value):
        FinetuneConfig(ClassificationConfig(), distillation=TaskDistillation(**{field: value})).check()


def test_the_function_and_the_program_of_the_same_name_do_not_hide_each_other():
    program = importlib.import_module("bert_tf.distill")
    try:
        assert callable(program.main)
        with raises(ConfigError, "student is None"):
            bert_tf.distill("nowhere", None)
    finally:  # tests that import another program define the same flags
        for flag in [*flags.FLAGS.flags_by_module_dict()[program.__name__]]:
            delattr(flags.FLAGS, flag.name)
        del sys.modules[program.__name__]


def test_a_student_starts_with_layers_of_its_teacher(classifier, tmp_path):
    config = FinetuneConfig(ClassificationConfig(max_length=zoo.LENGTH), distillation=TaskDistillation(layers=1))
    student = run_of(classifier, config, tmp_path).encoder
    assert student.config.num_layers == 1
    weights = {variable.path: variable.numpy() for variable in classifier.model.encoder.weights}
    for variable in student.weights:
        np.testing.assert_array_equal(variable.numpy(), weights[variable.path], err_msg=variable.path)
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
