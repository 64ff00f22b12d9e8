"""A resumed run reads only the input that is still to come."""

import itertools
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.inputs.batching import stream
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import pretraining_dataset
from bert_tf.inputs.datasets.examples import Answer, ChoiceExample, QuestionExample, TextExample, tagged
from bert_tf.tasks import TASKS
from bert_tf.text import Tokenizer
from bert_tf.training.state.input_state import InputState

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Three files of 400 documents each, and their tokenizer."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("corpus")

    def document():
        return "\n".join(" ".join(random.choice(list(LETTERS), random.integers(3, 9))) for _ in range(6))

    paths = [folder / f"{number}.txt" for number in range(3)]
    for path in paths:
        path.write_text("\n\n".join(document() for _ in range(400)))
    return [str(path) for path in paths], Tokenizer([*SPECIALS, *LETTERS])


KINDS = {
    "pairs": {},
    "by length": {"length_multiple": 8},
    "packed": {"pack": True},
    "full sentences in spans": {"pairs": "none", "masking": "span", "words": "spaces"},
}


def batches_of(corpus, **fields):
    files, tokenizer = corpus
    data = PretrainingData(**({"max_length": 32, "max_predictions": 5, "group_size": 40} | fields)).check()
    return lambda epoch: pretraining_dataset(Corpus(files, tokenizer, data), seed=0, epoch=epoch, batch_size=8)


def taken(iterator, count):
    return [
        ({name: value.numpy() for name, value in features.items()}, tuple(position.numpy()))
        for features, position in itertools.islice(iterator, count)
    ]


def assert_same(ones, others):
    for (one, position), (other, expected) in zip(ones, others, strict=True):
        assert position == expected and one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name])


@pytest.mark.slow  # the next test but one has packed pairs
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_resumes_with_exactly_the_next_batches(tmp_path, corpus, kind):
    batches = batches_of(corpus, **KINDS[kind])
    state = InputState(str(tmp_path), STRATEGY, keep=2)
    iterator = state.open(batches, (0, 0), None)
    *_, (_, position) = taken(iterator, 30)
    state.save(iterator, 30)
    assert state._steps() == [30]
    assert_same(taken(state.open(batches, position, 30), 20), taken(iterator, 20))


def examples_of(task):
    """A hundred labelled examples for a fine-tuning task, many of them longer than 16 wordpieces."""
    random = np.random.default_rng(0)

    def words():
        return [str(word) for word in random.choice(list(LETTERS), random.integers(1, 40))]

    for number in range(100):
        text, identity, label = words(), str(number), number % 2
        if task == "tagging":
            yield tagged(identity, text, ["XY"[LETTERS.index(word) % 2] for word in text], number // 10, "")
        elif task == "question_answering":
            yield QuestionExample(identity, "a b?", " ".join(text), (Answer(text[0], 0),), "")
        elif task == "multiple_choice":
            yield ChoiceExample(identity, " ".join(text), "", ("a b", "c d e"), label, "")
        else:
            labels = {"regression": float(label), "multi_label_classification": ("X",) * label}
            yield TextExample(identity, (" ".join(text),), labels.get(task, "XY"[label]), "")


FINE_TUNED = {
    "classification": {"labels": ["X", "Y"], "long_texts": "window"},
    "regression": {"labels": ["value"]},
    "multi_label_classification": {"labels": ["X", "Y"]},
    "tagging": {"labels": ["X", "Y"], "context": "document"},
    "question_answering": {},
    "multiple_choice": {},
}


QUICK = ("classification",)  # rows of windows


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FINE_TUNED]
)
def test_the_input_position_of_fine_tuning_is_saved_for_every_task(tmp_path, capsys, name):
    tokenizer = Tokenizer([*SPECIALS, "?", *LETTERS])
    task = TASKS[name].from_settings({"max_length": 16} | FINE_TUNED[name], tokenizer)
    columns = task.codec.to_tensors(list(examples_of(name)), labelled=True)

    def batches(epoch):
        return task.codec.rows.batches(columns, 8, seed=tf.stack([tf.constant(0, tf.int64), epoch]))

    state = InputState(str(tmp_path), STRATEGY, keep=2)
    iterator = state.open(batches, (0, 0), None)
    *_, (_, position) = taken(iterator, 5)
    state.save(iterator, 5)
    expected = taken(iterator, 30)
    assert_same(taken(state.open(batches, position, 5), 30), expected)
    assert "reading epoch" not in capsys.readouterr().out


@pytest.mark.slow
def test_resuming_late_in_an_epoch_does_not_read_its_beginning_again(tmp_path, corpus):
    files, tokenizer = corpus
    copies = [shutil.copy(file, tmp_path) for file in files]
    batches = batches_of((copies, tokenizer), pack=True)
    state = InputState(str(tmp_path / "states"), STRATEGY, keep=2)
    iterator = state.open(batches, (0, 0), None)
    sizes = {}
    for done in (20, 200):
        *_, (_, position) = taken(iterator, done - sum(sizes))
        state.save(iterator, done)
        sizes[done] = sum(path.stat().st_size for path in (tmp_path / "states").glob(f"*-{done}.*"))
    assert position[0] == 0  # of the 272 batches of an epoch
    expected = taken(iterator, 30)
    for path in copies:  # two thirds of each file are read: their beginning is erased, with lines of the same length
        with open(path, "r+b") as file:
            gone = file.read(os.path.getsize(path) // 2)
            file.seek(0)
            file.write(gone.translate(bytes.maketrans(LETTERS.encode(), b"z" * len(LETTERS))))
    assert_same(taken(state.open(batches, position, 200), 30), expected)
    assert sizes[200] < 2 * sizes[20]


def test_as_many_states_as_checkpoints_are_kept_and_those_of_later_steps_are_removed(tmp_path):
    state = InputState(str(tmp_path), STRATEGY, keep=2)
    iterator = state.open(small_batches, (0, 0), None)
    for step in (10, 20, 30):
        taken(iterator, 10)
        state.save(iterator, step)
    assert state._steps() == [20, 30]
    state.save(iterator, 25)  # the run fell back to before 30
    assert state._steps() == [20, 25]


def test_a_state_of_another_pipeline_is_ignored_and_removed_by_the_next_save(tmp_path):
    def others(epoch):
        return small_batches(epoch).map(lambda rows: {"ids": -rows["ids"]})

    state = InputState(str(tmp_path), STRATEGY, keep=2, pipeline="one")
    iterator = state.open(small_batches, (0, 0), None)
    taken(iterator, 3)
    state.save(iterator, 3)
    (tmp_path / f"{state._name}-9.data-00000-of-00001").touch()  # of a process that was killed
    (tmp_path / "input-0-copy").mkdir()  # of somebody else
    changed = InputState(str(tmp_path), STRATEGY, keep=2, pipeline="another")
    iterator = changed.open(others, (0, 3), 3)
    assert_same(taken(iterator, 2), taken(iter(stream(others, (0, 3))), 2))
    changed.save(iterator, 5)
    names = {re.sub(r"\.(index|data.*|sha256)$", "", name) for name in os.listdir(tmp_path)}
    assert names == {f"{changed._name}-5", "input-0-copy"}


def small_batches(epoch):
    """Batches that cost no time; the state of the pipeline has 80 kB, the numbers that are not yet unbatched."""
    rows = tf.data.Dataset.range(40).map(
        lambda number: {"ids": tf.fill([512], number + 100 * tf.cast(epoch, tf.int64))}
    )
    return rows.batch(20).unbatch()


def test_a_state_of_another_step_is_not_used(tmp_path, capsys):
    batches = small_batches
    state = InputState(str(tmp_path), STRATEGY, keep=2)
    iterator = state.open(batches, (0, 0), None)
    for step in (4, 8):
        *_, (_, position) = taken(iterator, 4)
        state.save(iterator, step)
    for extension in ("index", "data-00000-of-00001", "sha256"):
        shutil.copy(tmp_path / f"{state._name}-4.{extension}", tmp_path / f"{state._name}-8.{extension}")
    assert_same(taken(state.open(batches, position, 8), 5), taken(iter(stream(batches, position)), 5))
    assert "reading epoch 0 again up to batch 8" in capsys.readouterr().out


def test_on_a_full_disk_no_part_of_a_state_is_left(small_disk, fill):
    state = InputState(str(small_disk / "checkpoints"), STRATEGY, keep=2)
    iterator = state.open(small_batches, (0, 0), None)
    taken(iterator, 4)
    (small_disk / "checkpoints").mkdir()
    fill(8192)
    free = shutil.disk_usage(small_disk).free
    state.save(iterator, 4)
    assert not os.listdir(small_disk / "checkpoints") and shutil.disk_usage(small_disk).free == free


def flipped(file):
    """Changes one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001", "sha256"])
@pytest.mark.parametrize("damage", [lambda file: os.truncate(file, file.stat().st_size // 2), flipped, Path.unlink])
def test_a_damaged_state_only_costs_time(tmp_path, capsys, ending, damage):
    batches = small_batches
    state = InputState(str(tmp_path), STRATEGY, keep=2)
    iterator = state.open(batches, (0, 0), None)
    *_, (_, position) = taken(iterator, 12)
    state.save(iterator, 12)
    expected = taken(iterator, 5)
    damage(tmp_path / f"{state._name}-12.{ending}")
    assert_same(taken(state.open(batches, position, 12), 5), expected)
    assert "reading epoch 0 again up to batch 12" in capsys.readouterr().out
