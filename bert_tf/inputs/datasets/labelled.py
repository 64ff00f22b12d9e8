"""Readers of labelled texts and pairs in the formats in which several data sets are published.

SST (Socher et al., 2013) as `sentence<TAB>label`; NSMC (github.com/e9t/nsmc); CLINC150 (Larson et al., 2019); KLUE's
YNAT, NLI and STS (Park et al., 2021); KorNLI and KorSTS (Ham et al., 2020). See `glue.py` for GLUE, and `tables.py`
for users' own tables.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
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
    """Column layout of a tab-separated file.

    Attributes:
        texts: names of the one or two text columns.
        label: name of the label column, "" if there is none.
        id: name of a column with a unique value in every row, "" if there is none.
        columns: names of all columns of a file without header; () if the first line is a header.
        more: number of further columns that a row may have after these; they are ignored.
    """

    texts: tuple[str, ...]
    label: str = ""
    id: str = ""
    columns: tuple[str, ...] = ()
    more: int = 0

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        return tuple(name for name in (self.id, *self.texts, self.label) if name)

    def fits(self, fields: Sequence[str]) -> bool:
        """Whether a file with these fields in its first line has this layout."""
        if self.columns:
            return len(self.columns) <= len(fields) <= len(self.columns) + self.more
        return set(self.used) <= set(fields)


def read_tsv(
    path: str, layouts: Sequence[Layout], labels: Sequence[str] | Scale, read_report: ReadReport | None = None
) -> Iterator[TextExample]:
    """Reads labelled texts from a tab-separated file. Quotes are text; empty lines are skipped.

    Args:
        path: the file.
        layouts: possible layouts; the first one that fits the first line is taken, so those with a header come first.
        labels: the classes, or a Scale.
        read_report: counts labelled rows with a wrong number of columns, which are skipped then; if None, they are
            errors.
    """
    rows: Iterator[tuple[int, list[str]]] = ((number, text.split("\t")) for number, text in read_lines(path) if text)
    number, first = next(rows, (0, None))
    if first is None:
        raise DataError(f"{path}: no rows; expected at least one")
    layout = next((layout for layout in layouts if layout.fits(first)), None)
    if layout is None:
        raise DataError(f"{path}:{number}: {_misfit(first, layouts)}")
    columns: Sequence[str]
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


def read_label(text: Any, labels: Sequence[str] | Scale, location: str) -> str | float:
    """Parses a label: one of the classes, or a number on a Scale, as a float."""
    if not isinstance(labels, Scale):
        if text in labels:
            return text
        known = ", ".join(map(repr, labels[:20])) + ", ..." * (len(labels) > 20)
        raise DataError(f"{location}: label {text!r}; expected one of {known}")
    try:
        value = None if "_" in str(text) else float(text)  # Python reads "1_5" as 15
    except ValueError:
        value = None
    # "nan" is neither below nor above.
    if value is None or not labels.low <= value <= labels.high:
        raise DataError(f"{location}: label {text!r}; expected a number from {labels.low:g} to {labels.high:g}")
    return value


def _misfit(fields: Sequence[str], layouts: Sequence[Layout]) -> str:
    """Explains why a first line fits none of the layouts."""
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


def read_sst(path: str) -> Iterator[TextExample]:
    """Reads the Stanford Sentiment Treebank as `sentence<TAB>label`, without header; labels "0" and "1"."""
    layout = Layout(("sentence",), "label", columns=("sentence", "label"))
    return read_tsv(path, [layout], SST_LABELS)


def read_nsmc(path: str) -> Iterator[TextExample]:
    """Reads Naver's movie reviews, `id, document, label` with header; "1" is positive."""
    return read_tsv(path, [Layout(("document",), "label", "id")], NSMC_LABELS)


def read_kornli(path: str) -> Iterator[TextExample]:
    """Reads KorNLI, translations of MultiNLI, SNLI and XNLI: `sentence1, sentence2, gold_label` with header."""
    return read_tsv(path, [Layout(("sentence1", "sentence2"), "gold_label")], NLI_LABELS)


def read_korsts(path: str) -> Iterator[TextExample]:
    """Reads KorSTS, `genre, filename, year, id, score, sentence1, sentence2` with header; scores from 0 to 5.

    Its `id` repeats across genres, so the row number is the example's id.
    """
    return read_tsv(path, [Layout(("sentence1", "sentence2"), "score")], SIMILARITY)


def read_klue_ynat(path: str) -> Iterator[TextExample]:
    """Reads KLUE's topic classification of headlines, `ynat-v1.1_*.json`, with the annotators' labels, not the
    publisher's.
    """
    return _read_klue(path, ("title",), lambda row, location: field(row, "label", str, location), YNAT_LABELS)


def read_klue_nli(path: str) -> Iterator[TextExample]:
    """Reads KLUE's natural language inference, `klue-nli-v1.1_*.json`."""
    texts = ("premise", "hypothesis")
    return _read_klue(path, texts, lambda row, location: field(row, "gold_label", str, location), NLI_LABELS)


def read_klue_sts(path: str) -> Iterator[TextExample]:
    """Reads KLUE's sentence similarity, `klue-sts-v1.1_*.json`: the mean rating from 0 to 5, not rounded to one
    digit, as in its authors' reader (klue_baseline/data/klue_sts.py).
    """

    def score(row: Any, location: str) -> float:
        return field(field(row, "labels", dict, location), "real-label", float, f"{location}.labels")

    return _read_klue(path, ("sentence1", "sentence2"), score, SIMILARITY)


def _read_klue(
    path: str, texts: Sequence[str], label_of: Callable[[Any, str], str | float], labels: Sequence[str] | Scale
) -> Iterator[TextExample]:
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


def read_clinc150(path: str, split: str) -> Iterator[TextExample]:
    """Reads one split of CLINC150's `data_full.json` or a file like it; out-of-scope queries come last.

    Args:
        path: a JSON object of lists of [text, intent]: "train", "val", "test", "oos_train", "oos_val", "oos_test".
        split: "train", "val" or "test".

    Yields:
        TextExample; the label of out-of-scope queries is "oos".
    """
    if split not in ("train", "val", "test"):
        raise ConfigError(f'unknown split "{split}" of CLINC150; expected train, val or test')
    data = read_json(path)
    count = 0
    for name, known in ((split, _intents(data, path)), (f"oos_{split}", (OUT_OF_SCOPE,))):
        for row, location in parts(data, name, path):
            text, intent = _query(row, location)
            yield TextExample(str(count), (text,), read_label(intent, known, location), location)
            count += 1
    if not count:
        raise DataError(f"{path}: {split}: no examples; expected at least one")


def clinc150_labels(path: str) -> tuple[str, ...]:
    """Returns the intents in the training split of a CLINC150 file, sorted, without "oos"."""
    return _intents(read_json(path), path)


def _intents(data: Any, path: str) -> tuple[str, ...]:
    return tuple(sorted({_query(row, location)[1] for row, location in parts(data, "train", path)}))


def _query(row: Any, location: str) -> tuple[str, str]:
    checked(row, list, location)
    if len(row) != 2:
        raise DataError(f"{location}: {len(row)} values; expected [text, intent]")
    text, intent = (checked(value, str, f"{location}: [{index}]") for index, value in enumerate(row))
    return text, intent
