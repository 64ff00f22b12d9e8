"""The tasks of GLUE and its diagnostic set in their published files (Wang et al., 2019; gluebenchmark.com/tasks)."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
from bert_tf.inputs.datasets.labelled import NLI_LABELS, SIMILARITY, Layout, Scale, read_tsv


class GlueTask(NamedTuple):
    """File names, layouts and labels of a task.

    Attributes:
        folder: its name in the zip files.
        files: possible names of each split's file, the benchmark's own name first.
        layouts: possible layouts of the files, those with a header first.
        labels: the classes as on the leaderboard, in the order of TFDS' class numbers; or a Scale.
    """

    folder: str
    files: dict[str, tuple[str, ...]]
    layouts: list[Layout]
    labels: tuple[str, ...] | Scale


def _splits(**files: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    standard = {split: (f"{split}.tsv",) for split in ("train", "dev", "test")}
    return {split: names + files.get(split, ()) for split, names in standard.items()}


def _layouts(*texts: str, label: str = "label") -> list[Layout]:
    """Layouts of train and dev sets, with labels, and of test sets, with the index column of a submission."""
    return [Layout(texts, label), Layout(texts, id="index")]


_PAIR = ("sentence1", "sentence2")
_BINARY = ("0", "1")
_TWO_WAY = ("entailment", "not_entailment")
_MNLI_SPLITS = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")

GLUE = {
    "cola": GlueTask(
        "CoLA",
        _splits(train=("in_domain_train.tsv",), dev=("in_domain_dev.tsv",)),
        # Train and dev have no header; their columns are source, label, the author's mark, sentence.
        [
            Layout(("sentence",), id="index"),
            Layout(("sentence",), "label", columns=("source", "label", "mark", "sentence")),
        ],
        _BINARY,
    ),
    "sst2": GlueTask("SST-2", _splits(), _layouts("sentence"), _BINARY),
    "mrpc": GlueTask(
        "MRPC",
        # Microsoft's own files have only train and test, both with labels; the other names are from common copies.
        _splits(
            train=("msr_paraphrase_train.txt", "msr-para-train.tsv"),
            dev=("msr-para-val.tsv",),
            test=("msr_paraphrase_test.txt", "msr-para-test.tsv"),
        ),
        _layouts("#1 String", "#2 String", label="Quality"),
        _BINARY,
    ),
    "stsb": GlueTask(
        "STS-B",
        _splits(train=("sts-train.csv",), dev=("sts-dev.csv",), test=("sts-test.csv",)),
        # The authors' own files (Cer et al., 2017) have no header and, in some rows, two more columns with sources.
        [
            *_layouts(*_PAIR, label="score"),
            Layout(_PAIR, "score", columns=("genre", "file", "year", "old_index", "score", *_PAIR), more=2),
        ],
        SIMILARITY,
    ),
    "qqp": GlueTask(
        "QQP",
        _splits(),
        [Layout(("question1", "question2"), "is_duplicate"), Layout(("question1", "question2"), id="id")],
        _BINARY,
    ),
    "mnli": GlueTask(
        "MNLI", {split: (f"{split}.tsv",) for split in _MNLI_SPLITS}, _layouts(*_PAIR, label="gold_label"), NLI_LABELS
    ),
    "qnli": GlueTask("QNLI", _splits(), _layouts("question", "sentence"), _TWO_WAY),
    "rte": GlueTask("RTE", _splits(), _layouts(*_PAIR), _TWO_WAY),
    "wnli": GlueTask("WNLI", _splits(), _layouts(*_PAIR), _BINARY),
    # Predicted by a model trained on MNLI; only the leaderboard has its labels.
    "ax": GlueTask("diagnostic", {"test": ("diagnostic.tsv", "AX.tsv")}, [Layout(_PAIR, id="index")], NLI_LABELS),
}


def glue_task(name: str) -> GlueTask:
    """Returns the task with this name, a key of `GLUE`."""
    if name not in GLUE:
        raise ConfigError(f'unknown GLUE task "{name}"; expected one of {", ".join(GLUE)}')
    return GLUE[name]


def glue_file(name: str, directory: str, split: str) -> str:
    """Finds the file of a split.

    Args:
        name: of the task, a key of `GLUE`.
        directory: the task's folder, or the parent folder of all tasks.
        split: "train", "dev" or "test"; for MNLI "train", "dev_matched", "dev_mismatched", "test_matched" or
            "test_mismatched"; for AX "test".
    """
    task = glue_task(name)
    if split not in task.files:
        raise ConfigError(f'unknown split "{split}" of {name}; expected one of {", ".join(task.files)}')
    folders = [directory, os.path.join(directory, task.folder)]
    for folder in folders:
        for file in task.files[split]:
            if os.path.isfile(os.path.join(folder, file)):
                return os.path.join(folder, file)
    names = ", ".join(task.files[split])
    raise DataError(f"{directory}: no {split} file of {name}; expected {names}, there or in {task.folder}/")


def read_glue(name: str, path: str, read_report: ReadReport) -> Iterator[TextExample]:
    """Reads one of GLUE's files; its first line determines the layout.

    QQP's train and dev files have a few rows broken by a line end within a question: these are skipped and counted.

    Args:
        name: of the task, a key of `GLUE`.
        path: the file.
        read_report: counts skipped rows.

    Returns:
        TextExamples; in a test set, `id` is the value of the submission's index column.
    """
    task = glue_task(name)
    return read_tsv(path, task.layouts, task.labels, read_report if name == "qqp" else None)
