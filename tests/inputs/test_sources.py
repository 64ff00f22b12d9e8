"""What a task is given of whatever holds its examples: the same rules for every kind of them."""

import json

import pytest

from bert_tf.config import ExampleData
from bert_tf.errors import DataError
from bert_tf.inputs.examples import ChoiceExample, QuestionExample, Skips, TaggedExample, TextExample
from bert_tf.inputs.sources import Source

# Of each kind what a JSON line needs that is to be answered.
ASKED = {
    TextExample: {"sentence": "a b"},
    TaggedExample: {"text": "a b"},
    QuestionExample: {"question": "a", "context": "b"},
    ChoiceExample: {"context": "a", "choices": ["b", "c"]},
}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def asked(path, kind, **data):
    return list(Source(ExampleData(**data), path, kind).examples(Skips(), "test", labelled=False))


@pytest.mark.parametrize("kind", ASKED)
def test_an_id_in_json_lines_is_text_or_a_whole_number_and_else_the_number_of_the_line(write, kind):
    records = [ASKED[kind] | own for own in ({"id": "x"}, {}, {"id": 7}, {"id": None}, {"id": ""}, {"id": "9"})]
    assert [example.id for example in asked(write("a.jsonl", lines(*records)), kind)] == ["x", "1", "7", "3", "", "9"]


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize(
    "ids, message",
    [
        (["x", "x"], "the id 'x' was used before, at {path}:1; make ids unique"),
        ([7, "7"], "the id '7' was used before, at {path}:1; make ids unique"),
        ([None, 0], "the id '0' may be the number of an example without id; give each one an id"),
        (["1", None], "no id, and its number, 1, is that of {path}:1; give it an id"),
        ([None, 1.0], "id: 1.0; expected text or a whole number"),
        ([None, True], "id: true; expected text or a whole number"),
        ([None, ["x"]], 'id: ["x"]; expected text or a whole number'),
        ([None, "\ud800"], "id: has half of a surrogate pair; remove it"),
    ],
)
def test_an_id_in_json_lines_that_can_not_name_a_prediction_is_refused(write, kind, ids, message):
    path = write("a.jsonl", lines(*(ASKED[kind] | {"id": one} for one in ids)))
    with pytest.raises(DataError) as raised:
        asked(path, kind)
    assert str(raised.value) == f"{path}:2: {message.format(path=path)}"
