"""Multiple choice: SWAG, COPA and JSON lines."""

import collections
import csv
import io
import json
import re

import pytest

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.copa import read_copa
from bert_tf.inputs.datasets.examples import ChoiceExample
from bert_tf.inputs.datasets.json_lines import read_choices
from tests.inputs.datasets.reading import read
from tests.packages import shared


def read_swag(path):
    return read("swag", path)


SWAG = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
SWAG += ["ending0", "ending1", "ending2", "ending3", "label"]
SWAG_ROW = ["0", "lsmdc1052", "18313", "He sits, quietly. She", "He sits, quietly.", "She", "gold"]
SWAG_ROW += ['says "no".', "turns,", "waits\nthere.", "leaves.", "2"]


def table(*rows):
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def test_swag_choices_are_the_beginning_with_each_ending(write):
    choices = ('She says "no".', "She turns,", "She waits\nthere.", "She leaves.")
    path = write("train.csv", table(SWAG, SWAG_ROW, [*SWAG_ROW[:5], "", *SWAG_ROW[6:]]))
    first, second = read_swag(path)
    assert first == ChoiceExample("0", "He sits, quietly.", "", choices, 2, f"{path}:3")
    assert second.choices == tuple(choice.removeprefix("She ") for choice in choices)
    path = write("test.csv", table(SWAG[:-1], SWAG_ROW[:-1]))
    assert list(read_swag(path)) == [first._replace(label=None, location=f"{path}:3")]


@pytest.mark.parametrize("split, first", [("dev", 1), ("test", 501)])
def test_copa_is_read_as_published(split, first):
    path = shared(f"english/copa/copa-{split}.xml")
    examples = list(read_copa(str(path)))
    assert [example.id for example in examples] == [str(first + index) for index in range(500)]
    assert collections.Counter(example.label for example in examples) == {0: 250, 1: 250}
    text = path.read_text(encoding="utf-8")
    for kind, texts in (("p", [e.context for e in examples]), ("a2", [e.choices[1] for e in examples])):
        assert [found.strip() for found in re.findall(f"<{kind}>(.*)</{kind}>", text)] == texts
    causes = [e.question == "What was the CAUSE of this?" for e in examples]
    assert [asked == "cause" for asked in re.findall('asks-for="(.*?)"', text)] == causes


def item(attributes='id="7" asks-for="effect" most-plausible-alternative="2"', body="<p>a</p><a1>b</a1><a2>c</a2>"):
    return f"<item {attributes}>{body}</item>"


def copa(*items):
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<copa-corpus version="1.0">\n{"".join(items)}\n</copa-corpus>\n'


def test_copa_without_label_is_read_for_prediction(write):
    path = write("copa.xml", copa(item('id="7" asks-for="effect"', "<p> a &amp; b\n</p><a1>c</a1><a2>d</a2>")))
    question = "What happened as a RESULT?"
    assert list(read_copa(path)) == [ChoiceExample("7", "a & b", question, ("c", "d"), None, f"{path}: item 7")]


def test_json_lines_have_any_number_of_choices(write):
    rows = [
        {"context": "a", "choices": ["b", "c"], "label": 0},
        {"context": "아", "question": "?", "choices": ["b", "c", "d", "e", "f"], "id": "x", "label": 4, "more": []},
        {"context": "a", "choices": ["b", "c"], "label": None},
    ]
    path = write("dev.jsonl", "\n\n".join(json.dumps(row) for row in rows))
    assert list(read_choices(path)) == [
        ChoiceExample("0", "a", "", ("b", "c"), 0, f"{path}:1"),
        ChoiceExample("x", "아", "?", ("b", "c", "d", "e", "f"), 4, f"{path}:3"),
        ChoiceExample("2", "a", "", ("b", "c"), None, f"{path}:5"),
    ]


@pytest.mark.parametrize(
    "read, content, message",
    [
        (
            read_swag,
            table([*SWAG[:-2], "label"], SWAG_ROW[:-1]),
            ":1: no column 'ending3'; the columns are '', 'video-id'",
        ),
        (read_swag, table(SWAG, SWAG_ROW[:-1]), ":3: 11 columns; expected 12: , video-id, "),
        (read_swag, table(SWAG, [*SWAG_ROW[:-1], "4"]), ":3: label '4'; expected one of '0', '1', '2', '3'"),
        (read_swag, table(SWAG) + '0,"a\n', ":2: unexpected end of data"),
        (
            read_copa,
            copa(item(), item()),
            ": item 7, number 2 of the file: the id '7' was used before; make ids unique",
        ),
        (read_copa, copa(item('asks-for="effect"')), ": item 1: no id; number the items"),
        (read_copa, copa(item('id="7" asks-for="reason"')), ": item 7: asks-for is 'reason'; expected cause or effect"),
        (read_copa, copa(item(body="<p>a</p><a1>b</a1>")), ": item 7: no <a2>; expected <p>, <a1> and <a2>"),
        (read_copa, copa(item().replace('"2"', '"3"')), ": item 7: label '3'; expected one of 1, 2"),
        (read_copa, copa("<item>"), ":4: not XML (mismatched tag: line 4, column 2)"),
        (read_copa, copa(item()).encode().replace(b"<p>a", b"<p>\xff"), ":3: not XML (not well-formed"),
        (read_copa, copa(), ": no items; expected COPA's copa-corpus"),
        (read_choices, '{"context": "a", "choices": ["b"]}\n', ":1: 1 choices; expected at least two"),
        (read_choices, '{"context": "a", "choices": "bc"}\n', ':1: choices is "bc"; expected a list'),
        (read_choices, '{"context": "a", "choices": ["b", 1]}\n', ":1: choices[1] is 1; expected text"),
        (
            read_choices,
            '{"context": "a", "choices": ["b", "c"], "label": 2}\n',
            ":1: label 2; expected the index of a choice, 0 to 1",
        ),
        (
            read_choices,
            '{"context": "a", "choices": ["b", "c"], "label": "b"}\n',
            ':1: label is "b"; expected a whole number',
        ),
        (read_choices, '{"choices": ["b", "c"]}\n', ":1: no field 'context'; the fields are 'choices'"),
        (read_choices, '["a"]\n', ":1: list; expected an object with the field 'context'"),
        (
            read_choices,
            2 * '{"id": "x", "context": "a", "choices": ["b", "c"]}\n',
            ":2: the id 'x' was used before; make ids unique",
        ),
    ],
)
def test_errors_give_the_location(write, read, content, message):
    path = write("file.csv" if read is read_swag else "file", content)
    with pytest.raises(DataError) as raised:
        list(read(path))
    assert str(raised.value).startswith(path + message), raised.value
    assert "\n" not in str(raised.value)
