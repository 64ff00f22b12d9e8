"""The table of all file formats of examples: file names, columns or JSON fields, labels, and reader of each.

A new data set in a table or in JSON is a row of `FORMATS`. The sources are GLUE (Wang et al., 2019;
gluebenchmark.com/tasks); SST (Socher et al., 2013) as `sentence<TAB>label`; NSMC (github.com/e9t/nsmc); KorNLI and
KorSTS (Ham et al., 2020); KLUE (Park et al., 2021), which publishes no test sets; CLINC150 (Larson et al., 2019); SWAG
(Zellers et al., 2018); COPA (Roemmele et al., 2011); SQuAD (Rajpurkar et al., 2016, 2018) and KorQuAD 1.0 (Lim et al.,
2019); CoNLL-2003 (Tjong Kim Sang and De Meulder, 2003); SNIPS (Coucke et al., 2018) and CoNLL-U
(universaldependencies.org/format.html).
"""

import os
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bert_tf.config import ExampleData
from bert_tf.inputs.datasets.conll import read_conll, read_conllu, read_intents, read_klue_ner, read_sentences
from bert_tf.inputs.datasets.copa import read_copa
from bert_tf.inputs.datasets.examples import (
    ChoiceExample,
    Labels,
    QuestionExample,
    ReadReport,
    Scale,
    TaggedExample,
    TextExample,
    TextGroup,
)
from bert_tf.inputs.datasets.groups import read_beir, read_groups
from bert_tf.inputs.datasets.json_lines import read_choices
from bert_tf.inputs.datasets.squad import read_squad
from bert_tf.inputs.datasets.tables import Layout, read_json_rows, read_rows, read_texts
from bert_tf.inputs.datasets.text_files import read_csv

OUT_OF_SCOPE = "oos"  # CLINC150's class of queries without intent
BINARY = ("0", "1")
NLI = ("entailment", "neutral", "contradiction")
YNAT_LABELS = ("IT과학", "경제", "사회", "생활문화", "세계", "스포츠", "정치")
SIMILARITY = Scale(0.0, 5.0)
_TWO_WAY = ("entailment", "not_entailment")
_PAIR = ("sentence1", "sentence2")
_SPLITS = ("train.tsv", "dev.tsv", "test.tsv")
_TABLES = ("{}.tsv", "{}.csv", "{}.txt", "{}.jsonl")
_CLINC150 = Layout(("text",), "intent", columns=("text", "intent"))
_SWAG_TEXTS = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3")
# Names of the splits for training, validation and test.
SPLITS = (("train", "training"), ("dev", "valid", "validation", "val", "heldout", "eval"), ("test",))
_SWAG = (Layout(_SWAG_TEXTS, "label"), Layout(_SWAG_TEXTS))


class File(NamedTuple):
    """A file to read; for TFDS, `path` is the name of the set and `part` the split.

    Attributes:
        labelled: whether a table must have the column of the labels.
    """

    path: str
    part: str
    data: ExampleData
    read_report: ReadReport
    labelled: bool = False


class Format(NamedTuple):
    """A file format of examples.

    Attributes:
        parts: default file name, or split, for training, validation and test.
        layouts: possible layouts of a table, those with a header first.
        labels: the classes in their order, or a Scale; () if only the examples have them.
        read: reader of any other file.
        example: class of the examples.
        files: split -> possible names of its file, for formats whose `parts` are no file names.
        folder: subfolder in which the files may be, too.
        others: other names of the files, with {} for one of `SPLITS`; of formats for users' own files.
        broken_rows: whether rows with a wrong number of columns are skipped and counted, instead of an error.
        labels_in: maps the path of the training file to the labels, if they depend on it.
        settings: fields of ExampleData that select columns; the format defines the other columns.
        unanswerable: whether questions may have no answer.
        metrics: name of its official metrics, by which the tasks list those that are not their usual ones.
    """

    parts: tuple[str, str, str]
    layouts: tuple[Layout, ...] = ()
    labels: Labels = ()
    read: Callable[[File], Iterator[Any]] | None = None
    example: type = TextExample
    files: Mapping[str, tuple[str, ...]] = types.MappingProxyType({})
    folder: str = ""
    others: tuple[str, ...] = ()
    broken_rows: bool = False
    labels_in: Callable[[str], Labels] | None = None
    settings: tuple[str, ...] = ()
    unanswerable: bool = False
    metrics: str = ""

    def examples(self, file: File) -> Iterator[Any]:
        """Streams the examples of a file."""
        if self.read:
            return self.read(file)
        return read_rows(file.path, self.layouts, self.labels, file.read_report if self.broken_rows else None)

    def paths(self, folder: str, part: str) -> list[str]:
        """The possible paths of a part's file."""
        names = self.files.get(part, (part,))
        folders = [folder, os.path.join(folder, self.folder)] if self.folder else [folder]
        return [os.path.join(place, name) for place in folders for name in names]


def _klue(name: str, layout: Layout, labels: Labels, metrics: str = "") -> Format:
    parts = (f"{name}_train.json", f"{name}_dev.json", f"{name}_dev.json")
    return Format(
        parts, labels=labels, read=lambda file: read_json_rows(file.path, layout, {"": labels}), metrics=metrics
    )


def _glue(
    name: str,
    folder: str,
    texts: tuple[str, ...],
    labels: Labels,
    label: str = "label",
    *,
    layouts: tuple[Layout, ...] = (),
    **others: tuple[str, ...],
) -> Format:
    """A task of GLUE. Train and dev sets have labels, test sets the index of a submission.

    Args:
        name: of its metrics.
        folder: its name in the benchmark's zip file.
        texts, labels, label: as for `Layout` and `Format`.
        layouts: of other files than the benchmark's.
        **others: split -> names of these files.
    """
    splits = ("train", "dev", "test")
    files = {split: (f"{split}.tsv", *others.get(split, ())) for split in splits}
    return Format(
        splits,
        (Layout(texts, label), Layout(texts, id="index"), *layouts),
        labels,
        files=files,
        folder=folder,
        metrics=f"glue/{name}",
    )


def _squad(train: str, dev: str, *, unanswerable: bool = False, metrics: str = "") -> Format:
    return Format(
        (train, dev, dev),
        read=lambda file: read_squad(file.path, file.read_report, unanswerable=unanswerable),
        example=QuestionExample,
        unanswerable=unanswerable,
        metrics=metrics,
    )


def texts_of(data: ExampleData) -> tuple[str, ...]:
    """Names of the one or two text columns."""
    return (data.text, data.second_text) if data.second_text else (data.text,)


def clinc150_labels(path: str) -> tuple[str, ...]:
    """The intents of the training queries, sorted, then "oos"."""
    intents = {str(query.label) for query in read_json_rows(path, _CLINC150, {"train": ()})}
    return (*sorted(intents), OUT_OF_SCOPE)


def _read_clinc150(file: File) -> Iterator[TextExample]:
    """Queries with one of the intents of the training queries, and, last, those out of scope."""
    intents = clinc150_labels(file.path)[:-1]
    return read_json_rows(file.path, _CLINC150, {file.part: intents, f"oos_{file.part}": (OUT_OF_SCOPE,)})


def _swag_choice(row: TextExample) -> ChoiceExample:
    """As in the BERT paper (section 4.4), each choice is the beginning of the second sentence with an ending."""
    context, beginning, *endings = row.texts
    choices = tuple(f"{beginning} {ending}".strip() for ending in endings)
    label = None if row.label is None else int(row.label)  # type: ignore[arg-type]  # one of its labels
    return ChoiceExample(row.id, context, "", choices, label, row.location)


# Keys are the values of `ExampleData.format`.
FORMATS: dict[str, Format] = {
    # Users' own tables: the config names the columns.
    "table": Format(
        _SPLITS,
        read=lambda file: read_texts(file.path, texts_of(file.data), file.data.label, labelled=file.labelled),
        others=_TABLES,
        settings=("text", "second_text", "label"),
    ),
    "sst": Format(_SPLITS, (Layout(("sentence",), "label", columns=("sentence", "label")),), BINARY),
    "nsmc": Format(
        ("ratings_train.txt", "ratings_test.txt", "ratings_test.txt"), (Layout(("document",), "label", "id"),), BINARY
    ),
    "kornli": Format(
        ("multinli.train.ko.tsv", "xnli.dev.ko.tsv", "xnli.test.ko.tsv"), (Layout(_PAIR, "gold_label"),), NLI
    ),
    # Its `id` repeats across genres.
    "korsts": Format(("sts-train.tsv", "sts-dev.tsv", "sts-test.tsv"), (Layout(_PAIR, "score"),), SIMILARITY),
    # The annotators' labels, not the publisher's.
    "klue/ynat": _klue("ynat-v1.1", Layout(("title",), "label", "guid"), YNAT_LABELS, "klue/ynat"),
    "klue/nli": _klue("klue-nli-v1.1", Layout(("premise", "hypothesis"), "gold_label", "guid"), NLI),
    # The mean rating, not rounded to one digit, as in its authors' reader (klue_baseline/data/klue_sts.py).
    "klue/sts": _klue("klue-sts-v1.1", Layout(_PAIR, "labels/real-label", "guid"), SIMILARITY, "klue/sts"),
    "klue/ner": Format(
        ("klue-ner-v1.1_train.tsv", "klue-ner-v1.1_dev.tsv", "klue-ner-v1.1_dev.tsv"),
        read=lambda file: read_klue_ner(file.path),
        example=TaggedExample,
        metrics="klue/ner",
    ),
    "klue/mrc": _squad("klue-mrc-v1.1_train.json", "klue-mrc-v1.1_dev.json", unanswerable=True, metrics="korquad"),
    "clinc150": Format(
        ("train", "val", "test"),
        read=_read_clinc150,
        labels_in=clinc150_labels,
        metrics="clinc150",
        files=dict.fromkeys(("train", "val", "test"), ("data_full.json",)),
    ),
    "glue/cola": _glue(
        "cola",
        "CoLA",
        ("sentence",),
        BINARY,
        # Train and dev have no header; the mark is the author's.
        layouts=(Layout(("sentence",), "label", columns=("source", "label", "mark", "sentence")),),
        train=("in_domain_train.tsv",),
        dev=("in_domain_dev.tsv",),
    ),
    "glue/sst2": _glue("sst2", "SST-2", ("sentence",), BINARY),
    "glue/mrpc": _glue(
        "mrpc",
        "MRPC",
        ("#1 String", "#2 String"),
        BINARY,
        "Quality",
        # Microsoft's own files have only train and test, both with labels; the other names are from common copies.
        train=("msr_paraphrase_train.txt", "msr-para-train.tsv"),
        dev=("msr-para-val.tsv",),
        test=("msr_paraphrase_test.txt", "msr-para-test.tsv"),
    ),
    "glue/stsb": _glue(
        "stsb",
        "STS-B",
        _PAIR,
        SIMILARITY,
        "score",
        # The authors' own files (Cer et al., 2017) have no header and, in some rows, two more columns with sources.
        layouts=(Layout(_PAIR, "score", columns=("genre", "file", "year", "old_index", "score", *_PAIR), more=2),),
        train=("sts-train.csv",),
        dev=("sts-dev.csv",),
        test=("sts-test.csv",),
    ),
    # Train and dev have a few rows that are broken by a line end within a question.
    "glue/qqp": _glue("qqp", "QQP", ("question1", "question2"), BINARY, "is_duplicate")._replace(
        layouts=(Layout(("question1", "question2"), "is_duplicate"), Layout(("question1", "question2"), id="id")),
        broken_rows=True,
    ),
    "glue/mnli": _glue("mnli", "MNLI", _PAIR, NLI, "gold_label")._replace(
        parts=("train", "dev_matched", "test_matched"),
        files={
            split: (f"{split}.tsv",)
            for split in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
        },
    ),
    "glue/qnli": _glue("qnli", "QNLI", ("question", "sentence"), _TWO_WAY),
    "glue/rte": _glue("rte", "RTE", _PAIR, _TWO_WAY),
    "glue/wnli": _glue("wnli", "WNLI", _PAIR, BINARY),
    # Predicted by a model trained on MNLI; only the leaderboard has its labels.
    "glue/ax": Format(
        ("test", "test", "test"),
        (Layout(_PAIR, id="index"),),
        NLI,
        files={"test": ("diagnostic.tsv", "AX.tsv")},
        folder="diagnostic",
        metrics="glue/ax",
    ),
    "conll": Format(
        ("train.txt", "valid.txt", "test.txt"),
        read=lambda file: read_conll(file.path, file.data.column or "-1"),
        example=TaggedExample,
        others=("{}.txt", "{}.conll", "{}.tsv", "{}.jsonl"),
        settings=("column",),
    ),
    # Naver's Korean named entities as github.com/monologg/KoBERT-NER publishes them.
    "tagged_lines": Format(_SPLITS, read=lambda file: read_sentences(file.path), example=TaggedExample, others=_TABLES),
    "conllu": Format(
        ("train.conllu", "dev.conllu", "test.conllu"),
        read=lambda file: read_conllu(file.path, file.data.column or "upos"),
        example=TaggedExample,
        others=("{}.conllu",),
        settings=("column",),
    ),
    # SNIPS as github.com/MiuLab/SlotGated-SLU publishes it (Goo et al., 2018), and ATIS in the same files; JointBERT
    # (github.com/monologg/JointBERT) has "dev" for "valid".
    "snips": Format(
        ("train", "valid", "test"),
        read=lambda file: read_intents(file.path),
        example=TaggedExample,
        files={part: (os.path.join(part, "seq.in"),) for part in ("train", "valid", "test")},
        others=(os.path.join("{}", "seq.in"), "{}.jsonl"),
    ),
    "squad": _squad("train-v1.1.json", "dev-v1.1.json"),
    "squad2": _squad("train-v2.0.json", "dev-v2.0.json", unanswerable=True),
    "korquad": _squad("KorQuAD_v1.0_train.json", "KorQuAD_v1.0_dev.json", metrics="korquad"),
    "swag": Format(
        ("train.csv", "val.csv", "test.csv"),
        read=lambda file: map(_swag_choice, read_rows(file.path, _SWAG, ("0", "1", "2", "3"), rows=read_csv)),
        example=ChoiceExample,
    ),
    "copa": Format(
        ("copa-dev.xml", "copa-test.xml", "copa-test.xml"),
        read=lambda file: read_copa(file.path),
        example=ChoiceExample,
    ),
    # Texts that belong together, with others that do not, or with numbers.
    "groups": Format(
        ("train.jsonl", "dev.jsonl", "test.jsonl"),
        read=lambda file: read_groups(file.path),
        example=TextGroup,
        others=_TABLES,
    ),
    # The judgements of a corpus: github.com/beir-cellar/beir.
    "beir": Format(
        ("train", "dev", "test"),
        read=lambda file: read_beir(os.path.dirname(os.path.dirname(file.path)), file.path, file.read_report),
        example=TextGroup,
        files={part: (os.path.join("qrels", f"{part}.tsv"),) for part in ("train", "dev", "test")},
    ),
    "choices": Format(
        ("train.jsonl", "dev.jsonl", "test.jsonl"),
        read=lambda file: read_choices(file.path),
        example=ChoiceExample,
        others=("{}.jsonl",),
    ),
}
# The tasks of GLUE and its diagnostic set, by the names of TFDS.
GLUE = {name.removeprefix("glue/"): form for name, form in FORMATS.items() if name.startswith("glue/")}
