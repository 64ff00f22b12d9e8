"""The tasks of GLUE and its diagnostic set as they are distributed (Wang et al., 2019; gluebenchmark.com/tasks)."""

import os
from typing import NamedTuple

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.labelled import NLI_LABELS, SIMILARITY, Layout, Scale, read_tsv


class GlueTask(NamedTuple):
    """Where a task's files are and what they hold.

    Attributes:
        folder: its name in the zip files.
        files: dict split -> names that its file goes by, the benchmark's first.
        layouts: list of Layout, those with a header first.
        labels: the classes as the leaderboard writes them, in the order of TFDS' class numbers; or a Scale.
    """

    folder: str
    files: dict[str, tuple[str, ...]]
    layouts: list[Layout]
    labels: tuple[str, ...] | Scale


def _splits(**files):
    standard = {split: (f"{split}.tsv",) for split in ("train", "dev", "test")}
    return {split: names + files.get(split, ()) for split, names in standard.items()}


def _layouts(*texts, label="label"):
    """Train and dev sets have labels, test sets the index that a submission repeats."""
    return [Layout(texts, label), Layout(texts, id="index")]


_PAIR = ("sentence1", "sentence2")
_BINARY = ("0", "1")
_TWO_WAY = ("entailment", "not_entailment")
_MNLI_SPLITS = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")

GLUE = {
    "cola": GlueTask(
        "CoLA",
        _splits(train=("in_domain_train.tsv",), dev=("in_domain_dev.tsv",)),
        # Train and dev begin with their first row: where from, label, what the author marked it with, sentence.
        [
            Layout(("sentence",), id="index"),
            Layout(("sentence",), "label", columns=("source", "label", "mark", "sentence")),
        ],
        _BINARY,
    ),
    "sst2": GlueTask("SST-2", _splits(), _layouts("sentence"), _BINARY),
    "mrpc": GlueTask(
        "MRPC",
        # Microsoft's own files have only train and test, both with labels; other names are of common copies.
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
        # The authors' own files (Cer et al., 2017) have no header and, in some rows, two columns of sources behind.
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
    # Answered by a model of MNLI; its labels are known to the leaderboard only.
    "ax": GlueTask("diagnostic", {"test": ("diagnostic.tsv", "AX.tsv")}, [Layout(_PAIR, id="index")], NLI_LABELS),
}


def glue_task(name):
    """The GlueTask of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in GLUE:
        raise ConfigError(f'unknown GLUE task "{name}"; expected one of {", ".join(GLUE)}')
    return GLUE[name]


def glue_file(name, directory, split):
    """The file of a split.

    Args:
        name: of the task, a key of `GLUE`.
        directory: the task's folder, or the one that holds the folders of all tasks.
        split: "train", "dev" or "test"; of MNLI "train", "dev_matched", "dev_mismatched", "test_matched" or
            "test_mismatched"; of AX "test".

    Raises:
        ConfigError: unknown task or split.
        DataError: the directory has no such file.
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


def read_glue(name, path, read_report):
    """The examples of one of GLUE's files; what kind of file it is, its first line says.

    QQP's train and dev files have a few rows that a line end within a question broke: these are left out and counted.

    Args:
        name: of the task, a key of `GLUE`.
        path: the file.
        read_report: ReadReport.

    Yields:
        TextExample; of a test set, `id` is what the submission's index column must hold.

    Raises:
        ConfigError: unknown task.
        DataError: as `read_tsv`.
    """
    task = glue_task(name)
    return read_tsv(path, task.layouts, task.labels, read_report if name == "qqp" else None)
