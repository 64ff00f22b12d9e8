"""Data sets of labelled texts, as published by their authors."""

import collections
import csv
import json

import pytest

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.formats import clinc150_labels
from tests.inputs.datasets.reading import read
from tests.packages import shared


@pytest.mark.parametrize("split, count", [("train", 6920), ("dev", 872), ("test", 1821)])
def test_sst_has_one_sentence_and_label_per_line(split, count):
    path = shared(f"english/sst2/{split}.tsv")
    examples = read("sst", path)
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(examples) == count
    assert [f"{example.texts[0]}\t{example.label}" for example in examples] == lines


def test_nsmc_has_reviews_of_which_one_is_empty():
    path = shared("korean/nsmc/ratings_test.tsv")
    examples = read("nsmc", path)
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(rows) == 10000
    expected = [TextExample(r["id"], (r["document"],), r["label"], f"{path}:{n}") for n, r in enumerate(rows, 2)]
    assert examples == expected
    assert sum(not example.texts[0].strip() for example in examples) == 1


def test_clinc150_has_150_intents_and_queries_out_of_scope():
    file = shared("english/clinc150/data_full.json")
    path = str(file)
    labels = clinc150_labels(path)
    assert len(set(labels)) == 151 and labels[-1] == "oos"
    # The numbers of the paper's table 1.
    for split, each, out in (("train", 100, 100), ("val", 20, 100), ("test", 30, 1000)):
        counts = collections.Counter(example.label for example in read("clinc150", path, split))
        assert counts == {label: each for label in labels[:-1]} | {"oos": out}
    inside = [example for example in read("clinc150", path, "val") if example.label != "oos"]
    assert [(*e.texts, e.label) for e in inside] == [tuple(row) for row in json.loads(file.read_text())["val"]]


YNAT = {
    "guid": "ynat-v1_dev_00000",
    "title": "제목",
    "predefined_news_category": "경제",
    "label": "사회",
    "annotations": {},
}
NLI = {"guid": "klue-nli-v1_dev_00000", "source": "airbnb", "premise": "앞", "hypothesis": "뒤"}
NLI |= {"gold_label": "contradiction", "author": "neutral"}
STS = {"guid": "klue-sts-v1_dev_00000", "sentence1": "하나", "sentence2": "둘"}
STS |= {"labels": {"label": 4.9, "real-label": 4.857142857142857, "binary-label": 1}}


@pytest.mark.parametrize(
    "name, row, texts, label",
    [
        ("klue/ynat", YNAT, ("제목",), "사회"),
        ("klue/nli", NLI, ("앞", "뒤"), "contradiction"),
        ("klue/sts", STS, ("하나", "둘"), 4.857142857142857),
    ],
)
def test_klue_is_a_list_of_objects(write, name, row, texts, label):
    path = write("klue.json", [row, row | {"guid": "second"}])
    examples = read(name, path)
    assert examples == [
        TextExample(row["guid"], texts, label, f"{path}: [0]"),
        TextExample("second", texts, label, f"{path}: [1]"),
    ]


def test_kornli_and_korsts_are_tables_in_which_quotes_are_text(write):
    path = write("xnli.dev.ko.tsv", 'sentence1\tsentence2\tgold_label\n"그가 말했다.\t그는 "침묵했다\tneutral\n')
    assert read("kornli", path) == [TextExample("0", ('"그가 말했다.', '그는 "침묵했다'), "neutral", f"{path}:2")]
    header = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\n"
    row = "main-captions\tMSRvid\t2012test\t0001\t3.80\t비행기.\t항공기.\n"
    path = write("sts-dev.tsv", header + row + row)  # ids are repeated in other genres
    assert [(e.id, e.texts, e.label) for e in read("korsts", path)] == [
        ("0", ("비행기.", "항공기."), 3.8),
        ("1", ("비행기.", "항공기."), 3.8),
    ]


CLINC = {"train": [["a", "x"]], "oos_train": [["b", "oos"]], "val": [["c", "x"]], "oos_val": []}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("sst", "a\t1\nb\t2\n", ":2: label '2'; expected one of '0', '1'"),
        ("sst", "a\t1\nb\n", ":2: 1 columns; expected 2: sentence, label"),
        ("sst", "sentence\n", ":1: no 2 columns without header (sentence, label); the columns are 'sentence'"),
        ("nsmc", "id\tdocument\tlabel\n1\ta\t1\n2\tb\t0\n1\tc\t0\n", ":4: the id '1' was used before; make ids unique"),
        ("nsmc", "id\tdocument\n1\ta\n", ":1: no column 'label'; the columns are 'id', 'document'"),
        ("nsmc", "id\tdocument\tlabel\n1\ta\tb\t1\n", ":2: 4 columns; expected 3: id, document, label"),
        ("kornli", "sentence1\tsentence2\tgold_label\na\tb\t-\n", ":2: label '-'; expected one of 'entailment', "),
        ("klue/ynat", [YNAT | {"label": "날씨"}], ": [0]: label '날씨'; expected one of 'IT과학', "),
        ("klue/ynat", [YNAT, YNAT], ": [1]: the id 'ynat-v1_dev_00000' was used before; make ids unique"),
        ("klue/ynat", {"data": [YNAT]}, ': the content is {"data": [{"guid": '),
        ("klue/nli", [{"guid": "1", "premise": "a", "hypothesis": "b"}], ": [0]: no field 'gold_label'; "),
        ("klue/sts", [STS | {"labels": {"real-label": "4.9"}}], ': [0]: labels: real-label is "4.9"; expected '),
        ("klue/sts", [STS | {"labels": {"real-label": 6}}], ": [0]: label 6; expected a number from 0 to 5"),
        ("clinc150:val", CLINC | {"val": [["c", "y"]]}, ": val[0]: label 'y'; expected one"),
        ("clinc150:train", CLINC | {"oos_train": [["c", "x"]]}, ": oos_train[0]: label 'x'"),
        ("clinc150:val", CLINC | {"val": [["c"]]}, ": val[0]: 1 values; expected [text, intent]"),
        ("clinc150:test", CLINC, ": no field 'test'; the fields are 'train', 'oos_train'"),
    ],
)  # fmt: skip
def test_errors_give_the_location(write, name, content, message):
    path = write("file", content)
    with pytest.raises(DataError) as raised:
        read(name.split(":")[0], path, name.split(":")[-1])
    assert str(raised.value).startswith(path + message), raised.value
    assert "\n" not in str(raised.value)
