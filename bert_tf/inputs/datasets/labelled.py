"""Labelled texts and pairs in the files that the authors of several data sets publish.

SST (Socher et al., 2013) as `sentence<TAB>label`; NSMC (github.com/e9t/nsmc); CLINC150 (Larson et al., 2019); KLUE's
YNAT, NLI and STS (Park et al., 2021); KorNLI and KorSTS (Ham et al., 2020). GLUE is in `glue.py`, anybody's own tables
in `tables.py`.
"""

import itertools
from typing import NamedTuple

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.text_files import Seen, checked, field, parts, read_json, read_lines

NLI_LABELS = ("entailment", "neutral", "contradiction")
SST_LABELS = NSMC_LABELS = ("0", "1")
YNAT_LABELS = ("IT과학", "경제", "사회", "생활문화", "세계", "스포츠", "정치")
OUT_OF_SCOPE = "oos"


class Scale(NamedTuple):
    """Labels that are numbers from `low` to `high`."""

    low: float
    high: float


SIMILARITY = Scale(0.0, 5.0)


class Layout(NamedTuple):
    """A way in which a tab-separated file is laid out.

    Attributes:
        texts: names of the one or two columns of text.
        label: name of the label's column, "" if there is none.
        id: name of a column that is different in every row, "" if there is none.
        columns: names of all columns of a file that begins with its first row; () if the first line has the names.
        more: how many columns a row may have behind those, not used.
    """

    texts: tuple[str, ...]
    label: str = ""
    id: str = ""
    columns: tuple[str, ...] = ()
    more: int = 0

    @property
    def used(self):
        """Names of the columns that are read."""
        return tuple(name for name in (self.id, *self.texts, self.label) if name)

    def fits(self, fields):
        """Whether a file whose first line has these fields is laid out so."""
        if self.columns:
            return len(self.columns) <= len(fields) <= len(self.columns) + self.more
        return set(self.used) <= set(fields)


def read_tsv(path, layouts, labels, read_report=None):
    """Labelled texts of a tab-separated file, in which quotes are text; an empty line is no row.

    Args:
        path: the file.
        layouts: list of Layout; the first that the first line fits counts, so those with a header come first.
        labels: the classes, or a Scale.
        read_report: ReadReport, if labelled rows with a wrong number of columns are to be left out and counted there; None refuses
            them.

    Yields:
        TextExample.

    Raises:
        DataError: as `read_lines`; a column is missing, a row has a wrong number of columns, a label is not one of
            `labels`, an id occurs twice, or there are no rows; with the line.
    """
    rows = ((number, text.split("\t")) for number, text in read_lines(path) if text)
    number, first = next(rows, (0, None))
    if first is None:
        raise DataError(f"{path}: no rows; expected at least one")
    layout = next((layout for layout in layouts if layout.fits(first)), None)
    if layout is None:
        raise DataError(f"{path}:{number}: {_misfit(first, layouts)}")
    if layout.columns:
        columns, rows = layout.columns, itertools.chain([(number, first)], rows)
    else:
        columns = first
    locations = {name: columns.index(name) for name in layout.used}
    seen, row = Seen(), -1
    for row, (number, fields) in enumerate(rows):
        location = f"{path}:{number}"
        if not len(columns) <= len(fields) <= len(columns) + layout.more:
            if read_report is not None and layout.label:
                read_report.add("skipped: wrong number of columns", location)
                continue
            raise DataError(f"{location}: {len(fields)} columns; expected {len(columns)}: {', '.join(columns)}")
        identity = fields[locations[layout.id]] if layout.id else str(row)
        if layout.id:
            seen.add(identity, location)
        texts = tuple(fields[locations[name]] for name in layout.texts)
        label = read_label(fields[locations[layout.label]], labels, location) if layout.label else None
        yield TextExample(identity, texts, label, location)
    if row < 0:
        raise DataError(f"{path}: no rows below the header; expected at least one")


def read_label(text, labels, location):
    """The label that `text` writes: itself if it is a class, a float on a Scale.

    Raises:
        DataError: neither.
    """
    if not isinstance(labels, Scale):
        if text in labels:
            return text
        known = ", ".join(map(repr, labels[:20])) + ", ..." * (len(labels) > 20)
        raise DataError(f"{location}: label {text!r}; expected one of {known}")
    try:
        value = None if "_" in str(text) else float(text)  # of "1_5" Python makes 15
    except ValueError:
        value = None
    # "nan" is neither below nor above.
    if value is None or not labels.low <= value <= labels.high:
        raise DataError(f"{location}: label {text!r}; expected a number from {labels.low:g} to {labels.high:g}")
    return value


def _misfit(fields, layouts):
    """Why a first line fits none of the layouts."""
    if len(layouts) == 1 and not layouts[0].columns:
        missing = next(name for name in layouts[0].used if name not in fields)
        return f"no column {missing!r}; the columns are {', '.join(map(repr, fields[:20]))}"
    ways = [
        f"{len(layout.columns)} columns without header ({', '.join(layout.columns)})"
        if layout.columns
        else f"a header with {', '.join(map(repr, layout.used))}"
        for layout in layouts
    ]
    shown = ", ".join(repr(text[:40]) for text in fields[:20])
    return f"{len(fields)} columns, {shown}; expected {', or '.join(ways)}"


def read_sst(path):
    """The Stanford Sentiment Treebank as `sentence<TAB>label`, without header; labels "0" and "1".

    Yields and errors are those of `read_tsv`.
    """
    layout = Layout(("sentence",), "label", columns=("sentence", "label"))
    return read_tsv(path, [layout], SST_LABELS)


def read_nsmc(path):
    """Naver's movie reviews, `id, document, label` with header; "1" is positive.

    Yields and errors are those of `read_tsv`.
    """
    return read_tsv(path, [Layout(("document",), "label", "id")], NSMC_LABELS)


def read_kornli(path):
    """KorNLI's files, translations of MultiNLI, SNLI and XNLI: `sentence1, sentence2, gold_label` with header.

    Yields and errors are those of `read_tsv`.
    """
    return read_tsv(path, [Layout(("sentence1", "sentence2"), "gold_label")], NLI_LABELS)


def read_korsts(path):
    """KorSTS' files, with header, `genre, filename, year, id, score, sentence1, sentence2`; scores from 0 to 5.

    Its `id` repeats from genre to genre, so the row's number is the example's id.

    Yields and errors are those of `read_tsv`.
    """
    return read_tsv(path, [Layout(("sentence1", "sentence2"), "score")], SIMILARITY)


def read_klue_ynat(path):
    """KLUE's headlines by topic, `ynat-v1.1_*.json`; the label is the annotators', not the publisher's.

    Args:
        path: a JSON list of objects.

    Yields:
        TextExample.

    Raises:
        DataError: as `read_json`; a field is missing or of another type, a label unknown, an id twice.
    """
    return _read_klue(path, ("title",), lambda row, location: field(row, "label", str, location), YNAT_LABELS)


def read_klue_nli(path):
    """KLUE's natural language inference, `klue-nli-v1.1_*.json`. Args, yields and errors as `read_klue_ynat`."""
    texts = ("premise", "hypothesis")
    return _read_klue(path, texts, lambda row, location: field(row, "gold_label", str, location), NLI_LABELS)


def read_klue_sts(path):
    """KLUE's sentence similarity, `klue-sts-v1.1_*.json`: the mean rating from 0 to 5, not rounded to a digit, as its
    authors read it (klue_baseline/data/klue_sts.py). Args, yields and errors as `read_klue_ynat`.
    """

    def score(row, location):
        return field(field(row, "labels", dict, location), "real-label", float, f"{location}.labels")

    return _read_klue(path, ("sentence1", "sentence2"), score, SIMILARITY)


def _read_klue(path, texts, label_of, labels):
    rows = checked(read_json(path), list, path)
    if not rows:
        raise DataError(f"{path}: no examples; expected at least one")
    seen = Seen()
    for index, row in enumerate(rows):
        location = f"{path}: [{index}]"
        identity = field(row, "guid", str, location)
        seen.add(identity, location)
        values = tuple(field(row, name, str, location) for name in texts)
        label = read_label(label_of(row, location), labels, location)
        yield TextExample(identity, values, label, location)


def read_clinc150(path, split):
    """One split of CLINC150's `data_full.json` and its like; queries that none of its intents serves come behind.

    Args:
        path: a JSON object of lists, "train", "val", "test" and the same with "oos_" in front, of [text, intent].
        split: "train", "val" or "test".

    Yields:
        TextExample; of queries out of scope the label is "oos".

    Raises:
        ConfigError: an unknown split.
        DataError: as `read_json`; a list is missing or holds something else, or a label is not an intent of "train".
    """
    if split not in ("train", "val", "test"):
        raise ConfigError(f'unknown split "{split}" of CLINC150; expected train, val or test')
    data = read_json(path)
    count = 0
    for name, known in ((split, _intents(data, path)), (f"oos_{split}", (OUT_OF_SCOPE,))):
        for row, location in parts(data, name, path):
            text, label = _query(row, location)
            label = read_label(label, known, location)
            yield TextExample(str(count), (text,), label, location)
            count += 1
    if not count:
        raise DataError(f"{path}: {split}: no examples; expected at least one")


def clinc150_labels(path):
    """The intents that a file of CLINC150 trains, sorted; "oos" is not among them.

    Raises:
        DataError: as `read_clinc150`.
    """
    return _intents(read_json(path), path)


def _intents(data, path):
    return tuple(sorted({_query(row, location)[1] for row, location in parts(data, "train", path)}))


def _query(row, location):
    checked(row, list, location)
    if len(row) != 2:
        raise DataError(f"{location}: {len(row)} values; expected [text, intent]")
    return tuple(checked(value, str, f"{location}: [{index}]") for index, value in enumerate(row))
