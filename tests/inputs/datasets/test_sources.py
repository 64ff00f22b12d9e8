"""Sources of examples: the same rules for every task and format."""

import json
import os

import pytest

from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets import sources
from bert_tf.inputs.datasets.examples import (
    ChoiceExample,
    QuestionExample,
    ReadReport,
    TaggedExample,
    TextExample,
    TextGroup,
)
from bert_tf.inputs.datasets.formats import FORMATS
from bert_tf.inputs.datasets.sources import Source
from tests.errors import raises

# For each kind of example, the fields of an unlabelled JSON line.
UNLABELLED = {
    TextExample: {"sentence": "a b"},
    TaggedExample: {"text": "a b"},
    QuestionExample: {"question": "a", "context": "b"},
    ChoiceExample: {"context": "a", "choices": ["b", "c"]},
}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def read(path, kind, **data):
    return list(Source(ExampleData(**data), path, kind).examples(ReadReport(), "test", labelled=False))


@pytest.mark.parametrize("kind", UNLABELLED)
def test_an_id_in_json_lines_is_text_or_a_whole_number_and_defaults_to_the_line_number(write, kind):
    records = [UNLABELLED[kind] | own for own in ({"id": "x"}, {}, {"id": 7}, {"id": None}, {"id": ""}, {"id": "9"})]
    assert [example.id for example in read(write("a.jsonl", lines(*records)), kind)] == ["x", "1", "7", "3", "", "9"]


@pytest.mark.parametrize("kind", UNLABELLED)
@pytest.mark.parametrize(
    "ids, message",
    [
        (["x", "x"], "the id 'x' was used before; make ids unique"),
        ([7, "7"], "the id '7' was used before; make ids unique"),
        ([None, 0], "the id '0' may be the number of an example without an id; give each one an id"),
        (["1", None], "no id, and its number, 1, is the id of an earlier one; give it an id"),
        ([None, 1.0], "id is 1.0; expected text or a whole number"),
        ([None, True], "id is true; expected text or a whole number"),
        ([None, ["x"]], 'id is ["x"]; expected text or a whole number'),
        ([None, "\ud800"], 'id has half of a surrogate pair, "\\ud800"; remove it'),
    ],
)
def test_an_ambiguous_or_invalid_id_in_json_lines_is_refused(write, kind, ids, message):
    path = write("a.jsonl", lines(*(UNLABELLED[kind] | {"id": one} for one in ids)))
    with pytest.raises(DataError) as raised:
        read(path, kind)
    assert str(raised.value) == f"{path}:2: {message.format(path=path)}"


def labelled_and_empty():
    """For each kind and file format: format, file, its content with labels; ids of the examples with an empty text."""
    question = {"question": "a", "context": "b", "answers": [{"text": "b", "start": 0}]}
    choice = {"context": "a", "choices": ["b", "c"], "label": 1}
    tags = {"words": ["a"], "tags": ["O"]}
    yield TextExample, "table", "a.tsv", "sentence\tlabel\ngood\tpos\n\tneg\nbad\tneg\n", ["1"]
    yield (
        TextExample,
        "table",
        "a.jsonl",
        lines({"sentence": " ", "label": "x"}, {"sentence": "a", "label": "x"}),
        ["0"],
    )
    yield TextExample, "sst", "a.tsv", " \t1\na\t0\n", ["0"]
    yield TextExample, "glue/rte", "a.tsv", "sentence1\tsentence2\tlabel\na\t\tentailment\na\tb\tentailment\n", ["0"]
    klue = {"premise": "a", "hypothesis": "b", "gold_label": "neutral"}
    yield (
        TextExample,
        "klue/nli",
        "a.json",
        json.dumps([klue | {"guid": "x"}, klue | {"guid": "y", "premise": "\n"}]),
        ["y"],
    )
    yield TaggedExample, "conll", "a.jsonl", lines(tags, {"words": [], "tags": []}), ["1"]
    yield (
        QuestionExample,
        "squad",
        "a.jsonl",
        lines(question, question | {"question": "\t"}, question | {"context": ""}),
        ["1", "2"],
    )
    yield (
        ChoiceExample,
        "choices",
        "a.jsonl",
        lines(
            choice | {"context": ""},
            choice,
            choice | {"choices": ["b", " "]},
            choice | {"context": "", "question": "what?"},
        ),
        ["0", "2"],
    )


@pytest.mark.parametrize("kind, form, name, content, empty", labelled_and_empty())
def test_empty_texts_are_skipped_and_counted_if_labels_are_used_and_kept_otherwise(
    write, kind, form, name, content, empty
):
    path, read_report = write(name, content), ReadReport()
    every = read(path, kind, format=form)
    used = list(Source(ExampleData(format=form), path, kind).examples(read_report, "train"))
    assert [example.id for example in every if example not in used] == empty and len(every) == len(empty) + len(
        used
    ) > 1
    assert read_report.locations == {
        "skipped: empty text": [example.location for example in every if example.id in empty]
    }


def test_a_question_with_only_empty_answers_is_predicted_but_not_trained_on(write):
    record = {"question": "a", "context": "b"}
    path = write("a.jsonl", lines(record | {"answers": [{"text": " ", "start": 0}]}, record | {"answers": []}))
    read_report, source = ReadReport(), Source(ExampleData(format="squad2"), path, QuestionExample)
    assert [example.id for example in source.examples(read_report, "train")] == ["1"]
    assert read_report.locations == {"skipped: question whose answers are all empty": [f"{path}:1"]}
    assert [example.id for example in source.examples(read_report, "test", labelled=False)] == ["0", "1"]


def test_a_folder_together_with_a_tfds_set_is_refused_and_so_is_a_missing_one(tmp_path):
    data = ExampleData(source="tfds:glue/mrpc")
    with pytest.raises(ConfigError) as raised:
        Source(data, str(tmp_path), TextExample)
    expected = "--data_dir names a folder and data.source a TFDS set; leave one out (--data.source= reads the files)"
    assert str(raised.value) == expected
    with raises(DataError, "none"):
        Source(data, str(tmp_path / "none"), TextExample)
    assert Source(data, "", TextExample).where("test") == "tfds:glue/mrpc:test"


def test_the_error_for_a_pipe_names_standard_input(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with raises(DataError, "--data_dir=-"):
        Source(ExampleData(), str(tmp_path / "pipe"), TextExample)


@pytest.mark.parametrize("fields", [{"text": "review"}, {"label": "y"}, {"second_text": "b"}, {"column": "upos"}])
def test_a_column_that_the_format_would_not_read_is_refused(write, fields):
    path = write("ratings_train.tsv", "id\tdocument\tlabel\n1\ta\t0\n")
    source = Source(ExampleData(format="nsmc", **fields), path, TextExample)
    with raises(ConfigError, f"data.{next(iter(fields))}", "data.format"):
        list(source.examples(ReadReport(), "train"))
    # In JSON lines they name the fields, whatever the format.
    row = {"text": "a", "review": "b", "sentence": "c", "b": "d", "y": "1", "label": "1"}
    lines_of = Source(ExampleData(format="nsmc", **fields), write("a.JSONL", lines(row)), TextExample)
    assert [example.label for example in lines_of.examples(ReadReport(), "train")] == ["1"]


@pytest.mark.parametrize(
    "role, remedy",
    [
        ("validation", "pass the file itself, or set data.validation to its name"),
        ("other.txt", "name a file, or one of train, validation, test"),
    ],
)
def test_the_error_for_a_missing_file_lists_the_files_of_the_folder(write, tmp_path, role, remedy):
    write("ratings_train.tsv", "")
    source = Source(ExampleData(format="nsmc"), str(tmp_path), TextExample)
    with pytest.raises(DataError) as raised:
        source.where(role)
    name = "ratings_test.txt" if role == "validation" else role
    assert str(raised.value) == f"{tmp_path}/{name}: no such file; {tmp_path} has ratings_train.tsv; {remedy}"
    with raises(DataError, "/data_full.json", "--data_dir"):
        Source(ExampleData(format="clinc150"), str(tmp_path), TextExample).where("validation")
    for number in range(9):
        write(f"{number}.txt", "")
    with raises(DataError, "0.txt", "7.txt", "2 more"):
        source.where(role)


def test_the_identity_depends_on_the_split_within_a_file_but_not_on_the_file_name(write, tmp_path):
    write("data_full.json", json.dumps({"train": [], "val": []}))
    write("a.tsv", "text\n")
    write("train.tsv", "text\n")

    def identity(**data):
        return Source(ExampleData(**data), str(tmp_path), TextExample).identity("train")

    assert identity(format="clinc150") == identity(format="clinc150", train="train")
    assert identity(format="clinc150") != identity(format="clinc150", train="val")
    assert identity(train="a.tsv") == identity()


@pytest.mark.parametrize("source", ["", "tfds:conll2003"])
def test_a_file_is_read_in_the_given_format_whatever_the_model_was_trained_on(write, source):
    path = write("a.txt", "a O\nb B-X\n")
    formats = "klue/ner, conll, tagged_lines, conllu"
    with raises(ConfigError, "'table'", formats):
        Source(ExampleData(source=source), path, TaggedExample)
    found = Source(ExampleData(source=source, format="conll"), path, TaggedExample)
    assert [example.tags for example in found.examples(ReadReport(), "train")] == [("O", "B-X")]
    assert found.where("test") == path and found.identity("test") != path and found.labels() is None
    asked_of = Source(ExampleData(source=source), write("a.jsonl", lines({"text": "a"})), TaggedExample)
    assert [example.text for example in asked_of.examples(ReadReport(), "test", labelled=False)] == ["a"]


SQUAD = {
    "context": "b c b",
    "qas": [
        {"id": "1", "question": "a?", "answers": [{"text": "c", "answer_start": 2}]},
        {"id": "2", "question": "d?", "answers": []},
    ],
}
# For each kind of example: format, file, its content; inputs and labels as the Python API takes them.
VALUES = {
    "text": ("table", "a.tsv", "sentence\tlabel\na b\tgood\nc\tbad\n", ["a b", "c"], ["good", "bad"]),
    "pairs": ("korsts", "a.tsv", "sentence1\tsentence2\tscore\na\tb\t2.5\n", [("a", "b")], [2.5]),
    "without labels": ("table", "a.jsonl", '{"sentence": "a"}\n', ["a"], [None]),
    "words": ("conll", "a.txt", "a O\nb B-X\n\nc O\n", [["a", "b"], ["c"]], [["O", "B-X"], ["O"]]),
    "characters": ("klue/ner", "a.tsv", "## 0\ta b\na\tO\n \tO\nb\tB-X\n\n", ["a b"], [["O", "O", "B-X"]]),
    "intents": (
        "snips",
        "a.jsonl",
        '{"words": ["a", "b"], "tags": ["O", "B-X"], "label": "play"}\n',
        [["a", "b"]],
        [("play", ["O", "B-X"])],
    ),
    "a text alone": ("conll", "a.jsonl", '{"text": "a b"}\n', ["a b"], [None]),
    "questions": (
        "squad2",
        "a.json",
        json.dumps({"data": [{"paragraphs": [SQUAD]}]}),
        [("a?", "b c b"), ("d?", "b c b")],
        [{"text": ["c"], "answer_start": [2]}, None],
    ),
    "choices": (
        "choices",
        "a.jsonl",
        '{"context": "a", "choices": ["b", "c"], "label": 1}\n',
        [("a", "", ["b", "c"])],
        [1],
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_read_gives_inputs_and_labels_in_plain_python(write, case):
    form, file, content, x, y = VALUES[case]
    data = sources.read(form, write(file, content))
    assert (data.x, data.y, len(data)) == (x, y, len(x))
    assert data.format.format == form and data.where.endswith(file)


def test_a_label_that_is_asked_for_must_be_there(write):
    """As a text must be; the usual one may be missing, in texts to predict."""
    shown = "no column 'nosuch' with the labels; the columns are 'text', 'toxic'"
    table, rows = write("a.csv", "text,toxic\na,0\n"), write("a.jsonl", lines({"text": "a", "toxic": 0}))
    for path, message in ((table, shown), (rows, "no field 'nosuch' with the labels in any line; the fields are")):
        with raises(DataError, path, message):
            sources.read("table", path, text="text", label="nosuch")
        assert sources.read("table", path, text="text").y == [None]
        assert sources.read("table", path, text="text", label="toxic").y == [0]
    with raises(DataError, "no column 'label' with the labels", "'text', 'toxic'", "data.label", "predict"):
        list(Source(ExampleData(text="text"), table, TextExample).examples(ReadReport(), "train"))
    with raises(DataError, "no column '3' with the labels; the columns are '1', '2'"):
        sources.read("table", write("b.tsv", "a\tx\n"), text="1", label="3")


@pytest.mark.parametrize("split", ["nosuch", "dev", "", "other.tsv"])
def test_a_split_that_a_single_file_does_not_have_is_refused(write, split):
    path = write("a.tsv", "sentence\tlabel\na\tx\n")
    with raises(ConfigError, f"the split is {split!r}", path, "one file"):
        sources.read("table", path, split)
    with raises(ConfigError, f"the split is {split!r}"):
        Source(ExampleData(), path, TextExample).where(split)
    assert all(len(sources.read("table", path, name)) == 1 for name in ("train", "validation", "test", "a.tsv"))
    with raises(ConfigError, "split is 5"):
        sources.read("table", path, 5)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("table", "valid.csv"),
        ("table", "validation.jsonl"),
        ("table", "val.tsv"),
        ("conll", "dev.txt"),
        ("conll", "dev.conll"),
        ("conllu", "valid.conllu"),
        ("tagged_lines", "dev.txt"),
        ("choices", "validation.jsonl"),
        ("snips", "dev/seq.in"),
        ("snips", "dev.jsonl"),
    ],
)
def test_a_validation_set_is_found_under_its_usual_names(tmp_path, form, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x")
    source = Source(ExampleData(format=form), str(tmp_path), FORMATS[form].example)
    assert source.where("validation") == str(tmp_path / name) and source.files("test") == [str(tmp_path / name)]
    with raises(DataError, "no such file"):
        source.where("train")
    # The default of the format comes first, and of two others none.
    other = tmp_path / name.replace(name.split("/")[0].split(".")[0], "eval")
    other.parent.mkdir(exist_ok=True)
    other.write_text("x")
    with raises(DataError, name, os.path.relpath(other, tmp_path), "data.validation"):
        source.where("validation")
    usual = tmp_path / FORMATS[form].paths("", FORMATS[form].parts[1])[0]
    usual.parent.mkdir(exist_ok=True)
    usual.write_text("x")
    assert source.where("validation") == str(usual)


def test_read_finds_the_file_of_a_split_in_a_folder(write, tmp_path):
    write("train.tsv", "text\tstars\na\t5\n")
    write("dev.tsv", "text\tstars\nb\t4\n")
    for split, x in (("train", ["a"]), ("validation", ["b"]), ("dev.tsv", ["b"])):
        assert sources.read("table", tmp_path, split, text="text", label="stars").x == x
    with raises(DataError, "test.tsv", "dev.tsv", "train.tsv"):
        sources.read("table", tmp_path, "test")
    with raises(ConfigError, "data.format", "'klue/nre'"):
        sources.read("klue/nre", tmp_path)


def test_a_folder_with_the_files_of_another_format_names_it(tmp_path):
    (tmp_path / "dev-v1.1.json").touch()
    with raises(DataError, "dev.jsonl", "data.format=squad"):
        Source(ExampleData(format="groups"), str(tmp_path), TextGroup).where("validation")
