"""The examples that a task is fine-tuned, measured and asked on, from whatever holds them."""

import os
from collections.abc import Callable
from typing import NamedTuple

from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets import choices, conll, glue, labelled, squad, tables, tfds_sets
from bert_tf.inputs.datasets.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample, is_blank
from bert_tf.inputs.datasets.text_files import STDIN
from bert_tf.inputs.identity import file_identity

TFDS = "tfds:"
EMPTY = "skipped: empty text"
# What a program is after, each a field of ExampleData.
ROLES = ("train", "validation", "test")
_OLD_ROLES = {"evaluation": "validation"}  # --split until version 0.1
# Files of a folder that an error lists.
_NAMED = 8


def _in_folder(folder, part):
    return os.path.join(folder, part)


class Format(NamedTuple):
    """A way in which examples lie in files.

    Attributes:
        example: what its examples are: TextExample, TaggedExample, QuestionExample or ChoiceExample.
        read: function of (path, part, ExampleData, ReadReport) to the examples; `part` is what the config or `parts` says.
        parts: for each of `ROLES` the file, or split, that has it where the config does not say.
        labels: function of a path to the classes in their order, or to a Scale; None where only the examples tell.
        locate: function of (folder, part) to the path of the file.
        columns: the fields of ExampleData that say where in a file something is; of others the format knows it.
    """

    example: type
    read: Callable
    parts: tuple[str, str, str]
    labels: Callable | None = None
    locate: Callable = _in_folder
    columns: tuple[str, ...] = ()


def _texts(read, *parts, labels):
    return Format(TextExample, lambda path, part, data, read_report: read(path), parts, lambda path: labels)


def _tagged(read, *parts, default):
    return Format(
        TaggedExample,
        lambda path, part, data, read_report: read(path, data.column or default),
        parts,
        columns=("column",),
    )


def _questions(*parts, unanswerable=False):
    def read(path, part, data, read_report):
        return squad.read_squad(path, read_report, unanswerable=unanswerable)

    return Format(QuestionExample, read, parts)


def _choices(read, *parts):
    return Format(ChoiceExample, lambda path, part, data, read_report: read(path), parts)


def _glue(name):
    parts = {"mnli": ("train", "dev_matched", "test_matched"), "ax": ("test", "test", "test")}
    task = glue.GLUE[name]
    return Format(
        TextExample,
        lambda path, part, data, read_report: glue.read_glue(name, path, read_report),
        parts.get(name, ("train", "dev", "test")),
        lambda path: task.labels,
        lambda folder, part: glue.glue_file(name, folder, part) if part in task.files else _in_folder(folder, part),
    )


# By the names that `ExampleData.format` takes.
FORMATS = {
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
    **{
        f"klue/{name}": _texts(
            read, *(f"{name_of_file}-v1.1_{split}.json" for split in ("train", "dev", "dev")), labels=labels
        )
        for name, name_of_file, read, labels in (
            ("ynat", "ynat", labelled.read_klue_ynat, labelled.YNAT_LABELS),
            ("nli", "klue-nli", labelled.read_klue_nli, labelled.NLI_LABELS),
            ("sts", "klue-sts", labelled.read_klue_sts, labelled.SIMILARITY),
        )
    },
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
    """What is done with one kind of example, whatever task it is for.

    Attributes:
        gold: name of the attribute that is to be learned; None in a test set.
        useless: function of a labelled example to why nothing can be learned of it or measured by it, None if it can.
        lines: function of (path, ExampleData, ReadReport) to the examples of JSON lines, as anybody can write them.
        tfds: function of (name, split, ExampleData, ReadReport) to the examples of a data set of TFDS.
    """

    gold: str
    useless: Callable
    lines: Callable
    tfds: Callable


def _unanswerable(data):
    return data.format == "squad2"


def _why_not_ask(example):
    if is_blank(example.question, example.context):
        return EMPTY
    if example.answers and is_blank(*(answer.text for answer in example.answers)):
        return "skipped: question whose answers are all empty"
    return None


KINDS = {
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
        _why_not_ask,
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


def glue_task_of(data):
    """The key of `glue.GLUE` whose examples an ExampleData means, of files or of TFDS; None for other data."""
    if data.source:
        found = tfds_sets.glue_of_tfds(data.source.removeprefix(TFDS))
        return found and found[0]
    family, _, name = data.format.partition("/")
    return name if family == "glue" else None


def _is_lines(path):
    return path == STDIN or path.lower().endswith(".jsonl")


class Source:
    """The examples of an ExampleData.

    Args:
        data: ExampleData.
        path: --data_dir: a folder, a single file, or "-" for JSON lines on standard input; "" where the data comes
            from TFDS. A file goes before what ExampleData names.
        example: the kind that the task takes, such as TextExample.

    Raises:
        ConfigError: an unknown format or source, a format with examples of another kind, or a folder beside a source.
        DataError: there is no such path.
    """

    def __init__(self, data, path, example):
        self._data, self._example, self._kind = data, example, KINDS[example]
        if data.source and not data.source.startswith(TFDS):
            raise ConfigError(f"data.source is {data.source!r}; expected tfds:NAME, or nothing for files of --data_dir")
        if data.format not in FORMATS:
            raise ConfigError(f"data.format {data.format!r} is unknown; choose one of {', '.join(FORMATS)}")
        self._format = FORMATS[data.format]
        self._folder = path
        self._file = path if path == STDIN or os.path.isfile(path) else ""
        # A file is read whatever set the model learned from.
        self._set = "" if self._file else data.source.removeprefix(TFDS)
        # JSON lines are the same for all formats: a converted model, which knows of none, can be asked by them.
        if not self._set and self._format.example is not example and not _is_lines(path):
            fitting = ", ".join(name for name, form in FORMATS.items() if form.example is example)
            raise ConfigError(f"data.format {data.format!r} is for another kind of task; for this one: {fitting}")
        if not self._file and os.path.exists(path) and not os.path.isdir(path):
            raise DataError(f"{path}: neither a file nor a folder; give JSON lines on standard input, by --data_dir=-")
        if not self._file and not os.path.exists(path) and (path or not self._set):
            raise DataError(f"{path or '--data_dir'}: no such file or directory; expected a folder or a file of data")
        if self._set and path:
            raise ConfigError(
                "--data_dir names a folder and data.source a TFDS set; leave one out (--data.source= takes the files)"
            )

    def part(self, role):
        """What the config, or else the format, names for one of `ROLES`; another part's name is itself."""
        role = _OLD_ROLES.get(role, role)
        if role not in ROLES:
            return role
        named = getattr(self._data, role)
        if self._set:
            return named or tfds_sets.tfds_splits(self._set)[ROLES.index(role)]
        return named or self._format.parts[ROLES.index(role)]

    def where(self, role):
        """The file, or TFDS' name, of a part: what errors and results call it.

        Raises:
            DataError: the folder has no such file.
        """
        if self._file:
            return self._file
        part = self.part(role)
        if self._set:
            return f"{self._data.source}:{part}"
        path = self._format.locate(self._folder, part)
        if not os.path.exists(path):
            there = sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())
            listed = ", ".join(there[:_NAMED]) + (f" and {len(there) - _NAMED} more" if len(there) > _NAMED else "")
            if not path.endswith(part):  # which is a part of the one file
                remedy = "name the file itself by --data_dir"
            elif role in ROLES:
                remedy = f"name the file by data.{role}"
            else:
                remedy = f"name a file, or one of {', '.join(ROLES)}"
            raise DataError(f"{path}: no such file; {self._folder} has {listed or 'no files'}; {remedy}")
        return path

    def identity(self, role):
        """What tells these examples from others: of a file a digest, and the part that they are; of TFDS the name."""
        where = self.where(role)
        if self._set:
            return where
        if self._file:
            return file_identity(where)
        train, validation = (self._format.locate(self._folder, part) for part in self._format.parts[:2])
        return file_identity(where) + (f":{self.part(role)}" if train == validation else "")

    def labels(self):
        """The classes in their order, or a Scale; None where only the examples tell."""
        if self._set:
            return tfds_sets.tfds_labels(self._set, self._data.label) if self._example is TextExample else None
        return self._format.labels and self._format.labels(self.where("train"))

    def examples(self, read_report, role, *, labelled=True):
        """The examples, one after the other: all, if they are to be answered, else those that are of use.

        Args:
            read_report: ReadReport.
            role: one of `ROLES`, or what the format or TFDS calls another part.
            labelled: whether each must come with what is to be learned. Those with an empty text are left out then, and
                counted.

        Yields:
            Examples of the task's kind.

        Raises:
            ConfigError, DataError: as the readers; an example has no label though `labelled`.
        """
        gold = self._kind.gold
        for example in self._read(read_report, role):
            if not labelled:
                yield example
                continue
            if getattr(example, gold) is None:
                named = f"name its column by data.label (now {self._data.label!r})"
                remedy = named if self._example is TextExample else f"give its {gold}"
                what = f"no {gold}, which training and evaluation need"
                raise DataError(f"{example.location}: {what}; {remedy}, or take predict")
            if reason := self._kind.useless(example):
                read_report.add(reason, example.location)
            else:
                yield example

    def _read(self, read_report, role):
        where, part = self.where(role), self.part(role)
        if _is_lines(where):
            return self._kind.lines(where, self._data, read_report)
        if self._set:
            return self._kind.tfds(self._set, part, self._data, read_report)
        for name in ("text", "second_text", "label", "column"):
            value = getattr(self._data, name)
            if name not in self._format.columns and value != getattr(ExampleData, name):
                raise ConfigError(
                    f"data.{name} is {value!r}, but files of data.format {self._data.format} have their own; leave it "
                    "out"
                )
        return self._format.read(where, part, self._data, read_report)
