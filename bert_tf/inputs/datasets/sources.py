"""Sources of examples for fine-tuning, evaluation and prediction: files in the supported formats, TFDS, or memory."""

import abc
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_tf.config import ExampleData
from bert_tf.config.values import checked_arguments
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import here_or_bundled, text_path
from bert_tf.inputs.datasets import tfds_sets
from bert_tf.inputs.datasets.examples import Labels, ReadReport, TextExample, is_whole
from bert_tf.inputs.datasets.formats import FORMATS, SPLITS, File
from bert_tf.inputs.datasets.kinds import KINDS, Kind
from bert_tf.inputs.datasets.text_files import STDIN
from bert_tf.inputs.identity import digest, file_identity
from bert_tf.types import StrPath

TFDS = "tfds:"
# Uses of examples, each a field of ExampleData.
ROLES = ("train", "validation", "test")
# Number of a folder's files that an error lists.
_GUESSES = 3  # formats that are named
_LISTED = 8


def metrics_of(data: ExampleData) -> str:
    """The name of the official metrics of a data set in files or TFDS, as in `Format.metrics`."""
    if data.source:
        task = tfds_sets.glue_of_tfds(data.source.removeprefix(TFDS))
        return FORMATS[f"glue/{task[0]}"].metrics if task else ""
    return FORMATS[data.format].metrics if data.format in FORMATS else ""


def _is_lines(path: str) -> bool:
    return path == STDIN or path.lower().endswith(".jsonl")


def _is_no_folder(path: str) -> bool:
    """Whether there is a file, or what is refused when it is opened, such as a pipe."""
    return os.path.exists(path) and not os.path.isdir(path)


class Examples(abc.ABC):
    """Examples by role, checked and repaired in the same way whether they are in files or in memory.

    Attributes:
        roles: those of examples with labels, for fine-tuning.
    """

    roles: tuple[str, ...]
    _kind: Kind
    _add_label: str  # how an example without a label gets one, for the error

    @abc.abstractmethod
    def where(self, role: str) -> str:
        """The name of a role's examples, as errors and results show it."""

    @abc.abstractmethod
    def identity(self, role: str) -> str:
        """A fingerprint of a role's examples."""

    @abc.abstractmethod
    def labels(self) -> Labels | None:
        """The classes in their order, or a Scale; None if only the examples have them."""

    @abc.abstractmethod
    def _read(self, read_report: ReadReport, role: str, labelled: bool) -> Iterator[Any]:
        """Streams all examples of a role; `labelled` as for `examples`."""

    def examples(
        self, read_report: ReadReport, role: str, *, labelled: bool = True, usable: bool = False
    ) -> Iterator[Any]:
        """Streams the examples.

        Args:
            read_report: counts examples that were skipped or changed.
            role: one of `ROLES`, or the name of another part in the format or in TFDS.
            labelled: True for training and evaluation: every example must have a label, and examples with an empty
                text are skipped and counted. False for prediction: all examples are yielded.
            usable: whether to skip and count examples with an empty text, too, if they need no label.

        Yields:
            Examples of the task's class.
        """
        gold = self._kind.gold
        for example in self._read(read_report, role, labelled):
            if labelled and getattr(example, gold) is None:
                what = f"no {gold}, which training and evaluation need"
                raise DataError(f"{example.location}: {what}; {self._add_label.format(gold)}")
            if (labelled or usable) and (reason := self._kind.skip_reason(example)):
                read_report.add(reason, example.location)
            else:
                yield example


class Source(Examples):
    """The examples that an ExampleData selects.

    Args:
        data: where the examples come from.
        path: --data_dir: a folder, a single file, or "-" for JSON lines on standard input; "" for data from TFDS. A
            single file takes precedence over the file names and the source in `data`.
        example: the task's class of examples, such as TextExample.
        labelled: whether a table must have the column of the labels even where examples need none.

    Attributes:
        data: as given.
    """

    roles = ROLES[:2]

    def __init__(self, data: ExampleData, path: str, example: type, *, labelled: bool = False) -> None:
        self.data, self._example, self._kind, self._labelled = data.check(), example, KINDS[example], labelled
        if data.source and not data.source.startswith(TFDS):
            raise ConfigError(f"data.source is {data.source!r}; expected tfds:NAME, or nothing for files of --data_dir")
        if data.format not in FORMATS:
            raise ConfigError(f"data.format {data.format!r} is unknown; choose one of {', '.join(FORMATS)}")
        self._format = FORMATS[data.format]
        column = f"set data.label (now {data.label!r}) to its column"
        self._add_label = (column if example is TextExample else "add its {}") + ", or use predict"
        self._folder = path = here_or_bundled(path)
        self._file = path if path == STDIN or os.path.isfile(path) else ""
        # A single file is read even if the model was trained on TFDS.
        self._set = "" if self._file else data.source.removeprefix(TFDS)
        # JSON lines are the same for all formats: a converted model, which has no format, can predict them.
        readable = (example, *self._kind.converts)
        if not self._set and self._format.example not in readable and not _is_lines(path):
            fitting = ", ".join(name for name, form in FORMATS.items() if form.example in readable)
            raise ConfigError(f"data.format {data.format!r} is for another kind of task; for this one: {fitting}")
        if not self._file and not os.path.isdir(path) and (path or not self._set):
            problem = "no such file or directory; expected a folder or a file of data"
            if os.path.exists(path):
                problem = "neither a file nor a folder; pipe JSON lines to standard input, with --data_dir=-"
            raise DataError(f"{path or '--data_dir'}: {problem}")
        if self._set and path:
            raise ConfigError(
                "--data_dir names a folder and data.source a TFDS set; leave one out (--data.source= reads the files)"
            )

    @property
    def one_file(self) -> bool:
        """Whether all examples are in one file, which is not a folder's or a set's part."""
        return bool(self._file)

    def part(self, role: str) -> str:
        """Returns the file name or split for one of `ROLES`, from the config or else the format; others unchanged."""
        if role not in ROLES:
            return role
        named = getattr(self.data, role)
        if self._set:
            return named or tfds_sets.tfds_splits(self._set)[ROLES.index(role)]
        return named or self._format.parts[ROLES.index(role)]

    def where(self, role: str) -> str:
        """Returns the path of a part's file, or "tfds:NAME:SPLIT"."""
        if self._file:
            self._check_split(role)
            return self._file
        part = self.part(role)
        if self._set:
            return f"{self.data.source}:{part}"
        found = self._found(role)
        if len(found) > 1:
            names = " and ".join(os.path.relpath(path, self._folder) for path in found)
            remedy = f"set data.{role} to one of them" if role in ROLES else "name one of them"
            raise DataError(f"{self._folder} has {names}; {remedy}, or pass the file itself")
        if found:
            return found[0]
        paths = self._format.paths(self._folder, part)
        files = sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())
        listed = ", ".join(files[:_LISTED]) + (f" and {len(files) - _LISTED} more" if len(files) > _LISTED else "")
        if self._format.labels_in:  # all parts are in a single file
            remedy = "pass the file itself as --data_dir"
        elif role in ROLES:
            remedy = f"pass the file itself, or set data.{role} to its name"
        else:
            remedy = f"name a file, or one of {', '.join(dict.fromkeys((*ROLES, *self._format.files)))}"
        if role in ROLES:
            fitting = [
                name
                for name, form in FORMATS.items()
                if any(map(os.path.exists, form.paths(self._folder, form.parts[ROLES.index(role)])))
            ]
            if 0 < len(fitting) <= _GUESSES:
                remedy = f"set data.format={' or '.join(fitting)}, whose files these are; or {remedy}"
        others = "".join(f", nor {os.path.relpath(path, self._folder)}" for path in paths[1:])
        raise DataError(f"{paths[0]}: no such file{others}; {self._folder} has {listed or 'no files'}; {remedy}")

    def _check_split(self, role: str) -> None:
        """Refuses a split of a single file, which is none of its names: it would be ignored."""
        own = () if self._file == STDIN else (os.path.basename(self._file), *self._format.files)
        if role not in (*ROLES, *own):
            raise ConfigError(
                f"the split is {role!r}, but {self._file} is one file; name a folder, or one of {', '.join(ROLES)}"
            )

    def _found(self, role: str) -> list[str]:
        """The file of a part in the folder: that of the format, or else those with another usual name."""
        part = self.part(role)
        is_usual = role in ROLES and not getattr(self.data, role)
        stems = SPLITS[ROLES.index(role)] if is_usual else (part,)
        others = [os.path.join(self._folder, name.format(stem)) for stem in stems for name in self._format.others]
        own = next((path for path in self._format.paths(self._folder, part) if _is_no_folder(path)), None)
        return [own] if own else list(filter(_is_no_folder, others))

    def name(self, role: str) -> str:
        """The value of a field of ExampleData that finds a part again: its file in the folder, or its split."""
        if self._set or self._format.labels_in:
            return self.part(role)
        if self._file:
            return os.path.basename(self._file)
        return os.path.relpath(self.where(role), self._folder)

    def files(self, role: str) -> list[str]:
        """Returns the paths of the files of all parts, and of another one; none for TFDS and standard input."""
        if self._set or self._file:
            return [] if self._set or self._file == STDIN else [self._file]
        return [*dict.fromkeys(path for one in (*ROLES, role) for path in self._found(one))]

    def identity(self, role: str) -> str:
        """Returns a fingerprint of the examples: a digest of the file and, if needed, its split; for TFDS the name."""
        where = self.where(role)
        if self._set:
            return where
        if self._file:
            return file_identity(where)
        train, validation = (self._format.paths(self._folder, part) for part in self._format.parts[:2])
        return file_identity(where) + (f":{self.part(role)}" if train == validation else "")

    def labels(self) -> Labels | None:
        """Returns the classes in their order, or a Scale; None if only the examples have them."""
        if self._set:
            return tfds_sets.tfds_labels(self._set, self.data.label) if self._example is TextExample else None
        return self._format.labels_in(self.where("train")) if self._format.labels_in else self._format.labels or None

    def _read(self, read_report: ReadReport, role: str, labelled: bool) -> Iterator[Any]:
        file = File(self._set or self.where(role), self.part(role), self.data, read_report, labelled or self._labelled)
        if self._set:
            return self._kind.tfds(file)
        if _is_lines(file.path):
            return self._kind.lines(file.path, file)
        for name in ("text", "second_text", "label", "column"):
            value = getattr(self.data, name)
            if name not in self._format.settings and value != getattr(ExampleData, name):
                raise ConfigError(
                    f"data.{name} is {value!r}, but data.format {self.data.format} has its own columns; leave "
                    f"data.{name} out"
                )
        return self._kind.read(self._format.examples(file))


class Data:
    """Examples that `read` has read; `fit`, `evaluate` and `predict` take it in place of inputs and labels.

    Attributes:
        format: its settings, which are saved with a model that is trained on it.
        where: the path.
        examples: as the programs read them, named tuples of `inputs.datasets.examples`.
        labels: the classes in their order, or a Scale; None if only the examples have them.
        read_report: counts examples that were changed.
        x: the inputs, in plain Python.
        y: their labels, each None if there is none; integers if all labels of a table are.
    """

    def __init__(self, source: Source, split: str) -> None:
        self.format, self.where, self.labels = source.data, source.where(split), source.labels()
        self._split, self._name = split, source.name(split)
        self.read_report = ReadReport()
        self.examples = list(source.examples(self.read_report, split, labelled=False))

    def __len__(self) -> int:
        return len(self.examples)

    def __repr__(self) -> str:
        return f"<{len(self)} examples of {self.where}>"

    def name(self, role: str) -> str:
        """The value for a role in `format` that finds this file again in its folder; "" if that is the usual one."""
        form = FORMATS[self.format.format]
        usual = form.parts[ROLES.index(role)]
        is_usual = self._split == role or self._name in form.files.get(usual, (usual,))
        return "" if is_usual else self._name

    @property
    def x(self) -> list[Any]:
        return [KINDS[type(example)].values(example)[0] for example in self.examples]

    @property
    def y(self) -> list[Any]:
        labels = [KINDS[type(example)].values(example)[1] for example in self.examples]
        if not all(label is None or is_whole(label) for label in labels):
            return labels
        return [None if label is None else int(label.partition(".")[0]) for label in labels]  # as models answer


@checked_arguments
def read(
    format: str,  # as in data.format
    path: StrPath,
    split: str = "train",
    *,
    text: str = "sentence",
    second_text: str = "",
    label: str | None = None,
    column: str = "",
) -> Data:
    """Reads examples from a file in any format of the programs, for the classes of the Python API.

    Args:
        format: such as "klue/ner" or "table"; a key of `inputs.datasets.formats.FORMATS`.
        path: the file, or the folder that holds the format's files.
        split: "train", "validation" or "test", or the name of a file in the folder; a single file is any of them.
        text: name of the text's column in a table.
        second_text: name of the second text's column; "" for none.
        label: name of the label's column; None for "label", if there is one.
        column: for tagged words, the column of the tags.

    Examples:
        >>> reviews = bert_tf.read("table", "data/reviews", "heldout.tsv")
        >>> len(reviews), reviews.y[:2]
        (1500, ['positive', 'negative'])
    """
    labels = {} if label is None else {"label": label}
    settings = ExampleData(format=format, text=text, second_text=second_text, column=column, **labels)
    form = FORMATS.get(settings.check().format)  # an unknown one is refused by Source
    example = form.example if form else TextExample
    return Data(Source(settings, text_path(path), example, labelled=bool(label)), split)


class InMemory(Examples):
    """Examples in memory: values, as the objects that JSON lines have, or what `read` has read.

    Args:
        data: names the fields of texts, and says whether questions may be unanswerable.
        example: the task's class of examples.
        given: role -> (location, object) pairs, or Data.
    """

    def __init__(self, data: ExampleData, example: type, given: Mapping[str, Sequence[tuple[str, Any]] | Data]) -> None:
        is_read = any(isinstance(one, Data) for one in given.values())
        self._add_label = (
            "name its column when reading, or " if is_read else "give one, or "
        ) + "leave the example out"
        self.roles, self._data, self._kind, self._given = tuple(given), data, KINDS[example], given

    def where(self, role: str) -> str:
        given = self._given[role]
        return given.where if isinstance(given, Data) else f"{role} examples"

    def identity(self, role: str) -> str:
        return digest(list(self._read(ReadReport(), role, False)))

    def labels(self) -> Labels | None:
        given = self._given[self.roles[0]]
        return given.labels if isinstance(given, Data) else None

    def _read(self, read_report: ReadReport, role: str, labelled: bool) -> Iterator[Any]:
        given = self._given[role]
        if isinstance(given, Data):
            read_report.merge(given.read_report)
            return self._kind.read(iter(given.examples))
        return self._kind.lines(given, File("", role, self._data, read_report))
