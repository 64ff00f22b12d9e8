"""Sources of examples for fine-tuning, evaluation and prediction: files in the supported formats, or TFDS."""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets import choices, conll, glue, labelled, squad, tables, tfds_sets
from bert_tf.inputs.datasets.examples import (
    ChoiceExample,
    QuestionExample,
    ReadReport,
    TaggedExample,
    TextExample,
    is_blank,
)
from bert_tf.inputs.datasets.labelled import Scale
from bert_tf.inputs.datasets.text_files import STDIN
from bert_tf.inputs.identity import file_identity

TFDS = "tfds:"
EMPTY = "skipped: empty text"
# Uses of examples, each a field of ExampleData.
ROLES = ("train", "validation", "test")
_OLD_ROLES = {"evaluation": "validation"}  # --split until version 0.1
# Number of a folder's files that an error lists.
_LISTED = 8

_Labels: TypeAlias = tuple[str, ...] | Scale


def _in_folder(folder: str, part: str) -> str:
    return os.path.join(folder, part)


class Format(NamedTuple):
    """A file format of examples.

    Attributes:
        example: class of its examples: TextExample, TaggedExample, QuestionExample or ChoiceExample.
        read: maps (path, part, config, report) to the examples; `part` comes from the config or `parts`.
        parts: default file name, or split, for each of `ROLES`.
        labels: maps a path to the classes in their order, or to a Scale; None if only the examples have them.
        locate: maps (folder, part) to the path of the file.
        columns: fields of ExampleData that select columns in a file; the format defines the other columns.
    """

    example: type
    read: Callable[[str, str, ExampleData, ReadReport], Iterator[Any]]
    parts: tuple[str, str, str]
    labels: Callable[[str], _Labels] | None = None
    locate: Callable[[str, str], str] = _in_folder
    columns: tuple[str, ...] = ()


def _texts(
    read: Callable[[str], Iterator[TextExample]], train: str, validation: str, test: str, *, labels: _Labels
) -> Format:
    return Format(
        TextExample,
        lambda path, part, data, read_report: read(path),
        (train, validation, test),
        lambda path: labels,
    )


def _tagged(
    read: Callable[[str, str], Iterator[TaggedExample]], train: str, validation: str, test: str, *, default: str
) -> Format:
    return Format(
        TaggedExample,
        lambda path, part, data, read_report: read(path, data.column or default),
        (train, validation, test),
        columns=("column",),
    )


def _questions(train: str, validation: str, test: str, *, unanswerable: bool = False) -> Format:
    return Format(
        QuestionExample,
        lambda path, part, data, read_report: squad.read_squad(path, read_report, unanswerable=unanswerable),
        (train, validation, test),
    )


def _choices(read: Callable[[str], Iterator[ChoiceExample]], train: str, validation: str, test: str) -> Format:
    return Format(ChoiceExample, lambda path, part, data, read_report: read(path), (train, validation, test))


def _klue(read: Callable[[str], Iterator[TextExample]], train: str, validation: str, labels: _Labels) -> Format:
    """KLUE publishes no test sets."""
    return _texts(read, train, validation, validation, labels=labels)


def _glue(name: str) -> Format:
    parts = {"mnli": ("train", "dev_matched", "test_matched"), "ax": ("test", "test", "test")}
    task = glue.GLUE[name]
    return Format(
        TextExample,
        lambda path, part, data, read_report: glue.read_glue(name, path, read_report),
        parts.get(name, ("train", "dev", "test")),
        lambda path: task.labels,
        lambda folder, part: glue.glue_file(name, folder, part) if part in task.files else _in_folder(folder, part),
    )


# Keys are the values of `ExampleData.format`.
FORMATS: dict[str, Format] = {
    "table": Format(
        TextExample,
        lambda path, part, data, read_report: tables.read_texts(path, data),
        ("train.tsv", "dev.tsv", "test.tsv"),
        columns=("text", "second_text", "label"),
    ),
    "sst": _texts(labelled.read_sst, "train.tsv", "dev.tsv", "test.tsv", labels=labelled.SST_LABELS),
    "nsmc": _texts(
        labelled.read_nsmc, "ratings_train.txt", "ratings_test.txt", "ratings_test.txt", labels=labelled.NSMC_LABELS
    ),
    "kornli": _texts(
        labelled.read_kornli, "multinli.train.ko.tsv", "xnli.dev.ko.tsv", "xnli.test.ko.tsv", labels=labelled.NLI_LABELS
    ),
    "korsts": _texts(labelled.read_korsts, "sts-train.tsv", "sts-dev.tsv", "sts-test.tsv", labels=labelled.SIMILARITY),
    "klue/ynat": _klue(labelled.read_klue_ynat, "ynat-v1.1_train.json", "ynat-v1.1_dev.json", labelled.YNAT_LABELS),
    "klue/nli": _klue(
        labelled.read_klue_nli, "klue-nli-v1.1_train.json", "klue-nli-v1.1_dev.json", labelled.NLI_LABELS
    ),
    "klue/sts": _klue(
        labelled.read_klue_sts, "klue-sts-v1.1_train.json", "klue-sts-v1.1_dev.json", labelled.SIMILARITY
    ),
    "clinc150": Format(
        TextExample,
        lambda path, part, data, read_report: labelled.read_clinc150(path, part),
        ("train", "val", "test"),
        lambda path: (*labelled.clinc150_labels(path), labelled.OUT_OF_SCOPE),
        lambda folder, part: _in_folder(folder, "data_full.json"),
    ),
    **{f"glue/{name}": _glue(name) for name in glue.GLUE},
    "conll": _tagged(conll.read_conll, "train.txt", "valid.txt", "test.txt", default="-1"),
    "conllu": _tagged(conll.read_conllu, "train.conllu", "dev.conllu", "test.conllu", default="upos"),
    "klue/ner": Format(
        TaggedExample,
        lambda path, part, data, read_report: conll.read_klue_ner(path),
        ("klue-ner-v1.1_train.tsv", "klue-ner-v1.1_dev.tsv", "klue-ner-v1.1_dev.tsv"),
    ),
    "squad": _questions("train-v1.1.json", "dev-v1.1.json", "dev-v1.1.json"),
    "squad2": _questions("train-v2.0.json", "dev-v2.0.json", "dev-v2.0.json", unanswerable=True),
    "korquad": _questions("KorQuAD_v1.0_train.json", "KorQuAD_v1.0_dev.json", "KorQuAD_v1.0_dev.json"),
    "swag": _choices(choices.read_swag, "train.csv", "val.csv", "test.csv"),
    "copa": _choices(choices.read_copa, "copa-dev.xml", "copa-test.xml", "copa-test.xml"),
    "choices": _choices(choices.read_choices, "train.jsonl", "dev.jsonl", "test.jsonl"),
}


class Kind(NamedTuple):
    """Readers and checks for one class of examples, independent of the task and the format.

    Attributes:
        gold: name of the attribute with the label; it is None in a test set.
        skip_reason: maps a labelled example to the reason why it is useless for training and evaluation, or to None.
        lines: maps (path, config, report) to the examples in a JSON-lines file.
        tfds: maps (name, split, config, report) to the examples of a TFDS data set.
    """

    gold: str
    skip_reason: Callable[[Any], str | None]
    lines: Callable[[str, ExampleData, ReadReport], Iterator[Any]]
    tfds: Callable[[str, str, ExampleData, ReadReport], Iterator[Any]]


def _unanswerable(data: ExampleData) -> bool:
    return data.format == "squad2"


def _question_skip_reason(example: QuestionExample) -> str | None:
    if is_blank(example.question, example.context):
        return EMPTY
    if example.answers and is_blank(*(answer.text for answer in example.answers)):
        return "skipped: question whose answers are all empty"
    return None


KINDS: dict[type, Kind] = {
    TextExample: Kind(
        "label",
        lambda example: EMPTY if is_blank(*example.texts) else None,
        lambda path, data, read_report: tables.read_text_lines(path, data),
        lambda name, split, data, read_report: tfds_sets.read_tfds_texts(
            name, split, texts=tuple(filter(None, (data.text, data.second_text))), label=data.label
        ),
    ),
    TaggedExample: Kind(
        "tags",
        lambda example: EMPTY if is_blank(example.text) else None,
        lambda path, data, read_report: conll.read_tagged_lines(path),
        lambda name, split, data, read_report: tfds_sets.read_tfds_tags(name, split, data.column or "ner"),
    ),
    QuestionExample: Kind(
        "answers",
        _question_skip_reason,
        lambda path, data, read_report: squad.read_questions(path, read_report, unanswerable=_unanswerable(data)),
        lambda name, split, data, read_report: tfds_sets.read_tfds_questions(
            name, split, read_report, unanswerable=_unanswerable(data)
        ),
    ),
    ChoiceExample: Kind(
        "label",
        lambda example: EMPTY if is_blank(example.context + example.question, *example.choices) else None,
        lambda path, data, read_report: choices.read_choices(path),
        lambda name, split, data, read_report: tfds_sets.read_tfds_choices(name, split),
    ),
}


def glue_task_of(data: ExampleData) -> str | None:
    """Returns the key of `glue.GLUE` for data from GLUE, in files or TFDS; None for other data."""
    if data.source:
        task = tfds_sets.glue_of_tfds(data.source.removeprefix(TFDS))
        return task and task[0]
    family, _, name = data.format.partition("/")
    return name if family == "glue" else None


def _is_lines(path: str) -> bool:
    return path == STDIN or path.lower().endswith(".jsonl")


class Source:
    """The examples that an ExampleData selects.

    Args:
        data: where the examples come from.
        path: --data_dir: a folder, a single file, or "-" for JSON lines on standard input; "" for data from TFDS. A
            single file takes precedence over the file names and the source in `data`.
        example: the task's class of examples, such as TextExample.

    Attributes:
        roles: those of examples with labels, for fine-tuning.
    """

    roles = ROLES[:2]

    def __init__(self, data: ExampleData, path: str, example: type) -> None:
        self._data, self._example, self._kind = data, example, KINDS[example]
        if data.source and not data.source.startswith(TFDS):
            raise ConfigError(f"data.source is {data.source!r}; expected tfds:NAME, or nothing for files of --data_dir")
        if data.format not in FORMATS:
            raise ConfigError(f"data.format {data.format!r} is unknown; choose one of {', '.join(FORMATS)}")
        self._format = FORMATS[data.format]
        self._folder = path
        self._file = path if path == STDIN or os.path.isfile(path) else ""
        # A single file is read even if the model was trained on TFDS.
        self._set = "" if self._file else data.source.removeprefix(TFDS)
        # JSON lines are the same for all formats: a converted model, which has no format, can predict them.
        if not self._set and self._format.example is not example and not _is_lines(path):
            fitting = ", ".join(name for name, form in FORMATS.items() if form.example is example)
            raise ConfigError(f"data.format {data.format!r} is for another kind of task; for this one: {fitting}")
        if not self._file and os.path.exists(path) and not os.path.isdir(path):
            raise DataError(
                f"{path}: neither a file nor a folder; pipe JSON lines to standard input, with --data_dir=-"
            )
        if not self._file and not os.path.exists(path) and (path or not self._set):
            raise DataError(f"{path or '--data_dir'}: no such file or directory; expected a folder or a file of data")
        if self._set and path:
            raise ConfigError(
                "--data_dir names a folder and data.source a TFDS set; leave one out (--data.source= reads the files)"
            )

    def part(self, role: str) -> str:
        """Returns the file name or split for one of `ROLES`, from the config or else the format; others unchanged."""
        role = _OLD_ROLES.get(role, role)
        if role not in ROLES:
            return role
        named = getattr(self._data, role)
        if self._set:
            return named or tfds_sets.tfds_splits(self._set)[ROLES.index(role)]
        return named or self._format.parts[ROLES.index(role)]

    def where(self, role: str) -> str:
        """Returns the path of a part's file, or "tfds:NAME:SPLIT", as errors and results show it."""
        if self._file:
            return self._file
        part = self.part(role)
        if self._set:
            return f"{self._data.source}:{part}"
        path = self._format.locate(self._folder, part)
        if not os.path.exists(path):
            files = sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())
            listed = ", ".join(files[:_LISTED]) + (f" and {len(files) - _LISTED} more" if len(files) > _LISTED else "")
            if not path.endswith(part):  # the part is a split inside a single file
                remedy = "pass the file itself as --data_dir"
            elif (role := _OLD_ROLES.get(role, role)) in ROLES:
                remedy = f"set data.{role} to the file's name"
            else:
                remedy = f"name a file, or one of {', '.join(ROLES)}"
            raise DataError(f"{path}: no such file; {self._folder} has {listed or 'no files'}; {remedy}")
        return path

    def identity(self, role: str) -> str:
        """Returns a fingerprint of the examples: a digest of the file and, if needed, its split; for TFDS the name."""
        where = self.where(role)
        if self._set:
            return where
        if self._file:
            return file_identity(where)
        train, validation = (self._format.locate(self._folder, part) for part in self._format.parts[:2])
        return file_identity(where) + (f":{self.part(role)}" if train == validation else "")

    def labels(self) -> _Labels | None:
        """Returns the classes in their order, or a Scale; None if only the examples have them."""
        if self._set:
            return tfds_sets.tfds_labels(self._set, self._data.label) if self._example is TextExample else None
        return self._format.labels and self._format.labels(self.where("train"))

    def examples(self, read_report: ReadReport, role: str, *, labelled: bool = True) -> Iterator[Any]:
        """Streams the examples.

        Args:
            read_report: counts examples that were skipped or changed.
            role: one of `ROLES`, or the name of another part in the format or in TFDS.
            labelled: True for training and evaluation: every example must have a label, and examples with an empty
                text are skipped and counted. False for prediction: all examples are yielded.

        Yields:
            Examples of the task's class.
        """
        gold = self._kind.gold
        for example in self._read(read_report, role):
            if not labelled:
                yield example
                continue
            if getattr(example, gold) is None:
                column = f"set data.label (now {self._data.label!r}) to its column"
                remedy = column if self._example is TextExample else f"add its {gold}"
                what = f"no {gold}, which training and evaluation need"
                raise DataError(f"{example.location}: {what}; {remedy}, or use predict")
            if reason := self._kind.skip_reason(example):
                read_report.add(reason, example.location)
            else:
                yield example

    def _read(self, read_report: ReadReport, role: str) -> Iterator[Any]:
        where, part = self.where(role), self.part(role)
        if _is_lines(where):
            return self._kind.lines(where, self._data, read_report)
        if self._set:
            return self._kind.tfds(self._set, part, self._data, read_report)
        for name in ("text", "second_text", "label", "column"):
            value = getattr(self._data, name)
            if name not in self._format.columns and value != getattr(ExampleData, name):
                raise ConfigError(
                    f"data.{name} is {value!r}, but data.format {self._data.format} has its own columns; leave "
                    f"data.{name} out"
                )
        return self._format.read(where, part, self._data, read_report)
